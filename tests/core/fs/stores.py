"""Stores of every kind over real servers, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kafka_index.core.fs.object_store import ObjectStore
from kafka_index.core.fs.store import StorageOptions
from tests.servers.s3 import S3Server

#: Retries are a few and fast: what a test waits for is not the library's patience.
HASTY = StorageOptions((("max_retries", "2"), ("retry_timeout", "20s")))


@contextmanager
def s3_environment(server: S3Server, **changes: str | None) -> Iterator[None]:
    """Lead this process to a server; None removes a variable."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**server.environment(), **changes}.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        yield


@contextmanager
def object_store(
    server: S3Server, bucket: str, options: StorageOptions | None = None, **changes: str | None
) -> Iterator[ObjectStore]:
    """Open a bucket of a server."""
    with s3_environment(server, **changes):
        yield ObjectStore(f"s3://{bucket}", options or StorageOptions())

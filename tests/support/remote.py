"""Dumps in an object store: the same files as in a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_index.core.fs.registry import configure_stores, store_of
from kafka_index.core.fs.store import StorageOptions, parse_storage_options
from tests.servers.s3 import S3Server


@contextmanager
def new_bucket(s3: S3Server) -> Iterator[str]:
    """Create a bucket that this process can reach; its URI."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in s3.environment().items():
            patch.setenv(variable, value)
        yield f"s3://{s3.new_bucket()}"


def storage_options(s3: S3Server, folder: Path) -> list[str]:
    """Return what ``--storage-option`` takes to reach a server without any environment."""
    secret = folder / "secret"
    secret.write_text(s3.secret_key)
    options = {
        "access_key_id": s3.access_key,
        "secret_access_key": f"@{secret}",
        "endpoint": s3.endpoint,
        "region": "us-east-1",
    }
    return [f"{name}={value}" for name, value in options.items()]


@contextmanager
def bucket_for_tasks(s3: S3Server, folder: Path) -> Iterator[str]:
    """Create a bucket that tasks of Spark reach by the options of this process alone; its URI."""
    with new_bucket(s3) as uri:
        configure_stores(parse_storage_options(storage_options(s3, folder)))
        try:
            yield uri
        finally:
            configure_stores(StorageOptions())


def upload(folder: Path, uri: str) -> str:
    """Put every file of a folder under a prefix; its URI."""
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            target = f"{uri}/{file.relative_to(folder)}"
            store_of(target).put(target, file.read_bytes())
    return uri


def download(uri: str) -> dict[str, bytes]:
    """Return every object below a prefix, by its path there."""
    store = store_of(uri)
    return {
        name: store.read(f"{uri}/{name}")
        for page in store.list_tree(uri)
        for name in page.column("path").to_pylist()
    }

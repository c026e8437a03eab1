"""Verification of a dump in an object store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_index.verification import FileClass, verify
from kafka_index.verification.library import Verification
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP
from tests.support.remote import configured_bucket, upload


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> Iterator[str]:
    with configured_bucket(s3, tmp_path) as uri:
        yield uri


def classes(found: Verification) -> list[tuple[str, str, FileClass, bool]]:
    rows = [row for one in found.partitions for row in one.findings]
    return sorted(
        (Path(row.path).name, row.kind.value, row.file_class, row.harmful) for row in rows
    )


def test_rows_are_those_of_the_same_files_on_a_disk(bucket: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(DUMP / "payments-0", data / "payments-0")
    for path in DUMP.iterdir():
        if path.is_file():
            shutil.copy(path, data)
    index = min((data / "payments-0").glob("*.index"))
    index.write_bytes(index.read_bytes()[:-3])
    log = max((data / "payments-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    uri = upload(data, f"{bucket}/data")

    remote, local = verify([uri], threads=2), verify([data], threads=2)

    assert remote.is_harmful
    assert classes(remote) == classes(local)

"""`read_records` of a dump in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kafka_index
from kafka_index.tables import RecordReader, plan_read
from kafka_index.tables.bounds import BoundOptions
from tests.servers.s3 import S3Server
from tests.support.command_line import copy_partitions, run_here
from tests.support.record_tables import rows_of
from tests.support.remote import new_bucket, upload

COLUMNS = ("offset", "value", "timestamp")


@pytest.fixture
def places(s3: S3Server, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Partitions of a broker with their indexes, on the disk and in a bucket."""
    data = copy_partitions(tmp_path / "data", "payments-0", "orders.eu-west-0")
    assert run_here("build", "--input", data, "--in-place").returncode == 0
    with new_bucket(s3) as bucket:
        yield data, upload(data, f"{bucket}/data")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_records_are_those_of_the_local_files(places: tuple[Path, str], isolation: str) -> None:
    found, expected = (
        kafka_index.read_records(place, columns=COLUMNS, isolation=isolation).read_all()
        for place in places
    )
    assert rows_of(found, *COLUMNS) == rows_of(expected, *COLUMNS)
    assert len(found)


def test_bounds_read_few_bytes_of_an_object(places: tuple[Path, str]) -> None:
    local, remote = (
        plan_read(f"{place}/payments-0", bounds=BoundOptions(700, 710)) for place in places
    )
    assert remote.size_bytes == local.size_bytes < 20_000
    (split,) = remote.splits
    reader = RecordReader(split, remote.settings)
    offsets = [offset for batch in reader for offset in batch["offset"].to_pylist()]
    assert set(offsets) <= set(range(700, 710))
    assert offsets
    assert reader.bytes_read == local.size_bytes

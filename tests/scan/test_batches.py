"""The batch table of a log, as Arrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.errors import InputError
from kafka_index.kernels.scan import CHUNK_BATCHES
from kafka_index.records import BATCH_SCHEMA, ScanStop
from kafka_index.scan import read_batches
from tests.support import twins
from tests.support.batch_sources import write_log
from tests.support.segments import batch, control_batch, marker, message


def table(path: Path, *, verify_crc: bool = True) -> pa.Table:
    """All rows."""
    return pa.Table.from_batches(read_batches(path, verify_crc=verify_crc), BATCH_SCHEMA)


DATA = batch(
    10, 3, timestamps=[500, 900, 700], producer_id=77, producer_epoch=4, base_sequence=30,
    transactional=True, leader_epoch=6,
)  # fmt: skip


def test_a_data_batch_has_all_its_fields(tmp_path: Path) -> None:
    assert table(write_log(tmp_path, DATA, 10)).to_pylist() == [
        {
            "topic": "some-topic",
            "partition": 3,
            "segment_base_offset": 10,
            "position_bytes": 0,
            "size_bytes": len(DATA),
            "base_offset": 10,
            "last_offset": 12,
            "leader_epoch": 6,
            "magic": 2,
            "attributes": 0x10,
            "crc": twins.checksums(DATA)[0],
            "base_timestamp_ms": 500,
            "max_timestamp_ms": 900,
            "producer_id": 77,
            "producer_epoch": 4,
            "base_sequence": 30,
            "record_count": 3,
            "control_type": None,
            "coordinator_epoch": None,
            "control_timestamp_ms": None,
        }
    ]


def test_a_marker_has_control_fields(tmp_path: Path) -> None:
    entry = marker(0, 7, 0, commit=False, coordinator_epoch=12, timestamp=444)
    row = table(write_log(tmp_path, entry)).to_pylist()[0]
    control = row["control_type"], row["coordinator_epoch"], row["control_timestamp_ms"]
    assert control == (0, 12, 444)


def test_a_control_batch_without_a_marker_has_no_control_fields(tmp_path: Path) -> None:
    log = b"".join(
        [
            control_batch(0, 7, 0, None, None, payload=b"", record_count=0),
            control_batch(1, 7, 0, b"", b""),
        ]
    )
    assert table(write_log(tmp_path, log))["control_type"].to_pylist() == [None, None]


@pytest.mark.parametrize(("magic", "timestamp"), [(0, -1), (1, 99)])
def test_a_message_has_what_its_format_holds(tmp_path: Path, magic: int, timestamp: int) -> None:
    row = table(write_log(tmp_path, message(5, magic, 99, b"v"))).to_pylist()[0]
    assert (row["magic"], row["base_offset"], row["last_offset"]) == (magic, 5, 5)
    assert (row["base_timestamp_ms"], row["max_timestamp_ms"]) == (timestamp, timestamp)
    absent = "leader_epoch", "producer_id", "producer_epoch", "base_sequence"
    assert [row[name] for name in absent] == [-1] * 4
    assert row["record_count"] == 1


@pytest.mark.parametrize("verify_crc", [True, False])
def test_rows_of_many_chunks_keep_their_values(tmp_path: Path, *, verify_crc: bool) -> None:
    log = b"".join(batch(at, 1, value_size=at % 500) for at in range(CHUNK_BATCHES + 100))
    batches = list(read_batches(write_log(tmp_path, log), verify_crc=verify_crc))
    assert len(batches) > 1
    assert all(one.schema == BATCH_SCHEMA for one in batches)
    rows = pa.Table.from_batches(batches)
    expected = twins.scan_log(log, 0)[2]
    for name in ("base_offset", "last_offset", "max_timestamp"):
        column = name + "_ms" * name.endswith("timestamp")
        assert rows[column].to_pylist() == [getattr(row, name) for row in expected]
    assert rows["position_bytes"].to_pylist() == [row.position for row in expected]
    checksums = [
        twins.checksums(log[row.position : row.position + row.size])[0] for row in expected
    ]
    assert rows["crc"].to_pylist() == checksums


def test_the_reader_says_why_it_ended(tmp_path: Path) -> None:
    reader = read_batches(write_log(tmp_path, DATA + bytes(40), 10))
    assert reader.stop is None
    assert sum(one.num_rows for one in reader) == 1
    assert reader.stop == ScanStop("preallocated_tail", len(DATA))


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    assert table(write_log(tmp_path, b"")).num_rows == 0


def test_a_log_outside_a_partition_directory_has_no_topic(tmp_path: Path) -> None:
    path = tmp_path / f"{10:020d}.log"
    path.write_bytes(DATA)
    row = table(path).to_pylist()[0]
    assert (row["topic"], row["partition"], row["segment_base_offset"]) == ("", -1, 10)


def test_a_name_without_a_base_offset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="20 digits"):
        read_batches(tmp_path / "x.log")

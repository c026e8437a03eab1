"""The batch table of a log, as Arrow."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import InputError
from kafka_index.core.format.records import TIME_ENTRY
from kafka_index.core.kernels.scan import CHUNK_BATCHES
from kafka_index.core.log.scan.segment_scan import read_batches
from kafka_index.core.records.batch_table import BATCH_SCHEMA, ScanStop
from tests.support import kernel_models
from tests.support.batch_sources import Built, Cell, build, chunk_of, rows, streamed, write_log
from tests.support.campaign import sample_size
from tests.support.cases import Case
from tests.support.named_segments import NAMED
from tests.support.segments import (
    Segment,
    batch,
    control_batch,
    control_key,
    marker,
    message,
    segment,
)
from tests.support.strategies import segments


def table(path: Path, *, verify_crc: bool = True) -> pa.Table:
    """All rows."""
    return pa.Table.from_batches(read_batches(path, verify_crc=verify_crc), BATCH_SCHEMA)


DATA = batch(
    10, 3, timestamps=[500, 900, 700], producer_id=77, producer_epoch=4, base_sequence=30,
    transactional=True, leader_epoch=6,
)  # fmt: skip


def test_data_batch_has_all_its_fields(tmp_path: Path) -> None:
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
            "crc": kernel_models.checksums(DATA)[0],
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


def test_transaction_marker_has_control_fields(tmp_path: Path) -> None:
    entry = marker(0, 7, 0, commit=False, coordinator_epoch=12, timestamp=444)
    row = table(write_log(tmp_path, entry)).to_pylist()[0]
    control = row["control_type"], row["coordinator_epoch"], row["control_timestamp_ms"]
    assert control == (0, 12, 444)


def test_control_batch_without_a_marker_has_no_control_fields(tmp_path: Path) -> None:
    log = b"".join(
        [
            control_batch(0, 7, 0, None, None, payload=b"", record_count=0),
            control_batch(1, 7, 0, b"", b""),
        ]
    )
    assert table(write_log(tmp_path, log))["control_type"].to_pylist() == [None, None]


@pytest.mark.parametrize(("magic", "timestamp"), [(0, -1), (1, 99)])
def test_message_row_has_the_fields_of_its_format(
    tmp_path: Path, magic: int, timestamp: int
) -> None:
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
    expected = kernel_models.scan_log(log, 0)[2]
    for name in ("base_offset", "last_offset", "max_timestamp"):
        column = name + "_ms" * name.endswith("timestamp")
        assert rows[column].to_pylist() == [getattr(row, name) for row in expected]
    assert rows["position_bytes"].to_pylist() == [row.position for row in expected]
    checksums = [
        kernel_models.checksums(log[row.position : row.position + row.size])[0] for row in expected
    ]
    assert rows["crc"].to_pylist() == checksums


def test_reader_reports_the_reason_of_its_end(tmp_path: Path) -> None:
    reader = read_batches(write_log(tmp_path, DATA + bytes(40), 10))
    assert reader.stop is None
    assert sum(one.num_rows for one in reader) == 1
    assert reader.stop == ScanStop("preallocated_tail", len(DATA))


def test_empty_log_has_no_rows(tmp_path: Path) -> None:
    assert table(write_log(tmp_path, b"")).num_rows == 0


def test_log_outside_a_partition_directory_has_no_topic(tmp_path: Path) -> None:
    path = tmp_path / f"{10:020d}.log"
    path.write_bytes(DATA)
    row = table(path).to_pylist()[0]
    assert (row["topic"], row["partition"], row["segment_base_offset"]) == ("", -1, 10)


def test_name_without_a_base_offset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="20 digits"):
        read_batches(tmp_path / "x.log")


def split(cells: list[Cell], cuts: list[int]) -> list[list[Cell]]:
    """The batches in parts, none of them empty."""
    places = sorted({0, len(cells), *(cut % (len(cells) + 1) for cut in cuts)})
    return [cells[start:end] for start, end in pairwise(places)]


def built(one: Segment, cuts: list[int] | None = None, *, growing: bool = True) -> Built:
    """Build a segment with its batches in one chunk, or in several."""
    parts = split(rows(streamed(one.log, [], one.base_offset)), cuts or [])
    return build(
        map(chunk_of, parts),
        one.base_offset,
        one.index_interval_bytes,
        one.segment_index_bytes,
        growing=growing,
    )


def reason(one: Segment) -> tuple[str, int] | None:
    """The code of why recovery fails or ends, and where."""
    stop = built(one).stop
    return None if stop is None else (stop.code, stop.position_bytes)


@settings(deadline=None, max_examples=sample_size(150, one_in=4))
@given(segments(), st.lists(st.integers(0, 40), max_size=6))
def test_chunk_size_does_not_change_index_files_and_stops(one: Segment, cuts: list[int]) -> None:
    whole, parts = built(one), built(one, cuts)
    assert parts.stop == whole.stop
    if whole.stop is None or not whole.stop.refused:
        assert parts == whole


@settings(deadline=None, max_examples=60)
@given(segments())
def test_incremental_index_files_equal_bulk_ones(one: Segment) -> None:
    assert built(one) == built(one, growing=False)


# No index can be made with less room than an entry takes.
ROOMY = [case for case in NAMED if case.segment.segment_index_bytes >= TIME_ENTRY.itemsize]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ROOMY])
def test_named_segments_are_indexed_equally_batch_by_batch(case: Case) -> None:
    one_by_one = built(case.segment, list(range(200)))
    assert one_by_one.stop == built(case.segment).stop


@settings(deadline=None, max_examples=sample_size(100, one_in=4))
@given(segments(damaged=False))
def test_index_entries_equal_the_reference_rule(one: Segment) -> None:
    result = built(one)
    if result.stop is not None:
        return
    batches = kernel_models.scan_log(one.log, one.base_offset)[2]
    chosen, (_, latest, latest_offset) = kernel_models.choose_entries(
        [(row.position, row.last_offset, row.max_timestamp) for row in batches],
        one.index_interval_bytes,
    )
    expected = [
        (batches[row].last_offset - one.base_offset, batches[row].position) for row, *_ in chosen
    ]
    assert list(struct.iter_unpack(">ii", result.offset_index)) == expected
    times: list[tuple[int, int]] = []
    for timestamp, offset in [*((time, at) for _, time, at in chosen), (latest, latest_offset)]:
        if timestamp > (times[-1][0] if times else -1):
            times.append((timestamp, offset - one.base_offset))
    assert list(struct.iter_unpack(">qi", result.time_index)) == times


def test_index_files_of_no_batches_are_empty() -> None:
    assert build([], base_offset=10) == Built(b"", b"", None, 0, 0, 10, -1)


def test_segment_counts_and_end_offset_equal_those_of_its_batches() -> None:
    log = batch(10) + batch(13, 2, timestamps=[5000, 4000])
    result = built(segment(log, base_offset=10))
    assert (result.valid_bytes, result.batch_count) == (len(log), 2)
    assert (result.next_offset, result.max_timestamp_ms) == (15, 5000)


SIZE = len(batch(0, 1))


def single_record_batches(*offsets: int) -> list[bytes]:
    """Batches of one record and one size, each a millisecond later."""
    return [batch(offset, 1, timestamps=[at]) for at, offset in enumerate(offsets)]


def test_append_to_a_full_offset_index_is_rejected() -> None:
    one = segment(*single_record_batches(*range(9)), interval=0, index_bytes=16)
    assert reason(one) == ("index_full", SIZE)


def test_backward_offset_is_rejected_at_its_index_entry() -> None:
    one = segment(*single_record_batches(0, 5, 2), interval=0)
    assert reason(one) == ("offset_backward", 2 * SIZE)


def test_rejected_last_time_entry_is_reported_at_the_end() -> None:
    # The largest timestamp comes last, with an offset below the entry's.
    entries = [batch(10, 1, timestamps=[5]), batch(20, 1, timestamps=[6])]
    one = segment(*entries, batch(5, 1, timestamps=[9]), interval=SIZE - 1)
    assert reason(one) == ("offset_backward", 2 * SIZE)


def test_transactional_fault_is_rejected_at_its_batch() -> None:
    opened = batch(0, producer_id=7, producer_epoch=0, transactional=True)
    one = segment(opened, batch(3, producer_id=7, producer_epoch=0))
    assert built(one).stop == ScanStop("not_transactional", len(opened), refused=True)


def test_scan_ends_after_an_unreadable_transaction_marker() -> None:
    bad = control_batch(3, 7, 0, b"", b"")
    one = segment(batch(0), bad, batch(4))
    result = built(one)
    assert result.stop == ScanStop("invalid_marker", len(batch(0)))
    assert (result.valid_bytes, result.next_offset) == (len(batch(0) + bad), 4)


def test_transaction_marker_of_unknown_type_is_rejected() -> None:
    one = segment(batch(0), control_batch(3, 7, 0, control_key(2), b""))
    assert reason(one) == ("unreadable_marker", len(batch(0)))


def test_index_that_rejects_a_batch_does_so_before_its_producer_does() -> None:
    opened = batch(5, 1, producer_id=7, producer_epoch=0, transactional=True)
    second_batch = batch(5, 1, producer_id=7, producer_epoch=0, timestamps=[9])
    one = segment(opened, opened, second_batch, interval=0)
    assert reason(one) == ("offset_backward", 2 * len(opened))


def test_completed_transactions_are_accepted() -> None:
    opened = batch(0, producer_id=7, producer_epoch=0, transactional=True)
    one = segment(opened, marker(3, 7, 0, commit=True), batch(4, producer_id=7))
    assert reason(one) is None

"""Index files that do not fit their log, or are not there: answers stay right, and it is said."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import INDEX_REFUSED, NO_INDEX, LookupFinding
from tests.support.index_files import (
    ENTRY_BYTES,
    OFFSET,
    SUFFIXES,
    TIME,
    answers,
    right_answers,
)
from tests.support.partitions import (
    Batch,
    Partition,
    Segment,
    ask_offset,
    ask_offsets,
    ask_time,
    ask_times,
    batches_with_timestamps,
    message,
    offset_file,
    partition,
    time_file,
)
from tests.support.seek_model import OffsetEntry, TimeEntry
from tests.support.segments import INT32_MAX

#: Offsets 0..19 at the times 100..290, two records a batch, an entry a batch; then 20..29.
TIMES = [[100 + 10 * offset, 105 + 10 * offset] for offset in range(0, 20, 2)]
FIRST = Segment(
    0, tuple(batches_with_timestamps(2 * row, *times) for row, times in enumerate(TIMES))
)
LAST = Segment(20, (batches_with_timestamps(20, *range(300, 310)),))
PLAIN = Partition((FIRST, LAST))
SIZE = len(FIRST.batches[0].data)


# ------------------------------------------------------------------------------ what is said

OFFSETS, ENTRIES = FIRST.entries(0)
RIGHT = {OFFSET: offset_file(FIRST, OFFSETS), TIME: time_file(FIRST, ENTRIES)}


def found_with(tmp_path: Path, suffix: str, content: bytes | None) -> list[LookupFinding]:
    """The findings about one index file with this content; answers are right, too."""
    directory = PLAIN.write(tmp_path)
    path = directory / f"{FIRST.name}{suffix}"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found, findings = answers(PLAIN, directory)
    assert found == right_answers(PLAIN)
    assert {finding.path for finding in findings} <= {str(path)}
    return findings


def packed(suffix: str, *entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii" if suffix == OFFSET else ">qi", *entry) for entry in entries)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_index_file_is_reported(tmp_path: Path, suffix: str) -> None:
    (finding,) = found_with(tmp_path, suffix, None)
    assert (finding.kind, finding.segment_base_offset) == (NO_INDEX, 0)
    assert (finding.topic, finding.partition) == ("topic", 0)
    assert finding.path.endswith(FIRST.name + suffix)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_zeros_after_the_entries_are_not_reported(tmp_path: Path, suffix: str) -> None:
    # So a broker that is killed leaves them.
    assert found_with(tmp_path, suffix, RIGHT[suffix] + bytes(24 * 40)) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_partial_index_entry_is_rejected(tmp_path: Path, suffix: str) -> None:
    (finding,) = found_with(tmp_path, suffix, RIGHT[suffix] + b"\0\0\1")
    assert (finding.kind, finding.segment_base_offset) == (INDEX_REFUSED, 0)
    assert "whole number of entries" in finding.reason


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_entries_out_of_order_are_rejected(tmp_path: Path, suffix: str) -> None:
    size = ENTRY_BYTES[suffix]
    right = RIGHT[suffix]
    (finding,) = found_with(tmp_path, suffix, right[size : 2 * size] + right[:size] + right[-size:])
    assert (finding.kind, finding.reason) == (
        INDEX_REFUSED,
        "entry 1 is not above entry 0",
    )


@pytest.mark.parametrize(
    ("suffix", "entry", "reason"),
    [
        (OFFSET, (19, SIZE * 10 + 1), "after the end of the log"),
        (OFFSET, (INT32_MAX, SIZE * 8), "but no batch at or near byte"),
        (OFFSET, (18, SIZE * 9), "but no batch at or near byte"),
        (OFFSET, (19, SIZE * 9 - 5), "but no batch at or near byte"),
        (TIME, (290, 19), "timestamp 290 and offset 19, but no batch has both"),
        (TIME, (285, 17), "timestamp 285 and offset 17, but no batch has both"),
        (TIME, (400, 19), "timestamp 400 and offset 19, but no batch has both"),
        (TIME, (400, 5000), "timestamp 400 and offset 5000, but no batch has both"),
    ],
)
def test_wrong_last_index_entry_is_rejected(
    tmp_path: Path, suffix: str, entry: tuple[int, int], reason: str
) -> None:
    (finding,) = found_with(tmp_path, suffix, packed(suffix, entry))
    assert finding.kind == INDEX_REFUSED
    assert reason in finding.reason


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_negative_key_is_rejected(tmp_path: Path, suffix: str) -> None:
    (finding,) = found_with(tmp_path, suffix, packed(suffix, (-5, 3)) + RIGHT[suffix])
    assert finding.kind == INDEX_REFUSED


def test_entry_in_the_middle_of_the_time_index_is_rejected_when_it_is_used(
    tmp_path: Path,
) -> None:
    wrong = list(ENTRIES)
    wrong[4] = TimeEntry(wrong[4].timestamp - 3, wrong[4].offset)
    directory = PLAIN.write(tmp_path)
    (directory / f"{FIRST.name}{TIME}").write_bytes(time_file(FIRST, wrong))
    with PLAIN.open(directory) as log:
        assert ask_time(log, wrong[4].timestamp).found_timestamp_ms == wrong[4].timestamp + 3
        (finding,) = log.take_findings()
    assert finding.kind == INDEX_REFUSED
    assert finding.reason == (
        f"the entry with timestamp {wrong[4].timestamp} and offset {wrong[4].offset} does not "
        "match the log"
    )


def test_entry_in_the_middle_is_rejected_when_it_is_used(tmp_path: Path) -> None:
    wrong = [*OFFSETS]
    wrong[4] = OffsetEntry(wrong[4].offset, wrong[4].position - 7)
    directory = PLAIN.write(tmp_path)
    (directory / f"{FIRST.name}{OFFSET}").write_bytes(offset_file(FIRST, wrong))
    with PLAIN.open(directory) as log:
        assert ask_offset(log, 3).found_offset == 3
        assert log.take_findings() == []
        assert ask_offset(log, wrong[4].offset + 1).found_offset == wrong[4].offset + 1
        (finding,) = log.take_findings()
    assert finding.kind == INDEX_REFUSED
    assert finding.reason == f"the entry for offset {wrong[4].offset} does not point to a batch"


@pytest.mark.parametrize("entries", [ENTRIES[:-2], []])
def test_time_index_that_ends_too_early_is_rejected(
    tmp_path: Path, entries: list[TimeEntry]
) -> None:
    # Its segment would not be chosen for what is later.
    (finding,) = found_with(tmp_path, TIME, time_file(FIRST, entries))
    assert finding.kind == INDEX_REFUSED
    assert "later than the last entry" in finding.reason


def test_empty_time_index_fits_a_log_without_timestamps(tmp_path: Path) -> None:
    plain = partition((0, [message(0, 0), message(1, 0)]), (2, [batches_with_timestamps(2, 50)]))
    directory = plain.write(tmp_path)
    assert (directory / f"{0:020d}{TIME}").stat().st_size == 0
    assert answers(plain, directory) == (right_answers(plain), [])


def test_time_entry_of_zeros_is_an_entry(tmp_path: Path) -> None:
    # One record at the epoch, under the base offset: closing writes exactly that.
    plain = partition((7, [batches_with_timestamps(7, 0)]), (8, [batches_with_timestamps(8, 50)]))
    directory = plain.write(tmp_path)
    assert (directory / f"{7:020d}{TIME}").read_bytes() == bytes(12)
    with plain.open(directory) as log:
        assert ask_time(log, 0, Resolve.INDEX).entry_timestamp_ms == 0
        assert log.take_findings() == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_special_file_is_rejected(tmp_path: Path, suffix: str) -> None:
    directory = PLAIN.write(tmp_path)
    path = directory / f"{FIRST.name}{suffix}"
    path.unlink()
    path.mkdir()
    found, findings = answers(PLAIN, directory)
    assert found == right_answers(PLAIN)
    assert [(finding.kind, finding.path) for finding in findings] == [(INDEX_REFUSED, str(path))]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_index_file_does_not_affect_the_other_index(tmp_path: Path, suffix: str) -> None:
    other = TIME if suffix == OFFSET else OFFSET
    directory = PLAIN.write(tmp_path)
    (directory / f"{FIRST.name}{suffix}").write_bytes(b"\1")
    with PLAIN.open(directory) as log:
        ask_times(log, PLAIN.times, Resolve.RECORD)
        indexes = log.segments[0].indexes
        index = indexes.time_index if other == TIME else indexes.offset_index
        assert index.path == str(directory / f"{FIRST.name}{other}")


def test_index_fault_is_reported_once(tmp_path: Path) -> None:
    directory = PLAIN.write(tmp_path, indexes=False)
    with PLAIN.open(directory) as log:
        for _ in range(3):
            ask_offsets(log, PLAIN.offsets, Resolve.RECORD)
        assert len(log.take_findings()) == 2
        ask_offsets(log, PLAIN.offsets, Resolve.RECORD)
        assert log.take_findings() == []


# -------------------------------------------------------------------- the segment in writing


def in_writing(tmp_path: Path, write: Callable[[Path], object]) -> tuple[Partition, Path]:
    """A partition whose last segment is long, with index files that this changes."""
    plain = Partition((FIRST, Segment(20, tuple(_shifted(batch) for batch in FIRST.batches))))
    directory = plain.write(tmp_path)
    write(directory / f"{20:020d}")
    return plain, directory


def _shifted(batch: Batch) -> Batch:
    return batches_with_timestamps(
        batch.base_offset + 20, *(time + 500 for _, time in batch.records)
    )


def test_active_segment_may_lack_the_final_time_entry(tmp_path: Path) -> None:
    def write(stem: Path) -> None:
        path = stem.with_suffix(TIME)
        path.write_bytes(path.read_bytes()[:-24] + bytes(2400))

    plain, directory = in_writing(tmp_path, write)
    assert answers(plain, directory) == (right_answers(plain), [])


def test_active_segment_may_have_no_index_entries(tmp_path: Path) -> None:
    def write(stem: Path) -> None:
        for suffix in SUFFIXES:
            whole = 10 * 1024 * 1024 // ENTRY_BYTES[suffix] * ENTRY_BYTES[suffix]
            stem.with_suffix(suffix).write_bytes(bytes(whole))

    plain, directory = in_writing(tmp_path, write)
    assert answers(plain, directory) == (right_answers(plain), [])


def test_index_truncated_while_open_affects_only_its_segment(tmp_path: Path) -> None:
    batches = tuple(batches_with_timestamps(offset, 100 + offset) for offset in range(3000))
    plain = Partition((Segment(0, batches), Segment(3000, (batches_with_timestamps(3000, 9000),))))
    directory = plain.write(tmp_path)
    with plain.open(directory) as log:
        assert ask_offset(log, 2900).found_offset == 2900
        os.truncate(directory / f"{0:020d}{OFFSET}", 0)
        assert ask_offset(log, 1500).status == "unreadable"
        assert ask_offset(log, 3000).found_offset == 3000
        assert any("truncated" in finding.reason for finding in log.take_findings())


# ----------------------------------------------------------------------------- other folders


def test_indexes_next_to_the_log_are_ignored_if_a_folder_is_given(
    tmp_path: Path,
) -> None:
    directory = PLAIN.write(tmp_path / "dump")
    with PLAIN.open(directory, indexes=tmp_path / "none") as log:
        assert ask_offset(log, 3).found_offset == 3
        expected = tmp_path / "none" / directory.name / f"{FIRST.name}{OFFSET}"
        assert str(expected) in {finding.path for finding in log.take_findings()}


def test_released_index_is_rebuilt_without_another_report(tmp_path: Path) -> None:
    directory = PLAIN.write(tmp_path, indexes=False)
    with PLAIN.open(directory) as log:
        ask_offset(log, 3)
        log.take_findings()
        log.close()
        assert ask_offset(log, 3).found_offset == 3
        assert log.take_findings() == []


def test_offset_index_may_have_fewer_entries(tmp_path: Path) -> None:
    assert found_with(tmp_path, OFFSET, offset_file(FIRST, OFFSETS[::3])) == []

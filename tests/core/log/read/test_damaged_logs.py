"""Damage to logs: what it hides, what it does not, and what is said of it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import CorruptLogError, InputError
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import TAIL, UNREADABLE, LookupFinding
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.campaign import sample_size
from tests.support.partition_model import NO_RECORD, PartitionModel
from tests.support.partitions import (
    DIRECTORY,
    PLAIN,
    Batch,
    Partition,
    Row,
    ask_offset,
    ask_offsets,
    ask_time,
    ask_times,
    batches_with_timestamps,
    partition,
    partitions,
    segment_of,
    times_at,
    written,
)
from tests.support.segments import GZIP, batch, packed_batch, record, wrapper

SIZE = len(PLAIN.segments[0].batches[0].data)
MIDDLE, LAST = 1, 2
INDEXED = pytest.mark.parametrize("indexes", [True, False], ids=["indexed", "unindexed"])
FURTHER = pytest.mark.parametrize("resolve", [Resolve.BATCH, Resolve.RECORD])


def changed(number: int, at: int, new: bytes, plain: Partition = PLAIN) -> Partition:
    """The partition with other bytes at a place in one of its logs."""
    log = plain.segments[number].log
    return plain.replaced(number, log[:at] + new + log[at + len(new) :])


#: The last byte of the batch with the offsets 8 and 9.
ROTTEN = changed(MIDDLE, 2 * SIZE - 1, b"\xee")
#: Its length.
BROKEN = changed(MIDDLE, SIZE + 8, struct.pack(">i", 5))


@contextmanager
def damaged(plain: Partition, folder: Path, *, indexes: bool = True) -> Iterator[PartitionLog]:
    with plain.open(plain.write(folder, indexes=indexes)) as log:
        yield log


def statuses(log: PartitionLog, offsets: Sequence[int], resolve: Resolve) -> dict[int, str]:
    rows = ask_offsets(log, offsets, resolve)
    return {offset: row.status for offset, row in zip(offsets, rows, strict=True)}


def all_but(offsets: Sequence[int], status: str = "unreadable") -> dict[int, str]:
    """The statuses of the offsets of `PLAIN`, all found but these."""
    return {number: status if number in offsets else "found" for number in range(18)}


def of_kind(log: PartitionLog, kind: str) -> list[LookupFinding]:
    return [finding for finding in log.take_findings() if finding.kind == kind]


@INDEXED
def test_wrong_checksum_hides_only_the_records_of_its_batch(
    tmp_path: Path, *, indexes: bool
) -> None:
    with damaged(ROTTEN, tmp_path, indexes=indexes) as log:
        assert statuses(log, range(18), Resolve.BATCH) == all_but([])
        assert of_kind(log, UNREADABLE) == []
        assert statuses(log, [*range(18), 8], Resolve.RECORD) == all_but([8, 9])
        (finding,) = of_kind(log, UNREADABLE)
    assert (finding.position_bytes, finding.queries) == (SIZE, 3)
    assert (finding.topic, finding.partition, finding.segment_base_offset) == ("topic", 0, 6)
    assert finding.path == str(tmp_path / DIRECTORY / f"{6:020d}.log")
    assert finding.reason.startswith("bad_crc")


def test_timestamps_in_a_batch_with_a_wrong_checksum_are_unreadable(tmp_path: Path) -> None:
    with damaged(ROTTEN, tmp_path) as log:
        times = [one for offset in range(0, 18, 2) for one in times_at(offset)]
        rows = ask_times(log, times, Resolve.RECORD)
        lost = [time for time, row in zip(times, rows, strict=True) if row.status != "found"]
        assert lost == times_at(8)


@INDEXED
@FURTHER
def test_wrong_length_hides_records_up_to_the_next_index_entry(
    tmp_path: Path, resolve: Resolve, *, indexes: bool
) -> None:
    with damaged(BROKEN, tmp_path, indexes=indexes) as log:
        # Index entries lead past the damage; what is built in memory ends at it.
        lost = [8, 9, 10] if indexes else [8, 9, 10, 11]
        assert statuses(log, range(18), resolve) == all_but(lost)
        (finding,) = of_kind(log, UNREADABLE)
        assert (finding.position_bytes, finding.queries) == (SIZE, len(lost))
        assert finding.reason.startswith("bad_length")


@INDEXED
def test_offsets_after_damage_do_not_depend_on_other_queries(
    tmp_path: Path, *, indexes: bool
) -> None:
    # Otherwise they would depend on which questions are put into one piece of work.
    directory = BROKEN.write(tmp_path, indexes=indexes)
    with BROKEN.open(directory) as log:
        together = statuses(log, range(18), Resolve.BATCH)
    alone = {}
    for offset in range(18):
        with BROKEN.open(directory) as log:
            alone[offset] = ask_offset(log, offset, Resolve.BATCH).status
    assert alone == together


def test_timestamps_that_damage_may_hide_are_unreadable(tmp_path: Path) -> None:
    # What comes first as late as 136 may lie after the damage, and so may all that is later.
    with damaged(BROKEN, tmp_path, indexes=False) as log:
        times = [100, 135, 136, 155, 156, 180, 9999]
        result = [row.status for row in ask_times(log, times, Resolve.RECORD)]
        assert result == ["found"] * 2 + ["unreadable"] * 5


def test_time_index_bounds_the_timestamps_after_damage(tmp_path: Path) -> None:
    with damaged(BROKEN, tmp_path) as log:
        times = [100, 135, 136, 145, 156, 180, 9999]
        result = [row.status for row in ask_times(log, times, Resolve.RECORD)]
        assert result == [*["found"] * 2, *["unreadable"] * 2, *["found"] * 2, NO_RECORD.status]


def test_largest_timestamp_that_damage_may_hide_is_unreadable(tmp_path: Path) -> None:
    with damaged(BROKEN, tmp_path, indexes=False) as log:
        assert ask_time(log, -3).status == "unreadable"


def test_malformed_record_hides_only_later_records(tmp_path: Path) -> None:
    payload = record(0, 0, None, b"") + record(1, 1, None, b"") + b"\x05"
    data = batch(0, 3, timestamps=[7, 8, 9], payload=payload)
    broken = Batch(data, 0, 2, 9, ((0, 7), (1, 8)), 0)
    with damaged(partition((0, [broken, batches_with_timestamps(3, 10)])), tmp_path) as log:
        result = statuses(log, range(4), Resolve.RECORD)
        assert result == {0: "found", 1: "found", 2: "unreadable", 3: "found"}
        (finding,) = of_kind(log, UNREADABLE)
        assert "record 3 of 3" in finding.reason


def test_batch_that_cannot_be_decompressed_hides_only_its_records(tmp_path: Path) -> None:
    broken = Batch(batch(0, 2, attributes=4, payload=b"no zstd"), 0, 1, 1001, (), 0)
    with damaged(partition((0, [broken, batches_with_timestamps(2, 10)])), tmp_path) as log:
        result = statuses(log, range(3), Resolve.RECORD)
        assert result == {0: "unreadable", 1: "unreadable", 2: "found"}
        assert statuses(log, range(3), Resolve.BATCH) == dict.fromkeys(range(3), "found")


# ------------------------------------------------------------------------------------- tails

TORN_END = PLAIN.replaced(LAST, PLAIN.segments[LAST].log[:-5])
TORN_MIDDLE = PLAIN.replaced(MIDDLE, PLAIN.segments[MIDDLE].log[:-5])


@INDEXED
@FURTHER
def test_log_ends_before_a_torn_batch(tmp_path: Path, resolve: Resolve, *, indexes: bool) -> None:
    with damaged(TORN_END, tmp_path, indexes=indexes) as log:
        assert log.log_end_offset == 16
        result = statuses(log, range(18), resolve)
        assert result == all_but([]) | {16: "log_end", 17: "after_log_end"}
        (finding,) = of_kind(log, TAIL)
        assert (finding.segment_base_offset, finding.position_bytes) == (12, 2 * SIZE)


@pytest.mark.parametrize("left", [1, 12, 17])
def test_log_ends_before_a_torn_header(tmp_path: Path, left: int) -> None:
    header = batch(18, timestamps=[0])[:left]
    torn = PLAIN.replaced(LAST, PLAIN.segments[LAST].log + header)
    with damaged(torn, tmp_path) as log:
        assert log.log_end_offset == 18
        assert [finding.kind for finding in log.take_findings()] == [TAIL]


@pytest.mark.parametrize("left", [1, 12, 17])
def test_invalid_bytes_at_the_end_are_damage(tmp_path: Path, left: int) -> None:
    torn = PLAIN.replaced(LAST, PLAIN.segments[LAST].log + b"\x07" * left)
    with damaged(torn, tmp_path) as log:
        assert log.log_end_offset == 18
        assert [finding.kind for finding in log.take_findings()] == [UNREADABLE]


@pytest.mark.parametrize("zeros", [1, 17, 18, 100, 5000])
def test_log_ends_before_preallocated_zeros(tmp_path: Path, zeros: int) -> None:
    padded = PLAIN.replaced(LAST, PLAIN.segments[LAST].log + bytes(zeros))
    with damaged(padded, tmp_path) as log:
        assert statuses(log, [17, 18, 19], Resolve.RECORD) == {
            17: "found",
            18: "log_end",
            19: "after_log_end",
        }
        assert [finding.kind for finding in log.take_findings()] == [TAIL]


@INDEXED
@FURTHER
def test_torn_batch_in_an_earlier_segment_hides_its_own_offsets(
    tmp_path: Path, resolve: Resolve, *, indexes: bool
) -> None:
    with damaged(TORN_MIDDLE, tmp_path, indexes=indexes) as log:
        assert statuses(log, range(18), resolve) == all_but([10, 11])
        assert [one.position_bytes for one in of_kind(log, UNREADABLE)] == [2 * SIZE]


def test_trailing_zeros_of_an_earlier_segment_hide_its_offsets(tmp_path: Path) -> None:
    gap = Partition((segment_of(0), segment_of(12)))
    padded = gap.replaced(0, gap.segments[0].log + bytes(100))
    with damaged(padded, tmp_path) as log:
        result = statuses(log, [5, 8, 12], Resolve.RECORD)
        assert result == {5: "found", 8: "unreadable", 12: "found"}


def test_damage_in_the_last_segment_hides_the_log_end(tmp_path: Path) -> None:
    broken = changed(LAST, SIZE + 8, struct.pack(">i", 5))
    with damaged(broken, tmp_path, indexes=False) as log:
        result = statuses(log, [*range(18), 18, 50], Resolve.RECORD)
        assert result == all_but(range(14, 18)) | {18: "unreadable", 50: "unreadable"}
        assert ask_time(log, -1).status == "unreadable"


@INDEXED
def test_bad_checksum_in_the_last_batch_affects_only_queries_that_reach_it(
    tmp_path: Path, *, indexes: bool
) -> None:
    rotten = PLAIN.replaced(LAST, PLAIN.segments[LAST].log[:-1] + b"\xee")
    with damaged(rotten, tmp_path, indexes=indexes) as log:
        assert log.log_end_offset == 16
        result = statuses(log, [*range(18), 18, 50], Resolve.RECORD)
        assert result == all_but([16, 17]) | {18: "unreadable", 50: "unreadable"}
        times = [ask_time(log, time).status for time in (*times_at(14), *times_at(16), -1, -3)]
        assert times == ["found"] * 2 + ["unreadable"] * 4


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("following", [[], [6]], ids=["last segment", "earlier segment"])
def test_compressed_messages_before_a_damaged_batch_are_found(
    tmp_path: Path, magic: int, following: list[int]
) -> None:
    good, bad = (
        wrapper(first + 2, magic, [(first * (1 - magic) + delta, 10) for delta in range(3)], GZIP)
        for first in (0, 3)
    )
    directory = tmp_path / "topic-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(good + bad[:-20] + bytes(20))
    for base_offset in following:
        (directory / f"{base_offset:020d}.log").write_bytes(batch(base_offset))
    with PartitionLog.open(directory) as log:
        answers = log.answer_offsets(np.arange(6), Resolve.RECORD)
    found, hidden = Status.FOUND, Status.UNREADABLE
    assert answers.status.tolist() == [found] * 3 + [hidden] * 3


def test_index_determines_the_log_end_after_damage(tmp_path: Path) -> None:
    broken = changed(LAST, SIZE + 8, struct.pack(">i", 5))
    with damaged(broken, tmp_path) as log:
        result = statuses(log, [13, 14, 18, 50], Resolve.RECORD)
        assert result == {13: "found", 14: "unreadable", 18: "log_end", 50: "after_log_end"}
        assert ask_time(log, -1).found_offset == 18


# ------------------------------------------------------------------------- files that change


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(batches_with_timestamps(18, 500).data)


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES = pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_append, "changed"),
        (_touch, "changed"),
        (Path.unlink, "No such file"),
        (_replace_by_directory, "not a regular file"),
        (lambda path: os.truncate(path, 0), "changed"),
    ],
    ids=["grown", "touched", "removed", "replaced", "emptied"],
)
Change = Callable[[Path], object]


@CHANGES
@INDEXED
@pytest.mark.parametrize("number", [0, MIDDLE, LAST])
def test_replaced_log_is_unreadable_and_other_segments_are_not(
    tmp_path: Path, number: int, change: Change, reason: str, *, indexes: bool
) -> None:
    path = PLAIN.write(tmp_path, indexes=indexes) / f"{6 * number:020d}.log"
    with PLAIN.open(path.parent) as log:
        change(path)
        lost = range(6 * number, 6 * number + 6)
        for resolve in (Resolve.BATCH, Resolve.RECORD):
            assert statuses(log, range(18), resolve) == all_but(lost)
        findings = of_kind(log, UNREADABLE)
        assert {finding.path for finding in findings} == {str(path)}
        assert all(reason in finding.reason for finding in findings)


@CHANGES
def test_replaced_log_does_not_invalidate_its_indexes(
    tmp_path: Path, change: Change, reason: str
) -> None:
    path = PLAIN.write(tmp_path) / f"{6:020d}.log"
    with PLAIN.open(path.parent) as log:
        change(path)
        ask_offsets(log, range(18), Resolve.RECORD)
        ask_times(log, range(100, 190), Resolve.RECORD)
        findings = log.take_findings()
        assert {finding.kind for finding in findings} == {UNREADABLE}
        assert all(reason in finding.reason for finding in findings)


@CHANGES
def test_end_of_a_log_that_cannot_be_read_is_unreadable(
    tmp_path: Path, change: Change, reason: str
) -> None:
    path = PLAIN.write(tmp_path) / f"{12:020d}.log"
    with PLAIN.open(path.parent) as log:
        change(path)
        assert [row.status for row in ask_times(log, [-1, 100], Resolve.BATCH)] == [
            "unreadable",
            "found",
        ]
        assert ask_time(log, -1).status == "unreadable"
        assert ask_time(log, -2).found_offset == 0
        with pytest.raises(InputError, match=reason):
            _ = log.log_end_offset


def test_restored_log_is_readable_again(tmp_path: Path) -> None:
    # A disk that was away for a moment, or too many open files.
    path = PLAIN.write(tmp_path) / f"{6:020d}.log"
    with PLAIN.open(path.parent) as log:
        path.rename(tmp_path / "away")
        assert ask_time(log, 130).status == "unreadable"
        assert ask_time(log, 160).status == "unreadable"
        (tmp_path / "away").rename(path)
        assert ask_offset(log, 6).status == "found"
        assert ask_time(log, 130).status == "found"
        assert ask_time(log, 160).status == "found"


def test_log_truncated_while_mapped_is_unreadable_and_others_are_not(
    tmp_path: Path,
) -> None:
    directory = PLAIN.write(tmp_path)
    with PLAIN.open(directory) as log:
        assert statuses(log, range(18), Resolve.RECORD) == all_but([])
        os.truncate(directory / f"{6:020d}.log", 0)
        assert statuses(log, range(18), Resolve.RECORD) == all_but(range(6, 12))
        assert {finding.segment_base_offset for finding in of_kind(log, UNREADABLE)} == {6}


# ------------------------------------------------------------------- one segment and the others


@settings(max_examples=sample_size(100, one_in=4))
@given(plain=partitions(start_inside=False, bounded=False), data=st.data())
def test_damage_to_a_segment_changes_no_answer_from_others(
    plain: Partition, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(plain.segments) - 1))
    log_bytes = bytearray(plain.segments[number].log)
    for _ in range(data.draw(st.integers(1, 3)) if log_bytes else 0):
        log_bytes[data.draw(st.integers(0, len(log_bytes) - 1))] ^= 1 << data.draw(
            st.integers(0, 7)
        )
    if data.draw(st.booleans()):
        del log_bytes[data.draw(st.integers(0, len(log_bytes))) :]
    broken = plain.replaced(number, bytes(log_bytes))
    model = PartitionModel(plain)
    with written(broken, indexes=data.draw(st.booleans())) as log:
        for resolve in (Resolve.BATCH, Resolve.RECORD):
            expected = {offset: model.offset(offset, resolve) for offset in plain.offsets}
            unharmed = {
                one: row for one, row in expected.items() if _is_of_others(plain, number, one, row)
            }
            actual = ask_offsets(log, list(unharmed), resolve)
            assert dict(zip(unharmed, actual, strict=True)) == unharmed
            # Queries that the damage concerns have an answer too, whatever it is.
            ask_offsets(log, plain.offsets, resolve)
            ask_times(log, plain.times, resolve)


def _is_of_others(plain: Partition, number: int, offset: int, row: Row) -> bool:
    """Whether the search for an offset comes by other segments than this one only."""
    if row.status in ("invalid_query", "before_log_start"):
        return True
    if row.status in ("log_end", "after_log_end"):
        return number < len(plain.segments) - 1
    bases = [segment.base_offset for segment in plain.segments]
    home = max((at for at, base in enumerate(bases) if base <= offset), default=0)
    end = (
        len(bases) - 1 if row.segment_base_offset is None else bases.index(row.segment_base_offset)
    )
    return not home <= number <= end


def test_single_lookup_after_damage_raises_an_error_with_position(tmp_path: Path) -> None:
    with damaged(BROKEN, tmp_path) as log, pytest.raises(CorruptLogError, match="bad_length") as e:
        log.offset_to_position(9)
    assert e.value.position_bytes == SIZE
    assert e.value.path == str(tmp_path / DIRECTORY / f"{6:020d}.log")


def test_batch_above_the_memory_limit_is_unreadable_and_others_are_not(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    big = packed_batch(0, [(0, 30)], GZIP, value_size=10_000)
    (directory / f"{0:020d}.log").write_bytes(big + packed_batch(1, [(0, 40)], GZIP))
    with PartitionLog.open(directory, max_decompressed_bytes=5000) as log:
        answers = log.answer_offsets(np.array([0, 1]), Resolve.RECORD)
        assert answers.status.tolist() == [Status.UNREADABLE, Status.FOUND]
        (finding,) = of_kind(log, UNREADABLE)
        assert finding.reason.startswith("too_large")
    with PartitionLog.open(directory, max_decompressed_bytes=20_000) as log:
        answers = log.answer_offsets(np.array([0, 1]), Resolve.RECORD)
        assert answers.status.tolist() == [Status.FOUND, Status.FOUND]

"""Faults that keep a broker from starting, and files that it throws away to start.

Each segment is loaded twice: without ``.index``, when it is recovered on its own, and with one and
above the recovery point, when its content goes where its recovery fails for its offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cases import rising
from tests.support.named import PID, control, open_transaction
from tests.support.segments import INT32_MAX, LEADER_CHANGE, batch, control_key

from .judge import KafkaRefusal
from .judged_log import load
from .kafka_loading import PartitionFiles, partition_files

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge

EVERY_BATCH = {"index.interval.bytes": 0}
IN_TRANSACTION = [open_transaction(), batch(3, producer_id=PID, producer_epoch=0, base_sequence=3)]
BACKWARD = [batch(0), batch(3), batch(0)]


def refusal(judge: Judge, files: PartitionFiles, *, settings: dict[str, int] | None = None) -> str:
    """Class of what keeps the broker from starting after a crash."""
    with pytest.raises(KafkaRefusal) as refused:
        load(judge, files.directory, clean=False, settings=settings)
    return refused.value.error_class


def with_empty_index(files: PartitionFiles, *base_offsets: int) -> PartitionFiles:
    """The same with index files that a broker finds in place."""
    for base_offset in base_offsets:
        files.write(base_offset, ".index")
        files.write(base_offset, ".timeindex")
    return files


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        pytest.param(
            rising(7, step_ms=0), {**EVERY_BATCH, "segment.index.bytes": 40}, id="offset index"
        ),
        pytest.param(rising(3), {**EVERY_BATCH, "segment.index.bytes": 24}, id="time index"),
        pytest.param(
            rising(3, step_ms=0),
            {**EVERY_BATCH, "segment.index.bytes": 24},
            id="time index with nothing to append",
        ),
    ],
)
def test_full_index_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path, entries: list[bytes], settings: dict[str, int]
) -> None:
    files = partition_files(scratch, {0: entries})
    assert refusal(judge, files, settings=settings) == "IllegalArgumentException"
    files = with_empty_index(partition_files(scratch, {0: entries}), 0)
    assert refusal(judge, files, settings=settings) == "IllegalArgumentException"


@pytest.mark.parametrize("indexed", ["index missing", "index there"])
def test_plain_batch_inside_a_transaction_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path, indexed: str
) -> None:
    files = partition_files(scratch, {0: IN_TRANSACTION})
    if indexed == "index there":
        with_empty_index(files, 0)
    assert refusal(judge, files) == "InvalidTxnStateException"


@pytest.mark.parametrize("kind", [LEADER_CHANGE, 3, 6, 7])
def test_control_batch_of_another_kind_than_a_marker_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path, kind: int
) -> None:
    files = partition_files(scratch, {0: [open_transaction(), control(control_key(kind))]})
    assert refusal(judge, files) == "IllegalArgumentException"


def test_control_batch_of_a_later_kind_is_passed_over_without_a_producer(
    judge: Judge, scratch: Path
) -> None:
    entries = [batch(0), control(control_key(LEADER_CHANGE), producer_id=-1)]
    with load(judge, partition_files(scratch, {0: entries}).directory, clean=False) as log:
        assert log.loaded.log_end_offset == 11


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0\0"])
def test_marker_with_a_short_value_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path, value: bytes
) -> None:
    files = partition_files(scratch, {0: [open_transaction(), control(value=value)]})
    assert refusal(judge, files) == "BufferUnderflowException"


def test_unreadable_marker_at_the_end_of_what_recovery_keeps_is_read_again_and_refused(
    judge: Judge, old_judge: Judge, scratch: Path
) -> None:
    unreadable = control(control_key(1, version=-1))
    for version in (judge, old_judge):
        files = partition_files(scratch, {0: [open_transaction(), unreadable, batch(20)]})
        assert refusal(version, files) == "InvalidRecordException"
        assert files.read(0, ".log") == open_transaction() + unreadable


def test_offset_below_the_segment_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, {10: [batch(5)]})
    assert refusal(judge, files) == "IllegalArgumentException"


def test_segment_with_an_offset_beyond_the_largest_relative_one_is_split(
    judge: Judge, scratch: Path
) -> None:
    entries = [batch(0), batch(2**31), batch(2**31 + 3)]
    files = partition_files(scratch, {0: entries})
    with load(judge, files.directory, clean=False) as log:
        assert log.loaded.base_offsets == (0, 2**31)
        assert log.loaded.log_end_offset == 2**31 + 6
    assert files.read(0, ".log") == entries[0]
    assert files.read(2**31, ".log") == entries[1] + entries[2]


def test_largest_relative_offset_does_not_split(judge: Judge, scratch: Path) -> None:
    files = partition_files(scratch, {0: [batch(0, last_offset_delta=INT32_MAX)]})
    with load(judge, files.directory, clean=False) as log:
        assert log.loaded.base_offsets == (0,)


def test_offsets_going_backward_keep_the_broker_from_starting_where_index_is_missing(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, {0: BACKWARD, 6: [batch(6)]})
    assert refusal(judge, files, settings=EVERY_BATCH) == "InvalidOffsetException"


def test_offsets_going_backward_cost_the_whole_segment_where_index_is_there(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, {0: [batch(0)], 3: [batch(3), batch(6), batch(3)]})
    with_empty_index(files, 0, 3)
    with load(judge, files.directory, clean=False, settings=EVERY_BATCH) as log:
        assert log.loaded.base_offsets == (0, 3)
        assert log.loaded.log_end_offset == 3
    assert files.read(3, ".log") == b""


def test_offsets_going_backward_between_entries_are_not_noticed(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, {0: BACKWARD})
    with load(judge, files.directory, clean=False) as log:
        assert log.loaded.log_end_offset == 3
    assert files.read(0, ".log") == b"".join(BACKWARD)


def test_new_index_without_room_for_an_entry_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, {0: [batch(0)]})
    assert refusal(judge, files, settings={"segment.index.bytes": 11}) == (
        "IllegalArgumentException"
    )


def test_active_index_above_the_size_of_the_settings_keeps_the_broker_from_starting(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, {0: rising(9)})
    load(judge, files.directory, settings=EVERY_BATCH).close()
    small = {**EVERY_BATCH, "segment.index.bytes": 48}
    with pytest.raises(KafkaRefusal, match="IllegalArgumentException"):
        load(judge, files.directory, settings=small)

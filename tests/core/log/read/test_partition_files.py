"""The checkpoints of a partition: where it starts, where it ends, and its epochs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import BAD_CHECKPOINT
from kafka_index.core.log.choices import Resolve, UpperBound
from kafka_index.core.log.read.partition_files import CheckpointReader, PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from tests.support.partitions import (
    DIRECTORY,
    Partition,
    ask_offset,
    ask_time,
    batches_with_timestamps,
    partition,
    segment_file,
)

#: Offsets 10..15, in two segments.
PLAIN = partition(
    (10, [batches_with_timestamps(10, 1, 2, 3)]), (13, [batches_with_timestamps(13, 4, 5, 6)])
)
TOPIC_0 = TopicPartition("topic", 0)
STARTS, WATERMARKS = "log-start-offset-checkpoint", "replication-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"


def dump(folder: Path, plain: Partition = PLAIN) -> Path:
    """A partition without any checkpoint."""
    directory = plain.write(folder)
    (folder / STARTS).unlink()
    return directory


def checkpoint(folder: Path, name: str, *lines: str) -> None:
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    (folder / name).write_text(text, encoding="utf-8")


def segments_of(directory: Path) -> list[SegmentFile]:
    paths = sorted(directory.glob("*.log"))
    return [segment_file(path, is_last=path == paths[-1]) for path in paths]


def read(folder: Path, *, bounded: bool = False) -> PartitionFiles:
    bound = UpperBound.HIGH_WATERMARK if bounded else UpperBound.LOG_END
    return CheckpointReader(bound).read(TOPIC_0, segments_of(folder / DIRECTORY), None)


# ------------------------------------------------------------------------------------ log start


def test_log_starts_at_its_first_segment(tmp_path: Path) -> None:
    dump(tmp_path)
    assert read(tmp_path).log_start_offset == 10


@pytest.mark.parametrize(("checkpointed", "start"), [(0, 10), (10, 10), (12, 12), (99, 99)])
def test_log_starts_at_the_checkpointed_offset_but_not_before_its_first_segment(
    tmp_path: Path, checkpointed: int, start: int
) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, STARTS, f"topic 0 {checkpointed}")
    assert read(tmp_path).log_start_offset == start


def test_checkpoint_entries_of_other_partitions_are_ignored(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, STARTS, "topic 1 12", "other 0 12")
    assert read(tmp_path).log_start_offset == 10


def test_malformed_checkpoint_is_an_error(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, STARTS, "topic zero")
    with pytest.raises(InputError, match="line 3") as caught:
        PartitionLog.open(tmp_path / "topic-0")
    assert caught.value.path == str(tmp_path / STARTS)


def test_log_that_starts_after_its_end_is_empty(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    checkpoint(tmp_path, STARTS, "topic 0 99")
    with PartitionLog.open(directory) as log:
        assert (log.log_start_offset, log.log_end_offset) == (99, 99)
        assert ask_offset(log, 98).status == "before_log_start"
        assert ask_offset(log, 99).status == "log_end"
        assert ask_offset(log, 100).status == "after_log_end"
        assert ask_time(log, 1).status == "no_record_at_or_after"
        assert ask_time(log, -3).status == "no_record_at_or_after"
        assert ask_time(log, -2).found_offset == 99
        assert log.offset_to_position(99) is None


# ------------------------------------------------------------------------------ high watermark


def test_high_watermark_is_read_only_if_it_is_the_bound(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, WATERMARKS, "no checkpoint at all")
    assert read(tmp_path).high_watermark is None


def test_high_watermark_is_read_for_the_right_partition(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, WATERMARKS, "other 0 99", "topic 0 14")
    assert read(tmp_path, bounded=True).high_watermark == 14


def test_missing_high_watermark_checkpoint_is_an_error(tmp_path: Path) -> None:
    dump(tmp_path)
    with pytest.raises(InputError, match=WATERMARKS) as caught:
        read(tmp_path, bounded=True)
    assert caught.value.path == str(tmp_path)
    assert "--upper-bound" in str(caught.value.hint)


def test_partition_without_a_high_watermark_has_no_committed_records(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, WATERMARKS, "other 0 99")
    assert read(tmp_path, bounded=True).high_watermark == 10


def test_high_watermark_is_not_below_the_start_of_the_log(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, WATERMARKS, "topic 0 3")
    checkpoint(tmp_path, STARTS, "topic 0 12")
    assert read(tmp_path, bounded=True).high_watermark == 12


def test_high_watermark_above_the_log_end_has_no_effect(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    checkpoint(tmp_path, WATERMARKS, "topic 0 99")
    with PartitionLog.open(directory, upper_bound=UpperBound.HIGH_WATERMARK) as log:
        assert log.end_offset == 16
        assert ask_offset(log, 15).status == "found"
        assert ask_offset(log, 16).status == "log_end"


def test_records_above_the_high_watermark_are_not_found(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    checkpoint(tmp_path, WATERMARKS, "topic 0 14")
    with PartitionLog.open(directory, upper_bound=UpperBound.HIGH_WATERMARK) as log:
        assert [ask_offset(log, one).status for one in (13, 14, 16, 17)] == [
            "found",
            "log_end",
            "log_end",
            "after_log_end",
        ]
        assert ask_time(log, 4).found_offset == 13
        assert ask_time(log, 5).status == "no_record_at_or_after"
        assert ask_time(log, -1).found_offset == 14
        assert ask_time(log, -3).status == "no_record_at_or_after"


# -------------------------------------------------------------------------------------- epochs


def test_epoch_is_unknown_without_a_checkpoint(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    files = read(tmp_path)
    assert files.epochs == ()
    with PartitionLog.open(directory) as log:
        assert ask_time(log, -1).found_leader_epoch is None


def test_log_start_and_end_have_the_first_and_last_leader_epoch(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    checkpoint(directory, EPOCHS, "3 10", "4 12", "7 14")
    files = read(tmp_path)
    assert files.epochs == (EpochEntry(3, 10), EpochEntry(4, 12), EpochEntry(7, 14))
    with PartitionLog.open(directory) as log:
        assert [ask_time(log, time).found_leader_epoch for time in (-2, -1)] == [3, 7]


def test_contradicting_epoch_line_replaces_earlier_ones(tmp_path: Path) -> None:
    checkpoint(dump(tmp_path), EPOCHS, "3 10", "7 14", "5 12")
    assert read(tmp_path).epochs == (EpochEntry(3, 10), EpochEntry(5, 12))


def test_leader_epochs_before_the_log_start_offset_are_truncated(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    checkpoint(directory, EPOCHS, "3 10", "4 12", "7 14")
    checkpoint(tmp_path, STARTS, "topic 0 13")
    assert read(tmp_path).epochs[0] == EpochEntry(4, 13)
    with PartitionLog.open(directory) as log:
        assert ask_time(log, -2).found_leader_epoch == 4


def test_leader_epoch_that_starts_after_the_log_start_is_not_its_epoch(
    tmp_path: Path,
) -> None:
    directory = dump(tmp_path)
    checkpoint(directory, EPOCHS, "7 14")
    with PartitionLog.open(directory) as log:
        assert ask_time(log, -2).found_leader_epoch is None
        assert ask_time(log, -1).found_leader_epoch == 7


@pytest.mark.parametrize(("start", "epoch"), [(15, 7), (16, 7), (17, 3)])
def test_leader_epoch_that_starts_above_the_log_end_is_not_its_epoch(
    tmp_path: Path, start: int, epoch: int
) -> None:
    directory = dump(tmp_path)
    checkpoint(directory, EPOCHS, "3 10", f"7 {start}")
    with PartitionLog.open(directory) as log:
        assert ask_time(log, -1).found_leader_epoch == epoch


@pytest.mark.parametrize("content", [b"0\n1\nno epoch\n", b"9\n0\n", b"\xff\xfe", b"0\n1\n-1 7\n"])
def test_unreadable_leader_epochs_are_skipped_and_reported(tmp_path: Path, content: bytes) -> None:
    directory = dump(tmp_path)
    (directory / EPOCHS).write_bytes(content)
    reader = CheckpointReader(UpperBound.LOG_END)
    files = reader.read(TOPIC_0, segments_of(directory), None)
    assert files.epochs == ()
    assert [skipped.path for skipped in reader.skipped] == [str(directory / EPOCHS)]
    assert reader.skipped[0].reason == BAD_CHECKPOINT


# ---------------------------------------------------------------------------------- what is read


def test_partition_files_are_equal_after_pickling(tmp_path: Path) -> None:
    checkpoint(dump(tmp_path), EPOCHS, "3 10")
    files = read(tmp_path)
    assert pickle.loads(pickle.dumps(files)) == files  # noqa: S301, because it is our own


def test_checkpoints_are_read_once_for_all_partitions_of_a_directory(tmp_path: Path) -> None:
    dump(tmp_path)
    checkpoint(tmp_path, STARTS, "topic 0 11")
    reader = CheckpointReader(UpperBound.LOG_END)
    segments = segments_of(tmp_path / DIRECTORY)
    reader.read(TOPIC_0, segments, None)
    (tmp_path / STARTS).unlink()
    assert reader.read(TOPIC_0, segments, None).log_start_offset == 11


def test_listed_partition_can_be_opened(tmp_path: Path) -> None:
    directory = dump(tmp_path)
    listed = list_dump([str(directory)], topics=None).segments
    files = CheckpointReader(UpperBound.LOG_END).read(TOPIC_0, listed, None)
    with PartitionLog(files) as log:
        assert ask_offset(log, 14, Resolve.BATCH).batch_base_offset == 13
        assert log.take_findings() == []

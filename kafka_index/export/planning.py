"""The plan of an export: what is new in each partition, in splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kafka_index.config import IndexConfig
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.export.export_record import (
    DamagedRange,
    ExportRecord,
    read_export_record,
    record_options,
)
from kafka_index.export.partition_export import PartitionExport, SplitWork
from kafka_index.export.partition_folder import data_files, remove_data_files, remove_scratch_files
from kafka_index.export.settings import ExportSettings
from kafka_index.export.split_result import LeftOut
from kafka_index.layout.names import TopicPartition
from kafka_index.reading import PartitionFiles, PartitionLog
from kafka_index.startup.directory_files import read_topic_id
from kafka_index.stores import is_remote
from kafka_index.tables.bounds import EARLIEST, LATEST, Bound, ReadBounds
from kafka_index.tables.damaged_end import damaged_end
from kafka_index.tables.read_plan import RecordSplit, resolve_range, split_range
from kafka_index.tables.settings import ReadSettings

#: About the bytes of logs that one data file is made of.
SPLIT_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What is exported.

    Parameters
    ----------
    partitions : tuple of PartitionExport
        By topic and partition.
    """

    partitions: tuple[PartitionExport, ...]

    @property
    def works(self) -> list[SplitWork]:
        """The splits of all partitions, in order of their numbers."""
        return [work for partition in self.partitions for work in partition.works]

    @property
    def partition_of(self) -> dict[int, PartitionExport]:
        """The partition of each split, by its number."""
        return {work.number: one for one in self.partitions for work in one.works}


def plan_export(
    files: Sequence[PartitionFiles],
    settings: ExportSettings,
    *,
    starting_offsets: Mapping[str, Mapping[int, int]] | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> ExportPlan:
    """Plan an export, while the lock of the output is held.

    Parameters
    ----------
    files : sequence of PartitionFiles
        The partitions.
    settings : ExportSettings
        What is written.
    starting_offsets : mapping of str to mapping of int to int, optional
        Where the first export of each partition begins; by default with its first record.
    split_bytes : int
        About the most bytes of logs of a split.

    Raises
    ------
    InputError
        The output was written with other options, or holds data files that no export wrote; a
        starting offset is missing or superfluous.
    PublishError
        What a killed run has left cannot be removed.
    """
    if starting_offsets is not None:
        _check_starts(files, starting_offsets)
    planned, number = [], 0
    for own in files:
        starts = (starting_offsets or {}).get(own.topic, {})
        start = starts.get(own.partition, EARLIEST)
        one = _plan_partition(own, settings, start, number, split_bytes)
        number += len(one.works)
        planned.append(one)
    return ExportPlan(tuple(planned))


def _check_starts(files: Sequence[PartitionFiles], starts: Mapping[str, Mapping[int, int]]) -> None:
    """Refuse offsets of other partitions than those of the input, as Spark's Kafka source does."""
    found = {TopicPartition(one.topic, one.partition).directory_name for one in files}
    given = {
        TopicPartition(topic, number).directory_name
        for topic, numbers in starts.items()
        for number in numbers
    }
    latest = [(topic, one) for topic, own in starts.items() for one in own if own[one] == LATEST]
    if latest:
        raise InputError(
            "an export cannot begin at the latest offset",
            expected=f"0 or more, or {EARLIEST} for the first",
            found=f"{LATEST} for {TopicPartition(*latest[0]).directory_name}",
        )
    if found != given:
        missing, other = sorted(found - given), sorted(given - found)
        raise InputError(
            "the starting offsets are not those of the partitions of the input",
            expected=", ".join(missing) or None,
            found=", ".join(other) or None,
            hint="name each partition once (-2 is its first offset), and use --topics for fewer",
        )


def _plan_partition(
    files: PartitionFiles, settings: ExportSettings, start: int, number: int, split_bytes: int
) -> PartitionExport:
    partition = TopicPartition(files.topic, files.partition)
    folder = settings.folder_of(partition)
    known = read_export_record(folder)
    _check_folder(folder, known, record_options(settings))
    remove_scratch_files(folder)
    export = PartitionExport(partition, folder)
    end_offset = None
    read = settings.read_settings
    record = _record_to_extend(files, known, settings, start)
    topic_id = _topic_id(files)
    if topic_id is not None and record.topic_id not in (None, topic_id):
        export.failure = LeftOut(
            files.segments[0].partition_directory,
            None,
            "the topic was deleted and created again since it was exported: choose another "
            f"--output (expected topic id {record.topic_id}, found {topic_id})",
        )
        return export
    try:
        with PartitionLog(
            files, config=IndexConfig(), max_decompressed_bytes=read.max_decompressed_bytes
        ) as log:
            remove_data_files(folder, record.next_offset)
            for part in _repeated_ranges(log, record):
                # In one piece, however large: data files in place are replaced as a whole.
                _, splits = _splits(log, part.first_offset, part.end_offset, read, None)
                export.works += [
                    SplitWork(
                        number + len(export.works),
                        split,
                        folder,
                        part.first_offset,
                        part.end_offset,
                        is_repeated=True,
                        records_before=part.records,
                    )
                    for split in splits
                ]
            first = record.next_offset
            damaged = damaged_end(log)
            # Damage is read even where nothing before it is new: the row of the partition has it.
            end_offset = log.end_offset if damaged is None else damaged.end_offset
            if damaged is not None or first < end_offset:
                end, splits = _splits(log, first, LATEST, read, split_bytes)
                end = max(end_offset if end is None else end, first)
                export.works += _works(splits, number + len(export.works), folder, first, end)
        export.record, export.begin_offset = record, record.next_offset
    except KafkaIndexError as error:
        export.works.clear()
        export.failure, export.is_retriable = LeftOut.of(error), is_retriable(error)
    if known is None and end_offset is not None and start > end_offset:
        raise InputError(
            "the log does not have the starting offset",
            path=files.segments[0].partition_directory,
            expected=f"{end_offset} or less",
            found=start,
            hint="correct it in the file of --offsets",
        )
    return export


def _splits(
    log: PartitionLog, first: int, end: int, read: ReadSettings, split_bytes: int | None
) -> tuple[int | None, list[RecordSplit]]:
    """Return where a range of offsets ends that can be exported by now, and its splits."""
    offsets = resolve_range(log, ReadBounds(Bound(first), Bound(end)), read)
    return offsets.end_offset, list(split_range(log, offsets, read, max_split_bytes=split_bytes))


def _works(
    splits: Sequence[RecordSplit], number: int, folder: str, first_offset: int, end_offset: int
) -> Iterator[SplitWork]:
    if not splits:
        return
    # Offsets below the log's start are gone: the first split stands for them too.
    # Where damage hides the first offset, more is read than is new.
    inner = (min(max(split.start_offset, first_offset), end_offset) for split in splits[1:])
    starts = [first_offset, *inner]
    for split, (first, end) in zip(splits, pairwise([*starts, end_offset]), strict=True):
        yield SplitWork(number, split, folder, first, end)
        number += 1


def _check_folder(folder: str, known: ExportRecord | None, options: Mapping[str, object]) -> None:
    """Refuse a folder that this export cannot continue."""
    if known is None:
        for path, _, _ in data_files(folder):
            raise InputError(
                "a data file that no export record knows",
                path=path,
                hint="choose another --output",
            )
        return
    for name, value in options.items():
        before = known.options.get(name)
        if before != value:
            raise InputError(
                f"the partition was exported with another value of {name}",
                path=folder,
                expected=before,
                found=value,
                hint="give the same options again, or another --output",
            )


def _record_to_extend(
    files: PartitionFiles, known: ExportRecord | None, settings: ExportSettings, start: int
) -> ExportRecord:
    """Return the record of what is in place, a new one if that is nothing."""
    if known is None:
        # The earliest offset is negative.
        first = max(files.log_start_offset, start)
        return ExportRecord(record_options(settings), first, first, _topic_id(files))
    if start not in (EARLIEST, known.first_offset):
        raise InputError(
            "the partition was exported from another starting offset",
            path=settings.folder_of(TopicPartition(files.topic, files.partition)),
            expected=known.first_offset,
            found=start,
            hint="leave out --offsets to continue, or give another --output",
        )
    return known


def _topic_id(files: PartitionFiles) -> str | None:
    directory = files.segments[-1].partition_directory
    if is_remote(directory):
        return None
    try:
        return read_topic_id(directory)
    except (KafkaIndexError, OSError):
        # A broker would refuse it; what the records are does not depend on it.
        return None


def _repeated_ranges(log: PartitionLog, record: ExportRecord) -> list[DamagedRange]:
    """Return what was damaged, without ranges whose first segments retention has deleted since."""
    return [one for one in record.damaged if one.first_offset >= log.log_start_offset]

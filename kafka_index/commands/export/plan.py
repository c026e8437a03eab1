"""The plan of an export: the new records of each partition, divided into splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kafka_index.commands.export.export_state import (
    DECODE_OPTIONS,
    OPTION_NAMES,
    DataLoss,
    ExportState,
    ReplacedRange,
    continue_hint,
    export_state,
    find_loss,
    format_option,
    state_options,
)
from kafka_index.commands.export.partition_export import (
    FileReplacement,
    PartitionExport,
    SplitTask,
    data_files,
    finish_replacement,
    remove_scratch_files,
    remove_staged_files,
    remove_uncovered_files,
    staged_folder,
)
from kafka_index.commands.export.request import OnDataLoss
from kafka_index.commands.export.result import ReportedError
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
)
from kafka_index.core.format.config import IndexConfig, to_choice
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.query.bounds import EARLIEST, LATEST, Bound, ReadBounds
from kafka_index.core.query.missing_records import ReadPartition
from kafka_index.core.query.range_scan import find_damaged_end
from kafka_index.core.query.read_plan import RecordSplit, read_partition, resolve_range, split_range
from kafka_index.core.query.settings import ReadSettings

#: The approximate size of the part of a log that becomes one data file.
SPLIT_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The plan of an export, with partitions sorted by topic and number."""

    partitions: tuple[PartitionExport, ...]

    @property
    def tasks(self) -> list[SplitTask]:
        """The splits of all partitions, in order of their numbers."""
        return [task for partition in self.partitions for task in partition.tasks]

    @property
    def export_by_split(self) -> dict[int, PartitionExport]:
        """The partition of each split, keyed by split number."""
        return {task.number: partition for partition in self.partitions for task in partition.tasks}


def plan_export(
    files: Sequence[PartitionFiles],
    settings: ExportSettings,
    *,
    starting_offsets: Mapping[str, Mapping[int, int]] | None = None,
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    split_bytes: int = SPLIT_BYTES,
) -> ExportPlan:
    """Plan an export, while the lock of the output is held.

    The first export of each partition begins at its starting offset, by default its log start
    offset. `split_bytes` is the approximate size of a split.
    """
    if starting_offsets is not None:
        _check_starts(files, starting_offsets)
    exports, next_number = [], 0
    choice = to_choice(OnDataLoss, on_data_loss, "on_data_loss")
    for partition_files in files:
        topic_offsets = (starting_offsets or {}).get(partition_files.topic, {})
        start_offset = topic_offsets.get(partition_files.partition, EARLIEST)
        export = _PartitionPlan(partition_files, settings, start_offset, choice, split_bytes).plan(
            next_number
        )
        next_number += len(export.tasks)
        exports.append(export)
    return ExportPlan(tuple(exports))


def _check_starts(files: Sequence[PartitionFiles], starts: Mapping[str, Mapping[int, int]]) -> None:
    """Raise `InputError` unless exactly the partitions of the input have starting offsets."""
    input_partitions = {
        TopicPartition(partition.topic, partition.partition).directory_name for partition in files
    }
    start_offsets = {
        TopicPartition(topic, number).directory_name: offset
        for topic, offsets in starts.items()
        for number, offset in offsets.items()
    }
    latest = [partition for partition, offset in start_offsets.items() if offset == LATEST]
    if latest:
        raise InputError(
            "an export cannot begin at the latest offset",
            expected=f"0 or more, or {EARLIEST} for the earliest offset",
            found=f"{LATEST} for {latest[0]}",
        )
    missing = sorted(input_partitions - start_offsets.keys())
    unknown = sorted(start_offsets.keys() - input_partitions)
    if missing or unknown:
        raise InputError(
            "the starting offsets and the input have different partitions",
            expected=", ".join(missing) or None,
            found=", ".join(unknown) or None,
            hint="list each partition once (-2 is the earliest offset); give --topics to select "
            "topics",
        )


class _PartitionPlan:
    """Plans the export of a partition, with the parameters of `plan_export`."""

    def __init__(
        self,
        files: PartitionFiles,
        settings: ExportSettings,
        start: int,
        on_data_loss: OnDataLoss,
        split_bytes: int,
    ) -> None:
        self._files = files
        self._settings = settings
        self._read = settings.read_settings
        self._start = start
        self._on_data_loss = on_data_loss
        self._split_bytes = split_bytes
        self._partition = TopicPartition(files.topic, files.partition)
        self._folder = settings.folder_of(self._partition)

    def plan(self, first_number: int) -> PartitionExport:
        """Return the plan of the partition; its first split has this number."""
        files, folder = self._files, self._folder
        earlier_state = export_state(folder).read()
        _check_folder(folder, earlier_state, state_options(self._settings))
        remove_scratch_files(folder)
        if earlier_state is not None and earlier_state.superseded is not None:
            earlier_state = finish_replacement(folder, earlier_state)
        state = _state_to_extend(files, earlier_state, self._settings, self._start)
        export = PartitionExport(self._partition, folder)
        end_offset = None
        try:
            if earlier_state is None:
                state = replace(state, topic_id=_topic_id(files))
            with PartitionLog(
                files,
                config=IndexConfig(),
                max_decompressed_bytes=self._read.max_decompressed_bytes,
            ) as log:
                damage = find_damaged_end(log)
                end_offset = log.end_offset if damage is None else damage.end_offset
                _refuse_last_offset(log, end_offset)
                loss = None
                if earlier_state is not None:
                    loss = self._find_loss(log, state, None if damage else end_offset)
                if loss is not None:
                    export = self._plan_after_loss(log, state, loss, end_offset)
                else:
                    remove_staged_files(folder)
                    export.state = state
                export.end_damage = (
                    None if damage is None else ReportedError.from_error(damage.error)
                )
                if export.state is not None:
                    self._add_tasks(
                        export, log, first_number, end_offset, is_damaged=damage is not None
                    )
        except KafkaIndexError as error:
            export = PartitionExport(self._partition, folder)
            export.failure, export.is_retriable = (
                ReportedError.from_error(error),
                is_retriable(error),
            )
        if earlier_state is None and end_offset is not None and self._start > end_offset:
            raise InputError(
                "the starting offset is after the log end offset",
                path=files.segments[0].partition_directory,
                expected=f"{end_offset} or less",
                found=self._start,
                hint="correct the offset in the file of --offsets",
            )
        return export

    def _add_tasks(
        self,
        export: PartitionExport,
        log: PartitionLog,
        first_number: int,
        end_offset: int,
        *,
        is_damaged: bool,
    ) -> None:
        """Add the splits of damaged ranges, and of new records."""
        state, folder = export.state, export.folder
        assert state is not None  # noqa: S101, because mypy needs it
        export.begin_offset = begin_offset = state.next_offset
        remove_uncovered_files(folder, state)
        for damaged_range in state.damaged:
            # Retention has deleted the start of the range, so the range cannot be read again
            # completely.
            if damaged_range.first_offset < log.log_start_offset:
                continue
            # One split of any size: the data files of a range are replaced together.
            _, splits = _split_log(
                log, damaged_range.first_offset, damaged_range.end_offset, self._read, None
            )
            export.tasks += [
                SplitTask(
                    first_number + len(export.tasks),
                    split,
                    folder,
                    damaged_range.first_offset,
                    damaged_range.end_offset,
                    is_repeated=True,
                    records_before=damaged_range.records,
                    revision=self._next_revision(state),
                )
                for split in splits
            ]
        is_first = state.next_offset == max(log.log_start_offset, self._start)
        starts = Bound(EARLIEST) if is_first and self._start == EARLIEST else Bound(begin_offset)
        new_splits: list[RecordSplit] = []
        # A damaged log end is read even if no new records precede the damage, so that the report
        # lists the damage.
        if is_damaged or begin_offset < end_offset:
            new_end_offset, new_splits = _split_log(
                log, begin_offset, LATEST, self._read, self._split_bytes
            )
            new_end_offset = max(
                end_offset if new_end_offset is None else new_end_offset, begin_offset
            )
            revision = state.revision_at(begin_offset)
            next_number = first_number + len(export.tasks)
            export.tasks += _plan_new_tasks(
                new_splits, next_number, folder, begin_offset, new_end_offset, revision
            )
        export.read = read_partition(self._files, ReadBounds(starts), new_splits) or ReadPartition(
            self._files, begin_offset
        )
        if export.replacement is not None:
            export.tasks = [replace(task, is_staged=True) for task in export.tasks]

    def _find_loss(
        self, log: PartitionLog, state: ExportState, end_offset: int | None
    ) -> DataLoss | None:
        """Return how the log differs from the exported log; None if it agrees."""
        topic_id = _topic_id(self._files)
        if topic_id is not None and state.topic_id not in (None, topic_id):
            return DataLoss(
                "the topic was deleted and created again after its export (expected topic ID "
                f"{state.topic_id}, found {topic_id})",
                None,
            )
        return find_loss(log, state.batches, state.next_offset, end_offset)

    def _plan_after_loss(
        self, log: PartitionLog, state: ExportState, loss: DataLoss, end_offset: int
    ) -> PartitionExport:
        """Return the plan of a partition whose log differs from the exported log."""
        reported_loss = ReportedError(
            self._files.segments[0].partition_directory, None, loss.reason
        )
        export = PartitionExport(self._partition, self._folder, loss=reported_loss)
        is_restart = self._on_data_loss is OnDataLoss.RESTART
        if self._on_data_loss is OnDataLoss.FAIL:
            hint = "give --on-data-loss continue or restart, or another --output"
            export.failure = replace(reported_loss, reason=f"{loss.reason}; {hint}")
            return export
        if loss.is_gap and not is_restart:
            export.state = replace(state, next_offset=log.log_start_offset)
            return export
        start_offset = max(log.log_start_offset, self._start if is_restart else 0)
        from_offset = 0 if is_restart else start_offset
        if not is_restart and loss.agreed_offset is not None:
            from_offset, start_offset = loss.agreed_offset, max(loss.agreed_offset, start_offset)
            if end_offset <= start_offset:
                # All records of the log were exported.
                return export
        straddling_paths = [
            file.path
            for file in data_files(self._folder)
            if file.first_offset < start_offset <= file.last_offset
            and file.revision == state.revision_at(file.first_offset)
        ]
        if straddling_paths and not is_restart and from_offset == start_offset:
            export.failure = replace(
                reported_loss,
                reason=f"{loss.reason}. The log has only some offsets of {straddling_paths[0]}, so "
                "the file cannot be replaced; give --on-data-loss restart, or another --output",
            )
            return export
        export.folder = staged_folder(self._folder)
        export.replacement = FileReplacement(self._folder, state, from_offset, is_restart)
        export.state = self._staged_state(log, export, start_offset, end_offset)
        return export

    def _next_revision(self, state: ExportState) -> int:
        """Return the revision for replacing data files in a table; 0 if there is no table."""
        return state.revision + 1 if self._settings.format.is_table else 0

    def _staged_state(
        self, log: PartitionLog, export: PartitionExport, start_offset: int, end_offset: int
    ) -> ExportState:
        """Return the staged state of a killed run if it fits this plan; otherwise, a new state."""
        replacement, staging_folder = export.replacement, export.folder
        assert replacement is not None  # noqa: S101, because mypy needs it
        topic_id = _topic_id(self._files)
        options = state_options(self._settings)
        staged_state = export_state(staging_folder).read()
        new_state = ExportState(
            options, start_offset, start_offset, topic_id, files=replacement.before.files
        )
        revision = self._next_revision(replacement.before)
        if revision:
            replaced_range = ReplacedRange(replacement.from_offset, INT64_MAX, revision)
            new_state = replace(new_state, revision=revision, replaced=(replaced_range,))
        if staged_state is not None:
            has_same_plan = (
                staged_state.options == options
                and staged_state.first_offset == start_offset
                and staged_state.topic_id == topic_id
                and staged_state.replaced[:1] == new_state.replaced
            )
            batches, next_offset = staged_state.batches, staged_state.next_offset
            if has_same_plan and find_loss(log, batches, next_offset, end_offset) is None:
                remove_scratch_files(staging_folder)
                return staged_state
        remove_staged_files(self._folder)
        return new_state


def _refuse_last_offset(log: PartitionLog, end_offset: int) -> None:
    """Raise `CorruptLogError` if a batch ends at the largest int64 offset."""
    last_segment = log.segments[-1]
    is_at_limit = (
        last_segment.base_offset > INT64_MAX - INT32_MAX and last_segment.file.log_size_bytes > 0
    )
    if is_at_limit and end_offset <= last_segment.base_offset:
        raise CorruptLogError(
            f"the last offset of the log is {INT64_MAX}, and the log end offset overflows to "
            f"{end_offset}",
            path=last_segment.file.log_path,
        )


def _split_log(
    log: PartitionLog,
    first_offset: int,
    end_offset: int,
    read: ReadSettings,
    split_bytes: int | None,
) -> tuple[int | None, list[RecordSplit]]:
    """Return the exclusive end of the offsets that can be exported now, and their splits."""
    offsets = resolve_range(log, ReadBounds(Bound(first_offset), Bound(end_offset)), read)
    return offsets.end_offset, list(split_range(log, offsets, read, max_split_bytes=split_bytes))


def _plan_new_tasks(
    splits: Sequence[RecordSplit],
    first_number: int,
    folder: str,
    first_offset: int,
    end_offset: int,
    revision: int,
) -> Iterator[SplitTask]:
    if not splits:
        return
    # The first split also covers deleted offsets before the log start offset. If damage hides
    # `first_offset`, splits may begin at older records.
    inner = (min(max(split.start_offset, first_offset), end_offset) for split in splits[1:])
    starts = [first_offset, *inner]
    for split, (split_start, split_end) in zip(
        splits, pairwise([*starts, end_offset]), strict=True
    ):
        yield SplitTask(first_number, split, folder, split_start, split_end, revision=revision)
        first_number += 1


def _check_folder(folder: str, state: ExportState | None, options: Mapping[str, object]) -> None:
    """Raise `InputError` if the folder has an export with other options, or unknown files."""
    if state is None:
        for file in data_files(folder):
            raise InputError(
                "the folder contains this data file, but no state file of an export",
                path=file.path,
                hint="choose another --output",
            )
        return
    # `options` lacks the options for decoding if neither keys nor values are decoded.
    names = dict.fromkeys((*options, *(name for name in state.options if name in DECODE_OPTIONS)))
    differing = [name for name in names if state.options.get(name) != options.get(name)]
    if "to_ms" in differing:
        # Without --from, `from_ms` is 0 if --to is given, and None otherwise. Report --to, which
        # was changed, first.
        differing.sort(key=lambda name: name == "from_ms" and not options[name])
    for name in differing:
        raise InputError(
            f"the partition was exported with another value of {OPTION_NAMES[name]}",
            path=folder,
            expected=format_option(name, state.options.get(name)),
            found=format_option(name, options.get(name)),
            hint=f"{continue_hint(state.options, name)} to continue that export, or give another "
            "--output",
        )


def _state_to_extend(
    files: PartitionFiles, state: ExportState | None, settings: ExportSettings, start_offset: int
) -> ExportState:
    """Return the state in the folder, or a new state for a first export."""
    if state is None:
        # `EARLIEST` is negative, so it selects the log start offset.
        first_offset = max(files.log_start_offset, start_offset)
        return ExportState(state_options(settings), first_offset, first_offset, files=0)
    if start_offset not in (EARLIEST, state.first_offset):
        raise InputError(
            "the partition was exported from another starting offset",
            path=settings.folder_of(TopicPartition(files.topic, files.partition)),
            expected=state.first_offset,
            found=start_offset,
            hint="omit --offsets to continue, or give another --output",
        )
    return state


def _topic_id(files: PartitionFiles) -> str | None:
    directory = files.segments[-1].partition_directory
    if store_of(directory).needs_requests:
        return None
    try:
        return read_topic_id(directory)
    except (KafkaIndexError, OSError) as error:
        if is_retriable(error):
            if isinstance(error, KafkaIndexError):
                raise
            reason = f"cannot read the topic ID: {error.strerror}"
            raise ReadError(reason, path=error.filename or directory) from error
        # A broker would reject partition.metadata, but the records do not depend on this file.
        return None

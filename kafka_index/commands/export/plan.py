"""The plan of an export: the new records of each partition, in splits."""

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
    export_state,
    find_loss,
    option_again,
    state_options,
    value_text,
)
from kafka_index.commands.export.partition_export import (
    Exchange,
    PartitionExport,
    SplitWork,
    data_files,
    drop_staged,
    finish_exchange,
    remove_scratch_files,
    remove_uncovered_files,
    staged_folder,
)
from kafka_index.commands.export.request import OnDataLoss
from kafka_index.commands.export.result import LeftOut
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
    def works(self) -> list[SplitWork]:
        """The splits of all partitions, in order of their numbers."""
        return [work for partition in self.partitions for work in partition.works]

    @property
    def partition_of(self) -> dict[int, PartitionExport]:
        """The partition of each split, keyed by split number."""
        return {work.number: one for one in self.partitions for work in one.works}


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
    planned, number = [], 0
    choice = to_choice(OnDataLoss, on_data_loss, "on_data_loss")
    for own in files:
        starts = (starting_offsets or {}).get(own.topic, {})
        start = starts.get(own.partition, EARLIEST)
        one = _PartitionPlan(own, settings, start, choice, split_bytes).plan(number)
        number += len(one.works)
        planned.append(one)
    return ExportPlan(tuple(planned))


def _check_starts(files: Sequence[PartitionFiles], starts: Mapping[str, Mapping[int, int]]) -> None:
    """Raise `InputError` if offsets are for other partitions, as Spark's Kafka source does."""
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
            "the starting offsets are not for the same partitions as the input",
            expected=", ".join(missing) or None,
            found=", ".join(other) or None,
            hint="list each partition once (-2 is its first offset); use --topics to select topics",
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

    def plan(self, number: int) -> PartitionExport:
        """Return the plan of the partition; its first split has this number."""
        files, folder = self._files, self._folder
        known = export_state(folder).read()
        _check_folder(folder, known, state_options(self._settings))
        remove_scratch_files(folder)
        if known is not None and known.superseded is not None:
            known = finish_exchange(folder, known)
        state = _state_to_extend(files, known, self._settings, self._start)
        export = PartitionExport(self._partition, folder)
        end_offset = None
        try:
            if known is None:
                state = replace(state, topic_id=_topic_id(files))
            with PartitionLog(
                files,
                config=IndexConfig(),
                max_decompressed_bytes=self._read.max_decompressed_bytes,
            ) as log:
                damaged = find_damaged_end(log)
                end_offset = log.end_offset if damaged is None else damaged.end_offset
                _refuse_last_offset(log, end_offset)
                loss = None
                if known is not None:
                    loss = self._loss(log, state, None if damaged else end_offset)
                if loss is not None:
                    export = self._after_loss(log, state, loss, end_offset)
                else:
                    drop_staged(folder)
                    export.state = state
                export.end_damage = None if damaged is None else LeftOut.of(damaged.error)
                if export.state is not None:
                    self._add_works(export, log, number, end_offset, is_damaged=damaged is not None)
        except KafkaIndexError as error:
            export = PartitionExport(self._partition, folder)
            export.failure, export.is_retriable = LeftOut.of(error), is_retriable(error)
        if known is None and end_offset is not None and self._start > end_offset:
            raise InputError(
                "the log does not have the starting offset",
                path=files.segments[0].partition_directory,
                expected=f"{end_offset} or less",
                found=self._start,
                hint="correct it in the file of --offsets",
            )
        return export

    def _add_works(
        self,
        export: PartitionExport,
        log: PartitionLog,
        number: int,
        end_offset: int,
        *,
        is_damaged: bool,
    ) -> None:
        """Add the splits of damaged ranges, and of new records."""
        state, folder = export.state, export.folder
        assert state is not None  # noqa: S101, because mypy needs it
        export.begin_offset = first = state.next_offset
        remove_uncovered_files(folder, state)
        for part in state.damaged:
            # Retention has deleted these records since.
            if part.first_offset < log.log_start_offset:
                continue
            # One split of any size: the data files of a range are replaced together.
            _, splits = _splits(log, part.first_offset, part.end_offset, self._read, None)
            export.works += [
                SplitWork(
                    number + len(export.works),
                    split,
                    folder,
                    part.first_offset,
                    part.end_offset,
                    is_repeated=True,
                    records_before=part.records,
                    revision=self._next_revision(state),
                )
                for split in splits
            ]
        is_first = state.next_offset == max(log.log_start_offset, self._start)
        starts = Bound(EARLIEST) if is_first and self._start == EARLIEST else Bound(first)
        new: list[RecordSplit] = []
        # Damage is read even if there are no new records before it: the report lists it.
        if is_damaged or first < end_offset:
            end, new = _splits(log, first, LATEST, self._read, self._split_bytes)
            end = max(end_offset if end is None else end, first)
            revision = state.revision_at(first)
            export.works += _works(new, number + len(export.works), folder, first, end, revision)
        export.read = read_partition(self._files, ReadBounds(starts), new) or ReadPartition(
            self._files, first
        )
        if export.exchange is not None:
            export.works = [replace(work, is_staged=True) for work in export.works]

    def _loss(
        self, log: PartitionLog, state: ExportState, end_offset: int | None
    ) -> DataLoss | None:
        """Return how the log differs from the exported one."""
        topic_id = _topic_id(self._files)
        if topic_id is not None and state.topic_id not in (None, topic_id):
            return DataLoss(
                "the topic was deleted and created again since it was exported (expected topic id "
                f"{state.topic_id}, found {topic_id})",
                None,
            )
        return find_loss(log, state.batches, state.next_offset, end_offset)

    def _after_loss(
        self, log: PartitionLog, state: ExportState, loss: DataLoss, end_offset: int
    ) -> PartitionExport:
        """Return the plan of a partition whose log is not the exported one."""
        place = LeftOut(self._files.segments[0].partition_directory, None, loss.reason)
        export = PartitionExport(self._partition, self._folder, loss=place)
        is_restart = self._on_data_loss is OnDataLoss.RESTART
        if self._on_data_loss is OnDataLoss.FAIL:
            hint = "give --on-data-loss continue or restart, or another --output"
            export.failure = replace(place, reason=f"{loss.reason}; {hint}")
            return export
        if loss.is_gap and not is_restart:
            export.state = replace(state, next_offset=log.log_start_offset)
            return export
        start = max(log.log_start_offset, self._start if is_restart else 0)
        from_offset = 0 if is_restart else start
        if not is_restart and loss.agreed_offset is not None:
            from_offset, start = loss.agreed_offset, max(loss.agreed_offset, start)
            if end_offset <= start:
                # All records of the log were exported.
                return export
        across = [
            file.path
            for file in data_files(self._folder)
            if file.first_offset < start <= file.last_offset
            and file.revision == state.revision_at(file.first_offset)
        ]
        if across and not is_restart and from_offset == start:
            export.failure = replace(
                place,
                reason=f"{loss.reason}; {across[0]} has offsets from before the log begins, and "
                "cannot be replaced in part: give --on-data-loss restart, or another --output",
            )
            return export
        export.folder = staged_folder(self._folder)
        export.exchange = Exchange(self._folder, state, from_offset, is_restart)
        export.state = self._staged_state(log, export, start, end_offset)
        return export

    def _next_revision(self, state: ExportState) -> int:
        """Return the revision of files that replace others; 0 if files are replaced in place."""
        return state.revision + 1 if self._settings.format.is_table else 0

    def _staged_state(
        self, log: PartitionLog, export: PartitionExport, start: int, end_offset: int
    ) -> ExportState:
        """Return the staged state of a killed run, or a new one."""
        exchange, staged = export.exchange, export.folder
        assert exchange is not None  # noqa: S101, because mypy needs it
        topic_id = _topic_id(self._files)
        options = state_options(self._settings)
        found = export_state(staged).read()
        new = ExportState(options, start, start, topic_id, files=exchange.before.files)
        revision = self._next_revision(exchange.before)
        if revision:
            every = ReplacedRange(exchange.from_offset, INT64_MAX, revision)
            new = replace(new, revision=revision, replaced=(every,))
        if found is not None:
            known = (found.options, found.first_offset, found.topic_id, found.replaced[:1])
            same = known == (options, start, topic_id, new.replaced)
            if same and find_loss(log, found.batches, found.next_offset, end_offset) is None:
                remove_scratch_files(staged)
                return found
        drop_staged(self._folder)
        return new


def _refuse_last_offset(log: PartitionLog, end_offset: int) -> None:
    """Raise `CorruptLogError` if a batch ends at the largest offset: no offset comes after it."""
    last = log.segments[-1]
    is_at_limit = last.base_offset > INT64_MAX - INT32_MAX and last.file.log_size_bytes > 0
    if is_at_limit and end_offset <= last.base_offset:
        raise CorruptLogError(
            f"its last offset is {INT64_MAX}: a broker computes {end_offset} as the log end offset",
            path=last.file.log_path,
        )


def _splits(
    log: PartitionLog, first: int, end: int, read: ReadSettings, split_bytes: int | None
) -> tuple[int | None, list[RecordSplit]]:
    """Return the end of the offsets that can be exported by now, and their splits."""
    offsets = resolve_range(log, ReadBounds(Bound(first), Bound(end)), read)
    return offsets.end_offset, list(split_range(log, offsets, read, max_split_bytes=split_bytes))


def _works(
    splits: Sequence[RecordSplit],
    number: int,
    folder: str,
    first_offset: int,
    end_offset: int,
    revision: int,
) -> Iterator[SplitWork]:
    if not splits:
        return
    # The first split covers deleted offsets before the log start, too.
    # If damage hides the first offset, older records are read again.
    inner = (min(max(split.start_offset, first_offset), end_offset) for split in splits[1:])
    starts = [first_offset, *inner]
    for split, (first, end) in zip(splits, pairwise([*starts, end_offset]), strict=True):
        yield SplitWork(number, split, folder, first, end, revision=revision)
        number += 1


def _check_folder(folder: str, known: ExportState | None, options: Mapping[str, object]) -> None:
    """Raise `InputError` if this export cannot continue a folder."""
    if known is None:
        for file in data_files(folder):
            raise InputError(
                "the folder of this data file has no state file of an export",
                path=file.path,
                hint="choose another --output",
            )
        return
    # Options of typed columns are omitted if there are no typed columns.
    names = dict.fromkeys((*options, *(name for name in known.options if name in DECODE_OPTIONS)))
    differing = [name for name in names if known.options.get(name) != options.get(name)]
    if "to_ms" in differing:
        # With only an end, the start is 0, and differs from none as well.
        differing.sort(key=lambda name: name == "from_ms" and not options[name])
    for name in differing:
        raise InputError(
            f"the partition was exported with another value of {OPTION_NAMES[name]}",
            path=folder,
            expected=value_text(name, known.options.get(name)),
            found=value_text(name, options.get(name)),
            hint=f"{option_again(known.options, name)} to continue that export, or give another "
            "--output",
        )


def _state_to_extend(
    files: PartitionFiles, known: ExportState | None, settings: ExportSettings, start: int
) -> ExportState:
    """Return the known state, or a new one."""
    if known is None:
        # The earliest offset is negative.
        first = max(files.log_start_offset, start)
        return ExportState(state_options(settings), first, first, files=0)
    if start not in (EARLIEST, known.first_offset):
        raise InputError(
            "the partition was exported from another starting offset",
            path=settings.folder_of(TopicPartition(files.topic, files.partition)),
            expected=known.first_offset,
            found=start,
            hint="omit --offsets to continue, or give another --output",
        )
    return known


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
            reason = f"cannot read the topic id: {error.strerror}"
            raise ReadError(reason, path=error.filename or directory) from error
        # A broker would reject the file, but the records do not depend on it.
        return None

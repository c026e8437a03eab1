"""The export of a partition: its splits and results, its export state, and its folder.

Each split is exported on a thread or in a Spark task. The export state covers a split only after
all earlier splits are complete. The name of a data file has its first and last offset. With
`by_date`, each day has a folder.

Files that replace others are first written to a hidden staging folder, which has its own export
state. If the run is killed, the next run continues that export. Once all files are staged, the
export state of the partition lists the data files to remove. If the run is killed after this, the
next run first completes the replacement.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kafka_index.commands.export.export_state import (
    DATA_FILE,
    DATE_FOLDER,
    DamagedRange,
    ExportState,
    ReplacedRange,
    export_state,
    thin_out,
)
from kafka_index.commands.export.result import (
    ExportStatus,
    PartitionReport,
    ReportedError,
    SplitResult,
)
from kafka_index.commands.export.settings import STAGED_ENDING
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.registry import directory_exists, scan_directory, store_of
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.output.publish import is_scratch
from kafka_index.core.query.missing_records import GapFinder, ReadPartition
from kafka_index.core.query.read_plan import RecordSplit

_NAME = re.compile(DATA_FILE)
_DATE_FOLDER = re.compile(DATE_FOLDER)
_STAGED = ".kafka-index-export-new"


@dataclass(frozen=True, slots=True)
class SplitTask:
    """A split to export, under its number in the plan; small, and picklable.

    Attributes
    ----------
    first_offset, end_offset : int
        The offsets that the split covers, the end exclusive.
    is_repeated : bool
        An earlier run exported the split, except for damaged records.
    records_before : int, optional
        The number of records that the earlier run exported from the split, if known.
    is_staged : bool
        Data files are written to the staging folder.
    revision : int
        The revision of the data files.
    """

    number: int
    split: RecordSplit
    folder: str
    first_offset: int
    end_offset: int
    is_repeated: bool = False
    records_before: int | None = None
    is_staged: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """A data file of a partition: its path, and the offsets and revision in its name."""

    path: str
    first_offset: int
    last_offset: int
    revision: int


@dataclass(frozen=True, slots=True)
class FileReplacement:
    """The data files that staged files replace.

    Attributes
    ----------
    before : ExportState
        The export state before the replacement.
    from_offset : int
        Data files that begin before this offset are kept.
    is_restart : bool
        The partition is exported again from the start.
    """

    folder: str
    before: ExportState
    from_offset: int
    is_restart: bool


@dataclass(slots=True)
class PartitionExport:
    """The export of a partition: its plan, and the results so far.

    Attributes
    ----------
    state : ExportState, optional
        The current state; a failed partition may have none.
    tasks : list of SplitTask
        The splits, in order of offsets.
    begin_offset : int, optional
        The first offset of this run, except for repeated splits.
    failure : ReportedError, optional
        Why the export failed or is incomplete.
    is_retriable : bool
        The environment caused the failure.
    is_rejected : bool
        The table, or the data files for the table, cannot be used.
    loss : ReportedError, optional
        Data that the log has lost since the last export.
    replacement : FileReplacement, optional
        The data files that the staged files replace, once all staged files are complete.
    read : ReadPartition, optional
        The offsets to export.
    missing : MissingOffsets
        The offsets in `read` that no log contains.
    end_damage : ReportedError, optional
        Damage at the end of the log, which is reported even if this run does not read it.
    """

    partition: TopicPartition
    folder: str
    state: ExportState | None = None
    tasks: list[SplitTask] = field(default_factory=list)
    begin_offset: int | None = None
    failure: ReportedError | None = None
    is_retriable: bool = False
    is_rejected: bool = False
    loss: ReportedError | None = None
    replacement: FileReplacement | None = None
    read: ReadPartition | None = None
    missing: MissingOffsets = field(default_factory=MissingOffsets)
    end_damage: ReportedError | None = None
    _results: dict[int, SplitResult] = field(default_factory=dict)
    _completed_count: int = 0

    def add_commit_error(self, error: KafkaIndexError) -> None:
        """Report an error of the commit to the table, unless an earlier failure is reported."""
        if self.failure is None:
            self.failure = ReportedError.from_error(error)
        if is_retriable(error):
            self.is_retriable = True
        else:
            self.is_rejected |= isinstance(error, InputError)

    def begin(self) -> None:
        """Create the folder of the partition, and write its export state."""
        assert self.state is not None  # noqa: S101, because mypy needs it
        store_of(self.folder).make_directory(self.folder)
        export_state(self.folder).write(self.state)

    def add(self, result: SplitResult) -> None:
        """Add the result of a split; if all earlier splits are complete, update the state file."""
        self._results[result.number] = result
        state = previous_state = self.state
        assert state is not None  # noqa: S101, because mypy needs it
        while self._completed_count < len(self.tasks) and self.failure is None:
            task = self.tasks[self._completed_count]
            split_result = self._results.get(task.number)
            if split_result is None:
                break
            if split_result.failure is not None:
                self.failure, self.is_retriable = split_result.failure, split_result.is_retriable
                break
            state = _extend_state(state, task, split_result)
            self._completed_count += 1
        if state != previous_state:
            export_state(self.folder).write(state)
            self.state = state

    def finish(self) -> None:
        """Replace data files by the staged files, if all staged files are complete.

        Raises `PublishError` if the replacement fails; the next run continues it.
        """
        is_complete = self.failure is None and self._completed_count == len(self.tasks)
        if self.replacement is None or self.state is None or not is_complete or self.state.damaged:
            return
        _replace_data_files(self.replacement, self.state)

    def find_missing(self, finder: GapFinder) -> None:
        """Find the missing offsets of the log, once its splits are exported."""
        # A failed commit does not matter: the next run does not read these splits.
        if self.read is not None and self._completed_count == len(self.tasks):
            new_tasks = [task for task in self.tasks if not task.is_repeated]
            seen_logs = [log for task in new_tasks for log in self._results[task.number].seen]
            self.missing = finder.find(self.read, seen_logs)

    def report(self) -> PartitionReport:
        """Return the row of the report."""
        results = [self._results[task.number] for task in self.tasks[: self._completed_count]]
        shown_ranges = [
            skipped_range for result in results for skipped_range in result.skipped_ranges
        ]
        # Two successive splits both report damage at their boundary.
        skipped_ranges = list(dict.fromkeys(shown_ranges))
        duplicates = len(shown_ranges) - len(skipped_ranges)
        count = sum(result.skipped_count for result in results) - duplicates
        if not skipped_ranges and self.end_damage is not None:
            skipped_ranges, count = [self.end_damage], 1
        status = ExportStatus.EXPORTED if self.tasks else ExportStatus.UNCHANGED
        if self.loss is not None:
            is_restart = self.replacement is not None and self.replacement.is_restart
            status = ExportStatus.RESTARTED if is_restart else ExportStatus.CONTINUED
        if self.failure is not None:
            status = ExportStatus.FAILED
        elif skipped_ranges or self.missing.lost:
            status = ExportStatus.DAMAGED
        loss, replaced_end_offset = self.loss, self._replaced_end_offset
        if loss is not None and replaced_end_offset is not None:
            reason = (
                f"{loss.reason}. The previous export was longer and ended at offset "
                f"{replaced_end_offset}"
            )
            loss = replace(loss, reason=reason)
        lost = [ReportedError.from_error(gap.error()) for gap in self.missing.lost]
        candidates = [self.failure, *skipped_ranges, loss, *lost]
        reported_error = next(filter(None, candidates), None)
        return PartitionReport(
            self.partition.topic,
            self.partition.partition,
            status,
            self.begin_offset,
            None if self.state is None else self.state.next_offset,
            sum(result.records for result in results),
            sum(result.files for result in results),
            sum(result.size_bytes for result in results),
            count,
            None if reported_error is None else reported_error.path,
            None if reported_error is None else reported_error.position_bytes,
            None if reported_error is None else reported_error.reason,
            self.is_retriable,
            self.missing,
            replaced_end_offset is not None,
            _sum_decode_counts(results),
            self.is_rejected,
        )

    @property
    def _replaced_end_offset(self) -> int | None:
        """The end offset of the previous export, if a shorter export replaces it."""
        if self.replacement is None or self.state is None:
            return None
        previous_end_offset = self.replacement.before.next_offset
        return previous_end_offset if self.state.next_offset < previous_end_offset else None


def _sum_decode_counts(results: Iterable[SplitResult]) -> dict[str, int]:
    """Return the number of keys and values that did not decode, keyed by error code."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.decode_counts)
    return dict(counts)


def _extend_state(state: ExportState, task: SplitTask, result: SplitResult) -> ExportState:
    """Return the export state after the result of another split."""
    if result.is_unchanged:
        return state
    if state.files is not None:
        state = replace(state, files=state.files + result.files)
    damaged_ranges = [
        damaged_range
        for damaged_range in state.damaged
        if damaged_range.end_offset <= task.first_offset
        or damaged_range.first_offset >= task.end_offset
    ]
    if result.skipped_count and task.first_offset < task.end_offset:
        damaged_ranges.append(DamagedRange(task.first_offset, task.end_offset, result.records))
    sorted_ranges = sorted(damaged_ranges, key=lambda damaged_range: damaged_range.first_offset)
    if task.is_repeated:
        state = replace(state, damaged=tuple(sorted_ranges))
        return state if not task.revision else _add_replaced_range(state, task)
    batches = state.batches
    last_batch = result.last_batch
    # If damage hides the end of the split, the last batch that was read may be after the split.
    if last_batch is not None and last_batch.last_offset < task.end_offset:
        batches = thin_out((*batches, replace(last_batch, end_offset=task.end_offset)))
    return replace(
        state, next_offset=task.end_offset, damaged=tuple(sorted_ranges), batches=batches
    )


def _add_replaced_range(state: ExportState, task: SplitTask) -> ExportState:
    """Return a state in which a repeated split replaces its earlier files in a table."""
    replaced_range = ReplacedRange(task.first_offset, task.end_offset, task.revision)
    return replace(state, revision=task.revision, replaced=(*state.replaced, replaced_range))


def data_files(folder: str) -> Iterator[DataFileInfo]:
    """Yield the data files of a partition."""
    for path in _list_files(folder):
        name_match = _NAME.fullmatch(os.path.basename(path))
        if name_match is not None:
            offsets_and_revision = (
                int(name_match[name] or 0) for name in ("first", "last", "revision")
            )
            yield DataFileInfo(path, *offsets_and_revision)


def remove_uncovered_files(folder: str, state: ExportState) -> None:
    """Remove data files that the export state does not cover: they are from a killed run."""
    _delete(folder, [file.path for file in data_files(folder) if not is_covered(file, state)])


def is_covered(file: DataFileInfo, state: ExportState) -> bool:
    """Return whether a state covers a data file, or covered it before it was replaced."""
    revision = state.revision_at(file.first_offset)
    is_new = file.first_offset >= state.next_offset and file.revision == revision
    return not is_new and file.revision <= revision


def remove_data_files(
    folder: str, first_offset: int, end_offset: int, *, keep: Iterable[str]
) -> None:
    """Remove the data files that begin within a range of offsets and are not in `keep`."""
    kept_paths = set(keep)
    removed_paths = [
        file.path
        for file in data_files(folder)
        if first_offset <= file.first_offset < end_offset and file.path not in kept_paths
    ]
    _delete(folder, removed_paths)


def remove_scratch_files(folder: str) -> None:
    """Remove the unfinished files of killed runs, while the lock of the output is held."""
    if store_of(folder).stages_locally:
        paths = _list_files(folder)
        _delete(folder, [path for path in paths if is_scratch(os.path.basename(path))])


def _list_files(folder: str) -> list[str]:
    if not directory_exists(folder):
        return []
    paths = []
    for entry in scan_directory(folder):
        if not entry.is_directory():
            paths.append(entry.path)
        elif _DATE_FOLDER.fullmatch(entry.name):
            paths += [file.path for file in scan_directory(entry.path) if not file.is_directory()]
    return paths


def _delete(folder: str, paths: list[str]) -> None:
    if paths:
        store_of(folder).delete(paths)


def staged_folder(folder: str) -> str:
    """Return the staging folder of a partition."""
    return os.path.join(folder, _STAGED)


def remove_staged_files(folder: str) -> None:
    """Remove the staged files of a partition; raises `PublishError` if that fails."""
    staging_folder = staged_folder(folder)
    if not directory_exists(staging_folder):
        return
    # The state is removed first: files without a state are never used.
    export_state(staging_folder).remove()
    store_of(folder).delete_tree(staging_folder)


def _replace_data_files(replacement: FileReplacement, staged_state: ExportState) -> None:
    """Replace data files by staged files, and update the state; the next run can complete this."""
    folder, previous_state, from_offset = (
        replacement.folder,
        replacement.before,
        replacement.from_offset,
    )
    new_names = set(_list_staged_files(folder).values())
    # Data files of another revision may be in a table, whose readers need these files until the
    # next commit.
    old_names = {
        os.path.relpath(file.path, folder)
        for file in data_files(folder)
        if file.first_offset >= from_offset and file.revision == staged_state.revision
    }
    keeps_earlier_files = previous_state.first_offset < from_offset
    state = replace(
        staged_state,
        first_offset=previous_state.first_offset
        if keeps_earlier_files
        else staged_state.first_offset,
        damaged=(
            *(damage for damage in previous_state.damaged if damage.end_offset <= from_offset),
            *staged_state.damaged,
        ),
        batches=(
            *(batch for batch in previous_state.batches if batch.end_offset <= from_offset),
            *staged_state.batches,
        ),
        superseded=tuple(sorted(old_names - new_names)),
        replaced=(
            *(
                old_range
                for old_range in previous_state.replaced
                if old_range.first_offset < from_offset
            ),
            *staged_state.replaced,
        ),
    )
    export_state(folder).write(state)
    finish_replacement(folder, state)


def finish_replacement(folder: str, state: ExportState) -> ExportState:
    """Complete a replacement, even an interrupted one; return the resulting state."""
    store = store_of(folder)
    store.delete([os.path.join(folder, name) for name in state.superseded or ()])
    changed_folders = {folder}
    for path, name in _list_staged_files(folder).items():
        target = os.path.join(folder, name)
        store.make_directory(os.path.dirname(target))
        store.rename(path, target)
        changed_folders.add(os.path.dirname(target))
    store.make_durable(changed_folders, "make the data files durable")
    state = replace(state, superseded=None)
    export_state(folder).write(state)
    remove_staged_files(folder)
    return state


def _list_staged_files(folder: str) -> dict[str, str]:
    """Return the staged data files, with their final paths relative to the folder."""
    staging_folder = staged_folder(folder)
    return {
        file.path: os.path.relpath(file.path, staging_folder).removesuffix(STAGED_ENDING)
        for file in data_files(staging_folder)
    }

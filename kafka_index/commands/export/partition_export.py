"""The export of a partition: its splits and results, its export state, and its folder.

Each split is exported on a thread or in a Spark task. The export state covers a split only after
all earlier splits are complete. The name of a data file has its first and last offset. With
`by_date`, each day has a folder.

Files that replace others are first written to a hidden staging folder, which has its own export
state. If the run is killed, the next run continues that export. Once all files are staged, the
state of the partition lists the data files to remove. Then every run first completes the exchange.
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
    thinned,
)
from kafka_index.commands.export.result import ExportStatus, LeftOut, PartitionReport, SplitResult
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
class SplitWork:
    """A split to export, under its number in the plan; small, and picklable.

    It covers the offsets from the first to the end, exclusive. `is_repeated`: it was exported
    before without damaged records, and has `records_before` rows, if known. `is_staged`: data files
    are written to the staging folder. `revision` is the revision of the data files.
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
class Exchange:
    """The data files that staged files replace.

    `before` is the current state. Data files that begin before `from_offset` stay. `is_restart`:
    the partition is exported again from the start.
    """

    folder: str
    before: ExportState
    from_offset: int
    is_restart: bool


@dataclass(slots=True)
class PartitionExport:
    """The export of a partition: its plan, and the results so far.

    `state` is the current state; a failed partition may have none. `works` are in order of offsets,
    and the offsets from `begin_offset` on are new. `failure` is the reason why the export failed or
    is incomplete. `is_retriable`: the environment is at fault. `is_rejected`: its table or its data
    files cannot be used. `loss` is data that the log
    has lost since the last export, if the export continues. With an `exchange`, data files are
    staged, and replace others once all are complete. `read` has the offsets to export, and
    `missing` the offsets among them that no log has. `end_damage` is damage at the end of the log,
    which a continued export may not read again.
    """

    partition: TopicPartition
    folder: str
    state: ExportState | None = None
    works: list[SplitWork] = field(default_factory=list)
    begin_offset: int | None = None
    failure: LeftOut | None = None
    is_retriable: bool = False
    is_rejected: bool = False
    loss: LeftOut | None = None
    exchange: Exchange | None = None
    read: ReadPartition | None = None
    missing: MissingOffsets = field(default_factory=MissingOffsets)
    end_damage: LeftOut | None = None
    _results: dict[int, SplitResult] = field(default_factory=dict)
    _done: int = 0

    def add_commit_error(self, error: KafkaIndexError) -> None:
        """Report an error of the commit to the table, unless the export failed before."""
        if self.failure is None:
            self.failure = LeftOut.of(error)
        if is_retriable(error):
            self.is_retriable = True
        else:
            self.is_rejected |= isinstance(error, InputError)

    def begin(self) -> None:
        """Write the first state of a partition."""
        assert self.state is not None  # noqa: S101, because mypy needs it
        store_of(self.folder).make_directory(self.folder)
        export_state(self.folder).write(self.state)

    def add(self, result: SplitResult) -> None:
        """Add the result of a split, and write the exported offsets up to the first gap."""
        self._results[result.number] = result
        state = before = self.state
        assert state is not None  # noqa: S101, because mypy needs it
        while self._done < len(self.works) and self.failure is None:
            work = self.works[self._done]
            found = self._results.get(work.number)
            if found is None:
                break
            if found.failure is not None:
                self.failure, self.is_retriable = found.failure, found.is_retriable
                break
            state = _extended(state, work, found)
            self._done += 1
        if state != before:
            export_state(self.folder).write(state)
            self.state = state

    def finish(self) -> None:
        """Move staged files to their final place, if all of them are complete.

        Raises `PublishError` if that fails; the next run continues.
        """
        is_whole = self.failure is None and self._done == len(self.works)
        if self.exchange is None or self.state is None or not is_whole or self.state.damaged:
            return
        _take_place(self.exchange, self.state)

    def find_missing(self, finder: GapFinder) -> None:
        """Find the missing offsets of the log, once its splits are exported."""
        if self.read is not None and self.failure is None:
            new = [work for work in self.works if not work.is_repeated]
            seen = [log for work in new for log in self._results[work.number].seen]
            self.missing = finder.find(self.read, seen)

    def report(self) -> PartitionReport:
        """Return the row of the report."""
        done = [self._results[work.number] for work in self.works[: self._done]]
        shown = [one for result in done for one in result.left_out]
        # Damage between two splits is read by both.
        left_out = list(dict.fromkeys(shown))
        count = sum(result.left_out_count for result in done) - len(shown) + len(left_out)
        if not left_out and self.end_damage is not None:
            left_out, count = [self.end_damage], 1
        status = ExportStatus.EXPORTED if self.works else ExportStatus.UNCHANGED
        if self.loss is not None:
            is_restart = self.exchange is not None and self.exchange.is_restart
            status = ExportStatus.RESTARTED if is_restart else ExportStatus.CONTINUED
        if self.failure is not None:
            status = ExportStatus.FAILED
        elif left_out or self.missing.lost:
            status = ExportStatus.DAMAGED
        loss, shorter = self.loss, self._shorter_end
        if loss is not None and shorter is not None:
            reason = f"{loss.reason}; the previous export, up to offset {shorter}, was longer"
            loss = replace(loss, reason=reason)
        lost = [LeftOut.of(gap.error()) for gap in self.missing.lost]
        place = self.failure or next(iter([*left_out, *filter(None, [loss]), *lost]), None)
        return PartitionReport(
            self.partition.topic,
            self.partition.partition,
            status,
            self.begin_offset,
            None if self.state is None else self.state.next_offset,
            sum(result.records for result in done),
            sum(result.files for result in done),
            sum(result.size_bytes for result in done),
            count,
            None if place is None else place.path,
            None if place is None else place.position_bytes,
            None if place is None else place.reason,
            self.is_retriable,
            self.missing,
            shorter is not None,
            _sum_counts(done),
            self.is_rejected,
        )

    @property
    def _shorter_end(self) -> int | None:
        """The end of the previous export, if a shorter export replaces it."""
        exchange, state = self.exchange, self.state
        if exchange is None or state is None:
            return None
        before = exchange.before.next_offset
        return before if state.next_offset < before else None


def _sum_counts(results: Iterable[SplitResult]) -> dict[str, int]:
    """Return the number of keys and values that did not decode, keyed by error code."""
    found: Counter[str] = Counter()
    for result in results:
        found.update(result.decode_counts)
    return dict(found)


def _extended(state: ExportState, work: SplitWork, result: SplitResult) -> ExportState:
    """Return a state that also covers a split."""
    if result.is_kept:
        return state
    if state.files is not None:
        state = replace(state, files=state.files + result.files)
    others = [
        one
        for one in state.damaged
        if one.end_offset <= work.first_offset or one.first_offset >= work.end_offset
    ]
    if result.left_out_count and work.first_offset < work.end_offset:
        others.append(DamagedRange(work.first_offset, work.end_offset, result.records))
    damaged = sorted(others, key=lambda one: one.first_offset)
    if work.is_repeated:
        state = replace(state, damaged=tuple(damaged))
        return state if not work.revision else _with_replaced(state, work)
    batches = state.batches
    last = result.last_batch
    # Damage may hide the end of the split.
    if last is not None and last.last_offset < work.end_offset:
        batches = thinned((*batches, replace(last, end_offset=work.end_offset)))
    return replace(state, next_offset=work.end_offset, damaged=tuple(damaged), batches=batches)


def _with_replaced(state: ExportState, work: SplitWork) -> ExportState:
    """Return a state in which the files of a repeated split replace its files in a table."""
    one = ReplacedRange(work.first_offset, work.end_offset, work.revision)
    return replace(state, revision=work.revision, replaced=(*state.replaced, one))


def data_files(folder: str) -> Iterator[DataFileInfo]:
    """Yield the data files of a partition."""
    for path in _files_of(folder):
        found = _NAME.fullmatch(os.path.basename(path))
        if found is not None:
            numbers = (int(found[name] or 0) for name in ("first", "last", "revision"))
            yield DataFileInfo(path, *numbers)


def remove_uncovered_files(folder: str, state: ExportState) -> None:
    """Remove the data files of a killed run, which the state does not cover."""
    _remove(folder, [file.path for file in data_files(folder) if not is_covered(file, state)])


def is_covered(file: DataFileInfo, state: ExportState) -> bool:
    """Return whether a state covers a data file, or covered it before it was replaced."""
    revision = state.revision_at(file.first_offset)
    is_new = file.first_offset >= state.next_offset and file.revision == revision
    return not is_new and file.revision <= revision


def remove_data_files(
    folder: str, first_offset: int, end_offset: int, *, keep: Iterable[str]
) -> None:
    """Remove the data files that begin within a range of offsets and are not in `keep`."""
    kept = set(keep)
    remove = [
        file.path
        for file in data_files(folder)
        if first_offset <= file.first_offset < end_offset and file.path not in kept
    ]
    _remove(folder, remove)


def remove_scratch_files(folder: str) -> None:
    """Remove the unfinished files of killed runs, while the lock of the output is held."""
    if store_of(folder).stages_locally:
        found = _files_of(folder)
        _remove(folder, [path for path in found if is_scratch(os.path.basename(path))])


def _files_of(folder: str) -> list[str]:
    if not directory_exists(folder):
        return []
    found = []
    for entry in scan_directory(folder):
        if not entry.is_directory():
            found.append(entry.path)
        elif _DATE_FOLDER.fullmatch(entry.name):
            found += [one.path for one in scan_directory(entry.path) if not one.is_directory()]
    return found


def _remove(folder: str, paths: list[str]) -> None:
    if paths:
        store_of(folder).delete(paths)


def staged_folder(folder: str) -> str:
    """Return the staging folder of a partition."""
    return os.path.join(folder, _STAGED)


def drop_staged(folder: str) -> None:
    """Remove the staged files of a partition; raises `PublishError` if that fails."""
    staged = staged_folder(folder)
    if not directory_exists(staged):
        return
    # The state first: files without a state are never used.
    export_state(staged).remove()
    store_of(folder).delete_tree(staged)


def _take_place(exchange: Exchange, staged: ExportState) -> None:
    """Replace data files by staged files, with their state; a killed exchange is continued."""
    folder, before, from_offset = exchange.folder, exchange.before, exchange.from_offset
    new = set(_staged_files(folder).values())
    # Files of another revision are in a table, and its readers need them until the next commit.
    old = {
        os.path.relpath(file.path, folder)
        for file in data_files(folder)
        if file.first_offset >= from_offset and file.revision == staged.revision
    }
    kept = before.first_offset < from_offset
    state = replace(
        staged,
        first_offset=before.first_offset if kept else staged.first_offset,
        damaged=(
            *(one for one in before.damaged if one.end_offset <= from_offset),
            *staged.damaged,
        ),
        batches=(
            *(one for one in before.batches if one.end_offset <= from_offset),
            *staged.batches,
        ),
        superseded=tuple(sorted(old - new)),
        replaced=(
            *(one for one in before.replaced if one.first_offset < from_offset),
            *staged.replaced,
        ),
    )
    export_state(folder).write(state)
    finish_exchange(folder, state)


def finish_exchange(folder: str, state: ExportState) -> ExportState:
    """Complete an exchange, even if it was interrupted; return the resulting state."""
    store = store_of(folder)
    store.delete([os.path.join(folder, name) for name in state.superseded or ()])
    touched = {folder}
    for path, name in _staged_files(folder).items():
        target = os.path.join(folder, name)
        store.make_directory(os.path.dirname(target))
        store.rename(path, target)
        touched.add(os.path.dirname(target))
    store.make_durable(touched, "make the data files durable")
    state = replace(state, superseded=None)
    export_state(folder).write(state)
    drop_staged(folder)
    return state


def _staged_files(folder: str) -> dict[str, str]:
    """Return the staged data files, with their final paths relative to the folder."""
    staged = staged_folder(folder)
    return {
        file.path: os.path.relpath(file.path, staged).removesuffix(STAGED_ENDING)
        for file in data_files(staged)
    }

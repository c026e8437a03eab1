"""The export of a partition: its splits, their results, and the export record that follows them.

A split is exported by itself, on a thread or in a task of Spark. The partition's export record
follows in order: it never covers a split before all earlier ones are in place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from kafka_index.export.export_record import DamagedRange, ExportRecord
from kafka_index.export.log_history import thinned
from kafka_index.export.partition_folder import take_place
from kafka_index.export.report import ExportStatus, LeftOut, PartitionReport, SplitResult
from kafka_index.layout.names import TopicPartition
from kafka_index.stores import is_remote
from kafka_index.tables.read_plan import RecordSplit


@dataclass(frozen=True, slots=True)
class SplitWork:
    """A split to export, under its number in the plan; small, and picklable.

    First and end offset, exclusive, are its share of the partition's offsets. `is_repeated`: it was
    exported before, without the damaged records; `records_before` of it are in place, if that is
    known. `is_staged`: the data files are written aside.
    """

    number: int
    split: RecordSplit
    folder: str
    first_offset: int
    end_offset: int
    is_repeated: bool = False
    records_before: int | None = None
    is_staged: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """The data files that files written aside replace.

    `before` is the record in place. Data files that begin before `from_offset` stay; `is_restart`:
    all of the partition is exported anew.
    """

    folder: str
    before: ExportRecord
    from_offset: int
    is_restart: bool


@dataclass(slots=True)
class PartitionExport:
    """The export of a partition: its plan, and the results so far.

    `record` is the one in place; a partition that has failed may have none. `works` are in order,
    and the offsets from `begin_offset` on are new. `failure` is the reason why it cannot be
    exported, or not to the end, and `is_retriable` if the environment is at fault. `loss` is the
    loss of the log since the last export, if the export is continued all the same. With an
    `exchange`, the data files are written aside, and replace others when they are whole.
    """

    partition: TopicPartition
    folder: str
    record: ExportRecord | None = None
    works: list[SplitWork] = field(default_factory=list)
    begin_offset: int | None = None
    failure: LeftOut | None = None
    is_retriable: bool = False
    loss: LeftOut | None = None
    exchange: Exchange | None = None
    _results: dict[int, SplitResult] = field(default_factory=dict)
    _done: int = 0

    def begin(self) -> None:
        """Write the record of a partition that is exported for the first time.

        Raises `PublishError` if it cannot be written.
        """
        assert self.record is not None  # noqa: S101, because mypy needs it
        if not is_remote(self.folder):
            os.makedirs(self.folder, exist_ok=True)
        self.record.write(self.folder)

    def add(self, result: SplitResult) -> None:
        """Add the result of a split, and record the exported offsets up to the first gap.

        Raises `PublishError` if the record cannot be written.
        """
        self._results[result.number] = result
        record = before = self.record
        assert record is not None  # noqa: S101, because mypy needs it
        while self._done < len(self.works) and self.failure is None:
            work = self.works[self._done]
            found = self._results.get(work.number)
            if found is None:
                break
            if found.failure is not None:
                self.failure, self.is_retriable = found.failure, found.is_retriable
                break
            record = _extended(record, work, found)
            self._done += 1
        if record != before:
            record.write(self.folder)
            self.record = record

    def finish(self) -> None:
        """Put staged files in their place, if all of them are complete.

        Raises `PublishError` if that fails; the next run continues.
        """
        is_whole = self.failure is None and self._done == len(self.works)
        if self.exchange is None or self.record is None or not is_whole or self.record.damaged:
            return
        take_place(
            self.exchange.folder, self.exchange.before, self.record, self.exchange.from_offset
        )

    def report(self) -> PartitionReport:
        """Return the row of the report."""
        done = [self._results[work.number] for work in self.works[: self._done]]
        left_out = [one for result in done for one in result.left_out]
        status = ExportStatus.EXPORTED if self.works else ExportStatus.UNCHANGED
        if self.loss is not None:
            is_restart = self.exchange is not None and self.exchange.is_restart
            status = ExportStatus.RESTARTED if is_restart else ExportStatus.CONTINUED
        if self.failure is not None:
            status = ExportStatus.FAILED
        elif left_out:
            status = ExportStatus.DAMAGED
        place = self.failure or (left_out[0] if left_out else self.loss)
        return PartitionReport(
            self.partition.topic,
            self.partition.partition,
            status,
            self.begin_offset,
            None if self.record is None else self.record.next_offset,
            sum(result.records for result in done),
            sum(result.files for result in done),
            sum(result.size_bytes for result in done),
            sum(result.left_out_count for result in done),
            None if place is None else place.path,
            None if place is None else place.position_bytes,
            None if place is None else place.reason,
            self.is_retriable,
        )


def _extended(record: ExportRecord, work: SplitWork, result: SplitResult) -> ExportRecord:
    """Return a record that covers a split too."""
    if result.is_kept:
        return record
    others = [
        one
        for one in record.damaged
        if one.end_offset <= work.first_offset or one.first_offset >= work.end_offset
    ]
    if result.left_out_count and work.first_offset < work.end_offset:
        others.append(DamagedRange(work.first_offset, work.end_offset, result.records))
    damaged = sorted(others, key=lambda one: one.first_offset)
    if work.is_repeated:
        return replace(record, damaged=tuple(damaged))
    batches = record.batches
    last = result.last_batch
    # Damage may hide where a batch belongs.
    if last is not None and last.last_offset < work.end_offset:
        batches = thinned((*batches, replace(last, end_offset=work.end_offset)))
    return replace(record, next_offset=work.end_offset, damaged=tuple(damaged), batches=batches)

"""A rewrite as a whole: the plan, what is refused, both passes, and the rows of its report."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

import pyarrow as pa

from kafka_index.commands.rewrite.partition_rewrite import (
    MatchedPartition,
    PartitionPlan,
    RewriteSettings,
    digest_of,
    match_partitions,
    plan_rewrite,
    rewrite_partitions,
    tiered_starts,
)
from kafka_index.core.cluster.metadata.directory import FoundCluster, find_cluster, read_cluster
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
    plural,
)
from kafka_index.core.format.checkpoints import format_offset_checkpoint
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.core.format.names import (
    BROKER_LOCK,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.core.fs.backup.backup_paths import is_run_input
from kafka_index.core.fs.durable_files import AtomicFile, make_durable, publish_error
from kafka_index.core.fs.paths import check_target, local_path
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import (
    MissingOffsets,
    Result,
    RunOutcome,
    report_schema,
    report_table,
)
from kafka_index.core.log.filter.condition import Selection, key_counts, records_by_line
from kafka_index.core.log.filter.partition_match import ignore
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.metadata_files import read_text
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.output.staging import create_staging, remove_directory, staging_directory
from kafka_index.core.query.missing_records import GapFinder
from kafka_index.core.records.decompression import shared_budget

#: Holds the digest of the rewrite that the directory is the output of; empty before the decision.
_MARK = ".rewrite.kafka-index"
#: What it is written as at first, and all that a run killed by then leaves.
_MARK_SCRATCH = f".{_MARK}.tmp"
#: After the digest, once all is there.
_FINISHED = " finished"
#: What holds for the rewritten logs too: offsets do not change.
_CHECKPOINTS = (LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT, CLEANER_CHECKPOINT)


class RewriteOutput:
    """An output directory, held against other runs and brokers while it is open.

    It is made if missing. `is_finished`: it is the whole output of the rewrite with the same
    digest, and must not be written to.
    """

    is_finished = False

    def __init__(self, path: str, inputs: Sequence[str], digest: str) -> None:
        self.root = check_target(path, inputs)
        self.staging = staging_directory(self.root)
        self._digest = digest
        self._mark = os.path.join(self.root, _MARK)
        self._is_begun = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the directory, and mark it as one to be decided about."""
        with ExitStack() as stack:
            stack.enter_context(DirectoryLock.of_data_directories([self.root]))
            if not self._is_continued():
                _write(self._mark, "")
                stack.callback(self._remove_undecided)
            self._stack = stack.pop_all()
        return self

    def left_out(self, partition: TopicPartition) -> InputError | None:
        """Return, of a finished output, why a partition is not in it; None if it is."""
        if os.path.isdir(os.path.join(self.root, partition.directory_name)):
            return None
        return InputError("the run that finished has left it out", path=self.root)

    def begin(self) -> None:
        """Mark the directory as the unfinished output of this rewrite, before it is written to."""
        self._is_begun = True
        _write(self._mark, self._digest)
        self._stack.callback(remove_directory, self.staging)
        create_staging(self.staging)

    def __exit__(self, *_: object) -> None:
        """Remove unpublished partitions, and release the directory."""
        self._stack.close()

    def finish(
        self,
        directories: Sequence[str],
        ends: Mapping[TopicPartition, int | None],
        log_starts: Mapping[TopicPartition, int],
    ) -> None:
        """Write the files at the root, and mark the output as finished.

        `ends` has the partitions in the output, and the ends of their logs: no checkpoint goes
        beyond. It is None for a partition that is copied as it is. `log_starts` has the partitions
        whose start is not in the data directories that were read.
        """
        roots = [DataDirectory(each) for each in directories]
        for name in _CHECKPOINTS:
            offsets: dict[TopicPartition, int] = {}
            for root in roots:
                offsets |= root.checkpoint(name).offsets
            if name == LOG_START_CHECKPOINT:
                offsets |= log_starts
            kept = {
                each: _clamped(offset, ends[each])
                for each, offset in offsets.items()
                if each in ends
            }
            if kept:
                _write(os.path.join(self.root, name), format_offset_checkpoint(kept))
        if len(directories) == 1:
            text = read_text(os.path.join(directories[0], META_PROPERTIES))
            if text is not None:
                _write(os.path.join(self.root, META_PROPERTIES), text)
        # Before the mark: what is left then is the whole result, and nothing else.
        remove_directory(self.staging)
        for path, error in make_durable([self.root]).items():
            raise publish_error(error, path, "make it durable")
        _write(self._mark, self._digest + _FINISHED)

    def _is_continued(self) -> bool:
        """Return whether the directory is the output of this rewrite, finished or not."""
        names = set(os.listdir(self.root)) - {BROKER_LOCK, _MARK_SCRATCH}
        if not names:
            return False
        found = read_text(self._mark)
        if found is None or (not found and any(not name.startswith(".") for name in names)):
            raise InputError("the output is not empty", path=self.root, hint="give an empty folder")
        self.is_finished = found == self._digest + _FINISHED
        if not self.is_finished and found.endswith(_FINISHED):
            raise InputError(
                "the output is that of another rewrite", path=self.root, hint="give an empty folder"
            )
        if not self.is_finished and found not in ("", self._digest):
            raise InputError(
                "the output is that of an unfinished rewrite of something else",
                path=self.root,
                hint="remove it, or give another folder",
            )
        return bool(found)

    def _remove_undecided(self) -> None:
        if not self._is_begun:
            with suppress(OSError):
                os.unlink(self._mark)


def _clamped(offset: int, end_offset: int | None) -> int:
    """Return the offset of a checkpoint for a log that ends at another, if that is known."""
    return offset if end_offset is None else min(offset, end_offset)


def _write(path: str, text: str) -> None:
    with AtomicFile(path) as file:
        file.write(text.encode())
        file.commit()


REWRITE_REPORT_SCHEMA = report_schema(
    [("records", pa.int64()), ("dropped", pa.int64()), ("missing_ranges", pa.int64())],
    required=("topic", "partition", "status", "missing_ranges"),
)


class RewriteStatus(StrEnum):
    """The outcome of the rewrite of a partition."""

    #: A dry run has counted what would be dropped.
    MATCHED = "matched"
    #: The partition is there without the records that were dropped.
    REWRITTEN = "rewritten"
    #: The partition is one of Kafka's own topics, and is there as it was.
    COPIED = "copied"
    #: The partition is damaged or cannot be read or written, and is not there.
    LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class RewrittenPartition:
    """A partition of a rewrite: a row of its report.

    Parameters
    ----------
    topic, partition : str, int
        The partition.
    records, dropped : int or None
        How many records there are, and how many of them are dropped; None where they were not
        counted.
    status : RewriteStatus
        The outcome.
    reason : str or None
        Why the partition is skipped; otherwise its first lost offsets, or a note.
    is_retriable : bool
        Whether the environment is at fault for a partition that is left out.
    missing_offsets : MissingOffsets
        The missing offsets of the partition.
    """

    topic: str
    partition: int
    records: int | None
    dropped: int | None
    status: RewriteStatus
    reason: str | None = None
    is_retriable: bool = False
    missing_offsets: MissingOffsets = field(default_factory=MissingOffsets)

    @property
    def missing_ranges(self) -> int:
        """The number of ranges of missing offsets."""
        return self.missing_offsets.count


@dataclass(frozen=True, repr=False)
class RewriteResult(Result):
    """The result of `rewrite_dump`: a row per partition, as in ``rewrite --report``.

    Parameters
    ----------
    partitions : list of RewrittenPartition
        The records of each partition, how many of them are dropped, and why it is left out.
    output : str or None
        The folder; None for a dry run.
    refusal : str or None
        Why a dry run would be refused if it were none.
    is_new : bool
        Whether this call wrote the output: it does not where an earlier one has finished it.
    of_topics : str
        The restriction to some topics, for people; empty for all of them.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    records_by_line : dict of int to int
        The number of records by line of the key file, from 1; empty for a condition.
    """

    partitions: list[RewrittenPartition]
    output: str | None
    refusal: str | None = None
    is_new: bool = True
    of_topics: str = ""
    unread: tuple[str, ...] = ()
    records_by_line: Mapping[int, int] = field(default_factory=dict)

    command = "rewrite"

    @property
    def headline(self) -> str:
        """The number of records that are dropped, and why a dry run would be refused."""
        refused = f"would be refused: {self.refusal}; " if self.refusal is not None else ""
        earlier = "" if self.is_new else ", finished by an earlier run"
        return f"{refused}{self.total}{earlier}"

    @property
    def total(self) -> str:
        """The number of records, of dropped records, and of partitions."""
        counts = self.counts
        kept = plural(counts["partitions"] - counts["partitions_left_out"], "partition")
        where = "; nothing is written" if self.output is None else f"; {kept} in {self.output}"
        records = plural(counts["records"], "record")
        return f"{counts['records_dropped']:,} of {records}{self.of_topics} dropped{where}"

    @property
    def left_out(self) -> list[RewrittenPartition]:
        """The partitions that are damaged, or cannot be read or written."""
        return [row for row in self.partitions if row.status is RewriteStatus.LEFT_OUT]

    @property
    def outcome(self) -> RunOutcome:
        """Damage for partitions that are left out, the environment where another try may do."""
        faults = (row.is_retriable for row in self.left_out)
        return RunOutcome.of_faults(faults).with_damage((*self.unread, *self.missing_offsets.lost))

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets of all partitions."""
        return MissingOffsets.joined(row.missing_offsets for row in self.partitions)

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions, records, and how many of both are not there."""
        return {
            **key_counts(self.records_by_line),
            "partitions": len(self.partitions),
            "records": sum(row.records or 0 for row in self.partitions),
            "records_dropped": sum(row.dropped or 0 for row in self.partitions),
            "partitions_left_out": len(self.left_out),
        }

    @property
    def by_topic(self) -> Mapping[str, tuple[int, int, int]]:
        """Partitions, records, and how many records are dropped, by topic."""
        topics: dict[str, tuple[int, int, int]] = {}
        for row in self.partitions:
            partitions, records, dropped = topics.get(row.topic, (0, 0, 0))
            topics[row.topic] = (
                partitions + 1,
                records + (row.records or 0),
                dropped + (row.dropped or 0),
            )
        return topics

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self.partitions, REWRITE_REPORT_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRequest:
    """A rewrite as it is asked for; without an output a dry run.

    `overwrite`: it goes on even if no record matches, or every record. `metadata` is the metadata
    log directory that says what topics are compacted.
    """

    inputs: Sequence[str]
    output: str | None
    selection: Selection
    tiered: TieredOptions | None = None
    topics: re.Pattern[str] | None = None
    config: LogConfig = field(default_factory=LogConfig)
    metadata: str | None = None
    overwrite: bool = False
    allow_revive: bool = False
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES

    @property
    def of_topics(self) -> str:
        """The restriction to some topics, for people; empty for the whole input."""
        return "" if self.topics is None else f" of the topics that match {self.topics.pattern!r}"


class RewriteListener(Listener, Protocol):
    """Follows the passes of a rewrite on threads of this process."""

    def on_first(self, segment: SegmentFile) -> None:
        """Show that a segment is read for the first time of two; called from any thread."""

    def on_last(self, segment: SegmentFile) -> None:
        """Show that a segment is read for the last time."""


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """A rewrite whose input is listed."""

    request: RewriteRequest
    plans: Sequence[PartitionPlan]
    listing: Listing
    settings: RewriteSettings
    cluster: FoundCluster

    @classmethod
    def prepare(cls, request: RewriteRequest) -> Self:
        """List the input, and read its cluster."""
        if request.output is not None:
            local_path(request.output)
            _refuse_runs(request.inputs)
        budget = shared_budget(request.max_decompressed_bytes)
        cluster = None
        if request.metadata is not None:
            cluster = read_cluster([request.metadata], budget=budget)
        plans, listing = plan_rewrite(request.inputs, request.topics, cluster, request.tiered)
        directories = listing.data_directories
        found = FoundCluster(cluster) if cluster else find_cluster(None, directories, budget)
        settings = RewriteSettings(
            request.selection,
            found.settings(request.config),
            request.max_decompressed_bytes,
            request.allow_revive,
        )
        return cls(request, plans, listing, settings, found)

    def run(self, engine: Engine, listener: RewriteListener | None = None) -> RewriteResult:
        """Match, decide, and write; a partition that fails is a row of the result.

        The listener follows both passes.
        """
        with ExitStack() as stack:
            output = None
            if self.request.output is not None:
                output = stack.enter_context(
                    RewriteOutput(
                        self.request.output, self._read(), digest_of(self.plans, self.settings)
                    )
                )
            on_first = ignore if listener is None else listener.on_first
            on_last = ignore if listener is None else listener.on_last
            is_last = output is None or output.is_finished
            workers = stack.enter_context(
                engine.start(
                    "rewrite",
                    after_failure="finished partitions are kept: run again to continue",
                    listener=listener,
                    works=len(self.plans) * (1 if is_last else 2),
                    inputs=[plan.directory for plan in self.plans],
                    outputs=[] if output is None else [output.root],
                )
            )
            on_matched = on_last if is_last else on_first
            finder = GapFinder(
                self.listing.data_directories, self.request.max_decompressed_bytes, self.cluster
            )
            matched = [
                each.with_missing(finder)
                for each in match_partitions(workers, self.plans, self.settings, on_matched)
            ]
            if output is None:
                refusal = None
                try:
                    self._decide(matched)
                except (InputError, CorruptLogError) as error:
                    refusal = str(error)
                rows = [_row(each, each.error, is_dry=True) for each in matched]
                return RewriteResult(
                    rows,
                    None,
                    refusal,
                    of_topics=self.request.of_topics,
                    records_by_line=self._by_line(matched),
                )
            if output.is_finished:
                outcomes = [
                    (each, each.error or output.left_out(each.plan.partition)) for each in matched
                ]
            else:
                self._decide(matched)
                output.begin()
                sound = [each for each in matched if each.error is None]
                written = list(
                    rewrite_partitions(
                        workers,
                        sound,
                        output.root,
                        output.staging,
                        self.settings,
                        on_last,
                    )
                )
                unread = [(each, each.error) for each in matched if each.error is not None]
                outcomes = sorted([*unread, *written], key=lambda one: one[0].plan.partition)
                ends = {
                    each.plan.partition: None if each.match is None else each.match.end_offset
                    for each, error in written
                    if error is None
                }
                if not any(error is not None and is_retriable(error) for _, error in outcomes):
                    output.finish(self.listing.data_directories, ends, tiered_starts(self.plans))
            rows = [_row(each, error, is_dry=False) for each, error in outcomes]
            is_new = not output.is_finished
            return RewriteResult(
                rows,
                output.root,
                is_new=is_new,
                of_topics=self.request.of_topics,
                records_by_line=self._by_line(matched),
            )

    def _by_line(self, matched: Sequence[MatchedPartition]) -> Mapping[int, int]:
        found = [each.match.by_key for each in matched if each.match is not None]
        return records_by_line(self.request.selection.keys or (), found)

    def _read(self) -> list[str]:
        """Return what the output must not overlap."""
        tiered = self.request.tiered
        local = (plan.local_directory for plan in self.plans)
        remote = () if tiered is None else tiered.uris
        return [*self.request.inputs, *remote, *filter(None, local)]

    def _decide(self, matched: Sequence[MatchedPartition]) -> None:
        """Refuse what is hardly meant."""
        found = [each.match for each in matched if each.match is not None]
        for each in matched:
            if each.match is not None and each.match.revived is not None:
                dropped, older = each.match.revived
                raise InputError(
                    f"dropping the record at offset {dropped} would make the older one of its key "
                    f"at offset {older} the newest",
                    path=each.plan.directory,
                    hint="drop the whole key; or give --metadata, where the topic is not "
                    "compacted; or --allow-revive",
                )
        if self.request.overwrite or not found:
            return
        records = sum(each.records for each in found)
        dropped = sum(each.dropped for each in found)
        unread = [each.error for each in matched if each.error is not None]
        lost = [gap for each in matched for gap in each.missing.lost]
        if not dropped and lost:
            raise CorruptLogError(f"no record matches in the remaining log, and {lost[0]}")
        if not dropped and unread:
            kind = ReadError if any(map(is_retriable, unread)) else CorruptLogError
            raise kind(
                f"no record matches in what can be read, and {plural(len(unread), 'partition')} "
                f"cannot be: {unread[0]}"
            )
        if not dropped:
            looked_at = plural(records, "record") + self.request.of_topics
            skipped = self.listing.skipped
            if skipped:
                entries = plural(len(skipped), "entry", "entries")
                looked_at += f"; skipped {entries}, such as {skipped[0].path}: {skipped[0].reason}"
            raise InputError(
                "no record matches, so that the output would be a copy",
                found=looked_at,
                hint="correct the keys or the condition, or give --overwrite",
            )
        if dropped == records:
            raise InputError(
                "every record matches",
                found=plural(records, "record") + self.request.of_topics,
                hint="correct the keys or the condition, or give --overwrite",
            )


def _refuse_runs(inputs: Sequence[str]) -> None:
    """Refuse runs of backups, in which transactions are whole only once they are restored."""
    run = next(filter(is_run_input, inputs), None)
    if run is not None:
        raise InputError(
            "a run of a backup has transactions that were under way while it was cut",
            path=run,
            hint="give --drop-keys to restore, which ends the logs before them; or restore the "
            "run, and rewrite what is restored",
        )


def _row(
    each: MatchedPartition, error: KafkaIndexError | None, *, is_dry: bool
) -> RewrittenPartition:
    """Return the row of a partition, with the error that leaves it out, if there is one."""
    found, place = each.match, each.plan.partition
    written = RewriteStatus.COPIED if found is None else RewriteStatus.REWRITTEN
    status = RewriteStatus.MATCHED if is_dry else written
    reason = None if found is None else found.note
    lost = each.missing.lost
    if lost:
        reason = str(lost[0])
    if error is not None:
        status, reason = RewriteStatus.LEFT_OUT, str(error)
    return RewrittenPartition(
        place.topic,
        place.partition,
        None if found is None else found.records,
        None if found is None else found.dropped,
        status,
        reason,
        error is not None and is_retriable(error),
        each.missing,
    )

"""A rewrite as a whole: the plan, what is refused, both passes, and the rows of its report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Self

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
from kafka_index.commands.rewrite.request import RewriteRequest
from kafka_index.commands.rewrite.result import RewriteResult, RewriteStatus, RewrittenPartition
from kafka_index.core.cluster.metadata.directory import FoundCluster, find_cluster, read_cluster
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
    plural,
)
from kafka_index.core.format.checkpoints import format_offset_checkpoint
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
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import check_target, local_path
from kafka_index.core.job.engine import SILENT, Engine, Listener, Workers
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.filter.condition import Condition, Selection
from kafka_index.core.log.filter.dropped_keys import records_by_line
from kafka_index.core.log.filter.partition_match import OnRead
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


def rewrite(
    request: RewriteRequest,
    engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> RewriteResult:
    """Rewrite the dump of a request; a partition that fails is a row of the result.

    Raises `InputError` if the rewrite is refused, for example because no record matches.
    """
    with reading_inputs(follow_links=request.follow_links) as unread:
        job = RewriteJob.prepare(request)
        result = job.run(engine, listener or SILENT)
    return replace(
        result,
        unread=unread_texts(unread),
        skipped=skipped_texts(job.listing.skipped),
        of_topics=request.of_topics,
    )


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
        if request.drop_where is not None:
            selection = Selection(condition=Condition.parse(request.drop_where))
        else:
            selection = Selection(request.drop_keys)
        if request.output is not None:
            local_path(request.output)
            _refuse_backups(request.inputs)
        budget = shared_budget(request.max_decompressed_bytes)
        cluster = None
        if request.metadata is not None:
            cluster = read_cluster([request.metadata], budget=budget)
        plans, listing = plan_rewrite(request.inputs, request.topics, cluster, request.tiered)
        directories = listing.data_directories
        found = FoundCluster(cluster) if cluster else find_cluster(None, directories, budget)
        settings = RewriteSettings(
            selection,
            found.settings(request.config.config),
            request.max_decompressed_bytes,
            request.allow_revive,
        )
        return cls(request, plans, listing, settings, found)

    def run(self, engine: Engine, listener: Listener) -> RewriteResult:
        """Match, decide, and write."""
        segments = [segment for plan in self.plans for segment in plan.segments]
        # Both passes read all segments; a dry run makes one pass.
        passes = 1 if self.request.output is None else 2
        size_bytes = passes * sum(segment.log_size_bytes for segment in segments)
        listener.on_plan(len(segments), size_bytes, ("segment", "segments"))
        with ExitStack() as stack:
            output = None
            if self.request.output is not None:
                digest = digest_of(self.plans, self.settings)
                output = stack.enter_context(
                    RewriteOutput(self.request.output, self._read(), digest)
                )
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

            def on_first(segment: SegmentFile) -> None:
                listener.on_done(0, segment.log_size_bytes)

            def on_last(segment: SegmentFile) -> None:
                listener.on_done(1, segment.log_size_bytes)

            finder = GapFinder(
                self.listing.data_directories, self.request.max_decompressed_bytes, self.cluster
            )
            on_matched = on_last if is_last else on_first
            matched = [
                each.with_missing(finder)
                for each in match_partitions(workers, self.plans, self.settings, on_matched)
            ]
            refusal = None
            if output is None:
                try:
                    self._decide(matched)
                except (InputError, CorruptLogError) as error:
                    refusal = str(error)
                outcomes = [(each, each.error) for each in matched]
            elif output.is_finished:
                outcomes = [
                    (each, each.error or output.left_out(each.plan.partition)) for each in matched
                ]
            else:
                self._decide(matched)
                outcomes = self._write(workers, output, matched, on_last)
        return RewriteResult(
            [_row(each, error, is_dry=output is None) for each, error in outcomes],
            None if output is None else output.root,
            refusal,
            is_new=output is None or not output.is_finished,
            records_by_line=self._by_line(matched),
        )

    def _write(
        self,
        workers: Workers,
        output: RewriteOutput,
        matched: Sequence[MatchedPartition],
        on_read: OnRead,
    ) -> list[tuple[MatchedPartition, KafkaIndexError | None]]:
        """Write the partitions that could be read; return all, each with why it is left out."""
        output.begin()
        intact = [each for each in matched if each.error is None]
        written = list(
            rewrite_partitions(workers, intact, output.root, output.staging, self.settings, on_read)
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
        return outcomes

    def _by_line(self, matched: Sequence[MatchedPartition]) -> Mapping[int, int]:
        found = [each.match.by_key for each in matched if each.match is not None]
        return records_by_line(self.settings.selection.keys or (), found)

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


def _refuse_backups(inputs: Sequence[str]) -> None:
    """Refuse backups: their transactions are complete only after a restore."""
    run = next(filter(is_run_input, inputs), None)
    if run is not None:
        raise InputError(
            "a backup has transactions that were open at its cutoff",
            path=run,
            hint="give --drop-keys to restore, which ends the logs before them; or restore the "
            "backup, and rewrite the restored directory",
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

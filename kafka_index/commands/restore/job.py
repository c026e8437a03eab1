"""A restore as a whole: all checks first, then the partitions, then the root and the cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from kafka_index.commands.restore.backup_input import BackupRun, following_run
from kafka_index.commands.restore.cluster import (
    ClusterMode,
    Identity,
    copy_metadata,
    copy_metadata_identity,
    is_separate,
    partitions_only_here,
    partitions_placed_here,
    refuse_used_metadata,
)
from kafka_index.commands.restore.group_offsets import (
    clamp_offsets,
    ends_of,
    offsets_beyond,
    offsets_of_renamed,
    read_offsets,
)
from kafka_index.commands.restore.output import (
    Output,
    check_again,
    check_output,
    check_same_output,
    fresh_cluster_identity,
    inputs_of,
    refuse_unknown_topics,
    same_cluster_identity,
)
from kafka_index.commands.restore.output_files import (
    STAGING,
    Link,
    choose_link,
    disable_startup,
    make_directory,
    remove_directory,
    remove_marker,
    remove_staging,
    restore_identity,
    write_checkpoints,
    write_marker,
)
from kafka_index.commands.restore.plan import (
    PartitionPlan,
    RestorePlan,
    RestoreRequest,
    as_begun,
    plan_restore,
    read_old_cluster,
    refuse_shared_ids,
    without_strays,
)
from kafka_index.commands.restore.point_in_time import (
    check_offsets,
    check_reached,
    check_times,
    cleaned_after,
    open_transactions,
)
from kafka_index.commands.restore.restore_partition import PartitionSettings, Runner
from kafka_index.commands.restore.restored_partition import (
    NO_LOGS,
    BegunPlan,
    GroupOffset,
    Journal,
    RestoredPartition,
)
from kafka_index.commands.restore.result import RestoreResult, RunbookFacts, dropped_text, runbook
from kafka_index.commands.restore.seed import (
    NOT_IN_DUMP,
    SeedDirectory,
    check_seed,
    partitions_not_in_dump,
    plan_seeding,
    refuse_used,
    write_seed,
)
from kafka_index.commands.restore.source_cluster import OldCluster, read_transactions
from kafka_index.commands.restore.transaction_search import TransactionSearch
from kafka_index.core.cluster.replicas import read_dumps
from kafka_index.core.errors import CorruptObjectError, plural
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.paths import local_path
from kafka_index.core.log.filter.condition import Selection
from kafka_index.core.log.scan.file_records import open_log
from kafka_index.core.log.scan.segment_split import SegmentSpan, split_segment
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.records.batch_table import OFFSET_OVERFLOW
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_sections import Decompressor

_COPIED_BYTES = 16 << 20


def has_overflowed(restored: RestoredPartition) -> bool:
    """Return whether a restored partition lacks batches whose offsets are too far apart."""
    codes = {restored.code, *(each.code for each in restored.lost)}
    return OFFSET_OVERFLOW in codes or (restored.reason or "").startswith(OFFSET_OVERFLOW)


@dataclass(frozen=True, slots=True)
class SegmentSplitter:
    """Splits the segments of partitions into logs in a folder.

    `originals` has the paths of the logs that the new ones were split from.
    """

    folder: str
    decompressor: Decompressor
    originals: dict[str, str] = field(default_factory=dict)

    def split(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan whose base copy has the segments that a broker makes."""
        try:
            segments = [
                each for segment in plan.base.segments.files() for each in self._segments(segment)
            ]
        except CorruptObjectError:
            # The offsets are too far apart because an object of a backup is damaged there.
            return plan
        if not any(each.log_path in self.originals for each in segments):
            return plan
        return replace(plan, base=replace(plan.base, segments=PartitionSegments.of(segments)))

    def _segments(self, segment: SegmentFile) -> Iterator[SegmentFile]:
        spans = split_segment(segment, self.decompressor)
        if not spans:
            yield segment
            return
        directory = os.path.join(self.folder, segment.topic_partition.directory_name)
        make_directory(self.folder)
        make_directory(directory)
        for span in spans:
            path = os.path.join(directory, segment_file_name(span.base_offset, LOG_SUFFIX))
            with publishing(path, "split a segment"):
                _copy(segment, span, path)
                os.utime(path, ns=(segment.log_mtime_ns, segment.log_mtime_ns))
                copied = segment.copied_to(path, os.stat(path))
            self.originals[path] = segment.log_path
            is_last = segment.is_last and span is spans[-1]
            yield replace(copied, base_offset=span.base_offset, is_last=is_last)

    def name_originals(self, restored: RestoredPartition) -> None:
        """Replace split logs by the original logs in the losses of a partition."""
        restored.lost = [
            replace(each, path=self.originals[each.path], position_bytes=None)
            if each.path in self.originals
            else each
            for each in restored.lost
        ]


def _copy(segment: SegmentFile, span: SegmentSpan, path: str) -> None:
    with closing(open_log(segment.log_path, segment)) as log, open(path, "wb") as file:
        for at in range(span.start_bytes, span.end_bytes, _COPIED_BYTES):
            size = min(_COPIED_BYTES, span.end_bytes - at)
            file.write(log.read_at(at, size).data)


OnRestored = Callable[[RestoredPartition], None]
OnResult = Callable[[RestoreResult], None]


def restore_logs(
    plan: RestorePlan,
    output: Output,
    identity: Identity,
    link: Link,
    *,
    runner: Runner,
    on_restored: OnRestored,
) -> list[RestoredPartition]:
    """Restore the partitions of a plan; what an earlier run has finished is kept.

    The output's lock must be held. No file at its root is written but the journal and the identity.
    """
    journal = Journal(output.path)
    finished = {} if output.begun is None else journal.finished()
    if output.begun is None:
        until_ms = plan.request.until.time_ms
        journal.begin(BegunPlan(plan.digest, dict(plan.made_ids), until_ms))
    disable_startup(output.path, identity.properties)
    # The run before may have been killed after the marker.
    remove_marker(output.path)
    remove_staging(output.path)
    unfinished = [each for each in plan.partitions if each.partition not in finished]
    for each in unfinished:
        remove_directory(os.path.join(output.path, each.partition.directory_name))
    settled: list[RestoredPartition] = []

    def settle(group: Iterable[RestoredPartition]) -> None:
        for restored in group:
            settled.append(restored)
            on_restored(restored)

    def finish(group: Sequence[RestoredPartition]) -> None:
        journal.add(group)
        settle(group)

    settle(finished.values())
    if unfinished:
        runner(unfinished, _partition_settings(plan, output, link), finish)
    settle(
        RestoredPartition(
            partition,
            directory,
            "",
            code=NO_LOGS,
            reason=f"{directory}: the directory holds no log",
        )
        for partition, directory in plan.without_logs.items()
    )
    remove_staging(output.path)
    return sorted(settled, key=lambda each: each.partition)


@dataclass(frozen=True, slots=True)
class RestoredAgain:
    """Partitions that are restored a second time, with segments to split or transactions to edit.

    The split segments are in a folder of the output.
    """

    plan: RestorePlan
    output: Output
    link: Link
    runner: Runner

    def restore(
        self, plans: Sequence[PartitionPlan], partitions: Sequence[RestoredPartition]
    ) -> list[RestoredPartition]:
        """Restore some partitions again; return all partitions."""
        if not plans:
            return list(partitions)
        path = self.output.path
        journal = Journal(path)
        found = {each.partition: each for each in partitions}
        for each in plans:
            journal.reopen(found[each.partition])
            remove_directory(os.path.join(path, each.partition.directory_name))
        budget = shared_budget(self.plan.request.max_decompressed_bytes)
        splitter = SegmentSplitter(os.path.join(path, f"{STAGING}split"), budget)

        def finish(group: Sequence[RestoredPartition]) -> None:
            for each in group:
                splitter.name_originals(each)
            journal.add(group)
            found.update((each.partition, each) for each in group)

        settings = _partition_settings(self.plan, self.output, self.link)
        self.runner(list(map(splitter.split, plans)), settings, finish)
        remove_staging(path)
        return list(found.values())


def _partition_settings(plan: RestorePlan, output: Output, link: Link) -> PartitionSettings:
    request = plan.request
    return PartitionSettings(
        output.path,
        request.config,
        request.salvage,
        link,
        Selection(request.drop_keys) if request.drop_keys else None,
        request.max_decompressed_bytes,
    )


def write_root(plan: RestorePlan, output: str, partitions: Iterable[RestoredPartition]) -> None:
    """Write the checkpoints at the root of an output whose partitions are restored."""
    kept = [each for each in partitions if not each.is_left_out]
    cleaned_to = {each.partition: each.cleaned_to for each in plan.partitions}
    cleaned = {}
    for each in kept:
        offset = cleaned_to[each.partition]
        if offset is not None and each.log_start_offset <= offset <= each.log_end_offset:
            cleaned[each.partition] = offset
    write_checkpoints(
        output,
        {each.partition: each.log_end_offset for each in kept},
        {
            each.partition: each.log_start_offset
            for each in kept
            if each.log_start_offset > each.base_offset
        },
        cleaned,
    )


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """A restore whose checks have passed."""

    request: RestoreRequest
    plan: RestorePlan
    old: OldCluster
    output: Output
    seeds: Sequence[SeedDirectory]
    identity: Identity
    strays: Sequence[RestoredPartition] = ()
    missed: Sequence[RestoredPartition] = ()

    @classmethod
    def prepare(cls, request: RestoreRequest) -> RestoreJob:
        """Check everything; only the output directory is made."""
        request = following_run(request)
        run = BackupRun.of(request)
        dump = read_dumps(request.inputs, request.tiered, topics=request.topics)
        if request.until.time_ms is not None and not request.goes_by_create_time:
            check_times(dump)
        check_offsets(dump, request.until)
        old = read_old_cluster(request, dump)
        request = replace(request, config=old.settings(request.config, dump, request.renames))
        if run is not None:
            request = run.prepare(request, dump, old)
        plan = plan_restore(request, dump, old)
        check_reached(request.until, [each.base for each in plan.partitions])
        refuse_unknown_topics(request, plan)
        strays: list[RestoredPartition] = []
        is_same = request.cluster is ClusterMode.SAME
        if is_same:
            identity = same_cluster_identity(request, dump, old)
            if old.image is not None:
                plan, strays = without_strays(plan, old.image, identity.properties)
        else:
            refuse_shared_ids(plan)
        output = check_output(plan)
        if output.begun is not None:
            plan = as_begun(plan, output.begun.topic_ids, output.begun.until_ms)
        inputs = inputs_of(request, dump)
        seeds = [
            check_seed(
                path, inputs, output.properties if os.path.realpath(path) == output.path else None
            )
            for path in request.seeds
        ]
        if is_same:
            check_same_output(request, dump, output, identity)
        else:
            identity = fresh_cluster_identity(request, dump, output, seeds)
        missed = [] if run is None else run.missing(request, old.image)
        return cls(request, plan, old, output, seeds, identity, strays, missed)

    def run(
        self,
        runner: Runner,
        on_restored: OnRestored,
        *,
        report: OnResult = lambda _: None,
        conclude: OnResult = lambda _: None,
    ) -> RestoreResult:
        """Restore."""
        written = [self.output.path, *(each.path for each in self.seeds)]
        separate = self._metadata_output
        if separate is not None:
            make_directory(separate)
            written.append(separate)
        with DirectoryLock.of_data_directories(written):
            job = self._as_it_is_now()
            result = job.restore(runner, on_restored)
            report(result)
            if result.runbook is not None:
                job.enable_startup()
            conclude(result)
            return result

    @property
    def _metadata_output(self) -> str | None:
        """The directory that gets the metadata log, where it has one of its own."""
        given = self.request.metadata_output
        return None if given is None else os.path.realpath(local_path(given))

    @property
    def _metadata_directory(self) -> str | None:
        """The directory with the metadata log of the cluster; None if it is unknown."""
        if self.request.cluster is ClusterMode.SAME:
            return self._metadata_output or self.output.path
        return self.seeds[0].path if self.seeds else None

    def _as_it_is_now(self) -> RestoreJob:
        """Return the job for the output as it is since the lock is held."""
        output = check_again(self.output, self.plan)
        if self._metadata_output is not None:
            is_begun = output.begun is not None
            refuse_used_metadata(self.plan.dump, self._metadata_output, is_begun=is_begun)
        for seed in self.seeds:
            refuse_used(seed)
        if output.begun is None:
            return replace(self, output=output)
        return replace(
            self,
            output=output,
            plan=as_begun(self.plan, output.begun.topic_ids, output.begun.until_ms),
            identity=replace(
                self.identity, properties=output.properties or self.identity.properties
            ),
        )

    def restore(self, runner: Runner, on_restored: OnRestored) -> RestoreResult:
        """Restore all but what lets a broker start; the output is checked, and its lock held."""
        request, plan, output = self.request, self.plan, self.output
        # A link that is refused has to leave no plan, which would keep other options out.
        link = choose_link(request.link, plan.partitions[0].segments()[0], output.path)
        partitions = restore_logs(
            plan, output, self.identity, link, runner=runner, on_restored=on_restored
        )
        open_producers: Mapping[TopicPartition, Sequence[int]] = {}
        if not any(each.retriable for each in partitions):
            again = RestoredAgain(plan, output, link, runner)
            overflowed = {each.partition for each in partitions if has_overflowed(each)}
            plans = [each for each in plan.partitions if each.partition in overflowed]
            partitions = again.restore(plans, partitions)
            found = TransactionSearch(plan, partitions, output.path, self._only_here()).run()
            partitions = again.restore(found.edited, partitions)
            open_producers = found.open_producers
        if any(each.retriable for each in partitions):
            return RestoreResult(partitions, None, output.path)
        known = {each.partition for each in (*partitions, *self.strays, *self.missed)}
        missing = [
            RestoredPartition(
                each, "", "", code=NOT_IN_DUMP, reason="no dump has this partition; it begins empty"
            )
            for each in self._not_in_dump()
            if each not in known
        ]
        for each in (*self.strays, *self.missed, *missing):
            partitions.append(each)
            on_restored(each)
        partitions.sort(key=lambda each: each.partition)
        beyond_end, not_renamed = self._group_offsets(partitions)
        notes = [
            *self._not_asked_for(partitions),
            *plan.dump.notes,
            *self.old.notes,
            *self._cut_apart(partitions),
            *self._open_at_end(partitions, open_producers),
        ]
        if self.seeds:
            seeding = plan_seeding(
                plan, partitions, self.old, request.topic_configs, self.identity.properties
            )
            notes += seeding.notes
            for seed in self.seeds:
                write_seed(seed, seeding)
        if request.cluster is ClusterMode.SAME:
            copy_metadata(plan.dump, self._metadata_output or output.path)
        write_root(plan, output.path, partitions)
        result = RestoreResult(
            partitions,
            None,
            output.path,
            beyond_end,
            not_renamed,
            request.clamp_groups,
            request.cluster is ClusterMode.SAME and self.old.is_damaged,
        )
        facts = RunbookFacts(
            link,
            self.identity,
            notes,
            request.cluster,
            [each.path for each in self.seeds],
            self.old.groups_of(set(plan.made_ids).difference(request.renames.values())),
            request.renames,
            self.old.run,
            self._metadata_directory,
        )
        return replace(result, runbook=runbook(result, facts))

    def enable_startup(self) -> None:
        """Write what lets a broker start: who it is, and then the marker of a clean shutdown."""
        if self.request.cluster is ClusterMode.SAME and is_separate(self.plan.dump):
            copy_metadata_identity(self.plan.dump, self._metadata_output or self.output.path)
        restore_identity(self.output.path)
        write_marker(self.output.path, self.identity.broker_epoch)

    def _not_asked_for(self, partitions: Iterable[RestoredPartition]) -> Iterator[str]:
        """Yield the parts of the dump that the choices leave out: all else has a row."""
        until = self.request.until
        limited = [each.partition for each in partitions if each.is_limited]
        clamped = [each for each in limited if each in until.clamps]
        if limited and until.is_given:
            yield f"logs that end early, as --until asks for: {len(limited)}"
        elif clamped:
            yield (
                "logs that end before transactions that began or ended while the run was cut: "
                f"{len(clamped)}"
            )
        if self.request.drop_keys:
            yield dropped_text(partitions)
        if self.request.topics is not None:
            yield f"topics that do not match {self.request.topics.pattern!r} were not looked at"
        if skipped := self.plan.dump.skipped:
            yield (
                f"entries that a broker would not load were not restored: {len(skipped)}, the "
                f"first {skipped[0].shown}: {skipped[0].reason}"
            )

    def _cut_apart(self, partitions: Iterable[RestoredPartition]) -> list[str]:
        """Return the compacted logs that the requested ends cut, for people."""
        if not self.request.until.is_given:
            return []
        cleaned_to = {each.partition: each.cleaned_to or 0 for each in self.plan.partitions}
        return cleaned_after(
            {
                each.partition: (cleaned_to[each.partition], each.log_end_offset)
                for each in partitions
                if each.is_limited
            }
        )

    def _open_at_end(
        self,
        partitions: Iterable[RestoredPartition],
        unended: Mapping[TopicPartition, Sequence[int]],
    ) -> list[str]:
        """Return the transactions that are open at truncated ends, or have no coordinator."""
        edited = sum(each.is_edited for each in partitions)
        notes = []
        if edited:
            notes.append(
                "transactions without a marker were ended or dropped in "
                f"{plural(edited, 'partition')}; the report lists the offset of each new marker"
            )
        until, cut = self.request.until, {}
        # With --consistent, coordinators end all of them.
        if until.is_given and not until.is_consistent:
            cut = {each.partition: each.open_producers for each in partitions if each.is_limited}
        if not any((*cut.values(), *unended.values())):
            return notes
        transactions = read_transactions(self.output.path, self._budget())
        return [*notes, *open_transactions(cut, unended, transactions)]

    def _only_here(self) -> Container[TopicPartition] | None:
        """Return the partitions without replicas elsewhere; None if no partition has any."""
        if self.request.cluster is not ClusterMode.SAME:
            return None
        image = self.old.image
        return () if image is None else partitions_only_here(image, self.identity.properties)

    def _group_offsets(
        self, partitions: Sequence[RestoredPartition]
    ) -> tuple[list[GroupOffset], list[GroupOffset]]:
        """Return the offsets that groups committed after the ends of logs, clamped if asked.

        The others are those of renamed topics, under the old names.
        """
        request, output = self.request, self.output.path
        left: list[GroupOffset] = []
        not_renamed: list[GroupOffset] = []
        empty = self._begin_empty(partitions)
        is_cut = bool(empty) or any(each.is_limited or each.lost for each in partitions)
        if is_cut or request.clamp_groups or request.renames:
            ends = ends_of(partitions, empty)
            groups = read_offsets(output, partitions, self._budget())
            not_renamed = offsets_of_renamed(groups, request.renames, ends)
            groups = offsets_beyond(groups, ends)
            if request.clamp_groups:
                left = clamp_offsets(output, ends, groups, request.config)
            elif is_cut:
                left = [one for each in groups for one in each.beyond_end(ends, "")]
        return [*(one for each in partitions for one in each.clamped), *left], not_renamed

    def _budget(self) -> DecompressionBudget:
        return shared_budget(self.request.max_decompressed_bytes)

    def _not_in_dump(self) -> Sequence[TopicPartition]:
        """Return the partitions that the cluster has in the output, and perhaps no dump."""
        image = self.old.image
        if self.seeds:
            return partitions_not_in_dump(self.plan, self.old)
        if self.request.cluster is ClusterMode.SAME and image is not None:
            return partitions_placed_here(image, self.identity.properties)
        return []

    def _begin_empty(self, partitions: Sequence[RestoredPartition]) -> list[TopicPartition]:
        """Return the partitions that are left out, and that the cluster is sure to have empty."""
        left_out = [each.partition for each in partitions if each.is_left_out]
        image = self.old.image
        if self.seeds:
            seeded = {each.partition.topic for each in self.plan.partitions}
            return [each for each in left_out if each.topic in seeded]
        if self.request.cluster is ClusterMode.SAME and image is not None:
            only_here = partitions_only_here(image, self.identity.properties)
            return [each for each in left_out if each in only_here]
        # Who makes the topics decides.
        return []

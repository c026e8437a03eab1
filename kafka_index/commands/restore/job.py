"""A restore as a whole: all checks first, then the partitions, then the root and the cluster.

The output is checked before the first write, and again when it is locked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from kafka_index.commands.restore.cluster import (
    Identity,
    SourceCluster,
    check_topic_configs,
    is_separate,
    partitions_only_here,
    partitions_placed_here,
    read_transactions,
    same_cluster_identity,
)
from kafka_index.commands.restore.group_offsets import restore_group_offsets
from kafka_index.commands.restore.log_ends import (
    BackupSource,
    check_reached,
    check_until,
    following_backup,
)
from kafka_index.commands.restore.output import (
    Journal,
    RestoreState,
    RestoreTarget,
    check_again,
    check_output,
    check_same_output,
    choose_link,
    copy_metadata,
    copy_metadata_identity,
    disable_startup,
    last_files,
    make_directory,
    write_root,
)
from kafka_index.commands.restore.partition import PartitionSettings, Runner, restore_on
from kafka_index.commands.restore.plan import (
    PartitionPlan,
    RestorePlan,
    as_begun,
    plan_restore,
    read_source_cluster,
    refuse_shared_ids,
    without_strays,
)
from kafka_index.commands.restore.request import ClusterMode, Link, RestoreRequest
from kafka_index.commands.restore.result import (
    NO_LOGS,
    NOT_IN_DUMP,
    RestoredPartition,
    RestoreResult,
    RunbookFacts,
    dropped_text,
    runbook,
)
from kafka_index.commands.restore.seed import (
    SeedDirectory,
    check_seed,
    fresh_cluster_identity,
    partitions_not_in_dump,
    plan_seeding,
    refuse_used,
    write_seed,
)
from kafka_index.commands.restore.transaction_markers import find_missing_markers
from kafka_index.core.cluster.replicas import read_dumps
from kafka_index.core.errors import CorruptObjectError, InputError, plural
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    TopicPartition,
    segment_file_name,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.inputs import Skipped, reading_inputs, skipped_texts, unread_texts
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.filter.selection import Selection, records_by_line
from kafka_index.core.log.scan.file_records import open_log
from kafka_index.core.log.scan.log_offsets import SegmentSpan, split_segment
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.output.output import Output, remove_directory
from kafka_index.core.parameters import KafkaSettings, topics_text
from kafka_index.core.records.batch_table import OFFSET_OVERFLOW
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import Decompressor

OnRestored = Callable[[RestoredPartition], None]
_COPY_BYTES = 16 << 20


def restore(
    request: RestoreRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
) -> RestoreResult:
    """Restore the dumps of a request; a partition that fails is a row of the result.

    The report is complete before a broker can start on the output. Raises `KafkaIndexError` if the
    restore is rejected, or the output cannot be written.
    """
    progress = listener or SILENT
    with reading_inputs(follow_links=request.follow_links) as unread:
        job = RestoreJob.prepare(request)
        return job.run(restore_on(engine, progress), progress, report, unread)


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """A restore whose checks have passed.

    `strays` are partitions of the dump that the broker would not serve, and `not_in_backup` those
    that a backup lacks.
    """

    plan: RestorePlan
    source: SourceCluster
    output: RestoreTarget
    seeds: Sequence[SeedDirectory]
    identity: Identity
    strays: Sequence[RestoredPartition] = ()
    not_in_backup: Sequence[RestoredPartition] = ()

    @classmethod
    def prepare(cls, request: RestoreRequest) -> RestoreJob:
        """Check the request, the input and the output; create only the output directory."""
        request = following_backup(request)
        backup = BackupSource.of(request)
        dump = read_dumps(request.inputs, request.tiered, topics=request.topics)
        check_until(dump, request)
        source = read_source_cluster(request, dump)
        settings = source.settings(request.log_config, dump, request.renames)
        request = replace(request, config=KafkaSettings(settings, request.config.properties))
        if backup is not None:
            request = backup.prepare(request, dump, source)
        plan = plan_restore(request, dump, source)
        check_reached(request.until, [each.base for each in plan.partitions])
        _check_topic_configs(plan)
        strays: list[RestoredPartition] = []
        is_same = request.cluster is ClusterMode.SAME
        if is_same:
            identity = same_cluster_identity(request, dump, source)
            if source.image is not None:
                plan, strays = without_strays(plan, source.image, identity.properties)
        else:
            refuse_shared_ids(plan)
        output = check_output(plan)
        if output.begun is not None:
            plan = as_begun(plan, output.begun.topic_ids, output.begun.until_ms)
        inputs = plan.inputs
        seeds = [
            check_seed(
                path, inputs, output.properties if os.path.realpath(path) == output.path else None
            )
            for path in request.seeds
        ]
        if is_same:
            check_same_output(plan, output, identity)
        else:
            identity = fresh_cluster_identity(request, dump, output, seeds)
        missing = [] if backup is None else backup.missing(request, source.image)
        return cls(plan, source, output, seeds, identity, strays, missing)

    @property
    def request(self) -> RestoreRequest:
        """The request, with the settings of the source cluster."""
        return self.plan.request

    @property
    def _is_same_cluster(self) -> bool:
        return self.request.cluster is ClusterMode.SAME

    @property
    def _metadata_directory(self) -> str | None:
        """The directory with the metadata log of the cluster; None if it is unknown."""
        if self._is_same_cluster:
            return self.plan.metadata_output or self.output.path
        return self.seeds[0].path if self.seeds else None

    def run(
        self,
        runner: Runner,
        listener: Listener = SILENT,
        report: ReportSink | None = None,
        unread: Mapping[str, Skipped] | None = None,
    ) -> RestoreResult:
        """Restore the dumps while the output is locked, and write the report.

        `unread` gets the files of the input that cannot be read during the restore.
        """
        sizes = {each.partition: each.size_bytes for each in self.plan.partitions}
        listener.on_plan(len(sizes), sum(sizes.values()), ("partition", "partitions"))

        def on_restored(restored: RestoredPartition) -> None:
            listener.on_done(1, sizes.get(restored.partition, 0))

        others = [each.path for each in self.seeds]
        separate = self.plan.metadata_output
        if separate is not None:
            make_directory(separate)
            others.append(separate)
        with Output.for_data_directory(self.output.path, extra_directories=others) as locked:
            job = self._checked_again()
            result = job.restore(locked, runner, on_restored, unread or {})
            if report is not None:
                job.write_report(result, report)
            if result.runbook is not None:
                job.enable_startup()
            return result

    def _checked_again(self) -> RestoreJob:
        """Return the job after a second check of the output, whose lock is held."""
        output = check_again(self.output, self.plan)
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

    def restore(
        self,
        locked: Output,
        runner: Runner,
        on_restored: OnRestored,
        unread: Mapping[str, Skipped],
    ) -> RestoreResult:
        """Restore everything except the files that let a broker start."""
        plan, output = self.plan, self.output
        # Checked before the state file is written, which would reject another --link.
        link = choose_link(
            self.request.link, plan.partitions[0].segments()[0], locked.make_staging()
        )
        partitions = self.restore_partitions(locked, link, runner, on_restored)
        open_producers: Mapping[TopicPartition, Sequence[int]] = {}
        if not any(each.retriable for each in partitions):
            overflowed = {each.partition for each in partitions if _has_overflowed(each)}
            plans = [each for each in plan.partitions if each.partition in overflowed]
            partitions = self.restore_again(plans, partitions, locked, link, runner)
            edits = find_missing_markers(plan, partitions, output.path, self._only_here())
            partitions = self.restore_again(edits.plans, partitions, locked, link, runner)
            open_producers = edits.open_producers
        if any(each.retriable for each in partitions):
            return self._result(partitions, link, unread)
        for each in (*self.strays, *self._missing(partitions)):
            partitions.append(each)
            on_restored(each)
        partitions.sort(key=lambda each: each.partition)
        beyond_end, not_renamed = restore_group_offsets(
            self.request, partitions, self._empty_partitions(partitions), locked
        )
        notes = [
            *self._excluded(partitions),
            *plan.dump.notes,
            *self.source.notes,
            *self._cleaned_after_end(partitions),
            *self._open_transactions(partitions, open_producers),
        ]
        if self.seeds:
            seeding = plan_seeding(plan, partitions, self.source, self.identity.properties)
            notes += seeding.notes
            for seed in self.seeds:
                write_seed(seed, seeding)
        if self._is_same_cluster:
            copy_metadata(plan.dump, plan.metadata_output or output.path)
        write_root(plan, output.path, partitions)
        result = replace(
            self._result(partitions, link, unread),
            beyond_end=beyond_end,
            not_renamed=not_renamed,
            lacks_metadata=self._is_same_cluster and self.source.is_damaged,
            next_command=self._prediction(),
        )
        facts = RunbookFacts(
            link,
            self.identity.properties,
            notes,
            self.request.cluster,
            [each.path for each in self.seeds],
            self.source.groups_of(set(plan.made_ids).difference(self.request.renames.values())),
            self.request.renames,
            self.source.backup,
            self._metadata_directory,
        )
        return replace(result, runbook=runbook(result, facts))

    def restore_partitions(
        self, locked: Output, link: Link, runner: Runner, on_restored: OnRestored
    ) -> list[RestoredPartition]:
        """Restore the partitions of the plan; keep those that an earlier run has finished.

        At the root of the output, only the state file, the journal and hidden files are written.
        """
        plan, output = self.plan, self.output
        journal = Journal(output.path)
        finished = {} if output.begun is None else journal.finished()
        if output.begun is None:
            until_ms = plan.request.until.time_ms
            state = RestoreState(
                inputs=plan.digest, topic_ids=dict(plan.made_ids), until_ms=until_ms
            )
            state.begin(output.path)
        # An earlier run may have been killed after its last step.
        disable_startup(output.path, self.identity.properties, self.identity.broker_epoch)
        unfinished = [each for each in plan.partitions if each.partition not in finished]
        for each in unfinished:
            remove_directory(os.path.join(output.path, each.partition.directory_name))
        restored: list[RestoredPartition] = []

        def add(group: Iterable[RestoredPartition]) -> None:
            for each in group:
                restored.append(each)
                on_restored(each)

        def finish(group: Sequence[RestoredPartition]) -> None:
            journal.add(group)
            add(group)

        add(finished.values())
        if unfinished:
            runner(unfinished, self._partition_settings(locked, link), finish)
        add(
            RestoredPartition(
                partition,
                directory,
                "",
                code=NO_LOGS,
                reason=f"{directory}: the directory has no log",
            )
            for partition, directory in plan.without_logs.items()
        )
        locked.remove_staging()
        return sorted(restored, key=lambda each: each.partition)

    def restore_again(
        self,
        plans: Sequence[PartitionPlan],
        partitions: Sequence[RestoredPartition],
        locked: Output,
        link: Link,
        runner: Runner,
    ) -> list[RestoredPartition]:
        """Restore partitions with segments to split or transactions to edit; return all partitions.

        The split segments are in the staging directory.
        """
        if not plans:
            return list(partitions)
        journal = Journal(locked.root)
        found = {each.partition: each for each in partitions}
        for plan in plans:
            journal.reopen(found[plan.partition])
            remove_directory(os.path.join(locked.root, plan.partition.directory_name))
        budget = shared_budget(self.request.max_decompressed_bytes)
        splitter = SegmentSplitter(os.path.join(locked.make_staging(), "split"), budget)

        def finish(group: Sequence[RestoredPartition]) -> None:
            for each in group:
                splitter.name_originals(each)
            journal.add(group)
            found.update((each.partition, each) for each in group)

        settings = self._partition_settings(locked, link)
        runner(list(map(splitter.split, plans)), settings, finish)
        locked.remove_staging()
        return list(found.values())

    def _partition_settings(self, locked: Output, link: Link) -> PartitionSettings:
        request = self.request
        return PartitionSettings(
            locked.root,
            locked.staging,
            request.log_config,
            request.salvage,
            link,
            Selection(request.drop_keys) if request.drop_keys else None,
            request.max_decompressed_bytes,
        )

    def _missing(self, partitions: Iterable[RestoredPartition]) -> list[RestoredPartition]:
        """Return the partitions that the backup lacks, and that the cluster places in the output.

        The dump has none of them.
        """
        image = self.source.image
        placed: Sequence[TopicPartition] = ()
        if self.seeds:
            placed = partitions_not_in_dump(self.plan, self.source)
        elif self._is_same_cluster and image is not None:
            placed = partitions_placed_here(image, self.identity.properties)
        known = {each.partition for each in (*partitions, *self.strays, *self.not_in_backup)}
        reason = "no dump has this partition; it starts empty"
        return [
            *self.not_in_backup,
            *(
                RestoredPartition(each, "", "", code=NOT_IN_DUMP, reason=reason)
                for each in placed
                if each not in known
            ),
        ]

    def _only_here(self) -> Container[TopicPartition] | None:
        """Return the partitions without replicas elsewhere; None if no partition has any."""
        if not self._is_same_cluster:
            return None
        image = self.source.image
        return () if image is None else partitions_only_here(image, self.identity.properties)

    def _empty_partitions(self, partitions: Iterable[RestoredPartition]) -> list[TopicPartition]:
        """Return the skipped partitions that start empty in the new cluster."""
        skipped = [each.partition for each in partitions if each.is_left_out]
        if self.seeds:
            seeded = {each.partition.topic for each in self.plan.partitions}
            return [each for each in skipped if each.topic in seeded]
        # In a fresh cluster without seeds, the partitions depend on whoever creates the topics.
        only_here = self._only_here() or ()
        return [each for each in skipped if each in only_here]

    def _result(
        self, partitions: Sequence[RestoredPartition], link: Link, unread: Mapping[str, Skipped]
    ) -> RestoreResult:
        """Return the result without a runbook."""
        request = self.request
        dropped = [each.dropped_by_key for each in partitions if not each.is_left_out]
        return RestoreResult(
            partitions,
            None,
            self.output.path,
            clamps=request.clamp_groups,
            until=request.until.end_text,
            of_topics=topics_text(request.topics),
            records_by_line=records_by_line(request.drop_keys, dropped),
            has_hard_links=link is Link.HARD,
            skipped=skipped_texts(self.plan.dump.skipped),
            unread=(*unread_texts(unread), *(one for each in partitions for one in each.unread)),
        )

    def _prediction(self) -> str:
        """Return the command that predicts the start of a broker on the output."""
        metadata = self._metadata_directory
        more = "" if metadata is None else f" --metadata {metadata}"
        return f"kafka-index predict --input {self.output.path}{more}"

    def write_report(self, result: RestoreResult, report: ReportSink) -> None:
        """Write the report, and the runbook next to it."""
        plans = self.plan.partitions
        report.add_segments(PartitionSegments.from_files(each.segments()).rows() for each in plans)
        report.write_table(result.to_arrow())
        runbook = {} if result.runbook is None else {".runbook.txt": result.runbook}
        report.publish(result.conclusion, runbook)

    def enable_startup(self) -> None:
        """Publish the identity and, as the last file, the clean shutdown file."""
        if self._is_same_cluster and is_separate(self.plan.dump):
            copy_metadata_identity(self.plan.dump, self.plan.metadata_output or self.output.path)
        last_files(self.output.path).publish()

    def _excluded(self, partitions: Iterable[RestoredPartition]) -> Iterator[str]:
        """Yield notes of the records that the request excludes. Other losses have rows."""
        until = self.request.until
        limited = [each.partition for each in partitions if each.is_limited]
        clamped = [each for each in limited if each in until.clamps]
        if limited and until.is_given:
            yield f"logs that are truncated by --until: {len(limited)}"
        elif clamped:
            yield (
                "logs that end before transactions that began or ended around the cutoff: "
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

    def _cleaned_after_end(self, partitions: Iterable[RestoredPartition]) -> Iterator[str]:
        """Yield notes of compacted logs that end before an offset that was cleaned."""
        if not self.request.until.is_given:
            return
        cleaned_to = {each.partition: each.cleaned_to or 0 for each in self.plan.partitions}
        for each in partitions:
            if each.is_limited and cleaned_to[each.partition] > each.log_end_offset:
                yield (
                    f"{each.partition.directory_name} ends at offset {each.log_end_offset}, and "
                    f"was cleaned up to offset {cleaned_to[each.partition]}: records before its "
                    "end are missing if their keys were written again in between"
                )

    def _open_transactions(
        self,
        partitions: Iterable[RestoredPartition],
        without_coordinator: Mapping[TopicPartition, Sequence[int]],
    ) -> Iterator[str]:
        """Yield notes about edited transactions, and about transactions that stay open.

        `without_coordinator` has the producer IDs of partitions in which perhaps no coordinator
        ends their transactions.
        """
        edited = sum(each.is_edited for each in partitions)
        if edited:
            yield (
                "transactions with a missing marker were ended or dropped in "
                f"{plural(edited, 'partition')}; the report lists the offset of each new marker"
            )
        until, limited = self.request.until, {}
        # With --consistent, coordinators end all of them.
        if until.is_given and not until.is_consistent:
            limited = {
                each.partition: each.open_producers for each in partitions if each.is_limited
            }
        if not any((*limited.values(), *without_coordinator.values())):
            return
        budget = shared_budget(self.request.max_decompressed_bytes)
        transactions = read_transactions(self.output.path, budget)
        names = {one.producer_id: one.transactional_id for one in transactions}
        unknown = (
            "its outcome is unknown, and possibly no coordinator ends it: read_committed consumers "
            "get no records from its first offset on, until kafka-transactions.sh abort aborts it"
        )
        for open_producers, consequence in (
            (limited, "it may be committed in other partitions"),
            (without_coordinator, unknown),
        ):
            directories: dict[int, list[str]] = {}
            for partition, producers in sorted(open_producers.items()):
                for producer_id in producers:
                    directories.setdefault(producer_id, []).append(partition.directory_name)
            for producer_id, at in sorted(directories.items()):
                name = names.get(producer_id, f"of producer {producer_id}")
                yield f"transaction {name} is open at the end of {', '.join(at)}; {consequence}"


def _check_topic_configs(plan: RestorePlan) -> None:
    """Reject settings of topics that are not restored, or with which no broker starts."""
    topics = {each.partition.topic for each in plan.partitions}
    for topic, configs in plan.request.topic_configs.items():
        if topic not in topics:
            raise InputError(
                "--topic-config has a topic that is not restored",
                found=topic,
                hint="after --rename, give the new name",
            )
        check_topic_configs(configs)


def _has_overflowed(restored: RestoredPartition) -> bool:
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
                each
                for segment in plan.base.segments.files()
                for each in self._split_and_copy(segment)
            ]
        except CorruptObjectError:
            # The offsets are too far apart because an object of a backup is damaged there.
            return plan
        if not any(each.log_path in self.originals for each in segments):
            return plan
        return replace(
            plan, base=replace(plan.base, segments=PartitionSegments.from_files(segments))
        )

    def _split_and_copy(self, segment: SegmentFile) -> Iterator[SegmentFile]:
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
                _copy_span(segment, span, path)
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


def _copy_span(segment: SegmentFile, span: SegmentSpan, path: str) -> None:
    with closing(open_log(segment.log_path, segment)) as log, open(path, "wb") as file:
        for at in range(span.start_bytes, span.end_bytes, _COPY_BYTES):
            size = min(_COPY_BYTES, span.end_bytes - at)
            file.write(log.read_at(at, size).data)

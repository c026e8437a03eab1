"""The steps of a restore: checks, partitions, files in the root directory, and cluster metadata.

The output is checked before the first write, and again after the output is locked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter

from kafka_index.commands.restore.cluster import (
    Identity,
    SourceCluster,
    assigned_partitions,
    check_topic_configs,
    has_separate_metadata_log,
    read_transactions,
    same_cluster_identity,
    single_replica_partitions,
)
from kafka_index.commands.restore.group_offsets import restore_group_offsets
from kafka_index.commands.restore.log_ends import (
    BackupSource,
    check_until,
    check_until_reaches_records,
    select_backup,
)
from kafka_index.commands.restore.output import (
    Journal,
    RestoreState,
    RestoreTarget,
    check_output,
    check_same_output,
    choose_link,
    copy_metadata,
    copy_metadata_identity,
    disable_startup,
    last_files,
    make_directory,
    recheck_output,
    write_root,
)
from kafka_index.commands.restore.partition import PartitionSettings, Runner, engine_runner
from kafka_index.commands.restore.plan import (
    PartitionPlan,
    RestorePlan,
    plan_restore,
    read_source_cluster,
    refuse_shared_ids,
    resume_plan,
    separate_strays,
)
from kafka_index.commands.restore.request import ClusterMode, Link, RestoreRequest
from kafka_index.commands.restore.result import (
    NO_LOGS,
    NOT_IN_DUMP,
    RestoredPartition,
    RestoreResult,
    RunbookFacts,
    format_dropped,
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
from kafka_index.core.parameters import KafkaSettings, format_topics
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
    """Restore the dumps of a request. A partition that fails is reported as skipped.

    The report is complete before a broker can start on the output. Raises `KafkaIndexError` if the
    restore is rejected, or the output cannot be written.
    """
    progress = listener or SILENT
    with reading_inputs(follow_links=request.follow_links) as unread:
        job = RestoreJob.prepare(request)
        return job.run(engine_runner(engine, progress), progress, report, unread)


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """A restore whose checks have passed.

    `strays` are partitions of the dump that the broker would not serve. `not_in_backup` are
    partitions in the cluster metadata of a backup whose logs are not in the backup.
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
        request = select_backup(request)
        backup = BackupSource.from_request(request)
        dump = read_dumps(request.inputs, request.tiered, topics=request.topics)
        check_until(dump, request)
        source = read_source_cluster(request, dump)
        settings = source.settings(request.log_config, dump, request.renames)
        request = replace(request, config=KafkaSettings(settings, request.config.properties))
        if backup is not None:
            request = backup.prepare(request, dump, source)
        plan = plan_restore(request, dump, source)
        check_until_reaches_records(
            request.until, [partition_plan.base for partition_plan in plan.partitions]
        )
        _check_topic_configs(plan)
        strays: list[RestoredPartition] = []
        is_same = request.cluster is ClusterMode.SAME
        if is_same:
            identity = same_cluster_identity(request, dump, source)
            if source.image is not None:
                plan, strays = separate_strays(plan, source.image, identity.properties)
        else:
            refuse_shared_ids(plan)
        output = check_output(plan)
        if output.earlier_state is not None:
            plan = resume_plan(plan, output.earlier_state.topic_ids, output.earlier_state.until_ms)
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
        missing_partitions = (
            [] if backup is None else backup.missing_partitions(request, source.image)
        )
        return cls(plan, source, output, seeds, identity, strays, missing_partitions)

    @property
    def request(self) -> RestoreRequest:
        """The request, with the settings of the source cluster."""
        return self.plan.request

    @property
    def _is_same_cluster(self) -> bool:
        return self.request.cluster is ClusterMode.SAME

    @property
    def _metadata_directory(self) -> str | None:
        """The directory with the metadata log of the cluster; None if unknown."""
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

        During the restore, input files that cannot be read are added to `unread`.
        """
        sizes = {
            partition_plan.partition: partition_plan.size_bytes
            for partition_plan in self.plan.partitions
        }
        listener.on_plan(len(sizes), sum(sizes.values()), ("partition", "partitions"))

        def on_restored(restored: RestoredPartition) -> None:
            listener.on_done(1, sizes.get(restored.partition, 0))

        extra_directories = [seed.path for seed in self.seeds]
        separate = self.plan.metadata_output
        if separate is not None:
            make_directory(separate)
            extra_directories.append(separate)
        with Output.for_data_directory(
            self.output.path, extra_directories=extra_directories
        ) as locked:
            job = self._recheck_output()
            result = job.restore(locked, runner, on_restored, unread or {})
            if report is not None:
                job.write_report(result, report)
            if result.runbook is not None:
                job.enable_startup()
            return result

    def _recheck_output(self) -> RestoreJob:
        """Check the output again after locking; return a job that continues an earlier run."""
        output = recheck_output(self.output, self.plan)
        for seed in self.seeds:
            refuse_used(seed)
        if output.earlier_state is None:
            return replace(self, output=output)
        return replace(
            self,
            output=output,
            plan=resume_plan(
                self.plan, output.earlier_state.topic_ids, output.earlier_state.until_ms
            ),
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
        """Restore all files; ``meta.properties`` and the clean shutdown file stay hidden."""
        plan, output = self.plan, self.output
        # Try --link before the state file is written: afterwards, a run with another --link could
        # be rejected.
        link = choose_link(
            self.request.link, plan.partitions[0].segments()[0], locked.make_staging()
        )
        partitions = self.restore_partitions(locked, link, runner, on_restored)
        open_producers: Mapping[TopicPartition, Sequence[int]] = {}
        if not any(restored.retriable for restored in partitions):
            overflowed_partitions = {
                restored.partition for restored in partitions if _has_overflowed(restored)
            }
            plans = [
                partition_plan
                for partition_plan in plan.partitions
                if partition_plan.partition in overflowed_partitions
            ]
            partitions = self.restore_again(plans, partitions, locked, link, runner)
            edits = find_missing_markers(
                plan, partitions, output.path, self._single_replica_partitions()
            )
            partitions = self.restore_again(edits.plans, partitions, locked, link, runner)
            open_producers = edits.open_producers
        if any(restored.retriable for restored in partitions):
            return self._partial_result(partitions, link, unread)
        for restored in (*self.strays, *self._missing_partitions(partitions)):
            partitions.append(restored)
            on_restored(restored)
        partitions.sort(key=attrgetter("partition"))
        beyond_end, not_renamed = restore_group_offsets(
            self.request, partitions, self._empty_partitions(partitions), locked
        )
        notes = [
            *self._exclusion_notes(partitions),
            *plan.dump.notes,
            *self.source.notes,
            *self._cleaning_notes(partitions),
            *self._transaction_notes(partitions, open_producers),
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
            self._partial_result(partitions, link, unread),
            beyond_end=beyond_end,
            not_renamed=not_renamed,
            lacks_metadata=self._is_same_cluster and self.source.is_damaged,
            next_command=self._predict_command(),
        )
        facts = RunbookFacts(
            link,
            self.identity.properties,
            notes,
            self.request.cluster,
            [seed.path for seed in self.seeds],
            self.source.groups_by_topic(
                set(plan.new_ids).difference(self.request.renames.values())
            ),
            self.request.renames,
            self.source.backup,
            self._metadata_directory,
        )
        return replace(result, runbook=runbook(result, facts))

    def restore_partitions(
        self, locked: Output, link: Link, runner: Runner, on_restored: OnRestored
    ) -> list[RestoredPartition]:
        """Restore the partitions that no earlier run has finished; return all partitions.

        In the root directory, only the state file, the journal and hidden files are written.
        """
        plan, output = self.plan, self.output
        journal = Journal(output.path)
        finished_partitions = {} if output.earlier_state is None else journal.finished()
        if output.earlier_state is None:
            until_ms = plan.request.until.time_ms
            state = RestoreState(
                inputs=plan.digest, topic_ids=dict(plan.new_ids), until_ms=until_ms
            )
            state.begin(output.path)
        # An earlier run may have published these files before it was killed: hide them again.
        disable_startup(output.path, self.identity.properties, self.identity.broker_epoch)
        unfinished_plans = [
            partition_plan
            for partition_plan in plan.partitions
            if partition_plan.partition not in finished_partitions
        ]
        for partition_plan in unfinished_plans:
            remove_directory(os.path.join(output.path, partition_plan.partition.directory_name))
        restored: list[RestoredPartition] = []

        def add(group: Iterable[RestoredPartition]) -> None:
            for restored_partition in group:
                restored.append(restored_partition)
                on_restored(restored_partition)

        def finish(group: Sequence[RestoredPartition]) -> None:
            journal.add(group)
            add(group)

        add(finished_partitions.values())
        if unfinished_plans:
            runner(unfinished_plans, self._partition_settings(locked, link), finish)
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
        return sorted(restored, key=attrgetter("partition"))

    def restore_again(
        self,
        plans: Sequence[PartitionPlan],
        partitions: Sequence[RestoredPartition],
        locked: Output,
        link: Link,
        runner: Runner,
    ) -> list[RestoredPartition]:
        """Restore `plans` again, with split segments or edited transactions; return all partitions.

        The split segments are in the staging directory.
        """
        if not plans:
            return list(partitions)
        journal = Journal(locked.root)
        restored_partitions = {restored.partition: restored for restored in partitions}
        for plan in plans:
            journal.reopen(restored_partitions[plan.partition])
            remove_directory(os.path.join(locked.root, plan.partition.directory_name))
        budget = shared_budget(self.request.max_decompressed_bytes)
        splitter = SegmentSplitter(os.path.join(locked.make_staging(), "split"), budget)

        def finish(group: Sequence[RestoredPartition]) -> None:
            for restored in group:
                splitter.name_originals(restored)
            journal.add(group)
            restored_partitions.update((restored.partition, restored) for restored in group)

        settings = self._partition_settings(locked, link)
        runner(list(map(splitter.split, plans)), settings, finish)
        locked.remove_staging()
        return list(restored_partitions.values())

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

    def _missing_partitions(
        self, partitions: Iterable[RestoredPartition]
    ) -> list[RestoredPartition]:
        """Return the partitions that the cluster expects in the output, but no input contains."""
        image = self.source.image
        expected_partitions: Sequence[TopicPartition] = ()
        if self.seeds:
            expected_partitions = partitions_not_in_dump(self.plan, self.source)
        elif self._is_same_cluster and image is not None:
            expected_partitions = assigned_partitions(image, self.identity.properties)
        known_partitions = {
            restored.partition for restored in (*partitions, *self.strays, *self.not_in_backup)
        }
        reason = "no dump contains the partition: the partition starts empty"
        return [
            *self.not_in_backup,
            *(
                RestoredPartition(partition, "", "", code=NOT_IN_DUMP, reason=reason)
                for partition in expected_partitions
                if partition not in known_partitions
            ),
        ]

    def _single_replica_partitions(self) -> Container[TopicPartition] | None:
        """Return the single-replica partitions; None if each partition has one replica."""
        if not self._is_same_cluster:
            return None
        image = self.source.image
        return () if image is None else single_replica_partitions(image, self.identity.properties)

    def _empty_partitions(self, partitions: Iterable[RestoredPartition]) -> list[TopicPartition]:
        """Return the skipped partitions that start empty in the new cluster."""
        skipped_partitions = [restored.partition for restored in partitions if restored.is_skipped]
        if self.seeds:
            seeded_topics = {
                partition_plan.partition.topic for partition_plan in self.plan.partitions
            }
            return [
                partition for partition in skipped_partitions if partition.topic in seeded_topics
            ]
        # In a fresh cluster without seeds, the number of partitions is unknown.
        single_replicas = self._single_replica_partitions() or ()
        return [partition for partition in skipped_partitions if partition in single_replicas]

    def _partial_result(
        self, partitions: Sequence[RestoredPartition], link: Link, unread: Mapping[str, Skipped]
    ) -> RestoreResult:
        """Return the result without a runbook."""
        request = self.request
        dropped_by_key = [
            restored.dropped_by_key for restored in partitions if not restored.is_skipped
        ]
        return RestoreResult(
            partitions,
            None,
            self.output.path,
            clamps=request.clamp_groups,
            until=request.until.end_text,
            of_topics=format_topics(request.topics),
            records_by_line=records_by_line(request.drop_keys, dropped_by_key),
            has_hard_links=link is Link.HARD,
            skipped=skipped_texts(self.plan.dump.skipped),
            unread=(
                *unread_texts(unread),
                *(text for restored in partitions for text in restored.unread),
            ),
        )

    def _predict_command(self) -> str:
        """Return the command that predicts the start of a broker on the output."""
        metadata = self._metadata_directory
        metadata_option = "" if metadata is None else f" --metadata {metadata}"
        return f"kafka-index predict --input {self.output.path}{metadata_option}"

    def write_report(self, result: RestoreResult, report: ReportSink) -> None:
        """Write the report, and the runbook next to it."""
        plans = self.plan.partitions
        report.add_segments(
            PartitionSegments.from_files(partition_plan.segments()).rows()
            for partition_plan in plans
        )
        report.write_table(result.to_arrow())
        runbook = {} if result.runbook is None else {".runbook.txt": result.runbook}
        report.publish(result.conclusion, runbook)

    def enable_startup(self) -> None:
        """Publish the identity and, as the last file, the clean shutdown file."""
        if self._is_same_cluster and has_separate_metadata_log(self.plan.dump):
            copy_metadata_identity(self.plan.dump, self.plan.metadata_output or self.output.path)
        last_files(self.output.path).publish()

    def _exclusion_notes(self, partitions: Iterable[RestoredPartition]) -> Iterator[str]:
        """Yield notes about the records that the request excludes."""
        until = self.request.until
        truncated_logs = [restored.partition for restored in partitions if restored.is_limited]
        shortened_logs = [
            restored for restored in truncated_logs if restored in until.transaction_ends
        ]
        if truncated_logs and until.is_requested:
            yield f"logs truncated by --until: {len(truncated_logs)}"
        elif shortened_logs:
            yield (
                "logs truncated before a transaction that began or ended around the cutoff: "
                f"{len(shortened_logs)}"
            )
        if self.request.drop_keys:
            yield format_dropped(partitions)
        if self.request.topics is not None:
            yield f"topics that do not match {self.request.topics.pattern!r} were not read"
        if skipped := self.plan.dump.skipped:
            yield (
                f"entries of the input that a broker does not load: {len(skipped)} (first entry: "
                f"{skipped[0].path_with_target}: {skipped[0].reason})"
            )

    def _cleaning_notes(self, partitions: Iterable[RestoredPartition]) -> Iterator[str]:
        """Yield notes about compacted logs that are truncated before the cleaner offset."""
        if not self.request.until.is_requested:
            return
        cleaned_to = {
            partition_plan.partition: partition_plan.cleaned_to or 0
            for partition_plan in self.plan.partitions
        }
        for restored in partitions:
            if restored.is_limited and cleaned_to[restored.partition] > restored.log_end_offset:
                yield (
                    f"{restored.partition.directory_name} is truncated at offset "
                    f"{restored.log_end_offset}, but was compacted up to offset "
                    f"{cleaned_to[restored.partition]}. Records whose key was written again "
                    "between these offsets are missing"
                )

    def _transaction_notes(
        self,
        partitions: Iterable[RestoredPartition],
        uncoordinated_producers: Mapping[TopicPartition, Sequence[int]],
    ) -> Iterator[str]:
        """Yield notes about edited transactions, and about transactions that stay open.

        `uncoordinated_producers` has, by partition, the IDs of producers with an open transaction
        that possibly no coordinator ends.
        """
        edited_count = sum(restored.is_edited for restored in partitions)
        if edited_count:
            yield (
                "transactions with a missing marker were ended or dropped in "
                f"{plural(edited_count, 'partition')} (the report lists the offset of each new "
                "marker)"
            )
        until, producers_of_truncated = self.request.until, {}
        # With --consistent, coordinators end all open transactions.
        if until.is_requested and not until.is_consistent:
            producers_of_truncated = {
                restored.partition: restored.open_producers
                for restored in partitions
                if restored.is_limited
            }
        if not any((*producers_of_truncated.values(), *uncoordinated_producers.values())):
            return
        budget = shared_budget(self.request.max_decompressed_bytes)
        transactions = read_transactions(self.output.path, budget)
        names = {
            transaction.producer_id: transaction.transactional_id for transaction in transactions
        }
        unknown = (
            "possibly no coordinator ends the transaction. read_committed consumers then receive "
            "no later records until kafka-transactions.sh abort is run"
        )
        for open_producers, consequence in (
            (producers_of_truncated, "the transaction may be committed in other partitions"),
            (uncoordinated_producers, unknown),
        ):
            directories: dict[int, list[str]] = {}
            for partition, producers in sorted(open_producers.items()):
                for producer_id in producers:
                    directories.setdefault(producer_id, []).append(partition.directory_name)
            for producer_id, directory_names in sorted(directories.items()):
                name = names.get(producer_id, f"of producer {producer_id}")
                logs = ", ".join(directory_names)
                yield f"transaction {name} is open at the end of {logs}; {consequence}"


def _check_topic_configs(plan: RestorePlan) -> None:
    """Reject settings of topics that are not restored, and settings on which a broker fails."""
    topics = {partition_plan.partition.topic for partition_plan in plan.partitions}
    for topic, configs in plan.request.topic_configs.items():
        if topic not in topics:
            raise InputError(
                "the topic of --topic-config is not restored",
                found=topic,
                hint="give the new name of a renamed topic",
            )
        check_topic_configs(configs)


def _has_overflowed(restored: RestoredPartition) -> bool:
    """Return whether a segment has offsets beyond the int32 range of relative offsets."""
    codes = {restored.code, *(lost_range.code for lost_range in restored.lost)}
    return OFFSET_OVERFLOW in codes or (restored.reason or "").startswith(OFFSET_OVERFLOW)


@dataclass(frozen=True, slots=True)
class SegmentSplitter:
    """Splits the segments of partitions into logs in a folder.

    `originals` maps the path of each split log to the path of its original log.
    """

    folder: str
    decompressor: Decompressor
    originals: dict[str, str] = field(default_factory=dict)

    def split(self, plan: PartitionPlan) -> PartitionPlan:
        """Return the plan after splitting the base copy's segments where offsets overflow."""
        try:
            segments = [
                new_segment
                for segment in plan.base.segments.files()
                for new_segment in self._split_and_copy(segment)
            ]
        except CorruptObjectError:
            # The offsets are far apart because an object of the backup is damaged. Splitting cannot
            # help.
            return plan
        if not any(new_segment.log_path in self.originals for new_segment in segments):
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
                new_segment = segment.copied_to(path, os.stat(path))
            self.originals[path] = segment.log_path
            is_last = segment.is_last and span is spans[-1]
            yield replace(new_segment, base_offset=span.base_offset, is_last=is_last)

    def name_originals(self, restored: RestoredPartition) -> None:
        """In the lost ranges of a partition, name the original logs instead of split logs."""
        restored.lost = [
            replace(lost_range, path=self.originals[lost_range.path], position_bytes=None)
            if lost_range.path in self.originals
            else lost_range
            for lost_range in restored.lost
        ]


def _copy_span(segment: SegmentFile, span: SegmentSpan, path: str) -> None:
    with closing(open_log(segment.log_path, segment)) as log, open(path, "wb") as file:
        for position in range(span.start_bytes, span.end_bytes, _COPY_BYTES):
            size = min(_COPY_BYTES, span.end_bytes - position)
            file.write(log.read_at(position, size).data)

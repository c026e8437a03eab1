"""Run ``verify``: list the dump, read its cluster metadata, check partitions, report findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from kafka_index.commands.verify.copies import CopySegments, compare_partitions
from kafka_index.commands.verify.partition import verify_partitions
from kafka_index.commands.verify.request import VerifyRequest
from kafka_index.commands.verify.result import (
    FileKind,
    Finding,
    FindingCounts,
    Verification,
    VerifiedPartition,
    findings_table,
)
from kafka_index.commands.verify.settings import KnownTopic, VerifySettings, known_topics
from kafka_index.commands.verify.state_files import metadata_finding, root_findings
from kafka_index.core.cluster.listing import DumpMetadata, find_cluster, list_logs
from kafka_index.core.errors import ConfigError, InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import BAD_CHECKPOINT, reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import index_root_of
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.append.log_segment_writer import system_clock
from kafka_index.core.log.missing_offsets import Cleaning
from kafka_index.core.logdir.data_directory import DataDirectories
from kafka_index.core.logdir.listing import Listing, list_dump
from kafka_index.core.logdir.segment_table import PartitionSegments, SegmentTable


def verify(
    request: VerifyRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
) -> Verification:
    """Verify the files of a dump, or compare the batches of two copies.

    All findings are written to `report`. Raises `InputError` if nothing is found or a path cannot
    be listed, and `ConfigError` if copies are compared on Spark.
    """
    if request.against and engine.on_spark:
        raise ConfigError("--against requires the local engine")
    with reading_inputs(follow_links=request.follow_links) as unread:
        listing = list_logs(request.inputs, request.tiered, topics=request.topics)
        cluster, damage = _read_cluster(request, listing)
        dump = _Dump(request, listing, SegmentTable.from_files(listing.segments), cluster)
        skipped = [*listing.skipped]
        finding_counts, partitions = FindingCounts(), []
        if request.against:
            other_listing = list_dump(request.against, topics=request.topics)
            skipped += other_listing.skipped
            partition_results = dump.compare(other_listing, engine, listener or SILENT)
        else:
            partition_results = dump.verify(damage, engine, listener or SILENT)
        for partition, findings in partition_results:
            rows = findings_table(findings)
            finding_counts.add(rows)
            if report is not None:
                report.write_table(rows)
            if partition is not None:
                partitions.append(partition)
        if report is not None:
            report.add_segments(partition.rows() for partition in dump.segments.partitions)
    return Verification(
        finding_counts,
        sorted(partitions, key=attrgetter("topic", "partition")),
        finding_counts.harmful_rows,
        dump.segments.total_bytes,
        # A malformed checkpoint is already reported as a finding.
        unread_texts(
            {path: skip for path, skip in unread.items() if skip.reason != BAD_CHECKPOINT}
        ),
        skipped_texts(skipped),
        None if request.topics is None else request.topics.pattern,
        request.fast,
        cluster.fault,
        request.next_command,
    )


def _read_cluster(
    request: VerifyRequest, listing: Listing
) -> tuple[DumpMetadata, KafkaIndexError | None]:
    """Return the cluster metadata, and the first corruption of the metadata log, if any."""
    max_bytes = request.config.config.max_decompressed_bytes
    try:
        return find_cluster(request.metadata, listing.data_directories, max_bytes), None
    except InputError as error:
        cause = error.__cause__
        if not isinstance(cause, KafkaIndexError) or is_retriable(cause):
            raise
        return DumpMetadata(fault=str(cause)), cause


#: A verified partition with its findings. The partition is None for root files, and for compared
#: partitions.
_Results = Iterator[tuple[VerifiedPartition | None, Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class _Dump:
    """A listed dump and its cluster metadata."""

    request: VerifyRequest
    listing: Listing
    segments: SegmentTable
    cluster: DumpMetadata

    def verify(
        self, damage: KafkaIndexError | None, engine: Engine, listener: Listener
    ) -> _Results:
        """Yield the findings of the root files, then of each partition.

        `damage` is the first corruption of the metadata log, if any.
        """
        request, segments = self.request, self.segments
        config = request.config
        settings = VerifySettings(
            system_clock() if request.now is None else request.now,
            self.cluster.settings(config.config),
            None if request.indexes is None else index_root_of(request.indexes),
            request.fast,
            tiered=self.listing.tiered,
            topics=known_topics(self.cluster, segments, config.properties),
        )
        yield None, root_findings(self.listing, settings, request.metadata, config.properties)
        if damage is not None:
            yield None, [metadata_finding(request.metadata or "", damage)]
        listener.on_plan(len(segments), segments.total_bytes, ("segment", "segments"))
        with engine.start(
            "verify",
            after_failure=(
                "the report contains the partitions verified so far; run again to verify the others"
            ),
            listener=listener,
            tasks=len(segments.partitions),
            inputs=[partition.directory for partition in segments.partitions],
        ) as workers:
            for result in verify_partitions(workers, segments, settings):
                yield result.partition, result.findings
                logs = sum(finding.kind is FileKind.LOG for finding in result.findings)
                listener.on_done(logs, result.partition.log_bytes)

    def compare(self, other_listing: Listing, engine: Engine, listener: Listener) -> _Results:
        """Yield a finding for each partition that either copy contains."""
        topics = known_topics(self.cluster, self.segments, self.request.config.properties)
        first_copies = _list_copy(self.listing, topics)
        second_copies = _list_copy(other_listing, topics)
        empty = CopySegments(())
        pairs = [
            (first_copies.get(partition, empty), second_copies.get(partition, empty))
            for partition in sorted({*first_copies, *second_copies})
        ]
        listener.on_plan(len(pairs), None, ("partition", "partitions"))
        with engine.start("verify", after_failure="run again", listener=listener) as workers:
            for finding in compare_partitions(workers, pairs):
                yield None, [finding]
                listener.on_done(1)


def _list_copy(
    listing: Listing, topics: Mapping[str, KnownTopic]
) -> dict[TopicPartition, CopySegments]:
    roots = DataDirectories(tolerated=True)

    def cleaning(partition: PartitionSegments) -> Cleaning:
        topic = topics.get(partition.partition.topic)
        policy = None if topic is None else topic.cleanup_policy
        checkpoint = roots.for_partition(partition.directory).cleaned_to(partition.partition)
        is_topic_known = topic is not None
        return Cleaning.from_policy(
            partition.partition.topic, checkpoint, policy, is_topic_known=is_topic_known
        )

    return {
        partition.partition: CopySegments(partition.files(), cleaning(partition))
        for partition in SegmentTable.from_files(listing.segments).partitions
    }

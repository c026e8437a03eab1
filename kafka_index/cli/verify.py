"""Runs a verification, from options to an exit code: list, verify, report, print."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.verify_page import verify_page
from kafka_index.cli.verify_summary import VerifyOutcome
from kafka_index.growing.growing_segment import system_clock
from kafka_index.layout.names import TopicPartition
from kafka_index.metadata.directory import FoundCluster, find_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.storage import Listing, Skipped, list_dump
from kafka_index.storage.paths import index_root_of
from kafka_index.storage.report_file import ReportFile
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.tiered.listing import list_logs
from kafka_index.verification import (
    VERIFY_SCHEMA,
    VerifySettings,
    findings_table,
    verify_partitions,
)
from kafka_index.verification.copies import CopySegments, compare_partitions
from kafka_index.verification.data_directory import DataDirectories
from kafka_index.verification.settings import known_topics
from kafka_index.verification.starts import root_findings

if TYPE_CHECKING:
    from kafka_index.cli.verify_command import VerifyOptions


def run_verify(options: VerifyOptions) -> ExitCode:
    """Verify a dump, print a summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    listing = list_logs(options.inputs, options.tiered, topics=options.topics)
    segments = SegmentTable.of(listing.segments)
    cluster = FoundCluster()
    if not options.against:
        budget = shared_budget(options.settings[0].max_decompressed_bytes)
        cluster = find_cluster(options.metadata, listing.data_directories, budget)
    with ExitStack() as stack:
        writer = None
        if options.report is not None:
            writer = stack.enter_context(
                ReportFile(options.report, VERIFY_SCHEMA, verify_page(segments, options.topics))
            )
        skipped = listing.skipped
        outcome = VerifyOutcome(writer, len(segments), segments.total_bytes, options.detail)
        with outcome:
            if options.against:
                skipped = [*listing.skipped, *_compare(options, listing, outcome)]
            else:
                _verify(options, listing, cluster, outcome)
        # Printed first: where the report cannot be finished, the answer is not lost.
        return outcome.print_summary(skipped, cluster, fast=options.fast, topics=options.topics)


def _verify(
    options: VerifyOptions, listing: Listing, cluster: FoundCluster, outcome: VerifyOutcome
) -> None:
    segments = SegmentTable.of(listing.segments)
    indexes = None if options.indexes is None else index_root_of(options.indexes)
    settings = VerifySettings(
        system_clock(),
        cluster.settings(options.settings[0]),
        indexes,
        options.fast,
        tiered=listing.tiered,
        topics=known_topics(cluster.image, segments),
    )
    findings = root_findings(listing, settings, options.metadata, options.settings[1])
    outcome.on_table(findings_table(findings))
    with options.engine.start(
        "verify",
        after_failure="the report has what was verified: run again",
        listener=outcome,
        works=len(segments.partitions),
        inputs=[each.directory for each in segments.partitions],
    ) as workers:
        for found in verify_partitions(workers, segments, settings):
            outcome.on_partition(found)


def _compare(options: VerifyOptions, listing: Listing, outcome: VerifyOutcome) -> Sequence[Skipped]:
    """Compare with the other copies; return the entries that their listing skipped."""
    against = list_dump(options.against, topics=options.topics)
    ours, theirs = _by_partition(listing), _by_partition(against)
    empty = CopySegments(())
    pairs = [(ours.get(each, empty), theirs.get(each, empty)) for each in sorted({*ours, *theirs})]
    with options.engine.start("verify", after_failure="run again", listener=outcome) as workers:
        for row in compare_partitions(workers, pairs):
            outcome.on_table(findings_table([row]))
    return against.skipped


def _by_partition(listing: Listing) -> dict[TopicPartition, CopySegments]:
    roots = DataDirectories()
    return {
        each.partition: CopySegments(
            each.files(),
            roots.of(each.directory).cleaned_to(each.partition) or 0,
        )
        for each in SegmentTable.of(listing.segments).partitions
    }

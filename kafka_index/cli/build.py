"""A build, from options to an exit code: list, lock, build, report, sweep, print."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_index.build import ALL_OUTPUTS, INDEX_OUTPUTS, BuildSettings, Output, build_logs
from kafka_index.build.parquet import SHARES, StageUnsorted, build_parquet, check_settings
from kafka_index.build.parquet_input import ParquetInput, is_parquet_path, open_parquet
from kafka_index.build.parquet_order import count_segments
from kafka_index.build.partition_record import UnchangedPartitions
from kafka_index.build.report import ReportWriter
from kafka_index.build.settings import held_target
from kafka_index.cli.build_summary import BuildOutcome, build_page
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.progress import skipped_lines
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import Paint, Table, format_bytes, format_count, print_text
from kafka_index.dump.listing import list_logs
from kafka_index.errors import InputError, plural
from kafka_index.layout.names import TopicPartition
from kafka_index.metadata.directory import find_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.storage import (
    Listing,
    Skipped,
    check_target,
    expand_input,
    lock_of_output,
    swept_target,
)
from kafka_index.storage.paths import absolute_path
from kafka_index.storage.segment_table import SegmentTable

if TYPE_CHECKING:
    from kafka_index.cli.build_command import BuildOptions
    from kafka_index.execution import Engine

_AFTER_FAILURE = "finished segments are kept: run again to continue"


def run_build(options: BuildOptions) -> ExitCode:
    """Run a build, print its summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    if _wants_parquet(options):
        if options.topics is not None:
            raise InputError("--topics requires logs", hint="filter the Parquet input instead")
        source = open_parquet(options.inputs)
        if not options.dry_run:
            return _build_parquet(options, source)
        sizes = [
            (TopicPartition(each.topic, each.partition), 1, each.size_bytes)
            for each in count_segments(source).segments
        ]
        return _print_plan(options, sizes, [])
    listing = list_logs(options.inputs, options.tiered, topics=options.topics)
    if not options.dry_run:
        return _build_logs(options, listing)
    counts = [
        (each.partition, len(each), int(each.sizes_bytes.sum()))
        for each in SegmentTable.of(listing.segments).partitions
    ]
    return _print_plan(options, counts, listing.skipped)


def _wants_parquet(options: BuildOptions) -> bool:
    if options.tiered is not None:
        return False
    if options.input_format != "auto":
        return options.input_format == "parquet"
    paths = [path for given in options.inputs for path in expand_input(given)]
    parquet = [is_parquet_path(path) for path in paths]
    if any(parquet) and not all(parquet):
        raise InputError(
            "Parquet and logs in one input",
            path=paths[parquet.index(not parquet[0])],
            hint="build each in a run of its own, or give --format",
        )
    return all(parquet)


def _build_logs(options: BuildOptions, listing: Listing) -> ExitCode:
    segments = SegmentTable.of(listing.segments)
    budget = shared_budget(options.config.max_decompressed_bytes)
    cluster = find_cluster(None, listing.data_directories, budget)
    options = replace(options, config=cluster.settings(options.config))
    topics = {each.partition.topic for each in segments.partitions}
    assumed = cluster.settings_text(options.config, topics)
    with ExitStack() as stack:
        writer = _report(options, stack)
        inputs = [*options.inputs, *(() if options.tiered is None else options.tiered.uris)]
        target_root = stack.enter_context(
            held_target(options.output, listing, inputs, run_id=run_summary().run_id)
        )
        settings = replace(_settings(options, target_root, ALL_OUTPUTS), tiered=listing.tiered)
        with BuildOutcome(writer, len(segments), segments.total_bytes, options.detail) as outcome:
            left = _keep_unchanged(segments, settings, outcome)
            if left:
                _run_build(options, left, settings, outcome)
        if writer is not None:
            writer.write_rest(listing.skipped)
        where = "beside the logs" if target_root is None else f"in {target_root}"
        # Printed first: where the report cannot be finished, the answer is not lost.
        code = outcome.print_summary(listing.skipped, where)
        if assumed is not None and options.detail is not Detail.QUIET:
            print_text(sys.stdout, [assumed])
        return code


def _keep_unchanged(
    segments: SegmentTable, settings: BuildSettings, outcome: BuildOutcome
) -> SegmentTable:
    """Report the partitions that are right as they are; return the segments of the others."""
    left = []
    for members, rows in UnchangedPartitions(settings).split(segments):
        if rows is None:
            left.append(members)
        else:
            outcome.on_unchanged(rows)
    return SegmentTable(left)


def _run_build(
    options: BuildOptions, segments: SegmentTable, settings: BuildSettings, outcome: BuildOutcome
) -> None:
    directories = [each.directory for each in segments.partitions]
    outputs = sorted({os.path.dirname(each) for each in directories})
    with options.engine.start(
        "build",
        after_failure=_AFTER_FAILURE,
        listener=outcome,
        works=len(segments),
        inputs=directories,
        outputs=outputs if settings.target_root is None else [settings.target_root],
    ) as workers:
        build_logs(workers, segments, settings, listener=outcome, fail_fast=options.fail_fast)


def _build_parquet(options: BuildOptions, source: ParquetInput) -> ExitCode:
    if options.output is None:
        raise InputError("Parquet input cannot be built in place", hint="give --output")
    outputs = INDEX_OUTPUTS if source.missing_for_state else ALL_OUTPUTS
    check_settings(source, _settings(options, options.output, outputs))
    with ExitStack() as stack:
        writer = _report(options, stack)
        target_root = check_target(options.output, options.inputs)
        settings = _settings(options, target_root, outputs)
        stack.enter_context(lock_of_output(target_root, settings.run_id))
        stack.enter_context(swept_target(target_root, [], run_id=settings.run_id))
        with (
            BuildOutcome(writer, 0, 0, options.detail) as outcome,
            options.engine.start(
                "build",
                after_failure=_AFTER_FAILURE,
                listener=outcome,
                works=SHARES,
                inputs=[file.path for file in source.files],
                outputs=[target_root],
            ) as workers,
        ):
            build_parquet(
                workers,
                source,
                settings,
                listener=outcome,
                fail_fast=options.fail_fast,
                stage_unsorted=_sort_on_spark(options.engine),
            )
        if writer is not None:
            writer.write_rest([])
        return outcome.print_summary([], f"in {target_root}")


def _sort_on_spark(engine: Engine) -> StageUnsorted | None:
    if not engine.on_spark:
        return None
    from kafka_index.spark.parquet import stage_unsorted  # noqa: PLC0415, PySpark

    return stage_unsorted


def _report(options: BuildOptions, stack: ExitStack) -> ReportWriter | None:
    """Open the report that is asked for."""
    if options.report is None:
        return None
    root = None if options.output is None else absolute_path(options.output)
    writer = ReportWriter(
        options.report,
        target_root=root,
        run_id=run_summary().run_id,
        kinds=options.report_kinds,
        page=build_page(),
    )
    return stack.enter_context(writer)


def _settings(
    options: BuildOptions, target_root: str | None, outputs: frozenset[Output]
) -> BuildSettings:
    expiration = None
    if options.expire_at_ms is not None:
        after_ms = options.config.producer_id_expiration_ms
        expiration = ProducerExpiration(after_ms, options.expire_at_ms)
    return BuildSettings(
        config=options.config,
        target_root=target_root,
        outputs=options.outputs or outputs,
        expiration=expiration,
        verify_crc=not options.no_verify_crc,
        force=options.overwrite,
        run_id=run_summary().run_id,
    )


def _print_plan(
    options: BuildOptions,
    counts: Sequence[tuple[TopicPartition, int, int]],
    skipped: Sequence[Skipped],
) -> ExitCode:
    """Print the plan of a dry run: a row per partition, and the totals.

    The counts are numbers of segments and sizes of their logs; a partition may come several times.
    """
    paint = Paint(sys.stdout)
    sums: dict[TopicPartition, tuple[int, int]] = {}
    for partition, number, size_bytes in counts:
        count, sum_bytes = sums.get(partition, (0, 0))
        sums[partition] = count + number, sum_bytes + size_bytes
    rows = [
        (partition.directory_name, format_count(count), format_bytes(sum_bytes))
        for partition, (count, sum_bytes) in sorted(sums.items())
    ]
    table = Table(("partition", "segments", "log bytes"), rows)
    total_bytes = sum(size_bytes for *_, size_bytes in counts)
    segments = plural(sum(count for _, count, _ in counts), "segment")
    total = (
        f"would build {segments} of {plural(len(sums), 'partition')}, "
        f"{format_bytes(total_bytes)} of log"
    )
    print_text(sys.stdout, (table, "", total, *skipped_lines(skipped, paint, options.detail)))
    return ExitCode.DONE

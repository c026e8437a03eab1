"""Run ``build``: open the input, lock the target, skip unchanged partitions, build the others."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_index.commands.build.log_build import (
    AFTER_FAILURE,
    build_logs,
    build_settings,
    locked_target,
)
from kafka_index.commands.build.request import BuildRequest, InputFormat
from kafka_index.commands.build.result import BuildPlan, BuildResult, BuildRows
from kafka_index.core.cluster.listing import find_cluster, list_logs
from kafka_index.core.errors import InputError
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import expand_input, is_parquet_path
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.choices import ALL_OUTPUTS
from kafka_index.core.log.recovery.build_manifest import UnchangedPartitions
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.segment_table import SegmentTable

if TYPE_CHECKING:
    from kafka_index.commands.build.parquet import TableBuilder


def build(
    request: BuildRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
    *,
    build_table: TableBuilder | None = None,
) -> BuildResult | BuildPlan:
    """Build the files for logs or for a Parquet input; in a dry run, return only the plan.

    Raises `InputError` if nothing is found or the output overlaps the input, and `PublishError` if
    the output cannot be created, locked or written. `build_table` replaces `parquet.build_parquet`.
    """
    listener = listener or SILENT
    result: BuildResult | BuildPlan
    with reading_inputs(follow_links=request.follow_links) as unread:
        if _is_parquet(request):
            # Imported here, because most inputs are logs.
            from kafka_index.commands.build.parquet import build_from_table, plan_table  # noqa: PLC0415
            from kafka_index.commands.build.parquet_input import open_parquet  # noqa: PLC0415

            source = open_parquet(request.inputs)
            if request.dry_run:
                result = plan_table(source)
            else:
                result = build_from_table(request, source, engine, listener, report, build_table)
        else:
            listing = list_logs(request.inputs, request.tiered, topics=request.topics)
            if request.dry_run:
                result = _plan_logs(listing)
            else:
                result = _build_logs(request, listing, engine, listener, report)
    if report is not None and isinstance(result, BuildPlan):
        report.write_table(result.to_arrow())
    return replace(result, unread=unread_texts(unread))


def _is_parquet(request: BuildRequest) -> bool:
    """Return whether the input is Parquet; reject input with both Parquet and logs."""
    if request.tiered is not None or request.format is InputFormat.LOG:
        return False
    if request.format is InputFormat.AUTO:
        paths = [path for input_path in request.inputs for path in expand_input(input_path)]
        is_parquet = [is_parquet_path(path) for path in paths]
        if any(is_parquet) and not all(is_parquet):
            raise InputError(
                "the input contains both Parquet and logs",
                path=paths[is_parquet.index(not is_parquet[0])],
                hint="build Parquet and logs in separate runs, or give --format",
            )
        if not all(is_parquet):
            return False
    if request.topics is not None:
        raise InputError("topics can be selected only in logs", hint="filter the Parquet input")
    return True


def _plan_logs(listing: Listing) -> BuildPlan:
    sizes = [
        (partition.partition, len(partition), int(partition.sizes_bytes.sum()))
        for partition in SegmentTable.from_files(listing.segments).partitions
    ]
    return replace(BuildPlan.from_sizes(sizes), skipped=skipped_texts(listing.skipped))


def _build_logs(
    request: BuildRequest,
    listing: Listing,
    engine: Engine,
    listener: Listener,
    report: ReportSink | None,
) -> BuildResult:
    """Build the partitions whose files are not up to date."""
    requested_config = request.config.config
    cluster = find_cluster(None, listing.data_directories, requested_config.max_decompressed_bytes)
    config = cluster.settings(requested_config)
    segments = SegmentTable.from_files(listing.segments)
    settings = build_settings(request, config, ALL_OUTPUTS, listener)
    with locked_target(request, settings, listing) as target_root:
        settings = replace(settings, target_root=target_root, tiered=listing.tiered)
        with BuildRows(request, settings, listener, report, planned=len(segments)) as rows:
            remaining_partitions = []
            for partition_segments, unchanged in UnchangedPartitions(settings).split(segments):
                if unchanged is None:
                    remaining_partitions.append(partition_segments)
                else:
                    rows.on_unchanged(unchanged)
            remaining_segments = SegmentTable(remaining_partitions)
            listener.on_plan(
                len(remaining_segments), remaining_segments.total_bytes, ("segment", "segments")
            )
            if remaining_segments:
                directories = [partition.directory for partition in remaining_segments.partitions]
                outputs = sorted({os.path.dirname(directory) for directory in directories})
                with engine.start(
                    "build",
                    after_failure=AFTER_FAILURE,
                    listener=listener,
                    tasks=len(remaining_segments),
                    inputs=directories,
                    outputs=outputs if target_root is None else [target_root],
                ) as workers:
                    build_logs(
                        workers,
                        remaining_segments,
                        settings,
                        listener=rows,
                        fail_fast=request.fail_fast,
                    )
    topics = {partition.partition.topic for partition in segments.partitions}
    return rows.result(listing.skipped, cluster.assumption_warning(config, topics))

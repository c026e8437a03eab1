"""A build: its input, target, remaining work, and result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from kafka_index.commands.build.local_build import BuildListener, build_logs
from kafka_index.commands.build.parquet import SHARES, build_parquet, check_settings
from kafka_index.commands.build.parquet_input import ParquetInput, is_parquet_path, open_parquet
from kafka_index.commands.build.parquet_order import count_segments
from kafka_index.commands.build.request import BuildRequest, InputFormat
from kafka_index.commands.build.result import BuildPlan, BuildResult, BuildRows
from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.cluster.metadata.directory import find_cluster
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import expand_input, real_path, with_links
from kafka_index.core.job.engine import SILENT, Engine, Listener, Workers
from kafka_index.core.job.result import ReportSink
from kafka_index.core.job.threads import ThreadEngine
from kafka_index.core.log.recovery.build_manifest import UnchangedPartitions
from kafka_index.core.log.recovery.choices import ALL_OUTPUTS, INDEX_OUTPUTS, BuildOutput
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.output.output import Output
from kafka_index.core.output.temporary_files import swept_target
from kafka_index.core.records.decompression import shared_budget

AFTER_FAILURE = "finished segments are kept: run again to continue"


class TableBuilder(Protocol):
    """Builds from a Parquet input or a DataFrame, like `build_parquet`."""

    def __call__(
        self,
        workers: Workers,
        source: ParquetInput,
        settings: BuildSettings,
        *,
        listener: BuildListener,
        fail_fast: bool = False,
    ) -> None: ...


def build(
    request: BuildRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
    *,
    build_table: TableBuilder = build_parquet,
) -> BuildResult | BuildPlan:
    """Build the files of logs or of a Parquet input; in a dry run only plan it.

    Raises `InputError` if nothing is found or the output overlaps the input, and `PublishError` if
    the output cannot be created, locked or written.
    """
    listener = listener or SILENT
    result: BuildResult | BuildPlan
    with reading_inputs(follow_links=request.follow_links) as unread:
        if _is_parquet(request):
            source = open_parquet(request.inputs)
            if request.dry_run:
                result = _plan_table(source)
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
    """Return whether the input is Parquet; reject a mixed input."""
    if request.tiered is not None or request.format is InputFormat.LOG:
        return False
    if request.format is InputFormat.AUTO:
        paths = [path for given in request.inputs for path in expand_input(given)]
        parquet = [is_parquet_path(path) for path in paths]
        if any(parquet) and not all(parquet):
            raise InputError(
                "Parquet and logs in one input",
                path=paths[parquet.index(not parquet[0])],
                hint="build each in a run of its own, or give a format",
            )
        if not all(parquet):
            return False
    if request.topics is not None:
        raise InputError("topics are selected in logs only", hint="filter the Parquet input")
    return True


def _plan_logs(listing: Listing) -> BuildPlan:
    sizes = [
        (each.partition, len(each), int(each.sizes_bytes.sum()))
        for each in SegmentTable.of(listing.segments).partitions
    ]
    return replace(BuildPlan.of_sizes(sizes), skipped=skipped_texts(listing.skipped))


def _plan_table(source: ParquetInput) -> BuildPlan:
    with ThreadEngine().start("count") as workers:
        segments = count_segments(source, workers).segments
    return BuildPlan.of_sizes(
        [
            (TopicPartition(each.key.topic, each.key.partition), 1, each.size_bytes)
            for each in segments
        ]
    )


def _build_logs(
    request: BuildRequest,
    listing: Listing,
    engine: Engine,
    listener: Listener,
    report: ReportSink | None,
) -> BuildResult:
    """Build the partitions whose files are not up to date."""
    given = request.config.config
    budget = shared_budget(given.max_decompressed_bytes)
    cluster = find_cluster(None, listing.data_directories, budget)
    config = cluster.settings(given)
    segments = SegmentTable.of(listing.segments)
    settings = _settings(request, config, ALL_OUTPUTS, listener)
    with _held_target(request, settings, listing) as root:
        settings = replace(settings, target_root=root, tiered=listing.tiered)
        with BuildRows(request, settings, listener, report, planned=len(segments)) as rows:
            parts = []
            for members, unchanged in UnchangedPartitions(settings).split(segments):
                if unchanged is None:
                    parts.append(members)
                else:
                    rows.on_unchanged(unchanged)
            left = SegmentTable(parts)
            listener.on_plan(len(left), left.total_bytes, ("segment", "segments"))
            if left:
                directories = [each.directory for each in left.partitions]
                outputs = sorted({os.path.dirname(each) for each in directories})
                with engine.start(
                    "build",
                    after_failure=AFTER_FAILURE,
                    listener=listener,
                    works=len(left),
                    inputs=directories,
                    outputs=outputs if root is None else [root],
                ) as workers:
                    build_logs(workers, left, settings, listener=rows, fail_fast=request.fail_fast)
    topics = {each.partition.topic for each in segments.partitions}
    return rows.result(listing.skipped, cluster.settings_text(config, topics))


def build_from_table(
    request: BuildRequest,
    source: ParquetInput,
    engine: Engine,
    listener: Listener,
    report: ReportSink | None,
    build_table: TableBuilder,
) -> BuildResult:
    """Build all segments of a Parquet input, or of a DataFrame, which has no files."""
    outputs = INDEX_OUTPUTS if source.missing_for_state else ALL_OUTPUTS
    settings = _settings(request, request.config.config, outputs, listener)
    check_settings(source, settings)
    with _held_target(request, settings, inputs=request.inputs if source.files else ()) as root:
        settings = replace(settings, target_root=root)
        listener.on_plan(0, 0, ("segment", "segments"))
        with (
            BuildRows(request, settings, listener, report) as rows,
            engine.start(
                "build",
                after_failure=AFTER_FAILURE,
                listener=listener,
                works=SHARES,
                inputs=[file.path for file in source.files],
                outputs=[str(root)],
            ) as workers,
        ):
            build_table(workers, source, settings, listener=rows, fail_fast=request.fail_fast)
    return rows.result()


def _settings(
    request: BuildRequest, config: LogConfig, outputs: frozenset[BuildOutput], listener: Listener
) -> BuildSettings:
    """Return the settings of a run; `outputs` are the default files."""
    expires_at = request.expire_producers_at
    return BuildSettings(
        config=config,
        target_root=None if request.in_place else request.output,
        outputs=request.what or outputs,
        expiration=None
        if expires_at is None
        else ProducerExpiration(config.producer_id_expiration_ms, int(expires_at)),
        verify_crc=request.verify_crc,
        force=request.overwrite,
        run_id=listener.run_id(),
    )


@contextmanager
def _held_target(
    request: BuildRequest,
    settings: BuildSettings,
    listing: Listing | None = None,
    *,
    inputs: Sequence[str] = (),
) -> Iterator[str | None]:
    """Lock the target and remove leftovers; yield its root, None for files next to the logs."""
    root, directories = None, []
    held: Output | DirectoryLock
    if listing is not None:
        directories = listing.partition_directories
        # A link inside a local data directory may lead out of it.
        inputs = [*request.folders, *with_links(directories)]
    if settings.target_root is not None:
        root = real_path(settings.target_root)
        held = Output.of_tables(root, settings.target_root, inputs, settings.run_id)
    elif listing is not None:
        held = DirectoryLock.of_data_directories(listing.data_directories)
    with held, swept_target(root, directories, run_id=settings.run_id):
        yield root

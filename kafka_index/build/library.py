"""Building from Python."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from os import PathLike

import pyarrow as pa

from kafka_index.build.building import build_logs
from kafka_index.build.partition_record import UnchangedPartitions
from kafka_index.build.report import REPORT_SCHEMA, SegmentReport, report_table
from kafka_index.build.settings import BuildSettings, held_target
from kafka_index.config import LogConfig, topics_pattern
from kafka_index.dump.listing import list_logs
from kafka_index.errors import ConfigError, InputError
from kafka_index.execution import ThreadEngine
from kafka_index.execution.tasks import new_run_id
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.metadata.directory import find_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.stores import is_remote
from kafka_index.stores.inputs import reading_inputs
from kafka_index.tiered.options import TieredOptions

_ORDER = [(name, "ascending") for name in ("topic", "partition", "segment_base_offset")]


def build_indexes(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str] | None = None,
    *,
    in_place: bool = False,
    topics: str | re.Pattern[str] | None = None,
    config: LogConfig | None = None,
    tiered: TieredOptions | None = None,
    verify_crc: bool = True,
    force: bool = False,
    threads: int | None = None,
    follow_links: bool = False,
) -> pa.Table:
    """Build what a broker keeps next to its logs, as ``kafka-index build`` does on threads.

    Parameters
    ----------
    paths : path, or sequence of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    output : path
        Folder for a folder of files per partition, a local path or URI.
    in_place : bool
        Instead of an output: write beside the logs, in local directories that no broker uses.
    topics : str or re.Pattern, optional
        Only topics that match it in full.
    config : LogConfig, optional
        Kafka's settings; ``LogConfig.load`` reads a broker's ``server.properties``. What it does
        not set is taken from the metadata log, if a data directory of the input has one.
    tiered : TieredOptions, optional
        Where remote segments are.
    verify_crc : bool
        Whether checksums are verified.
    force : bool
        Build also what an earlier run has recorded as done.
    threads : int, optional
        Segments scanned at a time; by default one a core.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    pa.Table
        A row per segment, sorted, with the columns of ``build --report``. A damaged segment is a
        row with the status ``truncated`` or ``failed``, not an exception.

    Raises
    ------
    ConfigError
        There is neither an output nor `in_place`, or both.
    InputError
        Nothing is found, a path cannot be listed, the output overlaps the input, or the logs are
        remote and to be written beside.
    PublishError
        The output cannot be made, locked or written.
    """
    inputs = [paths] if isinstance(paths, str | PathLike) else paths
    names = [os.fspath(path) for path in inputs]
    refuse_passwords([*names, output])
    pattern = topics_pattern(topics)
    # What is read from a setting that is not there must not become a build in place.
    given: object = in_place
    if not isinstance(given, bool) or given == bool(output):
        raise ConfigError(
            "give either an output or in_place=True",
            found=f"output={output!r}, in_place={in_place!r}",
        )
    remote = [*filter(is_remote, names), *(() if tiered is None else tiered.uris)]
    if in_place and (remote or tiered is not None):
        raise InputError(
            "files are written beside logs on a local disk only",
            path=remote[0] if remote else None,
            hint="give an output",
        )
    with reading_inputs(follow_links=follow_links):
        listing = list_logs(names, tiered, topics=pattern)
        given = config or LogConfig()
        budget = shared_budget(given.max_decompressed_bytes)
        cluster = find_cluster(None, listing.data_directories, budget)
    run_id = new_run_id()
    read = [*names, *(() if tiered is None else tiered.uris)]
    target = None if not output else os.fspath(output)
    rows = _Rows()
    with held_target(target, listing, read, run_id=run_id) as root:
        settings = BuildSettings(
            config=cluster.settings(given),
            target_root=root,
            verify_crc=verify_crc,
            force=force,
            run_id=run_id,
            tiered=listing.tiered,
        )
        left, kept = [], []
        for members, unchanged in UnchangedPartitions(settings).split(
            SegmentTable.of(listing.segments)
        ):
            if unchanged is None:
                left.append(members)
            else:
                kept.append(unchanged)
        with ThreadEngine(threads or os.cpu_count() or 1).start("build") as workers:
            build_logs(workers, SegmentTable(left), settings, listener=rows)
    tables = [table.select(REPORT_SCHEMA.names) for table in (*kept, report_table(rows.reports))]
    return pa.concat_tables(tables).sort_by(_ORDER)


class _Rows:
    """Keeps the final rows of segments."""

    def __init__(self) -> None:
        self.reports: list[SegmentReport] = []

    def on_scanned(self, row: SegmentReport) -> None:
        """Wait for the final row."""

    def on_report(self, row: SegmentReport) -> None:
        """Keep the final row of a segment."""
        self.reports.append(row)

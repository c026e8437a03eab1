"""A build of logs as a whole: its input and target, what is left to build, and its rows."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.build.local_build import BuildListener, build_logs
from kafka_index.core.cluster.metadata.directory import FoundCluster, find_cluster
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.format.config import LogConfig
from kafka_index.core.fs.paths import check_target
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import RunOutcome, TableResult
from kafka_index.core.log.recovery.build_manifest import UnchangedPartitions
from kafka_index.core.log.recovery.report import (
    BUILT,
    REPORT_SCHEMA,
    STATUSES,
    UNCHANGED,
    SegmentReport,
    report_rows,
    report_table,
)
from kafka_index.core.log.recovery.settings import ALL_OUTPUTS, BuildSettings, Output
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.locks import DirectoryLock, lock_of_output
from kafka_index.core.output.temporary_files import swept_target
from kafka_index.core.records.decompression import shared_budget

AFTER_FAILURE = "finished segments are kept: run again to continue"
_SEGMENT = ["topic", "partition", "segment_base_offset"]
_SHOWN = [*_SEGMENT, "status", "batch_count", "next_offset", "reason"]
_ORDER = [(name, "ascending") for name in _SEGMENT]


class BuildJobListener(Listener, BuildListener, Protocol):
    """Follows a build, and gets its rows."""

    def on_unchanged(self, rows: pa.Table) -> None:
        """Add the rows of a partition that is right as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A build as it is asked for; without `output` beside the logs.

    Without `outputs` all files that the input allows are written, and without `expire_at_ms` every
    producer is kept.
    """

    inputs: Sequence[str]
    output: str | None = None
    tiered: TieredOptions | None = None
    topics: re.Pattern[str] | None = None
    outputs: frozenset[Output] | None = None
    config: LogConfig = field(default_factory=LogConfig)
    expire_at_ms: int | None = None
    verify_crc: bool = True
    overwrite: bool = False

    def settings(
        self, target_root: str | None, run_id: str, outputs: frozenset[Output] = ALL_OUTPUTS
    ) -> BuildSettings:
        """Return the settings of a run that writes to a target, by default these files."""
        expiration = None
        if self.expire_at_ms is not None:
            after_ms = self.config.producer_id_expiration_ms
            expiration = ProducerExpiration(after_ms, self.expire_at_ms)
        return BuildSettings(
            config=self.config,
            target_root=target_root,
            outputs=outputs if self.outputs is None else self.outputs,
            expiration=expiration,
            verify_crc=self.verify_crc,
            force=self.overwrite,
            run_id=run_id,
        )


@dataclass(frozen=True, slots=True)
class BuildJob:
    """A build of what was listed, with the settings of its cluster."""

    request: BuildRequest
    listing: Listing
    segments: SegmentTable
    cluster: FoundCluster

    @classmethod
    def of_listing(cls, request: BuildRequest, listing: Listing) -> Self:
        """Return the build of a listing; its cluster is read."""
        budget = shared_budget(request.config.max_decompressed_bytes)
        cluster = find_cluster(None, listing.data_directories, budget)
        request = replace(request, config=cluster.settings(request.config))
        return cls(request, listing, SegmentTable.of(listing.segments), cluster)

    @contextmanager
    def held(self, run_id: str) -> Iterator[BuildSettings]:
        """Hold the target, and give the settings of the run.

        Raises `InputError` if the output overlaps the input, and `PublishError` if it cannot be
        made, locked or written.
        """
        request, listing = self.request, self.listing
        directories = listing.partition_directories
        with ExitStack() as stack:
            if request.output is None:
                root = None
                stack.enter_context(DirectoryLock.of_data_directories(listing.data_directories))
            else:
                # A link inside a local data directory leads out of it.
                local = [each for each in directories if not is_remote(each)]
                remote = () if request.tiered is None else request.tiered.uris
                root = check_target(request.output, [*request.inputs, *remote, *local])
                stack.enter_context(lock_of_output(root, run_id))
            stack.enter_context(swept_target(root, directories, run_id=run_id))
            yield replace(request.settings(root, run_id), tiered=listing.tiered)

    def run(
        self,
        settings: BuildSettings,
        engine: Engine,
        listener: BuildJobListener,
        *,
        fail_fast: bool = False,
    ) -> None:
        """Build the partitions that are not right as they are; the listener gets all rows."""
        parts = []
        for members, rows in UnchangedPartitions(settings).split(self.segments):
            if rows is None:
                parts.append(members)
            else:
                listener.on_unchanged(rows)
        left = SegmentTable(parts)
        if not left:
            return
        directories = [each.directory for each in left.partitions]
        outputs = sorted({os.path.dirname(each) for each in directories})
        with engine.start(
            "build",
            after_failure=AFTER_FAILURE,
            listener=listener,
            works=len(left),
            inputs=directories,
            outputs=outputs if settings.target_root is None else [settings.target_root],
        ) as workers:
            build_logs(workers, left, settings, listener=listener, fail_fast=fail_fast)


class BuiltRows(Listener):
    """Collects the final rows of segments."""

    def __init__(self) -> None:
        self._reports: list[SegmentReport] = []
        self._unchanged: list[pa.Table] = []

    def on_scanned(self, row: SegmentReport) -> None:
        """Wait for the final row."""

    def on_report(self, row: SegmentReport) -> None:
        """Keep the final row of a segment."""
        self._reports.append(row)

    def on_unchanged(self, rows: pa.Table) -> None:
        """Keep the rows of a partition."""
        self._unchanged.append(rows)

    def result(self) -> BuildResult:
        """Return all rows, sorted."""
        tables = (*self._unchanged, report_table(self._reports))
        rows = pa.concat_tables([table.select(REPORT_SCHEMA.names) for table in tables])
        marked = report_rows(rows.filter(pc.is_valid(rows["reason"])))
        faults = [row.retriable for row in marked if row.is_damage]
        return BuildResult(rows.sort_by(_ORDER), RunOutcome.of_faults(faults))


@dataclass(frozen=True, repr=False)
class BuildResult(TableResult):
    """The result of `build_indexes`: a row per segment, as in ``build --report``.

    Parameters
    ----------
    rows : pa.Table
        Sorted by topic, partition and base offset. A damaged segment has the status ``truncated``
        or ``failed``, or the reason code ``overlap``.
    ended : RunOutcome
        Damage where a segment is damaged, the environment where another build may do better.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    command = "build"

    @property
    def headline(self) -> str:
        """The number of segments by status."""
        counts = Counter(self.rows["status"].to_pylist())
        found = ", ".join(f"{counts[each]:,} {each}" for each in STATUSES if counts[each])
        return f"segments: {found or 'none'}"

    @property
    def counts(self) -> Mapping[str, int]:
        """Segments by status, and index entries."""
        counts = Counter(self.rows["status"].to_pylist())
        entries = {
            name: pc.sum(self.rows[name]).as_py() or 0
            for name in ("offset_entries", "time_entries")
        }
        return {**{f"segments_{each}": counts[each] for each in STATUSES}, **entries}

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the logs."""
        return {"logs": pc.sum(self.rows["log_size_bytes"]).as_py() or 0}

    def _shown(self) -> pa.Table:
        """Return the segments that are not right, or all of them where all are."""
        sound = pa.array([BUILT, UNCHANGED])
        bad = self.rows.filter(pc.invert(pc.is_in(self.rows["status"], sound)))
        return (bad if bad.num_rows else self.rows).select(_SHOWN)

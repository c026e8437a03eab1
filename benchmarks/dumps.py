"""Dumps to look into: partitions that share one log, with index files that this tool built."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kafka_index.commands.build.log_build import build_logs
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import INDEX_OUTPUTS
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile


def make_dump(dump: Path, log: Path, partitions: int) -> Path:
    """Make a data directory whose partitions all have this one log, under many names."""
    for number in range(partitions):
        other = dump / f"topic-{number}" / log.name
        other.parent.mkdir(parents=True)
        os.link(log, other)
    segments = list_dump([str(dump)], topics=None).segments
    build(segments, BuildSettings(verify_crc=False, outputs=INDEX_OUTPUTS))
    return dump


def build(segments: Sequence[SegmentFile], settings: BuildSettings) -> None:
    """Build with one thread; every segment has to go well."""
    statuses = Statuses()
    with ThreadEngine(1).start("build") as workers:
        build_logs(workers, segments, settings, listener=statuses)
    if statuses.found != ["built"] * len(segments):
        raise RuntimeError(f"{len(segments)} segments were not all built: {set(statuses.found)}")


class Statuses:
    """Takes the rows of a build."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def on_scanned(self, row: SegmentReport) -> None:
        """Only the final rows count."""

    def on_report(self, row: SegmentReport) -> None:
        self.found.append(row.status)

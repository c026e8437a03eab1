"""Dumps to look into: partitions that share one log, with index files that this tool built."""

from __future__ import annotations

import os
from pathlib import Path

from kafka_index.build import BuildSettings, plan_build, run_local
from kafka_index.storage import list_dump


def make_dump(dump: Path, log: Path, partitions: int) -> Path:
    """Make a data directory whose partitions all have this one log, under many names."""
    for number in range(partitions):
        other = dump / f"topic-{number}" / log.name
        other.parent.mkdir(parents=True)
        os.link(log, other)
    segments = list_dump([str(dump)], topics=None).segments
    statuses: list[str] = []
    run_local(
        plan_build(segments, bins=partitions),
        BuildSettings(verify_crc=False),
        threads=1,
        on_report=lambda row: statuses.append(row.status),
    )
    if statuses != ["built"] * partitions:
        raise RuntimeError(f"the indexes of {dump} are not built: {set(statuses)}")
    return dump

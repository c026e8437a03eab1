"""Index files of known partitions, and all answers with them."""

from __future__ import annotations

from pathlib import Path

from kafka_index.reading.answers import Finding, Resolve
from tests.support.partition_twin import Twin
from tests.support.partitions import (
    Partition,
    Row,
    Segment,
    ask_offsets,
    ask_times,
    offset_file,
    time_file,
)

OFFSET, TIME = ".index", ".timeindex"
SUFFIXES = (OFFSET, TIME)
ENTRY_BYTES = {OFFSET: 8, TIME: 12}
FURTHER = (Resolve.BATCH, Resolve.RECORD)


def answers(plain: Partition, directory: Path) -> tuple[list[list[Row]], list[Finding]]:
    """All answers further than index files, without entries; and what was found."""
    with plain.open(directory) as log:
        rows = []
        for resolve in FURTHER:
            rows.append(ask_offsets(log, plain.offsets, resolve))
            rows.append(ask_times(log, plain.times, resolve))
        return [[row.without_entry for row in one] for one in rows], log.take_findings()


def right_answers(plain: Partition) -> list[list[Row]]:
    """The expected `answers`."""
    twin = Twin(plain)
    rows = []
    for resolve in FURTHER:
        rows.append([twin.offset(offset, resolve) for offset in plain.offsets])
        rows.append([twin.time(time, resolve) for time in plain.times])
    return [[row.without_entry for row in one] for one in rows]


def file_of(segment: Segment, suffix: str, plain: Partition) -> bytes:
    """The right index file for a segment."""
    offsets, times = segment.entries(plain.interval)
    return offset_file(segment, offsets) if suffix == OFFSET else time_file(segment, times)

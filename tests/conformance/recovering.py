"""One segment through Kafka's recovery, on a copy of its own, in a form that can be compared."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge
    from .segments import Segment

PARTITION = "topic-0"


@dataclass(frozen=True)
class Recovered:
    """What is left of a segment; everything but `refusal` is None when it was refused."""

    valid_bytes: int | None = None
    next_offset: int | None = None
    offset_index: bytes | None = None
    time_index: bytes | None = None
    refusal: str | None = None


def write_log(directory: Path, segment: Segment) -> Path:
    """Path of the segment's log in a fresh partition directory under `directory`."""
    partition = directory / PARTITION
    shutil.rmtree(directory, ignore_errors=True)
    partition.mkdir(parents=True)
    log_path = partition / f"{segment.base_offset:020d}.log"
    log_path.write_bytes(segment.log)
    return log_path


def recovered_by_kafka(judge: Judge, directory: Path, segment: Segment) -> Recovered:
    """Kafka's answer, from a copy under `directory`."""
    log_path = write_log(directory, segment)
    result = judge.recover(
        log_path.parent,
        segment.base_offset,
        segment.index_interval_bytes,
        segment.segment_index_bytes,
    )
    if result.truncated_bytes is None:
        return Recovered(refusal=f"{result.error_class}: {result.error_message}")
    valid_bytes = log_path.stat().st_size
    assert valid_bytes == len(segment.log) - result.truncated_bytes
    return Recovered(
        valid_bytes=valid_bytes,
        next_offset=result.next_offset,
        offset_index=log_path.with_suffix(".index").read_bytes(),
        time_index=log_path.with_suffix(".timeindex").read_bytes(),
    )

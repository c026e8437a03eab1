"""The result of recovery of one segment, in a form to compare a build and Kafka."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kafka_index.build import build_segment_files
from kafka_index.config import IndexConfig
from tests.support.segments import BATCH_HEADER_SIZE, CODEC_MASK, CONTROL, LOG_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.segments import Segment

PARTITION = "topic-0"
#: The refusal of a wrong setting, which has no code of its own.
NO_ROOM = "the largest index size is less than one entry"


@dataclass(frozen=True)
class Recovered:
    """The result for a segment; when it was refused, only the refusal.

    `valid_bytes`, `next_offset`, `offset_index`, `time_index`: what recovery leaves; None when it
    fails. `refusal`: the kind of failure, in the words of our reports. `reason`: the message about
    it, or about why the log was cut; not compared.
    """

    valid_bytes: int | None = None
    next_offset: int | None = None
    offset_index: bytes | None = None
    time_index: bytes | None = None
    refusal: str | None = None
    reason: str | None = field(default=None, compare=False)


def write_log(directory: Path, segment: Segment) -> Path:
    """Path of the segment's log in a fresh partition directory under `directory`."""
    partition = directory / PARTITION
    shutil.rmtree(directory, ignore_errors=True)
    partition.mkdir(parents=True)
    log_path = partition / f"{segment.base_offset:020d}.log"
    log_path.write_bytes(segment.log)
    return log_path


def recovered_by_build(directory: Path, segment: Segment) -> Recovered:
    """The build's answer, from a copy under `directory`, its status and the log checked."""
    log_path = write_log(directory, segment)
    target = directory / "built"
    target.mkdir()
    config = IndexConfig(
        index_interval_bytes=segment.index_interval_bytes,
        index_size_max_bytes=segment.segment_index_bytes,
    )
    report = build_segment_files(log_path, target, config=config)
    assert log_path.read_bytes() == segment.log
    if report.status == "failed":
        assert report.reason
        return Recovered(
            refusal=NO_ROOM if NO_ROOM in report.reason else report.reason_code,
            reason=report.reason,
        )
    assert report.counts is not None
    is_whole = report.counts.valid_bytes == len(segment.log)
    assert report.status == ("built" if is_whole else "truncated")
    return Recovered(
        valid_bytes=report.counts.valid_bytes,
        next_offset=report.counts.next_offset,
        offset_index=(target / log_path.name).with_suffix(".index").read_bytes(),
        time_index=(target / log_path.name).with_suffix(".timeindex").read_bytes(),
        reason=report.reason,
    )


def compressed_marker_refused(segment: Segment, left: Recovered) -> bool:
    """Return whether a build refused a compressed control batch, which Kafka would unpack.

    The one refusal of a segment that is not Kafka's (docs/conformance.md). That there is such a
    batch is checked.
    """
    if left.refusal != "compressed_marker":
        return False
    assert any(
        attributes & CONTROL and attributes & CODEC_MASK and producer_id >= 0 and count
        for attributes, producer_id, count in _record_batches(segment.log)
    )
    return True


def ends_in_a_wrapper_that_goes_back(segment: Segment, kafka: Recovered, built: Recovered) -> bool:
    """Return whether Kafka alone counts a segment as empty, because offsets in it go back.

    It compares the last index entry with the first offset inside a compressed message, where a
    build takes the offset of the message's header (docs/conformance.md).
    """
    return (
        kafka.next_offset == segment.base_offset
        and replace(built, next_offset=kafka.next_offset) == kafka
        and offsets_go_back(segment.log)
        and any(magic < 2 and codec for _, magic, codec in _entries(segment.log))
    )


def offsets_go_back(log: bytes) -> bool:
    """Return whether a batch ends below the one before it."""
    offsets = [last_offset for last_offset, _, _ in _entries(log)]
    return any(later < earlier for earlier, later in pairwise(offsets))


def _entries(log: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield last offset, magic and codec of each entry."""
    at = 0
    while at + LOG_OVERHEAD + 6 <= len(log):
        offset, length, magic, attributes = struct.unpack_from(">qi4xbB", log, at)
        if length <= 0:
            return
        if magic < 2:
            yield offset, magic, attributes & CODEC_MASK
        elif at + BATCH_HEADER_SIZE <= len(log):
            attributes, delta = struct.unpack_from(">hi", log, at + 21)
            yield offset + delta, magic, attributes & CODEC_MASK
        at += LOG_OVERHEAD + length


def _record_batches(log: bytes) -> Iterator[tuple[int, int, int]]:
    at = 0
    while at + BATCH_HEADER_SIZE <= len(log):
        length, magic = struct.unpack_from(">i4xb", log, at + 8)
        if length <= 0:
            return
        if magic >= 2:
            yield struct.unpack_from(">h20xq6xi", log, at + 21)
        at += LOG_OVERHEAD + length

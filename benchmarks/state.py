"""One core: a build of all files of a partition against one of its two indexes alone.

Besides the indexes that is the transaction index, the producers' snapshots and the leader epochs:
what was found of these in each segment is written aside, read again and joined, and everything is
published.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from benchmarks.dumps import build
from benchmarks.logs import varint, warm
from kafka_index.core.format.names import LOG_SUFFIX, segment_file_name
from kafka_index.core.format.records import RECORD_BATCH_HEADER, TRANSACTIONAL_MASK, field_position
from kafka_index.core.log.choices import ALL_OUTPUTS, INDEX_OUTPUTS, BuildOutput
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile

_SEGMENTS = 4
_SEGMENT_BYTES = 256 << 20
_ROUNDS = 7
_CRC = field_position(RECORD_BATCH_HEADER, "crc")
_COVERED = field_position(RECORD_BATCH_HEADER, "attributes")
_AT_A_TIME_BYTES = 32 << 20
_CONTROL_AND_TRANSACTIONAL = 0x30
_MARKER_KEY = b"\x00\x00\x00"  # version, then the type: 0 aborts, 1 commits
_PRODUCERS = 50


@dataclass(frozen=True)
class Kind:
    """A kind of log.

    Parameters
    ----------
    name : str
        For the table.
    batches_a_transaction : int
        One of them is its marker; 0 for a log without transactions.
    goal : float
        Speed with everything on, as a share of that of the indexes alone.
    has_producers : bool
        Whether batches have producer ids and sequences.
    """

    name: str
    batches_a_transaction: int
    goal: float
    has_producers: bool = True


_KINDS = (
    Kind("no producers", 0, 0.8, has_producers=False),
    Kind("idempotent", 0, 0.8),
    Kind("transactions of 10", 10, 0.5),
    Kind("transactions of 1", 2, 0.5),
)


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    print(f"Build of {_SEGMENTS} x {_SEGMENT_BYTES >> 20} MiB, one core, GB/s, verified (medians)")
    print("batch bytes  log                   indexes   everything   share   worst   goal")
    reached = True
    for batch_bytes in (200, 1024):
        for kind in _KINDS:
            dump = _dump(scratch, kind, batch_bytes)
            segments = list_dump([str(dump)], topics=None).segments
            for segment in segments:
                warm(Path(segment.log_path))
            once = partial(_seconds, segments, scratch / "state-target")
            once(ALL_OUTPUTS)
            pairs = [(once(INDEX_OUTPUTS), once(ALL_OUTPUTS)) for _ in range(_ROUNDS)]
            shares = sorted(alone / everything for alone, everything in pairs)
            share = statistics.median(shares)
            gigabytes = _SEGMENTS * _SEGMENT_BYTES / 1e9
            alone, everything = (statistics.median(one) for one in zip(*pairs, strict=True))
            reached &= share >= kind.goal
            print(
                f"{batch_bytes:11d}  {kind.name:20s} {gigabytes / alone:8.2f} "
                f"{gigabytes / everything:12.2f} {share:7.2f} {shares[0]:7.2f} {kind.goal:6.1f}",
                flush=True,
            )
            shutil.rmtree(dump)
    shutil.rmtree(scratch / "state-target")
    return reached


def _seconds(
    segments: Sequence[SegmentFile], target: Path, outputs: frozenset[BuildOutput]
) -> float:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    settings = BuildSettings(target_root=str(target), outputs=outputs)
    started = time.perf_counter()
    build(segments, settings)
    return time.perf_counter() - started


def _dump(scratch: Path, kind: Kind, batch_bytes: int) -> Path:
    dump = scratch / "state-logs"
    shutil.rmtree(dump, ignore_errors=True)
    directory = dump / "topic-0"
    directory.mkdir(parents=True)
    per_segment = _SEGMENT_BYTES // batch_bytes
    at_a_time = _AT_A_TIME_BYTES // batch_bytes
    for segment in range(_SEGMENTS):
        first = segment * per_segment
        path = directory / segment_file_name(first, LOG_SUFFIX)
        with path.open("wb", buffering=0) as file:
            for start in range(first, first + per_segment, at_a_time):
                count = min(at_a_time, first + per_segment - start)
                file.write(_batches(kind, start, count, batch_bytes).data)
    return dump


def _batches(kind: Kind, first: int, count: int, size: int) -> NDArray[np.uint8]:
    """Batches of one record each, the offset of which is the batch's number."""
    number = np.arange(first, first + count)
    header = np.zeros(count, RECORD_BATCH_HEADER)
    header["base_offset"] = number
    header["length"] = size - 12
    header["magic"] = 2
    header["base_timestamp_ms"] = header["max_timestamp_ms"] = 1_700_000_000_000 + number
    header["producer_id"] = header["producer_epoch"] = header["base_sequence"] = -1
    header["record_count"] = 1
    body = np.zeros((count, size - RECORD_BATCH_HEADER.itemsize), np.uint8)
    body[:] = np.frombuffer(_record(body.shape[1], None), np.uint8)
    if kind.has_producers:
        each = kind.batches_a_transaction or 1
        header["producer_id"] = number // each % _PRODUCERS
        header["producer_epoch"] = 0
        header["base_sequence"] = number // each // _PRODUCERS * each + number % each
    if kind.batches_a_transaction:
        header["attributes"] = TRANSACTIONAL_MASK
        is_marker = number % kind.batches_a_transaction == kind.batches_a_transaction - 1
        header["attributes"][is_marker] = _CONTROL_AND_TRANSACTIONAL
        aborts = is_marker & (number // kind.batches_a_transaction % 4 == 0)
        for rows, control_type in ((is_marker & ~aborts, 1), (aborts, 0)):
            body[rows] = np.frombuffer(_record(body.shape[1], control_type), np.uint8)
    data = np.concatenate((header.view(np.uint8).reshape(count, -1), body), axis=1)
    crcs = [google_crc32c.value(row[_COVERED:].tobytes()) for row in data]
    data[:, _CRC : _CRC + 4] = np.array(crcs, ">u4").view(np.uint8).reshape(count, 4)
    return data


def _record(size: int, control_type: int | None) -> bytes:
    """A record of a size: of data, or a marker, whose value may be longer than it needs."""
    key = b"\x01" if control_type is None else b"\x08" + _MARKER_KEY + bytes([control_type])
    for value_bytes in range(size, 0, -1):
        inner = b"\x00\x00\x00" + key + varint(value_bytes) + bytes(value_bytes) + b"\x00"
        record = varint(len(inner)) + inner
        if len(record) == size:
            return record
    raise ValueError(f"no record has {size} bytes")

"""Index files of known partitions, and all answers with them."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import strategies as st

from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import LookupFinding
from tests.support.partition_model import PartitionModel
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
FURTHER = (Resolve.BATCH, Resolve.RECORD)


def answers(plain: Partition, directory: Path) -> tuple[list[list[Row]], list[LookupFinding]]:
    """All answers further than index files, without entries; and what was found."""
    with plain.open(directory) as log:
        rows = []
        for resolve in FURTHER:
            rows.append(ask_offsets(log, plain.offsets, resolve))
            rows.append(ask_times(log, plain.times, resolve))
        return [[row.without_entry for row in one] for one in rows], log.take_findings()


def right_answers(plain: Partition) -> list[list[Row]]:
    """The expected `answers`."""
    model = PartitionModel(plain)
    rows = []
    for resolve in FURTHER:
        rows.append([model.offset(offset, resolve) for offset in plain.offsets])
        rows.append([model.time(time, resolve) for time in plain.times])
    return [[row.without_entry for row in one] for one in rows]


def file_of(segment: Segment, suffix: str, plain: Partition) -> bytes:
    """The right index file for a segment."""
    offsets, times = segment.entries(plain.interval)
    return offset_file(segment, offsets) if suffix == OFFSET else time_file(segment, times)


PREALLOCATED_BYTES = 10 * 1024 * 1024
ENTRY_BYTES = {".index": 8, ".timeindex": 12}
DAMAGES = ("missing", "empty", "cut", "zero", "flip", "swap", "garbage", "longer", "preallocated")


def index_files(directory: Path) -> list[Path]:
    """The index files of a partition directory."""
    return sorted(path for suffix in ENTRY_BYTES for path in directory.glob(f"*{suffix}"))


def damage(path: Path, how: str, at: int, junk: bytes, other: bytes) -> None:
    """Damage an index file.

    `path`: the file. `how`: one of `DAMAGES`. `at`: where, modulo the size; of a flipped bit the
    bit is meant. `junk`, `other`: any bytes, and those of another index file.
    """
    data = bytearray(path.read_bytes())
    place = at % max(len(data), 1)
    match how:
        case "missing":
            path.unlink()
            return
        case "preallocated":
            # As a broker that was killed leaves the files of its active segment.
            entry_bytes = ENTRY_BYTES[path.suffix]
            os.truncate(path, PREALLOCATED_BYTES // entry_bytes * entry_bytes)
            return
        case "empty":
            data.clear()
        case "cut":
            del data[place:]
        case "zero":
            size = len(junk) + 1
            data[place : place + size] = bytes(len(data[place : place + size]))
        case "flip" if data:
            bit = at % (8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        case "swap":
            data = bytearray(other)
        case "longer":
            data += junk + b"\1"
        case _:
            data = bytearray(junk)
    path.write_bytes(data)


@st.composite
def damaged_indexes(draw: st.DrawFn, directory: Path) -> str:
    """Damage some of the index files of a partition directory, and return how."""
    files = index_files(directory)
    contents = [path.read_bytes() for path in files]
    done = []
    for path, data in zip(files, contents, strict=True):
        how = draw(st.sampled_from(("none", *DAMAGES)))
        if how != "none":
            at = draw(st.integers(0, max(8 * len(data) - 1, 0)))
            junk = draw(st.binary(max_size=40))
            damage(path, how, at, junk, draw(st.sampled_from(contents)))
            done.append(f"{path.name}: {how} at {at}")
    return ", ".join(done)

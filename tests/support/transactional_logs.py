"""Partitions whose producers, transactions and leader epochs run across segments, as logs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from kafka_index.build.partition_record import PARTITION_RECORD
from tests.support.segments import batch, marker

_DATA, _PLAIN, _ABORT, _COMMIT = range(4)


def segments(
    count: int,
    *,
    batches: int = 30,
    producers: int = 6,
    base_offset: int = 0,
    value_size: int = 40,
    turned: bool = False,
) -> dict[int, bytes]:
    """Logs by base offset, whose transactions are open at most boundaries between them.

    `turned`: what commits aborts, and what aborts commits; the offsets are the same.
    """
    entries = _entries(random.Random(7), producers, base_offset, value_size, turned=turned)
    logs = {}
    for number in range(count):
        taken = [next(entries) for _ in range(batches)]
        logs[taken[0][0]] = b"".join(
            data[:12] + (number // 2).to_bytes(4) + data[16:] for _, data in taken
        )
    return logs


def _entries(
    some: random.Random, producers: int, offset: int, value_size: int, *, turned: bool
) -> Iterator[tuple[int, bytes]]:
    """Batches without an end, each with its base offset."""
    opened: set[int] = set()
    sequences = dict.fromkeys(range(producers), 0)
    while True:
        who = some.randrange(producers)
        time = 1_700_000_000_000 + offset
        kind = some.choice((_DATA, _DATA, _PLAIN, _ABORT, _COMMIT))
        if kind == _PLAIN or (kind in (_ABORT, _COMMIT) and who not in opened):
            yield offset, batch(offset, 2, timestamps=[time, time + 1])
            offset += 2
        elif kind == _DATA:
            opened.add(who)
            data = batch(
                offset, 3, value_size, [time] * 3, 4000 + who, 0, sequences[who], transactional=True
            )
            yield offset, data
            sequences[who] += 3
            offset += 3
        else:
            opened.discard(who)
            commit = (kind == _COMMIT) != turned
            yield offset, marker(offset, 4000 + who, 0, commit=commit, timestamp=time)
            offset += 1


def write(folder: Path, logs: dict[int, bytes], *, day: int = 0) -> Path:
    """Write logs into a partition's folder, on a day; return the data directory around it."""
    folder.mkdir(parents=True, exist_ok=True)
    for base_offset, log in logs.items():
        path = log_path(folder, base_offset)
        path.write_bytes(log)
        os.utime(path, (day * 86400, day * 86400))
    return folder.parent


def log_path(folder: Path, base_offset: int) -> Path:
    """The path of a segment's log."""
    return folder / f"{base_offset:020d}.log"


def built_files(root: Path) -> dict[str, bytes]:
    """Everything that builds leave below a folder, by relative path.

    Without the records of partitions, which have times in them.
    """
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("*/*"))
        if not path.name.endswith((".log", ".log.swap", PARTITION_RECORD))
    }

"""Partitions whose producers, transactions and leader epochs run across segments, as logs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from kafka_index.core.log.recovery.build_manifest import BUILD_MANIFEST
from tests.support.kernel_models import (
    ABORT,
    COMMIT,
    CONTROL,
    EMPTY,
    INVALID,
    REFUSED,
    TRANSACTIONAL,
    ProducerRow,
)
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
        if not path.name.endswith((".log", ".log.swap", BUILD_MANIFEST))
    }


#: A move: what happens, whose, and three numbers that shape it.
_MOVES = st.tuples(
    st.integers(0, 19), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)
)
_IDS = (0, 1, 16, 2**32, 5, 1 << 40 | 1)


@st.composite
def random_histories(draw: st.DrawFn, *, wild: bool = False) -> list[ProducerRow]:
    """Batches of up to six producers; a wild history also holds what recovery refuses."""
    rows: list[ProducerRow] = []
    offset = draw(st.sampled_from((0, 7, 5000)))
    leader_epoch = 0
    epochs = dict.fromkeys(_IDS, 0)
    opened: set[int] = set()
    for kind, who, size, jump, twist in draw(st.lists(_MOVES, max_size=40)):
        producer = _IDS[who]
        if jump == 9:
            offset += 5
        if twist == 9:
            leader_epoch += 1 + size % 2
        elif twist == 8 and leader_epoch:
            leader_epoch -= 1
        if twist == 7:
            epochs[producer] += 1
        row = ProducerRow(
            offset,
            producer,
            producer_epoch=epochs[producer],
            base_sequence=(0, 3, 2**31 - 2, -1)[size % 4],
            last_offset_delta=size % 3,
            timestamp_ms=1000 + 7 * twist + jump,
            coordinator_epoch=twist // 3,
            leader_epoch=-1 if jump == 8 else leader_epoch,
        )
        row = _shaped(row, kind, opened, wild=wild and jump == 7)
        rows.append(row)
        offset = row.base_offset + row.last_offset_delta + 1
        if wild and jump == 6 and twist == 6:
            offset = max(offset - 4, 0)
    return rows


def _shaped(  # noqa: PLR0911, one for each kind of batch
    row: ProducerRow, kind: int, opened: set[int], *, wild: bool
) -> ProducerRow:
    producer = row.producer_id
    values = {name: getattr(row, name) for name in row.__dataclass_fields__}

    def changed(**more: int) -> ProducerRow:
        return ProducerRow(**(values | more))

    if wild and kind in (0, 1, 2, 3):
        types = (INVALID, REFUSED, 2, ABORT)
        return changed(
            attributes=CONTROL | TRANSACTIONAL, control_type=types[kind], last_offset_delta=0
        )
    if wild and kind == 4:
        return changed(attributes=0)
    if kind in (0, 1, 2, 3):
        opened.discard(producer)
        return changed(
            attributes=CONTROL | TRANSACTIONAL,
            control_type=ABORT if kind < 3 else COMMIT,
            last_offset_delta=0,
        )
    if kind == 4:
        return changed(attributes=CONTROL | TRANSACTIONAL, control_type=EMPTY, last_offset_delta=0)
    if kind < 8:
        return changed(producer_id=-1, producer_epoch=-1, base_sequence=-1)
    if kind < 12 and producer not in opened:
        return row
    opened.add(producer)
    return changed(attributes=TRANSACTIONAL)

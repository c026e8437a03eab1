"""Histories of a partition's producers, drawn batch by batch, mostly as a broker has them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.producer_twin import (
    ABORT,
    COMMIT,
    CONTROL,
    EMPTY,
    INVALID,
    REFUSED,
    TRANSACTIONAL,
    ProducerRow,
)

#: A move: what happens, whose, and three numbers that shape it.
_MOVES = st.tuples(
    st.integers(0, 19), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)
)
_IDS = (0, 1, 16, 2**32, 5, 1 << 40 | 1)


@st.composite
def histories(draw: st.DrawFn, *, wild: bool = False) -> list[ProducerRow]:
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

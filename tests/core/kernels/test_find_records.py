"""Searches for records that many targets share against one search for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.kernels import batch_header
from kafka_index.core.kernels import find_records as finder
from kafka_index.core.kernels.records import EMPTY_SECTION, RecordSection
from tests.support import seek_model
from tests.support.campaign import sample_size
from tests.support.seek_model import Damage, Given
from tests.support.segments import batch, message, packed_batch, record

SNAPPY = 2
MAGIC_AT = 16
UNTOUCHED = -77
NOTHING = np.frombuffer(b"", np.uint8)
TIMES = st.integers(-2, 12)
#: The answer and, where there is a record, its offset, timestamp and epoch.
Answer = tuple[int, ...]


@dataclass(frozen=True)
class Log:
    """A log, and the records of its compressed batches by position."""

    data: bytes
    given: Mapping[int, Given] = field(default_factory=dict)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Batches of every kind: compacted, empty, of the broker's time, compressed, old, broken."""
    data = b""
    given_records: dict[int, Given] = {}
    following = 0
    for _ in range(draw(st.integers(0, 8))):
        offset = following + draw(st.sampled_from((0, 0, 0, 2)))
        deltas = sorted(draw(st.sets(st.integers(0, 4), max_size=4)))
        records = [(delta, draw(TIMES)) for delta in deltas]
        last = max(deltas, default=0) + draw(st.sampled_from((0, 0, 2)))
        magic = draw(st.sampled_from((2, 2, 2, 1, 0)))
        packed = draw(st.integers(0, 3)) == 0
        if packed:
            whole = draw(st.integers(0, 3)) > 0
            given_records[len(data)] = [(offset + one, time) for one, time in records], whole
        if magic == 2:
            data += _batch(draw, offset, records, last, packed=packed)
        else:
            shown = offset + last if packed else offset
            last = shown - offset
            data += message(shown, magic, draw(TIMES), b"v", attributes=SNAPPY if packed else 0)
        following = offset + last + 1
    return Log(data, given_records)


def _batch(
    draw: st.DrawFn, offset: int, records: list[tuple[int, int]], last: int, *, packed: bool
) -> bytes:
    if packed:
        return batch(
            offset,
            0,
            attributes=SNAPPY,
            last_offset_delta=last,
            max_timestamp=draw(TIMES),
            payload=b"what only the caller can unpack",
            leader_epoch=draw(st.integers(-1, 3)),
        )
    return packed_batch(
        offset,
        records,
        value_size=draw(st.sampled_from((0, 5, 200))),
        last_offset_delta=last,
        max_timestamp=draw(TIMES) if draw(st.booleans()) else None,
        log_append_ms=draw(TIMES) if draw(st.integers(0, 3)) == 0 else None,
        leader_epoch=draw(st.integers(-1, 3)),
    )


def longs(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def find(
    log: Log, targets: Sequence[int], batches: Sequence[int], starting_offset: int | None = None
) -> list[Answer]:
    """Search as a segment does, handing in records when they are needed."""
    return search(log, targets, batches, starting_offset)[0]


def search(
    log: Log, targets: Sequence[int], batches: Sequence[int], starting_offset: int | None
) -> tuple[list[Answer], list[int]]:
    """The answers, and which batches had to be unpacked."""
    data = np.frombuffer(log.data, np.uint8)
    array = np.full((finder.FOUND_ROWS, len(targets)), UNTOUCHED, np.int64)
    state = finder.new_state()
    given, memory = EMPTY_SECTION, NOTHING
    opened = []
    while True:
        code = finder.find_records(
            np.uint64(data.ctypes.data),
            len(data),
            starting_offset is not None,
            -(2**63) if starting_offset is None else starting_offset,
            longs(targets),
            longs(batches),
            tuple(given),
            state,
            array,
        )
        if code == finder.FIND_DONE:
            break
        position = int(state[finder.STATE_OPEN])
        opened.append(position)
        records, whole = log.given[position]
        given, memory = section_of(records)
        state[finder.STATE_FAULT] = finder.FAULT_NONE if whole else finder.FAULT_RECORD
    assert len(memory) == int(given.end - given.start)
    rows = [tuple(column) for column in array.T.tolist()]
    return [row if row[0] >= 0 else row[:1] for row in rows], opened


def section_of(records: Sequence[tuple[int, int]]) -> tuple[RecordSection, NDArray[np.uint8]]:
    """Records as they lie decompressed, and the memory that holds them."""
    data = b"".join(record(offset, time, None, None) for offset, time in records)
    memory = np.frombuffer(data, np.uint8)
    start = np.uint64(memory.ctypes.data)
    end = start + np.uint64(len(memory))
    return RecordSection(start, end, len(records), 0, 0, 0, 0, 0), memory


def answer(log: Log, start: int, target: int, starting_offset: int | None) -> Answer:
    if start < 0:
        return (start,)
    try:
        result = seek_model.search_record(
            log.data, start, target, log.given, starting_offset=starting_offset
        )
    except Damage as damage:
        return (int(batch_header.damage_at(damage.position)),)
    return (batch_header.AT_END,) if result is None else tuple(result)


def damaged(data: st.DataObject, log: Log) -> Log:
    """The log with a few bytes changed; what is compressed by accident cannot be unpacked."""
    changed = bytearray(log.data)
    for _ in range(data.draw(st.integers(0, 3)) if changed else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    return Log(bytes(changed), _Unpacked(log.given))


class _Unpacked(dict[int, Given]):
    def __missing__(self, key: int) -> Given:
        return [], False


# -------------------------------------------------------------------------------- searches


@settings(max_examples=sample_size(150, one_in=4))
@given(logs(), st.data())
def test_shared_record_search_by_offset_equals_single_searches(
    log: Log, data: st.DataObject
) -> None:
    broken = damaged(data, log) if data.draw(st.booleans()) else log
    targets = sorted(data.draw(st.lists(st.integers(0, 50), max_size=25)))
    starts = [_start(broken, target) for target in targets]
    assert find(broken, targets, starts) == [
        answer(broken, start, target, None) for start, target in zip(starts, targets, strict=True)
    ]


def _start(log: Log, target: int) -> int:
    """The first batch that ends at or after an offset."""
    try:
        for header in seek_model.headers_from(log.data, 0):
            if header.last_offset >= target:
                return header.position
    except Damage as damage:
        return int(batch_header.damage_at(damage.position))
    return batch_header.AT_END


@settings(max_examples=sample_size(150, one_in=4))
@given(logs(), st.integers(0, 20), st.data())
def test_shared_record_search_by_timestamp_equals_single_searches(
    log: Log, starting_offset: int, data: st.DataObject
) -> None:
    broken = damaged(data, log) if data.draw(st.booleans()) else log
    targets = sorted(data.draw(st.lists(st.integers(-2, 13), max_size=25)))
    starts = []
    for target in targets:
        try:
            starts.append(seek_model.search_time(broken.data, 0, target))
        except Damage as damage:
            starts.append(int(batch_header.damage_at(damage.position)))
    assert find(broken, targets, starts, starting_offset) == [
        answer(broken, start, target, starting_offset)
        for start, target in zip(starts, targets, strict=True)
    ]


def test_batch_is_decompressed_once_for_all_targets_in_it() -> None:
    packed = batch(0, 0, attributes=SNAPPY, payload=b"?", last_offset_delta=9)
    log = Log(packed + batch(10), {0: ([(2, 5), (4, 7)], True)})
    assert search(log, [0, 1, 2, 3, 4, 5, 11], [0] * 6 + [len(packed)], None)[1] == [0]


def test_damage_after_the_counted_records_affects_only_later_records() -> None:
    packed = batch(0, 0, attributes=SNAPPY, payload=b"?", last_offset_delta=9)
    log = Log(packed, {0: ([(2, 5)], False)})
    assert find(log, [1, 3], [0, 0]) == [(0, 2, 5, 0), (int(batch_header.damage_at(0)),)]


# --------------------------------------------------------------------------------- damage


def test_malformed_record_affects_only_later_records() -> None:
    payload = record(0, 0, None, b"a") + record(1, 1, None, b"b") + b"\x05"
    log = Log(batch(0, 3, timestamps=[4, 5, 6], payload=payload) + batch(3))
    damage = (int(batch_header.damage_at(0)),)
    assert find(log, [0, 1, 2], [0] * 3) == [(0, 0, 4, 0), (0, 1, 5, 0), damage]


def test_trailing_bytes_hide_the_last_record() -> None:
    payload = record(0, 0, None, b"a") + record(1, 1, None, b"b") + b"\0"
    log = Log(batch(0, 2, timestamps=[4, 5], payload=payload))
    assert find(log, [0, 1], [0, 0]) == [(0, 0, 4, 0), (int(batch_header.damage_at(0)),)]


def test_negative_count_of_records_is_damage() -> None:
    assert find(Log(batch(0, record_count=-1)), [0], [0]) == [(int(batch_header.damage_at(0)),)]


@pytest.mark.parametrize(
    ("entry", "begin"),
    [
        (batch(0), 17),
        (batch(5, 1, 3000), 17),
        (message(0, 1, 5, b"v"), 12),
        (message(0, 0, value=b"v" * 700), 12),
    ],
    ids=["small", "large", "1", "0"],
)
def test_changed_byte_of_checksum_or_content_is_detected(entry: bytes, begin: int) -> None:
    data = np.frombuffer(entry, np.uint8).copy()
    address = np.uint64(data.ctypes.data)
    assert batch_header.checksum_matches(address, len(data))
    for at in range(begin, len(data)):
        if at == MAGIC_AT:
            continue  # another magic has its checksum elsewhere
        data[at] ^= 0x10
        assert not batch_header.checksum_matches(address, len(data)), at
        data[at] ^= 0x10

"""The fold over segments against one pass over all batches, and tables that grow by chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import InputError
from kafka_index.core.format.records import PRODUCER_STATE_ENTRY
from kafka_index.core.log.state.partition_state import (
    PartitionState,
    ProducerExpiration,
    ProducerTable,
    SegmentState,
)
from kafka_index.core.log.state.snapshots import decode_snapshot
from tests.support.campaign import sample_size
from tests.support.kernel_models import (
    ABORT,
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    ProducerModel,
    ProducerRow,
    Refusal,
    ScanEnd,
    aborted_rows,
    columns,
    entry_rows,
)
from tests.support.transactional_logs import random_histories

Outcome = tuple[object, ...]


def cut(rows: list[ProducerRow], cuts: list[int]) -> list[list[ProducerRow]]:
    """The rows in segments; some may be empty."""
    edges = [0, *sorted(min(place, len(rows)) for place in cuts), len(rows)]
    return [rows[start:end] for start, end in pairwise(edges)]


def by_hand(segments: list[list[ProducerRow]]) -> list[Outcome]:
    """The state at the end of each segment, up to the first that recovery fails on."""
    model = ProducerModel()
    outcomes: list[Outcome] = []
    for rows in segments:
        model.begin_segment()
        try:
            for row in rows:
                model.follow(row)
        except ScanEnd:
            pass
        except Refusal as refusal:
            return [*outcomes, (str(refusal),)]
        outcomes.append((dict(model.producers), list(model.epochs), list(model.aborted)))
    return outcomes


def by_folding(segments: list[list[ProducerRow]], chunk: int = 1000) -> list[Outcome]:
    """The same through tables of segments that know nothing of each other."""
    state = PartitionState()
    outcomes: list[Outcome] = []
    for rows in segments:
        table = ProducerTable()
        stop = None
        for first in range(0, len(rows), chunk):
            _, stop = table.follow(columns(rows[first : first + chunk], first))
            if stop is not None:
                break
        if stop is None or not stop.refused:
            state.reload()
            aborted, stop = state.apply(SegmentState.of_table(table))
        if stop is not None and stop.refused:
            return [*outcomes, (stop.code,)]
        epochs = [(entry.epoch, entry.start_offset) for entry in state.epochs.entries]
        outcomes.append((entry_rows(state.entries), epochs, aborted_rows(aborted)))
    return outcomes


@settings(deadline=None, max_examples=sample_size(600, one_in=4))
@given(random_histories(), st.lists(st.integers(0, 40), max_size=4), st.sampled_from((1, 3, 1000)))
def test_merged_segment_states_equal_one_scan(
    rows: list[ProducerRow], cuts: list[int], chunk: int
) -> None:
    segments = cut(rows, cuts)
    assert by_folding(segments, chunk) == by_hand(segments)


@settings(deadline=None, max_examples=sample_size(600, one_in=4))
@given(random_histories(wild=True), st.lists(st.integers(0, 40), max_size=3))
def test_merged_states_of_random_segments_equal_one_scan(
    rows: list[ProducerRow], cuts: list[int]
) -> None:
    segments = cut(rows, cuts)
    folded, passed = by_folding(segments), by_hand(segments)
    assert len(folded) == len(passed)
    assert folded[:-1] == passed[:-1]
    # A segment may have two reasons to fail; which of them is reported does not matter.
    assert (len(folded[-1]) == 1) == (len(passed[-1]) == 1)
    if len(folded[-1]) > 1:
        assert folded[-1] == passed[-1]


@settings(deadline=None, max_examples=sample_size(100, one_in=4))
@given(random_histories())
def test_written_segment_state_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[ProducerRow]
) -> None:
    table = ProducerTable()
    table.follow(columns(rows))
    result = SegmentState.of_table(table)
    path = str(tmp_path_factory.mktemp("state") / "state")
    result.write(path)
    read = SegmentState.read(path)
    for name in ("producers", "aborts", "epochs"):
        assert np.array_equal(getattr(read, name), getattr(result, name))


def test_damaged_state_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=str(path)):
        SegmentState.read(str(path))


def test_state_tables_grow_on_demand() -> None:
    ids = [7 * number for number in range(3000)]
    rows = [opens(offset, producer_id) for offset, producer_id in enumerate(ids)]
    rows += [ends(3000 + number, producer_id) for number, producer_id in enumerate(reversed(ids))]
    table = ProducerTable()
    assert table.follow(columns(rows)) == (6000, None)
    assert len(table.producers) == 3000
    # Each ends while earlier ones are open; the last to end is the first that began.
    assert table.aborts["next_open_offset"].tolist() == [0] * 2999 + [-1]


def test_list_of_open_transactions_does_not_grow_with_those_that_have_ended() -> None:
    rows = [opens(0, 99)]
    for offset in range(1, 20_001, 2):
        rows += [opens(offset, offset % 10), ends(offset + 1, offset % 10, COMMIT)]
    table = ProducerTable()
    table.follow(columns(rows))
    assert table.producers["current_txn_first_offset"].max() == 0
    assert len(table._tables.open_transactions) <= 128


def test_transaction_of_two_segments_is_in_the_index_of_the_second() -> None:
    state = PartitionState()
    first, second = ProducerTable(), ProducerTable()
    first.follow(columns([opens(5, 1), opens(6, 2)]))
    second.follow(columns([ends(7, 2), ends(8, 1)]))
    assert len(state.apply(SegmentState.of_table(first))[0]) == 0
    aborted, _ = state.apply(SegmentState.of_table(second))
    assert aborted_rows(aborted) == [(2, 6, 7, 5), (1, 5, 8, 9)]


def test_expired_producer_is_not_loaded_unless_its_transaction_is_open() -> None:
    state = PartitionState(expiration=ProducerExpiration(after_ms=100, now_ms=1100))
    table = ProducerTable()
    rows = [ProducerRow(0, 1, timestamp_ms=1000), ProducerRow(1, 2, timestamp_ms=1001)]
    table.follow(columns([*rows, replace(opens(2, 3), timestamp_ms=1)]))
    state.apply(SegmentState.of_table(table))
    assert set(entry_rows(state.entries)) == {1, 2, 3}
    state.reload()
    assert set(entry_rows(state.entries)) == {2, 3}


def test_state_read_from_its_snapshot_is_equal() -> None:
    state = PartitionState()
    table = ProducerTable()
    table.follow(columns([opens(0, 17), ProducerRow(1, 1), ProducerRow(2, 33)]))
    state.apply(SegmentState.of_table(table))
    entries = decode_snapshot(state.snapshot())
    assert entries.dtype == PRODUCER_STATE_ENTRY
    assert entries["producer_id"].tolist() == [17, 1, 33]  # one bucket of 16: in insertion order
    assert entry_rows(PartitionState(entries).entries) == entry_rows(state.entries)


def test_sequence_after_the_largest_is_zero() -> None:
    table = ProducerTable()
    table.follow(columns([ProducerRow(0, 1, base_sequence=2**31 - 2, last_offset_delta=3)]))
    assert table.producers["last_sequence"].tolist() == [1]


def opens(offset: int, producer_id: int) -> ProducerRow:
    return ProducerRow(offset, producer_id, TRANSACTIONAL)


def ends(offset: int, producer_id: int, kind: int = ABORT) -> ProducerRow:
    return ProducerRow(offset, producer_id, CONTROL | TRANSACTIONAL, kind)

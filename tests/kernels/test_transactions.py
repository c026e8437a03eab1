"""Producers and epochs in hash tables against dicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.kernels import transactions
from kafka_index.kernels.markers import (
    CONTROL_EMPTY,
    CONTROL_INVALID,
    CONTROL_NONE,
    CONTROL_REFUSED,
)
from kafka_index.layout.records import CONTROL_MASK, TRANSACTIONAL_MASK
from kafka_index.log.batch_table import BatchColumns
from kafka_index.log.producer_check import ProducerCheck
from tests.kernels import twins
from tests.kernels.twins import ProducerRow

ABORT, COMMIT = 0, 1
DATA, TRANSACTION = 0, TRANSACTIONAL_MASK

REASONS = {
    transactions.PRODUCERS_MARKER_INVALID: "invalid_marker",
    transactions.PRODUCERS_MARKER_REFUSED: "unreadable_marker",
    transactions.PRODUCERS_NOT_TRANSACTIONAL: "not_transactional",
    transactions.PRODUCERS_TRANSACTION_UNKNOWN: "transaction_unknown",
    transactions.PRODUCERS_ABORT_OFFSET_BACKWARD: "abort_offset_backward",
    transactions.PRODUCERS_EPOCH_OFFSET_NEGATIVE: "epoch_offset_negative",
}

OPENS = st.just((TRANSACTION, CONTROL_NONE))
ENDS = st.sampled_from([(CONTROL_MASK | TRANSACTION, kind) for kind in (ABORT, COMMIT)])
ODD = st.sampled_from(
    [
        (DATA, CONTROL_NONE),
        (CONTROL_MASK, CONTROL_EMPTY),
        (CONTROL_MASK, CONTROL_INVALID),
        (CONTROL_MASK, CONTROL_REFUSED),
        (CONTROL_MASK, 2),
    ]
)


@st.composite
def logs(draw: st.DrawFn) -> list[ProducerRow]:
    """Batches of a few producers, mostly of transactions that open and end."""
    few = st.sampled_from((-1, 0, 1, 2, 2**31, 2**63 - 1))
    kinds = st.one_of(*[OPENS] * 4, *[ENDS] * 4, ODD)
    rows = []
    offset = draw(st.sampled_from((-3, 0, 100)))
    for _ in range(draw(st.integers(0, 40))):
        offset += draw(st.sampled_from((1, 1, 1, 1, 1, 1, 5, 0, -1)))
        attributes, control = draw(kinds)
        rows.append(ProducerRow(offset, draw(st.integers(-1, 2)), draw(few), attributes, control))
    return rows


def columns(rows: list[ProducerRow]) -> BatchColumns:
    """The rows as a chunk; the position of a batch is its row."""
    longs = np.array(
        [
            (row.base_offset, row.leader_epoch, row.producer_id, row.attributes, row.control_type)
            for row in rows
        ],
        np.int64,
    ).reshape(-1, 5)
    base_offset, leader_epoch, producer_id, attributes, control_type = longs.T.copy()
    zeros = np.zeros(len(rows), np.int64)
    return BatchColumns(
        position_bytes=np.arange(len(rows)),
        size_bytes=zeros,
        base_offset=base_offset,
        last_offset=base_offset,
        max_timestamp_ms=zeros,
        leader_epoch=leader_epoch,
        attributes=attributes,
        producer_id=producer_id,
        control_type=control_type,
    )


def followed(rows: list[ProducerRow], check: ProducerCheck | None = None) -> tuple[int, str | None]:
    """How many batches are taken up, and the reason to stop."""
    taken, stop = (check or ProducerCheck()).follow(columns(rows))
    if stop is not None:
        assert stop.position_bytes == taken - 1
        assert stop.refused == (stop.reason != "invalid_marker")
    return taken, None if stop is None else stop.reason


def followed_by_hand(rows: list[ProducerRow]) -> tuple[int, str | None]:
    producers = twins.Producers()
    for number, row in enumerate(rows):
        code = producers.follow(row)
        if code != transactions.PRODUCERS_OK:
            return number + 1, REASONS[code]
    return len(rows), None


def opens(offset: int, producer_id: int) -> ProducerRow:
    return ProducerRow(offset, 0, producer_id, TRANSACTION, CONTROL_NONE)


def ends(offset: int, producer_id: int, kind: int = COMMIT) -> ProducerRow:
    return ProducerRow(offset, 0, producer_id, CONTROL_MASK | TRANSACTION, kind)


def plain(offset: int, producer_id: int) -> ProducerRow:
    return ProducerRow(offset, 0, producer_id, DATA, CONTROL_NONE)


@settings(deadline=None, max_examples=400)
@given(logs())
def test_producers_are_followed_as_with_dicts(rows: list[ProducerRow]) -> None:
    assert followed(rows) == followed_by_hand(rows)


@settings(deadline=None, max_examples=100)
@given(logs(), st.integers(0, 40))
def test_chunks_make_no_difference(rows: list[ProducerRow], cut: int) -> None:
    check = ProducerCheck()
    taken, reason = followed(rows[:cut], check)
    if reason is None and rows[cut:]:
        more, reason = followed(rows[cut:], check)
        taken += more
    assert (taken, reason) == followed_by_hand(rows)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3000), st.randoms(use_true_random=False))
def test_tables_grow_with_open_transactions(count: int, random: object) -> None:
    ids = list(range(0, 7 * count, 7))
    random.shuffle(ids)  # type: ignore[attr-defined]
    rows = [opens(offset, one) for offset, one in enumerate(ids)]
    rows += [ends(count + number, one, number % 2) for number, one in enumerate(sorted(ids))]
    rows += [plain(3 * count + number, one) for number, one in enumerate(ids)]
    assert followed(rows) == (3 * count, None)
    last_open = [*rows[: 2 * count - 1], plain(9 * count, max(ids))]
    assert followed(last_open) == (2 * count, "not_transactional")


def test_tables_do_not_grow_with_transactions_that_have_ended() -> None:
    check = ProducerCheck()
    for offset in range(0, 20_000, 2):
        check.follow(columns([opens(offset, offset % 10), ends(offset + 1, offset % 10)]))
    assert check._keys.shape[1] <= 256


def test_a_transaction_that_opens_again_after_its_end_is_another() -> None:
    rows = [opens(0, 7), opens(1, 7), ends(2, 7), plain(3, 7), opens(4, 7), plain(5, 7)]
    assert followed(rows) == (6, "not_transactional")


@pytest.mark.parametrize("kind", [2, 3, 100])
def test_other_control_types_are_refused(kind: int) -> None:
    assert followed([ends(0, 7, kind)]) == (1, "unreadable_marker")


def test_epochs_matter_without_a_producer_too() -> None:
    assert followed([ProducerRow(-1, 0, -1, DATA, CONTROL_NONE)]) == (1, "epoch_offset_negative")
    assert followed([ProducerRow(-1, -1, -1, DATA, CONTROL_NONE)]) == (1, None)

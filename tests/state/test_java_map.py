"""The order of a Java map that is changed, or computes absent values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.state.snapshots import JavaMapOrder, order_of_computed, order_of_put

IDS = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 40).map(lambda n: 16 * n), unique=True)


@given(ids=IDS)
def test_map_without_removals_has_the_order_of_a_new_map(ids: list[int]) -> None:
    order = JavaMapOrder()
    present: list[int] = []
    for producer_id in ids:
        order.put(producer_id, present)
        present.append(producer_id)
    expected, has_tree = order_of_put(np.array(ids, np.int64))
    if not has_tree:
        assert order.order_of(np.array(ids, np.int64)).tolist() == expected.tolist()


def test_emptied_map_keeps_its_capacity() -> None:
    order = JavaMapOrder()
    for producer_id in range(13):
        order.put(producer_id, range(producer_id))
    # Of 32 buckets: 16 comes after 1; in a new map both shared the first.
    ids = np.array([16, 0, 1])
    assert ids[order.order_of(ids)].tolist() == [0, 1, 16]
    assert ids[JavaMapOrder().order_of(ids)].tolist() == [16, 0, 1]


def test_computed_ids_come_first_in_their_bucket() -> None:
    assert order_of_computed([5, 37, 1]) == [1, 37, 5]


def test_map_of_computed_ids_grows_one_later() -> None:
    # The thirteenth id, 16, still shares the first bucket; the next one doubles the table.
    assert order_of_computed([*range(12), 16])[:2] == [16, 0]
    assert order_of_computed([*range(13), 16])[-1] == 16

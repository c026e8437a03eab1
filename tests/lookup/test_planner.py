"""Whether queries are grouped by partition, and which task then answers which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.lookup.planner import (
    LOCAL_OPEN_SECONDS,
    Grouping,
    PartitionBins,
    Workload,
    bin_partitions,
    choose_grouping,
)

#: Ten million queries over a dump on a local disk.
LOCAL = Workload(
    queries=10_000_000,
    pieces=10,
    partitions=100,
    segments=1_600,
    workers=8,
    max_open_segments=256,
    open_seconds=LOCAL_OPEN_SECONDS,
)


def test_queries_stay_where_they_are_when_opening_is_cheap() -> None:
    choice = choose_grouping(LOCAL)
    assert not choice.grouped
    assert "piece by piece: " in choice.text
    assert "10,000,000 queries to send" in choice.text


def test_queries_are_grouped_when_opening_is_slow() -> None:
    choice = choose_grouping(replace(LOCAL, segments=20_000, open_seconds=0.05))
    assert choice.grouped
    assert choice.text.startswith("queries were grouped by partition: ")
    assert "50 ms each" in choice.text


def test_few_queries_are_not_grouped_however_slow_opening_is() -> None:
    # Ten tasks with a query each open as many segments as one task for each partition would.
    few = replace(LOCAL, queries=10, open_seconds=1.0)
    assert not choose_grouping(few).grouped


@pytest.mark.parametrize("alone", ["partitions", "workers"])
def test_with_one_partition_or_one_worker_there_is_nothing_to_group(alone: str) -> None:
    slow = replace(LOCAL, segments=20_000, open_seconds=1.0)
    choice = choose_grouping(replace(slow, **{alone: 1}))
    assert not choice.grouped
    assert f"one {alone.removesuffix('s')}" in choice.reason


@pytest.mark.parametrize("wish", [Grouping.ALWAYS, Grouping.NEVER])
def test_what_was_asked_for_is_done(wish: Grouping) -> None:
    choice = choose_grouping(LOCAL, wish)
    assert choice.grouped == (wish is Grouping.ALWAYS)
    assert wish.value in choice.reason


def test_a_worker_that_holds_all_segments_opens_each_once() -> None:
    small = replace(LOCAL, segments=200)
    assert small.opens_in_pieces == 8 * 200
    assert small.opens_in_groups == 200


def test_a_worker_that_cannot_hold_all_segments_opens_them_for_every_piece() -> None:
    assert LOCAL.opens_in_pieces == 10 * 1_600


def test_no_queries_open_nothing() -> None:
    assert replace(LOCAL, queries=0, pieces=0).opens_in_pieces == 0
    assert not choose_grouping(replace(LOCAL, queries=0, pieces=0)).grouped


# -------------------------------------------------------------------------------------- bins


def loads_of(places: PartitionBins, queries: list[int], bins: int) -> list[float]:
    """Queries that each bin gets."""
    loads = [0.0] * bins
    for code, count in enumerate(queries):
        own = places.bins[places.starts[code] : places.starts[code + 1]]
        for number in own.tolist():
            loads[number] += count / len(own)
    return loads


def bins_of(queries: list[int], bins: int) -> PartitionBins:
    ones = np.ones(len(queries), np.int64)
    return bin_partitions(np.array(queries, np.int64), ones, bins, open_seconds=0.0)


def test_one_partition_that_has_nearly_all_queries_is_spread_over_bins() -> None:
    queries = [9_000_000, *[100_000] * 10]
    loads = loads_of(bins_of(queries, 8), queries, 8)
    assert max(loads) < 1.2 * sum(queries) / 8


def test_a_partition_of_usual_size_has_one_bin() -> None:
    places = bins_of([1000] * 50, 8)
    assert np.diff(places.starts).tolist() == [1] * 50


def test_segments_weigh_too_where_opening_is_slow() -> None:
    queries = np.array([1_000] * 4, np.int64)
    segments = np.array([1_000, 1, 1, 1], np.int64)
    places = bin_partitions(queries, segments, 2, open_seconds=0.1)
    first, *others = places.bins[places.starts[:-1]].tolist()
    assert first not in others


def test_the_rows_of_a_spread_partition_take_turns() -> None:
    places = PartitionBins(np.array([0, 3, 4]), np.array([5, 6, 7, 2], np.int32))
    codes = np.array([0, 0, 0, 0, 1, 1], np.int32)
    rows = np.array([0, 1, 2, 3, 0, 1])
    assert places.of_rows(codes, rows).tolist() == [5, 6, 7, 5, 2, 2]


def test_bins_are_needed() -> None:
    with pytest.raises(ValueError, match="one bin"):
        bins_of([1], 0)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.integers(1, 20))
def test_no_bin_has_much_more_than_its_fair_share(queries: list[int], bins: int) -> None:
    places = bins_of(queries, bins)
    assert (np.diff(places.starts) >= 1).all()
    assert ((places.bins >= 0) & (places.bins < bins)).all()
    # What every greedy choice keeps: the mean, and at most one share more.
    assert max(loads_of(places, queries, bins)) <= 2 * max(sum(queries) / bins, 1) + 1

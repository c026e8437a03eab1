"""Partitions as numbers, against a dictionary and a sorted list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import Answers
from kafka_index.core.query.inventory import NO_PARTITION, PartitionCodes
from kafka_index.core.query.lookups import grouping_order, iterate_groups, restore_order

NAMES = st.sampled_from(["a", "b", "long.topic-name", "ä", ""])
# The second kind makes the table of cells too large, so that they are searched for.
NUMBERS = st.one_of(st.integers(0, 9), st.sampled_from([2**31 - 1, 10**6]))
ASKED = st.tuples(
    st.one_of(NAMES, st.sampled_from(["unknown", None])),
    st.one_of(NUMBERS, st.sampled_from([-1, -(2**63), 2**63 - 1, 2**32, 2**32 + 1])),
)


def codes_of(known: Sequence[tuple[str, int]]) -> PartitionCodes:
    topics = [topic for topic, _ in known]
    partitions = np.array([partition for _, partition in known], np.int64)
    return PartitionCodes(topics, partitions, np.arange(len(known), dtype=np.int32))


@given(
    known=st.lists(st.tuples(NAMES, NUMBERS), unique=True),
    asked=st.lists(ASKED),
    kind=st.sampled_from(
        [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]
    ),
)
def test_partition_codes_equal_those_of_a_dictionary(
    known: list[tuple[str, int]], asked: list[tuple[str | None, int]], kind: pa.DataType
) -> None:
    plain = {(topic, partition): number for number, (topic, partition) in enumerate(known)}
    topics = pa.array([topic for topic, _ in asked], pa.string()).cast(kind)
    partitions = np.array([partition for _, partition in asked], np.int64)
    result = codes_of(known).find(topics, partitions)
    assert result.tolist() == [
        NO_PARTITION if topic is None else plain.get((topic, partition), NO_PARTITION)
        for topic, partition in asked
    ]


def test_topics_in_chunked_columns_are_found() -> None:
    topics = pa.chunked_array([["a"], [], ["b", "a"]], pa.string())
    assert codes_of([("a", 0), ("b", 0)]).find(topics, np.zeros(3, np.int64)).tolist() == [0, 1, 0]


def test_topic_that_is_not_utf8_has_no_partition() -> None:
    topics = pa.array([b"\xff", b"a"], pa.binary())
    assert codes_of([("a", 0)]).find(topics, np.zeros(2, np.int64)).tolist() == [NO_PARTITION, 0]


@pytest.mark.parametrize("largest", [3, 2**31 - 1])
def test_empty_partition_codes_find_no_partition(largest: int) -> None:
    codes = PartitionCodes([], np.array([], np.int64), np.array([], np.int32))
    assert codes.find(pa.array(["a"]), np.array([largest])).tolist() == [NO_PARTITION]


# Beyond 65,535 a code needs more than the 16 bits that are sorted at once.
CODES = st.lists(st.one_of(st.integers(-1, 5), st.sampled_from([65_534, 65_535, 65_536, 200_000])))


@given(CODES)
def test_grouping_order_is_stable_within_equal_codes(codes: list[int]) -> None:
    order = grouping_order(np.array(codes, np.int32))
    expected = sorted(range(len(codes)), key=codes.__getitem__)
    assert (list(range(len(codes))) if order is None else order.tolist()) == expected


@given(CODES)
def test_groups_contain_the_rows_of_equal_codes(codes: list[int]) -> None:
    codes.sort()
    listing = list(iterate_groups(np.array(codes, np.int32)))
    assert [code for code, _ in listing] == sorted(set(codes))
    assert [codes[rows] for _, rows in listing] == [
        [c] * codes.count(c) for c in sorted(set(codes))
    ]


@given(CODES)
def test_restore_order_returns_answers_to_their_queries(codes: list[int]) -> None:
    order = grouping_order(np.array(codes, np.int32))
    if order is None:
        return
    answers = Answers.empty(len(codes), Resolve.BATCH)
    answers.status[:] = order % 8
    answers.values[:] = order
    back = restore_order(answers, order)
    rows = np.arange(len(codes))
    assert (back.status == rows % 8).all()
    assert (back.values == rows).all()

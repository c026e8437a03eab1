"""Bringing queries of a partition together and their answers back, against sorting a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.lookup.ordering import grouping_order, put_back, runs
from kafka_index.reading.answers import Answers, Resolve

# Beyond 65,535 a code needs more than the 16 bits that are sorted at once.
CODES = st.lists(st.one_of(st.integers(-1, 5), st.sampled_from([65_534, 65_535, 65_536, 200_000])))


@given(CODES)
def test_equal_codes_come_together_in_the_order_they_had(codes: list[int]) -> None:
    order = grouping_order(np.array(codes, np.int32))
    expected = sorted(range(len(codes)), key=codes.__getitem__)
    assert (list(range(len(codes))) if order is None else order.tolist()) == expected


@given(CODES)
def test_runs_are_the_groups_of_equal_codes(codes: list[int]) -> None:
    codes.sort()
    found = list(runs(np.array(codes, np.int32)))
    assert [code for code, _ in found] == sorted(set(codes))
    assert [codes[rows] for _, rows in found] == [[c] * codes.count(c) for c in sorted(set(codes))]


@given(CODES)
def test_answers_come_back_to_their_queries(codes: list[int]) -> None:
    order = grouping_order(np.array(codes, np.int32))
    if order is None:
        return
    answers = Answers.empty(len(codes), Resolve.BATCH)
    answers.status[:] = order % 8
    answers.values[:] = order
    back = put_back(answers, order)
    rows = np.arange(len(codes))
    assert (back.status == rows % 8).all()
    assert (back.values == rows).all()

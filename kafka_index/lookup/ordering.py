"""Bringing the queries of a partition together, and their answers back into order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kafka_index.lookup.inventory.partition_codes import NO_PARTITION, Codes
from kafka_index.lookup.keys import Longs
from kafka_index.reading.answers import Answers

_RADIX_BITS = 16


def grouping_order(codes: Codes) -> Longs | None:
    """Return an order that brings equal codes together, stable; None when they are together."""
    if len(codes) < 2 or not (codes[1:] < codes[:-1]).any():
        return None
    # numpy sorts 16-bit numbers by their digits, which is many times faster than comparing.
    shifted = (codes - NO_PARTITION).astype(np.uint32)
    low = shifted.astype(np.uint16)
    order = np.argsort(low, kind="stable")
    if int(shifted.max()) >> _RADIX_BITS:
        high = (shifted >> _RADIX_BITS).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


def runs(codes: Codes) -> Iterator[tuple[int, slice]]:
    """Return the codes in their groups, and where each group is."""
    if not len(codes):
        return
    starts = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1, [len(codes)]))
    bounds = starts.tolist()
    for start, end in pairwise(bounds):
        yield int(codes[start]), slice(start, end)


def put_back(answers: Answers, order: Longs) -> Answers:
    """Return answers to queries that were ordered in the order they had before."""
    status = np.empty_like(answers.status)
    status[order] = answers.status
    # Column by column: one column's worth of memory is written at random at a time.
    values: NDArray[np.int64] = np.empty_like(answers.values)
    for column, before in zip(values, answers.values, strict=True):
        column[order] = before
    return Answers(status, values)

"""Layouts of what is kept of producers."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kafka_index.layout.records import (
    ABORTED_TXN,
    PRODUCER_STATE_ENTRY,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
)


@pytest.mark.parametrize(
    ("layout", "form", "values"),
    [
        (ABORTED_TXN, ">hqqqq", (0, -2, 3, 2**40, 5)),
        (SNAPSHOT_HEADER, ">hIi", (1, 2**32 - 2, 7)),
        (SNAPSHOT_ENTRY, ">qhiqiqiq", (2**33, 2, 3, 2**34, 5, 2**35, 7, -1)),
    ],
)
def test_fields_follow_each_other_without_gaps_in_big_endian(
    layout: np.dtype[np.void], form: str, values: tuple[int, ...]
) -> None:
    assert layout.itemsize == struct.calcsize(form)
    assert np.array([values], layout).tobytes() == struct.pack(form, *values)


def test_entries_in_memory_have_the_fields_of_those_in_files() -> None:
    assert PRODUCER_STATE_ENTRY.names == SNAPSHOT_ENTRY.names
    assert all(PRODUCER_STATE_ENTRY[name].isnative for name in PRODUCER_STATE_ENTRY.names or ())

"""Offsets and timestamps out of typed columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.errors import InputError
from kafka_index.lookup import By, Keys
from kafka_index.lookup.keys import ceil_divide

INT64 = st.integers(-(2**63), 2**63 - 1)


def times(values: list[Any], kind: pa.DataType) -> list[int | None]:
    keys = Keys.of(pa.array(values, kind), By.TIMESTAMP)
    valid = [True] * len(keys) if keys.valid is None else keys.valid.tolist()
    return [int(v) if ok else None for v, ok in zip(keys.values, valid, strict=True)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8()])
def test_integers_of_any_width_are_taken(kind: pa.DataType) -> None:
    keys = Keys.of(pa.array([1, None, 127], kind), By.OFFSET)
    assert keys.values[[0, 2]].tolist() == [1, 127]
    assert keys.valid is not None
    assert keys.valid.tolist() == [True, False, True]
    assert keys.specials


def test_unsigned_numbers_above_int64_are_no_keys() -> None:
    keys = Keys.of(pa.array([2**63 - 1, 2**63, None], pa.uint64()), By.OFFSET)
    assert keys.valid is not None
    assert keys.valid.tolist() == [True, False, False]
    assert keys.values[0] == 2**63 - 1


def test_columns_in_chunks_and_dictionaries_are_taken() -> None:
    column = pa.chunked_array([[5, 6], [5]]).dictionary_encode()
    assert Keys.of(column, By.OFFSET).values.tolist() == [5, 6, 5]
    assert len(Keys.of(pa.chunked_array([], pa.int64()), By.OFFSET)) == 0


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("s", 7, 7000),
        ("ms", 7, 7),
        ("us", 7000, 7),
        ("us", 7001, 8),
        ("ns", 7_000_000, 7),
        ("ns", 7_000_001, 8),
        ("us", -7001, -7),
        ("s", 2**62, (2**63 - 1) // 1000 * 1000),
    ],
)
def test_timestamps_are_rounded_up_to_milliseconds(unit: str, value: int, expected: int) -> None:
    for zone in (None, "UTC", "Asia/Kolkata"):
        assert times([value, None], pa.timestamp(unit, zone)) == [expected, None]


def test_timestamps_without_a_zone_are_utc() -> None:
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    naive = moment.replace(tzinfo=None)
    expected = [int(moment.timestamp()) * 1000]
    assert times([naive], pa.timestamp("us")) == expected
    assert times([moment], pa.timestamp("us", "Europe/Paris")) == expected


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_begin_at_midnight(kind: pa.DataType) -> None:
    assert times([date(1970, 1, 3), None], kind) == [2 * 86_400_000, None]


def test_only_integers_can_be_special_timestamps() -> None:
    assert Keys.of(pa.array([-1]), By.TIMESTAMP).specials
    assert not Keys.of(pa.array([-1], pa.timestamp("ms")), By.TIMESTAMP).specials


def test_a_timestamp_is_no_offset() -> None:
    with pytest.raises(InputError, match="offsets must be integers"):
        Keys.of(pa.array([1], pa.timestamp("ms")), By.OFFSET)


@given(st.lists(INT64), st.sampled_from([1, 1000, 1_000_000]))
def test_rounding_up_never_overflows(values: list[int], by: int) -> None:
    assert ceil_divide(np.array(values, np.int64), by).tolist() == [-(-v // by) for v in values]

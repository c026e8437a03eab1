"""Offsets and timestamps from typed columns and from text."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import InputError
from kafka_index.core.format.times import parse_iso_time
from kafka_index.core.log.choices import By
from kafka_index.core.query.lookups import Keys, ceil_divide

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001, as texts are
MAY = 1_714_521_600_000  # 2024-05-01T00:00:00Z
INT64 = st.integers(-(2**63), 2**63 - 1)


def times(values: list[Any], kind: pa.DataType) -> list[int | None]:
    keys = Keys.from_column(pa.array(values, kind), By.TIMESTAMP)
    valid = [True] * len(keys) if keys.is_valid is None else keys.is_valid.tolist()
    return [int(v) if ok else None for v, ok in zip(keys.values, valid, strict=True)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8()])
def test_integer_keys_of_any_width_are_accepted(kind: pa.DataType) -> None:
    keys = Keys.from_column(pa.array([1, None, 127], kind), By.OFFSET)
    assert keys.values[[0, 2]].tolist() == [1, 127]
    assert keys.is_valid is not None
    assert keys.is_valid.tolist() == [True, False, True]
    assert keys.specials


def test_unsigned_keys_above_int64_are_invalid() -> None:
    keys = Keys.from_column(pa.array([2**63 - 1, 2**63, None], pa.uint64()), By.OFFSET)
    assert keys.is_valid is not None
    assert keys.is_valid.tolist() == [True, False, False]
    assert keys.values[0] == 2**63 - 1


def test_chunked_and_dictionary_encoded_key_columns_are_accepted() -> None:
    column = pa.chunked_array([[5, 6], [5]]).dictionary_encode()
    assert Keys.from_column(column, By.OFFSET).values.tolist() == [5, 6, 5]
    assert len(Keys.from_column(pa.chunked_array([], pa.int64()), By.OFFSET)) == 0


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
def test_timestamp_keys_are_rounded_up_to_milliseconds(
    unit: str, value: int, expected: int
) -> None:
    for zone in (None, "UTC", "Asia/Kolkata"):
        assert times([value, None], pa.timestamp(unit, zone)) == [expected, None]


def test_timestamp_keys_without_a_zone_are_utc() -> None:
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    naive = moment.replace(tzinfo=None)
    expected = [int(moment.timestamp()) * 1000]
    assert times([naive], pa.timestamp("us")) == expected
    assert times([moment], pa.timestamp("us", "Europe/Paris")) == expected


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_date_keys_are_midnight_utc(kind: pa.DataType) -> None:
    assert times([date(1970, 1, 3), None], kind) == [2 * 86_400_000, None]


def test_only_integer_keys_can_be_special_timestamps() -> None:
    assert Keys.from_column(pa.array([-1]), By.TIMESTAMP).specials
    assert not Keys.from_column(pa.array([-1], pa.timestamp("ms")), By.TIMESTAMP).specials


def test_timestamp_column_is_rejected_as_offsets() -> None:
    with pytest.raises(InputError, match="the offsets are not integers"):
        Keys.from_column(pa.array([1], pa.timestamp("ms")), By.OFFSET)


@given(st.lists(INT64), st.sampled_from([1, 1000, 1_000_000]))
def test_rounding_up_timestamp_keys_does_not_overflow(values: list[int], by: int) -> None:
    assert ceil_divide(np.array(values, np.int64), by).tolist() == [-(-v // by) for v in values]


# ---------------------------------------------------------------------------------------- text


def text_keys(cells: list[str | None], by: By) -> list[int | None]:
    result = Keys.from_column(pa.array(cells, pa.string()), by)
    assert result.specials
    valid = [True] * len(cells) if result.is_valid is None else result.is_valid.tolist()
    return [int(v) if ok else None for v, ok in zip(result.values, valid, strict=True)]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("0", 0),
        ("007", 7),
        ("-1", -1),
        ("+8", 8),
        (" 9\t", 9),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0000000000000000000000000000000012", 12),
        ("9223372036854775808", None),
        ("99999999999999999999999", None),
        ("0x10", None),
        ("0X10", None),
        ("1_000", None),
        ("1.0", None),
        ("1e3", None),
        ("٣", None),
        ("--1", None),
        ("five", None),
        ("", None),
        (None, None),
        ("2024-05-01", None),
    ],
)
def test_text_cell_is_parsed_as_an_offset_or_is_null(cell: str | None, value: int | None) -> None:
    assert text_keys([cell], By.OFFSET) == [value]
    assert text_keys(["5", cell, None], By.OFFSET) == [5, value, None]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1714521600000", MAY),
        ("-1", -1),
        ("2024-05-01T00:00:00Z", MAY),
        ("2024-05-01 00:00:00Z", MAY),
        ("2024-05-01t00:00:00z", MAY),
        ("2024-05-01T00:00:00", MAY),
        ("2024-05-01T00:00", MAY),
        ("2024-05-01T00", MAY),
        ("2024-05-01", MAY),
        ("2024-05-01T02:00:00+02:00", MAY),
        ("2024-05-01T02:00:00+0200", MAY),
        ("2024-05-01T02:00:00+02", MAY),
        ("2024-05-01 02:00:00 +02:00", MAY),
        ("2024-04-30T18:30:00-05:30", MAY),
        ("2024-05-01T00:00:00.1Z", MAY + 100),
        ("2024-05-01T00:00:00,1Z", MAY + 100),
        ("2024-05-01T00:00:00.000001Z", MAY + 1),
        ("2024-05-01T00:00:00.0000000000001", MAY + 1),
        ("2024-05-01T00:00:00.999000000", MAY + 999),
        ("2024-05-01T00:00:00.9990000001Z", MAY + 1000),
        ("1970-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("1969-12-31T23:59:59.999Z", None),
        ("1969-12-31", None),
        ("0000-01-01", None),
        ("2024-13-01", None),
        ("2024-02-30T00:00:00Z", None),
        ("2024-05-01T24:00:00Z", None),
        ("2024-05-01T00:00:60Z", None),
        ("2024-05-01T00:00:00+24:00", None),
        ("2024-05-01T00:00:00.Z", None),
        ("2024-05-01T", None),
        ("01.05.2024", None),
        ("now", None),
        ("", None),
        (None, None),
    ],
)
def test_text_cell_is_parsed_as_a_time_or_is_null(cell: str | None, value: int | None) -> None:
    assert text_keys([cell], By.TIMESTAMP) == [value]
    # Among cells of other forms it is the same.
    mixed = ["2024-05-01T00:00:00Z", cell, "17", "2024-05-01T00:00:00.5+01:00", None, "x"]
    assert text_keys(mixed, By.TIMESTAMP) == [MAY, value, 17, MAY - 3_599_500, None, None]


@given(
    st.lists(
        st.tuples(
            st.datetimes(EPOCH.replace(day=2), datetime(2200, 1, 1)),  # noqa: DTZ001, as texts are
            st.sampled_from(["Z", "+00:00", "-07:30", "+0530", "+13"]),
        ),
        min_size=1,
    ),
    st.sampled_from([[], ["2024-05-01"]]),
)
def test_column_of_times_is_parsed_like_single_cells(
    moments: list[tuple[datetime, str]], others: list[str]
) -> None:
    cells = [moment.isoformat() + zone for moment, zone in moments] + others
    assert text_keys(list(cells), By.TIMESTAMP) == [parse_iso_time(cell) for cell in cells]


@given(st.datetimes(EPOCH))
def test_parsed_time_is_rounded_up_to_the_next_millisecond(moment: datetime) -> None:
    expected = -((EPOCH - moment) // timedelta(milliseconds=1))
    assert parse_iso_time(moment.isoformat()) == expected
    assert parse_iso_time(moment.replace(tzinfo=UTC).isoformat()) == expected


def test_empty_column_has_no_keys() -> None:
    assert text_keys([], By.OFFSET) == []
    assert text_keys([], By.TIMESTAMP) == []

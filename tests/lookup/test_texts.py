"""Numbers and times out of the cells of texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.layout.times import parse_iso_time
from kafka_index.lookup import By
from kafka_index.lookup.queries.texts import text_integers, text_keys

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001, as texts are
MAY = 1_714_521_600_000  # 2024-05-01T00:00:00Z


def keys(cells: list[str | None], by: By) -> list[int | None]:
    found = text_keys(pa.array(cells, pa.string()), by)
    assert found.specials
    valid = [True] * len(cells) if found.valid is None else found.valid.tolist()
    return [int(v) if ok else None for v, ok in zip(found.values, valid, strict=True)]


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
def test_a_cell_is_an_offset_or_nothing(cell: str | None, value: int | None) -> None:
    assert keys([cell], By.OFFSET) == [value]
    assert keys(["5", cell, None], By.OFFSET) == [5, value, None]


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
def test_a_cell_is_a_time_or_nothing(cell: str | None, value: int | None) -> None:
    assert keys([cell], By.TIMESTAMP) == [value]
    # Among cells of other forms it is the same.
    mixed = ["2024-05-01T00:00:00Z", cell, "17", "2024-05-01T00:00:00.5+01:00", None, "x"]
    assert keys(mixed, By.TIMESTAMP) == [MAY, value, 17, MAY - 3_599_500, None, None]


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
def test_columns_of_times_are_parsed_as_cell_by_cell(
    moments: list[tuple[datetime, str]], others: list[str]
) -> None:
    cells = [moment.isoformat() + zone for moment, zone in moments] + others
    assert keys(list(cells), By.TIMESTAMP) == [parse_iso_time(cell) for cell in cells]


@given(st.datetimes(EPOCH))
def test_a_time_is_the_first_millisecond_at_or_after(moment: datetime) -> None:
    expected = -((EPOCH - moment) // timedelta(milliseconds=1))
    assert parse_iso_time(moment.isoformat()) == expected
    assert parse_iso_time(moment.replace(tzinfo=UTC).isoformat()) == expected


def test_bytes_that_are_no_text_are_no_number() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32))
    cells = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"\xff5"))
    assert text_integers(cells)[1].tolist() == [False, True]  # type: ignore[union-attr]
    assert text_keys(cells, By.TIMESTAMP).valid.tolist() == [False, True]  # type: ignore[union-attr]


def test_no_cells_are_no_keys() -> None:
    assert keys([], By.OFFSET) == []
    assert keys([], By.TIMESTAMP) == []

"""Times as commands, functions and data sources take them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.times import Time, is_relative, parse_time

MAY = 1_714_521_600_000
DAY = 86_400_000
NOW = MAY + 12 * 3_600_000 + 7


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (MAY, MAY),
        (str(MAY), MAY),
        (np.int64(MAY), MAY),
        (0, 0),
        ("0", 0),
        (10**11, 10**11),
        (INT64_MAX, INT64_MAX),
        ("ms:1714521600", 1_714_521_600),
        ("ms:7", 7),
        (f"ms:{MAY * 1000}", MAY * 1000),
        ("2024-05-01", MAY),
        (" 2024-05-01T02:00+02:00 ", MAY),
        ("2024-05-01T00:00:00.0001Z", MAY + 1),
        ("2026-11-21T02:25:01.4310001Z", 1_795_227_901_432),
        ("1969-12-31T23:59:59Z", -1000),
        (date(2024, 5, 1), MAY),
        (datetime(2024, 5, 1, tzinfo=UTC), MAY),
        (datetime(2024, 5, 1, 2, microsecond=1, tzinfo=timezone(timedelta(hours=2))), MAY + 1),
        ("now", NOW),
        ("NOW", NOW),
        ("today", MAY),
        ("yesterday", MAY - DAY),
        ("-30s", NOW - 30_000),
        ("-90m", NOW - 5_400_000),
        ("-36h", NOW - 36 * 3_600_000),
        ("-7d", NOW - 7 * DAY),
        ("-2w", NOW - 14 * DAY),
    ],
)
def test_time_is_parsed_to_milliseconds(given: Time, expected: int) -> None:
    assert parse_time(given, now=NOW) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (1_795_245_919, "looks like seconds (2026-11-21T07:25:19.000Z)"),
        ("1795245919", "give 1795245919000, or ms:1795245919"),
        (1, "looks like seconds"),
        (10**11 - 1, "looks like seconds"),
        (1_795_245_919_000_000, "looks like microseconds (2026-11-21T07:25:19.000Z)"),
        (1_795_245_919_000_000_000, "looks like nanoseconds (2026-11-21T07:25:19.000Z)"),
        (-1, "-1 is a time before 1970"),
        ("-90", "a relative time has a unit, as in -90m"),
        (INT64_MAX + 1, "exceeds 64-bit milliseconds"),
        (datetime(2024, 5, 1), "has no time zone"),  # noqa: DTZ001, because that is refused
        (True, "not a time"),
        (1.5, "not a time"),
        (None, "not a time"),
        (b"now", "not a time"),
        ("", "neither milliseconds nor a time"),
        ("tomorrow", "neither milliseconds nor a time"),
        ("+90m", "neither milliseconds nor a time"),
        ("90m", "neither milliseconds nor a time"),
        ("-90M s", "neither milliseconds nor a time"),
        ("-1.5h", "neither milliseconds nor a time"),
        ("-90ms", "neither milliseconds nor a time"),
        ("ms:-7", "neither milliseconds nor a time"),
        ("ms:", "neither milliseconds nor a time"),
        ("1_714_521_600_000", "neither milliseconds nor a time"),
        ("\u0661\u0667", "neither milliseconds nor a time"),
        ("20240501T000000Z", "neither milliseconds nor a time"),
        ("2024-13-01", "neither milliseconds nor a time"),
        ("9" * 5000, "neither milliseconds nor a time"),
    ],
)
def test_invalid_time_or_unit_is_rejected(given: Time, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_time(given, now=NOW)
    assert message in str(error.value)


def test_relative_time_is_recognized() -> None:
    for text in ("now", "today", "Yesterday", " -7d "):
        assert is_relative(text)
    for other in ("2024-05-01", str(MAY), "ms:7", "-7", MAY, date(2024, 5, 1)):
        assert not is_relative(other)

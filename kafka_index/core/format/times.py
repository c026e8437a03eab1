"""Times: parsing for all commands, functions and data sources, and formatting.

A time is ISO 8601 (UTC if it has no zone), a date (midnight in UTC), milliseconds since 1970,
``ms:N``, ``now``, ``today``, ``yesterday`` (midnight in UTC, or with a time of day, as in
``yesterday 10:00``), or relative to now: ``-90m``, ``-36h``, ``-7d``. A number that looks like
seconds, microseconds or nanoseconds is rejected, unless it is given as ``ms:N``.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias

from kafka_index.core.errors import InputError, argument_text
from kafka_index.core.format.integers import INT64_MAX, parse_java_integer

#: A time as accepted by functions.
Time: TypeAlias = int | str | date | datetime

#: Prefix of a number that is certainly in milliseconds.
MILLISECONDS = "ms:"
_EXAMPLES = "2024-05-01T00:00:00Z, 2024-05-01, now, today, yesterday or -90m"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DAY_MS = 24 * 60 * 60 * 1000
_MAX_HOURS, _MAX_MINUTES = 23, 59
_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r" ?(?P<zone>[Zz]|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)?)?)?",
    re.ASCII,
)
_RELATIVE = re.compile(r"-(?P<count>[0-9]{1,12})(?P<unit>[smhdw])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": _DAY_MS, "w": 7 * _DAY_MS}

# Smaller numbers are seconds before the year 5138; larger ones are milliseconds after 1973.
_MAX_SECONDS = 10**11
# Microseconds and nanoseconds from 2001 to 2100, without the maximum int64.
_FINER_UNITS = (
    ("microseconds", 1000, range(10**15, 41 * 10**14)),
    ("nanoseconds", 10**6, range(10**18, 41 * 10**17)),
)


def now_ms() -> int:
    """Return the current time in ms since the epoch.

    A run calls it once, so that all relative times have the same base.
    """
    return time.time_ns() // 1_000_000


def parse_time(value: Time, *, now: int | None = None) -> int:
    """Parse a time to ms since the epoch; earlier times are negative.

    `value` is a number of milliseconds, a text as described above, a date (midnight in UTC), or a
    datetime with a zone. Relative times are relative to `now`, in ms, by default the current time.
    Fractions of a millisecond are rounded up, so that a search for the first record at or after the
    time does not find an earlier record. Raises `InputError` for any other value, or a number that
    looks like another unit than milliseconds.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError("the time has no time zone", found=value.isoformat())
        return -((_EPOCH - value) // _MS)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days * _DAY_MS
    if isinstance(value, str):
        return _parse_text(value.strip(), now_ms() if now is None else now)
    is_number = hasattr(value, "__index__") and not hasattr(value, "__len__")
    if isinstance(value, bool | type) or not is_number:
        raise InputError(
            "the value is not a time",
            expected=f"milliseconds since 1970, or {_EXAMPLES}",
            found=argument_text(value),
        )
    return _check_number(value.__index__())


def _parse_text(text: str, now: int) -> int:
    number = _integer(text)
    if number is not None:
        return _check_number(number)
    if text.startswith(MILLISECONDS):
        number = _integer(text.removeprefix(MILLISECONDS))
        if number is not None and number >= 0:
            return number
    moment = _parse_relative(text.lower(), now)
    if moment is None:
        moment = parse_iso_time(text)
    if moment is None:
        raise InputError(f"{text!r} is neither milliseconds nor a time such as {_EXAMPLES}")
    return moment


def _integer(text: str) -> int | None:
    # ASCII digits only.
    return parse_java_integer(text, INT64_MAX) if text.isascii() else None


def _parse_relative(text: str, now: int) -> int | None:
    """Parse a time that is relative to now, None if the text is not one."""
    midnight = now - now % _DAY_MS
    named_times = {"now": now, "today": midnight, "yesterday": midnight - _DAY_MS}
    if text in named_times:
        return named_times[text]
    day, _, clock = text.partition(" ")
    if clock and day in ("today", "yesterday"):
        # Parsed as a time of day on 1970-01-01.
        since_midnight = parse_iso_time(f"1970-01-01 {clock.strip()}")
        return None if since_midnight is None else named_times[day] + since_midnight
    match = _RELATIVE.fullmatch(text)
    return None if match is None else now - int(match["count"]) * _UNIT_MS[match["unit"]]


def parse_duration_ms(text: str) -> int | None:
    """Parse a duration such as ``90s``, ``5m``, ``2h`` or ``1d`` to ms; None for other texts."""
    started = _parse_relative(f"-{text.strip().lower()}", 0)
    return None if started is None else -started


def is_relative(value: object) -> bool:
    """Return whether the result of parsing the time depends on the current time."""
    return isinstance(value, str) and _parse_relative(value.strip().lower(), 0) is not None


def _check_number(number: int) -> int:
    """Return a number of milliseconds; reject one that looks like another unit."""
    if number < 0:
        raise InputError(
            f"{number} is a time before 1970",
            hint=f"a relative time has a unit, as in {number}m; "
            "milliseconds since 1970 are 0 or more",
        )
    if number > INT64_MAX:
        raise InputError(f"{number} exceeds 64-bit milliseconds")
    unit, milliseconds = None, number
    if 0 < number < _MAX_SECONDS:
        unit, milliseconds = "seconds", number * 1000
    for name, divisor, likely in _FINER_UNITS:
        if number in likely:
            unit, milliseconds = name, number // divisor
    if unit is not None:
        raise InputError(
            f"{number} looks like {unit} ({format_time(milliseconds)}), but times are milliseconds",
            hint=f"give {milliseconds}, or {MILLISECONDS}{number} for milliseconds",
        )
    return number


def parse_iso_time(text: str) -> int | None:
    """Parse an ISO 8601 date or time to ms since the epoch, None if the text is not one.

    The default zone is UTC. Fractions of a millisecond are rounded up.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    parts = [int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    try:
        moment = datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]  # six integers
    except ValueError:
        return None
    hours, minutes = int(match["hours"] or 0), int(match["minutes"] or 0)
    if hours > _MAX_HOURS or minutes > _MAX_MINUTES:
        return None
    east_ms = (hours * 60 + minutes) * 60_000 * (-1 if match["sign"] == "-" else 1)
    fraction = (match["fraction"] or "").ljust(3, "0")
    part_ms = int(fraction[:3]) + bool(fraction[3:].strip("0"))
    return (moment - _EPOCH) // _MS - east_ms + part_ms


def is_between_milliseconds(text: str) -> bool:
    """Return whether an ISO 8601 time has a fraction of a millisecond, and was rounded up."""
    match = _ISO.fullmatch(text)
    return match is not None and bool((match["fraction"] or "")[3:].strip("0"))


def format_time(timestamp_ms: int) -> str | None:
    """Format a time as ``2024-05-01T00:00:00.000Z``; None outside the calendar."""
    try:
        moment = _EPOCH + timestamp_ms * _MS
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_text(timestamp_ms: int) -> str:
    """Format a time for a message, as milliseconds if it is outside the calendar."""
    return format_time(timestamp_ms) or f"{timestamp_ms} ms"


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The range of record timestamps, for messages about empty ranges.

    `first_ms` is the timestamp of the first record, the minimum over several partitions. `last_ms`
    is the largest timestamp. `unknown` counts partitions whose timestamps cannot be read.
    """

    first_ms: int | None = None
    last_ms: int | None = None
    unknown: int = 0

    def with_times(self, first_ms: int | None, last_ms: int | None) -> TimeSpan:
        """Extend the range by the timestamps of other records; -1 and None are no timestamps."""
        firsts = [
            timestamp_ms
            for timestamp_ms in (self.first_ms, first_ms)
            if timestamp_ms is not None and timestamp_ms >= 0
        ]
        lasts = [
            timestamp_ms
            for timestamp_ms in (self.last_ms, last_ms)
            if timestamp_ms is not None and timestamp_ms >= 0
        ]
        return replace(self, first_ms=min(firsts, default=None), last_ms=max(lasts, default=None))

    @property
    def text(self) -> str:
        """The range in words."""
        if self.first_ms is None or self.last_ms is None:
            text = "no record has a timestamp"
        else:
            last = format_time(self.last_ms) or "a time after the year 9999"
            text = f"the first record is from {time_text(self.first_ms)}, the latest from {last}"
        if not self.unknown:
            return text
        noun = "partition" if self.unknown == 1 else "partitions"
        return f"{text}; the times of {self.unknown:,} {noun} cannot be read"


def describe_empty_range(
    from_ms: int | None, to_ms: int | None, span: TimeSpan, source: str = "the input"
) -> str:
    """Describe the position of a time range without records relative to record timestamps.

    `to_ms` is exclusive. `source` is a noun phrase for the logs whose timestamps `span` covers.
    """
    bounds = []
    if from_ms:
        bounds.append(f"from {time_text(from_ms)}")
    if to_ms is not None:
        bounds.append(f"before {time_text(to_ms)}")
    position = f"within the times of {source}"
    if span.last_ms is not None and from_ms is not None and from_ms > span.last_ms:
        position = f"after all records of {source}"
    elif span.first_ms is not None and to_ms is not None and to_ms <= span.first_ms:
        position = f"before the first record of {source}"
    elif span.first_ms is None:
        position = f"not within the times of {source}"
    return f"the time range ({' and '.join(bounds)}) is {position}: {span.text}"

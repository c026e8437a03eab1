"""Parsing of times in ISO 8601: milliseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_MAX_HOURS, _MAX_MINUTES = 23, 59
_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r" ?(?P<zone>[Zz]|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)?)?)?",
    re.ASCII,
)


def parse_iso_time(text: str) -> int | None:
    """Return an ISO 8601 date or time as ms since the epoch; None if the text is not one.

    The default zone is UTC. Fractions of a millisecond are rounded up, so that a search for the
    first record at or after the time does not find an earlier one.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    parts = [int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    try:
        time = datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]  # six integers
    except ValueError:
        return None
    hours, minutes = int(match["hours"] or 0), int(match["minutes"] or 0)
    if hours > _MAX_HOURS or minutes > _MAX_MINUTES:
        return None
    east_ms = (hours * 60 + minutes) * 60_000 * (-1 if match["sign"] == "-" else 1)
    fraction = (match["fraction"] or "").ljust(3, "0")
    part_ms = int(fraction[:3]) + bool(fraction[3:].strip("0"))
    return (time - _EPOCH) // _MS - east_ms + part_ms

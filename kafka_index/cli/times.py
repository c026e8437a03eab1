"""Times as people write and read them: ISO 8601 in UTC, and Kafka's milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kafka_index.layout.times import parse_integer, parse_iso_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_time(text: str) -> tuple[int, bool]:
    """Return milliseconds since 1970, and whether they were given as a number.

    A time without a zone is UTC. Fractions of a millisecond are rounded up: the first one at or
    after.

    Raises
    ------
    ValueError
        It is neither a number of 64 bits nor a time.
    """
    number = parse_integer(text)
    if number is not None:
        return number, True
    time = parse_iso_time(text)
    if time is None:
        raise ValueError("neither milliseconds nor a time")
    return time, False


def format_time(timestamp_ms: int) -> str | None:
    """Return a time as ``2024-05-01T00:00:00.000Z``; None where no calendar goes."""
    try:
        moment = _EPOCH + timestamp_ms * _MILLISECOND
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

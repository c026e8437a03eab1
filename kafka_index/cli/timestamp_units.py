"""Times on the command line that look like seconds, where Kafka's are milliseconds."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_index.cli.text import format_time
from kafka_index.errors import InputError

#: A number with this before it is milliseconds, whatever it looks like.
MILLISECONDS = "ms:"
# Below it numbers are seconds until the year 5138; above it milliseconds from 2001 on.
_SECONDS_BELOW = 10**11
_MILLISECONDS_ABOVE = 10**12


def is_ambiguous(timestamp: int) -> bool:
    """Return whether a number may be meant as seconds."""
    return 0 < timestamp < _SECONDS_BELOW


def refuse_seconds(timestamp: int, log_times_ms: Iterable[int | None], log: str) -> None:
    """Refuse an ambiguous number where a log has times of today.

    Parameters
    ----------
    timestamp : int
        The number.
    log_times_ms : iterable of int or None
        Timestamps of the log.
    log : str
        Its name.

    Raises
    ------
    InputError
        The log has later times than the number could be meant for.
    """
    latest = max((time for time in log_times_ms if time is not None), default=0)
    if not is_ambiguous(timestamp) or latest <= _MILLISECONDS_ABOVE:
        return
    raise InputError(
        f"--timestamp {timestamp} looks like seconds ({format_time(timestamp * 1000)}): timestamps "
        f"are milliseconds, and {log} has records up to {format_time(latest)}",
        hint=f"give {timestamp * 1000}, or {MILLISECONDS}{timestamp} if that is what you mean",
    )

"""A question of one topic, asked by options: its values, checked without any file."""

from __future__ import annotations

from dataclasses import dataclass

import click

from kafka_index.cli.text import parse_time
from kafka_index.cli.timestamp_units import MILLISECONDS, is_ambiguous
from kafka_index.config import parse_integer


@dataclass(frozen=True, slots=True)
class Question:
    """A query about one partition.

    Parameters
    ----------
    topic, partition
        What it asks about.
    by : str
        ``offset`` or ``timestamp``.
    key : int
        The offset, or milliseconds since 1970.
    specials : bool
        Whether -1, -2 and -3 are places instead of times.
    is_ambiguous : bool
        Whether the time is a number that may be meant as seconds.
    """

    topic: str
    partition: int
    by: str
    key: int
    specials: bool
    is_ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class TopicQuestion:
    """A query about several partitions, each by itself.

    Parameters
    ----------
    topic : str
        The topic.
    partitions : tuple of int
        Which partitions; none for all.
    by : str, optional
        ``offset`` or ``timestamp``; None asks only where partitions begin and end.
    key, specials, is_ambiguous
        As for `Question`.
    form : str
        ``table``, ``offsets`` or ``json``.
    """

    topic: str
    partitions: tuple[int, ...]
    by: str | None
    key: int
    specials: bool
    is_ambiguous: bool
    form: str


def make_question(
    topic: str | None,
    partitions: tuple[int, ...],
    offset: int | None,
    timestamp: str | None,
    *,
    as_json: bool,
    as_offsets: bool,
) -> Question | TopicQuestion:
    """Return the query of the options; refuse those that make none."""
    if topic is None:
        raise click.UsageError("a single question needs --topic")
    if offset is not None and timestamp is not None:
        raise click.UsageError("a single question needs --offset or --timestamp, not both")
    if as_json and as_offsets:
        raise click.UsageError("--json and --get-offsets are mutually exclusive")
    by: str | None = "offset"
    key, specials, ambiguous = offset or 0, False, False
    if timestamp is not None:
        by = "timestamp"
        key, specials, ambiguous = _time_of(timestamp)
    elif offset is None:
        by = None
    if len(partitions) == 1 and by is not None and not as_offsets:
        return Question(topic, partitions[0], by, key, specials, ambiguous)
    form = "json" if as_json else "offsets" if as_offsets else "table"
    numbers = tuple(sorted(set(partitions)))
    return TopicQuestion(topic, numbers, by, key, specials, ambiguous, form)


def _time_of(text: str) -> tuple[int, bool, bool]:
    """Return milliseconds, whether they may be special, and whether they may be seconds."""
    plain = parse_integer(text.removeprefix(MILLISECONDS))
    if plain is not None and text.startswith(MILLISECONDS):
        return plain, False, False
    try:
        key, is_number = parse_time(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither milliseconds nor a time such as 2024-05-01T00:00:00Z",
            param_hint="--timestamp",
        ) from error
    return key, is_number, is_number and is_ambiguous(key)

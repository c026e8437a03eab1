"""A question of one topic, asked by options: its values, checked without any file."""

from __future__ import annotations

from dataclasses import dataclass

import click

from kafka_index.cli.numbers import parse_moment
from kafka_index.config import parse_integer

# The special timestamps: -1 to -6.
_PLACES = range(-6, 0)


@dataclass(frozen=True, slots=True)
class Question:
    """A query about one partition, by ``offset`` or ``timestamp``.

    The key is the offset, or milliseconds since 1970. `specials`: -1, -2 and -3 are special
    timestamps instead of times.
    """

    topic: str
    partition: int
    by: str
    key: int
    specials: bool


@dataclass(frozen=True, slots=True)
class TopicQuestion:
    """A query about several partitions of a topic, or all (an empty tuple), each by itself.

    By ``offset`` or ``timestamp``; None asks only for the bounds of partitions. Key and specials
    are as for `Question`. The form is ``table``, ``offsets`` or ``json``.
    """

    topic: str
    partitions: tuple[int, ...]
    by: str | None
    key: int
    specials: bool
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
    key, specials = offset or 0, False
    if timestamp is not None:
        by = "timestamp"
        key, specials = _time_of(timestamp)
    elif offset is None:
        by = None
    if len(partitions) == 1 and by is not None and not as_offsets:
        return Question(topic, partitions[0], by, key, specials)
    form = "json" if as_json else "offsets" if as_offsets else "table"
    numbers = tuple(sorted(set(partitions)))
    return TopicQuestion(topic, numbers, by, key, specials, form)


def _time_of(text: str) -> tuple[int, bool]:
    """Return milliseconds, and whether they stand for a place in the log."""
    number = parse_integer(text)
    if number is not None and number in _PLACES:
        return number, True
    try:
        return parse_moment(text), False
    except click.BadParameter as error:
        error.param_hint = "--timestamp"
        raise

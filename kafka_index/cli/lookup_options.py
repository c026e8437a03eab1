"""The options of a lookup, checked as far as that needs no look at the disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import click

from kafka_index.cli.options import Detail
from kafka_index.cli.text import parse_time
from kafka_index.config import LogConfig


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which logs to look into, and how far.

    Parameters
    ----------
    logs : tuple of str
        Paths as given.
    indexes : str, optional
        Root of the index files; None beside the logs.
    upper_bound : str
        ``log-end`` or ``high-watermark``.
    resolve : str, optional
        ``index``, ``batch`` or ``record``; None: what is usual for the query.
    config : LogConfig
        Kafka's settings, for indexes that are missing.
    """

    logs: tuple[str, ...]
    indexes: str | None
    upper_bound: str
    resolve: str | None
    config: LogConfig


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """Queries of files, answered into files.

    Parameters
    ----------
    queries, output : str
        Paths as given.
    by : str
        ``offset`` or ``timestamp``.
    output_format : str, optional
        ``parquet``, ``csv`` or ``json``; by default that of the queries.
    topics : re.Pattern, optional
        Topics to keep.
    report, starting_offsets, reset_offsets : str, optional
        Paths of what else is written.
    overwrite : bool
        Whether an output that is there is replaced.
    group_by_partition : bool
        Whether Spark shuffles all queries of a partition to one task.
    engine : str
        ``local`` or ``spark``.
    master : str, optional
        Spark's master.
    threads : int
        Of the local engine.
    detail : Detail
        How much to say.
    """

    queries: str
    output: str
    by: str
    output_format: str | None
    topics: re.Pattern[str] | None
    report: str | None
    starting_offsets: str | None
    reset_offsets: str | None
    overwrite: bool
    group_by_partition: bool
    engine: str
    master: str | None
    threads: int
    detail: Detail


@dataclass(frozen=True, slots=True)
class Question:
    """A single query.

    Parameters
    ----------
    topic : str
        Its topic.
    partition : int
        Its partition.
    by : str
        ``offset`` or ``timestamp``.
    key : int
        The offset, or milliseconds since 1970.
    specials : bool
        Whether -1, -2 and -3 are places instead of times.
    """

    topic: str
    partition: int
    by: str
    key: int
    specials: bool


def make_question(
    topic: str | None, partition: int | None, offset: int | None, timestamp: str | None
) -> Question:
    """Return the question that options ask.

    Raises
    ------
    click.UsageError
        They ask none, or two, or the time is none.
    """
    if topic is None or partition is None:
        raise click.UsageError("a single question needs --topic and --partition")
    if (offset is None) == (timestamp is None):
        raise click.UsageError("a single question needs --offset or --timestamp, one of them")
    if timestamp is None:
        return Question(topic, partition, "offset", offset or 0, specials=False)
    try:
        key, specials = parse_time(timestamp)
    except ValueError as error:
        raise click.BadParameter(
            f"{timestamp!r} is neither milliseconds nor a time such as 2024-05-01T00:00:00Z",
            param_hint="--timestamp",
        ) from error
    return Question(topic, partition, "timestamp", key, specials)


def was_given(options: Mapping[str, object]) -> bool:
    """Return whether any of these options was given: those that are None or false were not."""
    return any(value is not None and value is not False for value in options.values())


def refuse_given(options: Mapping[str, object], others: str) -> None:
    """Refuse options that do not go with the others.

    Raises
    ------
    click.UsageError
        One was given.
    """
    for name, value in options.items():
        if was_given({name: value}):
            raise click.UsageError(f"{name} goes with {others}")

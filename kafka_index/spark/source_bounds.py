"""The bounds of a read of ``kafka-log``, checked as Spark's Kafka source checks them."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.spark.option_values import (
    parse_by_partition,
    parse_flag,
    parse_times_by_partition,
)
from kafka_index.tables.bounds import (
    EARLIEST,
    LATEST,
    BoundOptions,
    Offsets,
    Timestamps,
    parse_times,
)


def parse_bounds(options: Mapping[str, str], now: int) -> BoundOptions:
    """Return the bounds; a time for all wins over times by partition, and these over offsets.

    Relative times are relative to an instant.
    """
    start_time = _timestamps(options, "startingtimestamp", "startingoffsetsbytimestamp", now)
    end_time = _timestamps(options, "endingtimestamp", "endingoffsetsbytimestamp", now)
    start = None if start_time is not None else _offsets(options, "startingoffsets", "earliest")
    end = None if end_time is not None else _offsets(options, "endingoffsets", "latest")
    if LATEST in _values(start):
        raise InputError("startingOffsets of a batch read cannot be latest")
    if EARLIEST in _values(end):
        raise InputError("endingOffsets cannot be earliest")
    _check_order(start, end)
    _check_order(start_time, end_time)
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise InputError("not a strategy", expected="error or latest", found=strategy)
    return BoundOptions(
        start,
        end,
        start_time,
        end_time,
        needs_start=strategy == "error",
        needs_offsets=parse_flag(options, "failondataloss", default=True),
        needs_order=True,
    )


def _values(bound: Offsets | Timestamps | None) -> list[int]:
    if isinstance(bound, Mapping):
        return [value for values in bound.values() for value in values.values()]
    return [] if bound is None else [bound]


def _check_order(start: Offsets | Timestamps | None, end: Offsets | Timestamps | None) -> None:
    """Refuse bounds by partition of which one starts after its end, or only one is there."""
    if isinstance(start, int) and isinstance(end, int) and 0 <= end < start:
        raise InputError("the start is after the end", expected=end, found=start)
    if not (isinstance(start, Mapping) and isinstance(end, Mapping)):
        return
    for topic in {*start, *end}:
        starts, ends = start.get(topic, {}), end.get(topic, {})
        for number in {*starts, *ends}:
            name = TopicPartition(topic, number).directory_name
            if number not in starts or number not in ends:
                raise InputError(f"{name} has one bound, and both ends are given by partition")
            if 0 <= ends[number] < starts[number]:
                raise InputError(
                    f"{name} starts after its end", expected=ends[number], found=starts[number]
                )


def _offsets(options: Mapping[str, str], name: str, default: str) -> Offsets:
    text = options.get(name, default).strip()
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    return special if special is not None else parse_by_partition(options, name)


def _timestamps(
    options: Mapping[str, str], for_all: str, by_partition: str, now: int
) -> Timestamps | None:
    name = for_all if for_all in options else by_partition
    if name not in options:
        return None
    try:
        if name == for_all:
            return parse_times(options[name], now)
        return parse_times(parse_times_by_partition(options, name), now)
    except InputError as error:
        raise InputError(f"the option {name} is malformed: {error}") from error

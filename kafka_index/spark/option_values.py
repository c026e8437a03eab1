"""Parse options and bounds of ``kafka-log``, with the checks of Spark's Kafka source.

Functions return values, or raise an `InputError` about the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import Time
from kafka_index.core.query.bounds import (
    EARLIEST,
    LATEST,
    BoundOptions,
    Offsets,
    Timestamps,
    parse_times,
)

_Value = TypeVar("_Value")
# A size in the format of Spark's settings.
_SIZE = re.compile(r"\s*(\d+)\s*([kmgtp]?)i?b?\s*", re.IGNORECASE)


def parse_names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


def parse_json(options: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(options[name])
    except ValueError as error:
        raise malformed(options, name, "JSON") from error


def parse_by_partition(options: Mapping[str, str], name: str) -> dict[str, dict[int, int]]:
    return _parse_by_partition(options, name, lambda value: _parse_integer(value, INT64_MAX))


def parse_times_by_partition(options: Mapping[str, str], name: str) -> dict[str, dict[int, Time]]:
    return _parse_by_partition(
        options,
        name,
        lambda value: value if isinstance(value, str) else _parse_integer(value, INT64_MAX),
    )


def _parse_by_partition(
    options: Mapping[str, str], name: str, convert: Callable[[Any], _Value]
) -> dict[str, dict[int, _Value]]:
    try:
        return {
            topic: {
                _parse_integer(partition, INT32_MAX): convert(value)
                for partition, value in values.items()
            }
            for topic, values in parse_json(options, name).items()
        }
    except (AttributeError, OverflowError, ValueError) as error:
        raise malformed(options, name, '{"topic": {"0": 123}}') from error


def parse_number(options: Mapping[str, str], name: str, default: int, *, minimum: int = 0) -> int:
    try:
        number = _parse_integer(options.get(name, str(default)).strip(), INT64_MAX)
    except ValueError as error:
        raise malformed(options, name, "a number") from error
    if number < minimum:
        raise malformed(options, name, f"{minimum} or more")
    return number


def _parse_integer(value: object, maximum: int) -> int:
    """Parse an integer like Spark's Kafka source, which truncates decimal fractions."""
    number = parse_java_integer(str(int(value) if isinstance(value, float) else value), maximum)
    if number is None:
        raise ValueError(f"{value!r} is not an integer")
    return number


def parse_flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise malformed(options, name, "true or false")
    return text == "true"


def parse_choice(options: Mapping[str, str], name: str, choices: Mapping[str, Any]) -> Any:
    """Return the value of the chosen name, ignoring case; by default, of the first choice."""
    text = options.get(name, next(iter(choices)))
    for choice, value in choices.items():
        if choice.lower() == text.lower():
            return value
    raise malformed(options, name, ", ".join(choices))


def malformed(options: Mapping[str, str], name: str, expected: str) -> InputError:
    return InputError(f"the option {name} is malformed", expected=expected, found=options.get(name))


def parse_bounds(options: Mapping[str, str], now: int) -> BoundOptions:
    """Parse the start and end bounds of a read; relative times are relative to `now`.

    A time for all partitions overrides times by partition, which override offsets.
    """
    start_time = _parse_timestamps(options, "startingtimestamp", "startingoffsetsbytimestamp", now)
    end_time = _parse_timestamps(options, "endingtimestamp", "endingoffsetsbytimestamp", now)
    start = (
        None if start_time is not None else _parse_offsets(options, "startingoffsets", "earliest")
    )
    end = None if end_time is not None else _parse_offsets(options, "endingoffsets", "latest")
    if LATEST in _bound_values(start):
        raise InputError("startingOffsets of a batch read cannot be latest")
    if EARLIEST in _bound_values(end):
        raise InputError("endingOffsets cannot be earliest")
    _check_order(start, end)
    _check_order(start_time, end_time)
    strategies = {"error": True, "latest": False}
    return BoundOptions(
        start,
        end,
        start_time,
        end_time,
        needs_start=parse_choice(options, "startingoffsetsbytimestampstrategy", strategies),
        needs_offsets=parse_flag(options, "failondataloss", default=True),
        needs_order=True,
    )


def _bound_values(bound: Offsets | Timestamps | None) -> list[int]:
    if isinstance(bound, Mapping):
        return [value for values in bound.values() for value in values.values()]
    return [] if bound is None else [bound]


def _check_order(start: Offsets | Timestamps | None, end: Offsets | Timestamps | None) -> None:
    """Reject a start after the end; with bounds by partition, reject a missing start or end."""
    if isinstance(start, int) and isinstance(end, int) and 0 <= end < start:
        raise InputError(
            "the start bound is after the end bound", expected=f"at most {end}", found=start
        )
    if not (isinstance(start, Mapping) and isinstance(end, Mapping)):
        return
    for topic in {*start, *end}:
        starts, ends = start.get(topic, {}), end.get(topic, {})
        for number in {*starts, *ends}:
            name = TopicPartition(topic, number).directory_name
            if number not in starts or number not in ends:
                raise InputError(f"{name} has only one of the start and end bounds by partition")
            if 0 <= ends[number] < starts[number]:
                raise InputError(
                    f"{name} starts after its end",
                    expected=f"at most {ends[number]}",
                    found=starts[number],
                )


def _parse_offsets(options: Mapping[str, str], name: str, default: str) -> Offsets:
    text = options.get(name, default).strip()
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    return special if special is not None else parse_by_partition(options, name)


def _parse_timestamps(
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


def parse_size(text: str, *, unit: str = "") -> int:
    """Parse a size in the format of Spark's settings; 0 if malformed."""
    size = _SIZE.fullmatch(text)
    if size is None:
        return 0
    return int(size[1]) << 10 * " kmgtp".index((size[2] or unit or " ").lower())

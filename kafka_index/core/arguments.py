"""Convert keys, offsets, times and partitions; imports more modules than `core.job.request`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np

from kafka_index.core.errors import InputError, argument_text
from kafka_index.core.format.config import to_list_members
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.job.request import BytesKind, naming, wrong_value
from kafka_index.core.log.filter.selection import read_keys
from kafka_index.core.query.bounds import (
    EARLIEST,
    LATEST,
    Offsets,
    Timestamps,
    parse_times,
    read_offsets_file,
)

_EXAMPLE = "by topic and partition: {'orders': {0: 123}}"


def convert_keys(keys: object, name: str) -> tuple[bytes, ...]:
    """Convert keys, given as a list or a file."""
    if isinstance(keys, str | PathLike):
        return read_keys(path_of(keys, name))
    members = to_list_members(keys)
    if members is None:
        raise wrong_value(
            f"{name} is not a list of keys", "a path, or a list of strings or bytes", keys
        )
    if not members:
        raise InputError(f"{name} is empty")
    return tuple(BytesKind().convert(key, f"{name}: a key", 0) for key in members)


def convert_offsets(offsets: object, name: str) -> dict[str, dict[int, int]]:
    """Convert offsets by topic and partition, from a mapping or a file (`read_offsets_file`)."""
    if isinstance(offsets, str | PathLike):
        return read_offsets_file(path_of(offsets, name))
    if not isinstance(offsets, Mapping):
        raise wrong_value(
            f"{name} is not a table of offsets", f"a file, or offsets {_EXAMPLE}", offsets
        )
    offsets_by_topic: dict[str, dict[int, int]] = {}
    for topic, number, offset in _iterate_partitions(offsets, name):
        offsets_by_topic.setdefault(topic, {})[number] = to_integer(
            offset, f"{name} of {topic}-{number}", minimum=EARLIEST
        )
    return offsets_by_topic


def convert_bounds(bounds: object, name: str) -> Offsets | None:
    """Convert an offset for all partitions, or offsets by topic and partition."""
    if bounds is None or isinstance(bounds, Mapping):
        return None if bounds is None else convert_offsets(bounds, name)
    offset = _python_integer(bounds)
    if offset is not None and EARLIEST <= offset <= INT64_MAX:
        return offset
    raise InputError(
        f"{name} is not an offset",
        expected=f"an offset ({LATEST} is the latest, -2 the earliest), or {_EXAMPLE}",
        found=argument_text(bounds),
    )


def convert_times(given: object, name: str, now: int) -> Timestamps | None:
    """Convert a time for all partitions, or times by topic and partition, to ms."""
    times: Any = given
    if isinstance(given, Mapping):
        times = {}
        for topic, number, time in _iterate_partitions(given, name):
            times.setdefault(topic, {})[number] = time
    with naming(name):
        return parse_times(times, now)


def convert_partitions(partitions: object) -> dict[str, list[int]] | None:
    """Convert partition numbers by topic; raises `ConfigError` for anything else."""
    if partitions is None:
        return None
    if isinstance(partitions, Mapping):
        numbers_by_topic = {
            topic: to_list_members(numbers) for topic, numbers in partitions.items()
        }
        if all(
            isinstance(topic, str) and own is not None for topic, own in numbers_by_topic.items()
        ):
            return {
                topic: [to_integer(number, f"partitions of {topic}") for number in own or ()]
                for topic, own in numbers_by_topic.items()
            }
    raise wrong_value(
        "partitions is not a mapping of topics to numbers",
        "a mapping such as {'orders': [0, 1]}",
        partitions,
    )


def _iterate_partitions(
    mapping: Mapping[object, object], name: str
) -> Iterator[tuple[str, int, object]]:
    """Yield topic, partition number and value. In JSON, partition numbers are strings."""
    for topic, values_by_number in mapping.items():
        if not isinstance(topic, str) or not isinstance(values_by_number, Mapping):
            raise wrong_value(
                f"{name} is not a mapping by topic and partition",
                _EXAMPLE,
                {topic: values_by_number},
            )
        for number, value in values_by_number.items():
            is_text = isinstance(number, str) and number.isascii() and number.isdecimal()
            yield topic, to_integer(int(number) if is_text else number, f"{name} of {topic}"), value


def _python_integer(value: object) -> int | None:
    """Return a Python or numpy integer; None for anything else."""
    if isinstance(value, type | bool | np.bool_ | np.ndarray) or not hasattr(value, "__index__"):
        return None
    return int(value.__index__())


def to_integer(value: object, name: str, *, minimum: int = 0) -> int:
    """Convert a Python or numpy integer; raises `ConfigError` below `minimum` or beyond 64 bits."""
    number = _python_integer(value)
    if number is None or not minimum <= number <= INT64_MAX:
        raise wrong_value(f"{name} is not a valid number", f"{minimum} or more", value)
    return number

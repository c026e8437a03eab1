"""Conversion of keys, offsets, times and partitions; needs more imports than `core.job.request`."""

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


def keys_of(given: object, name: str) -> tuple[bytes, ...]:
    """Convert keys, given as a list or a file."""
    if isinstance(given, str | PathLike):
        return read_keys(path_of(given, name))
    members = to_list_members(given)
    if members is None:
        raise wrong_value(
            f"{name} is not a list of keys", "a path, or a list of text or bytes", given
        )
    if not members:
        raise InputError(f"{name} has no key")
    return tuple(BytesKind().convert(key, f"{name}: a key", 0) for key in members)


def offsets_of(given: object, name: str) -> dict[str, dict[int, int]]:
    """Convert offsets by topic and partition, from a mapping or a file (`read_offsets_file`)."""
    if isinstance(given, str | PathLike):
        return read_offsets_file(path_of(given, name))
    if not isinstance(given, Mapping):
        raise wrong_value(
            f"{name} is not a table of offsets", f"a file, or offsets {_EXAMPLE}", given
        )
    found: dict[str, dict[int, int]] = {}
    for topic, number, offset in _by_partition(given, name):
        found.setdefault(topic, {})[number] = to_integer(
            offset, f"{name} of {topic}-{number}", least=EARLIEST
        )
    return found


def bounds_of(given: object, name: str) -> Offsets | None:
    """Convert an offset for all partitions, or offsets by topic and partition."""
    if given is None or isinstance(given, Mapping):
        return None if given is None else offsets_of(given, name)
    offset = _python_integer(given)
    if offset is not None and EARLIEST <= offset <= INT64_MAX:
        return offset
    raise InputError(
        f"{name} is not an offset",
        expected=f"an offset ({LATEST} is the latest, -2 the earliest), or {_EXAMPLE}",
        found=argument_text(given),
    )


def times_of(given: object, name: str, now: int) -> Timestamps | None:
    """Convert a time for all partitions, or times by topic and partition, to ms."""
    times: Any = given
    if isinstance(given, Mapping):
        times = {}
        for topic, number, time in _by_partition(given, name):
            times.setdefault(topic, {})[number] = time
    with naming(name):
        return parse_times(times, now)


def partitions_of(given: object) -> dict[str, list[int]] | None:
    """Convert partition numbers by topic; raises `ConfigError` for anything else."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = {topic: to_list_members(numbers) for topic, numbers in given.items()}
        if all(isinstance(topic, str) and own is not None for topic, own in found.items()):
            return {
                topic: [to_integer(number, f"partitions of {topic}") for number in own or ()]
                for topic, own in found.items()
            }
    raise wrong_value(
        "partitions is not a mapping of topics to numbers", "such as {'orders': [0, 1]}", given
    )


def _by_partition(given: Mapping[object, object], name: str) -> Iterator[tuple[str, int, object]]:
    """Yield the members of a mapping by topic and partition number, which are strings in JSON."""
    for topic, own in given.items():
        if not isinstance(topic, str) or not isinstance(own, Mapping):
            raise wrong_value(f"{name} is not by topic and partition", _EXAMPLE, {topic: own})
        for number, value in own.items():
            is_text = isinstance(number, str) and number.isascii() and number.isdecimal()
            yield topic, to_integer(int(number) if is_text else number, f"{name} of {topic}"), value


def _python_integer(value: object) -> int | None:
    """Return a Python or numpy integer; None for anything else."""
    if isinstance(value, type | bool | np.bool_ | np.ndarray) or not hasattr(value, "__index__"):
        return None
    return int(value.__index__())


def to_integer(value: object, name: str, *, least: int = 0) -> int:
    """Convert a Python or numpy integer; raises `ConfigError` below `least` or beyond 64 bits."""
    number = _python_integer(value)
    if number is None or not least <= number <= INT64_MAX:
        raise wrong_value(f"{name} is not a valid number", f"{least} or more", value)
    return number

"""The arguments that functions share, in each of their forms, as the values that rooms take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from kafka_index.core.errors import ConfigError, InputError, argument_text
from kafka_index.core.format.config import LogConfig, members_of, read_properties
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.strings import parse_bytes
from kafka_index.core.format.uri_passwords import PATH_EXPECTED, path_of
from kafka_index.core.fs.paths import pinned_backup
from kafka_index.core.log.filter.dropped_keys import read_keys
from kafka_index.core.query.bounds import (
    EARLIEST,
    LATEST,
    Offsets,
    Timestamps,
    parse_times,
    read_offsets_file,
)

_EXAMPLE = "by topic and partition: {'orders': {0: 123}}"


def wrong(message: str, expected: str, given: object) -> ConfigError:
    """Return the error about an argument of another type or value."""
    return ConfigError(message, expected=expected, found=argument_text(given))


def input_of(path: object, name: str) -> str:
    """Return what `path_of` does; a backup is selected once, so that all reads are from it."""
    return pinned_backup(path_of(path, name))


def optional_path(path: object, name: str) -> str | None:
    """Return a path as text, None for none."""
    return None if path is None else input_of(path, name)


def paths_of(paths: object, name: str = "paths") -> list[str]:
    """Return one path or several as texts; raises `ConfigError` for anything else."""
    if isinstance(paths, str | PathLike):
        return [input_of(paths, name)]
    members = members_of(paths)
    if members is None:
        raise wrong(f"{name} is not a path", f"{PATH_EXPECTED}, or a list of them", paths)
    return [input_of(path, name) for path in members]


def config_of(config: object, *, max_decompressed_bytes: int | None = None) -> LogConfig:
    """Return the settings of logs in a file, a mapping, or as they are; Kafka's by default."""
    if max_decompressed_bytes is not None:
        whole(max_decompressed_bytes, "max_decompressed_bytes", least=1)
    if isinstance(config, LogConfig):
        if max_decompressed_bytes is None:
            return config
        return replace(config, max_decompressed_bytes=max_decompressed_bytes)
    path = config if isinstance(config, str | PathLike) else None
    return LogConfig.of_properties(
        properties_of(config) or {}, path=path, max_decompressed_bytes=max_decompressed_bytes
    )


def properties_of(config: object) -> dict[str, str] | None:
    """Return all settings of a broker in a file or a mapping; None where only logs have them."""
    if config is None or isinstance(config, LogConfig):
        return None
    if isinstance(config, str | PathLike):
        return read_properties(path_of(config, "config"))
    if isinstance(config, Mapping):
        return settings_of(config, "config")
    raise wrong(
        "config is not settings",
        "a path, a mapping of Kafka's names to values, or a LogConfig",
        config,
    )


def settings_of(given: object, name: str) -> dict[str, str]:
    """Return a mapping of names to values as a ``.properties`` file has them."""
    if not isinstance(given, Mapping):
        raise wrong(f"{name} is not settings", "a mapping of names to values", given)
    found = {}
    for each, value in given.items():
        if not isinstance(each, str):
            raise ConfigError(f"{name} has a name that is not text", found=argument_text(each))
        if not isinstance(value, str | int | float):
            raise wrong(
                f"{name} has a value of {each} that is not one of a setting",
                "a text or a number",
                value,
            )
        found[each] = (str(value).lower() if isinstance(value, bool) else str(value)).strip()
    return found


def text_of(given: object, name: str) -> str | None:
    """Return a text, None for none; raises `ConfigError` for anything else."""
    if given is None or isinstance(given, str):
        return given
    raise wrong(f"{name} is not text", "a text", given)


def keys_of(given: object, name: str) -> tuple[bytes, ...]:
    """Return keys that were given as a list, or in a file of them."""
    if isinstance(given, str | PathLike):
        return read_keys(path_of(given, name))
    members = members_of(given)
    if members is None:
        raise wrong(f"{name} is no list of keys", "a path, or a list of text or bytes", given)
    if not members:
        raise InputError(f"there is no key in {name}")
    return tuple(bytes_of(key, f"{name}: a key") for key in members)


def bytes_of(given: object, name: str) -> bytes:
    """Return bytes, or the bytes that a text stands for; raises `ConfigError` for anything else."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return parse_bytes(given)
    raise wrong(f"{name} is not text or bytes", "a text or bytes", given)


def offsets_of(given: object, name: str) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition, of a mapping or a file (`read_offsets_file`)."""
    if isinstance(given, str | PathLike):
        return read_offsets_file(path_of(given, name))
    if not isinstance(given, Mapping):
        raise wrong(f"{name} is not a table of offsets", f"a file, or offsets {_EXAMPLE}", given)
    found: dict[str, dict[int, int]] = {}
    for topic, number, offset in _by_partition(given, name):
        found.setdefault(topic, {})[number] = whole(
            offset, f"{name} of {topic}-{number}", least=EARLIEST
        )
    return found


def bounds_of(given: object, name: str) -> Offsets | None:
    """Return the offset of all partitions, or offsets by topic and partition; None for none."""
    if given is None or isinstance(given, Mapping):
        return None if given is None else offsets_of(given, name)
    offset = _integer(given)
    if offset is not None and EARLIEST <= offset <= INT64_MAX:
        return offset
    raise InputError(
        f"{name} is not an offset",
        expected=f"an offset ({LATEST} is the latest, -2 the earliest), or {_EXAMPLE}",
        found=argument_text(given),
    )


def times_of(given: object, name: str, now: int) -> Timestamps | None:
    """Return the time of all partitions in ms, or times by topic and partition; None for none."""
    times: Any = given
    if isinstance(given, Mapping):
        times = {}
        for topic, number, time in _by_partition(given, name):
            times.setdefault(topic, {})[number] = time
    with naming(name):
        return parse_times(times, now)


def partitions_of(given: object) -> dict[str, list[int]] | None:
    """Return the numbers of partitions by topic; raises `ConfigError` for anything else."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = {topic: members_of(numbers) for topic, numbers in given.items()}
        if all(isinstance(topic, str) and own is not None for topic, own in found.items()):
            return {
                topic: [whole(number, f"partitions of {topic}") for number in own or ()]
                for topic, own in found.items()
            }
    raise wrong(
        "partitions is not a mapping of topics to numbers", "such as {'orders': [0, 1]}", given
    )


def _by_partition(given: Mapping[object, object], name: str) -> Iterator[tuple[str, int, object]]:
    """Yield the members of a mapping by topic and number, which JSON has as text."""
    for topic, own in given.items():
        if not isinstance(topic, str) or not isinstance(own, Mapping):
            raise wrong(f"{name} is not by topic and partition", _EXAMPLE, {topic: own})
        for number, value in own.items():
            is_text = isinstance(number, str) and number.isascii() and number.isdecimal()
            yield topic, whole(int(number) if is_text else number, f"{name} of {topic}"), value


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Add the name of a parameter to errors about its value."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{name}: {error.message}", expected=error.expected, found=error.found, hint=error.hint
        ) from None


def _integer(value: object) -> int | None:
    """Return an integer of Python or numpy; None for anything else."""
    if isinstance(value, type | bool | np.bool_ | np.ndarray) or not hasattr(value, "__index__"):
        return None
    return int(value.__index__())


def whole(value: object, name: str, *, least: int = 0) -> int:
    """Return an integer that is not too small, also one of numpy; raises `ConfigError` otherwise.

    Integers beyond 64 bits are refused, too.
    """
    number = _integer(value)
    if number is None or not least <= number <= INT64_MAX:
        raise wrong(f"{name} is not a number that counts", f"{least} or more", value)
    return number

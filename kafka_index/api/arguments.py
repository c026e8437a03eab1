"""The arguments that functions share, in each of their forms, as the values that rooms take."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from kafka_index.config import LogConfig, read_properties
from kafka_index.errors import ConfigError, InputError
from kafka_index.execution import ThreadEngine
from kafka_index.layout.byte_text import parse_bytes
from kafka_index.layout.times import Time, now_ms, parse_time, time_text
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.stores.inputs import Skipped
from kafka_index.tables.bounds import read_offsets_file
from kafka_index.tiered.options import TieredOptions

#: A path or a URI.
Path: TypeAlias = str | PathLike[str]
#: Data directories, partition directories, or globs of either.
Paths: TypeAlias = Path | Sequence[Path]
#: A regular expression that a topic matches in full, or names.
Topics: TypeAlias = str | re.Pattern[str] | Collection[str]
#: Settings under Kafka's names: a file, a mapping, or settings that were read.
Config: TypeAlias = Path | Mapping[str, object] | LogConfig
#: Remote segments: a folder of them, several, or with options.
Tiered: TypeAlias = Path | Sequence[Path] | TieredOptions

_PATH = "a path or a URI"


class ArrowStream(Protocol):
    """A table of any library: it exports Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows as a capsule."""


#: Rows: whatever exports Arrow's C stream interface, or dicts.
Table: TypeAlias = ArrowStream | Sequence[Mapping[str, Any]]


def path_of(path: object, name: str) -> str:
    """Return a path as text; raises `ConfigError` for anything else, or a password in it."""
    text = os.fspath(path) if isinstance(path, str | PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{name} is not a path", expected=_PATH, found=repr(path))
    refuse_passwords([text])
    return text


def optional_path(path: object, name: str) -> str | None:
    """Return a path as text, None for none."""
    return None if path is None else path_of(path, name)


def paths_of(paths: object, name: str = "paths") -> list[str]:
    """Return one path or several as texts; raises `ConfigError` for anything else."""
    if isinstance(paths, str | PathLike):
        return [path_of(paths, name)]
    if isinstance(paths, bytes | Mapping) or not isinstance(paths, Iterable):
        raise ConfigError(
            f"{name} is not a path", expected=f"{_PATH}, or a list of them", found=repr(paths)
        )
    return [path_of(path, name) for path in paths]


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
    raise ConfigError(
        "config is not settings",
        expected="a path, a mapping of Kafka's names to values, or a LogConfig",
        found=repr(config),
    )


def settings_of(given: object, name: str) -> dict[str, str]:
    """Return a mapping of names to values as a ``.properties`` file has them."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{name} is not settings", expected="a mapping of names to values", found=repr(given)
        )
    found = {}
    for each, value in given.items():
        if not isinstance(each, str):
            raise ConfigError(f"{name} has a name that is not text", found=repr(each))
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"{name} has a value of {each} that is not one of a setting",
                expected="a text or a number",
                found=repr(value),
            )
        found[each] = (str(value).lower() if isinstance(value, bool) else str(value)).strip()
    return found


def text_of(given: object, name: str) -> str | None:
    """Return a text, None for none; raises `ConfigError` for anything else."""
    if given is None or isinstance(given, str):
        return given
    raise ConfigError(f"{name} is not text", found=repr(given))


def bytes_of(given: object, name: str) -> bytes:
    """Return bytes, or the bytes that a text stands for; raises `ConfigError` for anything else."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return parse_bytes(given)
    raise ConfigError(f"{name} is not text or bytes", found=repr(given))


def offsets_of(given: object, name: str) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition, of a mapping or a file (`read_offsets_file`)."""
    if isinstance(given, str | PathLike):
        return read_offsets_file(path_of(given, name))
    if isinstance(given, Mapping) and all(isinstance(own, Mapping) for own in given.values()):
        return {
            str(topic): {
                whole(number, f"{name}: a partition"): whole(offset, f"{name}: an offset", least=-2)
                for number, offset in own.items()
            }
            for topic, own in given.items()
        }
    raise ConfigError(
        f"{name} is not a table of offsets",
        expected="a file, or offsets by topic and partition: {'orders': {0: 123}}",
        found=repr(given),
    )


def whole(value: object, name: str, *, least: int = 0) -> int:
    """Return an integer that is not too small; raises `ConfigError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name} is not a number that counts", expected=f"{least} or more", found=repr(value)
        )
    return value


def threads_of(threads: object) -> ThreadEngine:
    """Return the engine of a function: by default a thread per core."""
    count = os.cpu_count() or 1 if threads is None else whole(threads, "threads", least=1)
    return ThreadEngine(count)


def time_range(from_time: Time | None, to_time: Time | None) -> tuple[int | None, int | None]:
    """Return a range of times in ms, the second exclusive; refuse an empty range."""
    now = now_ms()
    first, end = (None if one is None else parse_time(one, now=now) for one in (from_time, to_time))
    if first is not None and end is not None and first >= end:
        raise InputError(
            f"no time is in the range: from_time is {time_text(first)}, and to_time, which is "
            f"exclusive, {time_text(end)}"
        )
    if first is None and end is None:
        return None, None
    # A record without a timestamp has -1, and is in no range.
    return max(first or 0, 0), end


def table_of(rows: object, name: str, columns: pa.Schema) -> pa.Table:
    """Return rows as a table: anything that exports Arrow's C stream, or rows of dicts.

    A list without rows has `columns`. Raises `InputError` for anything else.
    """
    expected = "a table that exports Arrow's C stream interface, or a list of dicts"
    try:
        if isinstance(rows, pa.Table):
            return rows
        if hasattr(rows, "__arrow_c_stream__") or isinstance(rows, pa.RecordBatch):
            return pa.table(rows)
        if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
            names = dict.fromkeys(name for row in rows for name in row)
            found = {name: [row.get(name) for row in rows] for name in names}
            return pa.table(found) if rows else columns.empty_table()
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"{name} is not a table: {error}", expected=expected) from error
    raise InputError(f"{name} is not a table", expected=expected, found=repr(type(rows)))


def unread_texts(files: Mapping[str, Skipped]) -> tuple[str, ...]:
    """Return the files that `reading_inputs` has not read, each with the reason."""
    return tuple(f"{files[path].shown}: {files[path].reason}" for path in sorted(files))

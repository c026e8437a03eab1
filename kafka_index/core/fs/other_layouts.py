"""Hints for inputs without logs: data directories further below, or other formats."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from kafka_index.core.errors import InputError, first_of
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    META_PROPERTIES,
    DirectoryKind,
    parse_segment_file,
    split_directory_name,
)
from kafka_index.core.fs.backup.backup_paths import REPOSITORY_FILE
from kafka_index.core.fs.directories import is_input_directory, scan_input
from kafka_index.core.fs.store import Entry

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_MAX_DEPTH = 5
_MAX_DIRECTORIES = 2000
_MAX_SHOWN = 8
_ARCHIVE = re.compile(r".+\.(?:tar|tgz|zip|7z|tar\.[a-z0-9]+)", re.IGNORECASE)
_TABLE = re.compile(r".+\.(?:avro|parquet|jsonl?|csv)(?:\.[a-z0-9]+)?", re.IGNORECASE)
# Redpanda: TOPIC/PARTITION_REVISION/BASE-TERM-VERSION.log.
_REDPANDA = re.compile(r"[0-9]+-[0-9]+-v[0-9]+\.log")


def layout_hint(directories: Sequence[str]) -> str | None:
    """Return where data directories are below these directories, or what they contain instead.

    None if one is itself a data directory, or nothing is recognized.
    """
    found: list[str] = []
    other: str | None = None
    for path in directories:
        for directory, entries in _below(path):
            if _holds_partitions(entries):
                if directory == path:
                    return None
                found.append(directory)
            other = other or format_hint(directory, [entry.name for entry in entries])
    if found:
        return f"its data directories are below it: give {first_of(found, _MAX_SHOWN)}"
    return other


def format_hint(directory: str, names: Sequence[str]) -> str | None:
    """Return the format of files that are not Kafka logs, None if unknown."""
    if REPOSITORY_FILE in names:
        return f"{directory} is a repository of backups: give backup:{directory}"
    for name in names:
        path = os.path.join(directory, name)
        if _REDPANDA.fullmatch(name):
            return f"{path} is a Redpanda segment: this format is not supported"
        if hint := archive_hint(path):
            return hint
        if _TABLE.fullmatch(name):
            return f"{path} is not a Kafka log; kafka-index import reads tables and connector files"
    return None


def archive_hint(path: str) -> str | None:
    if _ARCHIVE.fullmatch(os.path.basename(path)) is None:
        return None
    return f"{path} is an archive: unpack it, and give the data directory in it"


def _below(path: str) -> Iterator[tuple[str, list[Entry]]]:
    """Yield an input and the directories below it with their entries, level by level."""
    level, count = [path], 0
    for _ in range(_MAX_DEPTH):
        following: list[str] = []
        for directory in level:
            count += 1
            if count > _MAX_DIRECTORIES:
                return
            try:
                entries = scan_input(directory)
            except InputError:
                continue
            yield directory, entries
            if not _holds_partitions(entries):
                following += [entry.path for entry in entries if entry.is_directory()]
        level = following


def _holds_partitions(entries: Sequence[Entry]) -> bool:
    """Return whether a directory contains partitions with logs or is a formatted log directory."""
    names = {entry.name for entry in entries}
    partitions = [
        entry
        for entry in entries
        if (split := split_directory_name(entry.name)) is not None
        and split[1] is DirectoryKind.LIVE
        and entry.is_directory()
    ]
    return bool(partitions) and (META_PROPERTIES in names or any(map(_holds_logs, partitions)))


def _holds_logs(entry: Entry) -> bool:
    try:
        files = [parse_segment_file(each.name) for each in scan_input(entry.path)]
    except InputError:
        return False
    return any(file is not None and file.kind == LOG_SUFFIX for file in files)


def is_parquet_path(path: str) -> bool:
    """Return whether a path is a Parquet file, or a folder that directly contains some."""
    if is_input_directory(path):
        return any(is_parquet_name(entry.name) for entry in scan_input(path))
    return path.endswith(PARQUET_SUFFIXES)


def is_parquet_name(name: str) -> bool:
    return name.endswith(PARQUET_SUFFIXES) and not name.startswith(("_", "."))

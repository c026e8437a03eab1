"""The record that an import leaves in each partition: which logs it wrote.

A partition whose logs are as its record says was written by an import and by nothing since: only
such a one may be overwritten. A broker ignores the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kafka_index.errors import ReadError
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.storage import publish_error
from kafka_index.writing.staging import signature_of

IMPORT_RECORD = ".import.kafka-index"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """The counts of an import of a partition.

    The first offset is that of the first imported record; the end offset, segments and size are
    those of the whole log.
    """

    records: int
    first_offset: int
    end_offset: int
    segments: int
    size_bytes: int


def write_import_record(directory: str, run_id: str, counts: ImportCounts) -> None:
    """Record the logs of a partition directory.

    Raises `PublishError` if the file cannot be written.
    """
    path = os.path.join(directory, IMPORT_RECORD)
    content = {"version": _VERSION, "logs": _sizes(directory), "run": run_id, **asdict(counts)}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError as error:
        raise publish_error(error, path, "write a file") from error


def is_import(directory: str) -> bool:
    """Return whether the logs of a partition are those that an import wrote."""
    found = _read(directory)
    return found.get("version") == _VERSION and found.get("logs") == _sizes(directory)


def counts_of_run(directory: str, run_id: str) -> ImportCounts | None:
    """Return what a run has imported into a partition; None when it did not."""
    found = _read(directory)
    if found.get("run") != run_id:
        return None
    return ImportCounts(**{name: found[name] for name in ImportCounts.__dataclass_fields__})


def imported_by(root: str, run_id: str) -> dict[TopicPartition, ImportCounts]:
    """Return the partitions of a data directory that are as a run has imported them."""
    found = {}
    for name in partition_names(root):
        directory = os.path.join(root, name)
        counts, partition = counts_of_run(directory, run_id), parse_partition_directory(name)
        if counts is not None and partition is not None and is_import(directory):
            found[partition] = counts
    return found


def partition_names(root: str) -> Iterable[str]:
    """Return the names of the partition directories in a data directory."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return ()
    return [
        name
        for name in names
        if parse_partition_directory(name) is not None and os.path.isdir(os.path.join(root, name))
    ]


def _read(directory: str) -> dict[str, Any]:
    path = os.path.join(directory, IMPORT_RECORD)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as error:
        raise ReadError(
            f"cannot read the record of an import: {error.strerror}", path=path
        ) from error
    return found if isinstance(found, dict) else {}


def _sizes(directory: str) -> dict[str, int]:
    return {name: size for name, size, _ in signature_of(directory) or ()}

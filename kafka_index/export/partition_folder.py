"""The folder of a partition's data files: which are there, and the removal of what is not wanted.

A data file is named by the first and the last offset in it; files of days lie in a folder of each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from kafka_index.storage.directories import directory_exists, scan_directory
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.durable_files import publish_error

_NAME = re.compile(r"(?P<first>[0-9]{20})-(?P<last>[0-9]{20})\.(?:parquet|jsonl)(?:\.staged)?")
_SCRATCH = re.compile(r"\.(?:[^/]*)\.kafka-index-export\.tmp")
_DATE_FOLDER = re.compile(r"date=[^/]+")


def data_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, first and last offset of each data file of a partition."""
    for path in _files_of(folder):
        found = _NAME.fullmatch(os.path.basename(path))
        if found is not None:
            yield path, int(found["first"]), int(found["last"])


def remove_data_files(
    folder: str, first_offset: int, end_offset: int | None = None, *, keep: Iterable[str] = ()
) -> None:
    """Remove the data files of a partition that begin within a range of offsets, but those kept.

    Raises `PublishError` if one cannot be removed.
    """
    kept = set(keep)
    remove = [
        path
        for path, first, _ in data_files(folder)
        if first >= first_offset and (end_offset is None or first < end_offset) and path not in kept
    ]
    _remove(folder, remove)


def remove_scratch_files(folder: str) -> None:
    """Remove the unfinished files of killed runs, while the lock of the output is held.

    Raises `PublishError` if one cannot be removed.
    """
    if not is_remote(folder):
        found = _files_of(folder)
        _remove(folder, [path for path in found if _SCRATCH.fullmatch(os.path.basename(path))])


def _files_of(folder: str) -> list[str]:
    if not directory_exists(folder):
        return []
    found = []
    for entry in scan_directory(folder):
        if not entry.is_directory():
            found.append(entry.path)
        elif _DATE_FOLDER.fullmatch(entry.name):
            found += [one.path for one in scan_directory(entry.path) if not one.is_directory()]
    return found


def _remove(folder: str, paths: list[str]) -> None:
    if is_remote(folder):
        if paths:
            store_of(folder).delete(paths)
        return
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise publish_error(error, path, "remove a file of an earlier run") from error

"""The folder of a partition's data files: listed, removed, and replaced by files written beside.

A data file is named by the first and the last offset in it; files of days lie in a folder of each.

Files that take the place of others once they are whole lie in a hidden folder, with an export
record of their own, which a killed run continues. The record of the partition then lists the data
files that go; from there on every run finishes the exchange first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kafka_index.export.export_record import EXPORT_RECORD, ExportRecord
from kafka_index.export.settings import STAGED_ENDING
from kafka_index.storage.directories import directory_exists, scan_directory
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.durable_files import make_durable, publish_error

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


_STAGED = ".kafka-index-export-new"


def staged_folder(folder: str) -> str:
    """Return the folder beside the data files of a partition."""
    return os.path.join(folder, _STAGED)


def drop_staged(folder: str) -> None:
    """Remove the staged files of a partition; raises `PublishError` if that fails."""
    staged = staged_folder(folder)
    if not directory_exists(staged):
        return
    # The record first: without it, the files are of no use.
    store_of(folder).delete([os.path.join(staged, EXPORT_RECORD)])
    if is_remote(folder):
        remove_data_files(staged, 0)
        return
    try:
        shutil.rmtree(staged)
    except OSError as error:
        raise publish_error(error, staged, "remove the folder") from error


def take_place(
    folder: str, before: ExportRecord, staged: ExportRecord, from_offset: int
) -> ExportRecord:
    """Put staged data files in the place of data files that begin at an offset or later.

    `before` is the record in place, `staged` that of the staged files; data files that begin before
    the offset stay. Returns the record that is then in place. Raises `PublishError` if a file
    cannot be renamed or removed; the next run continues.
    """
    new = set(_staged_files(folder).values())
    old = {
        os.path.relpath(path, folder)
        for path, first, _ in data_files(folder)
        if first >= from_offset
    }
    kept = before.first_offset < from_offset
    record = replace(
        staged,
        first_offset=before.first_offset if kept else staged.first_offset,
        damaged=(
            *(one for one in before.damaged if one.end_offset <= from_offset),
            *staged.damaged,
        ),
        batches=(
            *(one for one in before.batches if one.end_offset <= from_offset),
            *staged.batches,
        ),
        superseded=tuple(sorted(old - new)),
    )
    record.write(folder)
    return finish_exchange(folder, record)


def finish_exchange(folder: str, record: ExportRecord) -> ExportRecord:
    """Finish an interrupted `take_place`; return the record that is in place.

    Errors are the same.
    """
    store = store_of(folder)
    store.delete([os.path.join(folder, name) for name in record.superseded or ()])
    touched = {folder}
    for path, name in _staged_files(folder).items():
        target = os.path.join(folder, name)
        if not is_remote(folder):
            _make_folder(os.path.dirname(target))
        store.rename(path, target)
        touched.add(os.path.dirname(target))
    if not is_remote(folder):
        for path, error in make_durable(touched).items():
            raise publish_error(error, path, "make the data files durable")
    record = replace(record, superseded=None)
    record.write(folder)
    drop_staged(folder)
    return record


def _staged_files(folder: str) -> dict[str, str]:
    """Return the data files that lie aside, and their places below the folder."""
    staged = staged_folder(folder)
    return {
        path: os.path.relpath(path, staged).removesuffix(STAGED_ENDING)
        for path, *_ in data_files(staged)
    }


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise publish_error(error, folder, "make the folder") from error

"""Data files that are written beside those of before, and take their place once they are whole.

They lie in a hidden folder, with an export record of their own, which a killed run continues. The
record of the partition then lists the data files that go; from there on every run finishes the
exchange first.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

from kafka_index.export.export_record import EXPORT_RECORD, ExportRecord
from kafka_index.export.partition_folder import data_files, remove_data_files
from kafka_index.export.settings import STAGED_ENDING
from kafka_index.storage.directories import directory_exists
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.durable_files import make_durable, publish_error

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
    """Put staged data files in the place of those that begin at an offset or later.

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

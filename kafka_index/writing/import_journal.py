"""The journal of an import: which run an unfinished one was, so that the same command continues it.

It lies in the data directory from before the first partition is published until all are. A
partition that this run has published says so itself (`kafka_index.writing.import_record`). Then a
mark of the finished import takes its place, by which the same command finds that all is done.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from kafka_index.errors import is_retriable
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import AtomicFile, make_durable, publish_error
from kafka_index.stores import store_of
from kafka_index.writing.import_record import IMPORT_RECORD, ImportCounts, imported_by
from kafka_index.writing.import_settings import ImportMode, ImportSettings
from kafka_index.writing.table_files import TableFile, errors_of

IMPORT_JOURNAL = ".unfinished-import.kafka-index"
#: Of the import that finished last.
_FINISHED_IMPORT = IMPORT_RECORD


def digest_of_import(files: Sequence[TableFile], settings: ImportSettings) -> str:
    """Return what tells an import from every other: its files as they are, and its settings."""
    digest = hashlib.sha256(repr(replace(settings, run_id="", now_ms=0)).encode())
    for file in files:
        with errors_of(file):
            digest.update(repr((file, store_of(file.path).info(file.path))).encode())
    return digest.hexdigest()


@contextmanager
def journal(root: str, digest: str, settings: ImportSettings) -> Iterator[ImportSettings]:
    """Hold the journal of an import while it runs, in a data directory that is locked.

    Yields the settings, with the run and the time of the import that is continued, if one is.
    Raises `PublishError` if the journal cannot be written or removed; it stays, and the import can
    be continued.
    """
    path = os.path.join(root, IMPORT_JOURNAL)
    begun = _read(path, digest)
    run_id, now_ms = begun.get("run", settings.run_id), begun.get("now_ms", settings.now_ms)
    content = {"digest": digest, "run": run_id, "now_ms": now_ms}
    _write(path, content)
    try:
        yield replace(settings, run_id=run_id, now_ms=now_ms)
    except Exception as error:
        if not is_retriable(error):
            # Another try would meet the same.
            with suppress(OSError):
                os.unlink(path)
        raise
    for place, failure in make_durable([root]).items():
        raise publish_error(failure, place, "make it durable")
    _write(
        os.path.join(root, _FINISHED_IMPORT),
        {**content, "partitions": len(imported_by(root, run_id))},
    )
    try:
        os.unlink(path)
    except OSError as error:
        raise publish_error(error, path, "remove a file") from error


def finished_import(
    root: str, digest: str, mode: ImportMode
) -> Mapping[TopicPartition, ImportCounts]:
    """Return what the same import has written, if it is all there as it was left; else nothing.

    What replaces what is there is always written again.
    """
    if mode is ImportMode.OVERWRITE or os.path.exists(os.path.join(root, IMPORT_JOURNAL)):
        return {}
    mark = _read(os.path.join(root, _FINISHED_IMPORT), digest)
    found = imported_by(root, mark["run"]) if mark else {}
    return found if len(found) == mark.get("partitions") else {}


def _write(path: str, content: Mapping[str, Any]) -> None:
    with AtomicFile(path) as file:
        file.write(json.dumps(content).encode())
        file.commit()


def _read(path: str, digest: str) -> Mapping[str, Any]:
    """Return a journal or a mark if it is that of this import; else nothing."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return found if found["digest"] == digest and {"run", "now_ms"} <= found.keys() else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}

"""The journal of an import: which run an unfinished one was, so that the same command continues it.

It lies in the data directory from before the first partition is published until all are. A
partition that this run has published says so itself (`kafka_index.writing.import_record`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from kafka_index.errors import is_retriable
from kafka_index.storage import AtomicFile, make_durable, publish_error
from kafka_index.stores import store_of
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.table_files import TableFile, errors_of

IMPORT_JOURNAL = ".unfinished-import.kafka-index"


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

    Yields
    ------
    ImportSettings
        With the run and the time of the import that is continued, if one is.

    Raises
    ------
    PublishError
        The journal cannot be written or removed; it stays, and the import can be continued.
    """
    path = os.path.join(root, IMPORT_JOURNAL)
    run_id, now_ms = _unfinished(path, digest) or (settings.run_id, settings.now_ms)
    with AtomicFile(path) as file:
        content = {"digest": digest, "run": run_id, "now_ms": now_ms}
        file.write(json.dumps(content).encode())
        file.commit()
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
    try:
        os.unlink(path)
    except OSError as error:
        raise publish_error(error, path, "remove a file") from error


def _unfinished(path: str, digest: str) -> tuple[str, int] | None:
    """Return run and time of an unfinished import, if it is this one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return (found["run"], found["now_ms"]) if found["digest"] == digest else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None

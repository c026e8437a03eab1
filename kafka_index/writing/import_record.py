"""The record that an import leaves in each partition, and the journal of a running import.

A partition whose logs are as its record says was written by an import and by nothing since: only
such a one may be overwritten. A broker ignores the file.

The journal names the run, so that the same command continues an unfinished one. It lies in the data
directory from before the first partition is published until all are. Then a mark of the finished
import takes its place, by which the same command finds that all is done.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kafka_index.errors import ReadError, is_retriable
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.storage import AtomicFile, make_durable, publish_error
from kafka_index.stores import store_of
from kafka_index.writing.import_settings import ImportMode, ImportSettings
from kafka_index.writing.staging import Signature, signature_of
from kafka_index.writing.table_files import TableFile, errors_of

IMPORT_RECORD = ".import.kafka-index"
IMPORT_JOURNAL = ".unfinished-import.kafka-index"
#: The mark of the import that finished last, at the root of a data directory.
_FINISHED_IMPORT = IMPORT_RECORD
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """The counts of an import of a partition.

    The first offset is that of the first imported record; the end offset, segments and size are
    those of the whole log. `cut_bytes` is the size of a last batch that was not written to its end,
    and was cut off the log that the import continues.
    """

    records: int
    first_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    cut_bytes: int = 0


def write_import_record(directory: str, run_id: str, counts: ImportCounts) -> None:
    """Record the logs of a partition directory."""
    path = os.path.join(directory, IMPORT_RECORD)
    logs = signature_of(directory)
    content = {"version": _VERSION, "logs": _sizes(logs), "run": run_id, **asdict(counts)}
    content["mtimes_ns"] = _mtimes(logs)
    try:
        content["files"] = os.listdir(directory)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError as error:
        raise publish_error(error, path, "write a file") from error


def is_import(directory: str) -> bool:
    """Return whether an import wrote the logs of a partition."""
    found = _read(directory)
    return found.get("version") == _VERSION and found.get("logs") == _sizes(signature_of(directory))


def counts_of_run(directory: str, run_id: str) -> ImportCounts | None:
    """Return the counts of a run's import into a partition; None when it did not."""
    found = _read(directory)
    if found.get("run") != run_id:
        return None
    return ImportCounts(
        **{name: found[name] for name in ImportCounts.__dataclass_fields__ if name in found}
    )


def end_of_import(directory: str) -> int:
    """Return the offset after the last record of a partition's import; 0 for none."""
    end = _read(directory).get("end_offset", 0)
    return end if isinstance(end, int) else 0


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


def _sizes(logs: Signature | None) -> dict[str, int]:
    return {name: size for name, size, _ in logs or ()}


def _mtimes(logs: Signature | None) -> dict[str, int]:
    return {name: mtime_ns for name, _, mtime_ns in logs or ()}


def _is_untouched(directory: str) -> bool:
    """Return whether no log was written since an import, and no file removed."""
    found = _read(directory)
    if found.get("mtimes_ns") != _mtimes(signature_of(directory)):
        return False
    return set(found.get("files", ())) <= set(os.listdir(directory))


def digest_of_import(files: Sequence[TableFile], settings: ImportSettings) -> str:
    """Return the digest of an import: of its files as they are, and of its settings."""
    digest = hashlib.sha256(repr(replace(settings, run_id="", now_ms=0)).encode())
    for file in files:
        with errors_of(file):
            digest.update(repr((file, store_of(file.path).info(file.path))).encode())
            if file.layout is not None:
                digest.update(repr(file.layout).encode())
                for path in filter(None, (file.layout.keys, file.layout.headers)):
                    digest.update(repr(store_of(path).info(path)).encode())
    return digest.hexdigest()


@contextmanager
def journal(root: str, digest: str, settings: ImportSettings) -> Iterator[ImportSettings]:
    """Hold the journal of an import while it runs, in a data directory that is locked.

    Yields the settings, with the run and the time of the import that is continued, if one is.
    Raises `PublishError` if the journal cannot be written or removed; it stays, and the import can
    be continued.
    """
    path = os.path.join(root, IMPORT_JOURNAL)
    begun = _read_journal(path, digest)
    run_id, now_ms = begun.get("run", settings.run_id), begun.get("now_ms", settings.now_ms)
    content = {"digest": digest, "run": run_id, "now_ms": now_ms}
    _write_journal(path, content)
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
    _write_journal(
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
    """Return the counts of the same import, if all of its output is as it left it; else nothing.

    A replacement is always written again.
    """
    if mode is ImportMode.OVERWRITE or os.path.exists(os.path.join(root, IMPORT_JOURNAL)):
        return {}
    mark = _read_journal(os.path.join(root, _FINISHED_IMPORT), digest)
    imported = imported_by(root, mark["run"]) if mark else {}
    found = {
        partition: counts
        for partition, counts in imported.items()
        if _is_untouched(os.path.join(root, partition.directory_name))
    }
    return found if len(found) == mark.get("partitions") else {}


def _write_journal(path: str, content: Mapping[str, Any]) -> None:
    with AtomicFile(path) as file:
        file.write(json.dumps(content).encode())
        file.commit()


def _read_journal(path: str, digest: str) -> Mapping[str, Any]:
    """Return a journal or a mark if it is that of this import; else nothing."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return found if found["digest"] == digest and {"run", "now_ms"} <= found.keys() else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}

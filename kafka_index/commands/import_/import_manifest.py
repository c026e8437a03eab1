"""The manifest that an import writes in each partition, and the state file of the import.

If the logs of a partition match its manifest, an import wrote them and no other program has changed
them. Only such a partition may be overwritten. A broker ignores the manifest.

The state file at the root contains the ID of the run. It is written before the first partition is
published, so that the same command continues an unfinished import. After the last partition, it
marks the import as finished, so that the same command does not import again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace

from kafka_index.commands.import_.request import ImportMode, ImportSettings
from kafka_index.commands.import_.table_files import TableFile, convert_read_errors
from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.format.state_files import FileName, Int32, Int64, Offset, Size
from kafka_index.core.fs.durable_files import publishing, sync
from kafka_index.core.fs.registry import store_of
from kafka_index.core.output.output import RunState, Signature, StateFile, read_signature

#: File name of a partition's manifest, and of the state file in a data directory.
IMPORT_MANIFEST = ".import.kafka-index"


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """The counts of an import of a partition.

    Attributes
    ----------
    records : int
        The number of imported records.
    first_offset : int
        The offset of the first imported record.
    end_offset, segments, size_bytes : int
        The log end offset, number of segments and size of the log, with all earlier records.
    cut_bytes : int
        The size of an incomplete last batch that was truncated before the import appended records.
    """

    records: Offset
    first_offset: Offset
    end_offset: Offset
    segments: Int32
    size_bytes: Size
    cut_bytes: Size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImportManifest(ImportCounts):
    """The manifest of a partition: run, counts, sizes and times of logs, and file names."""

    run: FileName
    logs: dict[str, Size]
    mtimes_ns: dict[str, Int64] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def counts(self) -> ImportCounts:
        return ImportCounts(**{name: getattr(self, name) for name in _COUNTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImportRun(RunState):
    """The state of an import; `partitions` is set when the import is finished."""

    run: FileName
    now_ms: Int64
    partitions: Int32 | None = None


_COUNTS = tuple(count.name for count in fields(ImportCounts))


def write_import_manifest(directory: str, run_id: str, counts: ImportCounts) -> None:
    """Write the manifest of a partition directory."""
    logs = read_signature(directory)
    with publishing(directory, "list the partition"):
        files = tuple(os.listdir(directory))
    manifest = _ImportManifest(
        **asdict(counts),
        run=run_id,
        logs=_log_sizes(logs),
        mtimes_ns=_log_mtimes(logs),
        files=files,
    )
    # The publication of the directory makes its files durable.
    _manifest(directory).write(manifest, durable=False)


def is_import(directory: str) -> bool:
    """Return whether the logs of a partition have the sizes in an import manifest."""
    manifest = _manifest(directory).read()
    return manifest is not None and manifest.logs == _log_sizes(read_signature(directory))


def imported_end_offset(directory: str) -> int:
    """Return the end offset of a partition's last import; 0 if nothing was imported."""
    manifest = _manifest(directory).read()
    return 0 if manifest is None else manifest.end_offset


def list_imported_partitions(root: str, run_id: str) -> dict[TopicPartition, ImportCounts]:
    """Return the partitions that a run imported and that have not changed since."""
    counts_by_partition = {}
    for name in partition_names(root):
        directory = os.path.join(root, name)
        counts, partition = counts_of_run(directory, run_id), parse_partition_directory(name)
        if counts is not None and partition is not None and is_import(directory):
            counts_by_partition[partition] = counts
    return counts_by_partition


def counts_of_run(directory: str, run_id: str) -> ImportCounts | None:
    """Return the counts of a partition that a run imported, otherwise None."""
    manifest = _manifest(directory).read()
    return manifest.counts if manifest is not None and manifest.run == run_id else None


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


def _manifest(directory: str) -> StateFile[_ImportManifest]:
    path = os.path.join(directory, IMPORT_MANIFEST)
    return StateFile(path, _ImportManifest, what="manifest of an import")


def _import_state(root: str) -> StateFile[_ImportRun]:
    return StateFile(os.path.join(root, IMPORT_MANIFEST), _ImportRun, what="state of an import")


def _log_sizes(logs: Signature | None) -> dict[str, int]:
    return {name: size for name, size, _ in logs or ()}


def _log_mtimes(logs: Signature | None) -> dict[str, int]:
    return {name: mtime_ns for name, _, mtime_ns in logs or ()}


def _is_unchanged_import(directory: str) -> bool:
    """Return whether, since an import, no log was written and no file was removed."""
    manifest = _manifest(directory).read()
    if manifest is None or manifest.mtimes_ns != _log_mtimes(read_signature(directory)):
        return False
    return {*manifest.files} <= {*os.listdir(directory)}


def digest_of_import(files: Sequence[TableFile], settings: ImportSettings) -> str:
    """Return a digest of an import's settings, and of the paths and versions of its files."""
    digest = hashlib.sha256(repr(replace(settings, run_id="", now_ms=0)).encode())
    for file in files:
        with convert_read_errors(file):
            digest.update(repr((file, store_of(file.path).info(file.path))).encode())
            if file.layout is not None:
                digest.update(repr(file.layout).encode())
                for path in filter(None, (file.layout.keys, file.layout.headers)):
                    digest.update(repr(store_of(path).info(path)).encode())
    return digest.hexdigest()


@contextmanager
def running_import(
    root: str,
    digest: str,
    settings: ImportSettings,
    lock: AbstractContextManager[object] | None = None,
) -> Iterator[ImportSettings]:
    """Write the state file of an import at its start and its end, in a locked data directory.

    Yields the settings; a continued import keeps its run ID and time. Give `lock` if the lock is
    released while the import runs: it is acquired again for the last write. Raises `PublishError`
    if the file cannot be written or the lock cannot be acquired. The import can then be continued.
    """
    state_file = _import_state(root)
    earlier_run = state_file.read()
    run = _ImportRun(inputs=digest, run=settings.run_id, now_ms=settings.now_ms)
    if earlier_run is not None and earlier_run.inputs == digest and not earlier_run.is_finished:
        run = earlier_run
    state_file.write(run)
    try:
        yield replace(settings, run_id=run.run, now_ms=run.now_ms)
    except Exception as error:
        if not is_retriable(error):
            # A retry would fail again, so the state of an earlier import is restored.
            with suppress(KafkaIndexError), lock or nullcontext():
                if earlier_run is None or earlier_run is run:
                    state_file.remove()
                else:
                    state_file.write(earlier_run)
        raise
    with lock or nullcontext():
        sync([root], "make the import durable")
        count = len(list_imported_partitions(root, run.run))
        state_file.write(replace(run, is_finished=True, partitions=count))


def finished_import(
    root: str, digest: str, mode: ImportMode
) -> Mapping[TopicPartition, ImportCounts]:
    """Return the counts of the same import if it is finished and its output unchanged.

    Otherwise the result is empty. With `OVERWRITE`, it is always empty, because an overwrite always
    writes again.
    """
    run = _import_state(root).read()
    if mode is ImportMode.OVERWRITE or run is None or not run.is_finished or run.inputs != digest:
        return {}
    unchanged_counts = {
        partition: counts
        for partition, counts in list_imported_partitions(root, run.run).items()
        if _is_unchanged_import(os.path.join(root, partition.directory_name))
    }
    return unchanged_counts if len(unchanged_counts) == run.partitions else {}

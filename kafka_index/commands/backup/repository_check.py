"""``backups list`` and ``backups verify``: the backups in a repository, and its objects."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kafka_index.commands.backup.request import ListBackupsRequest, VerifyBackupsRequest
from kafka_index.commands.backup.result import (
    LIST_REPORT,
    VERIFY_REPORT,
    BackupRepository,
    VerifyBackupsResult,
)
from kafka_index.core.errors import CorruptObjectError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    DATA_FOLDER,
    KeptFile,
    LogChunk,
    Manifest,
    backup_id_ms,
    content_of,
    cutoff_time,
    hash_of,
    is_consistent,
    manifest_path,
    missing_brokers,
)
from kafka_index.core.fs.backup.repository import MissingManifestError, Repository, StoredManifest
from kafka_index.core.fs.paths import absolute_path, open_repository
from kafka_index.core.fs.store import Bytes
from kafka_index.core.job.engine import Engine, Listener, map_requests
from kafka_index.core.job.result import ReportSink, RunOutcome
from kafka_index.core.log.scan.file_records import LogBatches

#: Number of manifests or objects that are read concurrently.
READS_AT_A_TIME = 8


class BackupManifests(NamedTuple):
    """A backup with its manifests, their hashes, and the errors of unreadable manifests."""

    backup_id: str
    manifests: tuple[Manifest, ...]
    errors: tuple[KafkaIndexError, ...] = ()
    hashes: tuple[str, ...] = ()

    @property
    def missing_brokers(self) -> list[int]:
        """The expected brokers without a manifest in the backup."""
        return missing_brokers(self.manifests)

    @property
    def is_complete(self) -> bool:
        """Whether all expected brokers have readable manifests."""
        return bool(self.manifests) and not self.errors and not self.missing_brokers


def read_backups(
    repository: Repository, backups: Mapping[str, Iterable[int]]
) -> Iterator[BackupManifests]:
    """Yield the manifests of backups, given by ID with their brokers.

    Backups that expire concurrently are omitted. The bytes of manifests are read ahead, but only
    one backup at a time is decoded.
    """

    def read(key: tuple[str, int]) -> StoredManifest | KafkaIndexError | None:
        try:
            return repository.stored_manifest(*key)
        except MissingManifestError:
            return repository.lost_manifest(*key)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            return error

    keys = [(backup_id, node_id) for backup_id, brokers in backups.items() for node_id in brokers]
    stored = map_requests(read, keys, threads=READS_AT_A_TIME, name="manifests")
    for backup_id, own in groupby(zip(keys, stored, strict=True), key=lambda each: each[0][0]):
        manifests: list[Manifest] = []
        errors: list[KafkaIndexError] = []
        hashes: list[str] = []
        for _, each in own:
            if isinstance(each, KafkaIndexError):
                errors.append(each)
            elif each is not None:
                try:
                    manifests.append(each.parse())
                    hashes.append(hash_of(each.data))
                except KafkaIndexError as error:
                    errors.append(error)
        if manifests or errors:
            yield BackupManifests(backup_id, tuple(manifests), tuple(errors), tuple(hashes))


def list_backups(
    request: ListBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> BackupRepository:
    """List the backups in a repository; raises `InputError` if it is not a repository."""
    root = absolute_path(request.uri)
    repository = open_repository(root)
    repository.file()
    brokers = {backup_id: own for backup_id, own in repository.brokers_with_heads().items() if own}
    chosen = dict(list(brokers.items())[-request.last :] if request.last else brokers.items())
    now = now_ms()
    rows: list[dict[str, object]] = []
    complete_ms: int | None = None
    is_damaged = False
    for each in read_backups(repository, chosen):
        row = _row(each, now)
        is_damaged |= bool(each.errors)
        if each.is_complete:
            cutoff_ms = cutoff_time(each.manifests)
            row["gap_ms"] = None if complete_ms is None else cutoff_ms - complete_ms
            complete_ms = cutoff_ms
        rows.append(row)
    return BackupRepository(
        pa.Table.from_pylist(rows, schema=LIST_REPORT.schema),
        RunOutcome.DAMAGE if is_damaged else RunOutcome.DONE,
        root=root,
        now_ms=now,
        earlier=len(brokers) - len(chosen),
    )


def _row(found: BackupManifests, now: int) -> dict[str, object]:
    manifests = found.manifests
    partitions = {each.topic_partition for one in manifests for each in one.partitions}
    skipped = {TopicPartition(own.topic, own.partition) for one in manifests for own in one.skipped}
    skipped -= partitions
    status, reason = "complete", None
    if found.errors:
        status, reason = "damaged", str(found.errors[0])
    elif found.missing_brokers:
        status = "incomplete"
        reason = f"no manifest of broker {', '.join(map(str, found.missing_brokers))}"
    elif not is_consistent(manifests):
        status = "inconsistent"
        reason = "brokers did not synchronize: transactions and groups may differ between them"
    elif skipped:
        first = min(skipped).directory_name
        reason = f"{plural(len(skipped), 'partition')} skipped, such as {first}"
    cutoff_ms = cutoff_time(manifests) if manifests else None
    opened_ms = backup_id_ms(found.backup_id)
    return {
        "backup_id": found.backup_id,
        "opened": opened_ms,
        "cutoff": cutoff_ms,
        "status": status,
        "brokers": sorted(each.node_id for each in manifests),
        "missing_brokers": found.missing_brokers,
        "partitions": len(partitions),
        "skipped_partitions": len(skipped),
        "new_bytes": sum(each.new_bytes for each in manifests),
        "bytes": _bytes_of(manifests),
        "age_ms": max(now - (opened_ms if cutoff_ms is None else cutoff_ms), 0),
        "reason": reason,
    }


def _bytes_of(manifests: Iterable[Manifest]) -> int:
    """Return the size of the objects in manifests, each object once."""
    copies: dict[str, list[tuple[LogChunk | KeptFile, ...]]] = {}
    for manifest in manifests:
        for partition in manifest.partitions:
            copies.setdefault(partition.folder, []).append(partition.objects)
    return sum(
        each.size_bytes
        for own in copies.values()
        for each in (own[0] if len(own) == 1 else {*chain(*own)})
    )


def verify_backups(
    request: VerifyBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> VerifyBackupsResult:
    """Check the objects in the manifests of a backup, or of all backups.

    Names and sizes of all objects are compared with a listing. Each object is read with the
    probability `sample`. Its hash, and the checksums and offsets of its batches, are then verified.
    Raises `InputError` if the repository or backup does not exist.
    """
    root = absolute_path(request.uri)
    repository = open_repository(root)
    repository.file()
    brokers = repository.brokers_with_heads()
    if request.backup is not None:
        name = repository.find_backup(request.backup)
        brokers = {name: brokers.get(name, ())}
    rows: list[dict[str, object]] = []
    partitions: dict[str, TopicPartition] = {}
    # Number of backups with an object, by its folder and its entry in manifests.
    backups: Counter[tuple[str, LogChunk | KeptFile]] = Counter()
    for found in read_backups(repository, brokers):
        objects: set[tuple[str, LogChunk | KeptFile]] = set()
        for each in chain.from_iterable(one.partitions for one in found.manifests):
            partitions[each.folder] = each.topic_partition
            objects.update(zip(repeat(each.folder), each.objects))
        backups.update(objects)
        rows += _manifest_faults(repository, found)
    paths = {(folder, named): f"{root}/{folder}/{named.object_name}" for folder, named in backups}
    expected_paths = {*paths.values()}
    sizes = {
        path: size
        for below, size, _ in repository.listed(DATA_FOLDER)
        if (path := f"{root}/{DATA_FOLDER}/{below}") in expected_paths
    }
    sample = {
        path
        for path in expected_paths
        if random.random() * 100 < request.sample  # noqa: S311, no secret
    }

    def check(key: tuple[str, LogChunk | KeptFile]) -> dict[str, object]:
        (folder, named), path = key, paths[key]
        size = sizes.get(path)
        row: dict[str, object] = {
            "topic": partitions[folder].topic,
            "partition": partitions[folder].partition,
            "segment_base_offset": named.base_offset if isinstance(named, LogChunk) else None,
            "path": path,
            "status": "listed",
            "backups": backups[key],
            "size_bytes": named.size_bytes,
            "is_read": False,
        }
        if size is None:
            return {
                **row,
                **_fault("missing", "the object does not exist", f"{named.size_bytes} bytes"),
            }
        if size != named.size_bytes:
            expected = f"{named.size_bytes} bytes"
            return {**row, **_fault("altered", "the size differs", expected, f"{size} bytes")}
        if path not in sample:
            return row
        return {**row, "is_read": True, **_read_fault(repository, path, named)}

    by_path = sorted(paths, key=paths.__getitem__)
    checked = [*map_requests(check, by_path, threads=READS_AT_A_TIME, name="objects")]
    for (folder, named), row in zip(by_path, checked, strict=True):
        if request.repair and row["status"] in ("missing", "altered", "damaged"):
            repository.mark_damaged(folder, named.object_name)
    rows += checked
    statuses = {str(row["status"]) for row in rows}
    outcome = RunOutcome.DONE
    if "unreadable" in statuses:
        outcome = RunOutcome.ENVIRONMENT
    elif not statuses <= {"intact", "listed"}:
        outcome = RunOutcome.DAMAGE
    table = pa.Table.from_pylist(rows, schema=VERIFY_REPORT.schema)
    return VerifyBackupsResult(table, outcome, root=root, is_repaired=request.repair)


def _manifest_faults(repository: Repository, found: BackupManifests) -> Iterator[dict[str, object]]:
    """Yield a row for each manifest that cannot be read or does not match its head."""
    for error in found.errors:
        row = {"path": error.path or "", "status": "damaged", "reason": error.message}
        yield {**row, "expected": error.expected, "found": error.found}
    for manifest, sha256 in zip(found.manifests, found.hashes, strict=True):
        try:
            expected = repository.hash_in_head(found.backup_id, manifest.node_id)
        except CorruptObjectError as error:
            yield {"path": error.path, **_fault("damaged", error.message)}
            continue
        if expected not in (None, sha256):
            path = manifest_path(repository.root, found.backup_id, manifest.node_id)
            reason = "its hash differs from the hash in its head file"
            yield {"path": path, **_fault("altered", reason, expected, sha256)}


def _read_fault(repository: Repository, path: str, named: LogChunk | KeptFile) -> dict[str, object]:
    """Return the row columns that describe how an object differs from its manifest entry."""
    try:
        data = repository.store.read(path)
    except FileNotFoundError:
        return _fault("missing", "the object was deleted concurrently", f"{named.size_bytes} bytes")
    except KafkaIndexError as error:
        if not is_retriable(error):
            raise
        return _fault("unreadable", error.message)
    _, sha256, crc32 = content_of(data)
    if sha256 != named.sha256:
        return _fault("altered", "the hash differs", named.sha256, sha256)
    if crc32 != named.crc32:
        return _fault("altered", "the CRC-32 differs", f"{named.crc32:08x}", f"{crc32:08x}")
    if isinstance(named, KeptFile):
        return {"status": "intact"}
    return _batches_fault(np.frombuffer(data, np.uint8), named.base_offset, named.last_offset)


def _batches_fault(data: Bytes, base_offset: int, last_offset: int) -> dict[str, object]:
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    last = -1
    for chunk in batches:
        last = int(chunk.last_offset[-1])
    if batches.stop is not None:
        stop = batches.stop
        reason = f"at byte {stop.position_bytes}: {stop.reason_code}"
        return _fault("damaged", reason, stop.expected, stop.found)
    if last != last_offset:
        return _fault("damaged", "the last offset differs", str(last_offset), str(last))
    return {"status": "intact"}


def _fault(
    status: str, reason: str, expected: str | None = None, found: str | None = None
) -> dict[str, object]:
    return {
        "status": status,
        "reason_code": status,
        "reason": reason,
        "expected": expected,
        "found": found,
    }

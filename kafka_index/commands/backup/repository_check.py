"""The runs of a repository of backups as rows, and whether what is stored for them is sound."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import CorruptObjectError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import Time, now_ms, parse_time
from kafka_index.core.fs.backup.backup_paths import run_path
from kafka_index.core.fs.backup.manifest import (
    DATA_FOLDER,
    KeptFile,
    Manifest,
    Piece,
    content_of,
    cut_time,
    hash_of,
    is_consistent,
    manifest_path,
    missing_brokers,
    run_time,
)
from kafka_index.core.fs.backup.repository import MissingManifestError, Repository, StoredManifest
from kafka_index.core.fs.paths import repository_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.job.result import RunOutcome, TableResult, report_schema
from kafka_index.core.job.threads import map_requests
from kafka_index.core.log.scan.file_records import LogBatches

#: Manifests and objects that are read at a time.
READS_AT_A_TIME = 8

#: A row per run.
RUNS_SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("opened", pa.timestamp("ms", "UTC"), nullable=False),
        ("cut", pa.timestamp("ms", "UTC")),
        pa.field("status", pa.string(), nullable=False),
        pa.field("brokers", pa.list_(pa.int32()), nullable=False),
        pa.field("missing_brokers", pa.list_(pa.int32()), nullable=False),
        pa.field("partitions", pa.int64(), nullable=False),
        pa.field("missed_partitions", pa.int64(), nullable=False),
        pa.field("new_bytes", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        ("gap_ms", pa.int64()),
        pa.field("age_ms", pa.int64(), nullable=False),
        ("reason", pa.string()),
    ]
)
#: A row per stored object, and per manifest that cannot be read.
CHECKED_SCHEMA = report_schema(
    [
        ("runs", pa.int64()),
        ("size_bytes", pa.int64()),
        ("is_read", pa.bool_()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ],
    required=("path", "status"),
)


class RunManifests(NamedTuple):
    """A run with its manifests, their hashes, and the errors of unreadable manifests."""

    run: str
    manifests: tuple[Manifest, ...]
    errors: tuple[KafkaIndexError, ...] = ()
    hashes: tuple[str, ...] = ()

    @property
    def missing_brokers(self) -> list[int]:
        """The brokers that manifests of the run name, and that have none in it."""
        return missing_brokers(self.manifests)

    @property
    def is_complete(self) -> bool:
        """Whether all its brokers have manifests, which can be read."""
        return bool(self.manifests) and not self.errors and not self.missing_brokers


def read_runs(repository: Repository, runs: Mapping[str, Iterable[int]]) -> Iterator[RunManifests]:
    """Yield runs, given with the brokers that have manifests, which expire meanwhile or not.

    The bytes of manifests are read ahead; what they say is in memory for one run at a time.
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

    keys = [(run, node_id) for run, brokers in runs.items() for node_id in brokers]
    stored = map_requests(read, keys, threads=READS_AT_A_TIME, name="manifests")
    for run, own in groupby(zip(keys, stored, strict=True), key=lambda each: each[0][0]):
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
            yield RunManifests(run, tuple(manifests), tuple(errors), tuple(hashes))


@dataclass(frozen=True, repr=False)
class Backup(TableResult):
    """A repository of backups: its runs, and the inputs that name them.

    Parameters
    ----------
    rows : pa.Table
        A row per run, ascending: its name, when it was opened and cut, its status (``complete``,
        ``incomplete``, ``inconsistent``, ``damaged``), its brokers and missing ones,
        partitions, bytes that it added and that it names, the time from the cut of the complete
        run before it, and from its own cut until now.
    ended : RunOutcome
        Damage, where a manifest cannot be read.
    unread : tuple of str
        Always empty.
    root : str
        The repository, a path or a URI.
    now_ms : int
        The time to which ages refer, in milliseconds since the epoch.
    earlier : int
        Runs that are older than the rows.
    """

    root: str = ""
    now_ms: int = 0
    earlier: int = 0

    command = "backups list"

    @property
    def headline(self) -> str:
        """The number of runs, and what a restore would lose now."""
        count = plural(self.rows.num_rows + self.earlier, "run")
        newest = self.newest
        if newest is None:
            return f"{count}, none of them complete: nothing can be restored whole"
        lost = max(self.now_ms - newest["cut"], 0) / 1000
        missed = newest["missed_partitions"]
        more = f", and {plural(missed, 'partition')} that it could not take" if missed else ""
        return f"{count}; a restore now loses the last {_span(lost)}{more}"

    @property
    def newest(self) -> dict[str, Any] | None:
        """The newest complete run as a row, its times in milliseconds; None where none is."""
        rows = self.rows
        for name in ("opened", "cut"):
            at = rows.column_names.index(name)
            rows = rows.set_column(at, name, rows[name].cast(pa.int64()))
        for row in reversed(rows.to_pylist()):
            if row["status"] in ("complete", "inconsistent"):
                return dict(row)
        return None

    @property
    def counts(self) -> Mapping[str, int]:
        """Runs, and complete ones."""
        status = self.rows["status"].to_pylist()
        return {
            "runs": len(status) + self.earlier,
            "incomplete": status.count("incomplete"),
            "inconsistent": status.count("inconsistent"),
            "damaged": status.count("damaged"),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes that the runs added, and that the newest complete one names."""
        newest = self.newest
        whole = 0 if newest is None else newest["bytes"]
        return {"new": pc.sum(self.rows["new_bytes"]).as_py() or 0, "newest": whole}

    def at(self, time: Time | None = None) -> str:
        """Return the input by which other functions read a run.

        Parameters
        ----------
        time : str, int, date or datetime, optional
            The newest complete run at or before this time. By default the newest complete run.

        Returns
        -------
        str
            The path of the run, such as ``backup+s3://bucket/kafka/@20261120T120000.123Z``.

        Raises
        ------
        InputError
            There is no such run.
        """
        selector = "" if time is None else f"ms:{parse_time(time)}"
        return run_path(self.root, repository_of(self.root).find_run(selector))


def list_runs(root: str, last: int | None = None) -> Backup:
    """Return the runs of a repository, by default all; raises `InputError` if it is none."""
    repository = repository_of(root)
    repository.file()
    brokers = {run: own for run, own in repository.brokers_with_heads().items() if own}
    chosen = dict(list(brokers.items())[-last:] if last else brokers.items())
    now = now_ms()
    rows: list[dict[str, object]] = []
    complete_ms: int | None = None
    is_damaged = False
    for each in read_runs(repository, chosen):
        row = _row(each, now)
        is_damaged |= bool(each.errors)
        if each.is_complete:
            cut_ms = cut_time(each.manifests)
            row["gap_ms"] = None if complete_ms is None else cut_ms - complete_ms
            complete_ms = cut_ms
        rows.append(row)
    return Backup(
        pa.Table.from_pylist(rows, schema=RUNS_SCHEMA),
        RunOutcome.DAMAGE if is_damaged else RunOutcome.DONE,
        root=root,
        now_ms=now,
        earlier=len(brokers) - len(chosen),
    )


def _row(found: RunManifests, now: int) -> dict[str, object]:
    manifests = found.manifests
    partitions = {each.topic_partition for one in manifests for each in one.partitions}
    missed = {TopicPartition(own.topic, own.partition) for one in manifests for own in one.missed}
    missed -= partitions
    status, reason = "complete", None
    if found.errors:
        status, reason = "damaged", str(found.errors[0])
    elif found.missing_brokers:
        status = "incomplete"
        reason = f"no manifest of broker {', '.join(map(str, found.missing_brokers))}"
    elif not is_consistent(manifests):
        status = "inconsistent"
        reason = "brokers cut at other times: transactions and groups are not consistent"
    elif missed:
        first = min(missed).directory_name
        reason = f"{plural(len(missed), 'partition')} missed, such as {first}"
    cut_ms = cut_time(manifests) if manifests else None
    return {
        "run": found.run,
        "opened": run_time(found.run),
        "cut": cut_ms,
        "status": status,
        "brokers": sorted(each.node_id for each in manifests),
        "missing_brokers": found.missing_brokers,
        "partitions": len(partitions),
        "missed_partitions": len(missed),
        "new_bytes": sum(each.new_bytes for each in manifests),
        "bytes": _bytes_of(manifests),
        "age_ms": max(now - (run_time(found.run) if cut_ms is None else cut_ms), 0),
        "reason": reason,
    }


def _bytes_of(manifests: Iterable[Manifest]) -> int:
    """Return the bytes that manifests name, those of an object once."""
    copies: dict[str, list[tuple[Piece | KeptFile, ...]]] = {}
    for manifest in manifests:
        for partition in manifest.partitions:
            copies.setdefault(partition.folder, []).append(partition.objects)
    return sum(
        each.size_bytes
        for own in copies.values()
        for each in (own[0] if len(own) == 1 else {*chain(*own)})
    )


@dataclass(frozen=True, repr=False)
class CheckedBackup(TableResult):
    """The result of `verify_backup`: a row per stored object that manifests name."""

    command = "backups verify"

    @property
    def headline(self) -> str:
        """The verdict."""
        counts, read = self.counts, self.sizes_bytes["read"]
        faults = counts["missing"] + counts["altered"] + counts["damaged"]
        if faults:
            first = self._shown().to_pylist()[0]
            return f"{plural(faults, 'object')} missing or altered, such as {first['path']}"
        if self.outcome is RunOutcome.ENVIRONMENT:
            return f"{plural(counts['unreadable'], 'object')} could not be read"
        unread = counts["objects"] - counts["read"]
        more = f"; of {unread:,} others there are the names and sizes" if unread else ""
        return f"{plural(counts['read'], 'object')} of {read:,} bytes are as manifests say{more}"

    @property
    def counts(self) -> Mapping[str, int]:
        """Objects by status."""
        status = self.rows["status"].to_pylist()
        names = ("sound", "listed", "missing", "altered", "damaged", "unreadable")
        read = pc.sum(self.rows["is_read"]).as_py() or 0
        return {
            "objects": len(status),
            "read": read,
            **{name: status.count(name) for name in names},
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of all objects, and of all that was read."""
        read = self.rows.filter(pc.fill_null(self.rows["is_read"], False))  # noqa: FBT003, as Arrow takes it
        return {
            "objects": pc.sum(self.rows["size_bytes"]).as_py() or 0,
            "read": pc.sum(read["size_bytes"]).as_py() or 0,
        }

    @property
    def faults(self) -> pa.Table:
        """The rows of what is missing, altered, damaged or could not be read."""
        is_sound = pc.is_in(self.rows["status"], value_set=pa.array(["sound", "listed"]))
        return self.rows.filter(pc.invert(is_sound))

    def _shown(self) -> pa.Table:
        return self.faults if self.faults.num_rows else self.rows


def verify_backup(
    root: str, run: str | None = None, sample: float = 100.0, *, repair: bool = False
) -> CheckedBackup:
    """Check the objects that the manifests of a run, or of all runs, name.

    All are listed, and looked for by name and size. Each is read with a probability of `sample`
    percent; then its hash is compared, and the checksums and offsets of its batches. With `repair`
    missing and altered objects are marked, so that the next backup stores them again. Raises
    `InputError` if there is no such repository or run.
    """
    repository = repository_of(root)
    repository.file()
    brokers = repository.brokers_with_heads()
    if run is not None:
        name = repository.find_run(run)
        brokers = {name: brokers.get(name, ())}
    rows: list[dict[str, object]] = []
    partitions: dict[str, TopicPartition] = {}
    # The number of runs that name an object, by its folder and what manifests say of it.
    runs: Counter[tuple[str, Piece | KeptFile]] = Counter()
    for found in read_runs(repository, brokers):
        of_run: set[tuple[str, Piece | KeptFile]] = set()
        for each in chain.from_iterable(one.partitions for one in found.manifests):
            partitions[each.folder] = each.topic_partition
            of_run.update(zip(repeat(each.folder), each.objects))
        runs.update(of_run)
        rows += _manifest_faults(repository, found)
    paths = {(folder, named): f"{root}/{folder}/{named.object_name}" for folder, named in runs}
    there = {*paths.values()}
    sizes = {
        path: size
        for below, size, _ in repository.listed(DATA_FOLDER)
        if (path := f"{root}/{DATA_FOLDER}/{below}") in there
    }
    wanted = {path for path in there if random.random() * 100 < sample}  # noqa: S311, no secret

    def check(key: tuple[str, Piece | KeptFile]) -> dict[str, object]:
        (folder, named), path = key, paths[key]
        size = sizes.get(path)
        row: dict[str, object] = {
            "topic": partitions[folder].topic,
            "partition": partitions[folder].partition,
            "segment_base_offset": named.base_offset if isinstance(named, Piece) else None,
            "path": path,
            "status": "listed",
            "runs": runs[key],
            "size_bytes": named.size_bytes,
            "is_read": False,
        }
        if size is None:
            return {**row, **_fault("missing", "it is not there", f"{named.size_bytes} bytes")}
        if size != named.size_bytes:
            expected = f"{named.size_bytes} bytes"
            return {**row, **_fault("altered", "it has another size", expected, f"{size} bytes")}
        if path not in wanted:
            return row
        return {**row, "is_read": True, **_read_fault(repository, path, named)}

    by_path = sorted(paths, key=paths.__getitem__)
    checked = [*map_requests(check, by_path, threads=READS_AT_A_TIME, name="objects")]
    for (folder, named), row in zip(by_path, checked, strict=True):
        if repair and row["status"] in ("missing", "altered", "damaged"):
            repository.mark_damaged(folder, named.object_name)
    rows += checked
    statuses = {str(row["status"]) for row in rows}
    outcome = RunOutcome.DONE
    if "unreadable" in statuses:
        outcome = RunOutcome.ENVIRONMENT
    elif not statuses <= {"sound", "listed"}:
        outcome = RunOutcome.DAMAGE
    return CheckedBackup(pa.Table.from_pylist(rows, schema=CHECKED_SCHEMA), outcome)


def _manifest_faults(repository: Repository, found: RunManifests) -> Iterator[dict[str, object]]:
    """Yield a row for each manifest that cannot be read or does not match its head."""
    for error in found.errors:
        row = {"path": error.path or "", "status": "damaged", "reason": error.message}
        yield {**row, "expected": error.expected, "found": error.found}
    for manifest, sha256 in zip(found.manifests, found.hashes, strict=True):
        try:
            expected = repository.hash_in_head(found.run, manifest.node_id)
        except CorruptObjectError as error:
            yield {"path": error.path, **_fault("damaged", error.message)}
            continue
        if expected not in (None, sha256):
            path = manifest_path(repository.root, found.run, manifest.node_id)
            reason = "its hash differs from the hash in its head file"
            yield {"path": path, **_fault("altered", reason, expected, sha256)}


def _read_fault(repository: Repository, path: str, named: Piece | KeptFile) -> dict[str, object]:
    """Return how what is stored differs from what manifests say of it, as columns of its row."""
    try:
        data = repository.store.read(path)
    except FileNotFoundError:
        return _fault("missing", "it was deleted meanwhile", f"{named.size_bytes} bytes")
    except KafkaIndexError as error:
        if not is_retriable(error):
            raise
        return _fault("unreadable", error.message)
    _, sha256, crc32 = content_of(data)
    if sha256 != named.sha256:
        return _fault("altered", "its hash is another", named.sha256, sha256)
    if crc32 != named.crc32:
        return _fault("altered", "its CRC-32 is another", f"{named.crc32:08x}", f"{crc32:08x}")
    if isinstance(named, KeptFile):
        return {"status": "sound"}
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
        return _fault("damaged", "its batches end elsewhere", str(last_offset), str(last))
    return {"status": "sound"}


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


def _span(seconds: float) -> str:
    """Return a time for people: two of its units."""
    whole = int(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        count, whole = divmod(whole, size)
        if count or parts or name == "s":
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])

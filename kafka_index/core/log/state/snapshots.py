"""Read and write producer snapshots (``.snapshot``), and compute the order of their entries.

Sources: Kafka's ``ProducerStateManager`` (``writeSnapshot``, ``readSnapshot``,
``listSnapshotFiles``, ``truncateAndReload``, ``loadFromSnapshot``), and the JDK's ``HashMap``
(``hash``, ``putVal``, ``resize``, ``treeifyBin``, ``computeIfAbsent``).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptSnapshotError
from kafka_index.core.format.names import SNAPSHOT_SUFFIX, parse_segment_file, segment_file_name
from kafka_index.core.format.records import (
    NO_LAST_OFFSET,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
    NO_SEQUENCE,
    PRODUCER_STATE_ENTRY,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
    field_position,
)
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.kernels.checksums import crc32c

_FIRST_CAPACITY = 16
#: If a bucket becomes too long, a table with fewer buckets than this is doubled. In a larger table,
#: the bucket becomes a tree.
_MIN_TREEIFY_CAPACITY = 64
#: Number of entries in a bucket above which ``putVal`` treats it as too long.
_LONG_BUCKET = 8

_COUNT_POSITION = field_position(SNAPSHOT_HEADER, "count")
_CRC_POSITION = field_position(SNAPSHOT_HEADER, "crc")
_VERSION_BYTES = SNAPSHOT_HEADER["version"].itemsize


class JavaMapOrder:
    """The iteration order of a Java HashMap; `capacity` is its number of buckets.

    The capacity never shrinks, even if entries are removed. `has_tree` is True if a bucket became a
    tree in `put_all`. The root of a tree is moved to the front of the bucket, so the order is not
    certain.
    """

    def __init__(self) -> None:
        self.capacity = _FIRST_CAPACITY
        self.has_tree = False

    def put(self, producer_id: int, present: Collection[int]) -> None:
        """Put a producer ID into a map that contains the IDs `present` (``HashMap.putVal``)."""
        self._put_into_bucket(producer_id, present, _LONG_BUCKET)
        if len(present) + 1 > self._threshold:
            self.capacity *= 2

    def put_all(self, producer_ids: NDArray[np.int64]) -> None:
        """Put distinct producer IDs into an empty map, one after another."""
        hashes = _hash_ids(producer_ids)
        row = 0
        while row < len(hashes) and self.capacity < _MIN_TREEIFY_CAPACITY:
            self.put(int(producer_ids[row]), producer_ids[:row].tolist())
            row += 1
        while row < len(hashes):
            # Put as many IDs as fit before the table is doubled.
            end = min(len(hashes), self._threshold + 1)
            self.has_tree = self.has_tree or _makes_tree(hashes[:end], row, self.capacity)
            if end > self._threshold:
                self.capacity *= 2
            row = end

    def order_of(self, producer_ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the iteration order as indices of `producer_ids`, which are in insertion order."""
        # Sort by bucket, then by insertion order, which is the low half of each key.
        keys = (_hash_ids(producer_ids) & (self.capacity - 1)) << 32 | np.arange(len(producer_ids))
        keys.sort()
        return (keys & 0xFFFFFFFF).astype(np.intp)

    def compute_all_absent(self, producer_ids: Sequence[int]) -> None:
        """Run ``computeIfAbsent`` for distinct producer IDs on an empty map, one after another.

        In contrast to ``putVal``, the table grows one ID later, and a bucket is too long one ID
        earlier.
        """
        for row, producer_id in enumerate(producer_ids):
            if row > self._threshold:
                self.capacity *= 2
            self._put_into_bucket(producer_id, producer_ids[:row], _LONG_BUCKET - 1)

    @property
    def _threshold(self) -> int:
        return self.capacity // 4 * 3

    def _put_into_bucket(self, producer_id: int, present: Collection[int], long: int) -> None:
        """Double a small table if the bucket of an ID then has more than `long` IDs."""
        if self.capacity < _MIN_TREEIFY_CAPACITY:
            ids = np.array([producer_id, *present], np.int64)
            buckets = _hash_ids(ids) & (self.capacity - 1)
            if np.count_nonzero(buckets == buckets[0]) > long:
                self.capacity *= 2


def order_of_put(producer_ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], bool]:
    """Put distinct IDs into a new map; return their order and whether a bucket became a tree."""
    table = JavaMapOrder()
    table.put_all(producer_ids)
    return table.order_of(producer_ids), table.has_tree


def order_of_computed(producer_ids: Sequence[int]) -> list[int]:
    """Compute distinct IDs in a new map; return the IDs in the iteration order of the map."""
    if len(producer_ids) == 1:
        return list(producer_ids)
    table = JavaMapOrder()
    table.compute_all_absent(producer_ids)
    # ``computeIfAbsent`` inserts an ID at the front of its bucket.
    reversed_ids = list(producer_ids[::-1])
    return [
        reversed_ids[index] for index in table.order_of(np.array(reversed_ids, np.int64)).tolist()
    ]


def _hash_ids(producer_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    ids = np.ascontiguousarray(producer_ids, np.int64)
    folded = (ids ^ (ids >> 32)) & 0xFFFFFFFF
    return folded ^ (folded >> 16)


def _makes_tree(hashes: NDArray[np.int64], start: int, capacity: int) -> bool:
    """Return whether any hash at row `start` or later is put into a bucket that is too long."""
    buckets = hashes & (capacity - 1)
    sizes = np.bincount(buckets, minlength=capacity)
    in_long_bucket = np.flatnonzero(sizes[buckets] > _LONG_BUCKET)
    return bool(in_long_bucket.size and in_long_bucket[-1] >= start)


def encode_snapshot(entries: NDArray[np.void]) -> bytes:
    """Encode a snapshot.

    Entries must be in file order. A broker writes them in the order of `JavaMapOrder`.
    """
    count = len(entries).to_bytes(4, "big", signed=True)
    covered = count + entries.astype(SNAPSHOT_ENTRY).tobytes()
    version = SNAPSHOT_VERSION.to_bytes(_VERSION_BYTES, "big")
    return version + crc32c(covered).to_bytes(4, "big") + covered


def decode_snapshot(data: bytes, *, path: str | None = None) -> NDArray[np.void]:
    """Decode a snapshot into the entries that a broker loads, in file order.

    If an entry has no last offset, its sequence and offset delta are ignored too. A negative first
    offset of a transaction means that no transaction is open. Raises `CorruptSnapshotError` for a
    file that a broker deletes, because its version, size or checksum is wrong. Bytes after the
    entries are accepted if the checksum covers them. Source: ProducerStateManager.readSnapshot.
    """
    return normalize_entries(decode_stored_entries(data, path=path))


def normalize_entries(entries: NDArray[np.void]) -> NDArray[np.void]:
    """Convert stored entries to the values that a broker loads (`decode_snapshot`)."""
    entries = entries.copy()
    without_batch = entries["last_offset"] < 0
    entries["last_offset"][without_batch] = NO_LAST_OFFSET
    entries["last_sequence"][without_batch] = NO_SEQUENCE
    entries["offset_delta"][without_batch] = NO_OFFSET_DELTA
    entries["current_txn_first_offset"][entries["current_txn_first_offset"] < 0] = NO_OPEN_TXN
    return entries


def decode_stored_entries(data: bytes, *, path: str | None = None) -> NDArray[np.void]:
    """Decode a snapshot like `decode_snapshot`, but keep the values of all stored fields."""
    version = data[:_VERSION_BYTES]
    if len(version) == _VERSION_BYTES and int.from_bytes(version, "big") != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(
            "the version of the snapshot is not supported",
            path=path,
            position_bytes=0,
            expected=SNAPSHOT_VERSION,
            found=int.from_bytes(version, "big", signed=True),
        )
    if len(data) < SNAPSHOT_HEADER.itemsize:
        raise CorruptSnapshotError(
            "the snapshot is shorter than its header",
            path=path,
            position_bytes=len(data),
            expected=f"{SNAPSHOT_HEADER.itemsize} bytes or more",
            found=f"{len(data)} bytes",
        )
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    count = int(header["count"])
    max_count = (len(data) - SNAPSHOT_HEADER.itemsize) // SNAPSHOT_ENTRY.itemsize
    if not 0 <= count <= max_count:
        raise CorruptSnapshotError(
            "the entry count of the snapshot does not match its size",
            path=path,
            position_bytes=_COUNT_POSITION,
            expected=f"0..{max_count} entries in {len(data)} bytes",
            found=count,
        )
    crc = crc32c(memoryview(data)[_COUNT_POSITION:])
    if crc != int(header["crc"]):
        raise CorruptSnapshotError(
            "the checksum of the snapshot does not match",
            path=path,
            position_bytes=_CRC_POSITION,
            expected=f"0x{crc:08x} over {len(data) - _COUNT_POSITION} bytes",
            found=f"0x{int(header['crc']):08x}",
        )
    entries = np.frombuffer(data, SNAPSHOT_ENTRY, count, SNAPSHOT_HEADER.itemsize)
    return entries.astype(PRODUCER_STATE_ENTRY)


def list_snapshots(directory: str) -> list[int]:
    """Return the offsets of the snapshots in a partition directory, ascending.

    Raises `OSError` if a local directory cannot be read, and `KafkaIndexError` if a remote one
    cannot be read. Source: ProducerStateManager.listSnapshotFiles.
    """
    return filter_snapshots(store_of(directory).scan(directory))


def filter_snapshots(entries: Iterable[Entry]) -> list[int]:
    """Return the offsets of the snapshots in a directory listing, ascending."""
    return sorted(
        offset
        for entry in entries
        for offset in _snapshot_offset(entry.name)
        if entry.file_error() is None
    )


def _snapshot_offset(name: str) -> Iterator[int]:
    """Yield the offset in the name of a snapshot, and nothing for other files."""
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind == SNAPSHOT_SUFFIX and not parsed.transient:
        yield parsed.base_offset


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, segment_file_name(offset, SNAPSHOT_SUFFIX))


def is_out_of_range(offset: int, log_start_offset: int, end_offset: int) -> bool:
    """Return whether a broker that loads producers at `end_offset` does not use a snapshot.

    Source: ProducerStateManager.truncateAndReload.
    """
    return offset <= log_start_offset or offset > end_offset


def load_latest_snapshot(
    directory: str, offsets: Iterable[int]
) -> tuple[int | None, NDArray[np.void] | None, list[tuple[int, CorruptSnapshotError]]]:
    """Read the latest valid snapshot among those with the given ascending offsets.

    Returns the offset and the entries, both None without a valid snapshot. Also returns the offset
    and error of each later corrupt snapshot, which a broker deletes. Raises `FileNotFoundError` if
    a snapshot does not exist, and `KafkaIndexError` if it cannot be read. Source:
    ProducerStateManager.loadFromSnapshot.
    """
    damaged: list[tuple[int, CorruptSnapshotError]] = []
    for offset in reversed(list(offsets)):
        path = snapshot_path(directory, offset)
        data = store_of(path).read(path)
        try:
            return offset, decode_snapshot(data, path=path), damaged
        except CorruptSnapshotError as error:
            damaged.append((offset, error))
    return None, None, damaged


class ProducerDifference(NamedTuple):
    """A difference between a producer in a snapshot and in the log."""

    producer_id: int
    expected: str
    found: str
    is_missing: bool = False


def compare_producers(
    snapshot_entries: NDArray[np.void], log_entries: NDArray[np.void], log_start: int
) -> ProducerDifference | None:
    """Return the first difference between producers in a snapshot and in the log, None if equal.

    A producer or transaction that is only in the snapshot is ignored if its batches are below
    `log_start`, because the log no longer contains them.
    """
    entries_by_id = {int(row["producer_id"]): row for row in snapshot_entries}
    for row in log_entries:
        producer_id = int(row["producer_id"])
        entry = entries_by_id.pop(producer_id, None)
        if entry is None:
            last_offset = f"last offset {int(row['last_offset'])}"
            return ProducerDifference(producer_id, last_offset, "no such producer", is_missing=True)
        name = _find_different_field(row, entry, log_start)
        if name is not None:
            return ProducerDifference(
                producer_id, f"{name} {int(row[name])}", f"{int(entry[name])}"
            )
    for producer_id, row in entries_by_id.items():
        if int(row["last_offset"]) >= log_start:
            last_offset = f"last offset {int(row['last_offset'])}"
            return ProducerDifference(producer_id, "no such producer in the log", last_offset)
    return None


def _find_different_field(expected: np.void, stored: np.void, log_start: int) -> str | None:
    for name in ("producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms"):
        if expected[name] != stored[name]:
            return name
    if expected["coordinator_epoch"] not in (-1, stored["coordinator_epoch"]):
        return "coordinator_epoch"
    name = "current_txn_first_offset"
    if expected[name] != stored[name] and not 0 <= stored[name] < log_start:
        return name
    return None

"""The ``.snapshot`` file: the state of a partition's producers at an offset, as bytes and back.

Sources: Kafka's ``ProducerStateManager.writeSnapshot`` and ``readSnapshot``, and the JDK's
``HashMap``, in whose order of iteration the producers are written.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptSnapshotError
from kafka_index.kernels.checksums import crc32c
from kafka_index.layout.producer_state import (
    NO_LAST_OFFSET,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
    PRODUCER_STATE_ENTRY,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)
from kafka_index.layout.records import NO_SEQUENCE, field_position

_COUNT_POSITION = field_position(SNAPSHOT_HEADER, "count")
_CRC_POSITION = field_position(SNAPSHOT_HEADER, "crc")
_VERSION_BYTES = SNAPSHOT_HEADER["version"].itemsize

_FIRST_CAPACITY = 16
#: Below this capacity a long bucket doubles the table, from it on it becomes a tree.
_MIN_TREEIFY_CAPACITY = 64
#: A node that finds as many in its bucket makes the bucket too long.
_LONG_BUCKET = 8


def encode_snapshot(entries: NDArray[np.void]) -> bytes:
    """Return the bytes of a snapshot.

    Parameters
    ----------
    entries : ndarray of PRODUCER_STATE_ENTRY, shape (n,)
        In the order in which they are to stand: a broker's is that of `java_map_order`.
    """
    count = len(entries).to_bytes(4, "big", signed=True)
    covered = count + entries.astype(SNAPSHOT_ENTRY).tobytes()
    version = SNAPSHOT_VERSION.to_bytes(_VERSION_BYTES, "big")
    return version + crc32c(covered).to_bytes(4, "big") + covered


def decode_snapshot(data: bytes, *, path: str | None = None) -> NDArray[np.void]:
    """Return the producers of a snapshot, as a broker knows them when it has read it.

    Parameters
    ----------
    data : bytes
        The whole file.
    path : str, optional
        Where it came from, for errors.

    Returns
    -------
    ndarray of PRODUCER_STATE_ENTRY, shape (n,)
        In the order of the file. An entry without a last offset is without its sequence and
        delta too, and any negative first offset of a transaction means that none is open.

    Raises
    ------
    CorruptSnapshotError
        A broker throws such a file away: its version is not 1, the entries do not fit in it, or
        the checksum is wrong. Bytes behind the entries are legal when the checksum covers them.

    Notes
    -----
    ProducerStateManager.readSnapshot.
    """
    entries = stored_entries(data, path=path)
    empty = entries["last_offset"] < 0
    entries["last_offset"][empty] = NO_LAST_OFFSET
    entries["last_sequence"][empty] = NO_SEQUENCE
    entries["offset_delta"][empty] = NO_OFFSET_DELTA
    entries["current_txn_first_offset"][entries["current_txn_first_offset"] < 0] = NO_OPEN_TXN
    return entries


def stored_entries(data: bytes, *, path: str | None = None) -> NDArray[np.void]:
    """Return the entries of a snapshot as they stand there; else it is `decode_snapshot`."""
    version = data[:_VERSION_BYTES]
    if len(version) == _VERSION_BYTES and int.from_bytes(version, "big") != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(
            "unknown version of a snapshot",
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
    room = (len(data) - SNAPSHOT_HEADER.itemsize) // SNAPSHOT_ENTRY.itemsize
    if not 0 <= count <= room:
        raise CorruptSnapshotError(
            "the entries do not fit in the snapshot",
            path=path,
            position_bytes=_COUNT_POSITION,
            expected=f"0..{room} entries in {len(data)} bytes",
            found=count,
        )
    crc = crc32c(memoryview(data)[_COUNT_POSITION:])
    if crc != int(header["crc"]):
        raise CorruptSnapshotError(
            "wrong checksum of a snapshot",
            path=path,
            position_bytes=_CRC_POSITION,
            expected=f"0x{crc:08x} over {len(data) - _COUNT_POSITION} bytes",
            found=f"0x{int(header['crc']):08x}",
        )
    stored = np.frombuffer(data, SNAPSHOT_ENTRY, count, SNAPSHOT_HEADER.itemsize)
    return stored.astype(PRODUCER_STATE_ENTRY)


def java_map_order(producer_ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], bool]:
    """Return the order in which a Java ``HashMap<Long, ...>`` iterates over its keys.

    Parameters
    ----------
    producer_ids : ndarray of int64, shape (n,)
        Distinct, in the order in which they were put into a new map.

    Returns
    -------
    tuple of ndarray of intp, shape (n,), and bool
        Places in `producer_ids`, in the order of iteration; and whether a bucket became a tree on
        the way. Trees put their root in front of their bucket, so then the order is not certain.

    Notes
    -----
    ``java.util.HashMap`` of the JDK: ``hash``, ``putVal``, ``resize`` and ``treeifyBin``.
    """
    ids = np.ascontiguousarray(producer_ids, np.int64)
    folded = (ids ^ (ids >> 32)) & 0xFFFFFFFF
    hashes = folded ^ (folded >> 16)
    capacity, start = _small_map(hashes)
    has_tree = False
    while start < len(hashes):
        # What is put in until the map holds more than three quarters of its capacity.
        stop = min(len(hashes), capacity // 4 * 3 + 1)
        has_tree = has_tree or _makes_tree(hashes[:stop], start, capacity)
        if stop > capacity // 4 * 3:
            capacity *= 2
        start = stop
    # Within a bucket in the order of insertion, which the low half of the sorted keys is.
    keys = (hashes & (capacity - 1)) << 32 | np.arange(len(hashes))
    keys.sort()
    return (keys & 0xFFFFFFFF).astype(np.intp), has_tree


def _small_map(hashes: NDArray[np.int64]) -> tuple[int, int]:
    """Put keys into a map until trees can come up; return its capacity and how many it took."""
    capacity = _FIRST_CAPACITY
    for row, key in enumerate(hashes.tolist()):
        if capacity >= _MIN_TREEIFY_CAPACITY:
            return capacity, row
        in_front = hashes[:row] & (capacity - 1)
        if np.count_nonzero(in_front == key & (capacity - 1)) >= _LONG_BUCKET:
            capacity *= 2
        if row + 1 > capacity // 4 * 3:
            capacity *= 2
    return capacity, len(hashes)


def _makes_tree(hashes: NDArray[np.int64], start: int, capacity: int) -> bool:
    """Return whether one of the keys from a place on finds a long bucket."""
    buckets = hashes & (capacity - 1)
    sizes = np.bincount(buckets, minlength=capacity)
    in_long_one = np.flatnonzero(sizes[buckets] > _LONG_BUCKET)
    return bool(in_long_one.size and in_long_one[-1] >= start)

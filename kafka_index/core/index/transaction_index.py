"""The transaction index (``.txnindex``): transactions whose abort markers are in a segment.

Source: Kafka's ``TransactionIndex``. Unlike the other indexes, it is not mapped or preallocated,
its offsets are absolute, and the file does not exist before the first entry.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from os import PathLike
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import (
    CorruptIndexError,
    InputError,
    InvalidOffsetError,
    PublishError,
    UnknownVersionError,
)
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.records import ABORTED_TXN, ABORTED_TXN_VERSION
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.kernels.search import NOT_FOUND

_MODE = 0o644

_NO_ENTRIES = np.frombuffer(b"", ABORTED_TXN)
#: Aborted transactions, as `ABORTED_TXN` or with the same fields in native byte order.
AbortedTxns = NDArray[np.void]


class AppendFile:
    """An append-only file that reads as empty if it does not exist, and may be renamed while open.

    If not `writable`, it is opened read-only and needs no write permission. `content` has the bytes
    of a file that was fetched elsewhere; no file is opened or written. Raises `InputError` if the
    file exists and cannot be opened, or is not a regular file.
    """

    def __init__(self, path: str, *, writable: bool, content: bytes | None = None) -> None:
        self.path = path
        self.writable = writable and content is None
        self.size_bytes = 0 if content is None else len(content)
        self.is_open = True
        self._content = content
        self._descriptor: int | None = None
        if content is not None:
            return
        try:
            self._descriptor = self._open(os.O_RDWR if writable else os.O_RDONLY)
            self.size_bytes = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(f"cannot open the index: {error.strerror}", path=path) from error

    def read(self, size_bytes: int) -> bytes:
        """Return the first bytes; raises `InputError` if the file was truncated concurrently."""
        if self._content is not None:
            return self._content[:size_bytes]
        chunks: list[bytes] = []
        position = 0
        while position < size_bytes and self._descriptor is not None:
            try:
                chunk = os.pread(self._descriptor, size_bytes - position, position)
            except OSError as error:
                raise InputError(
                    f"cannot read the index: {error.strerror}",
                    path=self.path,
                    position_bytes=position,
                ) from error
            if not chunk:
                raise InputError(
                    "the index was truncated after it was opened",
                    path=self.path,
                    expected=f"{self.size_bytes} bytes",
                    found=f"{position} bytes",
                )
            chunks.append(chunk)
            position += len(chunk)
        return b"".join(chunks)

    def append(self, data: bytes) -> None:
        """Append all bytes or none.

        Raises `PublishError` if the file is read-only, or cannot be created or written.
        """
        self.check_writable()
        try:
            if self._descriptor is None:
                self._descriptor = self._open(os.O_RDWR | os.O_CREAT)
                self.size_bytes = os.fstat(self._descriptor).st_size
            written_bytes = 0
            while written_bytes < len(data):
                position_bytes = self.size_bytes + written_bytes
                written_bytes += os.pwrite(self._descriptor, data[written_bytes:], position_bytes)
        except OSError as error:
            if self._descriptor is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self.size_bytes)
            raise publish_error(error, self.path, "write the index") from error
        self.size_bytes += len(data)

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file if it exists.

        Raises `PublishError` if it is read-only, or truncation fails.
        """
        self.check_writable()
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise publish_error(error, self.path, "truncate the index") from error
        self.size_bytes = size_bytes

    def flush(self) -> None:
        if self._descriptor is not None and self.writable:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise publish_error(error, self.path, "write the index") from error

    def close(self) -> None:
        self.is_open = False
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check_writable(self) -> None:
        """Raise `PublishError` if the file is read-only."""
        if not self.writable:
            raise PublishError("the index is open for reading only", path=self.path)

    def _open(self, flags: int) -> int:
        if not self.writable:
            refuse_linked_out(self.path)
        # O_NONBLOCK, so that opening a named pipe does not wait; named pipes are rejected here.
        descriptor = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError("the index is not a regular file", path=self.path)
        return descriptor


class CollectedTxns(NamedTuple):
    """Aborted transactions of a fetch, and whether they are complete without later segments."""

    entries: AbortedTxns
    is_complete: bool


def entry_versions(entries: AbortedTxns) -> NDArray[np.int16]:
    """Return the versions of entries as Kafka reads them: the first of two bytes, signed.

    Source: ``AbortedTxn.version``, which calls ``ByteBuffer.get`` on a short.
    """
    versions: NDArray[np.int16] = entries["version"].astype(np.int16) >> 8
    return versions


class TransactionIndex(Closeable):
    """The ``.txnindex`` of one segment.

    Parameters
    ----------
    path : path
        The index file. If it does not exist, the index is empty, and the first append creates it.
    start_offset : int
        Base offset of the segment, absolute.
    writable : bool
        If False, the file is opened read-only and needs no write permission.
    content : bytes, optional
        The bytes of a file that was fetched elsewhere; no file is opened or written.

    Raises
    ------
    InputError
        The file exists and cannot be opened.
    """

    entry_size = ABORTED_TXN.itemsize

    def __init__(
        self,
        path: str | PathLike[str],
        start_offset: int,
        *,
        writable: bool = True,
        content: bytes | None = None,
    ) -> None:
        self.start_offset = start_offset
        # Serializes modifications of the index.
        self._lock = threading.RLock()
        self._file = AppendFile(os.fspath(path), writable=writable, content=content)
        self._entries: AbortedTxns | None = None
        # As in Kafka, the first append is not compared with the last entry of an existing file.
        self._last_offset: int | None = None

    @property
    def path(self) -> str:
        """The path of the file, which may not exist yet."""
        return self._file.path

    @property
    def length(self) -> int:
        """Size of the file in bytes, 0 if it does not exist."""
        return self._file.size_bytes

    @property
    def torn_bytes(self) -> int:
        """Number of bytes after the last complete entry; reading skips them."""
        return self.length % self.entry_size

    @property
    def is_empty(self) -> bool:
        """Whether there is no complete entry."""
        return self.length < self.entry_size

    @property
    def entries(self) -> AbortedTxns:
        """All entries as stored: an array of `ABORTED_TXN` that must not be modified.

        Raises
        ------
        InputError
            The file cannot be read, or was truncated since it was opened.
        """
        with self._lock:
            self._check_open()
            if self._entries is None:
                whole_bytes = self.length - self.torn_bytes
                self._entries = np.frombuffer(self._file.read(whole_bytes), ABORTED_TXN)
            return self._entries

    def append(
        self, producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int
    ) -> None:
        """Append one transaction.

        Parameters
        ----------
        producer_id : int
            The producer of the transaction.
        first_offset, last_offset : int
            Its first offset and the offset of its marker, absolute.
        last_stable_offset : int
            The last stable offset after the transaction has ended, absolute.

        Raises
        ------
        InvalidOffsetError
            The last offset is not above the last offset of the previously appended entry.
        CorruptIndexError
            The file ends within an entry.
        PublishError
            The file cannot be written.
        """
        row = (ABORTED_TXN_VERSION, producer_id, first_offset, last_offset, last_stable_offset)
        self.append_many(np.array([row], ABORTED_TXN))

    def append_many(self, entries: AbortedTxns) -> None:
        """Run `append` in order; raise the error of the first entry that is rejected.

        Parameters
        ----------
        entries : ndarray of ABORTED_TXN, shape (n,)
            In either byte order.
        """
        with self._lock:
            self._check_open()
            self._file.check_writable()
            self._check_complete()
            last_offsets = entries["last_offset"].astype(np.int64)
            ascends = np.ones(len(entries), bool)
            ascends[1:] = last_offsets[1:] > last_offsets[:-1]
            if self._last_offset is not None:
                ascends[:1] = last_offsets[:1] > self._last_offset
            accepted = len(entries) if ascends.all() else int(ascends.argmin())
            if accepted:
                self._file.append(entries[:accepted].astype(ABORTED_TXN).tobytes())
                self._entries = None
                self._last_offset = int(last_offsets[accepted - 1])
            if accepted < len(entries):
                raise InvalidOffsetError(
                    "the last offset is not above the last offset of the previous transaction",
                    path=self.path,
                    expected=f"above {self._last_offset}",
                    found=int(last_offsets[accepted]),
                )

    def floor_slots(self, last_offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find, for each offset, the slot of the last entry whose last offset is at or below it.

        Parameters
        ----------
        last_offsets : ndarray of int64, shape (n,)
            Absolute, in any order.

        Returns
        -------
        ndarray of int64, shape (n,)
            Slots, `kafka_index.core.kernels.NOT_FOUND` if all entries are above.
        """
        slots = np.searchsorted(self._last_offsets(), last_offsets, side="right") - 1
        return np.where(slots >= 0, slots, NOT_FOUND)

    def ceiling_slots(self, last_offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find, for each offset, the slot of the first entry whose last offset is at or above it.

        For parameters and result, see `floor_slots`.
        """
        keys = self._last_offsets()
        slots = np.searchsorted(keys, last_offsets, side="left")
        return np.where(slots < len(keys), slots, NOT_FOUND)

    def collect_aborted_txns(self, fetch_offset: int, upper_bound_offset: int) -> CollectedTxns:
        """Return the aborted transactions that overlap with a fetch.

        Parameters
        ----------
        fetch_offset, upper_bound_offset : int
            First offset of the fetch, and the offset after its last; absolute.

        Returns
        -------
        CollectedTxns
            In file order, as in `entries`. Complete if an entry shows that all transactions below
            the upper bound have ended.

        Raises
        ------
        CorruptIndexError
            An entry that was read has an unknown version.
        """
        entries = self.entries
        stable = np.flatnonzero(entries["last_stable_offset"] >= upper_bound_offset)
        examined = entries[: int(stable[0]) + 1] if stable.size else entries
        self._check_versions(examined)
        overlaps = (examined["last_offset"] >= fetch_offset) & (
            examined["first_offset"] < upper_bound_offset
        )
        return CollectedTxns(examined[overlaps], bool(stable.size))

    def truncate_to(self, offset: int) -> None:
        """Remove the first entry whose last offset is at or above an offset, and all later entries.

        Raises
        ------
        CorruptIndexError
            An entry that was read has an unknown version.
        """
        with self._lock:
            entries = self.entries
            above = np.flatnonzero(entries["last_offset"] >= offset)
            self._check_versions(entries[: int(above[0]) + 1] if above.size else entries)
            if above.size:
                kept_entries = int(above[0])
                self._truncate(kept_entries * self.entry_size)
                self._last_offset = (
                    int(entries["last_offset"][kept_entries - 1]) if kept_entries else None
                )

    def reset(self) -> None:
        """Remove all entries; an existing file stays, empty."""
        with self._lock:
            self._check_open()
            self._truncate(0)
            self._last_offset = None

    def sanity_check(self) -> None:
        """Check versions and offsets as Kafka does when it loads a log.

        An incomplete last entry and offsets that do not ascend are not detected.

        Raises
        ------
        CorruptIndexError
            The first invalid entry.
        """
        entries = self.entries
        low = np.flatnonzero(entries["last_offset"] < self.start_offset)
        self._check_versions(entries[: int(low[0]) + 1] if low.size else entries)
        if low.size:
            raise CorruptIndexError(
                "the last offset of a transaction is below the base offset",
                path=self.path,
                position_bytes=int(low[0]) * self.entry_size,
                expected=f"{self.start_offset} or more",
                found=int(entries["last_offset"][low[0]]),
            )

    def flush(self) -> None:
        """Make the appended entries durable."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._entries = None
            self._file.close()

    def _truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)
        self._entries = None

    def _last_offsets(self) -> NDArray[np.int64]:
        return self.entries["last_offset"].astype(np.int64)

    def _check_versions(self, entries: AbortedTxns) -> None:
        unknown = np.flatnonzero(entry_versions(entries) > ABORTED_TXN_VERSION)
        if unknown.size:
            raise UnknownVersionError(
                "unknown version of an aborted transaction",
                path=self.path,
                position_bytes=int(unknown[0]) * self.entry_size,
                expected=ABORTED_TXN_VERSION,
                found=int(entries["version"][unknown[0]]),
            )

    def _check_complete(self) -> None:
        if self.torn_bytes:
            raise CorruptIndexError(
                "the file ends inside an entry, so nothing can be appended",
                path=self.path,
                position_bytes=self.length - self.torn_bytes,
                expected=f"a multiple of {self.entry_size} bytes",
                found=f"{self.length} bytes",
                hint="rebuild the index",
            )

    def _check_open(self) -> None:
        if not self._file.is_open:
            raise ValueError(f"the index is closed: {self.path}")


def collect_aborted_txns(
    indexes: Iterable[TransactionIndex], fetch_offset: int, upper_bound_offset: int
) -> AbortedTxns:
    """Return the aborted transactions that overlap with a fetch, in log order.

    `indexes` are the indexes of the segments from the fetch offset on, in order. They are read only
    as far as needed. Source: UnifiedLog.collectAbortedTransactions.
    """
    entries = [_NO_ENTRIES]
    for index in indexes:
        collected = index.collect_aborted_txns(fetch_offset, upper_bound_offset)
        entries.append(collected.entries)
        if collected.is_complete:
            break
    return np.concatenate(entries)


# -------------------------------------------------------------------------------------- comparison

# `TransactionIndex.collect_aborted_txns` reads entries up to the first one whose last stable offset
# reaches the upper bound of the fetch. So a fetch collects an entry if it starts at or before the
# entry's last offset, and its upper bound is above the entry's first offset and above the last
# stable offsets of all earlier entries. If these bounds are equal in two indexes, every fetch
# collects the same transactions, whatever the order of the entries.
#
# A last stable offset is correct up to the start of the next transaction that is not committed. A
# follower appends several batches at once and therefore writes larger last stable offsets; a
# rebuild never does. If such an offset is beyond the producer's next aborted transaction, fetches
# miss that transaction. The index is then wrong, although a broker wrote it. Source:
# `ProducerStateManager.lastStableOffset`.

_ABORTED_RECORDS_EFFECT = "Consumers that read committed records get aborted records."
_LOWEST = np.iinfo(np.int64).min


class TxnFault(StrEnum):
    """A defect of a transaction index, with its effect on consumers."""

    effect: str

    def __new__(cls, value: str, effect: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.effect = effect
        return member

    PADDED = "padded", _ABORTED_RECORDS_EFFECT
    #: An entry for a transaction that was not aborted.
    UNKNOWN = (
        "unknown",
        "Consumers that read committed records do not get records of the transaction.",
    )
    MISSING = "missing", _ABORTED_RECORDS_EFFECT
    #: An entry that a fetch does not reach, because the last stable offset of an earlier entry is
    #: too large.
    UNREACHED = "unreached", _ABORTED_RECORDS_EFFECT
    #: A last stable offset that ends the search of a fetch before it reaches later segments.
    TOO_STABLE = "too_stable", "Consumers that read committed records can get aborted records."


@dataclass(frozen=True, slots=True)
class TxnDifference:
    """A difference that makes a transaction index wrong; `entry` is a slot of the stored index."""

    fault: TxnFault
    entry: int
    expected: str
    found: str


class _Txn(NamedTuple):
    """The fields of an entry that identify a transaction, without the last stable offset."""

    producer_id: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        return f"producer {self.producer_id}, offsets {self.first_offset} to {self.last_offset}"


def compare_aborted_txns(
    stored: AbortedTxns,
    expected: AbortedTxns,
    has_data: Callable[[int, int, int], bool] = lambda *_: True,
    next_start: int = INT64_MAX,
) -> TxnDifference | None:
    """Return the first difference between two indexes that a fetch can observe, if any.

    `has_data` is called with a producer ID and a range of offsets, both ends inclusive. Stored
    entries of transactions without data are ignored. A stored first offset may be below the
    expected one if the transaction has no data in between: the log may start later, or compaction
    may have removed batches. Transactions that are open or that later segments abort start at
    `next_start` or later. Entry versions are not compared.
    """
    stored_txns, expected_txns = _to_txns(stored), _to_txns(expected)
    zeros = next((slot for slot, row in enumerate(stored.tolist()) if not any(row[1:])), None)
    if zeros is not None and not any(any(row[1:]) for row in stored[zeros:].tolist()):
        description = f"{zeros} entries, then zeros"
        return TxnDifference(TxnFault.PADDED, zeros, f"{len(expected_txns)} entries", description)
    by_end = {txn[::2]: txn for txn in expected_txns}
    for slot, txn in enumerate(stored_txns):
        expected_txn = by_end.get(txn[::2], txn)
        first, end = txn.first_offset, expected_txn.first_offset
        if first < end and not has_data(txn.producer_id, first, end - 1):
            stored_txns[slot] = expected_txn
    expected_set = set(expected_txns)
    for slot, txn in enumerate(stored_txns):
        if txn not in expected_set and has_data(*txn):
            return TxnDifference(
                TxnFault.UNKNOWN, slot, "an aborted transaction of the log", str(txn)
            )
    # A fetch that reaches any of several equal entries also reaches the first one.
    slots = {txn: slot for slot, txn in reversed(list(enumerate(stored_txns)))}
    for slot, txn in enumerate(expected_txns):
        if txn not in slots:
            entry = min(slot, len(stored_txns))
            return TxnDifference(TxnFault.MISSING, entry, str(txn), "no such entry")
    bounds, expected_bounds = _fetch_bounds(stored), _fetch_bounds(expected)
    late = [
        slots[txn]
        for slot, txn in enumerate(expected_txns)
        if bounds[slots[txn]] > expected_bounds[slot]
    ]
    if late:
        entry = min(late)
        return TxnDifference(
            TxnFault.UNREACHED,
            entry,
            "entries in the order of their transaction markers",
            f"{stored_txns[entry]}, after an entry with last stable offset {bounds[entry]}",
        )
    for slot, offset in enumerate(stored["last_stable_offset"].tolist()):
        if offset > next_start:
            description = f"a last stable offset up to {next_start}"
            return TxnDifference(TxnFault.TOO_STABLE, slot, description, str(offset))
    return None


def next_starts(aborted: Sequence[AbortedTxns], open_from: int) -> list[int]:
    """Return `next_start` of `compare_aborted_txns` for each segment.

    `aborted` has the aborted transactions of each segment. All open transactions start at or after
    `open_from`.
    """
    starts = [open_from]
    for entries in reversed(aborted[1:]):
        starts.append(min([starts[-1], *entries["first_offset"].tolist()]))
    return starts[::-1]


def _fetch_bounds(entries: AbortedTxns) -> list[int]:
    """Return, for each entry, the largest upper bound of a fetch that does not collect it."""
    stable = entries["last_stable_offset"].astype(np.int64)
    before = np.maximum.accumulate(np.append(_LOWEST, stable))[:-1]
    bounds: list[int] = np.maximum(entries["first_offset"].astype(np.int64), before).tolist()
    return bounds


def _to_txns(entries: AbortedTxns) -> list[_Txn]:
    return [_Txn(*row) for row in entries[list(_Txn._fields)].tolist()]

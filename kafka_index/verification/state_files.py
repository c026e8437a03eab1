"""Judging ``.txnindex``, ``.snapshot`` and ``leader-epoch-checkpoint`` files.

They depend on all segments before them: what they should be is what the build's fold leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptSnapshotError, InputError, InvalidEpochError
from kafka_index.index.transaction_index import entry_versions
from kafka_index.layout.producer_state import ABORTED_TXN, ABORTED_TXN_VERSION
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.state.snapshots import decode_snapshot
from kafka_index.verification.findings import FileClass, Judgement
from kafka_index.verification.index_files import IDENTICAL, SegmentPlace
from kafka_index.verification.log_facts import EpochRun

_TXN_FIELDS = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
_EXPOSES = "Consumers that read committed records get aborted ones."
_HIDES = "Consumers that read committed records do not get records of the transaction."
_REBUILDS_SEGMENT = "A broker that starts here recovers the segment and rebuilds its indexes."
_EARLIER = "A broker removes it, and loads an earlier one or reads the log instead."
OTHER_STATE = (
    "A broker that loads it takes other producers or open transactions for true: it can accept "
    "duplicates, refuse producers, or expose records of open transactions."
)
_NOT_JUDGED = "not judged: the log before it is damaged"

#: Whether batches of a producer's transactions are left in a range of offsets.
HasData = Callable[[int, int, int], bool]


def judge_transaction_index(
    data: bytes,
    built: bytes | None,
    base_offset: int,
    place: SegmentPlace,
    has_data: HasData,
    *,
    is_known: bool,
) -> Judgement:
    """Judge a ``.txnindex``.

    Parameters
    ----------
    data : bytes
        The file.
    built : bytes, optional
        What a build writes; None where that is not known.
    base_offset : int
        Of the segment.
    place : SegmentPlace
        How a start treats the segment.
    has_data : callable
        Called with a producer id and a range of offsets, both ends included.
    is_known : bool
        The producers before the segment are known.
    """
    size = ABORTED_TXN.itemsize
    entries = np.frombuffer(data, ABORTED_TXN, len(data) // size)
    unknown = np.flatnonzero(entry_versions(entries) > ABORTED_TXN_VERSION)
    low = np.flatnonzero(entries["last_offset"] < base_offset)
    if len(unknown) and not (len(low) and low[0] < unknown[0]):
        return _at(
            FileClass.CORRUPT,
            int(unknown[0]),
            size,
            f"version {ABORTED_TXN_VERSION}",
            f"version {int(entry_versions(entries)[unknown[0]])}",
            "A broker that loads the segment exits.",
            harmful=True,
        )
    if len(low):
        return _at(
            FileClass.CORRUPT,
            int(low[0]),
            size,
            f"a last offset of {base_offset} or more",
            f"{int(entries['last_offset'][low[0]])}",
            _REBUILDS_SEGMENT,
        )
    if data == built:
        return IDENTICAL
    if built is None or not is_known:
        return Judgement(FileClass.VALID, found=_NOT_JUDGED)
    wanted = np.frombuffer(built, ABORTED_TXN)
    return place.softened(
        _compared_transactions(entries, wanted, len(data) % size, has_data) or _same_entries()
    )


def _same_entries() -> Judgement:
    return Judgement(FileClass.VALID, found="the same transactions")


def _compared_transactions(
    entries: NDArray[np.void], wanted: NDArray[np.void], torn_bytes: int, has_data: HasData
) -> Judgement | None:
    size = ABORTED_TXN.itemsize
    found_rows = _rows(entries)
    known, stored = set(_rows(wanted)), set(found_rows)
    missing = [row for row in _rows(wanted) if row not in stored]
    zeros = next((at for at, row in enumerate(found_rows) if not any(row)), None)
    if zeros is not None and not any(map(any, found_rows[zeros:])):
        return _at(
            FileClass.PADDED,
            zeros,
            size,
            f"{len(wanted)} entries",
            f"{zeros} entries, then zeros",
            _EXPOSES,
            harmful=True,
        )
    for at, row in enumerate(found_rows):
        if row not in known and has_data(row[0], row[1], row[2]):
            return _at(
                FileClass.CORRUPT,
                at,
                size,
                "an aborted transaction of the log",
                f"producer {row[0]}, offsets {row[1]} to {row[2]}",
                _HIDES,
                harmful=True,
            )
    if missing:
        is_prefix = found_rows == _rows(wanted)[: len(found_rows)]
        producer, first, last, _ = missing[0]
        return _at(
            FileClass.INCOMPLETE if is_prefix else FileClass.CORRUPT,
            len(found_rows) if is_prefix else _rows(wanted).index(missing[0]),
            size,
            f"producer {producer}, offsets {first} to {last}",
            "no such entry",
            _EXPOSES,
            harmful=True,
        )
    if torn_bytes:
        effect = "Reads pass over it; nothing can be appended after it."
        return _at(
            FileClass.CORRUPT,
            len(entries),
            size,
            f"a multiple of {size} bytes",
            f"{torn_bytes} more",
            effect,
        )
    return None


def _rows(entries: NDArray[np.void]) -> list[tuple[int, int, int, int]]:
    return list(zip(*(entries[name].tolist() for name in _TXN_FIELDS), strict=True))


def _at(
    file_class: FileClass,
    entry: int,
    size: int,
    expected: str,
    found: str,
    effect: str,
    *,
    harmful: bool = False,
) -> Judgement:
    return Judgement(file_class, harmful, entry * size, entry, expected, found, effect)


def judge_snapshot(
    data: bytes,
    built: bytes | None,
    expiration: ProducerExpiration,
    first_offset: int,
    *,
    is_compacted: bool,
) -> Judgement:
    """Judge a ``.snapshot``.

    Parameters
    ----------
    data : bytes
        The file.
    built : bytes, optional
        What a build writes; None where that is not known.
    expiration : ProducerExpiration
        Whose idle producers a broker that starts now drops.
    first_offset : int
        Where the log begins: a transaction may be open since before.
    is_compacted : bool
        Batches of producers may be gone.
    """
    if data == built:
        return IDENTICAL
    try:
        entries = decode_snapshot(data)
    except CorruptSnapshotError as error:
        return Judgement(
            FileClass.CORRUPT,
            position_bytes=error.position_bytes,
            expected=_text(error.expected),
            found=_text(error.found),
            effect=_EARLIER,
        )
    if built is None:
        return Judgement(FileClass.VALID, found=_NOT_JUDGED)
    found = {int(row["producer_id"]): row for row in expiration.live(entries)}
    for row in expiration.live(decode_snapshot(built)):
        other = found.pop(int(row["producer_id"]), None)
        difference = _difference(row, other, first_offset)
        if difference is None or is_compacted:
            continue
        return Judgement(
            FileClass.CORRUPT if other is not None else FileClass.INCOMPLETE,
            harmful=True,
            expected=f"producer {int(row['producer_id'])}: {difference[0]}",
            found=difference[1],
            effect=OTHER_STATE,
        )
    for row in found.values():
        if not is_compacted and int(row["last_offset"]) >= first_offset:
            return Judgement(
                FileClass.CORRUPT,
                harmful=True,
                expected="a producer of the log",
                found=f"producer {int(row['producer_id'])}, last offset {int(row['last_offset'])}",
                effect=OTHER_STATE,
            )
    return Judgement(FileClass.VALID, found="the same producers, but for idle or older ones")


def _difference(
    wanted: np.void, found: np.void | None, first_offset: int
) -> tuple[str, str] | None:
    if found is None:
        return f"last offset {int(wanted['last_offset'])}", "no such producer"
    for name in ("producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms"):
        if wanted[name] != found[name]:
            return f"{name} {int(wanted[name])}", f"{int(found[name])}"
    # What lies before the log is known to the broker that wrote the file, and not from the log.
    if wanted["coordinator_epoch"] not in (-1, found["coordinator_epoch"]):
        return (
            f"coordinator_epoch {int(wanted['coordinator_epoch'])}",
            f"{int(found['coordinator_epoch'])}",
        )
    name = "current_txn_first_offset"
    if wanted[name] != found[name] and not 0 <= found[name] < first_offset:
        return f"{name} {int(wanted[name])}", f"{int(found[name])}"
    return None


def judge_epochs(
    text: str, runs: Iterable[EpochRun], log_start_offset: int, end_offset: int | None
) -> Judgement:
    """Judge a ``leader-epoch-checkpoint`` by the epochs of the batches.

    Parameters
    ----------
    text : str
        The file.
    runs : iterable of EpochRun
        Of the batches, in order.
    log_start_offset : int
        Epochs before it are not kept.
    end_offset : int, optional
        Where the log ends, if that is known; later epochs are dropped.
    """
    try:
        cache = LeaderEpochCache.from_text(text)
    except (InputError, InvalidEpochError) as error:
        return Judgement(
            FileClass.CORRUPT,
            harmful=True,
            expected=_text(error.expected),
            found=f"{error.message}: {error.found}",
            effect="A broker takes the data directory offline, or exits.",
        )
    wanted = LeaderEpochCache()
    for run in runs:
        if run.last_offset < log_start_offset:
            continue
        wanted.assign_from_batch(run.epoch, max(run.first_offset, log_start_offset))
        for offset in (max(run.first_offset, log_start_offset), run.last_offset):
            found = cache.epoch_for_offset(offset)
            if found == run.epoch:
                continue
            return Judgement(
                FileClass.INCOMPLETE if found is None else FileClass.CORRUPT,
                harmful=True,
                expected=f"epoch {run.epoch} at offset {offset}",
                found="no epoch" if found is None else f"epoch {found}",
                effect="Followers and consumers that compare epochs truncate at a wrong offset, "
                "or not at all.",
            )
    if cache.entries == wanted.entries and text == wanted.text():
        return IDENTICAL
    late = [
        at for at, entry in enumerate(cache.entries) if _is_late(entry.start_offset, end_offset)
    ]
    if late:
        entry = cache.entries[late[0]]
        return Judgement(
            FileClass.STALE,
            entry=late[0],
            expected=f"a start offset below {end_offset}",
            found=f"epoch {entry.epoch} from offset {entry.start_offset}",
            effect="A broker drops the epochs that start at the log end or after it.",
        )
    return Judgement(FileClass.VALID, found="the epochs of all batches, and epochs without records")


def _is_late(start_offset: int, end_offset: int | None) -> bool:
    return end_offset is not None and start_offset > end_offset


def _text(value: object) -> str | None:
    return None if value is None else str(value)

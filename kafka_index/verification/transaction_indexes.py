"""Judging ``.txnindex`` files by the transactions that the build's fold has found to be aborted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kafka_index.index.transaction_index import entry_versions
from kafka_index.layout.records import ABORTED_TXN, ABORTED_TXN_VERSION
from kafka_index.scan import LogFileSource
from kafka_index.verification.findings import FileClass, Judgement
from kafka_index.verification.index_files import IDENTICAL, NOT_JUDGED, SegmentPlace
from kafka_index.verification.segment import SegmentCheck

_TXN_FIELDS = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
_EXPOSES = "Consumers that read committed records get aborted ones."
_HIDES = "Consumers that read committed records do not get records of the transaction."
_REBUILDS_SEGMENT = "A broker that starts here recovers the segment and rebuilds its indexes."

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
    """Judge a ``.txnindex``, against the built one if it is known.

    `has_data` is called with a producer id and a range of offsets, both ends included. `is_known`:
    the producers before the segment are known.
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
        return NOT_JUDGED
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


def has_data(
    checks: Sequence[SegmentCheck], up_to_base_offset: int, producer: int, first: int, last: int
) -> bool:
    """Return whether the segments up to one have batches of a producer in a range of offsets."""
    for check in checks:
        if check.segment.base_offset > up_to_base_offset or check.whole.end_offset <= first:
            continue
        for batches in LogFileSource.of_segment(check.segment, verify_crc=False).chunks():
            is_data = (batches.producer_id == producer) & (batches.last_offset >= first)
            is_data &= (batches.base_offset <= last) & ~batches.is_control
            if is_data.any():
                return True
    return False

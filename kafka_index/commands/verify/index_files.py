"""Judging ``.index``, ``.timeindex`` and ``.txnindex`` files, once their logs were scanned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kafka_index.commands.verify.findings import FileClass, FileKind, Judgement
from kafka_index.core.format.records import (
    ABORTED_TXN,
    ABORTED_TXN_VERSION,
    OFFSET_ENTRY,
    TIME_ENTRY,
)
from kafka_index.core.index.aborted_txns import TxnDifference, TxnFault, compare_aborted_txns
from kafka_index.core.index.transaction_index import entry_versions
from kafka_index.core.log.scan.index_entry_check import IndexMismatch, StoredEntries

_REBUILT = "A broker that starts here recovers the segment and rebuilds the file."

IDENTICAL = Judgement(FileClass.IDENTICAL)
NOT_JUDGED = Judgement(FileClass.VALID, found="not judged: the log before it is damaged")

_OFFSET_EFFECTS = {
    FileClass.PADDED: "Lookups in it are right and slower.",
    FileClass.INCOMPLETE: "Lookups in it are right and slower.",
    FileClass.STALE: "A fetch that is led there finds nothing, and later appends can fail.",
    FileClass.MISPLACED: "A consumer that is led there is stuck, or skips records silently.",
    FileClass.TOO_LOW: "Consumers skip the records before that batch silently.",
    FileClass.FOREIGN: "Fetches find nothing, or the wrong batch.",
    FileClass.CORRUPT: "Lookups go astray, or scan the whole segment.",
}
_TIME_EFFECTS = {
    FileClass.PADDED: "The segment's largest timestamp reads as 0: retention deletes it, whatever "
    "its age, and lookups by time go wrong.",
    FileClass.INCOMPLETE: "Lookups by time miss records, and retention can delete the segment "
    "before its time.",
    FileClass.STALE: "Lookups by time can find nothing, and retention goes by a wrong time.",
    FileClass.TOO_LOW: "Lookups by time skip records.",
    FileClass.FOREIGN: "Lookups by time find the wrong record, and retention goes by a wrong time.",
    FileClass.CORRUPT: "Lookups by time go wrong, and retention goes by a wrong time.",
}
_SHORT_LAST = (
    "The log end is read as the segment's base offset: all of its records are hidden, and new "
    "ones reuse their offsets."
)

_REBUILDS_SEGMENT = "A broker that starts here recovers the segment and rebuilds its indexes."

#: Whether batches of a producer's transactions are left in a range of offsets.
HasData = Callable[[int, int, int], bool]


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """The treatment of a segment by a broker that starts on the directory as it lies.

    `is_last`: it is the active one. `is_recovered`: its indexes are rebuilt. `is_clean`: the data
    directory has the marker of a clean shutdown.
    """

    is_last: bool
    is_recovered: bool
    is_clean: bool

    def softened(self, judgement: Judgement) -> Judgement:
        """Return the judgement of an index file, harmless where a start rebuilds it."""
        if not self.is_recovered or judgement.file_class is FileClass.IDENTICAL:
            return judgement
        return replace(judgement, harmful=False, effect=_REBUILT)


@dataclass(frozen=True, slots=True)
class _EntryRules:
    """The rules of a kind of index: zeros and torn bytes after its entries may be harmful."""

    size: int
    effects: Mapping[FileClass, str]
    is_tail_harmful: bool


_RULES = {
    FileKind.INDEX: _EntryRules(OFFSET_ENTRY.itemsize, _OFFSET_EFFECTS, is_tail_harmful=False),
    FileKind.TIME_INDEX: _EntryRules(TIME_ENTRY.itemsize, _TIME_EFFECTS, is_tail_harmful=True),
}


def judge_index(
    kind: FileKind,
    data: bytes,
    built: bytes | None,
    entries: StoredEntries,
    misfit: IndexMismatch | None,
    place: SegmentPlace,
) -> Judgement:
    """Judge an ``.index`` or ``.timeindex`` that differs from the built one.

    `built` is None if the segment cannot be built; the misfit is the first entry that does not fit
    the log, for ordered entries only.
    """
    rules = _RULES[kind]
    judgement = _misfit(entries, misfit, rules)
    if judgement is None or judgement.file_class is FileClass.INCOMPLETE:
        if entries.torn_bytes:
            judgement = _torn(data, entries, rules)
        elif entries.padding:
            judgement = _padded(entries, rules)
    elif kind is FileKind.INDEX and misfit and judgement.file_class is FileClass.STALE:
        judgement = _stale_offsets(judgement, misfit, place)
    return place.softened(judgement or _shorter_or_valid(data, built, rules))


def _misfit(
    entries: StoredEntries, misfit: IndexMismatch | None, rules: _EntryRules
) -> Judgement | None:
    if entries.disorder is not None:
        file_class, entry = FileClass.CORRUPT, entries.disorder
        expected = "an entry above the one before"
        found = f"offset {int(entries.offsets[entry])}"
    elif misfit is not None:
        file_class, entry = FileClass(misfit.fault), misfit.entry
        expected, found = misfit.expected, misfit.found
    else:
        return None
    return Judgement(
        file_class,
        harmful=True,
        position_bytes=entry * rules.size,
        entry=entry,
        expected=expected,
        found=found,
        effect=rules.effects[file_class],
    )


def _stale_offsets(judgement: Judgement, misfit: IndexMismatch, place: SegmentPlace) -> Judgement:
    """Return the judgement of entries after the end: worst where the log end is read from them."""
    if place.is_last:
        return replace(judgement, effect=_SHORT_LAST)
    if misfit.expected.startswith("an offset"):
        # Lookups of later offsets go to later segments, and never get there.
        effect = "Lookups in it are right: no offset that the segment holds leads there."
        return replace(judgement, harmful=False, effect=effect)
    return judgement


def _torn(data: bytes, entries: StoredEntries, rules: _EntryRules) -> Judgement:
    whole = len(data) - entries.torn_bytes
    return Judgement(
        FileClass.CORRUPT,
        rules.is_tail_harmful,
        whole,
        whole // rules.size,
        expected=f"a multiple of {rules.size} bytes",
        found=f"{len(data)} bytes",
        effect=rules.effects[FileClass.INCOMPLETE],
    )


def _padded(entries: StoredEntries, rules: _EntryRules) -> Judgement:
    used = len(entries.offsets)
    return Judgement(
        FileClass.PADDED,
        rules.is_tail_harmful,
        used * rules.size,
        used,
        expected=f"{used} entries",
        found=f"{used} entries, then {entries.padding} of zeros",
        effect=rules.effects[FileClass.PADDED],
    )


def _shorter_or_valid(data: bytes, built: bytes | None, rules: _EntryRules) -> Judgement:
    """Return the judgement of entries that all fit: a prefix of the built ones, or others."""
    if built is None:
        return Judgement(FileClass.VALID, found="every entry fits the headers of the log")
    size = rules.size
    if len(data) < len(built) and built.startswith(data):
        return Judgement(
            FileClass.INCOMPLETE,
            position_bytes=len(data),
            entry=len(data) // size,
            expected=f"{len(built) // size} entries",
            found=f"{len(data) // size}",
            effect=rules.effects[FileClass.INCOMPLETE],
        )
    shared = min(len(data), len(built))
    unequal = np.flatnonzero(
        np.frombuffer(data, np.uint8, shared) != np.frombuffer(built, np.uint8, shared)
    )
    first = int(unequal[0]) if len(unequal) else shared
    return Judgement(
        FileClass.VALID,
        position_bytes=first,
        entry=first // size,
        expected=f"{len(built) // size} entries as recovery makes them",
        found=f"{len(data) // size} that fit the log as well",
    )


def judge_transaction_index(
    data: bytes,
    built: bytes | None,
    base_offset: int,
    place: SegmentPlace,
    has_data: HasData,
    next_start: int,
    *,
    is_known: bool,
) -> Judgement:
    """Judge a ``.txnindex``, against the built one if it is known.

    `has_data` and `next_start` are those of `compare_aborted_txns`. `is_known`: the producers
    before the segment are known.
    """
    size = ABORTED_TXN.itemsize
    entries = np.frombuffer(data, ABORTED_TXN, len(data) // size)
    unknown = np.flatnonzero(entry_versions(entries) > ABORTED_TXN_VERSION)
    low = np.flatnonzero(entries["last_offset"] < base_offset)
    if len(unknown) and not (len(low) and low[0] < unknown[0]):
        return _at(
            FileClass.CORRUPT,
            int(unknown[0]),
            f"version {ABORTED_TXN_VERSION}",
            f"version {int(entry_versions(entries)[unknown[0]])}",
            "A broker that loads the segment exits.",
            harmful=True,
        )
    if len(low):
        return _at(
            FileClass.CORRUPT,
            int(low[0]),
            f"a last offset of {base_offset} or more",
            f"{int(entries['last_offset'][low[0]])}",
            _REBUILDS_SEGMENT,
        )
    if data == built:
        return IDENTICAL
    if built is None or not is_known:
        return NOT_JUDGED
    difference = compare_aborted_txns(
        entries, np.frombuffer(built, ABORTED_TXN), has_data, next_start
    )
    judgement = Judgement(FileClass.VALID, found="the same transactions")
    if difference is not None:
        judgement = _at(
            _class_of(difference, len(entries)),
            difference.entry,
            difference.expected,
            difference.found,
            difference.fault.effect,
            harmful=True,
        )
    elif torn_bytes := len(data) % size:
        judgement = _at(
            FileClass.CORRUPT,
            len(entries),
            f"a multiple of {size} bytes",
            f"{torn_bytes} more",
            "Reads pass over it; nothing can be appended after it.",
        )
    return place.softened(judgement)


def _class_of(difference: TxnDifference, entries: int) -> FileClass:
    match difference.fault:
        case TxnFault.PADDED:
            return FileClass.PADDED
        case TxnFault.MISSING if difference.entry == entries:
            return FileClass.INCOMPLETE
        case _:
            return FileClass.CORRUPT


def _at(
    file_class: FileClass,
    entry: int,
    expected: str,
    found: str,
    effect: str,
    *,
    harmful: bool = False,
) -> Judgement:
    position = entry * ABORTED_TXN.itemsize
    return Judgement(file_class, harmful, position, entry, expected, found, effect)

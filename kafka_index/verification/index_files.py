"""Judging ``.index`` and ``.timeindex`` files, once the log of their segment was scanned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kafka_index.layout.records import OFFSET_ENTRY, TIME_ENTRY
from kafka_index.scan.entry_fit import Misfit, StoredEntries
from kafka_index.verification.findings import FileClass, Judgement

_REBUILT = "A broker that starts here recovers the segment and rebuilds the file."


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


def judge_offset_index(
    data: bytes,
    built: bytes | None,
    entries: StoredEntries,
    misfit: Misfit | None,
    place: SegmentPlace,
) -> Judgement:
    """Judge an ``.index``.

    `built` is None if the segment cannot be built; the misfit is the first entry that does not fit
    the log, for ordered entries only.
    """
    size = OFFSET_ENTRY.itemsize
    if data == built:
        return IDENTICAL
    judgement = _misfit(entries, misfit, size, _OFFSET_EFFECTS)
    if judgement is None and entries.torn_bytes:
        judgement = _torn(data, entries, size, _OFFSET_EFFECTS, harmful=False)
    elif judgement is not None and judgement.file_class is FileClass.STALE and misfit is not None:
        judgement = _stale_offsets(judgement, misfit, place)
    elif judgement is None and entries.padding:
        judgement = _padded(entries, size, _OFFSET_EFFECTS, harmful=False)
    if judgement is None:
        judgement = _shorter_or_valid(data, built, size, _OFFSET_EFFECTS, harmful=False)
    return place.softened(judgement)


def judge_time_index(
    data: bytes,
    built: bytes | None,
    entries: StoredEntries,
    misfit: Misfit | None,
    place: SegmentPlace,
) -> Judgement:
    """Judge a ``.timeindex``; parameters are those of `judge_offset_index`."""
    size = TIME_ENTRY.itemsize
    if data == built:
        return IDENTICAL
    judgement = _misfit(entries, misfit, size, _TIME_EFFECTS)
    is_short = judgement is not None and judgement.file_class is FileClass.INCOMPLETE
    if (judgement is None or is_short) and entries.torn_bytes:
        judgement = _torn(data, entries, size, _TIME_EFFECTS, harmful=True)
    elif (judgement is None or is_short) and entries.padding:
        judgement = _padded(entries, size, _TIME_EFFECTS, harmful=True)
    if judgement is None:
        judgement = _shorter_or_valid(data, built, size, _TIME_EFFECTS, harmful=False)
    return place.softened(judgement)


def _misfit(
    entries: StoredEntries, misfit: Misfit | None, size: int, effects: dict[FileClass, str]
) -> Judgement | None:
    if entries.disorder is not None:
        return Judgement(
            FileClass.CORRUPT,
            harmful=True,
            position_bytes=entries.disorder * size,
            entry=entries.disorder,
            expected="an entry above the one before",
            found=f"offset {int(entries.offsets[entries.disorder])}",
            effect=effects[FileClass.CORRUPT],
        )
    if misfit is None:
        return None
    file_class = FileClass(misfit.fault)
    return Judgement(
        file_class,
        harmful=True,
        position_bytes=misfit.entry * size,
        entry=misfit.entry,
        expected=misfit.expected,
        found=misfit.found,
        effect=effects[file_class],
    )


def _stale_offsets(judgement: Judgement, misfit: Misfit, place: SegmentPlace) -> Judgement:
    """Return the judgement of entries after the end: worst where the log end is read from them."""
    if place.is_last:
        return replace(judgement, effect=_SHORT_LAST)
    if misfit.expected.startswith("an offset"):
        # Lookups of later offsets go to later segments, and never get there.
        effect = "Lookups in it are right: no offset that the segment holds leads there."
        return replace(judgement, harmful=False, effect=effect)
    return judgement


def _torn(
    data: bytes,
    entries: StoredEntries,
    size: int,
    effects: dict[FileClass, str],
    *,
    harmful: bool,
) -> Judgement:
    whole = len(data) - entries.torn_bytes
    return Judgement(
        FileClass.CORRUPT,
        harmful=harmful,
        position_bytes=whole,
        entry=whole // size,
        expected=f"a multiple of {size} bytes",
        found=f"{len(data)} bytes",
        effect=effects[FileClass.INCOMPLETE],
    )


def _padded(
    entries: StoredEntries, size: int, effects: dict[FileClass, str], *, harmful: bool
) -> Judgement:
    used = len(entries.offsets)
    return Judgement(
        FileClass.PADDED,
        harmful=harmful,
        position_bytes=used * size,
        entry=used,
        expected=f"{used} entries",
        found=f"{used} entries, then {entries.padding} of zeros",
        effect=effects[FileClass.PADDED],
    )


def _shorter_or_valid(
    data: bytes, built: bytes | None, size: int, effects: dict[FileClass, str], *, harmful: bool
) -> Judgement:
    """Return the judgement of entries that all fit: a prefix of the built ones, or others."""
    if built is None:
        return Judgement(FileClass.VALID, found="every entry fits the headers of the log")
    if len(data) < len(built) and built.startswith(data):
        return Judgement(
            FileClass.INCOMPLETE,
            harmful=harmful,
            position_bytes=len(data),
            entry=len(data) // size,
            expected=f"{len(built) // size} entries",
            found=f"{len(data) // size}",
            effect=effects[FileClass.INCOMPLETE],
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

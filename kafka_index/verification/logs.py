"""Judging logs, by the scan of each segment and the segments before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kafka_index.build.fold import SEGMENTS_OVERLAP, STATE_UNKNOWN
from kafka_index.build.report import ERROR, FAILED, SegmentReport
from kafka_index.dump.missing_offsets import BY_CHECKPOINTS, Cause, MissingOffsets, MissingRange
from kafka_index.records.batch_table import (
    BAD_CRC,
    OVERLAP,
    PREALLOCATED_TAIL,
    TORN_BATCH,
    TORN_HEADER,
    ScanStop,
)
from kafka_index.scan.log_offsets import Hole
from kafka_index.verification.findings import (
    FileClass,
    FileKind,
    Finding,
    Judgement,
    LostRange,
    finding_of,
)
from kafka_index.verification.segment import SegmentCheck

_TORN_CODES = (TORN_HEADER, TORN_BATCH)
_CUT_AT_START = "A broker that starts here cuts it off; no whole batch is lost."
_HIDDEN = (
    "With the marker a broker takes the log to end before it, or at the segment's base offset, and "
    "hides what it appends after it."
)
_EXITS = "With the marker a broker exits: the end of the log cannot be read."
_STUCK = (
    "Consumers are stuck at the batch; without the marker a broker that recovers the segment cuts "
    "it there and deletes all later segments."
)
_UNREADABLE = "A broker keeps and serves the batch; consumers and followers are stuck at it."
_BAD_INSIDE = "Consumers are stuck at the message inside."
_REFUSED = "A broker that recovers the segment does not start, or cuts all of it."
_SPLIT = "Its offsets are 2^31 or more apart: a broker that recovers the segment splits it."
_SKIPPED = "Consumers skip the missing offsets silently, and no broker reports it."
#: How many ranges of missing offsets are named in the row of a log.
_SHOWN = 20
_OVERLAPS = "Which of the records with the same offsets is read depends on the position."


@dataclass
class LogJudge:
    """Judges the logs of a partition, segment by segment.

    `missing` are the missing offsets of the partition, `lost` the lost ranges so far.
    `is_state_known`: producers and transactions are known at the end of the judged segments.
    `end_offset` is the end of the segments so far, by their headers; None before the first one, and
    after a log that could not be read. `has_unread_log`: a log could not be read because of
    permission, disk, memory or a change meanwhile.
    """

    missing: MissingOffsets
    lost: list[LostRange] = field(default_factory=list)
    is_state_known: bool = True
    end_offset: int | None = None
    has_unread_log: bool = False
    _judged: int = 0

    def judge(self, check: SegmentCheck, row: SegmentReport) -> Finding:
        """Return the row of the next segment's log, from its scan and its row after the fold."""
        segment, place = check.segment, check.place
        base_offset = segment.base_offset
        finding = finding_of(
            segment, segment.log_path, FileKind.LOG, FileClass.SOUND, base_offset=base_offset
        )
        number, self._judged = self._judged, self._judged + 1
        missing = [each for each in self.missing.ranges if each.log == number]
        gaps = [each for each in missing if each.cause is not Cause.COMPACTED]
        self.lost += [
            LostRange(
                each.first_offset, each.end_offset, base_offset, each.position_bytes, 0, "gap"
            )
            for each in gaps
        ]
        judgement = self._damage(check, row)
        if judgement is None and check.whole.offsets.overlap is not None:
            judgement = _overlap(check.whole.offsets.overlap)
        if judgement is None and check.facts.unknown_magic is not None:
            judgement = _corrupt(check.facts.unknown_magic, _UNREADABLE)
        if judgement is None and check.bad_message is not None:
            judgement = _corrupt(check.bad_message, _BAD_INSIDE)
        # The tail is a row of the checkpoint that knows it.
        gaps = [each for each in gaps if each.why != BY_CHECKPOINTS]
        unnamed = self.missing.unnamed.get(number, 0)
        if judgement is None and gaps:
            judgement = _gap(gaps, unnamed)
        elif judgement is not None and gaps:
            judgement = replace(judgement, found=f"{judgement.found}; {_named(gaps, unnamed)}")
        if judgement is None:
            judgement = _sound(check, len(missing), is_last=place.is_last)
        was_read = is_read(row)
        finding = (
            finding.judged(judgement)
            if was_read
            else finding.unread(
                row.reason, retriable=row.retriable, position_bytes=row.position_bytes
            )
        )
        self.has_unread_log |= finding.retriable
        if finding.harmful or (row.status == FAILED and row.reason_code != STATE_UNKNOWN):
            self.is_state_known = False
        self.end_offset = max(check.whole.end_offset, self.end_offset or 0) if was_read else None
        return finding

    def _damage(self, check: SegmentCheck, row: SegmentReport) -> Judgement | None:
        """Return the damage of a log; None where all of it is batches."""
        place, code = check.place, row.reason_code
        if not _is_damage(row) or check.is_split:
            return None
        if code == SEGMENTS_OVERLAP:
            return Judgement(FileClass.OVERLAP, harmful=True, found=row.reason, effect=_OVERLAPS)
        position = row.position_bytes
        is_tail = place.is_last and check.is_tail
        if is_tail and not place.is_clean:
            return Judgement(
                FileClass.PADDED if code == PREALLOCATED_TAIL else FileClass.TORN,
                position_bytes=position,
                found=row.reason,
                effect=_CUT_AT_START,
            )
        self._lose_rest(check, row)
        if code == BAD_CRC:
            file_class, effect = FileClass.BAD_CRC, _STUCK
        elif code == PREALLOCATED_TAIL:
            file_class, effect = FileClass.PADDED, _EXITS
        elif code in _TORN_CODES:
            file_class = FileClass.TORN
            effect = _SKIPPED if not place.is_last else _HIDDEN if place.is_clean else _STUCK
        else:
            file_class = FileClass.CORRUPT
            effect = _REFUSED if row.status == FAILED else _STUCK
        return Judgement(
            file_class, harmful=True, position_bytes=position, found=row.reason, effect=effect
        )

    def _lose_rest(self, check: SegmentCheck, row: SegmentReport) -> None:
        """Add the lost range after the valid batches of a damaged log."""
        facts, whole = check.facts, check.whole
        end = whole.end_offset if whole.end_offset > facts.end_offset else None
        base_offset, position = check.segment.base_offset, facts.end_bytes
        size, reason = row.log_size_bytes - position, row.reason_code or "damaged"
        self.lost.append(LostRange(facts.end_offset, end, base_offset, position, size, reason))


def is_read(row: SegmentReport) -> bool:
    """Return whether a log could be read."""
    return not (row.reason_code == ERROR and row.status == FAILED)


def _is_damage(row: SegmentReport) -> bool:
    # Overlaps are judged by all of the log.
    if row.reason_code in (STATE_UNKNOWN, OVERLAP) or not is_read(row):
        return False
    return row.status == FAILED or row.is_damage or row.is_preallocated_tail


def _gap(gaps: Sequence[MissingRange], unnamed: int) -> Judgement:
    first = gaps[0]
    return Judgement(
        FileClass.GAP,
        harmful=True,
        position_bytes=first.position_bytes,
        expected=f"offset {first.first_offset}",
        found=_named(gaps, unnamed),
        effect=f"{_SKIPPED} {first.why[0].upper()}{first.why[1:]}.",
    )


def _named(gaps: Sequence[MissingRange], unnamed: int) -> str:
    """Return which offsets are missing, for people."""
    more = max(len(gaps) - _SHOWN, 0) + unnamed
    shown = ", ".join(f"{each.first_offset} to {each.last_offset}" for each in gaps[:_SHOWN])
    found = f"offsets {shown} are missing"
    return f"{found}, and in {more} more places" if more else found


def _corrupt(stop: ScanStop, effect: str) -> Judgement:
    return Judgement(
        FileClass.CORRUPT,
        harmful=True,
        position_bytes=stop.position_bytes,
        found=stop.text,
        effect=effect,
    )


def _overlap(overlap: Hole) -> Judgement:
    return Judgement(
        FileClass.OVERLAP,
        harmful=True,
        position_bytes=overlap.position_bytes,
        expected=f"offset {overlap.end_offset} or more",
        found=f"offset {overlap.first_offset}",
        effect=_OVERLAPS,
    )


def _sound(check: SegmentCheck, gaps: int, *, is_last: bool) -> Judgement:
    if check.segment.log_size_bytes == 0:
        effect = None if is_last else "Nothing can be read from it."
        return Judgement(FileClass.EMPTY, effect=effect)
    count = check.facts.offsets.cleaned_count + gaps
    found = f"offsets are missing in {count} places, as compaction leaves them" if count else None
    return Judgement(FileClass.SOUND, found=found, effect=_SPLIT if check.is_split else None)

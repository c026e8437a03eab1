"""One log: taken over from the dump, scanned where it lies now, and salvaged where it is damaged.

The scan reads the log of the output, so that what is verified is what a broker will read. It is
that of a build, and its stop is where recovery would cut the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kafka_index.build.report import BUILT, FAILED, SegmentReport
from kafka_index.build.scan import stage_segment
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from kafka_index.layout.quoted_content import is_linked
from kafka_index.records.batch_table import NOT_A_LOG, BatchColumns
from kafka_index.restore.filling import Fill, mark_at
from kafka_index.restore.log_files import Link, cut, take_over, write_log
from kafka_index.restore.restored_partition import LostRange, Salvage
from kafka_index.restore.salvaging import LogContext, Salvaging
from kafka_index.scan import LogFileSource
from kafka_index.scan.log_offsets import Hole, LogOffsets
from kafka_index.scan.segment_scan import ObservedSource
from kafka_index.storage import MappedFile, SegmentFile, publish_error

#: Names scratch files. A run restores each log once, in a folder that no other run has.
ATTEMPT_ID = "restore"
# A log with more kinds of damage than this is failed, and its partition left out.
_MAX_DROPS = 64


@dataclass(slots=True)
class LogFacts:
    """The offsets, producers and epochs of the batches of a log."""

    offsets: LogOffsets
    max_producer_id: int = -1
    last_epoch: int = -1

    def observe(self, batches: BatchColumns) -> None:
        """Add the next batches."""
        self.offsets.observe(batches)
        self.max_producer_id = max(self.max_producer_id, int(batches.producer_id.max()))
        self.last_epoch = max(self.last_epoch, int(batches.leader_epoch.max()))


@dataclass(slots=True)
class RestoredLog:
    """A log in the output, scanned, whose index files wait to be published."""

    source: SegmentFile
    staged: StagedSegment
    facts: LogFacts
    lost: list[LostRange] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    keeps_end: bool = True
    is_limited: bool = False

    def now(self) -> SegmentFile:
        """Return the log of the output as it is now."""
        return segment_at(self.staged.segment.log_path, self.source)


def restore_log(
    source: SegmentFile,
    directory: str,
    link: Link,
    salvage: Salvage,
    settings: BuildSettings,
    *,
    context: LogContext,
) -> RestoredLog:
    """Take over a log, and stage its index files."""
    name = segment_file_name(source.base_offset, LOG_SUFFIX)
    target = os.path.join(directory, name)
    take_over(source, target, link)
    restored = _stage(source, target, settings, context)
    row = restored.staged.report
    if row.status == BUILT:
        return restored
    if row.position_bytes is None:
        return restored
    if row.is_preallocated_tail:
        cut(target, row.position_bytes)
        return restored
    code, reason = _why_damaged(row, source)
    salvaging = Salvaging(source, target, context)
    mended = salvaging.mend(row.position_bytes, code, reason, salvage)
    lost, fills = mended.lost, mended.fills
    if salvage is Salvage.NONE and lost:
        restored.lost = lost
        return restored
    restored = _restage(restored, target, settings, context)
    for _ in range(_MAX_DROPS):
        row = restored.staged.report
        if row.status == BUILT or row.position_bytes is None:
            break
        # What its checksum does not show: offsets that go back, a marker that cannot be read.
        again = Salvaging(source, target, context)
        code, reason = _why_damaged(row, source)
        if salvage is Salvage.BATCHES:
            lost.append(again.drop_one(row.position_bytes, code, reason))
        else:
            lost.append(again.cut_off(row.position_bytes, code, reason))
        lost[-1] = replace(lost[-1], position_bytes=None)
        restored = _restage(restored, target, settings, context)
    restored.lost, restored.fills = lost, fills
    restored.keeps_end = not (restored.is_limited or _touches_end(lost, restored.facts))
    return restored


def _why_damaged(row: SegmentReport, source: SegmentFile) -> tuple[str, str]:
    """Return the code and the reason of damage, which quotes nothing of a log that was a link."""
    code, reason = row.reason_code or FAILED, row.reason or FAILED
    is_hidden = code == NOT_A_LOG and is_linked(source.log_path)
    return code, "not a Kafka log" if is_hidden else reason


def fill_holes(
    log: RestoredLog,
    holes: Sequence[Hole],
    settings: BuildSettings,
    *,
    context: LogContext,
    takes_records: bool,
) -> RestoredLog:
    """Fill offsets that are missing between batches of a log, and stage it anew."""
    target = log.staged.segment.log_path
    fills = Salvaging(log.source, target, context).fill_holes(holes, takes_records=takes_records)
    filled = log
    if any(each.pieces for each in fills):
        filled = _restage(log, target, settings, context)
        filled.keeps_end, filled.is_limited = log.keeps_end, log.is_limited
    filled.lost, filled.fills = log.lost, [*log.fills, *fills]
    return filled


def restore_fill(
    fill: Fill,
    like: SegmentFile,
    directory: str,
    settings: BuildSettings,
    *,
    context: LogContext,
) -> list[RestoredLog]:
    """Write the pieces of another copy as logs of the output, and stage them."""
    restored = []
    for piece in fill.pieces:
        with MappedFile(piece.path) as file:
            data = file.array[piece.start_bytes : piece.end_bytes]
            base_offset = mark_at(data, 0).base_offset
            target = os.path.join(directory, segment_file_name(base_offset, LOG_SUFFIX))
            write_log(target, [data])
        source = replace(like, base_offset=base_offset, log_path=piece.path, is_last=False)
        log = _stage(source, target, settings, context)
        log.fills = [fill]
        restored.append(log)
    return restored


def segment_at(path: str, source: SegmentFile) -> SegmentFile:
    """Return the segment whose log lies in the output, as it is now."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise publish_error(error, path, "look at a restored log") from error
    return source.copied_to(path, found)


def _stage(
    source: SegmentFile,
    target: str,
    settings: BuildSettings,
    context: LogContext,
) -> RestoredLog:
    segment = segment_at(target, source)
    facts = LogFacts(LogOffsets(source.base_offset, context.cleaned_to))
    log = ObservedSource(
        LogFileSource.of_segment(segment, verify_crc=True),
        [facts],
        None if context.limit is None else context.limit.first_beyond,
    )
    staged = stage_segment(segment, log, settings, ATTEMPT_ID, os.path.dirname(target))
    is_limited = log.cut_at_bytes is not None and staged.report.status == BUILT
    if is_limited and log.cut_at_bytes is not None:
        cut(target, log.cut_at_bytes)
    return RestoredLog(source, staged, facts, is_limited=is_limited, keeps_end=not is_limited)


def _restage(
    before: RestoredLog,
    target: str,
    settings: BuildSettings,
    context: LogContext,
) -> RestoredLog:
    before.staged.remove_scratch(settings)
    return _stage(before.source, target, settings, context)


def _touches_end(lost: Sequence[LostRange], facts: LogFacts) -> bool:
    end = facts.offsets.end_offset
    return any(each.first_offset is None or each.first_offset >= end for each in lost)

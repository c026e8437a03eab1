"""One log: taken over from the dump, scanned where it lies now, and salvaged where it is damaged.

The scan reads the log of the output, so that what is verified is what a broker will read. It is
that of a build, and its stop is where recovery would cut the log.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from kafka_index.build.report import BUILT, FAILED
from kafka_index.build.scan import stage_segment
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from kafka_index.records import ScanStop
from kafka_index.records.batch_table import BatchColumns
from kafka_index.restore.log_files import Link, cut, take_over
from kafka_index.restore.sound_ranges import HoleContent, SoundRange, hole_content, sound_ranges
from kafka_index.scan import LogFileSource
from kafka_index.storage import Bytes, MappedFile, SegmentFile, publish_error

# A log with more kinds of damage than this keeps the prefix before the next one.
_MAX_DROPS = 64


class Salvage(StrEnum):
    """What is kept of a damaged partition."""

    PREFIX = "prefix"
    BATCHES = "batches"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records that were in the log, or should be, and are not in the output.

    Parameters
    ----------
    segment_base_offset : int
        Of the segment that they were in, or would follow.
    path : str
        Its log in the dump.
    first_offset, last_offset : int or None
        The offsets that are missing; where the log was compacted, not all of them had a record.
    first_timestamp_ms, last_timestamp_ms : int or None
        The smallest and the largest timestamp, as far as headers say.
    records : int or None
        How many; None where that cannot be known.
    size_bytes : int
        The bytes that were left out; 0 where they are not in the dump.
    position_bytes : int or None
        Where they begin in the log of the dump.
    code, reason : str
        Why, for programs and for people.
    """

    segment_base_offset: int
    path: str
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    records: int | None
    size_bytes: int
    position_bytes: int | None
    code: str
    reason: str


@dataclass(slots=True)
class LogFacts:
    """What the batches of a log say that is of use to the partition.

    Parameters
    ----------
    has_gaps : bool
        Whether offsets are missing between batches, as after compaction.
    max_producer_id : int
        -1 for none.
    last_epoch : int
        The largest leader epoch; -1 for none.
    first_offset, last_offset : int or None
        Of the first and the last batch.
    """

    has_gaps: bool = False
    max_producer_id: int = -1
    last_epoch: int = -1
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, batches: BatchColumns) -> None:
        """Add the next batches."""
        before = self.last_offset
        expected = batches.last_offset[:-1] + 1
        self.has_gaps |= bool(np.any(batches.base_offset[1:] > expected))
        if before is not None:
            self.has_gaps |= int(batches.base_offset[0]) > before + 1
        else:
            self.first_offset = int(batches.base_offset[0])
        self.last_offset = int(batches.last_offset[-1])
        self.max_producer_id = max(self.max_producer_id, int(batches.producer_id.max()))
        self.last_epoch = max(self.last_epoch, int(batches.leader_epoch.max()))


class WatchedLog:
    """A log as a build reads it (`BatchSource`), with the facts that its batches show."""

    def __init__(self, segment: SegmentFile) -> None:
        self._source = LogFileSource.of_segment(segment, verify_crc=True)
        self.facts = LogFacts()

    @property
    def log_size_bytes(self) -> int:
        """Size of the log."""
        return self._source.log_size_bytes

    @property
    def stop(self) -> ScanStop | None:
        """Why the batches ended before the end of the log."""
        return self._source.stop

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the batches."""
        for batches in self._source.chunks():
            if batches.rows:
                self.facts.add(batches)
            yield batches


@dataclass(slots=True)
class RestoredLog:
    """A log in the output, scanned, whose index files wait to be published.

    Parameters
    ----------
    source : SegmentFile
        The log in the dump.
    staged : StagedSegment
        As the build staged it.
    facts : LogFacts
        What its batches say.
    lost : list of LostRange
        What is not in it.
    keeps_end : bool
        Whether the end of the log is that of the dump's: nothing was cut off.
    """

    source: SegmentFile
    staged: StagedSegment
    facts: LogFacts
    lost: list[LostRange] = field(default_factory=list)
    keeps_end: bool = True


def restore_log(
    source: SegmentFile,
    directory: str,
    link: Link,
    salvage: Salvage,
    settings: BuildSettings,
    *,
    next_base_offset: int | None,
    attempt_id: str,
) -> RestoredLog:
    """Take over a log, and stage its index files.

    Parameters
    ----------
    source : SegmentFile
        The log in the dump.
    directory : str
        Its partition directory in the output.
    link : Link
        How it is taken over.
    salvage : Salvage
        What is kept of it if it is damaged; with ``none`` it is only described.
    settings : BuildSettings
        How index files are written.
    next_base_offset : int or None
        Of the segment after it.
    attempt_id : str
        Names scratch files.

    Raises
    ------
    KafkaIndexError
        The log cannot be read, or the output not be written.
    """
    name = segment_file_name(source.base_offset, LOG_SUFFIX)
    target = os.path.join(directory, name)
    take_over(source, target, link)
    restored = _stage(source, target, settings, attempt_id)
    row = restored.staged.report
    if row.status == BUILT:
        return restored
    if row.position_bytes is None:
        return restored
    if row.is_preallocated_tail:
        cut(target, row.position_bytes)
        return restored
    salvaging = _Salvaging(source, target, next_base_offset)
    if salvage is Salvage.BATCHES:
        lost = salvaging.drop_bad_batches(row.reason_code or FAILED, row.reason or FAILED)
    else:
        lost = [salvaging.cut_off(row.position_bytes, row.reason_code or FAILED, row.reason)]
    if salvage is Salvage.NONE:
        restored.lost = lost
        return restored
    restored = _restage(restored, source, target, settings, attempt_id)
    restored.lost = lost
    for _ in range(_MAX_DROPS):
        row = restored.staged.report
        if row.status == BUILT or row.position_bytes is None:
            break
        # What its checksum does not show: offsets that go back, a marker that cannot be read.
        again = _Salvaging(source, target, next_base_offset)
        code, reason = row.reason_code or FAILED, row.reason or FAILED
        if salvage is Salvage.BATCHES:
            lost.append(again.drop_one(row.position_bytes, code, reason))
        else:
            lost.append(again.cut_off(row.position_bytes, code, reason))
        lost[-1] = replace(lost[-1], position_bytes=None)
        restored = _restage(restored, source, target, settings, attempt_id)
        restored.lost = lost
    restored.keeps_end = not _touches_end(lost, restored.facts)
    return restored


def segment_at(path: str, source: SegmentFile) -> SegmentFile:
    """Return the segment whose log lies in the output, as it is now."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise publish_error(error, path, "look at a restored log") from error
    return replace(
        source,
        log_path=path,
        log_size_bytes=found.st_size,
        log_mtime_ns=found.st_mtime_ns,
        log_version="",
    )


def _stage(
    source: SegmentFile, target: str, settings: BuildSettings, attempt_id: str
) -> RestoredLog:
    segment = segment_at(target, source)
    watched = WatchedLog(segment)
    staged = stage_segment(segment, watched, settings, attempt_id, os.path.dirname(target))
    return RestoredLog(source, staged, watched.facts)


def _restage(
    before: RestoredLog,
    source: SegmentFile,
    target: str,
    settings: BuildSettings,
    attempt_id: str,
) -> RestoredLog:
    before.staged.remove_scratch(settings)
    return _stage(source, target, settings, attempt_id)


def _touches_end(lost: Sequence[LostRange], facts: LogFacts) -> bool:
    end = -1 if facts.last_offset is None else facts.last_offset
    return any(each.first_offset is None or each.first_offset > end for each in lost)


class _Salvaging:
    """The copy of a damaged log, and what is lost of it.

    Parameters
    ----------
    source : SegmentFile
        The log in the dump.
    target : str
        Its copy.
    next_base_offset : int or None
        Of the segment after it.
    """

    def __init__(self, source: SegmentFile, target: str, next_base_offset: int | None) -> None:
        self._source = source
        self._target = target
        self._next_base_offset = next_base_offset

    def cut_off(self, position_bytes: int, code: str, reason: str | None) -> LostRange:
        """Cut the copy at a position; return what that loses."""
        with MappedFile(self._target) as file:
            ranges = self._ranges(file.array)
            lost = self._lost(file.array, position_bytes, file.size_bytes, ranges, code, reason)
        cut(self._target, position_bytes)
        return lost

    def drop_bad_batches(self, code: str, reason: str) -> list[LostRange]:
        """Leave out of the copy what is not sound; return what that loses."""
        with MappedFile(self._target) as file:
            log = file.array
            ranges = self._ranges(log)
            starts = [0, *(each.end_bytes for each in ranges)]
            ends = [*(each.start_bytes for each in ranges), len(log)]
            holes = [(a, b) for a, b in zip(starts, ends, strict=True) if a < b]
            lost = [self._lost(log, start, end, ranges, code, reason) for start, end in holes]
            self._rewrite(log, [(each.start_bytes, each.end_bytes) for each in ranges])
        return lost

    def drop_one(self, position_bytes: int, code: str, reason: str) -> LostRange:
        """Leave one batch out of the copy; return what that loses."""
        with MappedFile(self._target) as file:
            log = file.array
            length = int.from_bytes(log[position_bytes + 8 : position_bytes + 12].tobytes(), "big")
            end = min(position_bytes + 12 + length, len(log))
            lost = self._lost(log, position_bytes, end, self._ranges(log), code, reason)
            self._rewrite(log, [(0, position_bytes), (end, len(log))])
        return lost

    def _ranges(self, log: Bytes) -> list[SoundRange]:
        base_offset, following = self._source.base_offset, self._next_base_offset
        return sound_ranges(log, base_offset, INT64_MAX if following is None else following)

    def _lost(
        self,
        log: Bytes,
        start: int,
        end: int,
        ranges: Sequence[SoundRange],
        code: str,
        reason: str | None,
    ) -> LostRange:
        before = [each for each in ranges if each.end_bytes <= start]
        first = before[-1].last.last_offset + 1 if before else self._source.base_offset
        inside = [each for each in ranges if start < each.end_bytes and each.start_bytes < start]
        if inside:
            first = _next_offset(log, inside[0].start_bytes, start, first)
        content = _content(log, start, end, ranges, first)
        after = next((each for each in ranges if each.start_bytes >= end), None)
        if after is not None:
            last: int | None = after.first.base_offset - 1
        elif self._next_base_offset is not None:
            last = self._next_base_offset - 1
        else:
            last = content.last_offset
        return LostRange(
            self._source.base_offset,
            self._source.log_path,
            first,
            last,
            content.first_timestamp_ms,
            content.last_timestamp_ms,
            content.records,
            end - start,
            start,
            code,
            reason or code,
        )

    def _rewrite(self, log: Bytes, kept: Sequence[tuple[int, int]]) -> None:
        aside = f"{self._target}.salvaged"
        mtime_ns = os.stat(self._target).st_mtime_ns
        try:
            with open(aside, "wb") as file:
                file.writelines(log[start:end].data for start, end in kept)
            os.utime(aside, ns=(mtime_ns, mtime_ns))
            os.replace(aside, self._target)
        except OSError as error:
            raise publish_error(error, self._target, "write a salvaged log") from error


def _content(
    log: Bytes, start: int, end: int, ranges: Sequence[SoundRange], next_offset: int
) -> HoleContent:
    """Return what lies between two positions, sound ranges and holes one after the other."""
    edges = sorted(
        {start, end}
        | {each.start_bytes for each in ranges if start < each.start_bytes < end}
        | {each.end_bytes for each in ranges if start < each.end_bytes < end}
    )
    records: int | None = 0
    last_offset = first_ms = last_ms = None
    for a, b in itertools.pairwise(edges):
        part = hole_content(log, a, b, next_offset)
        records = None if records is None or part.records is None else records + part.records
        if part.last_offset is not None:
            last_offset = part.last_offset
            next_offset = part.last_offset + 1
        if part.first_timestamp_ms is not None and part.last_timestamp_ms is not None:
            first_ms = min(part.first_timestamp_ms, first_ms or part.first_timestamp_ms)
            last_ms = max(part.last_timestamp_ms, last_ms or part.last_timestamp_ms)
    return HoleContent(records, last_offset, first_ms, last_ms)


def _next_offset(log: Bytes, start: int, end: int, first: int) -> int:
    """Return the offset after the sound batches between two positions."""
    found = hole_content(log, start, end, first).last_offset
    return first if found is None else found + 1

"""One log: taken over from the dump, scanned where it lies now, and salvaged where it is damaged.

The scan reads the log of the output, so that what is verified is what a broker will read. It is
that of a build, and its stop is where recovery would cut the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kafka_index.build.report import BUILT, FAILED
from kafka_index.build.scan import stage_segment
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from kafka_index.records.batch_table import BatchColumns
from kafka_index.restore.filling import Fill, FillGap
from kafka_index.restore.log_files import Link, cut, take_over, write_log
from kafka_index.restore.lost_ranges import LostRange, Salvage
from kafka_index.restore.salvaging import LogContext, Salvaging
from kafka_index.restore.sound_ranges import mark_at
from kafka_index.restore.until import Limit
from kafka_index.scan import LogFileSource
from kafka_index.scan.observed_source import ObservedSource
from kafka_index.storage import MappedFile, SegmentFile, publish_error

# A log with more kinds of damage than this is failed, and its partition left out.
_MAX_DROPS = 64


@dataclass(slots=True)
class LogFacts:
    """What the batches of a log say that is of use to the partition.

    Parameters
    ----------
    last_gap_offset : int or None
        Of the last batch that has offsets missing before it, as after compaction.
    max_producer_id : int
        -1 for none.
    last_epoch : int
        The largest leader epoch; -1 for none.
    first_offset, last_offset : int or None
        Of the first and the last batch.
    no_gaps : tuple of int
        Batches that have offsets missing before them because they were filled in so: no compaction.
    """

    last_gap_offset: int | None = None
    max_producer_id: int = -1
    last_epoch: int = -1
    first_offset: int | None = None
    last_offset: int | None = None
    no_gaps: tuple[int, ...] = ()

    def observe(self, batches: BatchColumns) -> None:
        """Add the next batches."""
        if self.last_offset is None:
            self.first_offset = int(batches.base_offset[0])
        elif int(batches.base_offset[0]) > self.last_offset + 1:
            self._add_gaps(batches.base_offset[:1])
        is_gap = batches.base_offset[1:] > batches.last_offset[:-1] + 1
        if is_gap.any():
            self._add_gaps(batches.base_offset[1:][is_gap])
        self.last_offset = int(batches.last_offset[-1])
        self.max_producer_id = max(self.max_producer_id, int(batches.producer_id.max()))
        self.last_epoch = max(self.last_epoch, int(batches.leader_epoch.max()))

    def _add_gaps(self, offsets: npt.NDArray[np.int64]) -> None:
        found = offsets[~np.isin(offsets, self.no_gaps)] if self.no_gaps else offsets
        if found.size:
            self.last_gap_offset = int(found[-1])


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
    filled : list of str
        What was filled from other copies, for people.
    fill_gaps : list of FillGap
        What those copies lack within the log.
    keeps_end : bool
        Whether the end of the log is that of the dump's: nothing was cut off.
    is_limited : bool
        Whether the log of the partition ends in it, by the limit that was given.
    """

    source: SegmentFile
    staged: StagedSegment
    facts: LogFacts
    lost: list[LostRange] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    fill_gaps: list[FillGap] = field(default_factory=list)
    keeps_end: bool = True
    is_limited: bool = False


def restore_log(
    source: SegmentFile,
    directory: str,
    link: Link,
    salvage: Salvage,
    settings: BuildSettings,
    *,
    context: LogContext,
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
    context : LogContext
        What lies around it, and what may fill it.
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
    restored = _stage(source, target, settings, attempt_id, context.limit)
    row = restored.staged.report
    if row.status == BUILT:
        return restored
    if row.position_bytes is None:
        return restored
    if row.is_preallocated_tail:
        cut(target, row.position_bytes)
        return restored
    code, reason = row.reason_code or FAILED, row.reason or FAILED
    salvaging = Salvaging(source, target, context)
    mended = salvaging.mend(row.position_bytes, code, reason, salvage)
    lost, filled, gaps = mended.lost, mended.filled, mended.gaps
    if salvage is Salvage.NONE and lost:
        restored.lost = lost
        return restored
    restored = _restage(restored, source, target, settings, attempt_id, context.limit, gaps)
    restored.lost, restored.filled = lost, filled
    for _ in range(_MAX_DROPS):
        row = restored.staged.report
        if row.status == BUILT or row.position_bytes is None:
            break
        # What its checksum does not show: offsets that go back, a marker that cannot be read.
        again = Salvaging(source, target, context)
        code, reason = row.reason_code or FAILED, row.reason or FAILED
        if salvage is Salvage.BATCHES:
            lost.append(again.drop_one(row.position_bytes, code, reason))
        else:
            lost.append(again.cut_off(row.position_bytes, code, reason))
        lost[-1] = replace(lost[-1], position_bytes=None)
        restored = _restage(restored, source, target, settings, attempt_id, context.limit, gaps)
        restored.lost, restored.filled = lost, filled
    restored.fill_gaps = _within(restored.facts, gaps, is_first=context.before is None)
    restored.keeps_end = not (restored.is_limited or _touches_end(lost, restored.facts))
    return restored


def restore_fill(
    fill: Fill, like: SegmentFile, directory: str, settings: BuildSettings, *, attempt_id: str
) -> list[RestoredLog]:
    """Write what another copy has of missing segments as logs of the output, and stage them.

    Parameters
    ----------
    fill : Fill
        From the other copy; each piece becomes a log.
    like : SegmentFile
        A segment of the same partition.
    directory : str
        The partition directory in the output.
    settings : BuildSettings
        How index files are written.
    attempt_id : str
        Names scratch files.

    Raises
    ------
    KafkaIndexError
        The copy cannot be read, or the output not be written.
    """
    restored = []
    for piece in fill.pieces:
        with MappedFile(piece.path) as file:
            data = file.array[piece.start_bytes : piece.end_bytes]
            base_offset = mark_at(data, 0).base_offset
            target = os.path.join(directory, segment_file_name(base_offset, LOG_SUFFIX))
            write_log(target, [data])
        source = replace(like, base_offset=base_offset, log_path=piece.path, is_last=False)
        log = _stage(source, target, settings, attempt_id, gaps=fill.gaps)
        log.fill_gaps = _within(log.facts, fill.gaps)
        log.filled = [f"{base_offset}: filled from {fill.replica}"]
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
    attempt_id: str,
    limit: Limit | None = None,
    gaps: Sequence[FillGap] = (),
) -> RestoredLog:
    segment = segment_at(target, source)
    facts = LogFacts(no_gaps=tuple(each.last_offset + 1 for each in gaps))
    log = ObservedSource(
        LogFileSource.of_segment(segment, verify_crc=True),
        [facts],
        None if limit is None else limit.first_beyond,
    )
    staged = stage_segment(segment, log, settings, attempt_id, os.path.dirname(target))
    is_limited = log.cut_at_bytes is not None and staged.report.status == BUILT
    if is_limited and log.cut_at_bytes is not None:
        cut(target, log.cut_at_bytes)
    return RestoredLog(source, staged, facts, is_limited=is_limited, keeps_end=not is_limited)


def _restage(
    before: RestoredLog,
    source: SegmentFile,
    target: str,
    settings: BuildSettings,
    attempt_id: str,
    limit: Limit | None,
    gaps: Sequence[FillGap],
) -> RestoredLog:
    before.staged.remove_scratch(settings)
    return _stage(source, target, settings, attempt_id, limit, gaps)


def _within(facts: LogFacts, gaps: Sequence[FillGap], *, is_first: bool = False) -> list[FillGap]:
    """Return the gaps between the batches of a log, and before the first batch of all."""
    first, last = facts.first_offset, facts.last_offset
    if first is None or last is None:
        return []
    return [
        each for each in gaps if each.last_offset < last and (is_first or each.first_offset > first)
    ]


def _touches_end(lost: Sequence[LostRange], facts: LogFacts) -> bool:
    end = -1 if facts.last_offset is None else facts.last_offset
    return any(each.first_offset is None or each.first_offset > end for each in lost)

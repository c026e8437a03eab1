"""One segment: its log scanned as a build scans it, its index files judged on the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from kafka_index.commands.verify.findings import FileClass, FileKind, Finding, Judgement, finding_of
from kafka_index.commands.verify.index_files import IDENTICAL, SegmentPlace, judge_index
from kafka_index.commands.verify.verify_settings import VerifySettings
from kafka_index.core.errors import CorruptLogError, InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.names import index_name_for, segment_file_name
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import is_remote
from kafka_index.core.log.recovery.report import FAILED, SegmentReport
from kafka_index.core.log.recovery.scan import stage_segment
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.scan.index_entry_check import (
    OffsetEntryFit,
    TimeEntryFit,
    read_offset_entries,
    read_time_entries,
)
from kafka_index.core.log.scan.log_offsets import LogOffsets, holds_messages
from kafka_index.core.log.scan.scanner import unknown_magic
from kafka_index.core.log.scan.segment_scan import BatchObserver, LogFileSource, ObservedSource
from kafka_index.core.log.state.epoch_ranges import EpochRanges
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.temporary_files import remove_scratch
from kafka_index.core.records.batch_table import (
    BAD_CRC,
    BAD_MESSAGE,
    OFFSET_OVERFLOW,
    BatchColumns,
    ScanStop,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import open_records


@dataclass
class LogFacts:
    """The facts about the batches of a log; the largest timestamp is -1 for none."""

    offsets: LogOffsets
    batches: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    epochs: EpochRanges = field(default_factory=EpochRanges)
    unknown_magic: ScanStop | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last batch; before any batch the segment's base offset."""
        return self.offsets.end_offset

    @property
    def end_bytes(self) -> int:
        """The position after the last batch."""
        return self.offsets.end_bytes

    def observe(self, batches: BatchColumns) -> None:
        """Look at a chunk of batches."""
        self.offsets.observe(batches)
        self.epochs.observe(batches)
        self.batches += batches.rows
        self.unknown_magic = self.unknown_magic or unknown_magic(batches)
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(batches.max_timestamp_ms.max()))


@dataclass(slots=True)
class SegmentCheck:
    """The result of the scan of a segment.

    The state of the staged build waits for the fold. `facts` are those of the valid batches,
    `whole` those of all batches by their headers, past a wrong checksum. Without an offset index a
    broker rebuilds everything. `bad_message` is the first compressed message of magic 0 or 1 whose
    messages cannot be read, or have wrong checksums, which that of the compressed one does not
    show. `is_tail`: a broker cuts off the end of the log at any start, if it is the partition's
    last. `is_split`: all batches are intact, and a broker that recovers the segment splits it.
    """

    segment: SegmentFile
    place: SegmentPlace
    staged: StagedSegment
    facts: LogFacts
    whole: LogFacts
    findings: list[Finding] = field(default_factory=list)
    has_offset_index: bool = True
    has_time_index: bool = True
    is_tail: bool = False
    is_split: bool = False
    bad_message: ScanStop | None = None

    @property
    def row(self) -> SegmentReport:
        """The row of the scan."""
        return self.staged.report


def index_path(segment: SegmentFile, settings: VerifySettings, kind: FileKind) -> str:
    """Return the path of a segment's index file."""
    suffix = f".{kind.value}"
    name = index_name_for(os.path.basename(segment.log_path), suffix)
    if settings.indexes is not None:
        name = segment_file_name(segment.base_offset, suffix)
    return os.path.join(settings.index_directory(segment), name)


def read_stored(
    segment: SegmentFile, settings: VerifySettings, kind: FileKind
) -> tuple[Finding, bytes | None]:
    """Return the row of an index file as it lies there, and its bytes; None for none."""
    path = index_path(segment, settings, kind)
    finding = finding_of(segment, path, kind, FileClass.MISSING, base_offset=segment.base_offset)
    try:
        if not is_remote(path) and _is_special(path):
            raise InputError("not a regular file", path=path)
        return finding, store_of(path).read(path)
    except FileNotFoundError:
        return finding, None
    except KafkaIndexError as error:
        return finding.unreadable(error), None


def _is_special(path: str) -> bool:
    """Return whether it is neither file nor directory, such as a named pipe: reading may wait."""
    return not os.path.isfile(path) and not os.path.isdir(path) and os.path.exists(path)


def check_segment(
    segment: SegmentFile,
    place: SegmentPlace,
    settings: VerifySettings,
    cleaned_to: int,
    *,
    attempt_id: str,
) -> SegmentCheck:
    """Scan a segment, and judge its two indexes.

    The cleaner's checkpoint is `cleaned_to`. The attempt id names scratch files; no two scans at a
    time share it.
    """
    offsets = _StoredIndex(segment, settings, FileKind.INDEX)
    times = _StoredIndex(segment, settings, FileKind.TIME_INDEX)
    facts = whole = LogFacts(LogOffsets(segment.base_offset, cleaned_to))
    source = LogFileSource.of_segment(segment, verify_crc=not settings.fast)
    # Reading a remote log again would cost more than comparing entries that may be those built.
    compared = [offsets, times] if is_remote(segment.log_path) else []
    messages = _CompressedMessages()
    observers: list[BatchObserver] = [
        facts,
        messages,
        *chain(*(each.observers() for each in compared)),
    ]
    build = settings.build_settings()
    unread: KafkaIndexError | None = None
    staged = stage_segment(segment, ObservedSource(source, observers), build, attempt_id)
    built = _built(staged, settings, attempt_id)
    is_split = False
    if staged.report.reason_code == BAD_CRC or staged.report.status == FAILED:
        # A broker that does not verify checksums reads on.
        whole = LogFacts(LogOffsets(segment.base_offset, cleaned_to))
        unread = _read_headers(segment, [whole, *offsets.observers(), *times.observers()])
        if staged.report.reason_code == OFFSET_OVERFLOW and unread is None:
            is_split = _is_intact(segment, verify_crc=not settings.fast)
            facts = whole if is_split else facts
    elif not compared:
        unequal = [
            each
            for each, data in zip((offsets, times), built, strict=True)
            if each.stored not in (None, data)
        ]
        unread = _read_headers(segment, list(chain(*(each.observers() for each in unequal))))
    is_tail = source.stop is not None and source.stop.is_tail
    check = SegmentCheck(segment, place, staged, facts, whole, is_tail=is_tail)
    check.is_split = is_split
    if messages.first_bytes is not None and not settings.fast:
        check.bad_message = messages.bad_message(segment)
    for index, data in zip((offsets, times), built, strict=True):
        finding = index.finding
        if index.stored is None:
            check.findings += [finding] if index.is_there else []
        elif staged.report.retriable:
            check.findings.append(finding.unread("its log could not be read", retriable=True))
        elif unread is not None and index.stored != data:
            check.findings.append(finding.unreadable(unread))
        elif index.stored == data:
            check.findings.append(finding.judged(IDENTICAL))
        else:
            check.findings.append(finding.judged(index.judge(data, whole, place)))
    check.has_offset_index, check.has_time_index = offsets.is_there, times.is_there
    return check


class _CompressedMessages:
    """Compressed messages of magic 0 and 1, each with messages inside that have own checksums.

    `first_bytes` is the position of the first one.
    """

    def __init__(self) -> None:
        self.first_bytes: int | None = None
        self._end_bytes = 0

    def observe(self, batches: BatchColumns) -> None:
        """Look at a chunk."""
        rows = np.flatnonzero(holds_messages(batches))
        if len(rows) and self.first_bytes is None:
            self.first_bytes = int(batches.position_bytes[rows[0]])
        self._end_bytes = batches.end_bytes

    def bad_message(self, segment: SegmentFile) -> ScanStop | None:
        """Return the first batch whose messages are damaged; the log is read again."""
        source = LogFileSource(
            segment.log_path,
            verify_crc=False,
            listed=segment,
            start_bytes=self.first_bytes or 0,
        )
        budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
        for window, start, batches in source.windows():
            is_sound = batches.position_bytes < self._end_bytes
            for row in np.flatnonzero(holds_messages(batches) & is_sound).tolist():
                position = int(batches.position_bytes[row])
                message = window[position - start :][: int(batches.size_bytes[row])]
                try:
                    with open_records(message, budget, verify_crc=True) as records:
                        fault = records.fault
                except CorruptLogError as error:
                    fault = str(error)
                if fault is not None:
                    return ScanStop(BAD_MESSAGE, position, message=fault)
        return None


class _StoredIndex:
    """An offset or time index that lies there; its entries are read when they are needed."""

    def __init__(self, segment: SegmentFile, settings: VerifySettings, kind: FileKind) -> None:
        self._base_offset = segment.base_offset
        self._kind = kind
        self.finding, self.stored = read_stored(segment, settings, kind)

    @property
    def is_there(self) -> bool:
        """Whether there is such a file, readable or not."""
        return self.stored is not None or self.finding.file_class is FileClass.UNREADABLE

    def observers(self) -> list[BatchObserver]:
        """Return new observers that compare ascending entries with batches."""
        data = self.stored or b""
        self._fit: OffsetEntryFit | TimeEntryFit
        if self._kind is FileKind.INDEX:
            self._entries = read_offset_entries(data, self._base_offset)
            self._fit = OffsetEntryFit(self._entries)
        else:
            self._entries = read_time_entries(data, self._base_offset)
            self._fit = TimeEntryFit(self._entries)
        return [self._fit] if self._entries.disorder is None else []

    def judge(self, built: bytes | None, whole: LogFacts, place: SegmentPlace) -> Judgement:
        """Judge the file, once the observers have seen the log."""
        if isinstance(self._fit, OffsetEntryFit):
            misfit = self._fit.misfit(whole.end_offset, whole.end_bytes)
        else:
            misfit = self._fit.misfit(
                whole.end_offset,
                whole.max_timestamp_ms,
                is_closed=place.is_clean or not place.is_last,
            )
        return judge_index(self._kind, self.stored or b"", built, self._entries, misfit, place)


def _read_headers(
    segment: SegmentFile, observers: Sequence[BatchObserver]
) -> KafkaIndexError | None:
    """Read a log for observers; return the failure of its disk or store."""
    if not observers:
        return None
    try:
        source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
        for batches in source.chunks():
            for observer in observers:
                observer.observe(batches)
    except KafkaIndexError as error:
        # The damage that the first scan met is in the row of the log.
        return error if is_retriable(error) else None
    return None


def _is_intact(segment: SegmentFile, *, verify_crc: bool) -> bool:
    """Return whether a consumer can read a log to its end, whatever its offsets."""
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc, recovers=False)
    for _ in source.chunks():
        pass
    return source.stop is None


def _built(
    staged: StagedSegment, settings: VerifySettings, attempt_id: str
) -> tuple[bytes | None, bytes | None]:
    """Return the two indexes as built, and remove their files."""
    if staged.report.status == FAILED:
        return None, None
    build, paths = settings.build_settings(), staged.paths
    found = []
    for path in (paths.offset_index, paths.time_index):
        scratch = build.work_path(path, attempt_id)
        with open(scratch, "rb") as file:
            found.append(file.read())
        remove_scratch(scratch)
    # What is built of a log that is cut does not cover what lies there.
    return (None, None) if staged.report.reason_code == BAD_CRC else (found[0], found[1])


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

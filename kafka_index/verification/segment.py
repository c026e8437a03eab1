"""One segment: its log scanned as a build scans it, its index files judged on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.build.scan import stage_segment
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    index_name_for,
    segment_file_name,
)
from kafka_index.records.batch_source import BAD_CRC
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile, remove_scratch
from kafka_index.stores import store_of
from kafka_index.verification.entry_fit import (
    OffsetEntryFit,
    StoredEntries,
    TimeEntryFit,
    read_offset_entries,
    read_time_entries,
)
from kafka_index.verification.findings import FileClass, FileKind, Finding, Judgement
from kafka_index.verification.index_files import SegmentPlace, judge_offset_index, judge_time_index
from kafka_index.verification.log_facts import LogFacts, ObservedSource
from kafka_index.verification.settings import VerifySettings


@dataclass(slots=True)
class StoredFile:
    """An index file as it lies there: its row, and its bytes; None for none."""

    finding: Finding
    data: bytes | None

    @property
    def was_read(self) -> bool:
        """Whether it is there and could be read, or is not there."""
        return self.finding.file_class is not FileClass.UNREADABLE


@dataclass(slots=True)
class SegmentCheck:
    """What the scan of a segment found.

    Parameters
    ----------
    segment : SegmentFile
        The segment.
    place : SegmentPlace
        How a start treats it.
    staged : StagedSegment
        As the build has it; its state waits for the fold.
    facts : LogFacts
        Of its valid batches.
    whole : LogFacts
        Of all batches by their headers, past a wrong checksum.
    findings : list of Finding
        Of its index files.
    has_offset_index : bool
        Whether there is an ``.index``: without one a broker rebuilds everything.
    has_time_index : bool
        Whether there is a ``.timeindex``.
    """

    segment: SegmentFile
    place: SegmentPlace
    staged: StagedSegment
    facts: LogFacts
    whole: LogFacts
    findings: list[Finding] = field(default_factory=list)
    has_offset_index: bool = True
    has_time_index: bool = True

    @property
    def row(self) -> SegmentReport:
        """The row of the scan."""
        return self.staged.report


def index_path(segment: SegmentFile, settings: VerifySettings, suffix: str) -> str:
    """Return the path of a segment's index file."""
    name = index_name_for(os.path.basename(segment.log_path), suffix)
    if settings.indexes is not None:
        name = segment_file_name(segment.base_offset, suffix)
    return os.path.join(settings.index_directory(segment), name)


def read_stored(segment: SegmentFile, path: str, kind: FileKind) -> StoredFile:
    """Read a file of a segment."""
    finding = Finding(
        segment.topic, segment.partition, segment.base_offset, path, kind, FileClass.MISSING
    )
    try:
        return StoredFile(finding, store_of(path).read(path))
    except FileNotFoundError:
        return StoredFile(finding, None)
    except KafkaIndexError as error:
        return StoredFile(finding.unreadable(error), None)


def check_segment(
    segment: SegmentFile, place: SegmentPlace, settings: VerifySettings, *, attempt_id: str
) -> SegmentCheck:
    """Scan a segment, and judge its two indexes.

    Parameters
    ----------
    segment : SegmentFile
        The segment.
    place : SegmentPlace
        How a start treats it.
    settings : VerifySettings
        How to verify.
    attempt_id : str
        Names scratch files; no two scans at a time share it.
    """
    base_offset = segment.base_offset
    offsets = _StoredIndex.read(segment, settings, OFFSET_INDEX_SUFFIX)
    times = _StoredIndex.read(segment, settings, TIME_INDEX_SUFFIX)
    offset_fit, time_fit = OffsetEntryFit(offsets.entries), TimeEntryFit(times.entries)
    facts = LogFacts(base_offset)
    source = LogFileSource.of_segment(segment, verify_crc=not settings.fast)
    # Entries that do not ascend are not compared.
    observers = [facts, *offsets.observer(offset_fit), *times.observer(time_fit)]
    build = settings.build_settings()
    staged = stage_segment(segment, ObservedSource(source, observers), build, attempt_id)
    whole = facts
    if staged.report.reason_code == BAD_CRC or staged.report.status == FAILED:
        # A broker that does not verify checksums reads on.
        whole = LogFacts(base_offset)
        offset_fit, time_fit = OffsetEntryFit(offsets.entries), TimeEntryFit(times.entries)
        rest = [whole, *offsets.observer(offset_fit), *times.observer(time_fit)]
        _read_headers(segment, rest)
    check = SegmentCheck(segment, place, staged, facts, whole)
    built = _built(staged, settings, attempt_id)
    judges: tuple[tuple[_StoredIndex, Callable[[], Judgement]], ...] = (
        (
            offsets,
            lambda: judge_offset_index(
                offsets.data,
                built[0],
                offsets.entries,
                offset_fit.misfit(whole.end_offset, whole.end_bytes),
                place,
            ),
        ),
        (
            times,
            lambda: judge_time_index(
                times.data,
                built[1],
                times.entries,
                time_fit.misfit(whole.end_offset, is_closed=place.is_clean or not place.is_last),
                place,
            ),
        ),
    )
    for stored, judge in judges:
        if staged.report.retriable:
            if stored.is_there:
                check.findings.append(_without_log(stored.file.finding))
        elif stored.file.data is not None:
            check.findings.append(stored.file.finding.judged(judge()))
        elif not stored.file.was_read:
            check.findings.append(stored.file.finding)
    check.has_offset_index = offsets.is_there
    check.has_time_index = times.is_there
    return check


@dataclass(slots=True)
class _StoredIndex:
    file: StoredFile
    entries: StoredEntries

    @classmethod
    def read(cls, segment: SegmentFile, settings: VerifySettings, suffix: str) -> _StoredIndex:
        is_offsets = suffix == OFFSET_INDEX_SUFFIX
        kind = FileKind.INDEX if is_offsets else FileKind.TIME_INDEX
        file = read_stored(segment, index_path(segment, settings, suffix), kind)
        read = read_offset_entries if is_offsets else read_time_entries
        return cls(file, read(file.data or b"", segment.base_offset))

    @property
    def data(self) -> bytes:
        return self.file.data or b""

    @property
    def is_there(self) -> bool:
        return self.file.data is not None or not self.file.was_read

    def observer(self, fit: OffsetEntryFit | TimeEntryFit) -> list[OffsetEntryFit | TimeEntryFit]:
        return [fit] if self.entries.disorder is None else []


def _without_log(finding: Finding) -> Finding:
    return replace(
        finding,
        file_class=FileClass.UNREADABLE,
        found="its log could not be read",
        effect="It was not verified.",
        retriable=True,
    )


def _read_headers(
    segment: SegmentFile, observers: list[LogFacts | OffsetEntryFit | TimeEntryFit]
) -> None:
    try:
        for batches in LogFileSource.of_segment(segment, verify_crc=False).chunks():
            for observer in observers:
                observer.observe(batches)
    except KafkaIndexError:
        # What the first scan met is in the row of the log.
        return


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

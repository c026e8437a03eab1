"""Verification of one segment: scan its ``.log`` like a build, and classify its index files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from kafka_index.commands.verify.result import (
    Classification,
    FileClass,
    FileKind,
    Finding,
    new_finding,
)
from kafka_index.commands.verify.settings import VerifySettings
from kafka_index.core.errors import CorruptLogError, InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.names import index_name_for, segment_file_name
from kafka_index.core.format.records import (
    ABORTED_TXN,
    ABORTED_TXN_VERSION,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    TIME_ENTRY,
)
from kafka_index.core.fs.registry import store_of
from kafka_index.core.index.transaction_index import (
    TxnDifference,
    TxnFault,
    compare_aborted_txns,
    entry_versions,
)
from kafka_index.core.log.recovery.scan import stage_segment
from kafka_index.core.log.recovery.settings import FAILED, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.scan.entry_check import (
    EpochRanges,
    IndexMismatch,
    OffsetEntryCheck,
    StoredEntries,
    TimeEntryCheck,
    read_offset_entries,
    read_time_entries,
)
from kafka_index.core.log.scan.log_offsets import LogOffsets, are_compressed_messages
from kafka_index.core.log.scan.scanner import unknown_magic
from kafka_index.core.log.scan.segment_scan import BatchObserver, LogFileSource, ObservedSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.publish import remove_scratch
from kafka_index.core.records.batch_table import (
    BAD_CRC,
    BAD_MESSAGE,
    OFFSET_OVERFLOW,
    BatchColumns,
    ScanStop,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import open_records

_FILE_REBUILT = "At startup, a broker recovers the segment and rebuilds the file."

IDENTICAL = Classification(FileClass.IDENTICAL)
NOT_CHECKED = Classification(
    FileClass.EQUIVALENT, found="not compared, because an earlier log is corrupt"
)

_OFFSET_EFFECTS = {
    FileClass.PADDED: "Lookups in the index are correct, but slower.",
    FileClass.INCOMPLETE: "Lookups in the index are correct, but slower.",
    FileClass.STALE: "A fetch from this entry finds no batch, and later appends can fail.",
    FileClass.MISPLACED: "A consumer that fetches from this entry is stuck, or skips records "
    "silently.",
    FileClass.TOO_LOW: "Consumers skip the records before the batch of the entry silently.",
    FileClass.FOREIGN: "Fetches return no batch, or the wrong batch.",
    FileClass.CORRUPT: "Lookups return wrong positions, or scan the complete segment.",
}
_TIME_EFFECTS = {
    FileClass.PADDED: "The largest timestamp of the segment reads as 0: retention deletes the "
    "segment at any age, and lookups by time return wrong results.",
    FileClass.INCOMPLETE: "Lookups by time miss records, and retention can delete the segment too "
    "early.",
    FileClass.STALE: "Lookups by time may find no record, and retention uses a wrong time.",
    FileClass.TOO_LOW: "Lookups by time skip records.",
    FileClass.FOREIGN: "Lookups by time find the wrong record, and retention uses a wrong time.",
    FileClass.CORRUPT: "Lookups by time return wrong results, and retention uses a wrong time.",
}
_WRONG_LOG_END = (
    "A broker reads the segment's base offset as the log end: all records of the segment are "
    "unreadable, and new records reuse the same offsets."
)

_SEGMENT_REBUILT = "At startup, a broker recovers the segment and rebuilds its indexes."

#: Called with a producer ID, a first and a last offset. Returns whether the producer has data
#: batches in this range.
HasData = Callable[[int, int, int], bool]


@dataclass(frozen=True, slots=True)
class SegmentStartup:
    """How a starting broker treats a segment.

    Attributes
    ----------
    is_last
        Whether the segment is the active segment.
    is_recovered
        Whether startup recovers the segment, which rebuilds its indexes.
    is_clean
        Whether the data directory has a clean shutdown file.
    """

    is_last: bool
    is_recovered: bool
    is_clean: bool

    def unless_rebuilt(self, classification: Classification) -> Classification:
        """Return the classification of an index file; if startup rebuilds the file, as harmless."""
        if not self.is_recovered or classification.file_class is FileClass.IDENTICAL:
            return classification
        return replace(classification, harmful=False, effect=_FILE_REBUILT)


@dataclass(frozen=True, slots=True)
class _EntryRules:
    """How defects of one kind of index affect a broker.

    Attributes
    ----------
    size
        Size of an entry in bytes.
    effects
        Effect on a broker, by the class of the index file.
    is_tail_harmful
        Whether zeros or an incomplete entry after the last entry are harmful.
    """

    size: int
    effects: Mapping[FileClass, str]
    is_tail_harmful: bool


_RULES = {
    FileKind.INDEX: _EntryRules(OFFSET_ENTRY.itemsize, _OFFSET_EFFECTS, is_tail_harmful=False),
    FileKind.TIME_INDEX: _EntryRules(TIME_ENTRY.itemsize, _TIME_EFFECTS, is_tail_harmful=True),
}


def classify_index(
    kind: FileKind,
    stored_bytes: bytes,
    rebuilt: bytes | None,
    entries: StoredEntries,
    mismatch: IndexMismatch | None,
    startup: SegmentStartup,
) -> Classification:
    """Classify an ``.index`` or ``.timeindex`` that differs from a rebuild.

    `rebuilt` is the content of a rebuilt index, None if the indexes of the segment cannot be
    rebuilt. `mismatch` is the first entry that does not match the ``.log``, if all entries are in
    order.
    """
    rules = _RULES[kind]
    classification = _classify_mismatch(entries, mismatch, rules)
    if classification is None or classification.file_class is FileClass.INCOMPLETE:
        if entries.torn_bytes:
            classification = _classify_torn(stored_bytes, entries, rules)
        elif entries.padding:
            classification = _classify_padded(entries, rules)
    elif kind is FileKind.INDEX and mismatch and classification.file_class is FileClass.STALE:
        classification = _classify_stale(classification, mismatch, startup)
    return startup.unless_rebuilt(
        classification or _classify_matching(stored_bytes, rebuilt, rules)
    )


def _classify_mismatch(
    entries: StoredEntries, mismatch: IndexMismatch | None, rules: _EntryRules
) -> Classification | None:
    if entries.disorder is not None:
        file_class, entry = FileClass.CORRUPT, entries.disorder
        expected = "an offset above the previous entry"
        found_text = f"offset {int(entries.offsets[entry])}"
    elif mismatch is not None:
        file_class, entry = FileClass(mismatch.fault), mismatch.entry
        expected, found_text = mismatch.expected, mismatch.found
    else:
        return None
    return Classification(
        file_class,
        harmful=True,
        position_bytes=entry * rules.size,
        entry=entry,
        expected=expected,
        found=found_text,
        effect=rules.effects[file_class],
    )


def _classify_stale(
    classification: Classification, mismatch: IndexMismatch, startup: SegmentStartup
) -> Classification:
    """Classify entries that point beyond the ``.log``; a broker may derive a wrong log end."""
    if startup.is_last:
        return replace(classification, effect=_WRONG_LOG_END)
    if mismatch.expected.startswith("an offset"):
        # Lookups of offsets after this segment use later segments, never these entries.
        effect = "Lookups in the index are correct: no offset of the segment uses these entries."
        return replace(classification, harmful=False, effect=effect)
    return classification


def _classify_torn(
    stored_bytes: bytes, entries: StoredEntries, rules: _EntryRules
) -> Classification:
    complete_bytes = len(stored_bytes) - entries.torn_bytes
    return Classification(
        FileClass.CORRUPT,
        rules.is_tail_harmful,
        complete_bytes,
        complete_bytes // rules.size,
        expected=f"a multiple of {rules.size} bytes",
        found=f"{len(stored_bytes)} bytes",
        effect=rules.effects[FileClass.INCOMPLETE],
    )


def _classify_padded(entries: StoredEntries, rules: _EntryRules) -> Classification:
    entry_count = len(entries.offsets)
    return Classification(
        FileClass.PADDED,
        rules.is_tail_harmful,
        entry_count * rules.size,
        entry_count,
        expected=f"{entry_count} entries",
        found=f"{entry_count} entries, then {entries.padding} zero entries",
        effect=rules.effects[FileClass.PADDED],
    )


def _classify_matching(
    stored_bytes: bytes, rebuilt: bytes | None, rules: _EntryRules
) -> Classification:
    """Classify an index that differs from `rebuilt`, but whose entries all match the ``.log``."""
    if rebuilt is None:
        return Classification(
            FileClass.EQUIVALENT, found="all entries match the batch headers of the log"
        )
    entry_bytes = rules.size
    if len(stored_bytes) < len(rebuilt) and rebuilt.startswith(stored_bytes):
        return Classification(
            FileClass.INCOMPLETE,
            position_bytes=len(stored_bytes),
            entry=len(stored_bytes) // entry_bytes,
            expected=f"{len(rebuilt) // entry_bytes} entries",
            found=f"{len(stored_bytes) // entry_bytes}",
            effect=rules.effects[FileClass.INCOMPLETE],
        )
    shared_bytes = min(len(stored_bytes), len(rebuilt))
    unequal_positions = np.flatnonzero(
        np.frombuffer(stored_bytes, np.uint8, shared_bytes)
        != np.frombuffer(rebuilt, np.uint8, shared_bytes)
    )
    first_unequal = int(unequal_positions[0]) if len(unequal_positions) else shared_bytes
    return Classification(
        FileClass.EQUIVALENT,
        position_bytes=first_unequal,
        entry=first_unequal // entry_bytes,
        expected=f"the {len(rebuilt) // entry_bytes} entries of a rebuild",
        found=f"{len(stored_bytes) // entry_bytes} entries that also match the log",
    )


def classify_transaction_index(
    stored_bytes: bytes,
    rebuilt: bytes | None,
    base_offset: int,
    startup: SegmentStartup,
    has_data: HasData,
    next_start: int,
    *,
    is_state_known: bool,
) -> Classification:
    """Classify a ``.txnindex``; if the producer state is known, compare it with `rebuilt`.

    `has_data` and `next_start` are arguments of `compare_aborted_txns`. `is_state_known` is True if
    the producer state at the start of the segment is known.
    """
    entry_bytes = ABORTED_TXN.itemsize
    entries = np.frombuffer(stored_bytes, ABORTED_TXN, len(stored_bytes) // entry_bytes)
    unknown_versions = np.flatnonzero(entry_versions(entries) > ABORTED_TXN_VERSION)
    low_offsets = np.flatnonzero(entries["last_offset"] < base_offset)
    if len(unknown_versions) and not (len(low_offsets) and low_offsets[0] < unknown_versions[0]):
        return _classify_entry(
            FileClass.CORRUPT,
            int(unknown_versions[0]),
            f"version {ABORTED_TXN_VERSION}",
            f"version {int(entry_versions(entries)[unknown_versions[0]])}",
            "A broker that loads the segment exits.",
            harmful=True,
        )
    if len(low_offsets):
        return _classify_entry(
            FileClass.CORRUPT,
            int(low_offsets[0]),
            f"a last offset of {base_offset} or more",
            f"{int(entries['last_offset'][low_offsets[0]])}",
            _SEGMENT_REBUILT,
        )
    if stored_bytes == rebuilt:
        return IDENTICAL
    if rebuilt is None or not is_state_known:
        return NOT_CHECKED
    difference = compare_aborted_txns(
        entries, np.frombuffer(rebuilt, ABORTED_TXN), has_data, next_start
    )
    classification = Classification(FileClass.EQUIVALENT, found="the same aborted transactions")
    if difference is not None:
        classification = _classify_entry(
            _txn_file_class(difference, len(entries)),
            difference.entry,
            difference.expected,
            difference.found,
            difference.fault.effect,
            harmful=True,
        )
    elif torn_bytes := len(stored_bytes) % entry_bytes:
        classification = _classify_entry(
            FileClass.CORRUPT,
            len(entries),
            f"a multiple of {entry_bytes} bytes",
            f"{torn_bytes} additional bytes",
            "Lookups skip the incomplete entry, but a broker cannot append further entries.",
        )
    return startup.unless_rebuilt(classification)


def _txn_file_class(difference: TxnDifference, entries: int) -> FileClass:
    match difference.fault:
        case TxnFault.PADDED:
            return FileClass.PADDED
        case TxnFault.MISSING if difference.entry == entries:
            return FileClass.INCOMPLETE
        case _:
            return FileClass.CORRUPT


def _classify_entry(
    file_class: FileClass,
    entry: int,
    expected: str,
    found_text: str,
    effect: str,
    *,
    harmful: bool = False,
) -> Classification:
    position_bytes = entry * ABORTED_TXN.itemsize
    return Classification(file_class, harmful, position_bytes, entry, expected, found_text, effect)


@dataclass
class LogFacts:
    """Facts about the batches of a ``.log``; `max_timestamp_ms` is -1 without timestamps."""

    offsets: LogOffsets
    batches: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    epochs: EpochRanges = field(default_factory=EpochRanges)
    unknown_magic: ScanStop | None = None

    @property
    def end_offset(self) -> int:
        return self.offsets.end_offset

    @property
    def end_bytes(self) -> int:
        """The byte position after the last batch."""
        return self.offsets.end_bytes

    def observe(self, batches: BatchColumns) -> None:
        self.offsets.observe(batches)
        self.epochs.observe(batches)
        self.batches += batches.rows
        self.unknown_magic = self.unknown_magic or unknown_magic(batches)
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(batches.max_timestamp_ms.max()))


@dataclass(slots=True)
class SegmentCheck:
    """The result of the scan of a segment.

    Attributes
    ----------
    staged
        The staged build of the segment, which the merge of the partition requires.
    facts
        Facts about the batches before any corruption.
    header_facts
        Facts from the headers of all batches, also of batches after a CRC mismatch.
    has_offset_index, has_time_index
        Whether the index file exists. Without an offset index, a broker rebuilds both indexes.
    is_tail
        Whether the ``.log`` ends in bytes that startup truncates if this is the last segment.
    is_split
        Whether all batches are valid, but recovery splits the segment because of offset overflow.
    bad_message
        The first compressed v0 or v1 message whose inner messages are unreadable or have wrong
        checksums. Startup verifies only the checksum of the outer message.
    """

    segment: SegmentFile
    startup: SegmentStartup
    staged: StagedSegment
    facts: LogFacts
    header_facts: LogFacts
    findings: list[Finding] = field(default_factory=list)
    has_offset_index: bool = True
    has_time_index: bool = True
    is_tail: bool = False
    is_split: bool = False
    bad_message: ScanStop | None = None

    @property
    def row(self) -> SegmentReport:
        return self.staged.report


def index_path(segment: SegmentFile, settings: VerifySettings, kind: FileKind) -> str:
    suffix = f".{kind.value}"
    name = index_name_for(os.path.basename(segment.log_path), suffix)
    if settings.indexes is not None:
        name = segment_file_name(segment.base_offset, suffix)
    return os.path.join(settings.index_directory(segment), name)


def read_stored_file(
    segment: SegmentFile, settings: VerifySettings, kind: FileKind
) -> tuple[Finding, bytes | None]:
    """Return the finding and the bytes of an index file; bytes are None if the file is missing."""
    path = index_path(segment, settings, kind)
    finding = new_finding(segment, path, kind, FileClass.MISSING, base_offset=segment.base_offset)
    try:
        store = store_of(path)
        if store.is_special(path):
            raise InputError("the path is not a regular file", path=path)
        return finding, store.read(path)
    except FileNotFoundError:
        return finding, None
    except KafkaIndexError as error:
        return finding.unreadable(error), None


def check_segment(
    segment: SegmentFile,
    startup: SegmentStartup,
    settings: VerifySettings,
    cleaned_to: int,
    *,
    attempt_id: str,
) -> SegmentCheck:
    """Scan the ``.log`` of a segment, and classify its offset and time index.

    `cleaned_to` is the partition's offset in the cleaner checkpoint. `attempt_id` is part of the
    names of temporary files, and must differ between concurrent scans.
    """
    offset_index = _StoredIndex(segment, settings, FileKind.INDEX)
    time_index = _StoredIndex(segment, settings, FileKind.TIME_INDEX)
    facts = header_facts = LogFacts(LogOffsets(segment.base_offset, cleaned_to))
    source = LogFileSource.of_segment(segment, verify_crc=not settings.fast)
    # Compare index entries during the first scan, because reading a remote ``.log`` again costs
    # more.
    compared = [offset_index, time_index] if store_of(segment.log_path).needs_requests else []
    messages = _CompressedMessages()
    observers: list[BatchObserver] = [
        facts,
        messages,
        *chain.from_iterable(index.observers() for index in compared),
    ]
    build_settings = settings.build_settings()
    read_error: KafkaIndexError | None = None
    staged = stage_segment(segment, ObservedSource(source, observers), build_settings, attempt_id)
    rebuilt = _take_built_indexes(staged, settings, attempt_id)
    is_split = False
    if staged.report.reason_code == BAD_CRC or staged.report.status == FAILED:
        # A broker that does not verify checksums also reads the batches after a mismatch.
        header_facts = LogFacts(LogOffsets(segment.base_offset, cleaned_to))
        read_error = _read_headers(
            segment, [header_facts, *offset_index.observers(), *time_index.observers()]
        )
        if staged.report.reason_code == OFFSET_OVERFLOW and read_error is None:
            is_split = _is_intact(segment, verify_crc=not settings.fast)
            facts = header_facts if is_split else facts
    elif not compared:
        unequal_indexes = [
            index
            for index, rebuilt_bytes in zip((offset_index, time_index), rebuilt, strict=True)
            if index.stored not in (None, rebuilt_bytes)
        ]
        read_error = _read_headers(
            segment, list(chain.from_iterable(index.observers() for index in unequal_indexes))
        )
    is_tail = source.stop is not None and source.stop.is_tail
    check = SegmentCheck(segment, startup, staged, facts, header_facts, is_tail=is_tail)
    check.is_split = is_split
    if messages.first_bytes is not None and not settings.fast:
        check.bad_message = messages.bad_message(segment)
    for index, rebuilt_bytes in zip((offset_index, time_index), rebuilt, strict=True):
        finding = index.finding
        if index.stored is None:
            check.findings += [finding] if index.exists else []
        elif staged.report.retriable:
            check.findings.append(
                finding.unread("the log of the segment could not be read", retriable=True)
            )
        elif read_error is not None and index.stored != rebuilt_bytes:
            check.findings.append(finding.unreadable(read_error))
        elif index.stored == rebuilt_bytes:
            check.findings.append(finding.classified(IDENTICAL))
        else:
            check.findings.append(
                finding.classified(index.classify(rebuilt_bytes, header_facts, startup))
            )
    check.has_offset_index, check.has_time_index = offset_index.exists, time_index.exists
    return check


class _CompressedMessages:
    """Detects compressed v0 and v1 messages, whose inner messages have their own checksums.

    `first_bytes` is the position of the first compressed message.
    """

    def __init__(self) -> None:
        self.first_bytes: int | None = None
        self._end_bytes = 0

    def observe(self, batches: BatchColumns) -> None:
        rows = np.flatnonzero(are_compressed_messages(batches))
        if len(rows) and self.first_bytes is None:
            self.first_bytes = int(batches.position_bytes[rows[0]])
        self._end_bytes = batches.end_bytes

    def bad_message(self, segment: SegmentFile) -> ScanStop | None:
        """Read the ``.log`` again; return the first message with corrupt inner messages, if any."""
        source = LogFileSource(
            segment.log_path,
            verify_crc=False,
            listed_segment=segment,
            start_bytes=self.first_bytes or 0,
        )
        budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
        for window, window_start, batches in source.windows():
            is_valid = batches.position_bytes < self._end_bytes
            for row in np.flatnonzero(are_compressed_messages(batches) & is_valid).tolist():
                position_bytes = int(batches.position_bytes[row])
                message = window[position_bytes - window_start :][: int(batches.size_bytes[row])]
                try:
                    with open_records(message, budget, verify_crc=True) as records:
                        fault = records.fault
                except CorruptLogError as error:
                    fault = str(error)
                if fault is not None:
                    return ScanStop(BAD_MESSAGE, position_bytes, message=fault)
        return None


class _StoredIndex:
    """A stored offset or time index, whose entries `observers` parses."""

    def __init__(self, segment: SegmentFile, settings: VerifySettings, kind: FileKind) -> None:
        self._base_offset = segment.base_offset
        self._kind = kind
        self.finding, self.stored = read_stored_file(segment, settings, kind)

    @property
    def exists(self) -> bool:
        """Whether the file exists, readable or not."""
        return self.stored is not None or self.finding.file_class is FileClass.UNREADABLE

    def observers(self) -> list[BatchObserver]:
        """Return new observers that compare entries with batches; none for disordered entries."""
        data = self.stored or b""
        self._entry_check: OffsetEntryCheck | TimeEntryCheck
        if self._kind is FileKind.INDEX:
            self._entries = read_offset_entries(data, self._base_offset)
            self._entry_check = OffsetEntryCheck(self._entries)
        else:
            self._entries = read_time_entries(data, self._base_offset)
            self._entry_check = TimeEntryCheck(self._entries)
        return [self._entry_check] if self._entries.disorder is None else []

    def classify(
        self, rebuilt: bytes | None, header_facts: LogFacts, startup: SegmentStartup
    ) -> Classification:
        """Classify the index file after its observers have received all batches of the ``.log``."""
        if isinstance(self._entry_check, OffsetEntryCheck):
            mismatch = self._entry_check.mismatch(header_facts.end_offset, header_facts.end_bytes)
        else:
            mismatch = self._entry_check.mismatch(
                header_facts.end_offset,
                header_facts.max_timestamp_ms,
                is_closed=startup.is_clean or not startup.is_last,
            )
        return classify_index(
            self._kind, self.stored or b"", rebuilt, self._entries, mismatch, startup
        )


def _read_headers(
    segment: SegmentFile, observers: Sequence[BatchObserver]
) -> KafkaIndexError | None:
    """Read the batch headers of a ``.log``; return the error if the disk or store fails."""
    if not observers:
        return None
    try:
        source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
        for batches in source.chunks():
            for observer in observers:
                observer.observe(batches)
    except KafkaIndexError as error:
        # The finding of the ``.log`` already has the corruption that the first scan found.
        return error if is_retriable(error) else None
    return None


def _is_intact(segment: SegmentFile, *, verify_crc: bool) -> bool:
    """Return whether all batches of a ``.log`` are valid, without checking their offsets."""
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc, recovers=False)
    for _ in source.chunks():
        pass
    return source.stop is None


def _take_built_indexes(
    staged: StagedSegment, settings: VerifySettings, attempt_id: str
) -> tuple[bytes | None, bytes | None]:
    """Return the contents of the built offset and time index, and delete the files.

    Both are None if the build failed, or ended at a CRC mismatch.
    """
    if staged.report.status == FAILED:
        return None, None
    build_settings, paths = settings.build_settings(), staged.paths
    contents = []
    for path in (paths.offset_index, paths.time_index):
        scratch = build_settings.work_path(path, attempt_id)
        with open(scratch, "rb") as file:
            contents.append(file.read())
        remove_scratch(scratch)
    # After a CRC mismatch, the built indexes do not cover the complete ``.log``.
    return (None, None) if staged.report.reason_code == BAD_CRC else (contents[0], contents[1])


def has_data(
    checks: Sequence[SegmentCheck],
    up_to_base_offset: int,
    producer_id: int,
    first_offset: int,
    last_offset: int,
) -> bool:
    for check in checks:
        if (
            check.segment.base_offset > up_to_base_offset
            or check.header_facts.end_offset <= first_offset
        ):
            continue
        for batches in LogFileSource.of_segment(check.segment, verify_crc=False).chunks():
            is_data = (batches.producer_id == producer_id) & (batches.last_offset >= first_offset)
            is_data &= (batches.base_offset <= last_offset) & ~batches.is_control
            if is_data.any():
                return True
    return False

"""Verification of one partition: merge its segments like a build, and classify its files.

On threads, the segments of a partition are scanned concurrently; a Spark task scans them in
sequence. A startup is simulated with the rules of ``LogLoader`` if a file is harmful, or if an
entry with the name of a segment file is not a regular file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from kafka_index.commands.verify.result import (
    Classification,
    FileClass,
    FileKind,
    Finding,
    LostRange,
    PartitionFindings,
    VerifiedPartition,
    new_finding,
    to_file_kind,
)
from kafka_index.commands.verify.segment import (
    SegmentCheck,
    SegmentStartup,
    check_segment,
    classify_transaction_index,
    has_data,
    index_path,
    read_stored_file,
)
from kafka_index.commands.verify.settings import VerifySettings
from kafka_index.commands.verify.state_files import (
    checkpoint_findings,
    classify_partition_metadata,
    classify_snapshots,
    epoch_findings,
    find_leftover_files,
)
from kafka_index.core.errors import KafkaIndexError, StartRefusedError, is_retriable, plural
from kafka_index.core.format.names import (
    TXN_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_segment_file,
)
from kafka_index.core.format.records import ABORTED_TXN
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.fs.uris import is_segment_path
from kafka_index.core.index.transaction_index import AbortedTxns, TxnFault, next_starts
from kafka_index.core.job.engine import COST_BYTES, JobSizes, SplittableTask, TaskSplitter, Workers
from kafka_index.core.job.result import MissingOffsets as ReportedGaps
from kafka_index.core.log.append.log_segment_writer import floor_segment
from kafka_index.core.log.missing_offsets import (
    BY_CHECKPOINTS,
    Cause,
    CheckpointOffsets,
    MissingOffsets,
    MissingRange,
    ScannedLog,
    missing_offsets,
)
from kafka_index.core.log.recovery.settings import ERROR, FAILED, SegmentReport
from kafka_index.core.log.recovery.state_merge import (
    SEGMENTS_OVERLAP,
    STATE_UNKNOWN,
    MergedPartition,
    merge_partition,
)
from kafka_index.core.log.retention import CLOCK_SKEW_MS
from kafka_index.core.log.scan.log_offsets import Overlap
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.data_directory import DataDirectories, DataDirectory
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import PartitionSegments, SegmentTable, find_lost_logs
from kafka_index.core.records.batch_table import (
    BAD_CRC,
    OVERLAP,
    PREALLOCATED_TAIL,
    TORN_BATCH,
    TORN_HEADER,
    ScanStop,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.startup.partition_loading import count_lost_records, load_partition
from kafka_index.core.startup.prediction import LoadedLog, LostRecords, NotPredictedError

_TORN_CODES = (TORN_HEADER, TORN_BATCH)
_TRUNCATED = "At startup, a broker truncates the log, and loses no complete batch."
_UNREADABLE_APPENDS = (
    "With a clean shutdown file, a broker assumes that the log ends before the incomplete batch, "
    "or at the segment's base offset. Records that the broker appends later are unreadable."
)
_EXITS = "With a clean shutdown file, a broker exits: the end of the log cannot be read."
_CONSUMERS_STUCK = (
    "Consumers cannot read past the batch. Without a clean shutdown file, a broker that recovers "
    "the segment truncates the log at this batch, and deletes all later segments."
)
_KEPT_UNREADABLE = "A broker serves the batch, but consumers and followers cannot read it."
_CORRUPT_INNER_MESSAGE = "Consumers cannot read past the inner message."
_RECOVERY_FAILS = (
    "A broker that recovers the segment does not start, or truncates the segment to zero bytes."
)
_SPLIT_IN_RECOVERY = (
    "The offsets of the segment are 2^31 or more apart. Recovery splits the segment."
)
_OFFSETS_SKIPPED = "Consumers skip the missing offsets silently, and brokers do not report them."
#: Maximum number of missing offset ranges that the finding of a ``.log`` lists.
_MAX_RANGES = 20
_OFFSETS_OVERLAP = "Two records have the same offset: a fetch may return either record."


@dataclass
class LogChecker:
    """Classifies the ``.log`` files of a partition, in order of base offset.

    Attributes
    ----------
    missing, lost
        Missing offsets of the partition, and lost ranges of the segments checked so far.
    is_state_known
        Whether the producer state is known at the end of the checked segments.
    end_offset
        End offset of the checked segments, from batch headers. None before the first segment, or if
        the last checked ``.log`` could not be read.
    has_unread_log
        A ``.log`` could not be read because of permission, disk, memory or a concurrent change.
    """

    missing: MissingOffsets
    lost: list[LostRange] = field(default_factory=list)
    is_state_known: bool = True
    end_offset: int | None = None
    has_unread_log: bool = False
    _checked_count: int = 0

    def classify(self, check: SegmentCheck, row: SegmentReport) -> Finding:
        """Classify the next ``.log``; `row` is the report row of its segment after the merge."""
        segment, startup = check.segment, check.startup
        base_offset = segment.base_offset
        finding = new_finding(
            segment, segment.log_path, FileKind.LOG, FileClass.INTACT, base_offset=base_offset
        )
        log_number, self._checked_count = self._checked_count, self._checked_count + 1
        missing_ranges = [
            missing_range
            for missing_range in self.missing.ranges
            if missing_range.log == log_number
        ]
        gaps = [
            missing_range
            for missing_range in missing_ranges
            if missing_range.cause is not Cause.COMPACTED
        ]
        self.lost += [
            LostRange(
                missing_range.first_offset,
                missing_range.end_offset,
                base_offset,
                missing_range.position_bytes,
                0,
                "gap",
            )
            for missing_range in gaps
        ]
        classification = self._classify_defect(check, row)
        # Missing offsets that only a checkpoint shows are reported in the finding of the
        # checkpoint.
        gaps = [missing_range for missing_range in gaps if missing_range.why != BY_CHECKPOINTS]
        if gaps:
            missing_text = _format_missing(gaps, self.missing.omitted_counts.get(log_number, 0))
            if classification is None:
                classification = _classify_gap(gaps[0], missing_text)
            else:
                classification = replace(
                    classification, found=f"{classification.found}; {missing_text}"
                )
        if classification is None:
            classification = _classify_intact(check, len(missing_ranges), is_last=startup.is_last)
        is_log_read = _is_log_read(row)
        finding = (
            finding.classified(classification)
            if is_log_read
            else finding.unread(
                row.reason, retriable=row.retriable, position_bytes=row.position_bytes
            )
        )
        self.has_unread_log |= finding.retriable
        if finding.harmful or (row.status == FAILED and row.reason_code != STATE_UNKNOWN):
            self.is_state_known = False
        self.end_offset = (
            max(check.header_facts.end_offset, self.end_offset or 0) if is_log_read else None
        )
        return finding

    def _classify_defect(self, check: SegmentCheck, row: SegmentReport) -> Classification | None:
        """Classify the defect of a ``.log``; None if all batches are valid."""
        if _is_damage(row) and not check.is_split:
            return self._classify_damage(check, row)
        if check.header_facts.offsets.overlap is not None:
            return _classify_overlap(check.header_facts.offsets.overlap)
        if check.facts.unknown_magic is not None:
            return _classify_corrupt(check.facts.unknown_magic, _KEPT_UNREADABLE)
        if check.bad_message is not None:
            return _classify_corrupt(check.bad_message, _CORRUPT_INNER_MESSAGE)
        return None

    def _classify_damage(self, check: SegmentCheck, row: SegmentReport) -> Classification:
        """Classify the corruption at which the scan of a ``.log`` ended."""
        startup, code = check.startup, row.reason_code
        if code == SEGMENTS_OVERLAP:
            return Classification(
                FileClass.OVERLAP, harmful=True, found=row.reason, effect=_OFFSETS_OVERLAP
            )
        position_bytes = row.position_bytes
        is_tail = startup.is_last and check.is_tail
        if is_tail and not startup.is_clean:
            return Classification(
                FileClass.PADDED if code == PREALLOCATED_TAIL else FileClass.TORN,
                position_bytes=position_bytes,
                found=row.reason,
                effect=_TRUNCATED,
            )
        self._add_lost_rest(check, row)
        if code == BAD_CRC:
            file_class, effect = FileClass.BAD_CRC, _CONSUMERS_STUCK
        elif code == PREALLOCATED_TAIL:
            file_class, effect = FileClass.PADDED, _EXITS
        elif code in _TORN_CODES:
            file_class = FileClass.TORN
            effect = (
                _OFFSETS_SKIPPED
                if not startup.is_last
                else _UNREADABLE_APPENDS
                if startup.is_clean
                else _CONSUMERS_STUCK
            )
        else:
            file_class = FileClass.CORRUPT
            effect = _RECOVERY_FAILS if row.status == FAILED else _CONSUMERS_STUCK
        return Classification(
            file_class, harmful=True, position_bytes=position_bytes, found=row.reason, effect=effect
        )

    def _add_lost_rest(self, check: SegmentCheck, row: SegmentReport) -> None:
        """Add the lost range after the valid batches of a corrupt ``.log``."""
        facts, end_offset = check.facts, check.header_facts.end_offset
        lost_end_offset = end_offset if end_offset > facts.end_offset else None
        base_offset, position_bytes = check.segment.base_offset, facts.end_bytes
        lost_bytes, reason = row.log_size_bytes - position_bytes, row.reason_code or "damaged"
        self.lost.append(
            LostRange(
                facts.end_offset, lost_end_offset, base_offset, position_bytes, lost_bytes, reason
            )
        )


def _is_log_read(row: SegmentReport) -> bool:
    return not (row.reason_code == ERROR and row.status == FAILED)


def _is_damage(row: SegmentReport) -> bool:
    # `header_facts` detects overlaps, also in the batches after a CRC mismatch.
    if row.reason_code in (STATE_UNKNOWN, OVERLAP) or not _is_log_read(row):
        return False
    return row.status == FAILED or row.is_damage or row.is_preallocated_tail


def _classify_gap(first_gap: MissingRange, missing_text: str) -> Classification:
    return Classification(
        FileClass.GAP,
        harmful=True,
        position_bytes=first_gap.position_bytes,
        expected=f"offset {first_gap.first_offset}",
        found=missing_text,
        effect=f"{_OFFSETS_SKIPPED} {first_gap.why[0].upper()}{first_gap.why[1:]}.",
    )


def _format_missing(gaps: Sequence[MissingRange], unnamed: int) -> str:
    more_count = max(len(gaps) - _MAX_RANGES, 0) + unnamed
    ranges = ", ".join(f"{gap.first_offset} to {gap.last_offset}" for gap in gaps[:_MAX_RANGES])
    missing_text = f"offsets {ranges} are missing"
    return f"{missing_text}, and {plural(more_count, 'more range')}" if more_count else missing_text


def _classify_corrupt(stop: ScanStop, effect: str) -> Classification:
    return Classification(
        FileClass.CORRUPT,
        harmful=True,
        position_bytes=stop.position_bytes,
        found=stop.text,
        effect=effect,
    )


def _classify_overlap(overlap: Overlap) -> Classification:
    return Classification(
        FileClass.OVERLAP,
        harmful=True,
        position_bytes=overlap.position_bytes,
        expected=f"offset {overlap.expected_offset} or more",
        found=f"offset {overlap.base_offset}",
        effect=_OFFSETS_OVERLAP,
    )


def _classify_intact(check: SegmentCheck, gaps: int, *, is_last: bool) -> Classification:
    if check.segment.log_size_bytes == 0:
        effect = None if is_last else "No record of the log can be read."
        return Classification(FileClass.EMPTY, effect=effect)
    missing_count = check.facts.offsets.cleaned_count + gaps
    missing_text = (
        f"the offsets have {plural(missing_count, 'gap')}, such as compaction leaves"
        if missing_count
        else None
    )
    return Classification(
        FileClass.INTACT, found=missing_text, effect=_SPLIT_IN_RECOVERY if check.is_split else None
    )


_LOGS_ONLY = (
    "A broker reads all logs, and rebuilds all other files except for partition.metadata, which is "
    "required."
)
_INCOMPLETE = "A log could not be read, so the partition was not verified completely."
_NO_OFFSET_INDEX = (
    "At startup, a broker recovers the segment, and truncates the log at any corrupt batch."
)
_NO_TIME_INDEX = (
    "A broker creates an empty time index: retention uses the modification time of the log, and "
    "lookups by time return wrong results."
)


class PartitionVerification:
    """Verifies a partition: call `check` for each of its segments, then `finish`.

    `check` may be called in any order and from any thread. `root` is the data directory of the
    partition.
    """

    def __init__(
        self, segments: Sequence[SegmentFile], settings: VerifySettings, root: DataDirectory
    ) -> None:
        self._segments = segments
        self._settings = settings
        self._root = root
        last_segment = segments[-1]
        self._partition = TopicPartition(last_segment.topic, last_segment.partition)
        self._directory = last_segment.partition_directory
        self._index_directory = settings.index_directory(last_segment)
        recovery_point = root.recovery_point(self._partition)
        self._first_recovered = segments[floor_segment(segments, recovery_point)].base_offset
        self._checks: Sequence[SegmentCheck] = ()

    def _predict_treatment(self, segment: SegmentFile) -> SegmentStartup:
        root = self._root
        is_unflushed = root.has_root_files and segment.base_offset >= self._first_recovered
        # Startup never recovers remote segments.
        is_clean = is_segment_path(self._directory) or root.is_clean
        is_recovered = not is_clean and (segment.is_last or is_unflushed)
        return SegmentStartup(segment.is_last, is_recovered, is_clean)

    def check(self, segment: SegmentFile, attempt_id: str) -> SegmentCheck:
        cleaned_to = self._root.cleaned_to(self._partition) or 0
        return check_segment(
            segment,
            self._predict_treatment(segment),
            self._settings,
            cleaned_to,
            attempt_id=attempt_id,
        )

    def finish(self, checks: Iterable[SegmentCheck], attempt_id: str) -> PartitionFindings:
        """Classify all files of the partition after all of its segments were checked."""
        self._checks = sorted(checks, key=lambda check: check.segment.base_offset)
        merged = merge_partition(
            [check.staged for check in self._checks],
            self._settings.build_settings(),
            attempt_id=attempt_id,
        )
        partition, directory, segments = self._partition, self._directory, self._segments
        merged_files = _take_merged_files(merged)
        rows = [segment.report for segment in merged.segments]
        rows += [check.row for check in self._checks[len(rows) :]]
        entries = self._scan_entries()
        lost_ends: Mapping[int, int] = {}
        read_error: KafkaIndexError | None = None
        try:
            lost_ends = find_lost_logs(entries, segments)
        except KafkaIndexError as error:
            read_error = error
        is_tiered = partition in self._settings.tiered
        missing_offsets = self._find_missing_offsets(rows, {} if is_tiered else lost_ends)
        checker = LogChecker(missing_offsets)
        findings = list(self._segment_findings(checker, rows, merged_files, merged))
        findings += self._state_findings(
            checker, None if merged.snapshots is None else merged_files
        )
        lost_bases = lost_ends if is_tiered else missing_offsets.lost_bases
        for finding in find_leftover_files(partition, segments, entries, lost_bases):
            is_unread = read_error is not None and read_error.path == finding.path
            findings.append(finding.unreadable(read_error) if read_error and is_unread else finding)
        if not is_segment_path(directory):
            topic = self._settings.topics.get(partition.topic)
            findings += classify_partition_metadata(
                partition, directory, topic, is_required=self._root.has_root_files
            )
        end_offset = checker.end_offset
        if end_offset is not None:
            findings += checkpoint_findings(self._root, partition, end_offset)
        findings = self._merge_missing_rows(self._add_refusal(findings, entries))
        partition_row = self._classify_partition(findings, end_offset, merged.error)
        if checker.has_unread_log or read_error:
            partition_row = replace(
                partition_row, file_class=FileClass.UNREADABLE, effect=_INCOMPLETE, retriable=True
            )
        return PartitionFindings(
            self._to_verified_partition(checker, findings), (*findings, partition_row)
        )

    @property
    def _has_indexes(self) -> bool:
        return any(check.has_offset_index or check.has_time_index for check in self._checks)

    @property
    def _start_offset(self) -> int:
        return max(self._log_start_offset(), self._checks[0].segment.base_offset)

    def _segment_findings(
        self,
        checker: LogChecker,
        rows: Sequence[SegmentReport],
        merged_files: Mapping[str, bytes],
        merged: MergedPartition,
    ) -> Iterator[Finding]:
        """Yield the findings of ``.log`` files and their indexes."""
        has_indexes = self._has_indexes
        aborted_txns = [_read_aborted_txns(merged_files, check) for check in self._checks]
        next_txn_starts = next_starts(aborted_txns, self._open_transaction_offset(merged))
        for check, row, expected, next_start in zip(
            self._checks, rows, aborted_txns, next_txn_starts, strict=True
        ):
            yield checker.classify(check, row)
            yield from check.findings
            is_state_known = checker.is_state_known and merged.error is None
            if has_indexes:
                yield from self._find_missing_indexes(check)
            yield from self._check_transaction_index(
                check, expected, next_start, has_indexes=has_indexes, is_state_known=is_state_known
            )

    def _state_findings(
        self, checker: LogChecker, merged_files: Mapping[str, bytes] | None
    ) -> Iterator[Finding]:
        """Yield the findings of producer snapshots and the leader epoch checkpoint.

        `checker` must have classified all segments.
        """
        partition, segments, end_offset = self._partition, self._segments, checker.end_offset
        if not is_segment_path(segments[-1].log_path):
            recovered_offsets = (
                segment.base_offset
                for segment in segments
                if self._predict_treatment(segment).is_recovered
            )
            config = self._settings.config
            yield from classify_snapshots(
                partition,
                self._index_directory,
                merged_files if checker.is_state_known else None,
                ProducerExpiration(config.producer_id_expiration_ms, self._settings.now_ms),
                (self._start_offset, end_offset),
                [segment.base_offset for segment in segments],
                is_clean=self._root.is_clean,
                is_compacted=checker.missing.cleaning.is_compacted is True,
                recovered_from=next(recovered_offsets, None),
            )
        if not is_segment_path(self._index_directory):
            yield from epoch_findings(
                partition,
                self._index_directory,
                [epochs for check in self._checks for epochs in check.header_facts.epochs.ranges],
                (self._log_start_offset(), end_offset),
                has_indexes=self._has_indexes,
            )

    def _to_verified_partition(
        self, checker: LogChecker, findings: Sequence[Finding]
    ) -> VerifiedPartition:
        partition, max_timestamp_ms = self._partition, self._settings.now_ms + CLOCK_SKEW_MS
        future_checks = [
            check
            for check in self._checks
            if check.header_facts.max_timestamp_ms > max_timestamp_ms
        ]
        gaps = tuple(
            gap.as_gap(partition, self._segments[gap.log].log_path)
            for gap in checker.missing.unexplained
        )
        return VerifiedPartition(
            partition.topic,
            partition.partition,
            self._directory,
            any(finding.harmful for finding in findings),
            tuple(checker.lost),
            ReportedGaps(gaps, sum(checker.missing.omitted_counts.values())),
            self._start_offset,
            checker.end_offset,
            sum(segment.log_size_bytes for segment in self._segments),
            len(future_checks),
            sum(check.segment.log_size_bytes for check in future_checks),
        )

    def _open_transaction_offset(self, merged: MergedPartition) -> int:
        """Return the first offset of open transactions, or the log end offset if none is open."""
        log_end_offset = self._checks[-1].header_facts.end_offset
        state = None if merged.start is None else merged.start.state
        first_unstable_offset = None if state is None else state.first_unstable_offset
        return (
            log_end_offset
            if first_unstable_offset is None
            else min(first_unstable_offset, log_end_offset)
        )

    def _scan_entries(self) -> Sequence[Entry]:
        """Return the entries of the partition directory; none if it has only remote segments."""
        directory = self._directory
        is_listed = any(segment.partition_directory == directory for segment in self._segments)
        if is_segment_path(directory) or (not is_listed and store_of(directory).needs_requests):
            return []
        return scan_directory(directory)

    def _log_start_offset(self) -> int:
        partition = self._partition
        tiered = self._settings.tiered.get(partition)
        return tiered.log_start_offset if tiered else self._root.log_start_offset(partition) or 0

    def _find_missing_offsets(
        self, rows: Sequence[SegmentReport], lost_ends: Mapping[int, int]
    ) -> MissingOffsets:
        """Find missing offsets, using checkpoints and the batches before any corruption."""
        partition, root = self._partition, self._root
        topic = self._settings.topics.get(partition.topic)
        policy = None if topic is None else topic.cleanup_policy
        known_offsets = CheckpointOffsets.read(
            root, partition, policy, is_topic_known=topic is not None
        )
        if partition in self._settings.tiered:
            known_offsets = replace(known_offsets, start_offset=None)
        return missing_offsets(
            [
                ScannedLog(
                    check.segment,
                    check.facts.offsets,
                    _is_log_read(row),
                    None if check.header_facts is check.facts else check.header_facts.end_offset,
                )
                for check, row in zip(self._checks, rows, strict=True)
            ],
            known_offsets,
            shared_budget(self._settings.config.max_decompressed_bytes),
            lost_ends,
        )

    def _find_missing_indexes(self, check: SegmentCheck) -> Iterator[Finding]:
        segment = check.segment
        if check.row.status == FAILED:
            return
        missing_files = []
        if not check.has_offset_index:
            missing_files.append(
                (FileKind.INDEX, Classification(FileClass.MISSING, effect=_NO_OFFSET_INDEX))
            )
        if not check.has_time_index:
            harmful = check.has_offset_index and check.facts.max_timestamp_ms >= 0
            classification = Classification(FileClass.MISSING, harmful, effect=_NO_TIME_INDEX)
            missing_files.append(
                (FileKind.TIME_INDEX, check.startup.unless_rebuilt(classification))
            )
        for kind, classification in missing_files:
            path = index_path(segment, self._settings, kind)
            finding = new_finding(
                segment, path, kind, FileClass.MISSING, base_offset=segment.base_offset
            )
            yield finding.classified(classification)

    def _check_transaction_index(
        self,
        check: SegmentCheck,
        expected: AbortedTxns,
        next_start: int,
        *,
        has_indexes: bool,
        is_state_known: bool,
    ) -> Iterator[Finding]:
        segment, expected_bytes = check.segment, expected.tobytes()
        finding, stored_bytes = read_stored_file(segment, self._settings, FileKind.TXN_INDEX)
        if finding.file_class is FileClass.UNREADABLE:
            yield finding
        elif stored_bytes is not None:
            classification = classify_transaction_index(
                stored_bytes,
                None if check.row.status == FAILED else expected_bytes,
                segment.base_offset,
                check.startup,
                partial(has_data, self._checks, segment.base_offset),
                next_start,
                is_state_known=is_state_known,
            )
            yield finding.classified(classification)
        elif expected_bytes and is_state_known and has_indexes:
            classification = Classification(
                FileClass.MISSING, check.has_offset_index, effect=TxnFault.MISSING.effect
            )
            yield finding.classified(check.startup.unless_rebuilt(classification))

    def _add_refusal(self, findings: list[Finding], entries: Sequence[Entry]) -> list[Finding]:
        """Add a finding if startup fails or loses records because of an entry that is not a file.

        Only entries with the name of a segment file matter.
        """
        directory = self._directory
        is_suspect = self._is_loaded_by_broker and any(
            entry.file_error() is not None and parse_segment_file(entry.name) is not None
            for entry in entries
        )
        if not is_suspect:
            return findings
        refusal = self._find_refusal()
        is_harmful = any(finding.harmful for finding in findings)
        if refusal is None or (refusal.path == directory and is_harmful):
            return findings
        same_path = next((finding for finding in findings if finding.path == refusal.path), None)
        if same_path is None:
            parsed_name = parse_segment_file(os.path.basename(refusal.path))
            if parsed_name is not None:
                kind = to_file_kind(parsed_name.kind)
                refusal = replace(refusal, segment_base_offset=parsed_name.base_offset, kind=kind)
            return [*findings, refusal]
        if same_path.harmful:
            return findings
        replacement = replace(
            refusal, segment_base_offset=same_path.segment_base_offset, kind=same_path.kind
        )
        return [replacement if finding is same_path else finding for finding in findings]

    def _merge_missing_rows(self, findings: list[Finding]) -> list[Finding]:
        """If the partition has only logs, replace the findings of missing files by one finding."""
        kinds = (FileKind.LOG, FileKind.ROOT)
        if any(
            finding.file_class is not FileClass.MISSING
            for finding in findings
            if finding.kind not in kinds
        ):
            return findings
        row = new_finding(self._partition, self._directory, FileKind.INDEX, FileClass.MISSING)
        row = replace(row, found="logs only", effect=_LOGS_ONLY)
        return [*(finding for finding in findings if finding.kind in kinds), row]

    def _classify_partition(
        self,
        findings: Sequence[Finding],
        end_offset: int | None,
        merge_error: KafkaIndexError | None,
    ) -> Finding:
        harmful = [finding for finding in findings if finding.harmful]
        partition_finding = new_finding(
            self._partition,
            self._directory,
            FileKind.PARTITION,
            harmful[0].file_class if harmful else FileClass.INTACT,
            harmful=bool(harmful),
        )
        end_offset_text = "an unknown end" if end_offset is None else end_offset
        partition_finding = replace(
            partition_finding, found=f"offsets {self._start_offset} to {end_offset_text}"
        )
        if merge_error is not None and is_retriable(merge_error):
            return partition_finding.unreadable(merge_error)
        stray_finding = next((finding for finding in harmful if finding.is_stray), None)
        if stray_finding is not None:
            return replace(partition_finding, effect=stray_finding.effect)
        is_started = (
            harmful and self._is_loaded_by_broker and store_of(self._directory).hosts_brokers
        )
        return (
            partition_finding
            if end_offset is None or not is_started
            else self._predict_effect(partition_finding, end_offset)
        )

    def _predict_effect(self, finding: Finding, end_offset: int) -> Finding:
        condition = "With the existing clean shutdown file"
        if not self._root.is_clean:
            condition = "Without a clean shutdown file"
        try:
            log, lost_records = self._load_partition()
        except KafkaIndexError as error:
            if is_retriable(error):
                effect = f"The effect of a startup could not be predicted: {error}."
                return replace(finding, effect=effect, retriable=True)
            return replace(
                finding, effect=f"{condition}, a broker does not start: {error.message}."
            )
        offsets = f"{log.log_start_offset} to {log.log_end_offset}"
        loss = f", and {_format_loss(lost_records)}" if lost_records.records else ""
        effect = f"{condition}, a broker serves offsets {offsets}{loss}."
        return replace(finding, effect=effect, expected=f"offsets up to {end_offset}")

    def _find_refusal(self) -> Finding | None:
        """Return the finding of the file because of which startup fails, or loses records.

        The path of the finding is the partition directory if no single file is the cause. Returns
        None if startup succeeds without loss, or if a read fails, which other findings report.
        """
        finding = new_finding(
            self._partition, self._directory, FileKind.ROOT, FileClass.CORRUPT, harmful=True
        )
        if not store_of(self._directory).hosts_brokers:
            return None
        try:
            _, lost_records = self._load_partition()
        except NotPredictedError as error:
            return finding.refused(error, "It is unknown whether a broker starts with this file.")
        except StartRefusedError as error:
            return finding.refused(error)
        except KafkaIndexError:
            return None
        if not lost_records.records:
            return None
        return replace(
            finding,
            found="an entry with the name of a segment file is not a regular file",
            effect=f"A broker {_format_loss(lost_records)}.",
        )

    def _load_partition(self) -> tuple[LoadedLog, LostRecords]:
        """Load the partition like a broker; return its log and the lost records."""
        loading = self._settings.loading(self._root, self._partition)
        with load_partition(self._partition, self._directory, loading) as loaded:
            # A broker reads partition.metadata after loading the log.
            read_topic_id(self._directory)
            lost_records, _ = count_lost_records(loaded, loading.log_start_offset)
            return loaded.log, lost_records

    @property
    def _is_loaded_by_broker(self) -> bool:
        """Whether a broker could load the partition directory with the verified files."""
        return self._settings.indexes is None and not self._settings.tiered


def _format_loss(lost: LostRecords) -> str:
    offsets = f"offset {lost.first_offset} to {lost.last_offset}"
    return f"loses or no longer serves {plural(lost.records, 'record')} from {offsets}"


def _read_aborted_txns(merged_files: Mapping[str, bytes], check: SegmentCheck) -> AbortedTxns:
    """Return the aborted transactions of a segment, as in the merged ``.txnindex``."""
    name = index_name_for(os.path.basename(check.segment.log_path), TXN_INDEX_SUFFIX)
    return np.frombuffer(merged_files.get(name, b""), ABORTED_TXN)


def _take_merged_files(merged: MergedPartition) -> dict[str, bytes]:
    """Return the contents of the files that the merge wrote, by name, and delete the files."""
    files = {}
    for staged in chain(merged.own_files, *(segment.files for segment in merged.segments)):
        with open(staged.scratch_path, "rb") as file:
            files[os.path.basename(staged.final_path)] = file.read()
        os.unlink(staged.scratch_path)
    return files


def verify_partitions(
    workers: Workers, segments: SegmentTable, settings: VerifySettings
) -> Generator[PartitionFindings, None, None]:
    """Verify partitions, starting with the largest; yield their findings."""
    partitions = sorted(segments.partitions, key=lambda partition: -partition.size_bytes)
    try:
        yield from workers.run(
            partitions,
            TaskSplitter(
                partial(_to_task, settings=settings, roots=DataDirectories(tolerated=True))
            ),
            sizes=[partition.size_bytes + len(partition) * COST_BYTES for partition in partitions],
            description="verify {:,} partitions",
            jobs=JobSizes.EQUAL,
        )
    finally:
        shutil.rmtree(settings.scratch_root(), ignore_errors=True)


def _to_task(
    segments: PartitionSegments, *, settings: VerifySettings, roots: DataDirectories
) -> SplittableTask[PartitionFindings]:
    files = segments.files()
    root = roots.for_partition(files[-1].partition_directory)
    verification = PartitionVerification(files, settings, root)
    return SplittableTask(
        [partial(verification.check, segment) for segment in files], verification.finish
    )

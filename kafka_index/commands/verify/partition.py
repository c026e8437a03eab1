"""Verification of one partition: merge its segments like a build, and classify its files.

On threads, the segments of a partition are scanned concurrently; a Spark task scans them in
sequence. If a file is harmful, or if an entry with the name of a file is not a file, a startup is
simulated with the rules of ``LogLoader``.
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
    finding_of,
    kind_of,
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
    other_files,
)
from kafka_index.core.errors import KafkaIndexError, StartRefusedError, is_retriable
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
from kafka_index.core.job.engine import COST_BYTES, JobSizes, SplittableTask, Workers
from kafka_index.core.job.result import MissingOffsets as FoundGaps
from kafka_index.core.log.append.log_segment_writer import floor_segment
from kafka_index.core.log.missing_offsets import (
    BY_CHECKPOINTS,
    Cause,
    KnownOffsets,
    MissingOffsets,
    MissingRange,
    SeenLog,
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
from kafka_index.core.log.scan.log_offsets import Hole
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
from kafka_index.core.startup.partition_loading import load_partition, lost_records
from kafka_index.core.startup.prediction import LoadedLog, LostRecords, NotPredictedError

_TORN_CODES = (TORN_HEADER, TORN_BATCH)
_CUT_AT_START = "A broker that starts here truncates the log; no complete batch is lost."
_HIDDEN = (
    "With a clean shutdown file, a broker assumes that the log ends before the incomplete batch, "
    "or at the segment's base offset. Records that it appends later are hidden."
)
_EXITS = "With a clean shutdown file, a broker exits: the end of the log cannot be read."
_STUCK = (
    "Consumers cannot read past the batch. Without a clean shutdown file, a broker that recovers "
    "the segment truncates it there and deletes all later segments."
)
_UNREADABLE = "A broker keeps and serves the batch; consumers and followers are stuck at it."
_BAD_INSIDE = "Consumers cannot read past the inner message."
_REFUSED = "A broker that recovers the segment does not start, or truncates the complete segment."
_SPLIT = (
    "The offsets of the segment are 2^31 or more apart. A broker that recovers the segment "
    "splits it."
)
_SKIPPED = "Consumers skip the missing offsets silently, and brokers do not report them."
#: Maximum number of missing ranges listed in the row of a log.
_SHOWN = 20
_OVERLAPS = "A fetch returns one of the records with the same offset, depending on its position."


@dataclass
class LogChecker:
    """Classifies the logs of a partition, segment by segment.

    Attributes
    ----------
    missing, lost
        Missing offsets of the partition, and lost ranges so far.
    is_state_known
        Whether the producer state is known at the end of the checked segments.
    end_offset
        End of the segments so far, from headers; None before the first one and after an unread log.
    has_unread_log
        A log could not be read because of permission, disk, memory or a concurrent change.
    """

    missing: MissingOffsets
    lost: list[LostRange] = field(default_factory=list)
    is_state_known: bool = True
    end_offset: int | None = None
    has_unread_log: bool = False
    _checked: int = 0

    def classify(self, check: SegmentCheck, row: SegmentReport) -> Finding:
        """Return the row of the next segment's log, from its scan and its row after the merge."""
        segment, startup = check.segment, check.startup
        base_offset = segment.base_offset
        finding = finding_of(
            segment, segment.log_path, FileKind.LOG, FileClass.INTACT, base_offset=base_offset
        )
        number, self._checked = self._checked, self._checked + 1
        missing = [each for each in self.missing.ranges if each.log == number]
        gaps = [each for each in missing if each.cause is not Cause.COMPACTED]
        self.lost += [
            LostRange(
                each.first_offset, each.end_offset, base_offset, each.position_bytes, 0, "gap"
            )
            for each in gaps
        ]
        classification = self._classify_defect(check, row)
        # Offsets that only a checkpoint contains are reported in the row of the checkpoint.
        gaps = [each for each in gaps if each.why != BY_CHECKPOINTS]
        if gaps:
            found = _format_missing(gaps, self.missing.unnamed.get(number, 0))
            if classification is None:
                classification = _gap(gaps[0], found)
            else:
                classification = replace(classification, found=f"{classification.found}; {found}")
        if classification is None:
            classification = _intact(check, len(missing), is_last=startup.is_last)
        was_read = is_read(row)
        finding = (
            finding.classified(classification)
            if was_read
            else finding.unread(
                row.reason, retriable=row.retriable, position_bytes=row.position_bytes
            )
        )
        self.has_unread_log |= finding.retriable
        if finding.harmful or (row.status == FAILED and row.reason_code != STATE_UNKNOWN):
            self.is_state_known = False
        self.end_offset = (
            max(check.header_facts.end_offset, self.end_offset or 0) if was_read else None
        )
        return finding

    def _classify_defect(self, check: SegmentCheck, row: SegmentReport) -> Classification | None:
        """Classify the defect of a log; None if all batches are valid."""
        if _is_damage(row) and not check.is_split:
            return self._classify_damage(check, row)
        if check.header_facts.offsets.overlap is not None:
            return _overlap(check.header_facts.offsets.overlap)
        if check.facts.unknown_magic is not None:
            return _corrupt(check.facts.unknown_magic, _UNREADABLE)
        if check.bad_message is not None:
            return _corrupt(check.bad_message, _BAD_INSIDE)
        return None

    def _classify_damage(self, check: SegmentCheck, row: SegmentReport) -> Classification:
        """Classify the corruption at which the scan of a log ended."""
        startup, code = check.startup, row.reason_code
        if code == SEGMENTS_OVERLAP:
            return Classification(
                FileClass.OVERLAP, harmful=True, found=row.reason, effect=_OVERLAPS
            )
        position = row.position_bytes
        is_tail = startup.is_last and check.is_tail
        if is_tail and not startup.is_clean:
            return Classification(
                FileClass.PADDED if code == PREALLOCATED_TAIL else FileClass.TORN,
                position_bytes=position,
                found=row.reason,
                effect=_CUT_AT_START,
            )
        self._add_lost_rest(check, row)
        if code == BAD_CRC:
            file_class, effect = FileClass.BAD_CRC, _STUCK
        elif code == PREALLOCATED_TAIL:
            file_class, effect = FileClass.PADDED, _EXITS
        elif code in _TORN_CODES:
            file_class = FileClass.TORN
            effect = _SKIPPED if not startup.is_last else _HIDDEN if startup.is_clean else _STUCK
        else:
            file_class = FileClass.CORRUPT
            effect = _REFUSED if row.status == FAILED else _STUCK
        return Classification(
            file_class, harmful=True, position_bytes=position, found=row.reason, effect=effect
        )

    def _add_lost_rest(self, check: SegmentCheck, row: SegmentReport) -> None:
        """Add the lost range after the valid batches of a corrupt log."""
        facts, end_offset = check.facts, check.header_facts.end_offset
        end = end_offset if end_offset > facts.end_offset else None
        base_offset, position = check.segment.base_offset, facts.end_bytes
        size, reason = row.log_size_bytes - position, row.reason_code or "damaged"
        self.lost.append(LostRange(facts.end_offset, end, base_offset, position, size, reason))


def is_read(row: SegmentReport) -> bool:
    return not (row.reason_code == ERROR and row.status == FAILED)


def _is_damage(row: SegmentReport) -> bool:
    # Overlaps are found in the headers of all batches, also after a CRC mismatch.
    if row.reason_code in (STATE_UNKNOWN, OVERLAP) or not is_read(row):
        return False
    return row.status == FAILED or row.is_damage or row.is_preallocated_tail


def _gap(first: MissingRange, found: str) -> Classification:
    return Classification(
        FileClass.GAP,
        harmful=True,
        position_bytes=first.position_bytes,
        expected=f"offset {first.first_offset}",
        found=found,
        effect=f"{_SKIPPED} {first.why[0].upper()}{first.why[1:]}.",
    )


def _format_missing(gaps: Sequence[MissingRange], unnamed: int) -> str:
    more = max(len(gaps) - _SHOWN, 0) + unnamed
    shown = ", ".join(f"{each.first_offset} to {each.last_offset}" for each in gaps[:_SHOWN])
    found = f"offsets {shown} are missing"
    return f"{found}, and in {more} more places" if more else found


def _corrupt(stop: ScanStop, effect: str) -> Classification:
    return Classification(
        FileClass.CORRUPT,
        harmful=True,
        position_bytes=stop.position_bytes,
        found=stop.text,
        effect=effect,
    )


def _overlap(overlap: Hole) -> Classification:
    return Classification(
        FileClass.OVERLAP,
        harmful=True,
        position_bytes=overlap.position_bytes,
        expected=f"offset {overlap.end_offset} or more",
        found=f"offset {overlap.first_offset}",
        effect=_OVERLAPS,
    )


def _intact(check: SegmentCheck, gaps: int, *, is_last: bool) -> Classification:
    if check.segment.log_size_bytes == 0:
        effect = None if is_last else "No record of the log can be read."
        return Classification(FileClass.EMPTY, effect=effect)
    count = check.facts.offsets.cleaned_count + gaps
    found = f"offsets are missing in {count} places, as compaction leaves them" if count else None
    return Classification(FileClass.INTACT, found=found, effect=_SPLIT if check.is_split else None)


_LOGS_ONLY = (
    "A broker reads all logs and rebuilds all other files except for partition.metadata, which it "
    "requires."
)
_INCOMPLETE = "A log could not be read, so the partition was not verified completely."
_NO_OFFSET_INDEX = (
    "A broker that starts here recovers the segment, and truncates it at any corrupt batch."
)
_NO_TIME_INDEX = (
    "A broker creates an empty time index: retention uses the modification time of the log, and "
    "lookups by time return wrong results."
)


class PartitionVerification:
    """Verifies a partition: `check` for each of its segments, then `finish`.

    `check` may be called in any order and thread; `root` is the data directory of the partition.
    """

    def __init__(
        self, segments: Sequence[SegmentFile], settings: VerifySettings, root: DataDirectory
    ) -> None:
        self._segments = segments
        self._settings = settings
        self._root = root
        last = segments[-1]
        self._partition = TopicPartition(last.topic, last.partition)
        self._directory = last.partition_directory
        self._index_directory = settings.index_directory(last)
        recovery_point = root.recovery_point(self._partition)
        self._first_recovered = segments[floor_segment(segments, recovery_point)].base_offset
        self._checks: Sequence[SegmentCheck] = ()

    def _startup(self, segment: SegmentFile) -> SegmentStartup:
        """Return how startup treats a segment."""
        root = self._root
        is_unflushed = root.has_root_files and segment.base_offset >= self._first_recovered
        # Startup never recovers remote segments.
        is_clean = is_segment_path(self._directory) or root.is_clean
        is_recovered = not is_clean and (segment.is_last or is_unflushed)
        return SegmentStartup(segment.is_last, is_recovered, is_clean)

    def check(self, segment: SegmentFile, attempt_id: str) -> SegmentCheck:
        cleaned_to = self._root.cleaned_to(self._partition) or 0
        return check_segment(
            segment, self._startup(segment), self._settings, cleaned_to, attempt_id=attempt_id
        )

    def finish(self, checks: Iterable[SegmentCheck], attempt_id: str) -> PartitionFindings:
        """Classify the files that depend on all segments, after these were checked."""
        self._checks = sorted(checks, key=lambda check: check.segment.base_offset)
        folded = merge_partition(
            [check.staged for check in self._checks],
            self._settings.build_settings(),
            attempt_id=attempt_id,
        )
        partition, directory, segments = self._partition, self._directory, self._segments
        built = _built(folded)
        rows = [each.report for each in folded.segments]
        rows += [check.row for check in self._checks[len(rows) :]]
        entries = self._entries()
        lost_ends: Mapping[int, int] = {}
        unread: KafkaIndexError | None = None
        try:
            lost_ends = find_lost_logs(entries, segments)
        except KafkaIndexError as error:
            unread = error
        is_tiered = partition in self._settings.tiered
        missing = self._missing_offsets(rows, {} if is_tiered else lost_ends)
        checker = LogChecker(missing)
        found = list(self._segment_findings(checker, rows, built, folded))
        found += self._state_findings(checker, None if folded.snapshots is None else built)
        lost_bases = lost_ends if is_tiered else missing.lost_bases
        for one in other_files(partition, segments, entries, lost_bases):
            is_unread = unread is not None and unread.path == one.path
            found.append(one.unreadable(unread) if unread and is_unread else one)
        if not is_segment_path(directory):
            topic = self._settings.topics.get(partition.topic)
            found += classify_partition_metadata(
                partition, directory, topic, is_known=self._root.has_root_files
            )
        end = checker.end_offset
        if end is not None:
            found += checkpoint_findings(self._root, partition, end)
        found = self._shortened(self._with_refusal(found, entries))
        partition_row = self._partition_row(found, end, folded.error)
        if checker.has_unread_log or unread:
            partition_row = replace(
                partition_row, file_class=FileClass.UNREADABLE, effect=_INCOMPLETE, retriable=True
            )
        return PartitionFindings(self._verified(checker, found), (*found, partition_row))

    @property
    def _has_indexes(self) -> bool:
        return any(check.has_offset_index or check.has_time_index for check in self._checks)

    @property
    def _start_offset(self) -> int:
        return max(self._log_start(), self._checks[0].segment.base_offset)

    def _segment_findings(
        self,
        checker: LogChecker,
        rows: Sequence[SegmentReport],
        built: Mapping[str, bytes],
        folded: MergedPartition,
    ) -> Iterator[Finding]:
        """Yield the findings of logs and their indexes."""
        has_indexes = self._has_indexes
        aborted = [_aborted(built, check) for check in self._checks]
        next_aborted = next_starts(aborted, self._open_from(folded))
        for check, row, expected, next_start in zip(
            self._checks, rows, aborted, next_aborted, strict=True
        ):
            yield checker.classify(check, row)
            yield from check.findings
            is_known = checker.is_state_known and folded.error is None
            if has_indexes:
                yield from self._missing_indexes(check)
            yield from self._transactions(
                check, expected, next_start, has_indexes=has_indexes, is_known=is_known
            )

    def _state_findings(
        self, checker: LogChecker, built: Mapping[str, bytes] | None
    ) -> Iterator[Finding]:
        """Yield the findings of producer snapshots and epochs, after the segments' findings."""
        partition, segments, end = self._partition, self._segments, checker.end_offset
        if not is_segment_path(segments[-1].log_path):
            recovered = (each.base_offset for each in segments if self._startup(each).is_recovered)
            config = self._settings.config
            yield from classify_snapshots(
                partition,
                self._index_directory,
                built if checker.is_state_known else None,
                ProducerExpiration(config.producer_id_expiration_ms, self._settings.now_ms),
                (self._start_offset, end),
                [each.base_offset for each in segments],
                is_clean=self._root.is_clean,
                is_compacted=checker.missing.cleaning.is_compacted is True,
                recovered_from=next(recovered, None),
            )
        if not is_segment_path(self._index_directory):
            yield from epoch_findings(
                partition,
                self._index_directory,
                [epochs for check in self._checks for epochs in check.header_facts.epochs.ranges],
                (self._log_start(), end),
                has_indexes=self._has_indexes,
            )

    def _verified(self, checker: LogChecker, findings: Sequence[Finding]) -> VerifiedPartition:
        partition, latest = self._partition, self._settings.now_ms + CLOCK_SKEW_MS
        future = [each for each in self._checks if each.header_facts.max_timestamp_ms > latest]
        gaps = tuple(
            each.as_gap(partition, self._segments[each.log].log_path)
            for each in checker.missing.unexplained
        )
        return VerifiedPartition(
            partition.topic,
            partition.partition,
            self._directory,
            any(one.harmful for one in findings),
            tuple(checker.lost),
            FoundGaps(gaps, sum(checker.missing.unnamed.values())),
            self._start_offset,
            checker.end_offset,
            sum(each.log_size_bytes for each in self._segments),
            len(future),
            sum(each.segment.log_size_bytes for each in future),
        )

    def _open_from(self, folded: MergedPartition) -> int:
        """Return the first offset of the open transactions, the log end offset if none is open."""
        end = self._checks[-1].header_facts.end_offset
        state = None if folded.start is None else folded.start.state
        unstable = None if state is None else state.first_unstable_offset
        return end if unstable is None else min(unstable, end)

    def _entries(self) -> Sequence[Entry]:
        """Return the entries of the directory; none for a directory in remote storage."""
        directory = self._directory
        is_listed = any(each.partition_directory == directory for each in self._segments)
        if is_segment_path(directory) or (not is_listed and store_of(directory).needs_requests):
            return []
        return scan_directory(directory)

    def _log_start(self) -> int:
        partition = self._partition
        tiered = self._settings.tiered.get(partition)
        return tiered.log_start_offset if tiered else self._root.log_start_offset(partition) or 0

    def _missing_offsets(
        self, rows: Sequence[SegmentReport], lost_ends: Mapping[int, int]
    ) -> MissingOffsets:
        """Return the missing offsets, by the batches before any corruption and by checkpoints."""
        partition, root = self._partition, self._root
        topic = self._settings.topics.get(partition.topic)
        policy = None if topic is None else topic.cleanup_policy
        known = KnownOffsets.of(root, partition, policy, is_topic_known=topic is not None)
        if partition in self._settings.tiered:
            known = replace(known, start_offset=None)
        return missing_offsets(
            [
                SeenLog(
                    check.segment,
                    check.facts.offsets,
                    is_read(row),
                    None if check.header_facts is check.facts else check.header_facts.end_offset,
                )
                for check, row in zip(self._checks, rows, strict=True)
            ],
            known,
            shared_budget(self._settings.config.max_decompressed_bytes),
            lost_ends,
        )

    def _missing_indexes(self, check: SegmentCheck) -> Iterator[Finding]:
        segment = check.segment
        if check.row.status == FAILED:
            return
        missing = []
        if not check.has_offset_index:
            missing.append(
                (FileKind.INDEX, Classification(FileClass.MISSING, effect=_NO_OFFSET_INDEX))
            )
        if not check.has_time_index:
            harmful = check.has_offset_index and check.facts.max_timestamp_ms >= 0
            classification = Classification(FileClass.MISSING, harmful, effect=_NO_TIME_INDEX)
            missing.append((FileKind.TIME_INDEX, check.startup.unless_rebuilt(classification)))
        for kind, classification in missing:
            path = index_path(segment, self._settings, kind)
            row = finding_of(
                segment, path, kind, FileClass.MISSING, base_offset=segment.base_offset
            )
            yield row.classified(classification)

    def _transactions(
        self,
        check: SegmentCheck,
        expected: AbortedTxns,
        next_start: int,
        *,
        has_indexes: bool,
        is_known: bool,
    ) -> Iterator[Finding]:
        segment, wanted = check.segment, expected.tobytes()
        finding, stored = read_stored_file(segment, self._settings, FileKind.TXN_INDEX)
        if finding.file_class is FileClass.UNREADABLE:
            yield finding
        elif stored is not None:
            row = classify_transaction_index(
                stored,
                None if check.row.status == FAILED else wanted,
                segment.base_offset,
                check.startup,
                partial(has_data, self._checks, segment.base_offset),
                next_start,
                is_known=is_known,
            )
            yield finding.classified(row)
        elif wanted and is_known and has_indexes:
            row = Classification(
                FileClass.MISSING, check.has_offset_index, effect=TxnFault.MISSING.effect
            )
            yield finding.classified(check.startup.unless_rebuilt(row))

    def _with_refusal(self, found: list[Finding], entries: Sequence[Entry]) -> list[Finding]:
        """Add the error of a startup if an entry with the name of a file is not a file."""
        directory = self._directory
        is_suspect = self._is_loaded and any(
            entry.file_error() is not None and parse_segment_file(entry.name) is not None
            for entry in entries
        )
        if not is_suspect:
            return found
        refused = self._refused_start()
        is_harmful = any(one.harmful for one in found)
        if refused is None or (refused.path == directory and is_harmful):
            return found
        same = next((one for one in found if one.path == refused.path), None)
        if same is None:
            name = parse_segment_file(os.path.basename(refused.path))
            if name is not None:
                kind = kind_of(name.kind)
                refused = replace(refused, segment_base_offset=name.base_offset, kind=kind)
            return [*found, refused]
        if same.harmful:
            return found
        owner = replace(refused, segment_base_offset=same.segment_base_offset, kind=same.kind)
        return [owner if one is same else one for one in found]

    def _shortened(self, found: list[Finding]) -> list[Finding]:
        """If only logs exist, replace the rows of the missing files by one row."""
        kinds = (FileKind.LOG, FileKind.ROOT)
        if any(one.file_class is not FileClass.MISSING for one in found if one.kind not in kinds):
            return found
        row = finding_of(self._partition, self._directory, FileKind.INDEX, FileClass.MISSING)
        row = replace(row, found="logs only", effect=_LOGS_ONLY)
        return [*(one for one in found if one.kind in kinds), row]

    def _partition_row(
        self,
        findings: Sequence[Finding],
        end: int | None,
        error: KafkaIndexError | None,
    ) -> Finding:
        harmful = [one for one in findings if one.harmful]
        row = finding_of(
            self._partition,
            self._directory,
            FileKind.PARTITION,
            harmful[0].file_class if harmful else FileClass.INTACT,
            harmful=bool(harmful),
        )
        end_text = "an unknown end" if end is None else end
        row = replace(row, found=f"offsets {self._start_offset} to {end_text}")
        if error is not None and is_retriable(error):
            return row.unreadable(error)
        stray = next((one for one in harmful if one.is_stray), None)
        if stray is not None:
            return replace(row, effect=stray.effect)
        is_started = harmful and self._is_loaded and store_of(self._directory).hosts_brokers
        return row if end is None or not is_started else self._started(row, end)

    def _started(self, row: Finding, end_offset: int) -> Finding:
        prefix = "With the clean shutdown file here"
        if not self._root.is_clean:
            prefix = "Without a clean shutdown file"
        try:
            log, lost = self._load()
        except KafkaIndexError as error:
            if is_retriable(error):
                effect = f"The effect of a start could not be predicted: {error}."
                return replace(row, effect=effect, retriable=True)
            return replace(row, effect=f"{prefix}, a broker does not start: {error.message}.")
        text = f"{prefix}, a broker serves offsets {log.log_start_offset} to {log.log_end_offset}"
        if lost.records:
            text += f", and {_loss(lost)}"
        return replace(row, effect=f"{text}.", expected=f"offsets up to {end_offset}")

    def _refused_start(self) -> Finding | None:
        """Return the row of a file that keeps a broker from starting, or makes it lose records.

        Its path is the directory if no single file is the cause. None if startup succeeds without
        loss, or a read fails, which other rows report.
        """
        row = finding_of(
            self._partition, self._directory, FileKind.ROOT, FileClass.CORRUPT, harmful=True
        )
        if not store_of(self._directory).hosts_brokers:
            return None
        try:
            _, lost = self._load()
        except NotPredictedError as error:
            return row.refused(error, "It is unknown whether a broker starts with this file.")
        except StartRefusedError as error:
            return row.refused(error)
        except KafkaIndexError:
            return None
        if not lost.records:
            return None
        found = "an entry with the name of a file is not a file"
        return replace(row, found=found, effect=f"A broker {_loss(lost)}.")

    def _load(self) -> tuple[LoadedLog, LostRecords]:
        """Load the partition like a broker; return the loaded log, and the lost records."""
        loading = self._settings.loading(self._root, self._partition)
        with load_partition(self._partition, self._directory, loading) as loaded:
            # A broker reads partition.metadata after loading the log.
            read_topic_id(self._directory)
            lost, _ = lost_records(loaded, loading.log_start_offset)
            return loaded.log, lost

    @property
    def _is_loaded(self) -> bool:
        """Whether a broker loads the directory."""
        return self._settings.indexes is None and not self._settings.tiered


def _loss(lost: LostRecords) -> str:
    offsets = f"offset {lost.first_offset} to {lost.last_offset}"
    return f"loses or hides {lost.records} records from {offsets}"


def _aborted(built: Mapping[str, bytes], check: SegmentCheck) -> AbortedTxns:
    """Return the aborted transactions of a segment according to the merged state."""
    name = index_name_for(os.path.basename(check.segment.log_path), TXN_INDEX_SUFFIX)
    return np.frombuffer(built.get(name, b""), ABORTED_TXN)


def _built(folded: MergedPartition) -> dict[str, bytes]:
    """Return the merged state files by name, and delete them."""
    built = {}
    for staged in chain(folded.own_files, *(segment.files for segment in folded.segments)):
        with open(staged.scratch_path, "rb") as file:
            built[os.path.basename(staged.final_path)] = file.read()
        os.unlink(staged.scratch_path)
    return built


def verify_partitions(
    workers: Workers, segments: SegmentTable, settings: VerifySettings
) -> Generator[PartitionFindings, None, None]:
    """Verify partitions, largest first; yield their findings."""
    partitions = sorted(segments.partitions, key=lambda each: -each.size_bytes)
    try:
        yield from workers.run_parts(
            partitions,
            partial(_divide, settings=settings, roots=DataDirectories(tolerated=True)),
            sizes=[each.size_bytes + len(each) * COST_BYTES for each in partitions],
            what="verify {:,} partitions",
            jobs=JobSizes.EQUAL,
        )
    finally:
        shutil.rmtree(settings.scratch_root(), ignore_errors=True)


def _divide(
    segments: PartitionSegments, *, settings: VerifySettings, roots: DataDirectories
) -> SplittableTask[PartitionFindings]:
    files = segments.files()
    root = roots.for_partition(files[-1].partition_directory)
    verification = PartitionVerification(files, settings, root)
    return SplittableTask(
        [partial(verification.check, each) for each in files], verification.finish
    )

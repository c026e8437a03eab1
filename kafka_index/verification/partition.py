"""One partition: its segments folded as a build folds them, and every file of it judged.

Threads share the segments of a partition, a task of Spark scans them in turn.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kafka_index.build.fold import FoldedPartition, fold_partition
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.dump.data_directory import DataDirectories, DataDirectory
from kafka_index.dump.missing_offsets import KnownOffsets, MissingOffsets, SeenLog, missing_offsets
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.execution import Parts, Waves, Workers
from kafka_index.execution.engine import COST_BYTES
from kafka_index.growing.growing_segment import floor_segment
from kafka_index.layout.names import (
    TXN_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_segment_file,
)
from kafka_index.records.decompression import shared_budget
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.storage import SegmentFile, StagedFile
from kafka_index.storage.directories import Entry, scan_directory
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable, lost_logs
from kafka_index.stores import is_remote
from kafka_index.stores.tiered.segment_paths import is_segment_path
from kafka_index.verification.findings import (
    FileClass,
    FileKind,
    Finding,
    Judgement,
    PartitionFindings,
    finding_of,
)
from kafka_index.verification.index_files import SegmentPlace, judge_transaction_index
from kafka_index.verification.logs import LogJudge, is_read
from kafka_index.verification.other_files import KINDS_OF_SEGMENT_FILES, judge_metadata, other_files
from kafka_index.verification.root_files import checkpoint_findings
from kafka_index.verification.segment import (
    SegmentCheck,
    check_segment,
    has_data,
    index_path,
    read_stored,
)
from kafka_index.verification.starts import refused_start, started
from kafka_index.verification.state_files import epoch_findings, judge_snapshots
from kafka_index.verification.verify_settings import VerifySettings

_NO_TIME_INDEX = (
    "A broker makes an empty one: the time of the file decides what retention deletes, and lookups "
    "by time go wrong."
)


class PartitionVerification:
    """Verifies a partition, of which all segments are given: `check` for each, then `finish`.

    `check` may be called in any order and thread; `root` holds the partition.
    """

    def __init__(
        self, segments: Sequence[SegmentFile], settings: VerifySettings, root: DataDirectory
    ) -> None:
        self.segments = segments
        self._settings = settings
        self._root = root
        last = segments[-1]
        self.partition = TopicPartition(last.topic, last.partition)
        self.directory = last.partition_directory
        recovery_point = root.recovery_point(self.partition)
        self._first_recovered = segments[floor_segment(segments, recovery_point)].base_offset

    @property
    def recovered_from(self) -> int | None:
        """The base offset of the first segment that a start recovers; None for none."""
        places = (each for each in self.segments if self.place(each).is_recovered)
        return next((each.base_offset for each in places), None)

    def place(self, segment: SegmentFile) -> SegmentPlace:
        """Return how a start treats a segment."""
        root = self._root
        is_unflushed = root.has_root_files and segment.base_offset >= self._first_recovered
        # No start recovers a segment of tiered storage.
        is_clean = is_segment_path(self.directory) or root.is_clean
        is_recovered = not is_clean and (segment.is_last or is_unflushed)
        return SegmentPlace(segment.is_last, is_recovered, is_clean)

    def check(self, segment: SegmentFile, attempt_id: str) -> SegmentCheck:
        """Scan a segment."""
        cleaned_to = self._root.cleaned_to(self.partition) or 0
        return check_segment(
            segment, self.place(segment), self._settings, cleaned_to, attempt_id=attempt_id
        )

    def finish(self, checks: Iterable[SegmentCheck], attempt_id: str) -> PartitionFindings:
        """Judge the files that depend on all segments, once these were checked."""
        ordered = sorted(checks, key=lambda check: check.segment.base_offset)
        folded = fold_partition(
            [check.staged for check in ordered],
            self._settings.build_settings(),
            attempt_id=attempt_id,
        )
        return _Finish(self, ordered, folded, self._settings, self._root).findings()


@dataclass
class _Finish:
    verification: PartitionVerification
    checks: Sequence[SegmentCheck]
    folded: FoldedPartition
    settings: VerifySettings
    root: DataDirectory

    def findings(self) -> PartitionFindings:
        """Return the rows of the partition, by segment."""
        partition, directory = self.verification.partition, self.verification.directory
        built = self._built()
        topic = self.settings.topics.get(partition.topic)
        rows = [folded.report for folded in self.folded.segments]
        rows += [check.row for check in self.checks[len(rows) :]]
        segments = self.verification.segments
        entries: list[Entry] = []
        is_listed = any(s.partition_directory == directory for s in segments)
        if not is_segment_path(directory) and (is_listed or not is_remote(directory)):
            entries = scan_directory(directory)
        lost_ends: Mapping[int, int] = {}
        unread: KafkaIndexError | None = None
        try:
            lost_ends = lost_logs(entries, segments)
        except KafkaIndexError as error:
            unread = error
        is_tiered = partition in self.settings.tiered
        missing = self._missing_offsets(rows, {} if is_tiered else lost_ends)
        lost_bases = lost_ends if is_tiered else missing.lost_bases
        judge = LogJudge(missing)
        found: list[Finding] = []
        self._has_indexes = any(c.has_offset_index or c.has_time_index for c in self.checks)
        for check, row in zip(self.checks, rows, strict=True):
            found.append(judge.judge(check, row))
            found += check.findings
            found += self._missing_indexes(check)
            is_known = judge.is_state_known and self.folded.error is None
            found += self._transactions(check, built, is_known=is_known)
        start = max(self._log_start(), self.checks[0].segment.base_offset)
        end = judge.end_offset
        if not is_segment_path(self.checks[-1].segment.log_path):
            is_whole = judge.is_state_known and self.folded.snapshots is not None
            found += judge_snapshots(
                partition,
                self._index_directory,
                built if is_whole else None,
                ProducerExpiration(
                    self.settings.config.producer_id_expiration_ms, self.settings.now_ms
                ),
                (start, end),
                [check.segment.base_offset for check in self.checks],
                is_clean=self.root.is_clean,
                is_compacted=missing.cleaning.is_compacted is True,
                recovered_from=self.verification.recovered_from,
            )
        if not is_segment_path(self._index_directory):
            found += epoch_findings(
                partition,
                self._index_directory,
                [run for check in self.checks for run in check.whole.epochs],
                (self._log_start(), end),
                has_indexes=self._has_indexes,
            )
        for one in other_files(partition, directory, segments, entries, lost_bases):
            is_unread = unread is not None and unread.path == one.path
            found.append(one.unreadable(unread) if unread and is_unread else one)
        if not is_segment_path(directory):
            found += judge_metadata(partition, directory, topic, is_known=self.root.has_root_files)
        if end is not None:
            found += checkpoint_findings(self.root, partition, end)
        found = self._with_refusal(found, entries)
        if not self._has_anything(found):
            found = [one for one in found if one.kind in (FileKind.LOG, FileKind.ROOT)]
            found.append(self._no_files())
        whole = self._partition_row(found, start, end)
        found.append(_with_unread_log(whole) if judge.has_unread_log or unread else whole)
        return PartitionFindings(
            partition.topic,
            partition.partition,
            directory,
            tuple(found),
            tuple(judge.lost),
            start,
            end,
            sum(check.segment.log_size_bytes for check in self.checks),
        )

    @property
    def _index_directory(self) -> str:
        return self.settings.index_directory(self.checks[-1].segment)

    def _log_start(self) -> int:
        partition = self.verification.partition
        tiered = self.settings.tiered.get(partition)
        return tiered.log_start_offset if tiered else self.root.log_start_offset(partition) or 0

    def _missing_offsets(
        self, rows: Sequence[SegmentReport], lost_ends: Mapping[int, int]
    ) -> MissingOffsets:
        """Return the missing offsets, by the batches before any damage and the remaining ends."""
        partition, root = self.verification.partition, self.root
        topic = self.settings.topics.get(partition.topic)
        policy = None if topic is None else topic.cleanup_policy
        known = KnownOffsets.of(root, partition, policy, is_topic_known=topic is not None)
        if partition in self.settings.tiered:
            known = replace(known, start_offset=None)
        return missing_offsets(
            [
                SeenLog(
                    check.segment,
                    check.facts.offsets,
                    is_read(row),
                    None if check.whole is check.facts else check.whole.end_offset,
                )
                for check, row in zip(self.checks, rows, strict=True)
            ],
            known,
            shared_budget(self.settings.config.max_decompressed_bytes),
            lost_ends,
        )

    def _built(self) -> dict[str, bytes]:
        """Return the state files that the fold has made, by name, and remove them."""
        files: list[StagedFile] = [*self.folded.own_files]
        for segment in self.folded.segments:
            files += segment.files
        built = {}
        for staged in files:
            with open(staged.scratch_path, "rb") as file:
                built[os.path.basename(staged.final_path)] = file.read()
            os.unlink(staged.scratch_path)
        return built

    def _missing_indexes(self, check: SegmentCheck) -> Iterator[Finding]:
        """Yield the rows of index files that are not there, where others are."""
        segment, place = check.segment, check.place
        if not self._has_indexes or check.row.status == FAILED:
            return
        common = (segment.topic, segment.partition, segment.base_offset)
        if not check.has_offset_index:
            effect = "A broker that starts here recovers the segment, and cuts it at any damage."
            path = index_path(segment, self.settings, ".index")
            yield Finding(*common, path, FileKind.INDEX, FileClass.MISSING, effect=effect)
        if not check.has_time_index:
            harmful = check.has_offset_index and check.facts.max_timestamp_ms >= 0
            row = Judgement(FileClass.MISSING, harmful=harmful, effect=_NO_TIME_INDEX)
            path = index_path(segment, self.settings, ".timeindex")
            finding = Finding(*common, path, FileKind.TIME_INDEX, FileClass.MISSING)
            yield finding.judged(place.softened(row))

    def _transactions(
        self, check: SegmentCheck, built: dict[str, bytes], *, is_known: bool
    ) -> Iterator[Finding]:
        segment = check.segment
        path = index_path(segment, self.settings, TXN_INDEX_SUFFIX)
        stored = read_stored(segment, path, FileKind.TXN_INDEX)
        name = index_name_for(os.path.basename(segment.log_path), TXN_INDEX_SUFFIX)
        wanted = built.get(name, b"")
        if not stored.was_read:
            yield stored.finding
        elif stored.data is None:
            if wanted and is_known and self._has_indexes:
                row = Judgement(
                    FileClass.MISSING,
                    harmful=check.has_offset_index,
                    effect="Consumers that read committed records get aborted ones.",
                )
                yield stored.finding.judged(check.place.softened(row))
        else:
            row = judge_transaction_index(
                stored.data,
                None if check.row.status == FAILED else wanted,
                segment.base_offset,
                check.place,
                partial(has_data, self.checks, segment.base_offset),
                is_known=is_known,
            )
            yield stored.finding.judged(row)

    def _with_refusal(self, found: list[Finding], entries: Sequence[Entry]) -> list[Finding]:
        """Return rows with what a start fails on, where an entry is not the file it names."""
        directory = self.verification.directory
        is_suspect = self._is_loaded and any(
            entry.why_not_a_file() is not None and parse_segment_file(entry.name) is not None
            for entry in entries
        )
        if not is_suspect:
            return found
        refused = refused_start(self.verification.partition, directory, self.root, self.settings)
        is_harmful = any(one.harmful for one in found)
        if refused is None or (refused.path == directory and is_harmful):
            return found
        same = next((one for one in found if one.path == refused.path), None)
        if same is None:
            name = parse_segment_file(os.path.basename(refused.path))
            if name is not None:
                kind = KINDS_OF_SEGMENT_FILES[name.kind]
                refused = replace(refused, segment_base_offset=name.base_offset, kind=kind)
            return [*found, refused]
        if same.harmful:
            return found
        owner = replace(refused, segment_base_offset=same.segment_base_offset, kind=same.kind)
        return [owner if one is same else one for one in found]

    @staticmethod
    def _has_anything(found: Sequence[Finding]) -> bool:
        kinds = (FileKind.LOG, FileKind.ROOT)
        return any(
            one.file_class is not FileClass.MISSING for one in found if one.kind not in kinds
        )

    def _no_files(self) -> Finding:
        verification = self.verification
        row = finding_of(
            verification.partition, verification.directory, FileKind.INDEX, FileClass.MISSING
        )
        effect = "A broker reads every log and rebuilds the rest; it needs partition.metadata."
        return replace(row, found="logs only", effect=effect)

    def _partition_row(self, found: Sequence[Finding], start: int, end: int | None) -> Finding:
        harmful = [one for one in found if one.harmful]
        row = finding_of(
            self.verification.partition,
            self.verification.directory,
            FileKind.PARTITION,
            harmful[0].file_class if harmful else FileClass.SOUND,
            harmful=bool(harmful),
        )
        end_text = "an end that is not known" if end is None else end
        row = replace(row, found=f"offsets {start} to {end_text}")
        error = self.folded.error
        if error is not None and is_retriable(error):
            return row.unreadable(error)
        if not harmful or not self._is_loaded or end is None:
            return row
        return started(row, self.root, self.settings, end)

    @property
    def _is_loaded(self) -> bool:
        """Whether a broker loads the directory as it lies."""
        return self.settings.indexes is None and not self.settings.tiered


def _with_unread_log(row: Finding) -> Finding:
    """Return the row of a partition with a log that another run may be able to read."""
    return replace(
        row,
        file_class=FileClass.UNREADABLE,
        effect="A log of it could not be read: it was not verified as a whole.",
        retriable=True,
    )


def verify_partitions(
    workers: Workers, segments: SegmentTable, settings: VerifySettings
) -> Generator[PartitionFindings, None, None]:
    """Verify partitions, the largest first; yield their findings."""
    partitions = sorted(segments.partitions, key=lambda each: -each.size_bytes)
    try:
        yield from workers.run_parts(
            partitions,
            partial(_divide, settings=settings, roots=DataDirectories(tolerated=True)),
            sizes=[each.size_bytes + len(each) * COST_BYTES for each in partitions],
            what="verify {:,} partitions",
            waves=Waves.KEPT,
        )
    finally:
        shutil.rmtree(settings.scratch_root(), ignore_errors=True)


def _divide(
    segments: PartitionSegments, *, settings: VerifySettings, roots: DataDirectories
) -> Parts[PartitionFindings]:
    files = segments.files()
    root = roots.of(files[-1].partition_directory)
    verification = PartitionVerification(files, settings, root)
    return Parts([partial(verification.check, each) for each in files], verification.finish)

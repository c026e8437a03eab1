"""The results of ``verify``: findings of files and partitions, and the complete result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import KafkaIndexError, is_retriable, plural
from kafka_index.core.format.human import format_bytes, shown_path
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Meaning,
    MissingOffsets,
    PageColumns,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Status,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.parameters import format_topics

#: Maximum number of rows in each list of findings that a result keeps.
_MAX_ROWS = 20
#: The command that shows more about a file.
_DUMP = "kafka-index dump {path}"


class FileKind(StrEnum):
    """The kind of file that a finding is about."""

    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"
    METADATA = "metadata"
    ROOT = "root"
    PARTITION = "partition"
    #: Two copies of a partition, with ``--against``.
    COPY = "copy"


def to_file_kind(suffix: str) -> FileKind:
    return FileKind(suffix.removeprefix("."))


class FileClass(StrEnum):
    """How an existing file compares with the file that a build would write, with its `meaning`."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    IDENTICAL = "identical", "the same bytes as a build writes"
    INTACT = "intact", "a log with valid batches and no missing offsets"
    EQUIVALENT = "equivalent", "correct, but with different bytes than a build writes"
    EMPTY = "empty", "a log without batches"
    PREFIX = "prefix", "one copy ends earlier, and is equal up to its end"
    THINNED = "thinned", "one copy lacks records inside batches"
    PADDED = "padded", "zeros follow the content"
    INCOMPLETE = "incomplete", "entries are missing"
    MISSING = "missing", "the file does not exist"
    ORPHAN = "orphan", "the file belongs to no segment"
    LEFTOVER = "leftover", "an interrupted compaction, split or deletion left the file"
    STALE = "stale", "an entry points beyond the log"
    MISPLACED = "misplaced", "an entry points between batches"
    TOO_LOW = "too_low", "an entry points past batches that a lookup needs"
    FOREIGN = "foreign", "the file belongs to another segment or topic"
    CORRUPT = "corrupt", "content that no broker writes"
    TORN = "torn", "a log that ends inside a batch"
    BAD_CRC = "bad_crc", "a log with a CRC mismatch"
    GAP = "gap", "offsets are missing"
    OVERLAP = "overlap", "a log with offsets of another log"
    DIVERGED = "diverged", "the copies contain different batches"
    UNREADABLE = "unreadable", "the file could not be read, or changed while it was read"


#: Meanings of classes if two copies are compared, where a row is a partition.
_COPY_MEANINGS = {
    FileClass.IDENTICAL: "identical bytes in the offset range that both copies have",
    FileClass.EQUIVALENT: "identical, except for batches that the log cleaner removed or rewrote",
    FileClass.BAD_CRC: "different bytes with the same checksum",
}
_GOOD_CLASSES = (FileClass.IDENTICAL, FileClass.INTACT, FileClass.EQUIVALENT, FileClass.PREFIX)


#: Effect of a file that a broker fails to load.
REFUSED = "A broker takes the data directory offline, or exits."


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the report of ``verify``: a finding about a file or a partition.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The segment or partition of the file; None for files at the root of a data directory.
    path : str
        The file, or for a partition its directory.
    kind : FileKind
        The kind of file.
    file_class : FileClass
        The class of the file.
    harmful : bool
        Whether a broker that starts on the directory loses records, makes records unreadable,
        returns wrong results, or does not start, because of this file.
    position_bytes : int, optional
        The position in the file.
    entry : int, optional
        The number of an entry of an index, snapshot or checkpoint, from 0.
    expected, found : str, optional
        The expected and the actual content.
    effect : str, optional
        The effect on a broker that starts on the directory.
    retriable : bool
        Whether the file could not be read because of permission, disk, memory or a concurrent
        change.
    """

    topic: str | None
    partition: int | None
    segment_base_offset: int | None
    path: str
    kind: FileKind
    file_class: FileClass
    harmful: bool = False
    position_bytes: int | None = None
    entry: int | None = None
    expected: str | None = None
    found: str | None = None
    effect: str | None = None
    retriable: bool = False

    @property
    def is_stray(self) -> bool:
        """Whether a broker treats the partition as stray because of its ``partition.metadata``."""
        stray = (FileClass.MISSING, FileClass.FOREIGN)
        return self.kind is FileKind.METADATA and self.harmful and self.file_class in stray

    def classified(self, classification: Classification) -> Self:
        """Return a copy of this finding with a classification."""
        names = (field.name for field in fields(classification))
        return replace(self, **{name: getattr(classification, name) for name in names})

    def unread(
        self, reason: str | None, *, retriable: bool, position_bytes: int | None = None
    ) -> Self:
        """Return a copy of this finding with class ``unreadable``."""
        return replace(
            self,
            file_class=FileClass.UNREADABLE,
            harmful=not retriable,
            position_bytes=position_bytes,
            found=reason,
            effect="The file was not verified.",
            retriable=retriable,
        )

    def unreadable(self, error: KafkaIndexError) -> Self:
        """Return a copy of this finding for a file that cannot be read because of an error."""
        return self.unread(
            str(error), retriable=is_retriable(error), position_bytes=error.position_bytes
        )

    def refused(self, error: KafkaIndexError, effect: str = REFUSED) -> Self:
        """Return a copy of this finding for a file that a broker fails to load."""
        return replace(
            self,
            path=error.path or self.path,
            file_class=FileClass.CORRUPT,
            harmful=True,
            position_bytes=error.position_bytes,
            expected=error.expected,
            found=format_error_content(error),
            effect=effect,
        )


def new_finding(
    owner: TopicPartition | SegmentFile,
    path: str,
    kind: FileKind,
    file_class: FileClass,
    *,
    base_offset: int | None = None,
    harmful: bool = False,
) -> Finding:
    return Finding(owner.topic, owner.partition, base_offset, path, kind, file_class, harmful)


@dataclass(frozen=True, slots=True)
class Classification:
    """The fields of a `Finding` that the content of the file determines."""

    file_class: FileClass
    harmful: bool = False
    position_bytes: int | None = None
    entry: int | None = None
    expected: str | None = None
    found: str | None = None
    effect: str | None = None


def format_error_content(error: KafkaIndexError) -> str:
    """Return the message of an error, followed by the content that was found."""
    return ": ".join(filter(None, (error.message, error.found)))


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that no readable batch of a partition contains, and that compaction does not explain.

    Parameters
    ----------
    first_offset : int
        The first lost offset.
    end_offset : int or None
        The offset after the last lost offset; None if a corruption makes it unknown.
    segment_base_offset : int
        Base offset of the segment in which the loss was found.
    position_bytes : int
        The position in the ``.log``.
    size_bytes : int
        Unusable bytes of the ``.log``; 0 if the lost offsets have no bytes.
    reason : str
        A code, such as ``bad_crc`` or ``gap``.
    """

    first_offset: int
    end_offset: int | None
    segment_base_offset: int
    position_bytes: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class VerifiedPartition:
    """A verified partition; the findings of its files are in the report.

    Parameters
    ----------
    topic, partition
        The partition.
    directory : str
        The partition directory.
    is_harmful : bool
        Whether any file of the partition is harmful.
    lost : tuple of LostRange
        The offsets that no readable batch contains, in order.
    missing_offsets : MissingOffsets
        The offsets that no batch contains, and that compaction does not explain.
    log_start_offset, log_end_offset : int or None
        Log start and end offset; None if a ``.log`` could not be read.
    log_bytes : int
        Size of the logs.
    future_segments, future_bytes : int
        Segments whose largest timestamp is in the future, and the size of their logs. Time-based
        retention does not delete these segments before their largest timestamp.
    """

    topic: str
    partition: int
    directory: str
    is_harmful: bool = False
    lost: tuple[LostRange, ...] = ()
    missing_offsets: MissingOffsets = field(default_factory=MissingOffsets)
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    log_bytes: int = 0
    future_segments: int = 0
    future_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFindings:
    """A verified partition with its findings: one per file, then one for the partition."""

    partition: VerifiedPartition
    findings: tuple[Finding, ...]


VERIFY_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_base_offset", pa.int64()),
        pa.field("path", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("class", pa.string(), nullable=False),
        pa.field("harmful", pa.bool_(), nullable=False),
        pa.field("position_bytes", pa.int64()),
        pa.field("entry", pa.int64()),
        pa.field("expected", pa.string()),
        pa.field("found", pa.string()),
        pa.field("effect", pa.string()),
        pa.field("retriable", pa.bool_(), nullable=False),
    ]
)

VERIFY_REPORT = ReportSpec(
    VERIFY_SCHEMA,
    PageColumns(
        "files",
        ("class",),
        {
            file_class.value: Meaning(
                GOOD if file_class in _GOOD_CLASSES else NOTABLE,
                file_class.meaning,
                # A missing file cannot be dumped.
                None if file_class is FileClass.MISSING else _DUMP,
            )
            for file_class in FileClass
        },
        units="kind",
        unit_values=tuple(kind.value for kind in FileKind if kind is not FileKind.PARTITION),
        worst_where="harmful",
    ),
    is_streamed=True,
)
#: Columns of the report with the attributes of `Finding` that have another name.
_ATTRIBUTES = {"class": "file_class"}


def findings_table(findings: Iterable[Finding]) -> pa.Table:
    rows = list(findings)
    columns = {
        name: [_to_plain_value(getattr(row, _ATTRIBUTES.get(name, name))) for row in rows]
        for name in VERIFY_SCHEMA.names
    }
    return pa.table(columns, schema=VERIFY_SCHEMA)


def _to_plain_value(value: object) -> object:
    if isinstance(value, StrEnum):
        return value.value
    # A path may contain bytes that are not UTF-8.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


@dataclass(slots=True)
class FindingCounts:
    """Counts of the findings of a verification, and the first findings of each list.

    Attributes
    ----------
    files, harmful : Counter of str
        Number of findings and of harmful findings, by class. Findings are about files, or about
        compared partitions.
    retriable : int
        Number of files and partitions that could not be read because of the environment.
    is_comparison : bool
        Whether each finding compares two copies of a partition.
    logs_only : int
        Number of partitions that have only ``.log`` files.
    harmful_rows, thinned_rows, unread_rows : pa.Table
        The first harmful findings, findings of thinned batches, and findings of unread files.
    """

    files: Counter[str] = field(default_factory=Counter)
    harmful: Counter[str] = field(default_factory=Counter)
    retriable: int = 0
    is_comparison: bool = False
    logs_only: int = 0
    harmful_rows: pa.Table = field(default_factory=VERIFY_SCHEMA.empty_table)
    thinned_rows: pa.Table = field(default_factory=VERIFY_SCHEMA.empty_table)
    unread_rows: pa.Table = field(default_factory=VERIFY_SCHEMA.empty_table)
    _partitions: int = 0
    _harmful_partitions: int = 0
    _unread_partitions: int = 0

    def add(self, rows: pa.Table) -> None:
        """Count the findings in rows of `VERIFY_SCHEMA`."""
        is_partition = pc.equal(rows["kind"], FileKind.PARTITION.value)
        partitions, files = rows.filter(is_partition), rows.filter(pc.invert(is_partition))
        self.is_comparison |= FileKind.COPY.value in files["kind"].to_pylist()
        self._partitions += partitions.num_rows
        self._harmful_partitions += _count_true(partitions["harmful"])
        self.logs_only += _count_true(pc.equal(files["found"], "logs only"))
        unread = files.filter(files["retriable"])
        has_files = bool(unread.num_rows) and not self.is_comparison
        if not unread.num_rows:
            unread = rows.filter(rows["retriable"])
        self.retriable += unread.num_rows
        self._unread_partitions += 0 if has_files else unread.num_rows
        by_class = files.group_by("class").aggregate([("harmful", "count"), ("harmful", "sum")])
        for row in by_class.to_pylist():
            self.files[row["class"]] += row["harmful_count"]
            self.harmful[row["class"]] += row["harmful_sum"]
        is_harmful = rows["harmful"]
        is_thinned = pc.equal(rows["class"], FileClass.THINNED.value)
        thinned = rows.filter(pc.and_(is_thinned, pc.invert(is_harmful)))
        self.harmful_rows = _extend_rows(self.harmful_rows, rows.filter(is_harmful))
        self.thinned_rows = _extend_rows(self.thinned_rows, thinned)
        self.unread_rows = _extend_rows(self.unread_rows, unread)

    @property
    def partitions(self) -> int:
        """Number of verified or compared partitions."""
        return self.files.total() if self.is_comparison else self._partitions

    @property
    def unread(self) -> str:
        """The number of files and partitions that could not be read."""
        partition_count = self._unread_partitions
        counts = ((self.retriable - partition_count, "file"), (partition_count, "partition"))
        return " and ".join(plural(count, noun) for count, noun in counts if count)

    @property
    def harmful_partitions(self) -> int:
        """Number of partitions with harmful files or differences."""
        return self.harmful.total() if self.is_comparison else self._harmful_partitions

    @property
    def is_harmful(self) -> bool:
        """Whether any finding is harmful."""
        return bool(self.harmful.total() or self.harmful_partitions)

    @property
    def harm(self) -> str:
        """The number of harmful files or differences, and of the partitions that have them."""
        scope = f"in {self.harmful_partitions:,} of {plural(self.partitions, 'partition')}"
        if self.is_comparison:
            return f"harmful differences {scope}"
        file_count = plural(self.harmful.total(), "harmful file")
        return f"{file_count} {scope}" if self.harmful_partitions else file_count


def _count_true(column: pa.ChunkedArray) -> int:
    return pc.sum(column).as_py() or 0


def _extend_rows(previous_rows: pa.Table, rows: pa.Table) -> pa.Table:
    new_rows = rows.slice(0, _MAX_ROWS - previous_rows.num_rows)
    return (
        pa.concat_tables([previous_rows, new_rows]).combine_chunks()
        if new_rows.num_rows
        else previous_rows
    )


def _format_lost_offsets(partitions: Iterable[VerifiedPartition]) -> str:
    lost_count, has_more = 0, False
    for partition in partitions:
        counted_to = 0
        # Of two ranges with the same start, the range with an end offset comes first. A corruption
        # can lack an end offset that a gap at the same offset has.
        ranges = sorted(
            partition.lost, key=lambda lost: (lost.first_offset, lost.end_offset is None)
        )
        for lost_range in ranges:
            if lost_range.end_offset is None:
                has_more |= lost_range.first_offset >= counted_to
            elif lost_range.end_offset > counted_to:
                lost_count += lost_range.end_offset - max(lost_range.first_offset, counted_to)
                counted_to = lost_range.end_offset
    if not lost_count:
        return ""
    qualifier = "at least " if has_more else ""
    return f"; {qualifier}{plural(lost_count, 'offset')} missing or unreadable"


@dataclass(frozen=True, repr=False)
class Verification(Result):
    """The result of `verify`: a row per file and partition, as in ``verify --report``.

    Parameters
    ----------
    found : FindingCounts
        Counts of all findings.
    partitions : list of VerifiedPartition
        In order of topic and partition number; empty for a comparison.
    rows : pa.Table
        All rows. If a report is written, only the first harmful rows.
    log_bytes : int
        Size of the logs.
    unread : tuple of str
        Input entries that were not read, with reasons.
    skipped : tuple of (str, str)
        Input entries that a broker would not load, with reasons.
    topics : str or None
        The pattern of the verified topics; None for all topics.
    is_fast : bool
        Whether only the headers of batches were read.
    metadata_fault : str or None
        Why the metadata log could not be read.
    """

    found: FindingCounts
    partitions: list[VerifiedPartition]
    rows: pa.Table
    log_bytes: int = 0
    unread: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    topics: str | None = None
    is_fast: bool = False
    metadata_fault: str | None = None
    command_after_harm: str | None = None

    command = "verify"

    @property
    def is_harmful(self) -> bool:
        """Whether any file or difference is harmful."""
        return self.found.is_harmful

    @property
    def findings(self) -> list[Finding]:
        """The rows of `to_arrow` as objects."""
        return [
            Finding(
                **{_ATTRIBUTES.get(name, name): value for name, value in row.items()}
                | {"kind": FileKind(row["kind"]), "file_class": FileClass(row["class"])}
            )
            for row in self.to_arrow().to_pylist()
        ]

    @property
    def headline(self) -> str:
        """Number of harmful files, unread files, and lost offsets."""
        counts = self.found
        if counts.is_harmful:
            conclusion = counts.harm
        else:
            conclusion = "nothing harmful was found"
            if counts.retriable or self.unread:
                conclusion = "verification is incomplete"
            elif counts.is_comparison:
                conclusion = "no harmful difference was found"
            conclusion += (
                f" in {plural(counts.partitions, 'partition')}" if counts.partitions else ""
            )
        topics = format_topics(self.topics)
        unread_text = f", {counts.unread} could not be read" if counts.retriable else ""
        return f"{conclusion}{topics}{unread_text}{_format_lost_offsets(self.partitions)}"

    @property
    def outcome(self) -> RunOutcome:
        """``environment`` if a read failed, ``damage`` if a file is harmful or was not read."""
        faults = [True] * bool(self.found.retriable)
        faults += [False] * bool(self.is_harmful or self.unread)
        return RunOutcome.of_faults(faults)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of files by class, harmful files, partitions, and harmful partitions."""
        counts = self.found
        return {
            **{f"files_{name}": count for name, count in counts.files.items()},
            "files_harmful": counts.harmful.total(),
            "partitions": counts.partitions,
            "partitions_harmful": counts.harmful_partitions,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Total size of the logs."""
        return {"logs": self.log_bytes}

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets that compaction does not explain."""
        return MissingOffsets.joined(partition.missing_offsets for partition in self.partitions)

    @property
    def status_header(self) -> tuple[str, ...]:  # type: ignore[override]
        """The header of the table that counts files by class."""
        return ("class", "partitions" if self.found.is_comparison else "files", "harmful")

    @property
    def statuses(self) -> list[Status]:
        """The number of files or compared partitions, and of harmful files, by class."""
        counts = self.found
        meanings = _COPY_MEANINGS if counts.is_comparison else {}
        return [
            Status(
                file_class.value,
                (counts.files[file_class], counts.harmful[file_class]),
                BAD
                if counts.harmful[file_class]
                else GOOD
                if file_class in _GOOD_CLASSES
                else NOTABLE,
                meanings.get(file_class, file_class.meaning),
            )
            for file_class in FileClass
            if counts.files[file_class]
        ]

    @property
    def facts(self) -> list[str]:
        """The scope of the verification, and what it does not detect."""
        counts, lines = self.found, []
        partitions = plural(counts.partitions, "partition")
        action = "compared" if counts.is_comparison else "verified"
        size_text = f", {format_bytes(self.log_bytes)} of logs" if self.is_fast else ""
        lines.append(f"{partitions} {action}{size_text}")
        if counts.logs_only:
            lines.append(
                f"{plural(counts.logs_only, 'partition has', 'partitions have')} only "
                "logs: a broker reads all logs, and rebuilds the other files"
            )
        if self.metadata_fault is not None:
            lines.append(
                "the metadata log is corrupt, and the compacted topics are unknown: "
                f"{self.metadata_fault}"
            )
        if counts.is_comparison:
            lines.append(
                "checksums were not verified: equal damage in both copies is not detected (run "
                "verify on each copy)"
            )
        elif self.is_fast:
            lines.append(
                "--fast reads headers only, and detects neither wrong checksums nor changes inside "
                "records"
            )
        return lines

    @property
    def sections(self) -> list[Section]:
        """Future timestamps, thinned batches, unreadable files, and harmful files."""
        counts = self.found
        future_by_topic: dict[str, tuple[int, int]] = {}
        for partition in self.partitions:
            if partition.future_segments:
                segments, size_bytes = future_by_topic.get(partition.topic, (0, 0))
                future_by_topic[partition.topic] = (
                    segments + partition.future_segments,
                    size_bytes + partition.future_bytes,
                )
        future_lines = [
            f"{topic}: {plural(segments, 'segment')}, {format_bytes(size_bytes)}"
            for topic, (segments, size_bytes) in sorted(future_by_topic.items())
        ]
        harmful_count = counts.harmful.total()
        if not counts.is_comparison:
            harmful_count += counts.harmful_partitions
        return [
            Section("timestamps in the future delay retention by time:", future_lines),
            Section("records are missing inside batches:", _format_rows(counts.thinned_rows)),
            Section(
                f"{counts.harm}:",
                _format_rows(counts.harmful_rows),
                BAD,
                total=harmful_count,
                after=" rows in the report",
            ),
            Section(
                "files that could not be read, or changed while they were read:",
                _format_rows(counts.unread_rows),
                BAD,
                total=counts.retriable,
            ),
        ]

    @property
    def work_bytes(self) -> int:
        """The size of the logs, which were read completely unless `is_fast`."""
        return 0 if self.is_fast else self.log_bytes

    @property
    def next_command(self) -> str | None:
        """The command to run if a file or difference is harmful."""
        return self.command_after_harm if self.is_harmful else None

    def to_arrow(self) -> pa.Table:
        """Return the rows, sorted by partition; rows of root files come first."""
        topics = pc.fill_null(self.rows["topic"], "")
        keys = pa.table([topics, self.rows["partition"]], ["topic", "partition"])
        order = [("topic", "ascending"), ("partition", "ascending")]
        return self.rows.take(pc.sort_indices(keys, order))

    def _preview_rows(self) -> pa.Table:
        """Return the harmful rows, or all rows if none is harmful."""
        rows = self.to_arrow()
        harmful_rows = rows.filter(rows["harmful"])
        displayed_rows = harmful_rows if harmful_rows.num_rows else rows
        return displayed_rows.select(["class", "path", "kind", "position_bytes", "found", "effect"])


def _format_rows(rows: pa.Table) -> list[str]:
    return list(map(_format_row, rows.to_pylist()))


def _format_row(row: Mapping[str, object]) -> str:
    position = "" if row["position_bytes"] is None else f" at byte {row['position_bytes']}"
    description = f"{row['kind']}: {row['class']}{position}"
    content = "" if row["found"] is None else f": {_format_content(row)}"
    effect = "" if row["effect"] is None else f". {row['effect']}"
    return f"{shown_path(str(row['path']))}: {description}{content}{effect}"


def _format_content(row: Mapping[str, object]) -> str:
    """Return the found content, with the expected content except for gaps and partitions."""
    is_clear = row["class"] == FileClass.GAP or row["kind"] == FileKind.PARTITION
    if row["expected"] is None or is_clear:
        return str(row["found"])
    return f"expected {row['expected']}, found {row['found']}"

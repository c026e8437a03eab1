"""The findings of a verification: a row per file and partition, and the offsets that are lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Self

import pyarrow as pa

from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.logdir.partition_files import SegmentFile


class FileKind(StrEnum):
    """The kind of file that a row is about."""

    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"
    METADATA = "metadata"
    ROOT = "root"
    PARTITION = "partition"
    #: Two copies of a partition, of ``--against``.
    COPY = "copy"


def kind_of(suffix: str) -> FileKind:
    """Return the kind of the files of a segment with a suffix."""
    return FileKind(suffix.removeprefix("."))


class FileClass(StrEnum):
    """The class of a file, compared with the file that a build writes, and what it means."""

    explained: str

    def __new__(cls, value: str, explained: str = "") -> Self:
        """Return a class with its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.explained = explained
        return member

    IDENTICAL = "identical", "as a build writes it"
    SOUND = "sound", "a log whose batches are whole, and none is missing"
    VALID = "valid", "differs from a build, and is correct"
    EMPTY = "empty", "a log without batches"
    PREFIX = "prefix", "one copy ends before the other, and is equal up to there"
    THINNED = "thinned", "one copy lacks records inside batches"
    PADDED = "padded", "followed by zeros"
    INCOMPLETE = "incomplete", "entries are missing"
    MISSING = "missing", "not there"
    ORPHAN = "orphan", "belongs to no segment"
    LEFTOVER = "leftover", "of an interrupted compaction, split or deletion"
    STALE = "stale", "points beyond the log"
    MISPLACED = "misplaced", "points between batches"
    TOO_LOW = "too_low", "points past batches that it should lead to"
    FOREIGN = "foreign", "of another segment"
    CORRUPT = "corrupt", "cannot be what a broker writes"
    TORN = "torn", "a log that ends inside a batch"
    BAD_CRC = "bad_crc", "a log with a wrong checksum"
    GAP = "gap", "offsets are missing"
    OVERLAP = "overlap", "a log with offsets of another"
    DIVERGED = "diverged", "the copies hold different batches"
    UNREADABLE = "unreadable", "could not be read, or changed meanwhile"


#: The effect of a file that a broker fails on.
REFUSED = "A broker takes the data directory offline, or exits."


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the report.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The owner of the file; None where that does not apply.
    path : str
        The file; of a partition its directory.
    kind : FileKind
        The kind of file.
    file_class : FileClass
        Its class.
    harmful : bool
        Whether a broker that starts on the directory as it lies loses or hides records, answers
        wrongly, or does not start, because of this file.
    position_bytes : int, optional
        Where in the file.
    entry : int, optional
        Which entry of an index, snapshot or checkpoint, the first being 0.
    expected, found : str, optional
        The detail.
    effect : str, optional
        The effect on a broker that starts on it, in one sentence.
    retriable : bool
        The file could not be read because of permission, disk, memory or a change meanwhile.
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

    def judged(self, judgement: Judgement) -> Self:
        """Return the row of the same file with a judgement."""
        names = (field.name for field in fields(judgement))
        return replace(self, **{name: getattr(judgement, name) for name in names})

    def unread(
        self, why: str | None, *, retriable: bool, position_bytes: int | None = None
    ) -> Self:
        """Return the row of the same file, not read."""
        return replace(
            self,
            file_class=FileClass.UNREADABLE,
            harmful=not retriable,
            position_bytes=position_bytes,
            found=why,
            effect="It was not verified.",
            retriable=retriable,
        )

    def unreadable(self, error: KafkaIndexError) -> Self:
        """Return the row of the same file, which an error keeps from being read."""
        return self.unread(
            str(error), retriable=is_retriable(error), position_bytes=error.position_bytes
        )

    def refused(self, error: KafkaIndexError, effect: str = REFUSED) -> Self:
        """Return the row of the file at fault, which a broker fails on."""
        return replace(
            self,
            path=error.path or self.path,
            file_class=FileClass.CORRUPT,
            harmful=True,
            position_bytes=error.position_bytes,
            expected=error.expected,
            found=found_by(error),
            effect=effect,
        )


def finding_of(
    owner: TopicPartition | SegmentFile,
    path: str,
    kind: FileKind,
    file_class: FileClass,
    *,
    base_offset: int | None = None,
    harmful: bool = False,
) -> Finding:
    """Return the row of a file of a partition, before it is judged."""
    return Finding(owner.topic, owner.partition, base_offset, path, kind, file_class, harmful)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of the content of a file: the fields of a `Finding` that it decides."""

    file_class: FileClass
    harmful: bool = False
    position_bytes: int | None = None
    entry: int | None = None
    expected: str | None = None
    found: str | None = None
    effect: str | None = None


def found_by(error: KafkaIndexError) -> str:
    """Return what is wrong by an error, and what was found instead."""
    return ": ".join(filter(None, (error.message, error.found)))


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that no readable batch of a partition holds, and that compaction does not explain.

    Parameters
    ----------
    first_offset : int
        Where it begins.
    end_offset : int or None
        The offset after it; None if damage hides it.
    segment_base_offset : int
        The segment that it was found in.
    position_bytes : int
        Where in its log.
    size_bytes : int
        Bytes of the log that cannot be used; 0 for offsets without any bytes.
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
class PartitionFindings:
    """The findings in a partition.

    Parameters
    ----------
    topic, partition
        Its name.
    directory : str
        Its directory.
    findings : tuple of Finding
        A row per file, and the row of the partition last.
    lost : tuple of LostRange
        By offset.
    log_start_offset, log_end_offset : int or None
        Of the records that are there; None where there is no segment that could be read.
    log_bytes : int
        Of its logs.
    future_segments, future_bytes : int
        Segments whose largest timestamp is in the future, and the size of their logs. Retention by
        time does not delete them before that timestamp.
    """

    topic: str
    partition: int
    directory: str
    findings: tuple[Finding, ...]
    lost: tuple[LostRange, ...] = ()
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    log_bytes: int = 0
    future_segments: int = 0
    future_bytes: int = 0

    @property
    def is_harmful(self) -> bool:
        """Whether a file of it is harmful."""
        return any(one.harmful for one in self.findings)


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

_FIELDS = {"class": "file_class"}


def findings_table(findings: Iterable[Finding]) -> pa.Table:
    """Return rows as an Arrow table of `VERIFY_SCHEMA`."""
    rows = list(findings)
    columns = {
        name: [_plain(getattr(row, _FIELDS.get(name, name))) for row in rows]
        for name in VERIFY_SCHEMA.names
    }
    return pa.table(columns, schema=VERIFY_SCHEMA)


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return value.value
    # A path may hold bytes that are not UTF-8.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

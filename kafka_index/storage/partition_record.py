"""The record of a partition: what its published files were built from, and what was reported.

One hidden file beside them, ``.partition.kafka-index``, written after all of them are in place: a
line of JSON, and two Arrow streams, a row per segment and a row per published file. A broker
ignores it (its name has no offset before the first dot: LogFileUtils.offsetFromFileName).

Published files are trusted by size and ETag (of local files the time of their last change, which
no program can set), as they were right after their publication. Where that differs, as in a copy of
the output, the digest decides.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import orjson
import pyarrow as pa

from kafka_index.errors import KafkaIndexError
from kafka_index.storage.build_record import PublishedFile, ScanSettings
from kafka_index.storage.directories import Entry
from kafka_index.stores import store_of

PARTITION_RECORD = ".partition.kafka-index"
# Raise it whenever the rules of building change: older records then stop counting.
_VERSION = 1
_DIGEST_BYTES = 16

#: A row per segment: its log, and its row of the build report.
RECORDED_SEGMENTS = pa.schema(
    [
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_name", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("log_mtime_ns", pa.int64(), nullable=False),
        pa.field("log_version", pa.string(), nullable=False),
        pa.field("valid_bytes", pa.int64(), nullable=False),
        pa.field("batch_count", pa.int64(), nullable=False),
        pa.field("offset_entries", pa.int64(), nullable=False),
        pa.field("time_entries", pa.int64(), nullable=False),
        pa.field("next_offset", pa.int64(), nullable=False),
        pa.field("max_timestamp_ms", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("aborted_txns", pa.int64()),
        pa.field("producers", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("reason_code", pa.string()),
        # The row as the scan alone left it, for a run that folds again.
        pa.field("scan_reason_code", pa.string()),
    ]
)
#: A row per published file, those of segments, and those of the partition itself.
RECORDED_FILES = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """What was built of a partition.

    Parameters
    ----------
    run_id : str
        The run that wrote it.
    settings : ScanSettings
        How its segments were scanned.
    outputs : tuple of str
        The kinds of files that were asked for, sorted.
    expire_after_ms, expire_at_ms : int, optional
        How idle producers were left out.
    start : str
        What the fold began from, by sizes and times.
    is_whole : bool
        Every segment is here, and was folded.
    segments : pa.Table
        `RECORDED_SEGMENTS`, by base offset.
    files : pa.Table
        `RECORDED_FILES`.
    """

    run_id: str
    settings: ScanSettings
    outputs: tuple[str, ...]
    expire_after_ms: int | None
    expire_at_ms: int | None
    start: str
    is_whole: bool
    segments: pa.Table
    files: pa.Table

    @classmethod
    def read(cls, directory: str) -> PartitionRecord | None:
        """Read the record of a folder; None when there is none that this version understands."""
        path = partition_record_path(directory)
        try:
            data = store_of(path).read(path)
        except (OSError, KafkaIndexError):
            return None
        return cls.from_bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> PartitionRecord | None:
        """Parse what `to_bytes` wrote; None for anything else."""
        head, _, body = data.partition(b"\n")
        try:
            outer = orjson.loads(head)
            if outer["version"] != _VERSION or outer["digest"] != _digest(
                orjson.dumps(outer["record"]) + body
            ):
                return None
            fields = outer["record"]
            middle = outer["segments_bytes"]
            return cls(
                fields["run_id"],
                ScanSettings(*fields["settings"]),
                tuple(fields["outputs"]),
                fields["expire_after_ms"],
                fields["expire_at_ms"],
                fields["start"],
                fields["is_whole"],
                _table(body[:middle], RECORDED_SEGMENTS),
                _table(body[middle:], RECORDED_FILES),
            )
        except (ValueError, TypeError, KeyError, pa.ArrowException):
            return None

    def to_bytes(self) -> bytes:
        """Return the record, sealed with a digest of itself."""
        settings = self.settings
        fields = {
            "run_id": self.run_id,
            "settings": [
                settings.index_interval_bytes,
                settings.index_size_max_bytes,
                settings.verify_crc,
            ],
            "outputs": list(self.outputs),
            "expire_after_ms": self.expire_after_ms,
            "expire_at_ms": self.expire_at_ms,
            "start": self.start,
            "is_whole": self.is_whole,
        }
        segments, files = _stream(self.segments), _stream(self.files)
        outer = {
            "version": _VERSION,
            "digest": _digest(orjson.dumps(fields) + segments + files),
            "segments_bytes": len(segments),
            "record": fields,
        }
        return b"\n".join((orjson.dumps(outer), segments + files))

    def allows(self, settings: ScanSettings) -> bool:
        """Return whether scans with these settings would give what is recorded."""
        mine = self.settings
        return (
            mine.index_interval_bytes == settings.index_interval_bytes
            and mine.index_size_max_bytes == settings.index_size_max_bytes
            and (mine.verify_crc or not settings.verify_crc)
        )


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A published file, and how it looked right after its publication.

    Parameters
    ----------
    published : PublishedFile
        Its name, size and digest.
    change : str
        As `Entry.size_and_change` returned it.
    """

    published: PublishedFile
    change: str

    def is_untouched(self, found: Entry | None) -> bool:
        """Return whether nothing has changed the file."""
        return found is not None and found.size_and_change() == (
            self.published.size_bytes,
            self.change,
        )

    def is_intact(self, directory: str, found: Entry | None) -> bool:
        """Return whether the file has the bytes that were published; it is read where in doubt."""
        if self.is_untouched(found):
            return True
        if found is None or found.size_and_change()[0] != self.published.size_bytes:
            return False
        try:
            path = os.path.join(directory, self.published.name)
            return PublishedFile.of(path) == self.published
        except (OSError, KafkaIndexError):
            return False


def partition_record_path(directory: str) -> str:
    """Return the path of a partition's record."""
    return os.path.join(directory, PARTITION_RECORD)


def recorded_files(files: pa.Table) -> dict[str, RecordedFile]:
    """Return the files of a record by name."""
    columns = [files.column(name).to_pylist() for name in RECORDED_FILES.names]
    return {
        name: RecordedFile(PublishedFile(name, size_bytes, digest), change)
        for name, size_bytes, change, digest in zip(*columns, strict=True)
    }


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(data: bytes, schema: pa.Schema) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    if table.schema != schema:
        raise ValueError("other columns")
    return table


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()

"""The outcome of a partition, for the report and for the journal of a restore.

The journal grows by a line per finished partition, written when all files of the partition are
durable. It stays, as does the state file, and a broker ignores both: until a broker has started,
the same restore can be run again, even if it was killed after its last step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import MsgspecError

from kafka_index.core.errors import InputError
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.format.state_files import (
    Int32,
    Int64,
    Offset,
    Size,
    TopicId,
    convert_fields,
)
from kafka_index.core.fs.durable_files import publish_error, publishing
from kafka_index.core.fs.registry import store_of
from kafka_index.core.output.output import RunState, StateFile

#: The outcome of an offset that a group committed: it is the end of the log now, or what it was,
#: after that end, or under the old name of the topic.
CLAMPED = "clamped"
BEYOND_END = "beyond_end"
NOT_RENAMED = "not_renamed"
DAMAGED = "damaged"
KEYS_NOT_DROPPED = "keys_not_dropped"
NO_LOGS = "no_logs"
STRAY = "stray"
INCONSISTENT_TOPIC_ID = "inconsistent_topic_id"
ERROR = "error"
STATE_FILE = ".kafka-index-restore.json"
JOURNAL_FILE = ".kafka-index-restore.journal"
_VERSION = 4
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records that were in the log, or are missing from it, and are not in the output.

    The segment is the one they were in, or would follow, and `path` its log in the dump. Both
    offsets are missing; in a compacted log, not every offset between them had a record. The
    timestamps are the smallest and the largest, as far as headers say, and `records` is None where
    it cannot be known. `size_bytes` is 0 for bytes that are not in the dump; the others begin at
    `position_bytes`. `is_known`: they are lost for sure; compaction or retention may have removed
    others. `kept_by_batches` counts offsets in intact batches, which ``--salvage batches`` keeps.
    """

    segment_base_offset: Offset
    path: str
    first_offset: Int64 | None
    last_offset: Int64 | None
    code: str
    reason: str
    first_timestamp_ms: Int64 | None = None
    last_timestamp_ms: Int64 | None = None
    records: Int64 | None = None
    size_bytes: Size = 0
    position_bytes: Size | None = None
    is_known: bool = True
    kept_by_batches: Offset = 0

    @property
    def is_empty(self) -> bool:
        """Whether no offset is missing."""
        first, last = self.first_offset, self.last_offset
        return first is not None and last is not None and last < first


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """An offset that a group committed and that the restored log does not have.

    The end offset is None where the partition is not in the output.
    """

    topic: str
    partition: int
    group: str
    offset: Int64
    end_offset: Offset | None
    path: str
    status: str = BEYOND_END
    reason: str = ""

    def __str__(self) -> str:
        """Return the offset, the log end, and the reason."""
        what = f"group {self.group} committed {self.offset} of {self.topic}-{self.partition}"
        if self.status == NOT_RENAMED:
            return f"{what}, which stays under that name: {self.reason}"
        what += f", which ends at {self.end_offset}"
        if self.status == CLAMPED:
            return f"{what}: clamped to that"
        return f"{what}; not clamped: {self.reason}" if self.reason else what


@dataclass(slots=True)
class RestoredPartition:
    """The outcome of a partition.

    Parameters
    ----------
    partition : TopicPartition
        The partition.
    source : str
        Its directory in the dump.
    topic_id : str
        Of its topic.
    base_offset, log_start_offset, log_end_offset : int
        Of the restored log: where its first segment is, where it starts, and where it ends.
    segments, size_bytes : int
        How many logs there are, and their size.
    last_epoch : int
        The largest leader epoch of its batches and epochs; -1 for none.
    max_producer_id : int
        The largest producer id of its batches and snapshots; -1 for none.
    is_limited : bool
        Whether the log ends before that of the dump, as was asked for.
    dropped : int or None
        How many of its records had a key that was to be dropped; None where none was looked for.
    dropped_by_key : dict of int to int
        The number of dropped records by key, in the order of the sorted keys.
    open_producers : list of int
        The producers with a transaction that is open at the end.
    is_edited : bool
        Whether lost transaction markers were written again, or their records dropped.
    lost : list of LostRange
        What is not in the output.
    clamped : list of GroupOffset
        Of a partition of ``__consumer_offsets``: the offsets that were clamped in it.
    notes : list of str
        What is worth knowing.
    unread : list of str
        Files of the dump that were not read, each with the reason.
    code, reason : str or None
        Why it was left out; None where it was restored.
    retriable : bool
        It was left out because of permission, disk, memory or network.
    """

    partition: TopicPartition
    source: str
    topic_id: str
    base_offset: Offset = 0
    log_start_offset: Offset = 0
    log_end_offset: Offset = 0
    segments: Int32 = 0
    size_bytes: Size = 0
    last_epoch: Int64 = -1
    max_producer_id: Int64 = -1
    is_limited: bool = False
    dropped: Offset | None = None
    dropped_by_key: dict[Int32, Offset] = field(default_factory=dict)
    open_producers: list[Int64] = field(default_factory=list)
    is_edited: bool = False
    lost: list[LostRange] = field(default_factory=list)
    clamped: list[GroupOffset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    code: str | None = None
    reason: str | None = None
    retriable: bool = False

    @property
    def is_left_out(self) -> bool:
        """Whether it is not in the output."""
        return self.code is not None

    def leave_out(self, code: str, reason: str, *, retriable: bool = False) -> None:
        """Record that it is not in the output."""
        self.code, self.reason, self.retriable = code, reason, retriable


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreState(RunState):
    """The restore that was begun in an output, with the choices that its plan made."""

    topic_ids: dict[str, TopicId]
    until_ms: Int64 | None = None

    def begin(self, output: str) -> None:
        """Describe an output, durably, before anything else is written."""
        # Lines without a state file are of no use; later ones are appended to a durable file.
        store_of(output).put(os.path.join(output, JOURNAL_FILE), b"")
        restore_state(output).write(self)


def restore_state(output: str) -> StateFile[RestoreState]:
    """Return the state file of an output directory."""
    return StateFile(
        os.path.join(output, STATE_FILE),
        RestoreState,
        _VERSION,
        "state of a restore",
        "restore to an empty --output, or complete it with the version that began it",
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """The digest of the files of a finished partition, in its line of the journal."""

    files: str | None


class Journal:
    """The finished partitions of an output directory."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._path = os.path.join(output, JOURNAL_FILE)

    def finished(self) -> dict[TopicPartition, RestoredPartition]:
        """Return the finished partitions whose files have not changed since."""
        last = {}
        for line in self._lines():
            restored, files = _decoded(line, self._path)
            last[restored.partition] = restored, files
        found = {}
        for partition, (restored, files) in last.items():
            if restored.is_left_out or files is None:
                continue
            directory = os.path.join(self._output, partition.directory_name)
            if _files_digest(directory) != files:
                raise InputError(
                    "the partition has changed since it was restored",
                    path=directory,
                    hint="was a broker started on this output? restore to an empty directory",
                )
            found[partition] = restored
        return found

    def add(self, restored: Iterable[RestoredPartition]) -> None:
        """Record finished partitions, durably."""
        self._append(
            asdict(each)
            | {"files": _files_digest(os.path.join(self._output, each.partition.directory_name))}
            for each in restored
        )

    def reopen(self, restored: RestoredPartition) -> None:
        """Record, durably, that a partition is not finished any more."""
        self._append([asdict(restored) | {"files": None}])

    def _append(self, lines: Iterable[Mapping[str, object]]) -> None:
        with (
            publishing(self._path, "write the journal"),
            open(self._path, "a", encoding="utf-8") as file,
        ):
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[Any]:
        try:
            with open(self._path, "r+b") as file:
                data = file.read()
                # What follows the last line end was being written when the run was killed.
                whole = data.rfind(b"\n") + 1
                file.truncate(whole)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise publish_error(error, self._path, "read the journal") from error
        return list(filter(None, map(_parsed, data[:whole].splitlines())))


def _parsed(line: bytes) -> Any:
    """Return the content of a line; None for an incomplete line."""
    with suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


def _decoded(line: Any, path: str) -> tuple[RestoredPartition, str | None]:
    """Return a finished partition, and the digest of its files; None for a reopened one."""
    try:
        found, files = convert_fields(line, RestoredPartition), convert_fields(line, _Files).files
    except (MsgspecError, TypeError) as error:
        raise InputError(
            f"a line of the journal is malformed: {error}",
            path=path,
            found=repr(line)[:80],
            hint="restore to an empty --output",
        ) from error
    if parse_partition_directory(found.partition.directory_name) != found.partition:
        raise InputError(
            "a line of the journal is malformed: not a partition",
            path=path,
            found=repr(found.partition)[:80],
            hint="restore to an empty --output",
        )
    return found, files


def _files_digest(directory: str) -> str:
    """Return a digest that changes with every write, replacement, addition or removal of a file."""
    digest = hashlib.sha256()
    try:
        with os.scandir(directory) as entries:
            found = sorted((entry.name, entry.stat()) for entry in entries)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise publish_error(error, directory, "look at a restored partition") from error
    for name, info in found:
        digest.update(f"{name} {info.st_ino} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()

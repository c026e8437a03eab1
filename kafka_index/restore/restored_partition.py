"""The outcome of a partition, as it is reported, and kept in the journal of an unfinished restore.

The first line of the journal is the plan. It grows by a line per finished partition, written when
all files of the partition are durable, and is removed by the last step of all: until then, the same
restore can be run again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from kafka_index.errors import InputError, printable
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import AtomicFile, make_durable, publish_error, publishing

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
JOURNAL_FILE = ".kafka-index-restore.journal"
_VERSION = 3
_LOGGER = logging.getLogger(__name__)


class Salvage(StrEnum):
    """The part of a damaged partition that is kept."""

    PREFIX = "prefix"
    BATCHES = "batches"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records that were in the log, or should be, and are not in the output.

    The segment is the one they were in, or would follow, and `path` its log in the dump. Both
    offsets are missing; in a compacted log, not every offset between them had a record. The
    timestamps are the smallest and the largest, as far as headers say, and `records` is None where
    it cannot be known. `size_bytes` is 0 for bytes that are not in the dump; the others begin at
    `position_bytes`. `is_known`: they are lost for sure; compaction or retention may have removed
    others. `kept_by_batches` counts offsets in sound batches, which ``--salvage batches`` keeps.
    """

    segment_base_offset: int
    path: str
    first_offset: int | None
    last_offset: int | None
    code: str
    reason: str
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    records: int | None = None
    size_bytes: int = 0
    position_bytes: int | None = None
    is_known: bool = True
    kept_by_batches: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no offset is missing."""
        first, last = self.first_offset, self.last_offset
        return first is not None and last is not None and last < first


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """An offset that a group committed, and that does not fit what is restored.

    The end offset is None where the partition is not in the output.
    """

    topic: str
    partition: int
    group: str
    offset: int
    end_offset: int | None
    path: str
    status: str = BEYOND_END
    reason: str = ""

    def __str__(self) -> str:
        """Return it for people."""
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
    open_producers : list of int
        The producers with a transaction that is open at the end.
    lost : list of LostRange
        What is not in the output.
    clamped : list of GroupOffset
        Of a partition of ``__consumer_offsets``: the offsets that were clamped in it.
    notes : list of str
        What is worth knowing.
    code, reason : str or None
        Why it was left out; None where it was restored.
    retriable : bool
        It was left out because of permission, disk, memory or network.
    """

    partition: TopicPartition
    source: str
    topic_id: str
    base_offset: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: int = 0
    size_bytes: int = 0
    last_epoch: int = -1
    max_producer_id: int = -1
    is_limited: bool = False
    dropped: int | None = None
    open_producers: list[int] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    clamped: list[GroupOffset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
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


@dataclass(frozen=True, slots=True)
class BegunPlan:
    """The part of a plan that the journal keeps."""

    digest: str
    topic_ids: dict[str, str]
    until_ms: int | None = None


class Journal:
    """The journal in an output directory."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._path = os.path.join(output, JOURNAL_FILE)

    def begun(self) -> BegunPlan | None:
        """Return the plan that was begun here; None for none."""
        try:
            with open(self._path, encoding="utf-8") as file:
                plan = json.loads(file.readline())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise publish_error(error, self._path, "read the journal") from error
        except ValueError:
            plan = None
        if not isinstance(plan, dict) or plan.get("version") != _VERSION:
            raise InputError(
                "the unfinished restore is that of another version",
                path=self._path,
                hint="restore to an empty --output, or complete it with the version that began it",
            )
        return BegunPlan(
            str(plan.get("digest")), dict(plan.get("topic_ids", {})), plan.get("until_ms")
        )

    def begin(self, plan: BegunPlan) -> None:
        """Record the plan, durably, before anything else is written."""
        with AtomicFile(self._path, what="journal") as file:
            file.write(f"{json.dumps({'version': _VERSION, **asdict(plan)})}\n".encode())
            file.commit()
        for path, error in make_durable([self._output]).items():
            raise publish_error(error, path, "make the journal durable")

    def finished(self) -> dict[TopicPartition, RestoredPartition]:
        """Return the partitions that are finished, and as they were left."""
        last = {}
        for line in self._lines():
            restored = _decoded(line)
            last[restored.partition] = restored, line["files"]
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

    def remove(self) -> None:
        """Remove the journal: the restore is complete, and its exit code and losses are printed.

        A journal that stays, or that a crash brings back, does not harm: a broker passes over it,
        and the restore can be run again until a broker has started.
        """
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            _LOGGER.warning(
                "the restore is complete, but cannot remove its journal %s: %s; remove it",
                printable(self._path),
                error.strerror,
            )

    def _lines(self) -> list[dict[str, object]]:
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
        return list(filter(None, map(_parsed, data[:whole].splitlines()[1:])))


def _parsed(line: bytes) -> dict[str, object] | None:
    """Return a line; None for a line that was not written whole before the next."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _decoded(line: dict[str, object]) -> RestoredPartition:
    import msgspec  # noqa: PLC0415, executors restore without it, and read no journal

    try:
        return msgspec.convert(line, RestoredPartition)
    except msgspec.ValidationError as error:
        text = repr(line)[:80]
        raise InputError("a line of the journal is malformed", found=text) from error


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

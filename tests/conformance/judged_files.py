"""Kafka's classes on single files: write batches, read them, work on an index, dump."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .judge import Judge


class WrittenRecord(NamedTuple):
    """A record by its offset and timestamp, both absolute; None is Kafka's null."""

    offset: int
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def field(self) -> str:
        """The judge's word for it."""
        headers = "".join(f":{key.encode().hex()}={_hex(value)}" for key, value in self.headers)
        return f"{self.offset}:{self.timestamp_ms}:{_hex(self.key)}:{_hex(self.value)}{headers}"


@dataclass(frozen=True)
class WrittenBatch:
    """Arguments of Kafka's own builder for one batch (several messages in magic 0 and 1).

    `records`: in the order in which they are written; their offsets may leave gaps. `base_offset`:
    by default the first record's. `last_offset`: in place of the last record's: what is left of a
    batch when its last records are compacted. `log_append_time_ms`: timestamp type log append time
    with that time; None for create time. `delete_horizon_ms`: as the cleaner sets it; -1 for none.
    """

    records: tuple[WrittenRecord, ...]
    magic: int = 2
    codec: str = "none"
    base_offset: int | None = None
    last_offset: int | None = None
    leader_epoch: int = 0
    log_append_time_ms: int | None = None
    delete_horizon_ms: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False

    def field(self) -> str:
        """The judge's words for it."""
        base_offset = self.records[0].offset if self.base_offset is None else self.base_offset
        words = [
            f"magic={self.magic} codec={self.codec} base={base_offset} epoch={self.leader_epoch}",
            f"horizon={self.delete_horizon_ms} pid={self.producer_id} pepoch={self.producer_epoch}",
            f"seq={self.base_sequence} txn={_flag(self.transactional)}",
            f"control={_flag(self.control)}",
        ]
        if self.log_append_time_ms is not None:
            words.append(f"type=append now={self.log_append_time_ms}")
        if self.last_offset is not None:
            words.append(f"last={self.last_offset}")
        return " ".join(words + [f"@{record.field()}" for record in self.records])


@dataclass(frozen=True)
class EndMarker:
    """The control batch that ends a transaction, by Kafka's own writer."""

    base_offset: int
    producer_id: int
    producer_epoch: int = 0
    commit: bool = True
    coordinator_epoch: int = 0
    timestamp_ms: int = 0
    leader_epoch: int = 0

    def field(self) -> str:
        """The judge's words for it."""
        return (
            f"kind=marker base={self.base_offset} pid={self.producer_id} "
            f"pepoch={self.producer_epoch} commit={_flag(self.commit)} "
            f"coordinator={self.coordinator_epoch} timestamp={self.timestamp_ms} "
            f"epoch={self.leader_epoch}"
        )


@dataclass(frozen=True)
class LeaderChange:
    """The control batch of a new leader, as a quorum's log has it."""

    base_offset: int
    leader_epoch: int
    timestamp_ms: int = 0

    def field(self) -> str:
        """The judge's words for it."""
        return (
            f"kind=leader-change base={self.base_offset} epoch={self.leader_epoch} "
            f"timestamp={self.timestamp_ms}"
        )


@dataclass(frozen=True)
class EmptyBatch:
    """The remains of a batch after compaction has removed all its records."""

    base_offset: int
    last_offset: int
    timestamp_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = 0
    transactional: bool = False
    control: bool = False

    def field(self) -> str:
        """The judge's words for it."""
        return (
            f"kind=empty base={self.base_offset} last={self.last_offset} "
            f"timestamp={self.timestamp_ms} pid={self.producer_id} pepoch={self.producer_epoch} "
            f"seq={self.base_sequence} epoch={self.leader_epoch} "
            f"txn={_flag(self.transactional)} control={_flag(self.control)}"
        )


Written = WrittenBatch | EndMarker | LeaderChange | EmptyBatch


class BatchRead(NamedTuple):
    """A batch of a log file and what Kafka hands out of it.

    `fault`: simple name of the class of what Kafka throws after these records; None for nothing.
    """

    position_bytes: int
    size_bytes: int
    records: tuple[WrittenRecord, ...]
    fault: str | None


def write_batches(judge: Judge, path: Path, batches: Iterable[Written]) -> list[int]:
    """Write a file of batches with Kafka's builders; their sizes in bytes."""
    reply = judge.demand("write", path, *(batch.field() for batch in batches))
    return [int(size) for size in reply[1:]]


def read_batches(judge: Judge, path: Path) -> list[BatchRead]:
    """All batches of a log file with the records that Kafka's iteration hands out."""
    return [_batch(text) for text in judge.demand("records", path)[1:] if text]


def index_operations(
    judge: Judge, kind: str, path: Path, base_offset: int, operations: Sequence[str]
) -> list[str]:
    """Do one thing after another with an index file.

    `kind`: ``offset``, ``time``, ``txn``, ``lazy-offset`` or ``lazy-time``. `operations`: words and
    numbers, as listed in ``Indexes.java``. Returns an answer to each, ``!CLASS_NAME`` where Kafka
    threw.
    """
    return judge.demand("index", kind, path, base_offset, *operations)[1:]


def dump_log(judge: Judge, output: Path, *arguments: str) -> str:
    """Run ``DumpLogSegments`` and return what it prints; `output` is a file to print to."""
    judge.demand("dump-log", output, *arguments)
    return output.read_text(encoding="utf-8")


def _batch(text: str) -> BatchRead:
    position, size, *words = text.split(" ")
    fault = words.pop()[1:] if words and words[-1].startswith("!") else None
    return BatchRead(int(position), int(size), tuple(map(_record, words)), fault)


def _record(word: str) -> WrittenRecord:
    offset, timestamp, key, value, *headers = word.split(":")
    pairs = (header.split("=") for header in headers)
    return WrittenRecord(
        int(offset),
        int(timestamp),
        _bytes(key),
        _bytes(value),
        tuple((bytes.fromhex(name).decode(), _bytes(content)) for name, content in pairs),
    )


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


def _flag(value: bool) -> str:  # noqa: FBT001 - one value, turned into its word
    return "true" if value else "false"

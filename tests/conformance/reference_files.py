"""Kafka's classes on single files: write batches, read all of a log, work on an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .kafka_reference import KafkaReference


Header = tuple[str, bytes | None]


class WrittenRecord(NamedTuple):
    """A record by its offset and timestamp, both absolute; None is Kafka's null."""

    offset: int
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[Header, ...] = ()

    def field(self) -> str:
        """The reference program's word for it."""
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
        """The reference program's words for it."""
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
        """The reference program's words for it."""
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
        """The reference program's words for it."""
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
        """The reference program's words for it."""
        return (
            f"kind=empty base={self.base_offset} last={self.last_offset} "
            f"timestamp={self.timestamp_ms} pid={self.producer_id} pepoch={self.producer_epoch} "
            f"seq={self.base_sequence} epoch={self.leader_epoch} "
            f"txn={_flag(self.transactional)} control={_flag(self.control)}"
        )


Written = WrittenBatch | EndMarker | LeaderChange | EmptyBatch


def write_batches(reference: KafkaReference, path: Path, batches: Iterable[Written]) -> list[int]:
    """Write a file of batches with Kafka's builders; their sizes in bytes."""
    reply = reference.demand("write", path, *(batch.field() for batch in batches))
    return [int(size) for size in reply[1:]]


def index_operations(
    reference: KafkaReference, kind: str, path: Path, base_offset: int, operations: Sequence[str]
) -> list[str]:
    """Do one thing after another with an index file.

    `kind`: ``offset``, ``time``, ``lazy-offset`` or ``lazy-time``. `operations`: words and
    numbers, as listed in ``Indexes.java``. Returns an answer to each, ``!CLASS_NAME`` where Kafka
    threw.
    """
    return reference.demand("index", kind, path, base_offset, *operations)[1:]


class ReadRecord(NamedTuple):
    """A record as Kafka's iteration returns it; None is Kafka's null.

    `has_contents`: false for a message whose key or value Kafka cannot return. `is_valid`: false
    for a message with a wrong checksum, which the consumer refuses.
    """

    offset: int
    timestamp_ms: int
    sequence: int
    size_bytes: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    has_contents: bool = True
    is_valid: bool = True


@dataclass(frozen=True)
class ReadBatch:
    """A batch of a log file, and all that Kafka says of it.

    `invalid`: class of what ``ensureValid`` throws; None for nothing. `base_offset`: none where
    Kafka cannot tell: it is inside a compressed message that cannot be read. `records`: the
    iteration returns them. `fault`: class of what it throws after them; None for nothing.
    """

    position_bytes: int
    size_bytes: int
    magic: int
    invalid: str | None
    base_offset: int | None
    last_offset: int | None
    leader_epoch: int | None
    timestamp_type: int | None
    producer_id: int | None
    producer_epoch: int | None
    is_control: bool
    records: tuple[ReadRecord, ...]
    fault: str | None


class ReadLog(NamedTuple):
    """All batches of a log file, and the class of what Kafka throws after them, if anything."""

    batches: tuple[ReadBatch, ...]
    fault: str | None


def read_log(reference: KafkaReference, path: Path) -> ReadLog:
    """Read a log file with Kafka's ``FileRecords``, each batch verified and iterated over."""
    *batches, end = reference.demand("read-batches", path)[1:]
    return ReadLog(tuple(map(_batch, batches)), _fault(end))


def read_batches(reference: KafkaReference, path: Path) -> tuple[ReadBatch, ...]:
    """All batches of a log file that Kafka reads to its end."""
    result = read_log(reference, path)
    assert result.fault is None
    return result.batches


def _batch(text: str) -> ReadBatch:
    words = text.split(" ")
    fields, words = words[:11], words[11:]
    fault = _fault(words.pop()) if words and words[-1].startswith("!") else None
    return ReadBatch(
        position_bytes=int(fields[0]),
        size_bytes=int(fields[1]),
        magic=int(fields[2]),
        invalid=_fault(fields[3]),
        base_offset=_number(fields[4]),
        last_offset=_number(fields[5]),
        leader_epoch=_number(fields[6]),
        timestamp_type=_number(fields[7]),
        producer_id=_number(fields[8]),
        producer_epoch=_number(fields[9]),
        is_control=fields[10] == "true",
        records=tuple(map(_record, words)),
        fault=fault,
    )


def _record(word: str) -> ReadRecord:
    is_valid = not word.startswith("~")
    offset, timestamp, sequence, size, *words = word.removeprefix("~").split(":")
    has_contents = words != ["!"]
    return ReadRecord(
        int(offset),
        int(timestamp),
        int(sequence),
        int(size),
        *(contents_of(*words) if has_contents else (None, None, ())),
        has_contents=has_contents,
        is_valid=is_valid,
    )


def contents_of(
    key: str, value: str, *headers: str
) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
    """Key, value and headers of a record by the reference program's words for them."""
    pairs = (header.split("=") for header in headers)
    names = ((bytes.fromhex(name).decode(), _bytes(content)) for name, content in pairs)
    return _bytes(key), _bytes(value), tuple(names)


def _number(word: str) -> int | None:
    return None if word.startswith("!") else int(word)


def _fault(word: str) -> str | None:
    return word[1:] if word.startswith("!") else None


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


def _flag(value: bool) -> str:  # noqa: FBT001 - one value, turned into its word
    return "true" if value else "false"

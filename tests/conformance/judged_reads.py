"""Everything that Kafka reads in the log file of a segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge

Header = tuple[str, bytes | None]


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


def read_log(judge: Judge, path: Path) -> ReadLog:
    """Read a log file with Kafka's ``FileRecords``, each batch verified and iterated over."""
    *batches, end = judge.demand("read-batches", path)[1:]
    return ReadLog(tuple(map(_batch, batches)), _fault(end))


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
    offset, timestamp, sequence, size, *contents = word.removeprefix("~").split(":")
    if contents == ["!"]:
        return ReadRecord(
            int(offset),
            int(timestamp),
            int(sequence),
            int(size),
            None,
            None,
            (),
            has_contents=False,
            is_valid=is_valid,
        )
    key, value, *headers = contents
    pairs = (header.split("=") for header in headers)
    return ReadRecord(
        int(offset),
        int(timestamp),
        int(sequence),
        int(size),
        _bytes(key),
        _bytes(value),
        tuple((bytes.fromhex(name).decode(), _bytes(content)) for name, content in pairs),
        is_valid=is_valid,
    )


def _number(word: str) -> int | None:
    return None if word.startswith("!") else int(word)


def _fault(word: str) -> str | None:
    return word[1:] if word.startswith("!") else None


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)

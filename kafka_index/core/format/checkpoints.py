"""Checkpoint files of a data directory and of a partition directory.

Both are UTF-8 lines: a version (``0``), the number of entries, then one entry per line::

    0                     0
    2                     2
    orders 0 368769       0 0
    orders 1 368801       4 368769

    offset checkpoint     leader-epoch-checkpoint
    (topic partition      (epoch, start offset)
    offset)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple

from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.strings import quote_content

CHECKPOINT_VERSION = 0
#: Maximum number of elements of a Java list.
_MAX_ENTRIES = INT32_MAX - 2
_MALFORMED, _NOT_A_NUMBER = "IOException", "NumberFormatException"

_Path = str | PathLike[str] | None
# Java's \s, which is ASCII only.
_BLANKS = re.compile(r"\s+", re.ASCII)
# A complete offset checkpoint as brokers write it, and one of its entries.
_BROKER_CHECKPOINT = re.compile(r"0\n(\d{1,9})\n((?:\S+ \d{1,9} \d{1,18}\n)*)", re.ASCII)
_BROKER_ENTRY = re.compile(r"(\S+) (\d+) (\d+)\n", re.ASCII)
# BufferedReader.readLine accepts exactly these line ends; str.splitlines accepts more.
_LINE_END = re.compile(r"\r\n|\n|\r")


class CheckpointFields(NamedTuple):
    """Fields of a checkpoint entry: their names for messages, and their maxima (None for text)."""

    form: str
    largest: tuple[int | None, ...]


OFFSET_FIELDS = CheckpointFields("topic partition offset", (None, INT32_MAX, INT64_MAX))
EPOCH_FIELDS = CheckpointFields("epoch startOffset", (INT32_MAX, INT64_MAX))


@dataclass(frozen=True, slots=True)
class EpochEntry:
    epoch: int
    start_offset: int


def parse_offset_checkpoint(text: str, *, path: _Path = None) -> dict[TopicPartition, int]:
    """Parse an offset checkpoint (recovery point, high watermark, log start, cleaner).

    An empty file has no entries; of repeated partitions, the last entry applies, as in Kafka.
    `path` is used in errors. Raises `InputError` for another version, a malformed line, or a wrong
    number of entries. Source: OffsetCheckpointFile.Formatter.fromString; CheckpointFile.read.
    """
    offsets = parse_offsets_or_defect(text)
    if isinstance(offsets, CheckpointDefect):
        raise checkpoint_error(offsets, path)
    return offsets


def parse_offsets_or_defect(text: str) -> dict[TopicPartition, int] | CheckpointDefect:
    """Return the entries of an offset checkpoint, or the reason why Java cannot read it."""
    checkpoint = _BROKER_CHECKPOINT.fullmatch(text)
    entries = [] if checkpoint is None else _BROKER_ENTRY.findall(checkpoint[2])
    if checkpoint is None or len(entries) != int(checkpoint[1]):
        lines = java_lines(text)
        fault = find_checkpoint_defect(lines, OFFSET_FIELDS)
        if fault is not None:
            return fault
        entries = _split_entries(lines, OFFSET_FIELDS)
    return {
        TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in entries
    }


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> str:
    return _format_checkpoint(
        f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()
    )


def parse_leader_epoch_checkpoint(text: str, *, path: _Path = None) -> list[EpochEntry]:
    """Parse a ``leader-epoch-checkpoint``; an empty file has no entries.

    Entries are returned in file order; `LeaderEpochCache` validates them. Raises `InputError` for
    another version, a malformed line, or a wrong number of entries. Source:
    LeaderEpochCheckpointFile.Formatter.fromString; CheckpointFile.read.
    """
    lines = java_lines(text)
    fault = find_checkpoint_defect(lines, EPOCH_FIELDS)
    if fault is not None:
        raise checkpoint_error(fault, path)
    return [EpochEntry(int(e), int(start)) for e, start in _split_entries(lines, EPOCH_FIELDS)]


def format_leader_epoch_checkpoint(entries: Iterable[EpochEntry]) -> str:
    return _format_checkpoint(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def _format_checkpoint(lines: Iterable[str]) -> str:
    entries = list(lines)
    return "".join(f"{line}\n" for line in [str(CHECKPOINT_VERSION), str(len(entries)), *entries])


class CheckpointDefect(NamedTuple):
    """The reason why Java cannot read a checkpoint: Java's exception, line number, and message."""

    exception: str
    line: int
    message: str
    expected: object
    found: str | int

    @property
    def is_input_output(self) -> bool:
        """Whether a broker marks the directory offline because of this checkpoint."""
        return self.exception == _MALFORMED

    @property
    def is_error(self) -> bool:
        """Whether Java throws an `Error`, which a broker does not catch."""
        return self.exception == "OutOfMemoryError"


def java_lines(text: str) -> list[str]:
    """Split a text into lines (``BufferedReader.readLine``)."""
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        del lines[-1]
    return lines


def find_checkpoint_defect(lines: list[str], fields: CheckpointFields) -> CheckpointDefect | None:
    """Return why Java cannot read a checkpoint (``CheckpointFile.read``); None if it can."""
    # Kafka reads a checkpoint that ends before its number of entries as empty.
    if lines and parse_java_integer(lines[0], INT32_MAX) != CHECKPOINT_VERSION:
        message = "line 1 of the checkpoint is not a known version"
        return CheckpointDefect(_MALFORMED, 1, message, CHECKPOINT_VERSION, lines[0])
    if len(lines) < 2:
        return None
    count = parse_java_integer(lines[1], INT32_MAX)
    if count is None or not 0 <= count <= _MAX_ENTRIES:
        exception = _MALFORMED
        if count is not None:
            exception = "IllegalArgumentException" if count < 0 else "OutOfMemoryError"
        message = "line 2 of the checkpoint is not a count"
        return CheckpointDefect(exception, 2, message, "a count of entries", lines[1])
    for number, line in enumerate(lines[2:], start=3):
        words = _split_words(line)
        if len(words) == len(fields.largest):
            if all(map(_is_number, words, fields.largest)):
                continue
            exception = _NOT_A_NUMBER
        else:
            exception = _MALFORMED
        message = f"line {number} of the checkpoint is malformed"
        return CheckpointDefect(exception, number, message, repr(fields.form), line)
    if len(lines) - 2 == count:
        return None
    message = "the number of entries in the checkpoint differs from the number on line 2"
    return CheckpointDefect(_MALFORMED, 2, message, count, len(lines) - 2)


def _split_words(line: str) -> list[str]:
    return _BLANKS.split(line.rstrip(" \t\v\f"))


def _is_number(word: str, largest: int | None) -> bool:
    return largest is None or parse_java_integer(word, largest) is not None


def _split_entries(lines: Sequence[str], fields: CheckpointFields) -> list[list[str]]:
    """Return the fields of each entry of a valid checkpoint."""
    return [
        [
            word if largest is None else str(parse_java_integer(word, largest))
            for word, largest in zip(_split_words(line), fields.largest, strict=True)
        ]
        for line in lines[2:]
    ]


def checkpoint_error(fault: CheckpointDefect, path: _Path) -> InputError:
    return InputError(
        fault.message,
        path=path,
        expected=fault.expected,
        found=quote_content(fault.found, path) if isinstance(fault.found, str) else fault.found,
        line=fault.line,
    )

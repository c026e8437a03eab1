"""The checkpoint texts of a data directory and of a partition directory.

Both are UTF-8 lines: a version (``0``), the count of entries, then an entry a line::

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple

from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.strings import quote_content

CHECKPOINT_VERSION = 0
#: A list of Java's has no room for more entries.
_MAX_ENTRIES = INT32_MAX - 2
_MALFORMED, _NOT_A_NUMBER = "IOException", "NumberFormatException"

_Path = str | PathLike[str] | None
# Java's \s, which is ASCII only.
_BLANKS = re.compile(r"\s+", re.ASCII)
# BufferedReader.readLine knows these line ends and no other; str.splitlines knows more.
_LINE_END = re.compile(r"\r\n|\n|\r")


class CheckpointFields(NamedTuple):
    """The fields of an entry for people, and the largest number of each; None for a text."""

    form: str
    largest: tuple[int | None, ...]


OFFSET_FIELDS = CheckpointFields("topic partition offset", (None, INT32_MAX, INT64_MAX))
EPOCH_FIELDS = CheckpointFields("epoch startOffset", (INT32_MAX, INT64_MAX))


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A leader epoch, int32, and its first offset, absolute."""

    epoch: int
    start_offset: int


def parse_offset_checkpoint(text: str, *, path: _Path = None) -> dict[TopicPartition, int]:
    """Parse an offset checkpoint (recovery point, high watermark, log start, cleaner).

    An empty file has no entries; a partition named twice has its last offset, as in Kafka. The path
    is for errors. Raises `InputError` for another version, a malformed line, or a number of entries
    that is not the announced one. Source: OffsetCheckpointFile.Formatter.fromString;
    CheckpointFile.read.
    """
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partition, offset in _entries(text, OFFSET_FIELDS, path)
    }


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the text of an offset checkpoint, entries in the order of the mapping."""
    return _format(
        f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()
    )


def parse_leader_epoch_checkpoint(text: str, *, path: _Path = None) -> list[EpochEntry]:
    """Parse a ``leader-epoch-checkpoint``; an empty file has no entries.

    The order of the lines is kept and not judged: the epoch cache does that. Raises `InputError`
    for another version, a malformed line, or a number of entries that is not the announced one.
    Source: LeaderEpochCheckpointFile.Formatter.fromString; CheckpointFile.read.
    """
    return [EpochEntry(int(e), int(start)) for e, start in _entries(text, EPOCH_FIELDS, path)]


def format_leader_epoch_checkpoint(entries: Iterable[EpochEntry]) -> str:
    """Return the text of a ``leader-epoch-checkpoint``."""
    return _format(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def _format(lines: Iterable[str]) -> str:
    entries = list(lines)
    return "".join(f"{line}\n" for line in [str(CHECKPOINT_VERSION), str(len(entries)), *entries])


class CheckpointFault(NamedTuple):
    """The reason why Java does not read a checkpoint: its exception, the line, and a message."""

    exception: str
    line: int
    message: str
    expected: object
    found: str | int

    @property
    def is_input_output(self) -> bool:
        """Whether a broker takes the directory offline for it."""
        return self.exception == _MALFORMED

    @property
    def is_error(self) -> bool:
        """Whether a broker catches it nowhere."""
        return self.exception == "OutOfMemoryError"


def java_lines(text: str) -> list[str]:
    """Return the lines of a text (``BufferedReader.readLine``)."""
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        del lines[-1]
    return lines


def checkpoint_fault(lines: list[str], fields: CheckpointFields) -> CheckpointFault | None:
    """Return why a checkpoint is not read (``CheckpointFile.read``); None where it is."""
    # A file cut before its count reads as empty.
    if lines and parse_java_integer(lines[0], INT32_MAX) != CHECKPOINT_VERSION:
        text = "line 1 of a checkpoint is not a known version"
        return CheckpointFault(_MALFORMED, 1, text, CHECKPOINT_VERSION, lines[0])
    if len(lines) < 2:
        return None
    count = parse_java_integer(lines[1], INT32_MAX)
    if count is None or not 0 <= count <= _MAX_ENTRIES:
        exception = _MALFORMED
        if count is not None:
            exception = "IllegalArgumentException" if count < 0 else "OutOfMemoryError"
        text = "line 2 of a checkpoint is not a count"
        return CheckpointFault(exception, 2, text, "a count of entries", lines[1])
    for number, line in enumerate(lines[2:], start=3):
        words = _words(line)
        if len(words) == len(fields.largest):
            if all(map(_is_number, words, fields.largest)):
                continue
            exception = _NOT_A_NUMBER
        else:
            exception = _MALFORMED
        text = f"line {number} of a checkpoint is malformed"
        return CheckpointFault(exception, number, text, repr(fields.form), line)
    if len(lines) - 2 == count:
        return None
    text = "the number of entries of a checkpoint is not the one on its line 2"
    return CheckpointFault(_MALFORMED, 2, text, count, len(lines) - 2)


def _words(line: str) -> list[str]:
    return _BLANKS.split(line.rstrip(" \t\v\f"))


def _is_number(word: str, largest: int | None) -> bool:
    return largest is None or parse_java_integer(word, largest) is not None


def _entries(text: str, fields: CheckpointFields, path: _Path) -> list[list[str]]:
    lines = java_lines(text)
    fault = checkpoint_fault(lines, fields)
    if fault is not None:
        raise refused_checkpoint(fault, path)
    return [
        [
            word if largest is None else str(parse_java_integer(word, largest))
            for word, largest in zip(_words(line), fields.largest, strict=True)
        ]
        for line in lines[2:]
    ]


def refused_checkpoint(fault: CheckpointFault, path: _Path) -> InputError:
    """Return the error about a checkpoint with a fault."""
    return InputError(
        fault.message,
        path=path,
        expected=fault.expected,
        found=quote_content(fault.found, path) if isinstance(fault.found, str) else fault.found,
        line=fault.line,
    )

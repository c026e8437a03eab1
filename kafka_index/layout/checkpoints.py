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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TypeVar

from kafka_index.errors import InputError
from kafka_index.layout.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.quoted_content import quote_content

CHECKPOINT_VERSION = 0

_Entry = TypeVar("_Entry")
_Path = str | PathLike[str] | None
# Java's \s, which is ASCII only.
_BLANKS = re.compile(r"\s+", re.ASCII)
# BufferedReader.readLine knows these line ends and no other; str.splitlines knows more.
_LINE_END = re.compile(r"\r\n|\n|\r")


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

    def entry(words: list[str]) -> tuple[TopicPartition, int] | None:
        if len(words) != 3:
            return None
        partition = parse_java_integer(words[1], INT32_MAX)
        offset = parse_java_integer(words[2], INT64_MAX)
        if partition is None or offset is None:
            return None
        return TopicPartition(words[0], partition), offset

    return dict(_parse(text, entry, "topic partition offset", path))


def check_offset_checkpoint_form(text: str, *, path: _Path = None) -> None:
    """Check the form of an offset checkpoint, but not that its fields are numbers.

    Raises the errors of `parse_offset_checkpoint`, for which a broker takes a directory offline; it
    meets a field that is not a number later (``NumberFormatException``).
    """
    _parse(text, lambda words: len(words) == 3 or None, "topic partition offset", path)


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

    def entry(words: list[str]) -> EpochEntry | None:
        if len(words) != 2:
            return None
        epoch, start_offset = (
            parse_java_integer(words[0], INT32_MAX),
            parse_java_integer(words[1], INT64_MAX),
        )
        return None if epoch is None or start_offset is None else EpochEntry(epoch, start_offset)

    return _parse(text, entry, "epoch startOffset", path)


def format_leader_epoch_checkpoint(entries: Iterable[EpochEntry]) -> str:
    """Return the text of a ``leader-epoch-checkpoint``."""
    return _format(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def _format(lines: Iterable[str]) -> str:
    entries = list(lines)
    return "".join(f"{line}\n" for line in [str(CHECKPOINT_VERSION), str(len(entries)), *entries])


def _parse(
    text: str, entry: Callable[[list[str]], _Entry | None], form: str, path: _Path
) -> list[_Entry]:
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        del lines[-1]
    # A file cut before its count reads as empty: CheckpointFile.read does the same.
    if lines and parse_java_integer(lines[0], INT32_MAX) != CHECKPOINT_VERSION:
        raise InputError(
            "line 1 of a checkpoint is not a known version",
            path=path,
            expected=CHECKPOINT_VERSION,
            found=quote_content(lines[0], path),
            line=1,
        )
    if len(lines) < 2:
        return []
    count = parse_java_integer(lines[1], INT32_MAX)
    if count is None or count < 0:
        raise InputError(
            "line 2 of a checkpoint is not a count",
            path=path,
            expected="a count of entries",
            found=quote_content(lines[1], path),
            line=2,
        )
    entries: list[_Entry] = []
    for number, line in enumerate(lines[2:], start=3):
        parsed = entry(_BLANKS.split(line.rstrip(" \t\v\f")))
        if parsed is None:
            raise InputError(
                f"line {number} of a checkpoint is malformed",
                path=path,
                expected=repr(form),
                found=quote_content(line, path),
                line=number,
            )
        entries.append(parsed)
    if len(entries) != count:
        raise InputError(
            "the number of entries of a checkpoint is not the one on its line 2",
            path=path,
            expected=count,
            found=len(entries),
            line=2,
        )
    return entries

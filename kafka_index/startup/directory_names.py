"""The names in a data directory as a starting broker takes them, legal topics or not.

Source: Kafka's ``LocalLog.parseTopicPartitionName``, ``LogFileUtils.offsetFromFileName``.
"""

from __future__ import annotations

import os
import re

from kafka_index.layout.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.layout.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    DirectoryKind,
    TopicPartition,
)
from kafka_index.startup.prediction import StartRefusedError

_KRAFT_SNAPSHOT = ".checkpoint.deleted"
_ENDINGS = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)
_MARKS = (DirectoryKind.DELETE, DirectoryKind.FUTURE, DirectoryKind.STRAY)
# Java's \S, which is ASCII only.
_WORD = r"[^ \t\n\v\f\r]+"
_MARKED = re.compile(rf"{_WORD}-{_WORD}\.{_WORD}-(?:delete|future|stray)")


def parse_log_directory(name: str) -> tuple[TopicPartition, DirectoryKind] | None:
    """Return the partition that a broker takes a directory for; None where it exits.

    Notes
    -----
    LocalLog.parseTopicPartitionName
    """
    kind = next((one for one in _MARKS if name.endswith(f"-{one.value}")), DirectoryKind.LIVE)
    if kind is not DirectoryKind.LIVE:
        if _MARKED.fullmatch(name) is None:
            return None
        name = name.rpartition(".")[0]
    topic, dash, text = name.rpartition("-")
    partition = parse_java_integer(text, INT32_MAX)
    if not dash or not topic or partition is None:
        return None
    return TopicPartition(topic, partition), kind


def check_segment_file_name(name: str, directory: str) -> None:
    """Refuse the name of a segment's file over which a broker exits.

    Parameters
    ----------
    name : str
        Of a regular file, or a link to one.
    directory : str
        The partition directory.

    Raises
    ------
    StartRefusedError
        It does not begin with an offset, of 64 bits.
    """
    if name.endswith((DELETED_SUFFIX, _KRAFT_SNAPSHOT)) or not name.endswith(_ENDINGS):
        return
    if file_offset(name) is None:
        raise StartRefusedError(
            "the name of a segment's file does not begin with an offset",
            path=os.path.join(directory, name),
        )


def file_offset(name: str) -> int | None:
    """Return the offset that the name of a file begins with; None where Java reads none."""
    return parse_java_integer(name.partition(".")[0], INT64_MAX)


def is_misnamed_log(name: str) -> bool:
    """Return whether a broker opens another, empty log for this one, of an offset's usual name."""
    ending = next(
        (one for one in (LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX) if name.endswith(one)), None
    )
    offset = file_offset(name)
    if ending is None or offset is None:
        return False
    sign = "-" if offset < 0 else ""
    return name != f"{sign}{abs(offset):0{OFFSET_DIGITS}d}{ending}"

"""One segment through Kafka's recovery, and what a random test found there."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.golden_segments import (
    NO_ROOM,
    GoldenSegment,
    Recovered,
    write_found_segment,
    write_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.segments import Segment

    from .kafka_reference import KafkaReference

# A broker that meets one of these does not start. Kafka distinguishes kinds of failure by class and
# message; both are in one table here, and an exception that is not in it is a finding.
#: Class of the exception (with any of several for one kind), beginning of its message, our reason.
_KINDS: tuple[tuple[str, str, str], ...] = (
    ("LogSegmentOffsetOverflowException", "", "offset_overflow"),
    ("InvalidOffsetException", "Attempt to append an offset", "offset_backward"),
    ("IllegalArgumentException", r"Attempt to append to a full (time )?index", "index_full"),
    ("IllegalArgumentException", "Invalid max index size", NO_ROOM),
    ("IllegalStateException", "Attempt to append a timestamp", "timestamp_backward"),
    ("InvalidTxnStateException", "Expected transactional write", "not_transactional"),
    (
        "IllegalArgumentException",
        r"Attempted to complete transaction .* which was not started",
        "transaction_unknown",
    ),
    (
        "IllegalArgumentException",
        "The last offset of appended transactions must increase",
        "abort_offset_backward",
    ),
    (
        "IllegalArgumentException",
        "Received invalid partition leader epoch entry",
        "epoch_offset_negative",
    ),
    # The record of a marker: unknown codecs and types, bytes that are not a varint, a key or value
    # that ends too soon.
    ("IllegalArgumentException", "Varint is too long", "unreadable_marker"),
    ("IllegalArgumentException", "Unknown compression type id", "unreadable_marker"),
    ("IllegalArgumentException", "Invalid control record type", "unreadable_marker"),
    ("NullPointerException", "", "unreadable_marker"),
    ("BufferUnderflowException", "", "unreadable_marker"),
    ("KafkaException", "", "unreadable_marker"),
    ("OutOfMemoryError", "", "unreadable_marker"),
)


def recovered_by_kafka(reference: KafkaReference, directory: Path, segment: Segment) -> Recovered:
    """Kafka's answer, from a copy under `directory`."""
    log_path = write_log(directory, segment)
    result = reference.recover(
        log_path.parent,
        segment.base_offset,
        segment.index_interval_bytes,
        segment.segment_index_bytes,
    )
    if result.truncated_bytes is None:
        assert result.error_class is not None
        return Recovered(
            refusal=_kind_of_refusal(result.error_class, result.error_message),
            reason=_lasting(f"{result.error_class}: {result.error_message}", log_path.parent),
        )
    valid_bytes = log_path.stat().st_size
    assert valid_bytes == len(segment.log) - result.truncated_bytes
    return Recovered(
        valid_bytes=valid_bytes,
        next_offset=result.next_offset,
        offset_index=log_path.with_suffix(".index").read_bytes(),
        time_index=log_path.with_suffix(".timeindex").read_bytes(),
    )


def _lasting(message: str, partition: Path) -> str:
    """A message without what is another in each run: folders, and when a file was written."""
    return re.sub(r"lastModifiedTime=\d+, ", "", message.replace(f"{partition}/", ""))


def _kind_of_refusal(error_class: str, error_message: str | None) -> str:
    """Our reason for what Kafka threw, or the exception itself when no reason stands for it."""
    for known_class, message, kind in _KINDS:
        if error_class == known_class and re.match(message, error_message or ""):
            return kind
    return f"{error_class}: {error_message}"


#: By test.
_last: dict[str, Path] = {}


@contextmanager
def kept_on_failure(test: str, segment: Segment, kafka: Recovered) -> Iterator[None]:
    """Write the segment down when what a test does with it here fails.

    While hypothesis shrinks, each failure takes the place of the one before; the last that it runs
    is the smallest.
    """
    try:
        yield
    except Exception as error:
        path = write_found_segment(GoldenSegment(segment.note or "random", segment, kafka))
        former = _last.get(test)
        if former is not None and former != path:
            former.unlink(missing_ok=True)
        _last[test] = path
        error.add_note(f"kept as {path}, where make test finds it; make golden takes it in")
        raise

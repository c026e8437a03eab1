"""The exceptions that Kafka's recovery throws, in the words of our reports.

A broker that meets one of these does not start. Kafka distinguishes kinds of failure by class and
message; both are in one table here, and an exception that is not in it is a finding.
"""

from __future__ import annotations

import re

from tests.support.golden_segments import NO_ROOM

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


def kind_of_refusal(error_class: str, error_message: str | None) -> str:
    """Our reason for what Kafka threw.

    `error_class`: simple name of the exception. `error_message`: its message, if it has one.
    Returns a reason as builds report it, or the exception itself when no reason stands for it.
    """
    for known_class, message, kind in _KINDS:
        if error_class == known_class and re.match(message, error_message or ""):
            return kind
    return f"{error_class}: {error_message}"

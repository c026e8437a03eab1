"""Special features of a segment and of its outcome, as words that can be counted.

`test_draws` holds the draw to it, and the golden segments are chosen by it.
"""

from __future__ import annotations

import random
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.golden_segments import recovered_by_build
from tests.support.segments import (
    BATCH_HEADER_SIZE,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    Segment,
)
from tests.support.strategies import DRAWN_BYTES, segment_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.golden_segments import Recovered

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "codec 5", "codec 6", "codec 7")
_FLAGS = {
    LOG_APPEND_TIME: "log-append time",
    TRANSACTIONAL: "transactional",
    CONTROL: "control",
    DELETE_HORIZON: "delete horizon",
}
_SMALLEST_MESSAGE = LOG_OVERHEAD + 14
# After the record's size, attributes, two deltas, the key's size and the version in it.
_CONTROL_TYPE_AT = BATCH_HEADER_SIZE + 7
_CONTROL_TYPES = range(-1, 8)


def random_segments(seed: int, count: int) -> Iterator[Segment]:
    """Segments from the draw of the tests, without hypothesis."""
    source = random.Random(seed)
    for number in range(count):
        yield segment_of(source.randbytes(DRAWN_BYTES), damaged=number % 4 != 0)


def features_of(segment: Segment, left: Recovered) -> set[str]:
    """Words for a segment and what recovery left of it, or why it failed."""
    found = {f"damage: {word.split()[0]}" for word in segment.note.split(", ") if segment.note}
    found.add(f"damages: {segment.note.count(' at ')}")
    found.add(f"interval: {segment.index_interval_bytes}")
    if left.refusal is not None:
        found.add(f"refused: {left.refusal}")
        valid = segment.log
    else:
        valid = segment.log[: left.valid_bytes]
        found.add(f"cut: {_first_word(left.reason)}" if left.reason else "whole")
        found.add(f"offset entries: {_size(left.offset_index, 8)}")
        found.add(f"time entries: {_size(left.time_index, 12)}")
    entries = list(_entries(valid))
    codecs = {feature for entry in entries for feature in _features_of_entry(entry)}
    found |= codecs
    if len({feature for feature in codecs if feature.startswith("codec")}) > 2:
        found.add("three codecs or more")
    return found


def _features_of_entry(entry: bytes) -> Iterator[str]:
    magic = struct.unpack_from(">b", entry, 16)[0]
    old = magic < 2
    attributes = entry[17] if old else struct.unpack_from(">h", entry, 21)[0]
    kind = f"magic {magic}" if 0 <= magic <= 2 else "magic below 0" if old else "magic above 2"
    yield kind
    yield f"codec: {kind}, {_CODECS[attributes & CODEC_MASK]}"
    if old:
        return
    for bit, name in _FLAGS.items():
        if attributes & bit:
            yield f"flag: {name}"
    (producer_id,) = struct.unpack_from(">q", entry, 43)
    (count,) = struct.unpack_from(">i", entry, 57)
    if count == 0:
        yield "no records"
    elif attributes & CONTROL and attributes & CODEC_MASK:
        yield "compressed control batch"
    elif attributes & CONTROL and len(entry) >= _CONTROL_TYPE_AT + 2:
        (number,) = struct.unpack_from(">h", entry, _CONTROL_TYPE_AT)
        owner = "a producer" if producer_id >= 0 else "no producer"
        yield f"control type: {number if number in _CONTROL_TYPES else 'other'} of {owner}"


def _entries(log: bytes) -> Iterator[bytes]:
    at = 0
    while at + _SMALLEST_MESSAGE <= len(log):
        size = LOG_OVERHEAD + struct.unpack_from(">i", log, at + 8)[0]
        entry = log[at : at + size]
        smallest = BATCH_HEADER_SIZE if len(entry) > 16 and entry[16] in range(2, 128) else 18
        if size < smallest or len(entry) < size:
            return
        yield entry
        at += size


def _size(index: bytes | None, entry_bytes: int) -> str:
    """Number of entries of an index, in powers of two."""
    entries = len(index or b"") // entry_bytes
    return "0" if not entries else f"{1 << entries.bit_length() - 1} or more"


def _first_word(reason: str | None) -> str:
    return (reason or "").split()[0]


def count_features(seed: int, count: int) -> Counter[str]:
    """The number of random segments with each feature, by the outcome of their builds."""
    result: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for segment in random_segments(seed, count):
            result.update(features_of(segment, recovered_by_build(Path(folder) / "build", segment)))
    return result

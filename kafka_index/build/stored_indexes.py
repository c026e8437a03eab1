"""The differences between the index files that a broker uploaded with a segment and built ones."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from kafka_index.errors import CorruptObjectError
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    index_name_for,
)
from kafka_index.layout.records import ABORTED_TXN, OFFSET_ENTRY, TIME_ENTRY
from kafka_index.storage import SegmentFile
from kafka_index.stores import store_of
from kafka_index.stores.tiered.segment_paths import is_segment_path

_ENTRY_BYTES = {
    OFFSET_INDEX_SUFFIX: OFFSET_ENTRY.itemsize,
    TIME_INDEX_SUFFIX: TIME_ENTRY.itemsize,
    TXN_INDEX_SUFFIX: ABORTED_TXN.itemsize,
}


def stored_differences(segment: SegmentFile, built: Mapping[str, bytes]) -> str | None:
    """Return how the stored indexes of a remote segment differ from built ones, for people.

    None means that they are equal; a local segment has no stored indexes.
    """
    if not is_segment_path(segment.log_path):
        return None
    found = (_difference(segment, suffix, data) for suffix, data in built.items())
    return "; ".join(filter(None, found)) or None


def _difference(segment: SegmentFile, suffix: str, built: bytes) -> str | None:
    directory, log_name = os.path.split(segment.log_path)
    path = os.path.join(directory, index_name_for(log_name, suffix))
    try:
        stored = store_of(path).read(path)
    except FileNotFoundError:
        return f"the segment has no stored {suffix}" if built else None
    except CorruptObjectError as error:
        return f"the stored {suffix} cannot be read: {error}"
    if stored == built:
        return None
    size = _ENTRY_BYTES[suffix]
    shared = min(len(stored), len(built))
    pair = (np.frombuffer(data[:shared], np.uint8) for data in (stored, built))
    unequal = np.flatnonzero(np.not_equal(*pair))
    first = int(unequal[0]) if len(unequal) else shared
    return (
        f"the stored {suffix} differs from entry {first // size} on "
        f"(entries stored {len(stored) // size}, built {len(built) // size})"
    )

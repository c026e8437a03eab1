"""What opening a segment costs here: a mounted path does not say how far away its files are."""

from __future__ import annotations

import os
import time

import numpy as np

from kafka_index.layout.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.lookup import Inventory
from kafka_index.lookup.planner import LOCAL_OPEN_SECONDS
from kafka_index.storage import SegmentFile

_SAMPLE = 12
# How fast the headers of a log are read where it has no index.
_SCAN_BYTES_PER_SECOND = 2e9


def measure_open_seconds(inventory: Inventory) -> float:
    """Return about how many seconds opening a segment and its indexes takes.

    A few segments, spread over the partitions, are opened and timed. Where an index is missing,
    the time to read the log for it counts instead. Files that cannot be opened cost nothing: what
    is wrong with them is found out by those who need them.
    """
    counts = inventory.partitions["segment_count"].to_numpy()
    codes = np.flatnonzero(counts)
    picked = codes[np.linspace(0, len(codes) - 1, min(_SAMPLE, len(codes))).astype(np.int64)]
    seconds = []
    for number, code in enumerate(picked.tolist()):
        files = inventory.files_of(code)
        segment = files.segments[number % len(files.segments)]
        seconds.append(_open_seconds(segment, files.index_directory))
    return max(float(np.mean(seconds)) if seconds else 0.0, LOCAL_OPEN_SECONDS)


def _open_seconds(segment: SegmentFile, index_directory: str | None) -> float:
    folder, name = os.path.split(segment.log_path)
    paths = [segment.log_path]
    paths += [
        os.path.join(index_directory or folder, index_name_for(name, suffix))
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    ]
    began = time.monotonic()
    missing = 0
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                file.read(1)
        except OSError:
            missing += 1
    scan = segment.log_size_bytes / _SCAN_BYTES_PER_SECOND if missing else 0.0
    return time.monotonic() - began + scan

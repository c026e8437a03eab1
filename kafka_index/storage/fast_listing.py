"""Listing a local partition directory as columns, where nothing in it is out of the ordinary."""

from __future__ import annotations

import os

import numpy as np

from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SWAP_SUFFIX,
    TopicPartition,
)
from kafka_index.storage.segment_table import PartitionSegments

_LOG_NAME_LENGTH = OFFSET_DIGITS + len(LOG_SUFFIX)
_MAX_DIGITS = str(INT64_MAX).zfill(OFFSET_DIGITS)
_ODD_ENDINGS = (SWAP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX)


def list_plain_partition(partition: TopicPartition, directory: str) -> PartitionSegments | None:
    """Return the segments of a local partition directory.

    Parameters
    ----------
    partition : TopicPartition
        Whose directory it is.
    directory : str
        Its path.

    Returns
    -------
    PartitionSegments or None
        None where the directory has to be listed entry by entry: it has traces of an interrupted
        compaction, split or deletion, a link, or a log that is not a plain file or cannot be
        inspected.

    Raises
    ------
    OSError
        The directory cannot be read.
    """
    names: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if not name.endswith(LOG_SUFFIX):
                if name.endswith(_ODD_ENDINGS) or entry.is_symlink():
                    return None
                continue
            if len(name) != _LOG_NAME_LENGTH or not entry.is_file(follow_symlinks=False):
                return None
            try:
                found = entry.stat()
            except OSError:
                return None
            names.append(name)
            sizes.append(found.st_size)
            times.append(found.st_mtime_ns)
    digits = [name[:OFFSET_DIGITS] for name in names]
    joined = "".join(digits)
    # 20 digits may be above the largest offset, and then are not one.
    if names and not (joined.isascii() and joined.isdigit() and max(digits) <= _MAX_DIGITS):
        return None
    offsets = np.array(list(map(int, digits)), np.int64)
    order = np.argsort(offsets)
    return PartitionSegments(
        partition,
        directory,
        offsets[order],
        np.array(sizes, np.int64)[order],
        np.array(times, np.int64)[order],
    )

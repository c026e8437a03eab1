"""Reads of a log that grows, over its segments.

Source: Kafka's ``LocalLog.read`` and ``addAbortedTransactions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kafka_index.errors import InputError
from kafka_index.growing.fetch_data import (
    AbortedTransaction,
    FetchData,
    Isolation,
    OffsetAndPosition,
)
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.index import OffsetPosition, collect_aborted_txns


def read_log(
    segments: Sequence[GrowingLogSegment],
    start_offset: int,
    max_bytes: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    end_offset: int,
    isolation: Isolation,
    min_one_message: bool,
) -> FetchData:
    """Read from the batch on that holds an offset, up to an end offset.

    Parameters
    ----------
    segments : sequence of GrowingLogSegment
        In order.
    start_offset, max_bytes, isolation, min_one_message
        As for ``GrowingPartitionLog.read``.
    log_start_offset, log_end_offset, end_offset : int
        Of the log, and of the read.
    """
    if not log_start_offset <= start_offset <= log_end_offset:
        raise InputError(
            "the offset is out of range",
            expected=f"{log_start_offset}..{log_end_offset}",
            found=start_offset,
        )
    active = segments[-1]
    log_end = OffsetAndPosition(log_end_offset, active.base_offset, active.size_bytes)
    end = log_end
    aborted = () if isolation is Isolation.TXN_COMMITTED else None
    if end_offset < log_end_offset:
        end = _position_of(segments, end_offset, log_end)._replace(offset=end_offset)
    if start_offset >= end_offset:
        place = end
        if start_offset > end_offset:
            place = _position_of(segments, start_offset, log_end)
        return FetchData(*place, aborted_transactions=aborted)
    place_of_floor = floor_place(segments, start_offset)
    for place_in_list in range(place_of_floor, len(segments)):
        segment = segments[place_in_list]
        if segment.base_offset > end.segment_base_offset:
            break
        at_end = segment.base_offset == end.segment_base_offset
        limit = end.position_bytes if at_end else segment.size_bytes
        found = segment.read(
            start_offset, max_bytes, max_position_bytes=limit, min_one_message=min_one_message
        )
        if found is None:
            continue
        if isolation is not Isolation.TXN_COMMITTED:
            return found
        return _with_aborted(segments, place_in_list, found, start_offset, log_end_offset)
    return FetchData(*log_end)


def _with_aborted(
    segments: Sequence[GrowingLogSegment],
    place: int,
    found: FetchData,
    start_offset: int,
    log_end_offset: int,
) -> FetchData:
    start = OffsetPosition(found.base_offset, found.position_bytes)
    bound = segments[place].offset_index.fetch_upper_bound_offset(start, len(found.records))
    if bound is not None:
        upper = bound.offset
    elif place + 1 < len(segments):
        upper = segments[place + 1].base_offset
    else:
        upper = log_end_offset
    indexes = (segment.transaction_index for segment in segments[place:])
    entries = collect_aborted_txns(indexes, start_offset, upper)
    transactions = tuple(
        AbortedTransaction(*pair)
        for pair in zip(
            entries["producer_id"].tolist(), entries["first_offset"].tolist(), strict=True
        )
    )
    return replace(found, aborted_transactions=transactions)


def _position_of(
    segments: Sequence[GrowingLogSegment], offset: int, end: OffsetAndPosition
) -> OffsetAndPosition:
    """Return where the batch stands that holds an offset, or the end."""
    for segment in segments[floor_place(segments, offset) :]:
        found = segment.offset_to_position(offset)
        if found is not None:
            return OffsetAndPosition(found.offset, segment.base_offset, found.position)
    return end


def floor_place(segments: Sequence[GrowingLogSegment], offset: int) -> int:
    """Return which segment an offset belongs to: the last that begins at or before it."""
    bases = [segment.base_offset for segment in segments]
    return max(int(np.searchsorted(bases, offset, side="right")) - 1, 0)

"""What a prediction says of a partition that is loaded: its segments, what is lost, and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from kafka_index.errors import InputError
from kafka_index.startup.found_files import FoundFiles
from kafka_index.startup.lost_records import lost_records
from kafka_index.startup.partition_loading import LoadedPartition, Loading
from kafka_index.startup.prediction import (
    LostRecords,
    Outcome,
    PartitionPrediction,
    SegmentAction,
    SegmentPrediction,
    StartRefusedError,
)


def describe(
    predicted: PartitionPrediction,
    files: FoundFiles,
    loaded: LoadedPartition,
    loading: Loading,
    policy: str | None,
) -> PartitionPrediction:
    """Return the prediction of a partition that is loaded."""
    is_emptied = bool(loaded.deleted) and not any(one.found for one in loaded.segments)
    visible_from = 0 if is_emptied else loading.log_start_offset
    lost, end_before = lost_records(loaded, files.replaced, files.replaced_end, visible_from)
    bases = [segment.log.base_offset for segment in files.segments]
    start_before = max(loading.log_start_offset, min(bases, default=0))
    return replace(
        predicted,
        outcome=Outcome.EMPTIED if is_emptied else Outcome.LOADED,
        log_start_before=start_before,
        log_end_before=max(end_before, loaded.log.log_end_offset if bases else 0),
        loaded=loaded.log,
        lost=lost,
        bytes_read=loaded.bytes_read,
        segments=tuple(_segments(files, loaded)),
        torn_bytes=loaded.segments[-1].torn_bytes(),
        notes=(*_gaps(loaded, policy), *_end_notes(loaded, lost)),
    )


def _segments(files: FoundFiles, loaded: LoadedPartition) -> Iterable[SegmentPrediction]:
    swapped = {one.log.base_offset for one in files.segments if one.is_swapped}
    actions: dict[int, list[SegmentPrediction]] = {}
    for base_offset in files.replaced:
        reason = "replaced: a finished compaction or split holds its offsets"
        one = SegmentPrediction(base_offset, SegmentAction.DELETE, None, reason)
        actions.setdefault(base_offset, []).append(one)
    for base_offset in loaded.deleted:
        one = SegmentPrediction(
            base_offset, SegmentAction.DELETE, None, loaded.reasons.get(base_offset)
        )
        actions.setdefault(base_offset, []).append(one)
    for segment in loaded.segments:
        if segment.found is None:
            continue
        base_offset, why = segment.base_offset, loaded.reasons.get(segment.base_offset)
        if segment.whole_bytes > segment.size_bytes:
            one = SegmentPrediction(base_offset, SegmentAction.CUT, segment.size_bytes, why)
        elif base_offset in swapped:
            text = "swapped: it takes its name from .swap"
            one = SegmentPrediction(base_offset, SegmentAction.REPLACE, None, text)
        elif segment.is_rebuilt:
            text = why or "unflushed: at or above the recovery point, or the last one"
            one = SegmentPrediction(base_offset, SegmentAction.REBUILD, None, text)
        else:
            one = SegmentPrediction(base_offset, SegmentAction.KEEP, None, why)
        actions.setdefault(base_offset, []).append(one)
    return [one for _, found in sorted(actions.items()) for one in found]


def _gaps(loaded: LoadedPartition, policy: str | None) -> Iterable[str]:
    """Report offsets between segments that no segment holds, unless compaction explains it."""
    if policy is not None and "compact" in policy:
        return
    why = "records are missing" if policy else "harmless only where compaction removed them"
    segments = loaded.segments
    for segment, following in pairwise(segments):
        try:
            end = segment.next_offset()
        except (StartRefusedError, InputError):
            yield f"gap: the end of the segment at {segment.base_offset} cannot be read"
            continue
        finally:
            segment.release()
        if end < following.base_offset:
            offsets = f"{end} to {following.base_offset - 1}"
            yield f"gap: no segment holds offsets {offsets}; a broker is silent about it; {why}"


def _end_notes(loaded: LoadedPartition, lost: LostRecords) -> Iterable[str]:
    """Report what is wrong with the end of the log."""
    last = loaded.segments[-1]
    if lost.records and last.size_bytes and loaded.log.log_end_offset <= last.base_offset:
        yield "hidden: the log ends where its last segment begins, and appends overlap it"
    elif last.torn_bytes():
        yield (
            f"torn: {last.torn_bytes()} bytes stay after the last batch; nothing that is appended "
            "after them can be read"
        )

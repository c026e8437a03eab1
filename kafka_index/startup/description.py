"""What a prediction says of a partition that is loaded: its segments, what is lost, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.records.decompression import shared_budget
from kafka_index.scan.missing_offsets import Cleaning, MissingOffsets, missing_offsets, see_log
from kafka_index.startup.found_files import FoundFiles
from kafka_index.startup.lost_records import lost_records
from kafka_index.startup.partition_loading import LoadedPartition, Loading
from kafka_index.startup.prediction import (
    LostRecords,
    Outcome,
    PartitionPrediction,
    SegmentAction,
    SegmentPrediction,
)


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """What the files of a data directory and the metadata say of the offsets of a partition.

    Parameters
    ----------
    cleaning : Cleaning
        Of compaction.
    start_offset : int or None
        The checkpoint of its log start; None without one.
    end_offset : int
        Up to where it was there once, by checkpoints.
    is_start_exact : bool
        The checkpoints are of a clean shutdown.
    """

    cleaning: Cleaning
    start_offset: int | None = None
    end_offset: int = 0
    is_start_exact: bool = False


def describe(
    predicted: PartitionPrediction,
    files: FoundFiles,
    loaded: LoadedPartition,
    loading: Loading,
    known: KnownOffsets,
) -> PartitionPrediction:
    """Return the prediction of a partition that is loaded.

    Raises
    ------
    KafkaIndexError
        A log cannot be read.
    """
    is_emptied = bool(loaded.deleted) and not any(one.found for one in loaded.segments)
    visible_from = 0 if is_emptied else loading.log_start_offset
    lost, end_before = lost_records(loaded, files.replaced, files.replaced_end, visible_from)
    bases = [segment.log.base_offset for segment in files.segments]
    start_before = max(loading.log_start_offset, min(bases, default=0))
    missing = _missing(loaded, known, end_before, files.lost_ends)
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
        missing=tuple(missing.unexplained),
        notes=(*_gap_notes(missing), *_end_notes(loaded, lost)),
    )


def _missing(
    loaded: LoadedPartition, known: KnownOffsets, end_before: int, lost_ends: Mapping[int, int]
) -> MissingOffsets:
    """Return what is missing in the logs that a broker loads."""
    cleaned_to = known.cleaning.cleaned_to or 0
    logs = [
        see_log(one.found.log, cleaned_to, one.size_bytes)
        for one in loaded.segments
        if one.found is not None
    ]
    if not logs:
        return MissingOffsets(known.cleaning)
    # What a start cuts or deletes is lost by the start.
    logs[-1].damage_end = end_before
    return missing_offsets(
        logs,
        known.cleaning,
        shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES),
        start_offset=known.start_offset,
        known_end=known.end_offset,
        is_start_exact=known.is_start_exact,
        lost_ends=lost_ends,
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


def _gap_notes(missing: MissingOffsets) -> Iterable[str]:
    for each in missing.unexplained:
        yield (
            f"gap: no segment holds offsets {each.first_offset} to {each.last_offset}; a broker is "
            f"silent about it; {each.why}"
        )
    if missing.unnamed:
        yield f"gap: offsets are missing in {sum(missing.unnamed.values())} more places"


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

"""A prediction as text, as one JSON object, and as a row per segment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TextIO

import pyarrow as pa

from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import print_text
from kafka_index.cli.text import Paint, format_bytes, plural
from kafka_index.layout.times import format_time
from kafka_index.startup import (
    LoadedLog,
    Outcome,
    PartitionPrediction,
    Prediction,
    SegmentAction,
    Verdict,
)

SEGMENT_ROWS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("directory", pa.string()),
        ("outcome", pa.string()),
        ("segment_base_offset", pa.int64()),
        ("action", pa.string()),
        ("cut_at_bytes", pa.int64()),
        ("reason", pa.string()),
    ]
)


def print_prediction(
    prediction: Prediction, hint: str | None, stream: TextIO, *, as_json: bool, verbose: bool
) -> None:
    """Print a prediction, the verdict first."""
    if as_json:
        stream.write(json.dumps({**_as_object(prediction), "suggestion": hint}) + "\n")
        return
    print_text(stream, _text(prediction, hint, Paint(stream), verbose=verbose))


def _text(
    prediction: Prediction, hint: str | None, paint: Paint, *, verbose: bool
) -> Iterator[str]:
    word = prediction.verdict.value
    yield (paint.good if prediction.verdict is Verdict.SAFE else paint.bad)(word)
    for refusal in prediction.refused:
        line = "" if refusal.line is None else f", line {refusal.line}"
        yield f"{paint.bad('refused')}: {refusal.file}{line}: {refusal.reason}"
    for one in prediction.partitions:
        if verbose or _is_notable(one):
            yield from _lines(one, verbose=verbose)
    for note in prediction.notes:
        yield paint.faint(f"note: {note}")
    total = sum(one.bytes_read for one in prediction.partitions)
    yield (
        f"{plural(len(prediction.partitions), 'partition')}, "
        f"{losses_text(prediction)}, {format_bytes(total)} of logs read"
    )
    if hint is not None:
        yield paint.notable(f"suggestion: {hint}")


def losses_text(prediction: Prediction) -> str:
    """Return how many records a start loses or hides, and how many offsets are missing before."""
    lost = sum(one.lost.records for one in prediction.partitions)
    text = f"{plural(lost, 'record')} lost or hidden"
    missing = sum(
        each.end_offset - each.first_offset for one in prediction.partitions for each in one.missing
    )
    return f"{text}, {plural(missing, 'offset')} missing" if missing else text


def count_prediction(prediction: Prediction) -> None:
    """Add what is predicted to the summary of the run."""
    summary = run_summary()
    for outcome in Outcome:
        count = sum(one.outcome is outcome for one in prediction.partitions)
        summary.add_count(f"partitions_{outcome.value}", count)
    for action in SegmentAction:
        count = sum(
            segment.action is action for one in prediction.partitions for segment in one.segments
        )
        summary.add_count(f"segments_{action.value}", count)
    summary.add_count("refused", len(prediction.refused))
    summary.add_count("records_lost", sum(one.lost.records for one in prediction.partitions))
    summary.add_bytes("log_read", sum(one.bytes_read for one in prediction.partitions))


def segment_rows(prediction: Prediction) -> pa.Table:
    """Return a row per segment; of a partition without segments one row."""
    rows = []
    for one in prediction.partitions:
        common = {
            "topic": one.topic,
            "partition": one.partition,
            "directory": one.directory,
            "outcome": one.outcome.value,
        }
        refusal = None if one.refusal is None else one.refusal.reason
        rows += [
            {
                **common,
                "segment_base_offset": segment.base_offset,
                "action": segment.action.value,
                "cut_at_bytes": segment.cut_at_bytes,
                "reason": segment.reason,
            }
            for segment in one.segments
        ] or [{**common, "reason": refusal}]
    return pa.Table.from_pylist(rows, schema=SEGMENT_ROWS)


def _is_notable(one: PartitionPrediction) -> bool:
    return bool(
        one.outcome is not Outcome.LOADED
        or one.lost.records
        or one.notes
        or any(segment.action is not SegmentAction.KEEP for segment in one.segments)
    )


def _lines(one: PartitionPrediction, *, verbose: bool) -> Iterator[str]:
    yield f"{one.directory}: {one.outcome.value}{_offsets(one)}"
    lost = one.lost
    if lost.records:
        first, last = (
            "?" if ms is None else format_time(ms) or str(ms)
            for ms in (lost.first_timestamp_ms, lost.last_timestamp_ms)
        )
        yield (
            f"  {plural(lost.records, 'record')} lost or hidden: offsets {lost.first_offset} to "
            f"{lost.last_offset}, {first} to {last}"
        )
    if one.loaded is not None and (verbose or one.loaded.first_unstable_offset is not None):
        yield f"  {_state(one.loaded)}"
    for segment in one.segments:
        if verbose or segment.action is not SegmentAction.KEEP:
            cut = "" if segment.cut_at_bytes is None else f" at byte {segment.cut_at_bytes}"
            why = "" if segment.reason is None else f": {segment.reason}"
            yield f"  segment {segment.base_offset}: {segment.action.value}{cut}{why}"
    if one.refusal is not None:
        yield f"  {one.refusal.file}: {one.refusal.reason}"
    for note in one.notes:
        yield f"  {note}"


def _state(loaded: LoadedLog) -> str:
    epochs = ", ".join(f"{one.epoch} from {one.start_offset}" for one in loaded.epochs) or "none"
    text = f"leader epochs {epochs}; {plural(len(loaded.producers), 'producer')}"
    if loaded.first_unstable_offset is not None:
        text += f"; a transaction is open from offset {loaded.first_unstable_offset}"
    return text


def _offsets(one: PartitionPrediction) -> str:
    if one.loaded is None:
        return ""
    loaded = one.loaded
    return (
        f", log start {one.log_start_before} to {loaded.log_start_offset}, "
        f"log end {one.log_end_before} to {loaded.log_end_offset}, "
        f"high watermark {one.high_watermark}"
    )


def _as_object(prediction: Prediction) -> dict[str, object]:
    return {
        "verdict": prediction.verdict.value,
        "refused": [
            {"file": one.file, "line": one.line, "reason": one.reason} for one in prediction.refused
        ],
        "partitions": [_partition_object(one) for one in prediction.partitions],
        "notes": list(prediction.notes),
    }


def _partition_object(one: PartitionPrediction) -> dict[str, object]:
    loaded, lost = one.loaded, one.lost
    return {
        "topic": one.topic,
        "partition": one.partition,
        "directory": one.directory,
        "outcome": one.outcome.value,
        "log_start_before": one.log_start_before,
        "log_start": None if loaded is None else loaded.log_start_offset,
        "log_start_retained": one.log_start_retained,
        "log_end_before": one.log_end_before,
        "log_end": None if loaded is None else loaded.log_end_offset,
        "high_watermark": one.high_watermark,
        "records_lost": lost.records,
        "first_lost_offset": lost.first_offset,
        "last_lost_offset": lost.last_offset,
        "first_lost_timestamp_ms": lost.first_timestamp_ms,
        "last_lost_timestamp_ms": lost.last_timestamp_ms,
        "torn_bytes": one.torn_bytes,
        "missing": [
            {"first_offset": each.first_offset, "last_offset": each.last_offset, "why": each.why}
            for each in one.missing
        ],
        "bytes_read": one.bytes_read,
        "leader_epochs": None
        if loaded is None
        else [{"epoch": e.epoch, "start_offset": e.start_offset} for e in loaded.epochs],
        "producers": None if loaded is None else len(loaded.producers),
        "open_transaction_from": None if loaded is None else loaded.first_unstable_offset,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "action": segment.action.value,
                "cut_at_bytes": segment.cut_at_bytes,
                "reason": segment.reason,
            }
            for segment in one.segments
        ],
        "refused": None
        if one.refusal is None
        else {
            "file": one.refusal.file,
            "line": one.refusal.line,
            "reason": one.refusal.reason,
        },
        "notes": list(one.notes),
    }

"""``predict``: the start of a broker on its log directories, as text, as JSON and as a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice

import click
import pyarrow as pa

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.html.page import BAD, GOOD, NOTABLE, Meaning, Page
from kafka_index.cli.html.page import Conclusion as PageVerdict
from kafka_index.cli.html.page_writer import PageWriter
from kafka_index.cli.options import command, flag, option
from kafka_index.cli.shared_options import (
    config_option,
    input_option,
    max_decompressed_option,
    report_option,
)
from kafka_index.cli.terminal import Paint, print_text
from kafka_index.core.errors import KafkaIndexError, plural
from kafka_index.core.format.config import LogConfig, read_properties
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.times import format_time
from kafka_index.core.job.request import Group
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.report_file import PageMaker, open_report
from kafka_index.core.startup.conditions import start_conditions
from kafka_index.core.startup.directories import predict_start
from kafka_index.core.startup.identity import input_directories
from kafka_index.core.startup.prediction import (
    SEGMENT_ROWS,
    LoadedLog,
    Outcome,
    PartitionPrediction,
    Prediction,
    SegmentAction,
    SegmentPrediction,
    Verdict,
)

_HELP = """Predict what a broker of 4.3.1 does to these log directories when it starts, before
    anyone starts it. Nothing is written; a directory that a running broker holds is refused.

    Give all data directories of the broker. Each partition is loaded as the broker loads it: which
    segments are kept, rebuilt, cut, deleted or replaced; log start and log end before and after;
    records that are lost or hidden, with their offsets and times. With --metadata, a metadata log
    directory, partitions that are stray or missing are found, the settings of topics count, and
    what retention deletes 30 seconds after the start is listed; it is not part of the verdict.

    The verdict comes first: safe, loses, does_not_serve (it starts, and a partition is stray, or
    cannot be read to its end), does_not_start, or unknown. What was not judged is named in its
    line. Without --metadata, the metadata log is that of metadata.log.dir in --config, or the one
    in the directories, if there is one. Whether a node starts on it is judged first.

    Exit codes: 0, safe; 1, any other verdict; 2, wrong usage, or a
    running broker; 3, a file cannot be read because of permission, disk or memory; 70, an internal
    error.
    """
_EXAMPLES = """\
kafka-index predict --input /var/kafka/data-1 /var/kafka/data-2 --metadata /var/kafka/metadata
kafka-index predict --input /restored/data --config server.properties --json
"""
_UNFLUSHED = "unflushed"
_WORST_FIRST = (
    Outcome.REFUSED,
    Outcome.EMPTIED,
    Outcome.STRAY,
    Outcome.REPLACED,
    Outcome.LOADED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """The options of ``predict``."""

    inputs: tuple[str, ...] = input_option("Data directories of one broker.")
    metadata: str | None = option(
        "--metadata", group=Group.INPUT, metavar="DIR", help="The metadata log directory."
    )
    config_path: str | None = config_option(
        "Kafka settings, such as the broker's server.properties."
    )
    known_losses: str | None = option(
        "--known-losses",
        group=Group.INPUT,
        metavar="FILE",
        help="A restore report. The offsets that it lists as lost are not predicted as losses.",
    )
    as_json: bool = flag("--json", group=Group.OUTPUT, help="Print one JSON object.")
    report: str | None = report_option("a row per segment", has_page=True)
    max_decompressed_bytes: int = max_decompressed_option()
    wide: bool = flag("--wide", group=Group.OUTPUT, help="Print each segment that is rebuilt.")
    quiet: bool = flag("--quiet", "-q", group=Group.OUTPUT, help="Print the verdict's line alone.")
    verbose: bool = flag(
        "--verbose", "-v", group=Group.OUTPUT, help="Print every segment; tracebacks."
    )

    def __post_init__(self) -> None:
        if not self.inputs:
            raise click.UsageError("no input: give --input DIR")


def _run(options: PredictOptions) -> ExitCode:
    paths = input_directories(options.inputs)
    properties = None if options.config_path is None else read_properties(options.config_path)
    conditions = start_conditions(
        paths,
        options.metadata,
        properties,
        LogConfig.load(options.config_path),
        options.max_decompressed_bytes,
        options.known_losses,
    )
    prediction: Prediction | None = None
    # Begun first: where it cannot be written, that is known before the logs are read.
    with open_report(options.report, SEGMENT_ROWS, _page(lambda: prediction, paths)) as file:
        prediction = predict_start(paths, conditions)
        run_summary().add_result(prediction)
        # Printed first: where the report cannot be finished, the answer is not lost.
        if options.as_json:
            sys.stdout.write(json.dumps(_as_object(prediction)) + "\n")
        else:
            lines = prediction_lines(
                prediction, Paint(sys.stdout), wide=options.wide, verbose=options.verbose
            )
            print_text(sys.stdout, islice(lines, 1) if options.quiet else lines)
        sys.stdout.flush()
        if file is not None:
            file.write_table(prediction.to_arrow())
    return ExitCode(prediction.outcome.exit_code)


def _page(predicted: Callable[[], Prediction | None], directories: list[str]) -> PageMaker:
    """Return the maker of the page of ``predict`` for a broker's data directories.

    The prediction is None before it is known.
    """
    command = "kafka-index predict --verbose --input {directory}"
    explained = {
        SegmentAction.KEEP.value: Meaning(GOOD, "kept as it is", command),
        Outcome.LOADED.value: Meaning(GOOD, "loaded; it has no segments", command),
        SegmentAction.REBUILD.value: Meaning(NOTABLE, "kept, its indexes rebuilt", command),
        SegmentAction.REPLACE.value: Meaning(NOTABLE, "replaced by a swap file", command),
        Outcome.EMPTIED.value: Meaning(BAD, "the partition begins anew, empty", command),
        SegmentAction.CUT.value: Meaning(BAD, "cut: what lies after is not kept", command),
        SegmentAction.DELETE.value: Meaning(BAD, "deleted", command),
        Outcome.STRAY.value: Meaning(BAD, "not of this broker any more: set aside", command),
        Outcome.REFUSED.value: Meaning(BAD, "the broker does not start with it", command),
    }

    def segments() -> Iterator[pa.RecordBatch]:
        try:
            found = SegmentTable.of(list_dump(directories, topics=None).segments)
        except KafkaIndexError:
            # Directories without a log have a verdict, and no picture.
            return
        for each in found.partitions:
            yield each.rows()

    page = Page(
        "predict",
        "segments",
        ("action", "status"),
        explained,
        lambda _: _verdict(predicted()),
        segments=segments,
    )
    return partial(PageWriter, page, run_summary().about())


def _verdict(prediction: Prediction | None) -> PageVerdict:
    if prediction is None:
        return PageVerdict(BAD, "no prediction: the run ended before")
    if prediction.verdict is Verdict.SAFE:
        return PageVerdict(GOOD, f"{verdict_line(prediction)}: a broker starts, and loses nothing")
    if prediction.verdict is Verdict.LOSES:
        return PageVerdict(BAD, f"loses: a broker starts, {losses_text(prediction)}")
    if prediction.verdict is not Verdict.DOES_NOT_START:
        return PageVerdict(BAD, verdict_line(prediction))
    refused = "; ".join(f"{each.file}: {each.reason}" for each in prediction.refused)
    return PageVerdict(BAD, f"does_not_start: {refused}")


def verdict_line(prediction: Prediction) -> str:
    """Return the verdict, what is not judged in it, and what comes after the start."""
    parts = [prediction.verdict.value]
    if prediction.verdict in (Verdict.SAFE, Verdict.UNKNOWN):
        if prediction.not_judged:
            parts[0] += " for the files"
        parts += [f"not known: {text}" for text in _unknown(prediction)[:1]]
        parts += [f"not judged: {text}" for text in prediction.not_judged]
        retained = [one for one in prediction.partitions if one.segments_to_delete]
        if retained:
            deleted = sum(one.segments_to_delete for one in retained)
            total = sum(len(one.loaded.base_offsets) for one in prediction.partitions if one.loaded)
            parts.append(f"then retention deletes {deleted} of {plural(total, 'segment')}")
    return "; ".join(parts)


def _unknown(prediction: Prediction) -> list[str]:
    return [
        *prediction.unknown,
        *(one.unknown for one in prediction.partitions if one.unknown is not None),
    ]


def prediction_lines(
    prediction: Prediction, paint: Paint, *, wide: bool = False, verbose: bool = False
) -> Iterator[str]:
    """Yield the verdict, then what is lost; `verbose` names every segment, `wide` rebuilt ones."""
    wide = wide or verbose
    yield (paint.good if prediction.verdict is Verdict.SAFE else paint.bad)(
        verdict_line(prediction)
    )
    for refusal in prediction.refused:
        line = "" if refusal.line is None else f", line {refusal.line}"
        yield f"{paint.bad('refused')}: {refusal.file}{line}: {refusal.reason}"
    for text in (*prediction.unserved, *prediction.unknown):
        yield f"{paint.bad('note')}: {text}"
    folded = 0
    for one in sorted(prediction.partitions, key=_by_harm):
        if not wide and _is_only_rebuilt(one):
            folded += sum(each.action is SegmentAction.REBUILD for each in one.segments)
        elif verbose or _is_notable(one):
            yield from _lines(one, verbose=verbose, wide=wide)
    if folded:
        yield paint.faint(
            f"{plural(folded, 'segment')} more rebuilt, because they were not flushed (--wide)"
        )
    for note in prediction.notes:
        yield paint.faint(f"note: {note}")
    total = sum(one.bytes_read for one in prediction.partitions)
    yield (
        f"{plural(len(prediction.partitions), 'partition')}, "
        f"{losses_text(prediction)}, {format_bytes(total)} of logs read"
    )
    if prediction.suggestion is not None:
        yield paint.notable(f"suggestion: {prediction.suggestion}")


def losses_text(prediction: Prediction) -> str:
    """Return how many records a start loses or hides, and how many offsets are missing before."""
    lost = sum(one.lost.records for one in prediction.partitions)
    text = f"{plural(lost, 'record')} lost or hidden"
    missing = sum(
        each.end_offset - each.first_offset for one in prediction.partitions for each in one.missing
    )
    return f"{text}, {plural(missing, 'offset')} missing" if missing else text


def _by_harm(one: PartitionPrediction) -> tuple[int, int]:
    """Order the worst first: what is refused, then what loses most."""
    rank = _WORST_FIRST.index(one.outcome)
    is_harmed = one.loses or one.missing or one.unserved or one.unknown
    return rank + (0 if is_harmed else 1), -one.lost.records


def _is_only_rebuilt(one: PartitionPrediction) -> bool:
    return (
        one.outcome is Outcome.LOADED
        and not (one.lost.records or one.notes or one.unserved or one.unknown)
        and all(_is_usual(each) or each.action is SegmentAction.KEEP for each in one.segments)
        and any(map(_is_usual, one.segments))
    )


def _is_usual(segment: SegmentPrediction) -> bool:
    return segment.action is SegmentAction.REBUILD and (segment.reason or "").startswith(_UNFLUSHED)


def _is_notable(one: PartitionPrediction) -> bool:
    return bool(
        one.outcome is not Outcome.LOADED
        or one.lost.records
        or one.notes
        or one.unserved
        or one.unknown
        or any(segment.action is not SegmentAction.KEEP for segment in one.segments)
    )


def _lines(one: PartitionPrediction, *, verbose: bool, wide: bool) -> Iterator[str]:
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
    usual = 0 if wide else sum(map(_is_usual, one.segments))
    for segment in one.segments:
        if usual > 1 and _is_usual(segment):
            continue
        if verbose or segment.action is not SegmentAction.KEEP:
            cut = "" if segment.cut_at_bytes is None else f" at byte {segment.cut_at_bytes}"
            why = "" if segment.reason is None else f": {segment.reason}"
            yield f"  segment {segment.base_offset}: {segment.action.value}{cut}{why}"
    if usual > 1:
        yield f"  {plural(usual, 'segment')}: rebuild: unflushed"
    for text in (one.unserved, one.unknown):
        if text is not None:
            yield f"  {text}"
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
        "refused": list(map(asdict, prediction.refused)),
        "partitions": [_partition_object(one) for one in prediction.partitions],
        "unserved": list(prediction.unserved),
        "unknown": list(prediction.unknown),
        "not_judged": list(prediction.not_judged),
        "notes": list(prediction.notes),
        "suggestion": prediction.suggestion,
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
        "records_back": one.records_back,
        "torn_bytes": one.torn_bytes,
        "unserved": one.unserved,
        "unknown": one.unknown,
        "segments_to_delete": one.segments_to_delete,
        "missing": [
            {"first_offset": each.first_offset, "last_offset": each.last_offset, "why": each.why}
            for each in one.missing
        ],
        "bytes_read": one.bytes_read,
        "leader_epochs": None if loaded is None else list(map(asdict, loaded.epochs)),
        "producers": None if loaded is None else len(loaded.producers),
        "open_transaction_from": None if loaded is None else loaded.first_unstable_offset,
        "segments": list(map(asdict, one.segments)),
        "refused": None if one.refusal is None else asdict(one.refusal),
        "notes": list(one.notes),
    }


make_command = partial(
    command,
    "predict",
    PredictOptions,
    _run,
    help_text=_HELP,
    usage="--input DIR... [OPTIONS]",
    examples=_EXAMPLES,
    has_links=False,
)

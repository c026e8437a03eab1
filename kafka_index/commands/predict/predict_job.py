"""The run and the result of ``predict``: verdict, texts, counts, and rows of segments."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.predict.request import PredictRequest
from kafka_index.core.errors import KafkaIndexError, plural
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import format_time
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Meaning,
    MissingOffsets,
    PageColumns,
    ReportSink,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Severity,
    Status,
    count_statuses,
    report_schema,
)
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.startup.conditions import start_conditions
from kafka_index.core.startup.directories import predict_start
from kafka_index.core.startup.identity import input_directories
from kafka_index.core.startup.prediction import (
    LoadedLog,
    Outcome,
    PartitionPrediction,
    Refusal,
    SegmentAction,
    SegmentPrediction,
    StartPrediction,
    Verdict,
)

_UNFLUSHED = "unflushed"
_OUTCOMES: Mapping[Outcome, tuple[Severity, str]] = {
    Outcome.LOADED: (GOOD, "the broker loads the partition"),
    Outcome.REPLACED: (NOTABLE, "replaced by a future replica"),
    Outcome.STRAY: (BAD, "renamed to -stray, and replaced by an empty log"),
    Outcome.EMPTIED: (BAD, "the partition starts again with an empty log"),
    Outcome.REFUSED: (BAD, "the broker does not start because of this partition"),
}
_ACTIONS: Mapping[SegmentAction, tuple[Severity, str]] = {
    SegmentAction.KEEP: (GOOD, "loaded unchanged"),
    SegmentAction.REBUILD: (NOTABLE, "recovered: its index files are rebuilt"),
    SegmentAction.REPLACE: (NOTABLE, "replaced by a swap file"),
    SegmentAction.CUT: (BAD, "truncated"),
    SegmentAction.DELETE: (BAD, "deleted"),
}
_MORE = "kafka-index predict --verbose --input {directory}"
PREDICT_SCHEMA = report_schema([("action", pa.string()), ("cut_at_bytes", pa.int64())])
PREDICT_REPORT = ReportSpec(
    PREDICT_SCHEMA,
    PageColumns(
        "segments",
        ("action", "status"),
        {
            value.value: Meaning(severity, text, _MORE)
            for value, (severity, text) in sorted(
                (*_ACTIONS.items(), *_OUTCOMES.items()), key=lambda item: item[1][0]
            )
        },
    ),
)


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(Result, StartPrediction):
    """The result of `predict`: a row per segment, as in ``predict --report``.

    Parameters
    ----------
    verdict : Verdict
        The overall result.
    refused : tuple of Refusal
        The reasons why the broker does not start.
    partitions : tuple of PartitionPrediction
        In order of directory, topic and partition number.
    notes : tuple of str
        Facts that do not change the verdict.
    has_marker : bool
        Whether a directory was loaded as after a clean shutdown.
    unserved : tuple of str
        The reasons why several partitions are not or not fully served.
    unknown : tuple of str
        Files that were not read, and unknown facts. If not empty, the verdict is never ``safe``.
    not_checked : tuple of str
        Inputs that were not given, so that the verdict does not cover them.
    suggestion : str or None
        A startup that loses less.
    directories : tuple of str
        The data directories.
    """

    directories: tuple[str, ...] = ()

    command = "predict"
    status_header = ("outcome", "partitions")

    @property
    def headline(self) -> str:
        """The verdict with its reason, its limits, and the segments that retention deletes."""
        parts = [f"{self.verdict.value}{self._reason}"]
        if self.verdict in (Verdict.SAFE, Verdict.UNKNOWN):
            parts += [f"not checked: {text}" for text in self.not_checked]
            deleted = sum(one.segments_to_delete for one in self.partitions)
            total = sum(len(one.loaded.base_offsets) for one in self.partitions if one.loaded)
            if deleted:
                parts.append(f"then retention deletes {deleted} of {plural(total, 'segment')}")
        return "; ".join(parts)

    @property
    def _reason(self) -> str:
        if self.verdict is Verdict.SAFE:
            scope = " for the files" if self.not_checked else ""
            return f"{scope}: a broker starts, and no record is lost or hidden"
        if self.verdict is Verdict.LOSES:
            return f": a broker starts, {self._losses}"
        if self.verdict is Verdict.DOES_NOT_START:
            return _format_reasons(list(map(_refusal_text, self.refused)))
        if self.verdict is Verdict.UNKNOWN:
            return _format_reasons(self._all_unknown)
        own = (f"{one.directory}: {one.unserved}" for one in self.partitions if one.unserved)
        stray = (one for one in self.partitions if one.outcome is Outcome.STRAY)
        return _format_reasons(
            [*self.unserved, *own, *(f"{one.directory} is stray" for one in stray)]
        )

    @property
    def _losses(self) -> str:
        """The numbers of records that become lost or hidden, emptied logs, and missing offsets."""
        text = f"{plural(self.counts['records_lost'], 'record')} lost or hidden"
        if emptied := self.counts[f"partitions_{Outcome.EMPTIED}"]:
            text += f", {plural(emptied, 'partition')} emptied"
        missing = sum(
            gap.end_offset - gap.first_offset for one in self.partitions for gap in one.missing
        )
        return f"{text}, {plural(missing, 'offset')} missing" if missing else text

    @property
    def _all_unknown(self) -> list[str]:
        own = (f"{one.directory}: {one.unknown}" for one in self.partitions if one.unknown)
        return [*self.unknown, *own]

    @property
    def statuses(self) -> list[Status]:
        """The number of partitions by outcome."""
        return count_statuses((one.outcome for one in self.partitions), _OUTCOMES)

    @property
    def facts(self) -> list[str]:
        """The data that startup reads and loses, and the number of rebuilt segments."""
        read = format_bytes(self.sizes_bytes["log_read"])
        partitions = plural(len(self.partitions), "partition")
        lines = [f"{partitions}, {self._losses}; a broker reads {read} of logs"]
        rebuilt = sum(
            segment.action is SegmentAction.REBUILD
            for one in self.partitions
            if _is_only_rebuilt(one)
            for segment in one.segments
        )
        if rebuilt:
            lines.append(f"{plural(rebuilt, 'segment')} rebuilt because they were not flushed")
        return lines

    @property
    def sections(self) -> list[Section]:
        """Notes, the suggestion, changed partitions, and the reasons of the verdict."""
        changed: list[str] = []
        harmed: list[str] = []
        for one in sorted(self.partitions, key=lambda one: -one.lost.records):
            if _is_harmed(one):
                harmed += _partition_lines(one)
            elif _is_notable(one) and not _is_only_rebuilt(one):
                changed += _partition_lines(one)
        suggestion = [] if self.suggestion is None else [self.suggestion]
        return [
            Section("notes:", self.notes, noun="note"),
            Section("partitions with changes or notes:", changed, noun="line"),
            Section("suggestion:", suggestion),
            Section("the broker does not start:", list(map(_refusal_text, self.refused)), BAD),
            Section("not served:", self.unserved, BAD),
            Section("unknown:", self.unknown, BAD),
            Section("partitions with losses, or not served:", harmed, BAD, noun="line"),
        ]

    @property
    def next_command(self) -> str | None:
        """The command that explains the files, unless the verdict is safe."""
        if self.verdict is Verdict.SAFE:
            return None
        return f"kafka-index verify --input {shlex.join(self.directories)}"

    @property
    def outcome(self) -> RunOutcome:
        """Done for the verdict safe, damage for any other."""
        return RunOutcome.DONE if self.verdict is Verdict.SAFE else RunOutcome.DAMAGE

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by outcome, segments by action, refusals, and lost records."""
        outcomes = Counter(one.outcome for one in self.partitions)
        actions = Counter(each.action for one in self.partitions for each in one.segments)
        return {
            **{f"partitions_{outcome}": outcomes[outcome] for outcome in Outcome},
            **{f"segments_{action}": actions[action] for action in SegmentAction},
            "refused": len(self.refused),
            "records_lost": sum(one.lost.records for one in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of the log data that a broker reads."""
        return {"log_read": sum(one.bytes_read for one in self.partitions)}

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets that compaction does not explain."""
        gaps = tuple(
            gap.as_gap(TopicPartition(one.topic, one.partition), one.directory)
            for one in self.partitions
            for gap in one.missing
        )
        return MissingOffsets.joined([MissingOffsets(gaps)])

    def as_object(self) -> dict[str, object]:
        """Return the prediction as one JSON object."""
        return {
            "verdict": self.verdict.value,
            "conclusion": self.conclusion.text,
            "refused": list(map(asdict, self.refused)),
            "partitions": list(map(_partition_object, self.partitions)),
            "unserved": list(self.unserved),
            "unknown": list(self.unknown),
            "not_judged": list(self.not_checked),
            "notes": list(self.notes),
            "suggestion": self.suggestion,
        }

    def to_arrow(self) -> pa.Table:
        """Return a row per segment; for a partition without segments, one row."""
        rows = [row for one in self.partitions for row in _segment_rows(one)]
        return pa.Table.from_pylist(rows, schema=PREDICT_SCHEMA)

    def _shown(self) -> pa.Table:
        """Return the segments that are not kept; if all are kept, return all."""
        rows = self.to_arrow()
        changed = rows.filter(pc.fill_null(pc.not_equal(rows["action"], SegmentAction.KEEP), True))  # noqa: FBT003
        shown = changed if changed.num_rows else rows
        first = ("status", "action", "topic", "partition", "segment_base_offset")
        return shown.select([*first, *(name for name in shown.column_names if name not in first)])


def _format_reasons(reasons: list[str]) -> str:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f": {reasons[0]}{more}" if reasons else ""


def _refusal_text(refusal: Refusal) -> str:
    line = "" if refusal.line is None else f", line {refusal.line}"
    return f"{refusal.file}{line}: {refusal.reason}"


def _is_harmed(one: PartitionPrediction) -> bool:
    is_served = one.outcome in (Outcome.LOADED, Outcome.REPLACED)
    return bool(not is_served or one.loses or one.missing or one.unserved or one.unknown)


def _is_unflushed(segment: SegmentPrediction) -> bool:
    return segment.action is SegmentAction.REBUILD and (segment.reason or "").startswith(_UNFLUSHED)


def _is_only_rebuilt(one: PartitionPrediction) -> bool:
    return (
        one.outcome is Outcome.LOADED
        and not (one.lost.records or one.notes or one.unserved or one.unknown)
        and all(_is_unflushed(each) or each.action is SegmentAction.KEEP for each in one.segments)
        and any(map(_is_unflushed, one.segments))
    )


def _is_notable(one: PartitionPrediction) -> bool:
    return bool(
        one.outcome is not Outcome.LOADED
        or one.notes
        or any(segment.action is not SegmentAction.KEEP for segment in one.segments)
    )


def _partition_lines(one: PartitionPrediction) -> list[str]:
    """Return lines about a partition, its segments and its records."""
    lines = [f"{one.directory}: {one.outcome.value}{_format_offsets(one)}"]
    lost = one.lost
    if lost.records:
        first, last = (
            "?" if ms is None else format_time(ms) or str(ms)
            for ms in (lost.first_timestamp_ms, lost.last_timestamp_ms)
        )
        lines.append(
            f"  {plural(lost.records, 'record')} lost or hidden: offsets {lost.first_offset} to "
            f"{lost.last_offset}, {first} to {last}"
        )
    if one.loaded is not None and one.loaded.first_unstable_offset is not None:
        lines.append(f"  {_format_state(one.loaded)}")
    unflushed = sum(map(_is_unflushed, one.segments))
    for segment in one.segments:
        if segment.action is SegmentAction.KEEP or (unflushed > 1 and _is_unflushed(segment)):
            continue
        cut = "" if segment.cut_at_bytes is None else f" at byte {segment.cut_at_bytes}"
        why = "" if segment.reason is None else f": {segment.reason}"
        lines.append(f"  segment {segment.base_offset}: {segment.action.value}{cut}{why}")
    if unflushed > 1:
        lines.append(f"  {plural(unflushed, 'segment')}: rebuild: {_UNFLUSHED}")
    lines += [f"  {text}" for text in (one.unserved, one.unknown) if text is not None]
    if one.refusal is not None:
        lines.append(f"  {_refusal_text(one.refusal)}")
    return [*lines, *(f"  {note}" for note in one.notes)]


def _format_state(loaded: LoadedLog) -> str:
    epochs = ", ".join(f"{one.epoch} from {one.start_offset}" for one in loaded.epochs) or "none"
    return (
        f"leader epochs {epochs}; {plural(len(loaded.producers), 'producer')}; a transaction is "
        f"open from offset {loaded.first_unstable_offset}"
    )


def _format_offsets(one: PartitionPrediction) -> str:
    if one.loaded is None:
        return ""
    loaded = one.loaded
    return (
        f", log start {one.log_start_before} to {loaded.log_start_offset}, "
        f"log end {one.log_end_before} to {loaded.log_end_offset}, "
        f"high watermark {one.high_watermark}"
    )


def _segment_rows(one: PartitionPrediction) -> list[dict[str, object]]:
    common = {
        "topic": one.topic,
        "partition": one.partition,
        "path": one.directory,
        "status": one.outcome.value,
    }
    return [
        {
            **common,
            "segment_base_offset": segment.base_offset,
            "action": segment.action.value,
            "cut_at_bytes": segment.cut_at_bytes,
            "reason": segment.reason,
        }
        for segment in one.segments
    ] or [{**common, "reason": None if one.refusal is None else one.refusal.reason}]


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


def predict(
    request: PredictRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    report: ReportSink | None = None,
) -> Prediction:
    """Predict the startup of a broker.

    Raises `InputError` if a directory cannot be read, or is locked by a running broker.
    """
    directories = input_directories(request.inputs)
    conditions = start_conditions(
        directories,
        request.metadata,
        request.config.properties,
        request.config.config,
        request.max_decompressed_bytes,
        request.known_losses,
    )
    found = predict_start(directories, conditions)
    if report is not None:
        report.add_segments(_segments(directories))
    return Prediction(
        **{field.name: getattr(found, field.name) for field in fields(StartPrediction)},
        directories=tuple(directories),
    )


def _segments(directories: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the segments of directories; nothing if there are no logs."""
    try:
        listed = list_dump(directories, topics=None)
    except KafkaIndexError:
        return
    for partition in SegmentTable.of(listed.segments).partitions:
        yield partition.rows()

"""Run ``predict``; the result has the verdict, texts, counts, and a row per segment."""

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
from kafka_index.core.startup.conditions import collect_conditions
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
    Outcome.REPLACED: (NOTABLE, "the broker replaces the partition by its future replica"),
    Outcome.STRAY: (BAD, "the broker renames the directory to -stray, and creates an empty log"),
    Outcome.EMPTIED: (BAD, "the broker creates an empty log for the partition"),
    Outcome.REFUSED: (BAD, "the broker does not start because of this partition"),
}
_ACTIONS: Mapping[SegmentAction, tuple[Severity, str]] = {
    SegmentAction.KEEP: (GOOD, "the broker loads the segment unchanged"),
    SegmentAction.REBUILD: (
        NOTABLE,
        "the broker recovers the segment: it rebuilds its index files",
    ),
    SegmentAction.REPLACE: (NOTABLE, "the broker replaces the segment by a swap file"),
    SegmentAction.CUT: (BAD, "the broker truncates the log"),
    SegmentAction.DELETE: (BAD, "the broker deletes the segment"),
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
        The reasons why the broker does not serve all records of several partitions.
    unknown : tuple of str
        Files that were not read, and unknown facts. If not empty, the verdict is never ``safe``.
    not_checked : tuple of str
        Facts that the verdict does not cover, because an input for them is missing.
    suggestion : str or None
        Advice for a startup that loses fewer records.
    directories : tuple of str
        The data directories.
    """

    directories: tuple[str, ...] = ()

    command = "predict"
    status_header = ("outcome", "partitions")

    @property
    def headline(self) -> str:
        """The verdict with its reason, unchecked facts, and the number of segments to delete."""
        clauses = [f"{self.verdict.value}{self._reason}"]
        if self.verdict in (Verdict.SAFE, Verdict.UNKNOWN):
            clauses += [f"not checked: {unchecked_fact}" for unchecked_fact in self.not_checked]
            deleted = sum(partition.segments_to_delete for partition in self.partitions)
            segment_count = sum(
                len(partition.loaded.base_offsets)
                for partition in self.partitions
                if partition.loaded
            )
            if deleted:
                clauses.append(
                    f"then retention deletes {deleted} of {plural(segment_count, 'segment')}"
                )
        return "; ".join(clauses)

    @property
    def _reason(self) -> str:
        if self.verdict is Verdict.SAFE:
            scope = " for the files" if self.not_checked else ""
            return f"{scope}: a broker starts, and no record is lost or unreadable"
        if self.verdict is Verdict.LOSES:
            return f": a broker starts, {self._losses}"
        if self.verdict is Verdict.DOES_NOT_START:
            return _format_reasons(list(map(_format_refusal, self.refused)))
        if self.verdict is Verdict.UNKNOWN:
            return _format_reasons(self._unknown_reasons)
        unserved_partitions = (
            f"{partition.directory}: {partition.unserved}"
            for partition in self.partitions
            if partition.unserved
        )
        stray_partitions = (
            partition for partition in self.partitions if partition.outcome is Outcome.STRAY
        )
        return _format_reasons(
            [
                *self.unserved,
                *unserved_partitions,
                *(f"{partition.directory} is stray" for partition in stray_partitions),
            ]
        )

    @property
    def _losses(self) -> str:
        """Numbers of lost or unreadable records, of emptied partitions, and of missing offsets."""
        losses = f"{plural(self.counts['records_lost'], 'record')} lost or unreadable"
        if emptied := self.counts[f"partitions_{Outcome.EMPTIED}"]:
            losses += f", {plural(emptied, 'partition')} emptied"
        missing_count = sum(
            gap.end_offset - gap.first_offset
            for partition in self.partitions
            for gap in partition.missing
        )
        return f"{losses}, {plural(missing_count, 'offset')} missing" if missing_count else losses

    @property
    def _unknown_reasons(self) -> list[str]:
        unknown_partitions = (
            f"{partition.directory}: {partition.unknown}"
            for partition in self.partitions
            if partition.unknown
        )
        return [*self.unknown, *unknown_partitions]

    @property
    def statuses(self) -> list[Status]:
        """The number of partitions by outcome."""
        return count_statuses((partition.outcome for partition in self.partitions), _OUTCOMES)

    @property
    def facts(self) -> list[str]:
        """The losses, the log data that a broker reads, and the number of unflushed segments."""
        log_read = format_bytes(self.sizes_bytes["log_read"])
        partition_count = plural(len(self.partitions), "partition")
        lines = [f"{partition_count}, {self._losses}; a broker reads {log_read} of logs"]
        rebuilt = sum(
            segment.action is SegmentAction.REBUILD
            for partition in self.partitions
            if _is_only_rebuilt(partition)
            for segment in partition.segments
        )
        if rebuilt:
            lines.append(f"the broker rebuilds {plural(rebuilt, 'unflushed segment')}")
        return lines

    @property
    def sections(self) -> list[Section]:
        """Notes, the suggestion, changed partitions, and the reasons for the verdict."""
        changed: list[str] = []
        harmed: list[str] = []
        by_loss = sorted(self.partitions, key=lambda partition: -partition.lost.records)
        for partition in by_loss:
            if _is_harmed(partition):
                harmed += _format_partition(partition)
            elif _is_notable(partition) and not _is_only_rebuilt(partition):
                changed += _format_partition(partition)
        suggestion = [] if self.suggestion is None else [self.suggestion]
        return [
            Section("notes:", self.notes, noun="note"),
            Section("partitions with changes or notes:", changed, noun="line"),
            Section("suggestion:", suggestion),
            Section("the broker does not start:", list(map(_format_refusal, self.refused)), BAD),
            Section("not served:", self.unserved, BAD),
            Section("unknown:", self.unknown, BAD),
            Section("partitions that lose records or are not served:", harmed, BAD, noun="line"),
        ]

    @property
    def next_command(self) -> str | None:
        """The command that reports the defects of files, unless the verdict is safe."""
        if self.verdict is Verdict.SAFE:
            return None
        return f"kafka-index verify --input {shlex.join(self.directories)}"

    @property
    def outcome(self) -> RunOutcome:
        """``done`` if the verdict is safe, otherwise ``damage``."""
        return RunOutcome.DONE if self.verdict is Verdict.SAFE else RunOutcome.DAMAGE

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of partitions by outcome, segments by action, startup errors, and lost records."""
        outcomes = Counter(partition.outcome for partition in self.partitions)
        actions = Counter(
            segment.action for partition in self.partitions for segment in partition.segments
        )
        return {
            **{f"partitions_{outcome}": outcomes[outcome] for outcome in Outcome},
            **{f"segments_{action}": actions[action] for action in SegmentAction},
            "refused": len(self.refused),
            "records_lost": sum(partition.lost.records for partition in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of the log data that a broker reads."""
        return {"log_read": sum(partition.bytes_read for partition in self.partitions)}

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets that compaction does not explain."""
        gaps = tuple(
            gap.as_gap(TopicPartition(partition.topic, partition.partition), partition.directory)
            for partition in self.partitions
            for gap in partition.missing
        )
        return MissingOffsets.joined([MissingOffsets(gaps)])

    def as_object(self) -> dict[str, object]:
        """Return the prediction as one JSON object."""
        return {
            "verdict": self.verdict.value,
            "conclusion": self.conclusion.text,
            "refused": list(map(asdict, self.refused)),
            "partitions": list(map(_partition_to_json, self.partitions)),
            "unserved": list(self.unserved),
            "unknown": list(self.unknown),
            "not_judged": list(self.not_checked),
            "notes": list(self.notes),
            "suggestion": self.suggestion,
        }

    def to_arrow(self) -> pa.Table:
        """Return a row per segment; for a partition without segments, one row."""
        rows = [row for partition in self.partitions for row in _to_report_rows(partition)]
        return pa.Table.from_pylist(rows, schema=PREDICT_SCHEMA)

    def _preview_rows(self) -> pa.Table:
        """Return the rows of changed segments, or all rows if no segment is changed."""
        rows = self.to_arrow()
        is_changed = pc.fill_null(pc.not_equal(rows["action"], SegmentAction.KEEP), True)  # noqa: FBT003
        changed_rows = rows.filter(is_changed)
        displayed_rows = changed_rows if changed_rows.num_rows else rows
        leading_columns = ("status", "action", "topic", "partition", "segment_base_offset")
        return displayed_rows.select(
            [
                *leading_columns,
                *(name for name in displayed_rows.column_names if name not in leading_columns),
            ]
        )


def _format_reasons(reasons: list[str]) -> str:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f": {reasons[0]}{more}" if reasons else ""


def _format_refusal(refusal: Refusal) -> str:
    line = "" if refusal.line is None else f", line {refusal.line}"
    return f"{refusal.file}{line}: {refusal.reason}"


def _is_harmed(partition: PartitionPrediction) -> bool:
    is_served = partition.outcome in (Outcome.LOADED, Outcome.REPLACED)
    return bool(
        not is_served
        or partition.loses
        or partition.missing
        or partition.unserved
        or partition.unknown
    )


def _is_unflushed(segment: SegmentPrediction) -> bool:
    return segment.action is SegmentAction.REBUILD and (segment.reason or "").startswith(_UNFLUSHED)


def _is_only_rebuilt(partition: PartitionPrediction) -> bool:
    return (
        partition.outcome is Outcome.LOADED
        and not (
            partition.lost.records or partition.notes or partition.unserved or partition.unknown
        )
        and all(
            _is_unflushed(segment) or segment.action is SegmentAction.KEEP
            for segment in partition.segments
        )
        and any(map(_is_unflushed, partition.segments))
    )


def _is_notable(partition: PartitionPrediction) -> bool:
    return bool(
        partition.outcome is not Outcome.LOADED
        or partition.notes
        or any(segment.action is not SegmentAction.KEEP for segment in partition.segments)
    )


def _format_partition(partition: PartitionPrediction) -> list[str]:
    """Return lines about a partition, its lost records and its changed segments."""
    lines = [f"{partition.directory}: {partition.outcome.value}{_format_offsets(partition)}"]
    lost = partition.lost
    if lost.records:
        first_time, last_time = (
            "?" if ms is None else format_time(ms) or str(ms)
            for ms in (lost.first_timestamp_ms, lost.last_timestamp_ms)
        )
        lines.append(
            f"  {plural(lost.records, 'record')} lost or unreadable: offsets {lost.first_offset} "
            f"to {lost.last_offset}, {first_time} to {last_time}"
        )
    if partition.loaded is not None and partition.loaded.first_unstable_offset is not None:
        lines.append(f"  {_format_producer_state(partition.loaded)}")
    unflushed_count = sum(map(_is_unflushed, partition.segments))
    for segment in partition.segments:
        if segment.action is SegmentAction.KEEP or (unflushed_count > 1 and _is_unflushed(segment)):
            continue
        truncation = "" if segment.cut_at_bytes is None else f" at byte {segment.cut_at_bytes}"
        reason = "" if segment.reason is None else f": {segment.reason}"
        lines.append(f"  segment {segment.base_offset}: {segment.action.value}{truncation}{reason}")
    if unflushed_count > 1:
        lines.append(f"  {plural(unflushed_count, 'segment')}: rebuild: {_UNFLUSHED}")
    lines += [
        f"  {reason_text}"
        for reason_text in (partition.unserved, partition.unknown)
        if reason_text is not None
    ]
    if partition.refusal is not None:
        lines.append(f"  {_format_refusal(partition.refusal)}")
    return [*lines, *(f"  {note}" for note in partition.notes)]


def _format_producer_state(loaded: LoadedLog) -> str:
    epochs = (
        ", ".join(f"{epoch.epoch} from {epoch.start_offset}" for epoch in loaded.epochs) or "none"
    )
    return (
        f"leader epochs {epochs}; {plural(len(loaded.producers), 'producer')}; a transaction is "
        f"open from offset {loaded.first_unstable_offset}"
    )


def _format_offsets(partition: PartitionPrediction) -> str:
    if partition.loaded is None:
        return ""
    loaded = partition.loaded
    return (
        f", log start {partition.log_start_before} to {loaded.log_start_offset}, "
        f"log end {partition.log_end_before} to {loaded.log_end_offset}, "
        f"high watermark {partition.high_watermark}"
    )


def _to_report_rows(partition: PartitionPrediction) -> list[dict[str, object]]:
    partition_columns = {
        "topic": partition.topic,
        "partition": partition.partition,
        "path": partition.directory,
        "status": partition.outcome.value,
    }
    return [
        {
            **partition_columns,
            "segment_base_offset": segment.base_offset,
            "action": segment.action.value,
            "cut_at_bytes": segment.cut_at_bytes,
            "reason": segment.reason,
        }
        for segment in partition.segments
    ] or [
        {
            **partition_columns,
            "reason": None if partition.refusal is None else partition.refusal.reason,
        }
    ]


def _partition_to_json(partition: PartitionPrediction) -> dict[str, object]:
    loaded, lost = partition.loaded, partition.lost
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "directory": partition.directory,
        "outcome": partition.outcome.value,
        "log_start_before": partition.log_start_before,
        "log_start": None if loaded is None else loaded.log_start_offset,
        "log_start_retained": partition.log_start_retained,
        "log_end_before": partition.log_end_before,
        "log_end": None if loaded is None else loaded.log_end_offset,
        "high_watermark": partition.high_watermark,
        "records_lost": lost.records,
        "first_lost_offset": lost.first_offset,
        "last_lost_offset": lost.last_offset,
        "first_lost_timestamp_ms": lost.first_timestamp_ms,
        "last_lost_timestamp_ms": lost.last_timestamp_ms,
        "records_back": partition.records_back,
        "torn_bytes": partition.torn_bytes,
        "unserved": partition.unserved,
        "unknown": partition.unknown,
        "segments_to_delete": partition.segments_to_delete,
        "missing": [
            {
                "first_offset": gap.first_offset,
                "last_offset": gap.last_offset,
                "why": gap.why,
            }
            for gap in partition.missing
        ],
        "bytes_read": partition.bytes_read,
        "leader_epochs": None if loaded is None else list(map(asdict, loaded.epochs)),
        "producers": None if loaded is None else len(loaded.producers),
        "open_transaction_from": None if loaded is None else loaded.first_unstable_offset,
        "segments": list(map(asdict, partition.segments)),
        "refused": None if partition.refusal is None else asdict(partition.refusal),
        "notes": list(partition.notes),
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
    conditions = collect_conditions(
        directories,
        request.metadata,
        request.config.properties,
        request.config.config,
        request.max_decompressed_bytes,
        request.known_losses,
    )
    prediction = predict_start(directories, conditions)
    if report is not None:
        report.add_segments(_list_segment_rows(directories))
    return Prediction(
        **{field.name: getattr(prediction, field.name) for field in fields(StartPrediction)},
        directories=tuple(directories),
    )


def _list_segment_rows(directories: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the segments of data directories; yield nothing if listing them fails."""
    try:
        listing = list_dump(directories, topics=None)
    except KafkaIndexError:
        return
    for partition in SegmentTable.from_files(listing.segments).partitions:
        yield partition.rows()

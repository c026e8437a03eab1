"""A single question, answered on the screen: only the directory of its partition is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

from kafka_index.cli.lookup_summary import (
    EXPLAINED,
    exit_code,
    print_findings,
    warn_of_starts,
    warn_of_unindexed,
)
from kafka_index.cli.lookup_topic import inventory_of, partition_directories
from kafka_index.cli.run_end import ExitCode, run_summary
from kafka_index.cli.terminal import print_text, shown_path
from kafka_index.errors import CorruptLogError
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.times import TimeSpan, format_time
from kafka_index.lookup import By, Inventory, Keys, Lookups, LookupSettings
from kafka_index.reading.answers import Resolve, Status

if TYPE_CHECKING:
    from kafka_index.cli.lookup_command import QuestionOptions
    from kafka_index.cli.printed_records import PrintedRecords
    from kafka_index.cli.record_text import RecordText

_NOT_AS_LATE = Status.NO_RECORD_AT_OR_AFTER
_OUTSIDE = (Status.BEFORE_LOG_START, Status.LOG_END, Status.AFTER_LOG_END)


def answer_question(question: QuestionOptions) -> ExitCode:
    """Answer a question about one partition.

    Raises `KafkaIndexError` if there is no such partition, or it cannot be listed.
    """
    partition = TopicPartition(str(question.topic), question.partitions[0])
    by, detail = By(question.by), question.detail
    default = Resolve.RECORD if question.show_record else by.default_resolve
    resolve = default if question.resolve is None else Resolve(question.resolve)
    inventory = inventory_of(question)
    warn_of_unindexed(inventory, by, detail)
    warn_of_starts(inventory, detail)
    with Lookups(inventory, LookupSettings(by, resolve, question.config)) as lookups:
        answers = lookups.answer(
            pa.array([partition.topic]),
            pa.array([partition.partition]),
            Keys(np.array([question.key]), specials=question.specials),
        )
        findings = lookups.drain_findings()
        bounds = _bounds(inventory, lookups, partition, Status(int(answers.status[0])))
    (answer,) = answers.to_arrow().to_pylist()
    run_summary().add_count(f"queries_{answer['status']}", 1)
    log_path = _log_path(inventory, partition, answer["segment_base_offset"])
    record = None
    if question.show_record and answer["found_offset"] is not None:
        record = _read_record(partition, answer["found_offset"], question)
    if question.as_json:
        answer |= {"log_start_offset": bounds[0], "log_end_offset": bounds[1]}
        answer |= {} if record is None else {"record": _record_object(partition, record)}
        click.echo(
            json.dumps(_as_json(question, partition, resolve, answer, log_path), ensure_ascii=False)
        )
    else:
        is_late = by is By.TIMESTAMP and answers.status[0] == _NOT_AS_LATE
        span = _span(inventory, partition) if is_late else None
        lines = _lines(question, partition, answer, log_path, bounds, span)
        print_text(
            sys.stdout, [*lines, *([] if record is None else _record_lines(partition, record))]
        )
    print_findings(findings, detail)
    return exit_code(findings, unanswered=answers.status[0] == Status.UNREADABLE)


def _log_path(
    inventory: Inventory, partition: TopicPartition, base_offset: int | None
) -> str | None:
    files = inventory.files(partition.topic, partition.partition)
    segments = () if files is None else files.segments
    paths = [segment.log_path for segment in segments if segment.base_offset == base_offset]
    return paths[0] if paths else None


def _as_json(
    question: QuestionOptions,
    partition: TopicPartition,
    resolve: Resolve,
    answer: dict[str, Any],
    log_path: str | None,
) -> dict[str, Any]:
    found_ms = answer["found_timestamp_ms"]
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        str(question.by): question.key,
        "resolve": resolve.value,
        **answer,
        "found_time": None if found_ms is None or found_ms < 0 else format_time(found_ms),
        "log_path": log_path,
    }


def _bounds(
    inventory: Inventory, lookups: Lookups, partition: TopicPartition, status: Status
) -> tuple[int | None, int | None]:
    """Return where the log begins and ends, where that explains an answer."""
    if status not in _OUTSIDE:
        return None, None
    topic, number = pa.array([partition.topic]), np.array([partition.partition], np.int64)
    code = int(inventory.codes(topic, number)[0])
    return lookups.start_offset(code), lookups.end_offset(code)


def _span(inventory: Inventory, partition: TopicPartition) -> TimeSpan | None:
    """Return the times of a log that has no record as late as was asked for."""
    files = inventory.files(partition.topic, partition.partition)
    if files is None:
        return None
    from kafka_index.tables.bounds import time_span  # noqa: PLC0415, slow to import
    from kafka_index.tables.settings import ReadSettings  # noqa: PLC0415, slow to import

    return time_span([files], ReadSettings())


def _lines(
    question: QuestionOptions,
    partition: TopicPartition,
    answer: dict[str, Any],
    log_path: str | None,
    bounds: tuple[int | None, int | None],
    span: TimeSpan | None,
) -> list[str]:
    status = Status[answer["status"].upper()]
    is_time = question.at is not None and not question.specials
    key = _time(question.key) if is_time else question.key
    lines = [f"{partition.directory_name}, {question.by} {key}: {status.text}"]
    if status is not Status.FOUND:
        start, end = bounds
        place = "" if start is None else f"; the log begins at {start} and ends at {end}"
        if span is not None:
            place = f"; {span.text}"
        lines[0] += f" ({EXPLAINED[status]}{place})"
    cells = {
        "offset": answer["found_offset"],
        "time": _known_time(answer["found_timestamp_ms"]),
        "leader epoch": answer["found_leader_epoch"],
        "batch": _batch(answer),
        "index entry": _entry(answer),
        "segment": answer["segment_base_offset"],
        "file": None if log_path is None else shown_path(log_path),
    }
    width = max(map(len, cells))
    lines += [
        f"  {name.ljust(width)}  {value}" for name, value in cells.items() if value is not None
    ]
    return lines


def _known_time(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None or timestamp_ms < 0 else _time(timestamp_ms)


def _time(timestamp_ms: int) -> str:
    text = format_time(timestamp_ms)
    return str(timestamp_ms) if text is None else f"{text} ({timestamp_ms})"


def _batch(answer: dict[str, Any]) -> str | None:
    if answer["batch_base_offset"] is None:
        return None
    return (
        f"offsets {answer['batch_base_offset']} to {answer['batch_last_offset']}, "
        f"{answer['batch_size_bytes']} bytes at byte {answer['batch_position_bytes']}"
    )


def _entry(answer: dict[str, Any]) -> str | None:
    if answer["entry_offset"] is None:
        return None
    time = _known_time(answer["entry_timestamp_ms"])
    return (
        f"offset {answer['entry_offset']}, byte {answer['entry_position_bytes']}"
        f"{'' if time is None else f', time {time}'}"
    )


def _read_record(
    partition: TopicPartition, offset: int, question: QuestionOptions
) -> PrintedRecords | None:
    """Return a record; None where a place without a record was found, such as the end.

    Raises `KafkaIndexError` if its batch cannot be read.
    """
    from kafka_index.cli.printed_records import (  # noqa: PLC0415, slow to import
        NUMBER_COLUMNS,
        PrintedRecords,
    )
    from kafka_index.tables import ReadSettings, plan_read  # noqa: PLC0415, slow to import
    from kafka_index.tables.bounds import BoundOptions  # noqa: PLC0415, slow to import
    from kafka_index.tables.records import read_plan  # noqa: PLC0415, slow to import

    paths: Sequence[str] = question.inputs
    topic, number = partition.topic, partition.partition
    if question.tiered is None:
        paths = partition_directories(paths, topic, [number])
    plan = plan_read(
        paths,
        partitions={topic: [number]},
        bounds=BoundOptions(offset, offset + 1),
        settings=ReadSettings(
            columns=(*NUMBER_COLUMNS, "key", "value", "headers"),
            include_control=True,
            max_decompressed_bytes=question.config.max_decompressed_bytes,
        ),
        config=question.config,
        tiered=question.tiered,
        indexes=question.indexes,
    )
    for batch in read_plan(plan):
        if batch.num_rows > 1:
            raise CorruptLogError(f"offset {offset} is that of more than one record")
        if batch.num_rows:
            return PrintedRecords.of_rows(batch)
    return None


def _record_lines(partition: TopicPartition, record: PrintedRecords) -> list[str]:
    """Return the lines of a record, as those of the answer before them."""
    members = list(_record_text(partition, as_json=False).members(record))
    width = max(len("leader epoch"), *(len(name) for name, _ in members))
    return [f"  {name.ljust(width)}  {text}" for name, text in members]


def _record_object(partition: TopicPartition, record: PrintedRecords) -> dict[str, Any]:
    """Return a record as ``dump --records --json`` prints it."""
    text = _record_text(partition, as_json=True)
    found: dict[str, Any] = json.loads("".join(text.lines(record)))
    return found


def _record_text(partition: TopicPartition, *, as_json: bool) -> RecordText:
    from kafka_index.cli.printed_records import decoder_of_topic  # noqa: PLC0415, slow to import
    from kafka_index.cli.record_text import RecordText  # noqa: PLC0415, slow to import

    decode = decoder_of_topic(partition.topic)
    return RecordText(as_json=as_json, keys=None, values=None, decode=decode)

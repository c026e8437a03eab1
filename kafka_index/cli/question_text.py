"""Output of a single ``lookup`` query as text or JSON.

For a single partition, all details of the result are printed. For several partitions, a table,
lines or JSON are printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.command import count_unread_files
from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.print_result import ProgressListener
from kafka_index.cli.terminal import Paint, Table, Verbosity, print_log, print_text
from kafka_index.commands.lookup.request import ConsoleLookupRequest
from kafka_index.commands.lookup.result import MEANINGS, SingleLookupResult, finding_line
from kafka_index.commands.lookup.single_lookup import partition_directories, run_single_lookup
from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.human import format_count, shown_path
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import format_time
from kafka_index.core.log.choices import Status
from kafka_index.core.log.read.answers import UNREADABLE

if TYPE_CHECKING:
    from kafka_index.cli.record_text import RecordText
    from kafka_index.core.query.printed_records import PrintedRecords

_NULL = "-"


def print_query_result(request: ConsoleLookupRequest, verbosity: Verbosity) -> ExitCode:
    """Run a query and print its result."""
    result = run_single_lookup(request, ProgressListener(verbosity))
    run_summary().add_result(result)
    count_unread_files()
    if request.has_one_answer:
        _print_partition_result(request, result)
    elif request.as_json:
        sys.stdout.writelines(json.dumps(answer) + "\n" for answer in result.answers)
    elif request.as_offsets:
        _print_offsets(result.answers)
    else:
        print_text(sys.stdout, [_result_table(request, result.answers)])
    _print_findings(result, verbosity)
    return ExitCode(result.outcome.exit_code)


def _print_partition_result(request: ConsoleLookupRequest, result: SingleLookupResult) -> None:
    """Print one result with its batch, index entry, segment and record."""
    (answer,) = result.answers
    partition = TopicPartition(answer["topic"], answer["partition"])
    printed_record = None
    if request.show_record and answer["found_offset"] is not None:
        printed_record = _read_record(partition, answer["found_offset"], request)
    if request.as_json:
        json_object = dict(answer)
        if printed_record is not None:
            formatter, record = printed_record
            json_object["record"] = json.loads("".join(formatter.lines(record)))
        click.echo(json.dumps(json_object, ensure_ascii=False))
        return
    lines = _format_result(request, partition, answer, result.bounds)
    if printed_record is not None:
        formatter, record = printed_record
        lines += _align_members(list(formatter.members(record)), len("leader epoch"))
    print_text(sys.stdout, lines)


def _print_findings(result: SingleLookupResult, verbosity: Verbosity) -> None:
    """Print findings about the logs; with --quiet only corruption."""
    for finding in result.findings:
        if finding.kind == UNREADABLE or verbosity is not Verbosity.QUIET:
            print_log(f"{finding.kind}: {finding_line(finding)}")
    for entry in result.unread:
        print_log(f"not read: {entry}")


def _format_result(
    request: ConsoleLookupRequest,
    partition: TopicPartition,
    answer: Mapping[str, Any],
    place: str,
) -> list[str]:
    is_time = request.at is not None and not request.is_special
    key_text = _format_time_with_ms(request.key) if is_time else request.key
    status = Status[answer["status"].upper()]
    lines = [f"{partition.directory_name}, {request.key_kind} {key_text}: {status.text}"]
    if status is not Status.FOUND:
        lines[0] += f" ({MEANINGS[status]}{place and f'; {place}'})"
    batch = entry = None
    if answer["batch_base_offset"] is not None:
        batch = (
            f"offsets {answer['batch_base_offset']} to {answer['batch_last_offset']}, "
            f"{answer['batch_size_bytes']} bytes at byte {answer['batch_position_bytes']}"
        )
    if answer["entry_offset"] is not None:
        time = _format_valid_time(answer["entry_timestamp_ms"])
        entry = (
            f"offset {answer['entry_offset']}, byte {answer['entry_position_bytes']}"
            f"{'' if time is None else f', time {time}'}"
        )
    cells = {
        "offset": answer["found_offset"],
        "time": _format_valid_time(answer["found_timestamp_ms"]),
        "leader epoch": answer["found_leader_epoch"],
        "batch": batch,
        "index entry": entry,
        "segment": answer["segment_base_offset"],
        "file": None if answer["log_path"] is None else shown_path(answer["log_path"]),
    }
    members = [(name, str(value)) for name, value in cells.items() if value is not None]
    return lines + _align_members(members, max(map(len, cells)))


def _align_members(members: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Format names and texts in two columns; `width` is the minimum width of the names."""
    width = max([width, *(len(name) for name, _ in members)])
    return [f"  {name.ljust(width)}  {text}" for name, text in members]


def _format_valid_time(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None or timestamp_ms < 0 else _format_time_with_ms(timestamp_ms)


def _format_time_with_ms(timestamp_ms: int) -> str:
    text = format_time(timestamp_ms)
    return str(timestamp_ms) if text is None else f"{text} ({timestamp_ms})"


def _read_record(
    partition: TopicPartition, offset: int, request: ConsoleLookupRequest
) -> tuple[RecordText, PrintedRecords] | None:
    """Read the record at an offset; return it with its formatter, None if there is no record.

    Raises `KafkaIndexError` if the batch of the record cannot be read.
    """
    from kafka_index.cli.record_text import RecordText  # noqa: PLC0415, slow to import
    from kafka_index.core.query.bounds import BoundOptions  # noqa: PLC0415, slow to import
    from kafka_index.core.query.printed_records import (  # noqa: PLC0415, slow to import
        PRINTED_COLUMNS,
        PrintedRecords,
        topic_decoder,
    )
    from kafka_index.core.query.records import plan_read, read_plan  # noqa: PLC0415, as above
    from kafka_index.core.query.settings import ReadSettings  # noqa: PLC0415, slow to import

    paths: Sequence[str] = request.inputs
    topic, number = partition.topic, partition.partition
    if request.tiered is None:
        paths = partition_directories(paths, topic, [number])
    plan = plan_read(
        paths,
        partitions={topic: [number]},
        bounds=BoundOptions(offset, offset + 1),
        settings=ReadSettings(
            columns=PRINTED_COLUMNS,
            include_control=True,
            max_decompressed_bytes=request.log_config.max_decompressed_bytes,
        ),
        config=request.log_config,
        tiered=request.tiered,
        indexes=request.indexes,
    )
    for batch in read_plan(plan):
        if batch.num_rows > 1:
            raise CorruptLogError(f"more than one record has the offset {offset}")
        if batch.num_rows:
            decode = topic_decoder(topic)
            formatter = RecordText(as_json=request.as_json, keys=None, values=None, decode=decode)
            return formatter, PrintedRecords.from_rows(batch)
    return None


def _result_table(request: ConsoleLookupRequest, answers: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of results, with a topic column if there are several topics."""
    paint = Paint(sys.stdout)

    def status(text: str) -> str:
        return (paint.good if text == Status.FOUND.text else paint.notable)(text)

    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("partition", "partition", str),
        ("start", "start_offset", str),
        ("end", "end_offset", str),
        ("max records", "max_records", format_count),
        ("first time", "first_timestamp_ms", _format_short_time),
        ("last time", "max_timestamp_ms", _format_short_time),
    ]
    if request.topics is not None:
        columns.insert(0, ("topic", "topic", str))
    if request.key_kind is not None:
        columns += [
            ("answer", "found_offset", str),
            ("time", "found_timestamp_ms", _format_short_time),
            ("status", "status", status),
        ]
    rows = [
        [
            _NULL if answer[name] is None else format_cell(answer[name])
            for _, name, format_cell in columns
        ]
        for answer in answers
    ]
    titles = [title for title, *_ in columns]
    text_columns = {"topic", "first time", "last time", "time", "status"}
    return Table(titles, rows, [at for at, title in enumerate(titles) if title in text_columns])


def _format_short_time(timestamp_ms: int) -> str:
    return format_time(timestamp_ms) or str(timestamp_ms)


def _print_offsets(answers: Sequence[Mapping[str, Any]]) -> None:
    """Print lines in the format of ``kafka-get-offsets``; without a query, the log end offsets."""
    for answer in answers:
        partition = f"{answer['topic']}:{answer['partition']}"
        offset = answer.get("found_offset") if "status" in answer else answer["end_offset"]
        if offset is None:
            print_log(f"no offset for {partition}: {answer.get('status', 'unknown')}")
        else:
            sys.stdout.write(f"{partition}:{offset}\n")

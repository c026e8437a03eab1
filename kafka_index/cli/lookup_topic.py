"""A question to several partitions of a topic: a table, lines for scripts, or JSON lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

import numpy as np

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.lookup_options import LogOptions
from kafka_index.cli.lookup_questions import TopicQuestion
from kafka_index.cli.lookup_summary import exit_code, print_findings, warn_of_starts
from kafka_index.cli.options import Detail
from kafka_index.cli.partition_paths import partition_directories
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import Table, print_log, print_text
from kafka_index.cli.text import Paint, format_count
from kafka_index.cli.topic_answers import PartitionAnswer, answer_partitions
from kafka_index.layout.times import format_time
from kafka_index.lookup import By, Keys, collect_inventory
from kafka_index.reading.answers import Status, UpperBound

_NOTHING = "-"


def answer_topic(question: TopicQuestion, where: LogOptions, detail: Detail) -> ExitCode:
    """Answer a question about partitions of a topic, all of them or some.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    local = where.tiered is None
    inventory = collect_inventory(
        partition_directories(where.logs, question.topic, question.partitions)
        if local
        else where.logs,
        tiered=where.tiered,
        topics=None if local else re.compile(re.escape(question.topic)),
        indexes=where.indexes,
        upper_bound=UpperBound(where.upper_bound),
    )
    warn_of_starts(inventory, detail)
    key = None
    if question.by is not None:
        key = By(question.by), Keys(np.array([question.key], np.int64), specials=question.specials)
    answers, findings = answer_partitions(inventory, question.topic, where.config, key)
    answers = [
        each for each in answers if not question.partitions or each.partition in question.partitions
    ]
    for answer in answers:
        status = "listed" if answer.status is None else answer.status.text
        run_summary().add_count(f"queries_{status}", 1)
    _FORMS[question.form](question, answers)
    print_findings(findings, detail)
    return exit_code(findings, unanswered=any(each.status is Status.UNREADABLE for each in answers))


def _print_table(question: TopicQuestion, answers: Sequence[PartitionAnswer]) -> None:
    header = ["partition", "start", "end", "max records", "first time", "last time"]
    rows = [_row(answer) for answer in answers]
    left = [4, 5]
    if question.by is not None:
        paint = Paint(sys.stdout)
        header += ["answer", "time", "status"]
        left += [7, 8]
        for row, answer in zip(rows, answers, strict=True):
            status = answer.status or Status.FOUND
            colour = paint.good if status is Status.FOUND else paint.notable
            row += [
                _number(answer.found_offset),
                _time(answer.found_timestamp_ms),
                colour(status.text),
            ]
    print_text(sys.stdout, [Table(header, rows, left)])


def _row(answer: PartitionAnswer) -> list[str]:
    count = answer.max_records
    return [
        str(answer.partition),
        _number(answer.start_offset),
        _number(answer.end_offset),
        _NOTHING if count is None else format_count(count),
        _time(answer.first_timestamp_ms),
        _time(answer.max_timestamp_ms),
    ]


def _print_offsets(question: TopicQuestion, answers: Sequence[PartitionAnswer]) -> None:
    """Print lines as ``kafka-get-offsets`` does; without a question the ends."""
    for answer in answers:
        offset = answer.end_offset if question.by is None else answer.found_offset
        if offset is None:
            status = "not known" if answer.status is None else answer.status.text
            print_log(f"no offset for {question.topic}:{answer.partition}: {status}")
        else:
            sys.stdout.write(f"{question.topic}:{answer.partition}:{offset}\n")


def _print_json(question: TopicQuestion, answers: Sequence[PartitionAnswer]) -> None:
    for answer in answers:
        row: dict[str, object] = {
            "topic": question.topic,
            "partition": answer.partition,
            "start_offset": answer.start_offset,
            "end_offset": answer.end_offset,
            "max_records": answer.max_records,
            "first_timestamp_ms": answer.first_timestamp_ms,
            "max_timestamp_ms": answer.max_timestamp_ms,
        }
        if question.by is not None and answer.status is not None:
            row |= {
                question.by: question.key,
                "status": answer.status.text,
                "found_offset": answer.found_offset,
                "found_timestamp_ms": answer.found_timestamp_ms,
            }
        sys.stdout.write(json.dumps(row) + "\n")


_FORMS = {"table": _print_table, "offsets": _print_offsets, "json": _print_json}


def _number(value: int | None) -> str:
    return _NOTHING if value is None else str(value)


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return _NOTHING
    return format_time(timestamp_ms) or str(timestamp_ms)

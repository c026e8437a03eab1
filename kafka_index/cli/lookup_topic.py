"""Questions to partitions of a topic: their logs, and answers as a table, as lines or as JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.lookup_summary import exit_code, print_findings, warn_of_starts
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import Paint, Table, format_count, print_log, print_text
from kafka_index.config import LogConfig
from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.integers import Longs
from kafka_index.layout.names import (
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    split_directory_name,
)
from kafka_index.layout.times import format_time
from kafka_index.lookup import By, Inventory, Keys, Lookups, LookupSettings, collect_inventory
from kafka_index.reading.answers import (
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
    Answers,
    Finding,
    Resolve,
    SpecialTimestamp,
    Status,
    UpperBound,
)
from kafka_index.storage import expand_directories
from kafka_index.storage.directories import directory_exists, scan_directory
from kafka_index.storage.listing import did_you_mean

if TYPE_CHECKING:
    from kafka_index.cli.lookup_command import QuestionOptions

_PARTITIONS_SHOWN = 10
_NOTHING = "-"


def inventory_of(question: QuestionOptions) -> Inventory:
    """List the partitions that a question is about.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    paths: Sequence[str] = question.inputs
    topics = None
    if question.tiered is None:
        numbers = sorted(set(question.partitions))
        paths = partition_directories(paths, question.topic, numbers)
    else:
        # The events of other directories matter too.
        topics = re.compile(re.escape(question.topic))
    return collect_inventory(
        paths,
        tiered=question.tiered,
        topics=topics,
        indexes=question.indexes,
        upper_bound=UpperBound(question.upper_bound),
    )


def partition_directories(
    logs: Sequence[str], topic: str, partitions: Sequence[int] = ()
) -> list[str]:
    """Return the directories of some partitions of a topic, or of all.

    The logs are data directories, topic-partition directories, or globs of either. Raises
    `InputError` if a path does not exist, or one of the partitions is in none of them.
    """
    given = expand_directories(logs)
    if not is_legal_topic(topic):
        raise InputError("not a legal topic", found=repr(topic))
    if not partitions:
        existing = _directories_of(given)
        found = [path for each, paths in existing.items() if each.topic == topic for path in paths]
        if not found:
            raise _absent(logs, topic, existing)
        return found
    found = []
    for number in partitions:
        name = TopicPartition(topic, number).directory_name
        inside = [os.path.join(directory, name) for directory in given]
        directories = [path for path in inside if directory_exists(path)]
        directories += [path for path in given if os.path.basename(path) == name]
        if not directories:
            raise _absent(logs, topic, _directories_of(given), number)
        found += directories
    return found


def _directories_of(given: Sequence[str]) -> Mapping[TopicPartition, list[str]]:
    """Return the directories of all partitions that exist, by partition."""
    found: dict[TopicPartition, list[str]] = {}
    for directory in given:
        paths = {os.path.basename(directory): directory}
        try:
            paths |= {entry.name: entry.path for entry in scan_directory(directory)}
        except InputError as error:
            # Such as a file, or a directory that is not there: it has a partition's name, or none.
            if is_retriable(error):
                raise
        for name, path in paths.items():
            split = split_directory_name(name)
            if split is not None and split[1] is DirectoryKind.LIVE:
                found.setdefault(split[0], []).append(path)
    return {partition: found[partition] for partition in sorted(found)}


def _absent(
    logs: Sequence[str],
    topic: str,
    existing: Mapping[TopicPartition, list[str]],
    number: int | None = None,
) -> InputError:
    """Return the error for a partition or a topic that is not there, with what is."""
    numbers = [each.partition for each in existing if each.topic == topic]
    shown = ", ".join(map(str, numbers[:_PARTITIONS_SHOWN]))
    more = len(numbers) - _PARTITIONS_SHOWN
    what = f"topic {topic}" if number is None else f"partition {topic}-{number}"
    return InputError(
        f"no {what} here",
        path=", ".join(logs),
        found=f"its partitions {shown}{f' and {more} more' if more > 0 else ''}"
        if numbers
        else None,
        hint=None if numbers else did_you_mean(topic, (each.topic for each in existing)),
    )


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """A partition, and its answer; unknown fields are None.

    The end offset is the exclusive end of the question; the timestamps are that of its first
    record, and its largest one. The status is None where no question was asked.
    """

    partition: int
    start_offset: int | None
    end_offset: int | None
    first_timestamp_ms: int | None
    max_timestamp_ms: int | None
    status: Status | None = None
    found_offset: int | None = None
    found_timestamp_ms: int | None = None

    @property
    def max_records(self) -> int | None:
        """Its offsets, which is its records where none was compacted away and none is a marker."""
        if self.start_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.start_offset, 0)


def answer_topic(question: QuestionOptions) -> ExitCode:
    """Answer a question about partitions of a topic, all of them or some.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    inventory = inventory_of(question)
    warn_of_starts(inventory, question.detail)
    key = None
    if question.by is not None:
        key = By(question.by), Keys(np.array([question.key], np.int64), specials=question.specials)
    answers, findings = _answer_partitions(inventory, question.topic, question.config, key)
    answers = [
        each for each in answers if not question.partitions or each.partition in question.partitions
    ]
    for answer in answers:
        status = "listed" if answer.status is None else answer.status.text
        run_summary().add_count(f"queries_{status}", 1)
    if question.as_json:
        _print_json(question, answers)
    elif question.as_offsets:
        _print_offsets(question, answers)
    else:
        _print_table(question, answers)
    print_findings(findings, question.detail)
    return exit_code(findings, unanswered=any(each.status is Status.UNREADABLE for each in answers))


def _answer_partitions(
    inventory: Inventory,
    topic: str,
    config: LogConfig,
    question: tuple[By, Keys] | None,
) -> tuple[list[PartitionAnswer], list[Finding]]:
    """Return the answers of the partitions of a topic, and the findings about their logs.

    The inventory may have several topics; the question has one key, asked of every partition.
    """
    rows = inventory.partitions.select(["topic", "partition", "segment_count"]).to_pylist()
    asked = [(code, row) for code, row in enumerate(rows) if row["topic"] == topic]
    numbers = np.array([row["partition"] for _, row in asked], np.int64)
    findings: list[Finding] = []
    with Lookups(inventory, LookupSettings(By.TIMESTAMP, Resolve.RECORD, config)) as lookups:
        latest = _ask(lookups, topic, numbers, SpecialTimestamp.MAX_TIMESTAMP)
        starts = [
            lookups.start_offset(code) if row["segment_count"] else None for code, row in asked
        ]
        ends = [lookups.end_offset(code) if row["segment_count"] else None for code, row in asked]
        answers = None
        if question is not None and question[0] is By.TIMESTAMP:
            answers = _answer(lookups, topic, numbers, question[1])
        findings += lookups.drain_findings()
    with Lookups(inventory, LookupSettings(By.OFFSET, Resolve.RECORD, config)) as lookups:
        first = lookups.answer(
            pa.array([topic] * len(numbers), pa.string()),
            pa.array(numbers),
            Keys(np.array([start or 0 for start in starts], np.int64)),
        )
        if question is not None and question[0] is By.OFFSET:
            answers = _answer(lookups, topic, numbers, question[1])
        findings += lookups.drain_findings()
    found = [
        PartitionAnswer(
            partition=int(numbers[number]),
            start_offset=starts[number],
            end_offset=ends[number],
            first_timestamp_ms=_known_time(first, number),
            max_timestamp_ms=_known_time(latest, number),
            status=None if answers is None else Status(int(answers.status[number])),
            found_offset=None if answers is None else _value(answers, FOUND_OFFSET, number),
            found_timestamp_ms=None if answers is None else _known_time(answers, number),
        )
        for number in range(len(numbers))
    ]
    return found, list(dict.fromkeys(findings))


def _ask(lookups: Lookups, topic: str, partitions: Longs, timestamp: int) -> Answers:
    return _answer(lookups, topic, partitions, Keys(np.array([timestamp], np.int64)))


def _answer(lookups: Lookups, topic: str, partitions: Sequence[int] | Longs, key: Keys) -> Answers:
    count = len(partitions)
    keys = Keys(np.repeat(key.values, count), specials=key.specials)
    return lookups.answer(pa.array([topic] * count, pa.string()), pa.array(partitions), keys)


def _known_time(answers: Answers, number: int) -> int | None:
    value = _value(answers, FOUND_TIMESTAMP, number)
    return None if value is None or value < 0 else value


def _value(answers: Answers, column: int, number: int) -> int | None:
    value = int(answers.values[column, number])
    return None if value == NULL else value


def _print_table(question: QuestionOptions, answers: Sequence[PartitionAnswer]) -> None:
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


def _print_offsets(question: QuestionOptions, answers: Sequence[PartitionAnswer]) -> None:
    """Print lines as ``kafka-get-offsets`` does; without a question the ends."""
    for answer in answers:
        offset = answer.end_offset if question.by is None else answer.found_offset
        if offset is None:
            status = "not known" if answer.status is None else answer.status.text
            print_log(f"no offset for {question.topic}:{answer.partition}: {status}")
        else:
            sys.stdout.write(f"{question.topic}:{answer.partition}:{offset}\n")


def _print_json(question: QuestionOptions, answers: Sequence[PartitionAnswer]) -> None:
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


def _number(value: int | None) -> str:
    return _NOTHING if value is None else str(value)


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return _NOTHING
    return format_time(timestamp_ms) or str(timestamp_ms)

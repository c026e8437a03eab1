"""Questions to partitions of topics: their logs, and answers as a table, as lines or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafka_index.cli.lookup_summary import exit_code, print_findings, warn_of_starts
from kafka_index.cli.run_end import ExitCode, run_summary
from kafka_index.cli.terminal import Paint, Table, format_count, print_log, print_text
from kafka_index.config import topics_pattern
from kafka_index.errors import InputError, first_of, is_retriable
from kafka_index.layout.names import (
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    split_directory_name,
)
from kafka_index.layout.times import format_time
from kafka_index.lookup import (
    By,
    Inventory,
    Keys,
    Lookups,
    LookupSettings,
    StartingOffset,
    collect_inventory,
)
from kafka_index.lookup.query_files import PARTITION, TOPIC, QueryBatch
from kafka_index.lookup.tally import starting_offsets_of
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
_LEVEL = Resolve.RECORD


def inventory_of(question: QuestionOptions) -> Inventory:
    """List the partitions that a question is about.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    paths: Sequence[str] = question.inputs
    topics = question.topics
    if question.topic is not None and question.tiered is None:
        numbers = sorted(set(question.partitions))
        paths = partition_directories(paths, question.topic, numbers)
    elif question.topic is not None:
        # The events of other directories matter too.
        topics = topics_pattern([question.topic])
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
    what = f"topic {topic}" if number is None else f"partition {topic}-{number}"
    return InputError(
        f"no {what} here",
        path=", ".join(logs),
        found=f"its partitions {first_of(numbers, _PARTITIONS_SHOWN)}" if numbers else None,
        hint=None if numbers else did_you_mean(topic, (each.topic for each in existing)),
    )


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """A partition, and its answer; unknown fields are None.

    The end offset is the exclusive end of the question; the timestamps are that of its first
    record, and its largest one. The status is None where no question was asked.
    """

    topic: str
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
    """Answer a question about partitions of topics, all of them or some.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    with ExitStack() as stack:
        write_offsets = None
        if question.has_files:
            from kafka_index.cli.lookup import offsets_files  # noqa: PLC0415, slow to import

            # A file that cannot be written ends the run before the work.
            write_offsets = stack.enter_context(offsets_files(question, question.folders))
        inventory = inventory_of(question)
        warn_of_starts(inventory, question.detail)
        answers, findings, starts = _answer_partitions(
            inventory, _asked(inventory, question), question
        )
        code = _print_answers(question, answers, findings)
        if write_offsets is not None:
            write_offsets(starts, findings)
    return code


def _asked(inventory: Inventory, question: QuestionOptions) -> list[int]:
    """Return the numbers of the partitions that are asked, in order."""
    rows = inventory.partitions.select(["topic", "partition"]).to_pylist()
    of_topics = [code for code, row in enumerate(rows) if question.topic in (None, row["topic"])]
    if not question.partitions:
        return of_topics
    for number in sorted(set(question.partitions).difference(row["partition"] for row in rows)):
        raise InputError(
            f"no partition {number} of {_chosen(question)} here", path=", ".join(question.folders)
        )
    return [code for code in of_topics if rows[code]["partition"] in question.partitions]


def _chosen(question: QuestionOptions) -> str:
    if question.topics is None:
        return f"topic {question.topic}"
    return f"the topics that match {question.topics.pattern!r}"


def _print_answers(
    question: QuestionOptions, answers: Sequence[PartitionAnswer], findings: Sequence[Finding]
) -> ExitCode:
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
    inventory: Inventory, codes: Sequence[int], question: QuestionOptions
) -> tuple[list[PartitionAnswer], list[Finding], list[StartingOffset]]:
    """Return the answers of some partitions of the inventory, and the findings about their logs.

    The question has one key, asked of every partition. Where its answers go into files, their
    starting offsets come third.
    """
    rows = inventory.partitions.take(pa.array(codes, pa.int64())).to_pylist()
    partitions = [(row["topic"], row["partition"]) for row in rows]
    findings: list[Finding] = []
    starting_offsets: list[StartingOffset] = []
    answers = None

    def answer(lookups: Lookups) -> Answers:
        batch = _batch(partitions, [question.key] * len(rows), specials=question.specials)
        found = lookups.answer(batch.topics, batch.partitions, batch.keys)
        if question.has_files:
            starting_offsets.extend(starting_offsets_of(lookups, batch, found, len(rows)))
        return found

    with Lookups(inventory, LookupSettings(By.TIMESTAMP, _LEVEL, question.config)) as lookups:
        latest = _ask(lookups, partitions, [int(SpecialTimestamp.MAX_TIMESTAMP)] * len(rows))
        starts, ends = (
            [
                bound(code) if row["segment_count"] else None
                for code, row in zip(codes, rows, strict=True)
            ]
            for bound in (lookups.start_offset, lookups.end_offset)
        )
        if question.by == By.TIMESTAMP.value:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    with Lookups(inventory, LookupSettings(By.OFFSET, _LEVEL, question.config)) as lookups:
        first = _ask(lookups, partitions, [start or 0 for start in starts])
        if question.by == By.OFFSET.value:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    found = [
        PartitionAnswer(
            topic=topic,
            partition=partition,
            start_offset=starts[number],
            end_offset=ends[number],
            first_timestamp_ms=_known_time(first, number),
            max_timestamp_ms=_known_time(latest, number),
            status=None if answers is None else Status(int(answers.status[number])),
            found_offset=None if answers is None else _value(answers, FOUND_OFFSET, number),
            found_timestamp_ms=None if answers is None else _known_time(answers, number),
        )
        for number, (topic, partition) in enumerate(partitions)
    ]
    return found, list(dict.fromkeys(findings)), starting_offsets


def _ask(lookups: Lookups, partitions: Sequence[tuple[str, int]], keys: Sequence[int]) -> Answers:
    batch = _batch(partitions, keys)
    return lookups.answer(batch.topics, batch.partitions, batch.keys)


def _batch(
    partitions: Sequence[tuple[str, int]], keys: Sequence[int], *, specials: bool = True
) -> QueryBatch:
    """Return a query for each partition."""
    topics = pa.array([topic for topic, _ in partitions], pa.string())
    numbers = pa.array([number for _, number in partitions], pa.int64())
    rows = pa.record_batch({TOPIC: topics, PARTITION: numbers})
    return QueryBatch(rows, topics, numbers, Keys(np.array(keys, np.int64), specials=specials))


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
    if question.topics is not None:
        header.insert(0, "topic")
        for row, answer in zip(rows, answers, strict=True):
            row.insert(0, answer.topic)
        left = [0, 5, 6]
    if question.by is not None:
        paint = Paint(sys.stdout)
        header += ["answer", "time", "status"]
        left += [len(header) - 2, len(header) - 1]
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
            print_log(f"no offset for {answer.topic}:{answer.partition}: {status}")
        else:
            sys.stdout.write(f"{answer.topic}:{answer.partition}:{offset}\n")


def _print_json(question: QuestionOptions, answers: Sequence[PartitionAnswer]) -> None:
    for answer in answers:
        row: dict[str, object] = {
            "topic": answer.topic,
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

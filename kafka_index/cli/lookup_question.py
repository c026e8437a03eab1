"""A single question, answered on the screen: only the directory of its partition is read."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
import pyarrow as pa

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.lookup_options import LogOptions, Question
from kafka_index.cli.lookup_summary import (
    EXPLAINED,
    exit_code,
    finding_line,
    warn_of_starts,
    warn_of_unindexed,
)
from kafka_index.cli.options import Detail
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import print_log
from kafka_index.cli.text import format_time, shown_path
from kafka_index.errors import InputError
from kafka_index.layout.names import (
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    split_directory_name,
)
from kafka_index.lookup import By, Inventory, Keys, Lookups, LookupSettings, collect_inventory
from kafka_index.reading.answers import Resolve, Status, UpperBound
from kafka_index.reading.findings import UNREADABLE, Finding
from kafka_index.storage import expand_directories
from kafka_index.storage.directories import directory_exists, scan_directory

_PARTITIONS_SHOWN = 10


def answer_question(
    question: Question, where: LogOptions, detail: Detail, *, as_json: bool
) -> ExitCode:
    """Answer a question.

    Parameters
    ----------
    question : Question
        The query.
    where : LogOptions
        The logs, and the level of the answer.
    detail : Detail
        QUIET: print only the answer, and damage.
    as_json : bool
        Print one JSON object.

    Raises
    ------
    KafkaIndexError
        There is no such partition, or it cannot be listed.
    """
    partition = TopicPartition(question.topic, question.partition)
    by = By(question.by)
    resolve = by.default_resolve if where.resolve is None else Resolve(where.resolve)
    inventory = collect_inventory(
        # Where remote segments are, the events of other directories matter too.
        partition_directories(where.logs, partition) if where.tiered is None else where.logs,
        tiered=where.tiered,
        topics=None if where.tiered is None else re.compile(re.escape(question.topic)),
        indexes=where.indexes,
        upper_bound=UpperBound(where.upper_bound),
    )
    warn_of_unindexed(inventory, by, detail)
    warn_of_starts(inventory, detail)
    with Lookups(inventory, LookupSettings(by, resolve, where.config)) as lookups:
        answers = lookups.answer(
            pa.array([question.topic]),
            pa.array([question.partition]),
            Keys(np.array([question.key]), specials=question.specials),
        )
        findings = lookups.drain_findings()
    (answer,) = answers.to_arrow().to_pylist()
    run_summary().add_count(f"queries_{answer['status']}", 1)
    log_path = _log_path(inventory, partition, answer["segment_base_offset"])
    if as_json:
        click.echo(json.dumps(_as_json(question, resolve, answer, log_path), ensure_ascii=False))
    else:
        for line in _lines(question, answer, log_path):
            click.echo(line)
    _print_findings(findings, detail)
    return exit_code(findings, unanswered=answers.status[0] == Status.UNREADABLE)


def partition_directories(logs: Sequence[str], partition: TopicPartition) -> list[str]:
    """Return the directories of one partition, without listing those of any other.

    Parameters
    ----------
    logs : sequence of str
        Data directories, topic-partition directories, or globs of either.
    partition : TopicPartition
        Which one.

    Raises
    ------
    InputError
        A path does not exist, or none holds that partition.
    """
    given = expand_directories(logs)
    if not is_legal_topic(partition.topic):
        raise InputError("not a legal topic", found=repr(partition.topic))
    found = []
    for directory in given:
        inside = os.path.join(directory, partition.directory_name)
        if directory_exists(inside):
            found.append(inside)
        elif os.path.basename(directory) == partition.directory_name:
            found.append(directory)
    if not found:
        existing = _partitions_of(given, partition.topic)
        raise InputError(
            f"no partition {partition.directory_name} here",
            path=", ".join(logs),
            found=f"its partitions {existing}" if existing else f"none of {partition.topic}",
        )
    return found


def _partitions_of(directories: Sequence[str], topic: str) -> str:
    """Return the partitions of a topic that exist, as text."""
    numbers = set()
    for directory in directories:
        names = [os.path.basename(directory)]
        with contextlib.suppress(InputError):
            names += [entry.name for entry in scan_directory(directory)]
        for name in names:
            split = split_directory_name(name)
            if split is not None and split[1] is DirectoryKind.LIVE and split[0].topic == topic:
                numbers.add(split[0].partition)
    shown = ", ".join(map(str, sorted(numbers)[:_PARTITIONS_SHOWN]))
    more = len(numbers) - _PARTITIONS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _log_path(
    inventory: Inventory, partition: TopicPartition, base_offset: int | None
) -> str | None:
    files = inventory.files(partition.topic, partition.partition)
    segments = () if files is None else files.segments
    paths = [segment.log_path for segment in segments if segment.base_offset == base_offset]
    return paths[0] if paths else None


def _as_json(
    question: Question, resolve: Resolve, answer: dict[str, Any], log_path: str | None
) -> dict[str, Any]:
    found_ms = answer["found_timestamp_ms"]
    return {
        "topic": question.topic,
        "partition": question.partition,
        question.by: question.key,
        "resolve": resolve.value,
        **answer,
        "found_time": None if found_ms is None or found_ms < 0 else format_time(found_ms),
        "log_path": log_path,
    }


def _lines(question: Question, answer: dict[str, Any], log_path: str | None) -> list[str]:
    status = Status[answer["status"].upper()]
    is_time = question.by == By.TIMESTAMP.value and not (question.specials and question.key < 0)
    key = _time(question.key) if is_time else question.key
    lines = [f"{question.topic}-{question.partition}, {question.by} {key}: {status.text}"]
    if status is not Status.FOUND:
        lines[0] += f" ({EXPLAINED[status]})"
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


def _print_findings(findings: Sequence[Finding], detail: Detail) -> None:
    for finding in findings:
        if finding.kind == UNREADABLE or detail is not Detail.QUIET:
            print_log(f"{finding.kind}: {finding_line(finding)}")

"""A single lookup: the bounds of partitions, and the record at an offset or a time.

Only the directories of these partitions are read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_index.commands.lookup.request import ConsoleLookupRequest
from kafka_index.commands.lookup.result import QuestionResult, StartingOffset
from kafka_index.commands.lookup.starting_offsets import (
    inventory_of,
    offsets_files,
    starting_offsets_of,
    write_offsets,
)
from kafka_index.core.errors import InputError, first_of, is_retriable
from kafka_index.core.format.names import (
    DirectoryKind,
    TopicPartition,
    split_directory_name,
)
from kafka_index.core.format.times import format_time
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.fs.paths import expand_directories
from kafka_index.core.fs.registry import directory_exists, scan_directory
from kafka_index.core.job.engine import SILENT, Listener
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import Answers, LookupFinding, SpecialTimestamp
from kafka_index.core.logdir.listing import did_you_mean
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import (
    UNINDEXED_SCHEMA,
    Inventory,
    find_unindexed,
    inventory_notes,
)
from kafka_index.core.query.keys import Keys, QueryBatch
from kafka_index.core.query.lookups import Lookups, LookupSettings

_OUTSIDE = (Status.BEFORE_LOG_START, Status.LOG_END, Status.AFTER_LOG_END)
_PARTITIONS_SHOWN = 10


def answer_question(
    request: ConsoleLookupRequest, listener: Listener | None = None
) -> QuestionResult:
    """Look up one partition, or several partitions of topics.

    The found offsets are written to the files of the request. Raises `KafkaIndexError` if the topic
    or partition does not exist, or cannot be listed.
    """
    with reading_inputs(follow_links=request.follow_links) as unread, ExitStack() as stack:
        # If a file cannot be written, the run ends before the lookups.
        files = stack.enter_context(offsets_files(request))
        inventory = _inventory(request)
        for note in inventory_notes(inventory, _unindexed(request, inventory)):
            (listener or SILENT).on_note(note)
        answer = _answer_one if request.has_one_answer else _answer_several
        answers, findings, starts, place = answer(request, inventory)
        write_offsets(files, starts, findings)
        for file, _ in files:
            file.commit()
    return QuestionResult(
        answers,
        Counter(answer.get("status", "listed") for answer in answers),
        findings,
        unread_texts(unread),
        place,
    )


def _unindexed(request: ConsoleLookupRequest, inventory: Inventory) -> pa.Table:
    """Return the segments that a lookup of one partition reads completely."""
    if not request.has_one_answer or request.key_kind is None:
        return UNINDEXED_SCHEMA.empty_table()
    return find_unindexed(inventory, request.key_kind)


_Found = tuple[list[dict[str, Any]], list[LookupFinding], list[StartingOffset], str]


def _inventory(request: ConsoleLookupRequest) -> Inventory:
    if request.topic is None:
        return inventory_of(request)
    if request.tiered is not None:
        # Events about remote segments may be in other directories.
        return inventory_of(request, topics=re.compile(re.escape(request.topic)))
    numbers = sorted(set(request.partitions))
    return inventory_of(request, partition_directories(request.inputs, request.topic, numbers))


def partition_directories(
    logs: Sequence[str], topic: str, partitions: Sequence[int] = ()
) -> list[str]:
    """Return the directories of the given partitions of a topic, by default all partitions.

    The logs are data directories, topic-partition directories, or globs of either. Raises
    `InputError` if a path does not exist, or a partition is in none of them.
    """
    given = expand_directories(logs)
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
    """Return the directories of all existing partitions, keyed by partition."""
    found: dict[TopicPartition, list[str]] = {}
    for directory in given:
        paths = {os.path.basename(directory): directory}
        try:
            paths |= {entry.name: entry.path for entry in scan_directory(directory)}
        except InputError as error:
            # A file, or a missing directory: only the name itself can identify a partition.
            if is_retriable(error):
                raise
        for name, path in paths.items():
            split = split_directory_name(name)
            if split is not None and split[1] is DirectoryKind.LIVE:
                found.setdefault(split[0], []).append(path)
    return {partition: found[partition] for partition in sorted(found)}


def _absent(
    logs: Sequence[str], topic: str, existing: Collection[TopicPartition], number: int | None = None
) -> InputError:
    """Return the error for a missing partition or topic, with existing ones."""
    numbers = [each.partition for each in existing if each.topic == topic]
    what = f"topic {topic}" if number is None else f"partition {topic}-{number}"
    return InputError(
        f"no {what} here",
        path=", ".join(logs),
        found=f"its partitions {first_of(numbers, _PARTITIONS_SHOWN)}" if numbers else None,
        hint=None if numbers else did_you_mean(topic, (each.topic for each in existing)),
    )


def _answer_one(request: ConsoleLookupRequest, inventory: Inventory) -> _Found:
    """Look up one partition; also return an explanation of the status."""
    by = request.key_kind
    assert by is not None  # noqa: S101, it has one answer
    partition = TopicPartition(str(request.topic), request.partitions[0])
    default = Resolve.RECORD if request.show_record else by.default_resolve
    resolve = request.resolve or default
    queries = _batch([partition], [request.key], specials=request.is_place)
    with Lookups(inventory, LookupSettings(by, resolve, request.log_config)) as lookups:
        answers = lookups.answer(queries)
        status = Status(int(answers.status[0]))
        start = end = None
        if status in _OUTSIDE:
            (code,) = inventory.codes(queries.topics, queries.partitions.to_numpy()).tolist()
            start, end = lookups.start_offset(code), lookups.end_offset(code)
        findings = lookups.drain_findings()
    (answer,) = answers.to_arrow().to_pylist()
    files = inventory.files(partition.topic, partition.partition)
    segments = [] if files is None else files.segments
    base, found_ms = answer["segment_base_offset"], answer["found_timestamp_ms"]
    log_path = next((one.log_path for one in segments if one.base_offset == base), None)
    place = "" if start is None else f"the log begins at {start} and ends at {end}"
    if by is By.TIMESTAMP and status is Status.NO_RECORD_AT_OR_AFTER and files is not None:
        from kafka_index.core.query.bounds import time_span  # noqa: PLC0415, slow to import
        from kafka_index.core.query.settings import ReadSettings  # noqa: PLC0415, slow to import

        place = time_span([files], ReadSettings()).text
    row = {
        "topic": partition.topic,
        "partition": partition.partition,
        by.value: request.key,
        "resolve": resolve.value,
        **answer,
        "log_start_offset": start,
        "log_end_offset": end,
        "found_time": None if found_ms is None or found_ms < 0 else format_time(found_ms),
        "log_path": log_path,
    }
    return [row], findings, [], place


def _asked(inventory: Inventory, request: ConsoleLookupRequest) -> list[int]:
    """Return the codes of the requested partitions, in order."""
    rows = inventory.partitions.select(["topic", "partition"]).to_pylist()
    of_topics = [code for code, row in enumerate(rows) if request.topic in (None, row["topic"])]
    if not request.partitions:
        return of_topics
    for number in sorted(set(request.partitions).difference(row["partition"] for row in rows)):
        chosen = f"topic {request.topic}"
        if request.topics is not None:
            chosen = f"the topics that match {request.topics.pattern!r}"
        raise InputError(f"no partition {number} of {chosen} here", path=", ".join(request.folders))
    return [code for code in of_topics if rows[code]["partition"] in request.partitions]


def _answer_several(request: ConsoleLookupRequest, inventory: Inventory) -> _Found:
    """Look up one key in every requested partition; without a key, return their bounds only."""
    codes = _asked(inventory, request)
    rows = inventory.partitions.take(pa.array(codes, pa.int64())).to_pylist()
    partitions = [TopicPartition(row["topic"], row["partition"]) for row in rows]
    findings: list[LookupFinding] = []
    starting_offsets: list[StartingOffset] = []
    answers = None

    def answer(lookups: Lookups) -> Answers:
        queries = _batch(partitions, [request.key] * len(rows), specials=request.is_place)
        found = lookups.answer(queries)
        if request.offsets_files:
            starting_offsets.extend(starting_offsets_of(lookups, queries, found, len(rows)))
        return found

    level, config = Resolve.RECORD, request.log_config
    with Lookups(inventory, LookupSettings(By.TIMESTAMP, level, config)) as lookups:
        largest = [int(SpecialTimestamp.MAX_TIMESTAMP)] * len(rows)
        latest = lookups.answer(_batch(partitions, largest))
        starts, ends = (
            [
                bound(code) if row["segment_count"] else None
                for code, row in zip(codes, rows, strict=True)
            ]
            for bound in (lookups.start_offset, lookups.end_offset)
        )
        if request.key_kind is By.TIMESTAMP:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    with Lookups(inventory, LookupSettings(By.OFFSET, level, config)) as lookups:
        first = lookups.answer(_batch(partitions, [start or 0 for start in starts]))
        if request.key_kind is By.OFFSET:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    shown: list[dict[str, Any]] = []
    for partition, start, end, one, last in zip(
        partitions, starts, ends, _found(first), _found(latest), strict=True
    ):
        shown.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "start_offset": start,
                "end_offset": end,
                # The number of records, unless some were compacted away or are transaction markers.
                "max_records": None if start is None or end is None else max(end - start, 0),
                "first_timestamp_ms": one["found_timestamp_ms"],
                "max_timestamp_ms": last["found_timestamp_ms"],
            }
        )
    if answers is not None:
        for row, found in zip(shown, _found(answers), strict=True):
            row.update({str(request.key_kind): request.key} | found)
    return shown, list(dict.fromkeys(findings)), starting_offsets, ""


def _found(answers: Answers) -> list[dict[str, Any]]:
    """Return status, offset and time of answers; the time is None if the record has none."""
    names = ["status", "found_offset", "found_timestamp_ms"]
    rows: list[dict[str, Any]] = answers.to_arrow().select(names).to_pylist()
    for row in rows:
        if (row["found_timestamp_ms"] or 0) < 0:
            row["found_timestamp_ms"] = None
    return rows


def _batch(
    partitions: Sequence[TopicPartition], keys: Sequence[int], *, specials: bool = True
) -> QueryBatch:
    topics = pa.array([each.topic for each in partitions], pa.string())
    numbers = pa.array([each.partition for each in partitions], pa.int64())
    return QueryBatch(topics, numbers, Keys(np.array(keys, np.int64), specials=specials))

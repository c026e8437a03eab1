"""A single lookup: the bounds of partitions, and the record at an offset or a time.

Only the directories of the requested partitions are read.
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
from kafka_index.commands.lookup.result import (
    SingleLookupResult,
    StartingOffset,
    find_starting_offsets,
    offsets_files,
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
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import Answers, LookupFinding, SpecialTimestamp
from kafka_index.core.logdir.listing import did_you_mean
from kafka_index.core.query.inventory import (
    UNINDEXED_SCHEMA,
    Inventory,
    find_unindexed,
    inventory_notes,
)
from kafka_index.core.query.lookups import Keys, Lookups, LookupSettings, QueryBatch

_OUTSIDE = (Status.BEFORE_LOG_START, Status.LOG_END, Status.AFTER_LOG_END)
_PARTITIONS_SHOWN = 10


def run_single_lookup(
    request: ConsoleLookupRequest, listener: Listener | None = None
) -> SingleLookupResult:
    """Look up a key in one or several partitions, or list the bounds of partitions.

    The resulting offsets are written to the files of the request. Raises `KafkaIndexError` if a
    topic or partition does not exist or cannot be listed.
    """
    with reading_inputs(follow_links=request.follow_links) as unread, ExitStack() as stack:
        # Open the output files before the lookups, so that an invalid path ends the run early.
        files = stack.enter_context(offsets_files(request))
        inventory = _list_inventory(request)
        for note in inventory_notes(inventory, _find_unindexed(request, inventory)):
            (listener or SILENT).on_note(note)
        answer = _answer_one if request.has_one_answer else _answer_several
        answers, findings, starts, bounds = answer(request, inventory)
        write_offsets(files, starts, findings)
        for file, _ in files:
            file.commit()
    return SingleLookupResult(
        answers,
        Counter(answer.get("status", "listed") for answer in answers),
        findings,
        unread_texts(unread),
        bounds,
    )


def _find_unindexed(request: ConsoleLookupRequest, inventory: Inventory) -> pa.Table:
    """Return the segments without index files, which a lookup in one partition reads completely."""
    if not request.has_one_answer or request.key_kind is None:
        return UNINDEXED_SCHEMA.empty_table()
    return find_unindexed(inventory, request.key_kind)


_Answers = tuple[list[dict[str, Any]], list[LookupFinding], list[StartingOffset], str]


def _list_inventory(request: ConsoleLookupRequest) -> Inventory:
    if request.topic is None:
        return request.collect_inventory()
    if request.tiered is not None:
        # List all inputs, because remote log metadata events may be in other directories.
        return request.collect_inventory(topics=re.compile(re.escape(request.topic)))
    numbers = sorted(set(request.partitions))
    return request.collect_inventory(partition_directories(request.inputs, request.topic, numbers))


def partition_directories(
    logs: Sequence[str], topic: str, partitions: Sequence[int] = ()
) -> list[str]:
    """Return the directories of some partitions of a topic, by default of all its partitions.

    `logs` are data directories, partition directories, or globs of either. Raises `InputError` if a
    path does not exist, or a partition is in none of them.
    """
    roots = expand_directories(logs)
    if not partitions:
        existing_partitions = _list_partition_directories(roots)
        directories = [
            path
            for partition, paths in existing_partitions.items()
            if partition.topic == topic
            for path in paths
        ]
        if not directories:
            raise _missing_error(logs, topic, existing_partitions)
        return directories
    directories = []
    for number in partitions:
        name = TopicPartition(topic, number).directory_name
        paths = [path for root in roots if directory_exists(path := os.path.join(root, name))]
        paths += [root for root in roots if os.path.basename(root) == name]
        if not paths:
            raise _missing_error(logs, topic, _list_partition_directories(roots), number)
        directories += paths
    return directories


def _list_partition_directories(roots: Sequence[str]) -> Mapping[TopicPartition, list[str]]:
    """Return the directories of all existing partitions, keyed by partition."""
    directories: dict[TopicPartition, list[str]] = {}
    for root in roots:
        paths = {os.path.basename(root): root}
        try:
            paths |= {entry.name: entry.path for entry in scan_directory(root)}
        except InputError as error:
            # If a path is a file or does not exist, there is nothing to list: only the name of the
            # path can identify a partition.
            if is_retriable(error):
                raise
        for name, path in paths.items():
            parsed = split_directory_name(name)
            if parsed is not None and parsed[1] is DirectoryKind.LIVE:
                directories.setdefault(parsed[0], []).append(path)
    return {partition: directories[partition] for partition in sorted(directories)}


def _missing_error(
    logs: Sequence[str],
    topic: str,
    existing_partitions: Collection[TopicPartition],
    number: int | None = None,
) -> InputError:
    """Return the error for a missing partition or topic; it lists existing partitions or topics."""
    numbers = [partition.partition for partition in existing_partitions if partition.topic == topic]
    name = f"topic {topic}" if number is None else f"partition {topic}-{number}"
    topics = (partition.topic for partition in existing_partitions)
    return InputError(
        f"the input has no {name}",
        path=", ".join(logs),
        found=f"the partitions {first_of(numbers, _PARTITIONS_SHOWN)}" if numbers else None,
        hint=None if numbers else did_you_mean(topic, topics),
    )


def _answer_one(request: ConsoleLookupRequest, inventory: Inventory) -> _Answers:
    """Look up a key in one partition, and return the answer with bounds that explain its status."""
    by = request.key_kind
    assert by is not None  # noqa: S101, a request with one answer has a key
    partition = TopicPartition(str(request.topic), request.partitions[0])
    default = Resolve.RECORD if request.show_record else by.default_resolve
    resolve = request.resolve or default
    queries = _make_queries([partition], [request.key], specials=request.is_special)
    with Lookups(inventory, LookupSettings(by, resolve, request.log_config)) as lookups:
        answers = lookups.answer(queries)
        status = Status(int(answers.status[0]))
        log_start_offset = log_end_offset = None
        if status in _OUTSIDE:
            (code,) = inventory.codes(queries.topics, queries.partitions.to_numpy()).tolist()
            log_start_offset, log_end_offset = lookups.start_offset(code), lookups.end_offset(code)
        findings = lookups.drain_findings()
    (answer,) = answers.to_arrow().to_pylist()
    files = inventory.files(partition.topic, partition.partition)
    segments = [] if files is None else files.segments
    base_offset, found_ms = answer["segment_base_offset"], answer["found_timestamp_ms"]
    log_path = next(
        (segment.log_path for segment in segments if segment.base_offset == base_offset), None
    )
    bounds = (
        ""
        if log_start_offset is None
        else f"the log begins at {log_start_offset} and ends at {log_end_offset}"
    )
    if by is By.TIMESTAMP and status is Status.NO_RECORD_AT_OR_AFTER and files is not None:
        from kafka_index.core.query.bounds import time_span  # noqa: PLC0415, slow to import
        from kafka_index.core.query.settings import ReadSettings  # noqa: PLC0415, slow to import

        bounds = time_span([files], ReadSettings()).text
    row = {
        "topic": partition.topic,
        "partition": partition.partition,
        by.value: request.key,
        "resolve": resolve.value,
        **answer,
        "log_start_offset": log_start_offset,
        "log_end_offset": log_end_offset,
        "found_time": None if found_ms is None or found_ms < 0 else format_time(found_ms),
        "log_path": log_path,
    }
    return [row], findings, [], bounds


def _requested_codes(inventory: Inventory, request: ConsoleLookupRequest) -> list[int]:
    """Return the codes of the requested partitions, in order.

    Raises `InputError` if a requested partition does not exist.
    """
    rows = inventory.partitions.select(["topic", "partition"]).to_pylist()
    topic_codes = [code for code, row in enumerate(rows) if request.topic in (None, row["topic"])]
    if not request.partitions:
        return topic_codes
    for number in sorted(set(request.partitions).difference(row["partition"] for row in rows)):
        topics = f"topic {request.topic}"
        if request.topics is not None:
            topics = f"the topics that match {request.topics.pattern!r}"
        raise InputError(
            f"the input has no partition {number} of {topics}", path=", ".join(request.folders)
        )
    return [code for code in topic_codes if rows[code]["partition"] in request.partitions]


def _answer_several(request: ConsoleLookupRequest, inventory: Inventory) -> _Answers:
    """Look up one key in each requested partition; without a key, return only partition bounds."""
    codes = _requested_codes(inventory, request)
    rows = inventory.partitions.take(pa.array(codes, pa.int64())).to_pylist()
    partitions = [TopicPartition(row["topic"], row["partition"]) for row in rows]
    findings: list[LookupFinding] = []
    starting_offsets: list[StartingOffset] = []
    answers = None

    def answer(lookups: Lookups) -> Answers:
        queries = _make_queries(partitions, [request.key] * len(rows), specials=request.is_special)
        partition_answers = lookups.answer(queries)
        if request.offsets_files:
            starting_offsets.extend(
                find_starting_offsets(lookups, queries, partition_answers, len(rows))
            )
        return partition_answers

    level, config = Resolve.RECORD, request.log_config
    with Lookups(inventory, LookupSettings(By.TIMESTAMP, level, config)) as lookups:
        max_timestamps = [int(SpecialTimestamp.MAX_TIMESTAMP)] * len(rows)
        latest_records = lookups.answer(_make_queries(partitions, max_timestamps))
        log_starts, log_ends = (
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
        first_records = lookups.answer(
            _make_queries(partitions, [log_start or 0 for log_start in log_starts])
        )
        if request.key_kind is By.OFFSET:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    partition_rows: list[dict[str, Any]] = []
    for partition, log_start, log_end, first_record, latest_record in zip(
        partitions,
        log_starts,
        log_ends,
        _to_rows(first_records),
        _to_rows(latest_records),
        strict=True,
    ):
        partition_rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "start_offset": log_start,
                "end_offset": log_end,
                # An upper bound: transaction markers and compacted records also have offsets.
                "max_records": None
                if log_start is None or log_end is None
                else max(log_end - log_start, 0),
                "first_timestamp_ms": first_record["found_timestamp_ms"],
                "max_timestamp_ms": latest_record["found_timestamp_ms"],
            }
        )
    if answers is not None:
        for row, answer_row in zip(partition_rows, _to_rows(answers), strict=True):
            row.update({str(request.key_kind): request.key} | answer_row)
    return partition_rows, list(dict.fromkeys(findings)), starting_offsets, ""


def _to_rows(answers: Answers) -> list[dict[str, Any]]:
    """Return status, offset and timestamp of answers; None if a record has no timestamp."""
    names = ["status", "found_offset", "found_timestamp_ms"]
    rows: list[dict[str, Any]] = answers.to_arrow().select(names).to_pylist()
    for row in rows:
        if (row["found_timestamp_ms"] or 0) < 0:
            row["found_timestamp_ms"] = None
    return rows


def _make_queries(
    partitions: Sequence[TopicPartition], keys: Sequence[int], *, specials: bool = True
) -> QueryBatch:
    topics = pa.array([partition.topic for partition in partitions], pa.string())
    numbers = pa.array([partition.partition for partition in partitions], pa.int64())
    return QueryBatch(topics, numbers, Keys(np.array(keys, np.int64), specials=specials))

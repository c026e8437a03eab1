"""Consumer lag: committed offsets compared with the logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.tables import LAG_TABLES
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset
from kafka_index.core.errors import CorruptLogError, Faults, InputError, KafkaIndexError, ReadError
from kafka_index.core.format.config import LogConfig, compile_topics
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import CONSUMER_OFFSETS_TOPIC
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import (
    BATCH_POSITION,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    SEGMENT_BASE_OFFSET,
    UNREADABLE,
    Answers,
    LookupFinding,
    SpecialTimestamp,
)
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.query.inventory import NO_PARTITION, Inventory, collect_inventory
from kafka_index.core.query.lookups import Keys, Lookups, LookupSettings, QueryBatch
from kafka_index.core.records.decompression import shared_budget

_NOT_IN_INPUT = "the input does not contain the partition"
_ONLY_CONTROL_RECORDS = (
    "only control records, such as transaction markers, follow the committed offset"
)
# If the lag in records is larger, it is not checked whether only control records follow.
_MAX_CONTROL_RECORDS = 1000


def read_lag(
    paths: Sequence[str], table_name: str, *, max_decompressed_bytes: int
) -> tuple[pa.Table, Faults]:
    """Return one of the `LAG_TABLES`, and the reasons why records or lags are missing.

    `paths` are inputs of `read_metadata` that also contain the logs of the consumed partitions.
    Raises the errors of `read_metadata`.
    """
    metadata = read_metadata(
        paths,
        budget=shared_budget(max_decompressed_bytes),
        topics=(CONSUMER_OFFSETS_TOPIC,),
        has_history=table_name == "lag-history",
    )
    commits = [*metadata.earlier_offsets, *(metadata.offsets or ())]
    commits.sort(key=attrgetter("group", "topic", "partition", "record_offset"))
    # Include ``__consumer_offsets``, so that the listing is never empty.
    topics = {CONSUMER_OFFSETS_TOPIC, *(commit.topic for commit in commits)}
    inventory = collect_inventory(paths, topics=compile_topics(topics))
    config = LogConfig.of_properties({}, max_decompressed_bytes=max_decompressed_bytes)
    rows, faults = _compute_rows(inventory, commits, config, is_history=table_name == "lag-history")
    metadata.faults.add(*faults)
    return pa.Table.from_pylist(rows, schema=LAG_TABLES[table_name]), metadata.faults


def _compute_rows(
    inventory: Inventory,
    commits: Sequence[CommittedOffset],
    config: LogConfig,
    *,
    is_history: bool,
) -> tuple[list[dict[str, object]], list[KafkaIndexError]]:
    topics = pa.array([commit.topic for commit in commits], pa.string())
    partitions = np.array([commit.partition for commit in commits], np.int64)
    codes: Longs = inventory.codes(topics, partitions).astype(np.int64)
    committed = np.array([commit.offset for commit in commits], np.int64)
    # The log end offset at the time of the commit is the offset of the first record after it.
    after_commit_ms = np.array([commit.commit_timestamp_ms + 1 for commit in commits], np.int64)
    max_timestamps = np.full(len(commits), int(SpecialTimestamp.MAX_TIMESTAMP), np.int64)

    def look_up(by: By, keys: Longs, *, specials: bool) -> tuple[Answers, dict[int, int | None]]:
        with Lookups(inventory, LookupSettings(by, Resolve.RECORD, config)) as lookups:
            answers = lookups.answer(
                QueryBatch(topics, pa.array(partitions), Keys(keys, specials=specials))
            )
            log_end_offsets = {
                int(code): lookups.end_offset(code) for code in set(codes) - {NO_PARTITION}
            }
            findings.extend(lookups.drain_findings())
        return answers, log_end_offsets

    findings: list[LookupFinding] = []
    records, log_end_offsets = look_up(By.OFFSET, committed, specials=False)
    times, _ = look_up(
        By.TIMESTAMP, after_commit_ms if is_history else max_timestamps, specials=not is_history
    )
    unreadable_findings = [
        finding for finding in dict.fromkeys(findings) if finding.kind == UNREADABLE
    ]
    reasons = {
        (finding.topic, finding.partition): finding.reason
        for finding in reversed(unreadable_findings)
    }
    rows = []
    for row, commit in enumerate(commits):
        log_end_offset = log_end_offsets.get(int(codes[row]))
        lag_row = _base_row(
            commit,
            records,
            row,
            _log_end_offset_at_commit(commit, times, row, log_end_offset)
            if is_history
            else log_end_offset,
        )
        reference_ms = commit.commit_timestamp_ms if is_history else _found_timestamp(times, row)
        if not is_history:
            lag_row["max_timestamp_ms"] = reference_ms
        if lag_row["lag_records"] == 0:
            lag_row["lag_ms"] = 0
        elif lag_row["record_timestamp_ms"] is not None and reference_ms is not None:
            lag_row["lag_ms"] = max(reference_ms - lag_row["record_timestamp_ms"], 0)
        lag_row["reason"] = _unknown_reason(
            commit, Status(int(records.status[row])), log_end_offset, reasons
        )
        lag = lag_row["lag_records"]
        if lag_row["reason"] is None and lag is not None and 0 < lag <= _MAX_CONTROL_RECORDS:
            files = inventory.partition_files(int(codes[row]))
            if _only_control_records_follow(files, records.values[:, row], commit.offset + lag):
                lag_row["reason"] = _ONLY_CONTROL_RECORDS
        rows.append(lag_row)
    return rows, [
        *_missing_partition_errors(commits, codes),
        *map(_lookup_error, unreadable_findings),
    ]


def _base_row(
    commit: CommittedOffset, records: Answers, row: int, log_end_offset: int | None
) -> dict[str, Any]:
    """Return the columns that do not depend on the reference time of the lag."""
    return {
        "group": commit.group,
        "topic": commit.topic,
        "partition": commit.partition,
        "committed_offset": commit.offset,
        "log_end_offset": log_end_offset,
        # If the log ends before the committed offset, the lag is negative, as in Kafka's tools.
        "lag_records": None if log_end_offset is None else log_end_offset - commit.offset,
        "commit_timestamp_ms": commit.commit_timestamp_ms,
        "record_timestamp_ms": _found_timestamp(records, row),
    }


def _log_end_offset_at_commit(
    commit: CommittedOffset, times: Answers, row: int, log_end_offset: int | None
) -> int | None:
    match Status(int(times.status[row])):
        case Status.FOUND:
            # Producer and broker clocks may differ, but all consumed records existed at the time of
            # the commit.
            return max(int(times.values[FOUND_OFFSET, row]), commit.offset)
        case Status.NO_RECORD_AT_OR_AFTER:
            return log_end_offset
    return None


def _found_timestamp(answers: Answers, row: int) -> int | None:
    timestamp_ms = int(answers.values[FOUND_TIMESTAMP, row])
    return timestamp_ms if timestamp_ms >= 0 else None


def _unknown_reason(
    commit: CommittedOffset,
    status: Status,
    log_end_offset: int | None,
    reasons: Mapping[tuple[str, int], str],
) -> str | None:
    """Return why the lag (in records or time) is unknown, None if it is known."""
    match status:
        case Status.UNKNOWN_PARTITION:
            return _NOT_IN_INPUT
        case Status.BEFORE_LOG_START:
            return "the log begins after the committed offset"
        case Status.AFTER_LOG_END:
            return "the log ends before the committed offset"
    if status is Status.UNREADABLE or log_end_offset is None:
        return reasons.get((commit.topic, commit.partition), "the log cannot be read")
    return None


def _only_control_records_follow(
    files: PartitionFiles, committed_record: Longs, end_offset: int
) -> bool:
    base_offset, position = (
        int(committed_record[SEGMENT_BASE_OFFSET]),
        int(committed_record[BATCH_POSITION]),
    )
    for segment in files.segments:
        if segment.base_offset < base_offset:
            continue
        start_bytes = position if segment.base_offset == base_offset else 0
        source = LogFileSource(
            segment.log_path, verify_crc=False, listed_segment=segment, start_bytes=start_bytes
        )
        for batches in source.chunks():
            rows = int(np.searchsorted(batches.base_offset, end_offset))
            if not batches.is_control[:rows].all():
                return False
        if source.stop is not None:
            return False
    return True


def _missing_partition_errors(
    commits: Sequence[CommittedOffset], codes: Longs
) -> Iterator[KafkaIndexError]:
    names = {
        (commit.topic, commit.partition): commit.group
        for commit, code in zip(commits, codes, strict=True)
        if code == NO_PARTITION
    }
    for (topic, partition), group in names.items():
        yield InputError(
            f"the lag of {topic}-{partition} is unknown: {_NOT_IN_INPUT}",
            hint=f"add the log of the partition to the input; group {group} has committed offsets",
        )


def _lookup_error(finding: LookupFinding) -> KafkaIndexError:
    error_class = ReadError if finding.retriable else CorruptLogError
    return error_class(
        f"the lag of {finding.topic}-{finding.partition} is unknown: {finding.reason}",
        path=finding.path,
    )

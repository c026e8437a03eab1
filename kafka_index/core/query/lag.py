"""Consumer lag: committed offsets compared with the logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.tables import LAG_TABLES
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset
from kafka_index.core.errors import CorruptLogError, Faults, InputError, KafkaIndexError, ReadError
from kafka_index.core.format.config import LogConfig, topics_pattern
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import CONSUMER_OFFSETS_TOPIC
from kafka_index.core.log.choices import Resolve, Status
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
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.keys import NO_PARTITION, Keys, QueryBatch
from kafka_index.core.query.lookups import Lookups, LookupSettings
from kafka_index.core.records.decompression import shared_budget

_NOT_HERE = "the partition is not in the input"
_ONLY_CONTROL = "only control records, such as transaction markers, follow: nothing to consume"
# Control records are not counted in longer lags.
_MAX_CONTROL_RECORDS = 1000


def read_lag(
    paths: Sequence[str], what: str, *, max_decompressed_bytes: int
) -> tuple[pa.Table, Faults]:
    """Return one of `LAG_TABLES`, and the reasons for missing records or lags.

    `paths` are inputs as for `read_metadata`, with the logs of the consumed partitions.
    Raises the errors of `read_metadata`.
    """
    found = read_metadata(
        paths,
        budget=shared_budget(max_decompressed_bytes),
        topics=(CONSUMER_OFFSETS_TOPIC,),
        has_history=what == "lag-history",
    )
    commits = [*found.earlier_offsets, *(found.offsets or ())]
    commits.sort(key=lambda one: (one.group, one.topic, one.partition, one.record_offset))
    # Includes the offsets topic, so that the listing is never empty.
    topics = {CONSUMER_OFFSETS_TOPIC, *(one.topic for one in commits)}
    inventory = collect_inventory(paths, topics=topics_pattern(topics))
    config = LogConfig.of_properties({}, max_decompressed_bytes=max_decompressed_bytes)
    rows, faults = _rows(inventory, commits, config, is_history=what == "lag-history")
    found.faults.add(*faults)
    return pa.Table.from_pylist(rows, schema=LAG_TABLES[what]), found.faults


def _rows(
    inventory: Inventory,
    commits: Sequence[CommittedOffset],
    config: LogConfig,
    *,
    is_history: bool,
) -> tuple[list[dict[str, object]], list[KafkaIndexError]]:
    topics = pa.array([one.topic for one in commits], pa.string())
    partitions = np.array([one.partition for one in commits], np.int64)
    codes: Longs = inventory.codes(topics, partitions).astype(np.int64)
    committed = np.array([one.offset for one in commits], np.int64)
    # The offset of the first record after the commit was the log end at that time.
    after = np.array([one.commit_timestamp_ms + 1 for one in commits], np.int64)
    last = np.full(len(commits), int(SpecialTimestamp.MAX_TIMESTAMP), np.int64)

    def ask(by: By, keys: Longs, *, specials: bool) -> tuple[Answers, dict[int, int | None]]:
        with Lookups(inventory, LookupSettings(by, Resolve.RECORD, config)) as lookups:
            answers = lookups.answer(
                QueryBatch(topics, pa.array(partitions), Keys(keys, specials=specials))
            )
            ends = {int(code): lookups.end_offset(code) for code in set(codes) - {NO_PARTITION}}
            findings.extend(lookups.drain_findings())
        return answers, ends

    findings: list[LookupFinding] = []
    records, ends = ask(By.OFFSET, committed, specials=False)
    times, _ = ask(By.TIMESTAMP, after if is_history else last, specials=not is_history)
    unread = [each for each in dict.fromkeys(findings) if each.kind == UNREADABLE]
    reasons = {(each.topic, each.partition): each.reason for each in reversed(unread)}
    rows = []
    for row, one in enumerate(commits):
        end = ends.get(int(codes[row]))
        found = _row(one, records, row, end if not is_history else _end_then(one, times, row, end))
        against_ms = one.commit_timestamp_ms if is_history else _time(times, row)
        if not is_history:
            found["max_timestamp_ms"] = against_ms
        if found["lag_records"] == 0:
            found["lag_ms"] = 0
        elif found["record_timestamp_ms"] is not None and against_ms is not None:
            found["lag_ms"] = max(against_ms - found["record_timestamp_ms"], 0)
        found["reason"] = _reason(one, Status(int(records.status[row])), end, reasons)
        lag = found["lag_records"]
        if found["reason"] is None and lag is not None and 0 < lag <= _MAX_CONTROL_RECORDS:
            files = inventory.files_of(int(codes[row]))
            if _only_control_records_follow(files, records.values[:, row], one.offset + lag):
                found["reason"] = _ONLY_CONTROL
        rows.append(found)
    return rows, [*_absent(commits, codes), *map(_fault, unread)]


def _row(commit: CommittedOffset, records: Answers, row: int, end: int | None) -> dict[str, Any]:
    """Return the columns that do not depend on the reference time of the lag."""
    return {
        "group": commit.group,
        "topic": commit.topic,
        "partition": commit.partition,
        "committed_offset": commit.offset,
        "log_end_offset": end,
        # Negative, as Kafka prints it, if the log has lost consumed records.
        "lag_records": None if end is None else end - commit.offset,
        "commit_timestamp_ms": commit.commit_timestamp_ms,
        "record_timestamp_ms": _time(records, row),
    }


def _end_then(commit: CommittedOffset, times: Answers, row: int, end: int | None) -> int | None:
    match Status(int(times.status[row])):
        case Status.FOUND:
            # Clocks differ, but consumed records existed at the time of the commit.
            return max(int(times.values[FOUND_OFFSET, row]), commit.offset)
        case Status.NO_RECORD_AT_OR_AFTER:
            return end
    return None


def _time(answers: Answers, row: int) -> int | None:
    found = int(answers.values[FOUND_TIMESTAMP, row])
    return found if found >= 0 else None


def _reason(
    commit: CommittedOffset,
    status: Status,
    end: int | None,
    reasons: Mapping[tuple[str, int], str],
) -> str | None:
    """Return why the lag, or its time, is unknown; None if it is known."""
    match status:
        case Status.UNKNOWN_PARTITION:
            return _NOT_HERE
        case Status.BEFORE_LOG_START:
            return "the log begins after the committed offset"
        case Status.AFTER_LOG_END:
            return "the log ends before the committed offset"
    if status is Status.UNREADABLE or end is None:
        return reasons.get((commit.topic, commit.partition), "the log cannot be read")
    return None


def _only_control_records_follow(files: PartitionFiles, found: Longs, end_offset: int) -> bool:
    base_offset, position = int(found[SEGMENT_BASE_OFFSET]), int(found[BATCH_POSITION])
    for segment in files.segments:
        if segment.base_offset < base_offset:
            continue
        start_bytes = position if segment.base_offset == base_offset else 0
        source = LogFileSource(
            segment.log_path, verify_crc=False, listed=segment, start_bytes=start_bytes
        )
        for batches in source.chunks():
            rows = int(np.searchsorted(batches.base_offset, end_offset))
            if not batches.is_control[:rows].all():
                return False
        if source.stop is not None:
            return False
    return True


def _absent(commits: Sequence[CommittedOffset], codes: Longs) -> Iterator[KafkaIndexError]:
    names = {
        (one.topic, one.partition): one.group
        for one, code in zip(commits, codes, strict=True)
        if code == NO_PARTITION
    }
    for (topic, partition), group in names.items():
        yield InputError(
            f"the lag of {topic}-{partition} is not known: {_NOT_HERE}",
            hint=f"add its log to the paths; group {group} committed for it",
        )


def _fault(finding: LookupFinding) -> KafkaIndexError:
    kind = ReadError if finding.retriable else CorruptLogError
    return kind(
        f"the lag of {finding.topic}-{finding.partition} is not known: {finding.reason}",
        path=finding.path,
    )

"""A broker takes a data directory whose index files are ours for its own.

All indexes, snapshots and epochs of a stopped broker's directory are taken away and built in place.
The broker that starts on it rebuilds nothing, hands out every record, knows the producers, and
answers questions as our lookups do.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    parse_partition_directory,
)
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.scan.segment_scan import read_batches
from tests.conformance.kafka_answers import INT64_MAX, SPECIAL_TIMES
from tests.support.command_line import run_here

from .broker import CLEAN_SHUTDOWN, Broker
from .client import ISOLATIONS, Client, Digest, Producer
from .files import (
    COMPARED_SUFFIXES,
    build,
    epochs_with_records,
    partition_files,
    remove_index_files,
    segments_by_partition,
)
from .topics import FOLLOWED, TOPICS

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Recovered, Written

Query = tuple[str, int, int]

_MOUNTED = (*TOPICS, *FOLLOWED)
# A fetch brings no control records, which a lookup counts.
_WITHOUT_MARKERS = tuple(topic for topic in _MOUNTED if not topic.has_transactions)
# As in server.properties.
_PRODUCER_EXPIRATION_MS = 2**31 - 1
_TIMES_OF_A_PARTITION = 200
_OFFSETS_OF_A_PARTITION = 12

# LogLoader and LogManager, where a broker reads a segment again instead of believing its indexes.
_READ_AGAIN = (
    "Could not find offset index file",
    "Found a corrupted index file",
    "Found an orphaned index file",
    "Recovering unflushed segment",
    "since no clean shutdown file was found",
)
_BELIEVED = "since clean shutdown file was found"
# The cluster's own log is read again at every start.
_CLUSTER_METADATA = "partition=__cluster_metadata-0"
_SEED = 20240229


def time_queries(partition: Path, count: int) -> list[Query]:
    """The special times, those before and after all, and so many near the times of batches."""
    random_numbers = random.Random(f"{_SEED} {partition.name}")
    edges = [
        time
        for log in sorted(partition.glob(f"*{LOG_SUFFIX}"))
        for batches in read_batches(log)
        for name in ("base_timestamp_ms", "max_timestamp_ms")
        for time in batches.column(name).to_pylist()
    ]
    near = {0, INT64_MAX, *edges[:1], max(edges), min(max(edges) + 1, INT64_MAX)}
    while len(near) < min(count, 3 * len(set(edges))):
        near.add(random_numbers.choice(edges) + random_numbers.choice((-1, 0, 1)))
    times = sorted(time for time in near if 0 <= time <= INT64_MAX)
    return _queries(partition, [*SPECIAL_TIMES, *times])


def offset_queries(partition: Path, count: int) -> list[Query]:
    """Both ends, their neighbours, one far beyond, and so many between."""
    random_numbers = random.Random(f"{_SEED} {partition.name}")
    with PartitionLog.open(partition) as log:
        start, end = log.log_start_offset, log.log_end_offset
    edges = {0, start - 1, start, start + 1, end - 1, end, end + 1, end + 100_000}
    between = {random_numbers.randrange(start, end) for _ in range(count)}
    return _queries(partition, sorted(offset for offset in edges | between if offset >= 0))


def _queries(partition: Path, targets: list[int]) -> list[Query]:
    name = parse_partition_directory(partition.name)
    assert name is not None
    return [(name.topic, name.partition, target) for target in targets]


def lookup(data: Path, by: str, queries: list[Query], config: Path) -> list[dict[str, object]]:
    """Run ``kafka-index lookup`` down to the record; the answers in the order of the queries."""
    topics, partitions, targets = zip(*queries, strict=True)
    table = pa.table(
        {
            "topic": pa.array(topics),
            "partition": pa.array(partitions, pa.int32()),
            by: pa.array(targets, pa.int64()),
        }
    )
    asked, answered = (config.with_name(f"{by}s{end}.parquet") for end in ("", "-answered"))
    pq.write_table(table, asked)
    answered.unlink(missing_ok=True)
    result = run_here(
        *("lookup", "--logs", data, "--queries", asked, "--by", by, "--resolve", "record"),
        *("--output", answered, "--config", config),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows: list[dict[str, object]] = pq.read_table(answered).to_pylist()
    return rows


@dataclass(frozen=True)
class StartedBroker:
    """The log and the answers of a broker on our index files, and the answers of our lookups."""

    log_text: str
    files_before: dict[Path, bytes]
    files_after: dict[Path, bytes]
    digests: dict[str, dict[str, Digest]]
    producers: dict[str, set[Producer]]
    times: list[tuple[Query, str, dict[str, object]]]
    offsets: list[tuple[Query, str, dict[str, object]]]


@pytest.fixture(scope="module")
def started_broker(written: Written, broker_root: Path) -> StartedBroker:
    home = written.leader.copy_to(broker_root / "started_broker")
    remove_index_files(home.data)
    assert {row["status"] for row in build(home.data, written.config)} == {"built"}
    assert (home.data / CLEAN_SHUTDOWN).exists()
    files_before = _index_files(home.data)

    times = [
        query
        for topic in _MOUNTED
        for directory in _directories(home.data, topic.name, topic.partitions)
        for query in time_queries(directory, _TIMES_OF_A_PARTITION)
    ]
    offsets = [
        query
        for topic in _WITHOUT_MARKERS
        for directory in _directories(home.data, topic.name, topic.partitions)
        for query in offset_queries(directory, _OFFSETS_OF_A_PARTITION)
    ]
    our_times = lookup(home.data, "timestamp", times, written.config)
    our_offsets = lookup(home.data, "offset", offsets, written.config)

    names = [topic.name for topic in _MOUNTED]
    broker = Broker(home)
    with broker, Client(broker.bootstrap, broker_root) as client:
        client.await_in_sync(1, names)
        digests = {isolation: client.digests(isolation, names) for isolation in ISOLATIONS}
        producers = client.producers(names)
        broker_times = client.times(times)
        broker_offsets = client.offsets(offsets)
    return StartedBroker(
        broker.log_text(),
        files_before,
        _index_files(home.data),
        digests,
        producers,
        list(zip(times, broker_times, our_times, strict=True)),
        list(zip(offsets, broker_offsets, our_offsets, strict=True)),
    )


def test_broker_on_built_indexes_recovers_no_segment(started_broker: StartedBroker) -> None:
    assert _BELIEVED in started_broker.log_text
    assert not _reading_again(started_broker.log_text)


def test_broker_on_logs_without_indexes_recovers_each_segment(rebuilt: Recovered) -> None:
    assert _BELIEVED not in rebuilt.log_text
    segments = segments_by_partition(rebuilt.before.data).total()
    assert len(_reading_again(rebuilt.log_text)) > segments


def test_broker_keeps_built_files_except_for_a_new_epoch(started_broker: StartedBroker) -> None:
    assert started_broker.files_before
    changed = {
        name
        for name, content in started_broker.files_before.items()
        if started_broker.files_after.get(name) != content
    }
    assert not changed


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_consumers_of_the_restored_cluster_read_the_same_records_as_before(
    written: Written, started_broker: StartedBroker, isolation: str
) -> None:
    before, now = written.digests[isolation], started_broker.digests[isolation]
    assert now == {name: before[name] for name in now}
    assert len(now) == sum(topic.partitions for topic in _MOUNTED)
    assert all(digest.records for digest in now.values())


def test_restarted_leader_has_the_same_producers_as_before(
    written: Written, started_broker: StartedBroker
) -> None:
    # Where records were compacted, so were producers; and some records are from long ago.
    expired = time.time() * 1000 - _PRODUCER_EXPIRATION_MS
    known = 0
    for topic in (topic for topic in _MOUNTED if not topic.is_compacted):
        for partition in range(topic.partitions):
            name = f"{topic.name}-{partition}"
            before = {one for one in written.producers[name] if one.last_timestamp_ms > expired}
            assert started_broker.producers[name] == before, name
            known += len(before)
    assert known > len(_MOUNTED)


def test_broker_and_lookup_return_equal_offsets_for_times(started_broker: StartedBroker) -> None:
    assert len(started_broker.times) > 100 * len(_MOUNTED)
    different = [
        (query, broker, ours)
        for query, broker, ours in started_broker.times
        if broker.split()[: _compared_answer(query)] != _time_answer(query, ours)
    ]
    assert not different, _summary(different)


def test_broker_and_lookup_return_equal_records_for_offsets(started_broker: StartedBroker) -> None:
    assert len({broker for _, broker, _ in started_broker.offsets}) > 100
    different = [
        (query, broker, ours)
        for query, broker, ours in started_broker.offsets
        if broker != _offset_answer(ours)
    ]
    assert not different, _summary(different)


def _directories(data: Path, topic: str, partitions: int) -> list[Path]:
    return [data / f"{topic}-{partition}" for partition in range(partitions)]


def _index_files(data: Path) -> dict[Path, bytes]:
    return {
        name: epochs_with_records(data / name)
        if name.name == LEADER_EPOCH_CHECKPOINT
        else (data / name).read_bytes()
        for name in partition_files(data, COMPARED_SUFFIXES)
    }


def _reading_again(log_text: str) -> list[str]:
    return [
        line
        for line in log_text.splitlines()
        if any(message in line for message in _READ_AGAIN) and _CLUSTER_METADATA not in line
    ]


def _compared_answer(query: Query) -> int:
    """The part of an answer that is compared: the offset of a start or end, as its epoch is new."""
    return 1 if query[2] in SPECIAL_TIMES[:2] else 3


def _time_answer(query: Query, ours: dict[str, object]) -> list[str]:
    names = ("found_offset", "found_timestamp_ms", "found_leader_epoch")
    if ours["status"] == "no_record_at_or_after":
        return ["-", "-", "-"]
    assert ours["status"] == "found", ours
    return [str(ours[name]) for name in names][: _compared_answer(query)]


def _offset_answer(ours: dict[str, object]) -> str:
    answers = {
        "found": str(ours["found_offset"]),
        "log_end": "none",
        "no_record_at_or_after": "none",
        "before_log_start": "out_of_range",
        "after_log_end": "out_of_range",
    }
    return answers[str(ours["status"])]


def _summary(different: list[tuple[Query, str, dict[str, object]]]) -> str:
    topics = Counter(query[0] for query, _, _ in different)
    return f"{len(different)} in {dict(topics)}, such as {different[:3]}"

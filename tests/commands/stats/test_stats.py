"""Statistics of logs, compared with DuckDB queries over an export of the same dump."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import kafka_index
from kafka_index import LogStats, RunOutcome
from kafka_index.commands.stats import replica_counts, sketches
from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.errors import ConfigError
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.log.retention import count_expired_uploads
from tests.support.campaign import sample_size
from tests.support.child_processes import enforce_permissions
from tests.support.command_line import DUMP, run_here
from tests.support.damaged_dumps import (
    append_early_batch,
    damage_middle,
    flip,
    leave_intact,
    log_path,
    make_log_a_folder,
    records_of,
    remove_segment,
    write_dump,
)
from tests.support.metadata import write_log
from tests.support.random_records import LogGenerator, draw_intact_log, draw_log
from tests.support.record_tables import batch_of, write_partition
from tests.support.segments import GZIP, batch, marker, wrapper
from tests.support.tiered import ENCRYPTED, setting

_SEED = 36
_LOGS = sample_size(400, one_in=5)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000

#: The numbers of records, as columns of the report; the value of a tombstone is null.
RECORDS = """
    count(*) records, coalesce(sum(octet_length(key)), 0)::BIGINT key_bytes,
    coalesce(sum(octet_length(value)), 0)::BIGINT value_bytes, count(*) - count(key) null_keys,
    count(*) - count(value) tombstones, count(DISTINCT key) distinct_keys
"""
#: The largest timestamp of the batch of each record.
OF_BATCHES = "max(epoch_ms(timestamp)) OVER (PARTITION BY topic, partition, batch_base_offset)"


def exported(dump: Path, out: Path, query: str, topics: str | None = None) -> list[tuple[Any, ...]]:
    """The result of a DuckDB query over an export of a dump."""
    columns = ["topic", "partition", "offset", "timestamp", "key", "value", "batch_base_offset"]
    if not out.exists():
        kafka_index.export_records(dump, out, columns=columns, topics=topics)
    if not list(out.rglob("*.parquet")):
        return []
    with duckdb.connect() as connection:
        files = f"read_parquet('{out}/**/*.parquet', union_by_name = true)"
        return connection.execute(query.format(records=files)).fetchall()


def rows(stats: LogStats, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of the rows that have records."""
    return [
        tuple(row[name] for name in columns)
        for row in stats.to_arrow().to_pylist()
        if row["records"]
    ]


def assert_agrees_with_export(dump: Path, out: Path) -> None:
    names = ("records", "key_bytes", "value_bytes", "null_keys", "tombstones", "distinct_keys")
    query = f"SELECT topic, partition, {RECORDS} FROM {{records}} GROUP BY ALL ORDER BY ALL"  # noqa: S608
    expected = exported(dump, out, query)
    read = kafka_index.read_stats(dump, by="partition", sizes=True, keys=5)
    assert rows(read, "topic", "partition", *names) == expected
    assert read.outcome is RunOutcome.DONE
    headers = kafka_index.read_stats(dump, by="partition")
    same = ("topic", "partition", "records", "batches", "size_bytes", "producers")
    assert rows(headers, *same) == rows(read, *same)
    assert rows(headers, "records") == [one[2:3] for one in expected]


def test_stats_of_a_dump_equal_its_export(tmp_path: Path) -> None:
    assert_agrees_with_export(DUMP, tmp_path / "out")


@pytest.mark.parametrize("number", range(_LOGS))
def test_stats_of_random_logs_equal_their_export(tmp_path: Path, number: int) -> None:
    log = draw_intact_log(LogGenerator(_SEED + number))
    write_partition(tmp_path / "data", log.segments)

    assert_agrees_with_export(tmp_path / "data", tmp_path / "out")


@pytest.mark.parametrize("number", range(_LOGS // 2))
def test_stats_of_damaged_random_logs_equal_records_and_outcome_of_an_export(
    tmp_path: Path, number: int
) -> None:
    log = draw_log(LogGenerator(9000 + number))
    write_partition(tmp_path / "data", log.segments)
    columns = ["offset", "key"]
    export = kafka_index.export_records(tmp_path / "data", tmp_path / "out", columns=columns)
    stats = kafka_index.read_stats(tmp_path / "data", sizes=True)
    assert stats.counts["records"] == export.counts["records"]
    assert stats.outcome is export.outcome
    assert stats.missing_offsets.count == export.missing_offsets.count


@pytest.mark.parametrize(("by", "length_ms"), [("hour", HOUR_MS), ("day", DAY_MS)])
def test_stats_by_hour_and_day_equal_the_export(tmp_path: Path, by: str, length_ms: int) -> None:
    # DuckDB rejects times after the year 290000.
    topics = "(?!imported-history).*"
    query = f"""
        SELECT topic, batch_ms // {length_ms} * {length_ms} AS start_timestamp_ms, count(*)::BIGINT
        FROM (SELECT *, {OF_BATCHES} AS batch_ms FROM {{records}}) GROUP BY ALL ORDER BY ALL
    """  # noqa: S608
    stats = kafka_index.read_stats(DUMP, by=by, topics=topics)
    result = rows(stats, "topic", "start_timestamp_ms", "records")
    assert result == exported(DUMP, tmp_path / "out", query, topics)
    last = {row["topic"]: row["cumulative_bytes"] for row in stats.to_arrow().to_pylist()}
    whole = kafka_index.read_stats(DUMP, topics=topics).to_arrow().to_pylist()
    assert last == {row["topic"]: row["size_bytes"] for row in whole if row["batches"]}


def test_stats_time_range_selects_batches_by_their_largest_timestamp(tmp_path: Path) -> None:
    bounds = "SELECT min(epoch_ms(timestamp)), max(epoch_ms(timestamp)) FROM {records}"
    where = "WHERE topic = 'page-views'"
    ((first, last),) = exported(DUMP, tmp_path / "out", f"{bounds} {where}")
    start, end = first + (last - first) // 4, last - (last - first) // 4
    query = f"""
        SELECT count(*) FROM (SELECT topic, {OF_BATCHES} AS batch_ms FROM {{records}} {where})
        WHERE batch_ms >= {start} AND batch_ms < {end}
    """  # noqa: S608
    given: dict[str, Any] = {
        "topics": "page-views",
        "from_time": f"ms:{start}",
        "to_time": f"ms:{end}",
    }

    stats = kafka_index.read_stats(DUMP, **given)

    assert rows(stats, "records") == exported(DUMP, tmp_path / "out", query)
    assert rows(kafka_index.read_stats(DUMP, sizes=True, **given), "records") == rows(
        stats, "records"
    )


def test_stats_bytes_per_codec_equal_the_batch_sizes() -> None:
    name = "mixed.codecs-feed"
    expected: Counter[str] = Counter()
    for log in sorted((DUMP / f"{name}-0").glob("*.log")):
        for table in kafka_index.read_batches(log):
            for row in table.to_pylist():
                codec = ("none", "gzip", "snappy", "lz4", "zstd")[row["attributes"] & 7]
                expected[f"bytes_{codec}"] += row["size_bytes"]
    (row,) = kafka_index.read_stats(DUMP, topics=name).to_arrow().to_pylist()
    assert {one: row[one] for one in expected} == expected
    assert row["size_bytes"] == sum(expected.values())


def test_stats_sizes_of_uncompressed_records_equal_the_log_size() -> None:
    stats = kafka_index.read_stats(DUMP, topics="orders.eu-west|imported-history", sizes=True)
    for row in stats.to_arrow().to_pylist():
        assert row["uncompressed_bytes"] == row["size_bytes"]
        assert sum(json.loads(row["value_sizes"]).values()) == row["records"] - row["tombstones"]


def test_stats_hot_keys_are_the_most_frequent_keys(tmp_path: Path) -> None:
    query = """
        SELECT decode(key), count(*) FROM {records} WHERE topic = 'page-views'
        GROUP BY key ORDER BY 2 DESC LIMIT 5
    """
    stats = kafka_index.read_stats(DUMP, topics="page-views", keys=5)
    hot = json.loads(rows(stats, "hot_keys")[0][0])
    expected = exported(DUMP, tmp_path / "out", query)
    assert sorted(one["count"] for one in hot) == sorted(count for _, count in expected)
    assert {one["error"] for one in hot} == {0}


def test_schema_ids_are_counted_if_values_begin_with_them(tmp_path: Path) -> None:
    values = [b"\0" + number.to_bytes(4, "big") + b"x" for number in (7, 7, 256)]
    record = [(1000, b"k", value) for value in values]
    write_partition(tmp_path / "data", {0: batch_of(0, record)}, "typed-0")
    write_partition(tmp_path / "data", {0: batch_of(0, [(1, b"k", b"text")])}, "plain-0")
    stats = kafka_index.read_stats(tmp_path / "data", sizes=True)
    assert rows(stats, "topic", "schema_ids") == [("plain", None), ("typed", '{"256": 1, "7": 2}')]


def test_compressed_messages_of_old_formats_are_counted(tmp_path: Path) -> None:
    log = wrapper(4, 1, [(number, 1000) for number in range(5)], GZIP) + batch(5, records=2)
    write_partition(tmp_path / "data", {0: log})
    assert rows(kafka_index.read_stats(tmp_path / "data"), "records") == [(7,)]


def test_records_before_the_log_start_are_not_counted(tmp_path: Path) -> None:
    log = b"".join(batch(base, records=3) for base in (0, 3, 6))
    write_partition(tmp_path / "data", {0: log})
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 4\n")
    stats = kafka_index.read_stats(tmp_path / "data")
    assert rows(stats, "records", "batches", "deleted_bytes") == [(5, 2, len(batch(0)))]
    assert "of deleted batches before the log start offsets" in "; ".join(stats.facts)


def test_transactions_and_producers_are_counted(tmp_path: Path) -> None:
    log = batch(0, records=2) + records_of(2, producer_id=5) + marker(6, 5, 0, commit=True)
    write_partition(tmp_path / "data", {0: log + records_of(7, producer_id=6)})
    stats = kafka_index.read_stats(tmp_path / "data")
    columns = ("records", "transactional_records", "control_batches", "producers")
    assert rows(stats, *columns) == [(10, 8, 1, 2)]


def test_each_replica_has_a_row_but_its_records_are_counted_once(tmp_path: Path) -> None:
    for node, segments in ((1, (0, 3)), (2, (0, 3, 6))):
        root = tmp_path / f"broker-{node}"
        write_partition(root, {0: b"".join(batch(base, records=3) for base in segments)})
        (root / "meta.properties").write_text(f"version=1\ncluster.id=c\nnode.id={node}\n")
    write_partition(tmp_path / "broker-1", {0: batch(0)}, "topic-1")
    brokers = [tmp_path / "broker-1", tmp_path / "broker-2"]

    stats = kafka_index.read_stats(brokers)
    assert rows(stats, "broker", "records", "replicas") == [(None, 12, 2), ("1", 9, 2), ("2", 9, 1)]
    assert (stats.counts["records"], stats.counts["topics"]) == (12, 1)
    replicas = kafka_index.read_stats(brokers, by="partition")
    assert rows(replicas, "partition", "broker", "records", "is_base") == [
        (0, "1", 6, False),
        (0, "2", 9, True),
        (1, "1", 3, True),
    ]
    assert replicas.counts["records"] == 12
    assert (
        sum(number for (number,) in rows(kafka_index.read_stats(brokers, by="day"), "records"))
        == 12
    )


@pytest.mark.parametrize(
    ("damage", "headers", "records"),
    [
        (leave_intact, "", ""),
        (remove_segment, "offsets 12 to 23", "offsets 12 to 23"),
        # Checksums are not verified if only headers are read.
        (damage_middle, "", "bad_crc"),
        (append_early_batch, "offset_overflow", "offset_overflow"),
        (make_log_a_folder, f"{12:020d}.log", f"{12:020d}.log"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_stats_report_damage(
    tmp_path: Path, damage: Callable[[Path], None], headers: str, records: str
) -> None:
    write_dump(tmp_path / "data")
    damage(tmp_path / "data")
    for options, said in (((), headers), (("--sizes",), records), (("--keys", "3"), records)):
        result = run_here("stats", "--input", tmp_path / "data", *options)
        assert result.returncode == bool(said), result.stdout
        assert said in result.stdout + result.stderr
        assert ("checksums were not verified" in result.stdout) is not bool(options)


def test_damaged_batch_is_skipped_and_other_batches_are_counted(tmp_path: Path) -> None:
    write_dump(tmp_path / "data")
    damage_middle(tmp_path / "data")
    stats = kafka_index.read_stats(tmp_path / "data", topics="orders", sizes=True)
    assert rows(stats, "records", "status") == [(32, "damaged")]
    assert stats.damage[0].path == str(log_path(tmp_path / "data", 12))


def test_stats_count_records_before_damage_at_the_log_end(tmp_path: Path) -> None:
    write_dump(tmp_path / "data")
    flip(log_path(tmp_path / "data", 24), len(records_of(24)) + 8)
    stats = kafka_index.read_stats(tmp_path / "data", topics="orders")
    assert rows(stats, "records", "status") == [(28, "damaged")]
    assert stats.outcome is RunOutcome.DAMAGE


def test_stats_by_hour_use_a_bounded_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_counts, "MAX_GROUPS", 64)
    hours = [(base * 7919) % 500 for base in range(500)]
    log = b"".join(
        batch(base, records=1, timestamps=[hour * HOUR_MS]) for base, hour in enumerate(hours)
    )
    write_partition(tmp_path / "data", {0: log})
    for sizes in (False, True):
        stats = kafka_index.read_stats(tmp_path / "data", by="hour", sizes=sizes)
        assert stats.counts["records"] == 500
        assert 1 < stats.counts["rows"] <= 65
        assert rows(stats, "start_timestamp_ms")[-1] == (499 * HOUR_MS,)


def test_stats_of_a_split_log_equal_those_of_the_unsplit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dump(tmp_path / "data")
    remove_segment(tmp_path / "data")
    dumps: list[str | Path] = [DUMP, tmp_path / "data"]
    given: dict[str, Any] = {"by": "partition", "sizes": True, "keys": 3}
    complete_stats = kafka_index.read_stats(dumps, **given)
    monkeypatch.setattr("kafka_index.commands.stats.stats_job._READ_PART_BYTES", 1)
    split = kafka_index.read_stats(dumps, **given)
    assert split.to_arrow() == complete_stats.to_arrow()
    assert split.missing_offsets == complete_stats.missing_offsets
    assert len(complete_stats.missing_offsets.ranges) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"compact": True, "retention_ms": 1}, "are mutually exclusive"),
        ({"retention_bytes": 1, "from_time": "today"}, "are mutually exclusive"),
        ({"compact": True, "by": "hour"}, "topic or partition"),
        ({"keys": 0}, "range"),
        ({"from_time": "2024-01-02", "to_time": "2024-01-01"}, "the time range is empty"),
    ],
)
def test_contradictory_parameters_are_rejected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kafka_index.read_stats(DUMP, **given)


def test_same_directory_given_twice_is_one_replica(tmp_path: Path) -> None:
    shutil.copytree(DUMP / "payments-0", tmp_path / "data" / "payments-0")
    given = [tmp_path / "data", tmp_path / "data" / "payments-0"]
    stats = kafka_index.read_stats(given, by="partition")
    assert rows(stats, "partition", "is_base") == [(0, True)]


def test_empty_topics_have_a_row_without_records() -> None:
    stats = kafka_index.read_stats(DUMP, topics="reserved-for.later", sizes=True, keys=1)
    (row,) = stats.to_arrow().to_pylist()
    assert (row["records"], row["size_bytes"], row["distinct_keys"]) == (0, 0, 0)
    assert stats.ok


def test_future_segments_of_an_empty_log_are_not_damage(tmp_path: Path) -> None:
    write_log(tmp_path / "data" / "empty-0", base_offset=0)
    assert kafka_index.read_stats(tmp_path / "data").ok


def test_retention_is_predicted_for_each_broker_and_for_the_topic(tmp_path: Path) -> None:
    size = len(batch(0))
    for node, segments in ((1, (0, 3, 6)), (2, (0, 3, 6, 9))):
        root = tmp_path / f"broker-{node}"
        write_partition(root, {base: batch(base) for base in segments})
        (root / "meta.properties").write_text(f"version=1\ncluster.id=c\nnode.id={node}\n")
    brokers = [tmp_path / "broker-1", tmp_path / "broker-2"]
    columns = ("broker", "stays_bytes", "goes_bytes", "stays_records", "goes_records")

    by_size = kafka_index.read_stats(brokers, retention_bytes=2 * size)
    assert rows(by_size, *columns) == [
        (None, 2 * size, 2 * size, 6, 6),
        ("1", 2 * size, size, 6, 3),
        ("2", 2 * size, 2 * size, 6, 6),
    ]
    by_time = kafka_index.read_stats(brokers, retention_ms=1, by="partition")
    assert rows(by_time, *columns, "log_start_after") == [
        ("1", 0, 3 * size, 0, 9, 9),
        ("2", 0, 4 * size, 0, 12, 12),
    ]
    unlimited = kafka_index.read_stats(brokers, retention_ms=-1)
    assert rows(unlimited, "goes_bytes") == [(0,)] * 3


def test_compaction_keeps_the_last_record_of_each_key_below_the_active_segment(
    tmp_path: Path,
) -> None:
    first = batch_of(0, [(1, b"a", b"1"), (2, b"b", b"2"), (3, None, b"3"), (4, b"a", b"44")])
    second = batch_of(4, [(5, b"b", None)])
    active = batch_of(5, [(6, b"a", b"5")])
    write_partition(tmp_path / "data", {0: first, 4: second, 5: active})
    stats = kafka_index.read_stats(tmp_path / "data", compact=True)
    # The last a of the first batch, the tombstone of b, and all of the active segment.
    kept = len(batch_of(3, [(4, b"a", b"44")])) + len(second) + len(active)
    columns = ("stays_records", "goes_records", "stays_bytes")
    assert rows(stats, *columns) == [(3, 3, kept)]


def test_replica_that_cannot_be_read_has_no_prediction(tmp_path: Path) -> None:
    write_dump(tmp_path / "data")
    with enforce_permissions():
        log_path(tmp_path / "data", 12).chmod(0)
        stats = kafka_index.read_stats(tmp_path / "data", topics="orders", retention_bytes=1)
    assert rows(stats, "records", "status", "stays_bytes") == [(24, "failed", None)]
    assert stats.outcome is RunOutcome.ENVIRONMENT


@pytest.mark.parametrize(
    "what_if", [{"retention_bytes": 1}, {"retention_ms": 1}, {"compact": True}]
)
def test_damaged_replica_has_no_prediction(tmp_path: Path, what_if: dict[str, Any]) -> None:
    write_dump(tmp_path / "data")
    flip(log_path(tmp_path / "data", 24), len(records_of(24)) + 8)
    stats = kafka_index.read_stats(tmp_path / "data", topics="orders", **what_if)
    assert rows(stats, "status", "stays_bytes", "log_start_after") == [("damaged", None, None)]


def test_compaction_drops_aborted_records_and_reads_no_open_transaction(tmp_path: Path) -> None:
    aborted = records_of(0, producer_id=5)
    committed = records_of(5, producer_id=5)
    log = aborted + marker(4, 5, 0, commit=False) + committed + marker(9, 5, 0, commit=True)
    opened = records_of(10, producer_id=6)
    write_partition(tmp_path / "data", {0: log + opened, 14: records_of(14)})
    stats = kafka_index.read_stats(tmp_path / "data", compact=True)
    assert rows(stats, "records", "stays_records", "goes_bytes") == [(16, 12, len(aborted))]


def test_remote_segments_are_counted_with_local_ones() -> None:
    at = setting(ENCRYPTED)
    tiered = TieredOptions((at.remote,), keys=at.keys)
    columns = ("topic", "partition", "offset")
    read = kafka_index.read_records(at.data, tiered=tiered, columns=columns).read_all()
    for sizes in (False, True):
        stats = kafka_index.read_stats(at.data, tiered=tiered, sizes=sizes)
        assert stats.counts["records"] == len(read)
        assert {broker for (broker,) in rows(stats, "broker")} == {None}


@pytest.mark.parametrize("limits", [{"retention_bytes": 0}, {"retention_ms": 1}])
def test_retention_of_a_tiered_log_deletes_only_uploaded_segments(limits: dict[str, Any]) -> None:
    at = setting("local")
    tiered = TieredOptions((at.remote,))
    ends = {
        (partition.topic, partition.partition): files.tiered_end_offset + 1
        for partition, files in list_logs([at.data], tiered, topics=None).tiered.items()
        if files.tiered_end_offset >= 0
    }
    stats = kafka_index.read_stats(at.data, tiered=tiered, by="partition", **limits)
    starts = {
        (topic, number): start
        for topic, number, start in rows(stats, "topic", "partition", "log_start_after")
        if (topic, number) in ends
    }
    assert starts == ends


@pytest.mark.parametrize(
    ("sizes_bytes", "uploaded", "limits", "expected"),
    [
        ([10, 10, 10], 3, (15, -1), 1),
        ([10, 10, 10], 3, (0, -1), 3),
        ([10, 10, 10], 2, (0, -1), 2),
        ([10, 10, 10], 3, (-1, 10), 2),
        # The first segment is too old; the size limit applies to the next one.
        ([10, 10, 10], 3, (10, 25), 2),
        # The excess is smaller than the first segment.
        ([30, 10, 10], 3, (30, -1), 0),
        ([10, 10, 10], 3, (-1, -1), 0),
    ],
)
def test_expired_uploads_are_counted_by_both_limits(
    sizes_bytes: list[int], uploaded: int, limits: tuple[int, int], expected: int
) -> None:
    ages_ms = [30, 20, 10]
    count = count_expired_uploads(
        sizes_bytes, 0, uploaded, *limits, 100, lambda number: 100 - ages_ms[number]
    )
    assert count == expected


def test_compaction_is_estimated_if_keys_exceed_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches, "SAMPLE_KEYS", 500)
    draw = random.Random(11)
    keys = [b"key-%d" % draw.randrange(8000) for _ in range(20_000)]
    batches = [
        batch_of(base, [(1000, key, b"v" * 50) for key in keys[base : base + 10]])
        for base in range(0, len(keys), 10)
    ]
    segments = {0: b"".join(batches[:1000]), 10_000: b"".join(batches[1000:])}
    write_partition(tmp_path / "data", {**segments, 20_000: batch_of(20_000, [(1, b"k", b"v")])})
    stats = kafka_index.read_stats(tmp_path / "data", compact=True)
    ((stays, error),) = rows(stats, "stays_records", "distinct_keys_error")
    expected = len(set(keys)) + 1
    assert 0 < error < 0.05
    assert abs(stays - expected) < 4 * error * expected
    assert "are estimates" in "; ".join(stats.facts)

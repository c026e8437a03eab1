"""``rewrite``: dumps without some of their records, and everything that has to stay."""

from __future__ import annotations

import base64
import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.core.errors import InputError
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.filter.selection import read_keys
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.query.bounds import read_offsets_file
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_empty_batch,
    write_record_batch,
)
from tests.support.command_line import DUMP, build_here, environment, run_here
from tests.support.record_tables import write_partition
from tests.support.segments import PACKERS, marker, message

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "sequence",
    "is_control",
)
NOW_MS = 1_700_000_000_000


def rewritten(source: Path, output: Path, *arguments: object) -> str:
    result = run_here("rewrite", "--input", source, "--output", output, *map(str, arguments))
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(source: Path, output: Path, *arguments: object, code: int = 2) -> str:
    """Return the error of a rewrite; for damage its result."""
    result = run_here("rewrite", "--input", source, "--output", output, *map(str, arguments))
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 1 else result.stderr


def keys_file(folder: Path, *lines: str) -> Path:
    path = folder / "keys.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def without_drop(folder: Path, segments: bytes | dict[int, bytes], name: str = "topic-0") -> Path:
    """Write a partition, rewrite it without the key ``drop``, and return its directory."""
    write_partition(folder / "in", {0: segments} if isinstance(segments, bytes) else segments, name)
    rewritten(folder / "in", folder / "out", "--drop-keys", keys_file(folder, "drop"))
    return folder / "out" / name


def rows(path: Path) -> list[dict[str, Any]]:
    reader = kafka_index.read_records(path, columns=COLUMNS, include_control=True)
    table = reader.read_all()
    place = COLUMNS.index("timestamp")
    table = table.set_column(place, "timestamp", table["timestamp"].cast("int64"))
    result: list[dict[str, Any]] = table.to_pylist()
    return result


def batch_rows(path: Path) -> list[dict[str, Any]]:
    return [
        row
        for log in sorted(path.glob("*.log"))
        for chunk in kafka_index.read_batches(log)
        for row in chunk.to_pylist()
    ]


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def batch(base_offset: int, *keys: bytes | None, codec: str = "none", **fields: Any) -> bytes:
    """A batch with a record for each key."""
    records = [
        Record(NOW_MS + base_offset + number, key, b"value-%d" % (base_offset + number))
        for number, key in enumerate(keys)
    ]
    return write_record_batch(
        records, base_offset, BatchFields(leader_epoch=0, compression=codec, **fields)
    )


def of_producer(base_offset: int, sequence: int, *keys: bytes, **fields: Any) -> bytes:
    known = {"producer_id": 9, "producer_epoch": 1, "base_sequence": sequence}
    return batch(base_offset, *keys, **{**known, **fields})


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example dump, rewritten."""
    before = contents(DUMP)
    output = tmp_path_factory.mktemp("example") / "out"
    condition = "topic LIKE 'p%' AND offset BETWEEN 100 AND 1500 AND key < 'm'"
    rewritten(DUMP, output, "--drop-where", condition, "--allow-revive")
    assert contents(DUMP) == before
    return output


def test_rewrite_of_the_example_dump_drops_exactly_the_matching_records(example: Path) -> None:
    def matches(row: dict[str, Any]) -> bool:
        return bool(
            row["topic"].startswith("p")
            and 100 <= row["offset"] <= 1500
            and row["key"] is not None
            and row["key"] < b"m"
            and not row["is_control"]
        )

    before = rows(DUMP)
    expected = [row for row in before if not matches(row)]
    assert len(expected) < len(before)
    assert rows(example) == expected


def test_rewritten_files_equal_built_files(example: Path, tmp_path: Path) -> None:
    assert build_here("--input", example, "--output", tmp_path / "built").returncode == 0
    built = {
        name: data
        for name, data in contents(tmp_path / "built").items()
        if not name.rpartition("/")[2].startswith(".")
    }
    result = contents(example)
    assert built
    for name, data in built.items():
        if not name.startswith("__"):
            assert result[name] == data, name


def test_internal_topics_are_copied_unchanged(example: Path) -> None:
    for name in ("__consumer_offsets-0", "__transaction_state-0", "__cluster_metadata-0"):
        before = contents(DUMP / name)
        assert before
        assert contents(example / name) == before


def test_user_topic_with_an_underscore_prefix_is_rewritten(tmp_path: Path) -> None:
    without_drop(tmp_path, batch(0, b"k", b"drop"), "__mine-0")

    assert [row["offset"] for row in rows(tmp_path / "out")] == [0]


@pytest.mark.parametrize("codec", CODECS)
def test_rewrite_copies_unmatched_batches_and_keeps_the_offsets_of_others(
    tmp_path: Path, codec: str
) -> None:
    batches = [
        batch(0, b"a", b"b", codec=codec),
        batch(2, b"a", b"drop", b"b", codec=codec),
        batch(5, b"drop", b"b", b"drop", codec=codec),
        batch(8, b"drop", codec=codec),
        batch(9, b"c", codec=codec),
    ]
    partition = without_drop(tmp_path, b"".join(batches))

    log = (partition / f"{0:020d}.log").read_bytes()
    assert log.startswith(batches[0])
    assert log.endswith(batches[4])
    assert [
        (row["base_offset"], row["last_offset"], row["record_count"])
        for row in batch_rows(partition)
    ] == [(0, 1, 2), (2, 4, 2), (5, 7, 1), (9, 9, 1)]
    assert [row["offset"] for row in rows(tmp_path / "out")] == [0, 1, 2, 4, 6, 9]


def test_rewritten_batch_equals_one_of_the_log_cleaner(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "producer_id": 9,
        "producer_epoch": 1,
        "base_sequence": 5,
        "leader_epoch": 3,
        "delete_horizon_ms": 4321,
    }
    records = [Record(10, b"drop", b"1"), Record(7, b"k", b"2", [("h", None)]), Record(9, b"drop")]
    old = write_record_batch(records, 100, BatchFields(**fields))
    new = write_record_batch(
        [records[1]._replace(offset_delta=1)], 100, BatchFields(**fields, last_offset_delta=2)
    )
    partition = without_drop(tmp_path, {100: old})

    assert (partition / f"{100:020d}.log").read_bytes() == new


def test_rewritten_batch_keeps_its_log_append_time(tmp_path: Path) -> None:
    fields = BatchFields(leader_epoch=0, log_append_time_ms=77)
    records = [Record(1, b"drop"), Record(2, b"k")]
    result = rows(without_drop(tmp_path, write_record_batch(records, 0, fields)))

    assert [(row["offset"], row["timestampType"]) for row in result] == [(1, 1)]
    assert result[0]["timestamp"] == 77


def test_rewrite_keeps_the_last_batch_of_a_producer_and_the_log_end_offset(tmp_path: Path) -> None:
    log = of_producer(0, 0, b"drop") + of_producer(1, 1, b"drop") + batch(2, b"k", b"drop")
    partition = without_drop(tmp_path, log + batch(4, b"drop"))

    result = [
        (row["base_offset"], row["record_count"], row["base_sequence"], row["max_timestamp_ms"])
        for row in batch_rows(partition)
    ]
    assert result == [(1, 0, 1, NOW_MS + 1), (2, 1, -1, NOW_MS + 2), (4, 0, -1, NOW_MS + 4)]
    with PartitionLogWriter(partition) as log_:
        assert log_.log_end_offset == 5
        log_.append_as_leader(of_producer(0, 2, b"next"), 0)


def test_rewrite_keeps_transactions_and_their_markers(tmp_path: Path) -> None:
    in_transaction = {"is_transactional": True}
    log = b"".join(
        [
            of_producer(0, 0, b"drop", **in_transaction),
            of_producer(1, 1, b"k", **in_transaction),
            marker(2, 9, 1, commit=False),
            of_producer(3, 2, b"k", **in_transaction),
            marker(4, 9, 1, commit=True),
            of_producer(5, 3, b"drop", **in_transaction),
            of_producer(6, 4, b"drop", b"k", **in_transaction),
        ]
    )
    partition = without_drop(tmp_path, log)

    counts = {row["base_offset"]: row["record_count"] for row in batch_rows(partition)}
    assert counts == {1: 1, 2: 1, 3: 1, 4: 1, 5: 0, 6: 1}
    committed = kafka_index.read_records(tmp_path / "out", isolation="read_committed")
    assert committed.read_all()["offset"].to_pylist() == [3]
    with PartitionLogWriter(partition) as opened:
        assert opened.last_stable_offset == 5


@pytest.mark.parametrize("magic", [0, 1])
def test_old_format_messages_that_lose_records_become_record_batches(
    tmp_path: Path, magic: int
) -> None:
    inner = b"".join(
        message(offset, magic, NOW_MS + offset, b"v", key)
        for offset, key in enumerate([b"a", b"drop", b"b"], 0 if magic else 2)
    )
    gzip = 1
    log = b"".join(
        [
            message(0, magic, NOW_MS, b"v", b"drop"),
            message(1, magic, NOW_MS, b"v", b"k"),
            message(4, magic, NOW_MS + 2, PACKERS[gzip](inner), attributes=gzip),
        ]
    )
    partition = without_drop(tmp_path, log)

    before = [row for row in rows(tmp_path / "in") if row["key"] != b"drop"]
    after = rows(partition)
    for name in ("offset", "timestamp", "key", "value"):
        assert [row[name] for row in after] == [row[name] for row in before]
    magics = {row["base_offset"]: row["magic"] for row in batch_rows(partition)}
    assert set(magics.values()) == {magic, 2}


@pytest.mark.parametrize("magic", [0, 1])
def test_log_end_offset_stays_if_a_wrapper_loses_its_last_message(
    tmp_path: Path, magic: int
) -> None:
    inner = b"".join(
        message(offset, magic, NOW_MS + offset, b"v", key)
        for offset, key in enumerate([b"a", b"b", b"drop"])
    )
    gzip = 1
    wrapper = message(2, magic, NOW_MS + 2, PACKERS[gzip](inner), attributes=gzip)
    partition = without_drop(tmp_path, wrapper)

    assert [row["offset"] for row in rows(partition)] == [0, 1]
    with PartitionLogWriter(partition) as log:
        assert log.log_end_offset == 3


def test_emptied_segment_keeps_its_base_offset(tmp_path: Path) -> None:
    segments = {0: batch(0, b"drop"), 1: batch(1, b"drop"), 2: batch(2, b"k")}
    partition = without_drop(tmp_path, segments)

    assert [int(path.stem) for path in sorted(partition.glob("*.log"))] == [0, 1, 2]
    with PartitionLogWriter(partition) as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)


def test_damaged_partition_is_skipped_and_reported(tmp_path: Path) -> None:
    damaged = bytearray(batch(0, b"k") + batch(1, b"k") + batch(2, b"k"))
    damaged[-80] ^= 1
    write_partition(tmp_path / "in", {0: bytes(damaged)}, "bad-0")
    write_partition(tmp_path / "in", {0: batch(0, b"drop", b"k")}, "good-0")
    keys = keys_file(tmp_path, "drop")

    stderr = refused(tmp_path / "in", tmp_path / "out", "--drop-keys", keys, code=1)

    assert "1 partition skipped:\n  bad-0" in stderr
    assert "; 1 partition skipped\n" in stderr
    assert "at byte" in stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*-0")) == ["good-0"]


def torn_log(folder: Path, **checkpoints: int) -> Path:
    """Write a partition of offsets 0 and 1 and a torn batch at 2; return its data directory."""
    complete_batch = batch(0, b"k", b"drop")
    write_partition(folder / "in", {0: complete_batch + batch(2, b"k")[:-3]})
    for name, offset in checkpoints.items():
        path = folder / "in" / f"{name.replace('_', '-')}-offset-checkpoint"
        path.write_text(f"0\n1\ntopic 0 {offset}\n")
    return folder / "in"


def test_torn_tail_is_noted_and_not_damage(tmp_path: Path) -> None:
    source = torn_log(tmp_path, replication=2, recovery_point=2)
    keys = keys_file(tmp_path, "drop")

    arguments = ("--input", source, "--output", tmp_path / "out", "--drop-keys", keys)
    result = run_here("rewrite", *map(str, arguments))

    assert result.returncode == 0
    assert "a torn last batch is skipped" in result.stdout
    assert [row["offset"] for row in rows(tmp_path / "out")] == [0]


@pytest.mark.parametrize("name", ["replication", "recovery_point"])
def test_torn_tail_below_the_high_watermark_is_damage(tmp_path: Path, name: str) -> None:
    source = torn_log(tmp_path, **{name: 3})
    keys = keys_file(tmp_path, "drop")

    stderr = refused(source, tmp_path / "out", "--drop-keys", keys, code=1)

    assert "committed records are lost" in stderr
    assert not list((tmp_path / "out").glob("topic-*"))


@pytest.mark.parametrize(
    ("empty_segments", "before", "after"),
    [([], 7, 2), ([5], 5, 5)],
    ids=["beyond the log", "at the end of an empty segment"],
)
def test_rewritten_checkpoints_do_not_exceed_the_log_end(
    tmp_path: Path, empty_segments: list[int], before: int, after: int
) -> None:
    segments = {0: batch(0, b"k", b"drop"), **dict.fromkeys(empty_segments, b"")}
    write_partition(tmp_path / "in", segments)
    checkpoint = "replication-offset-checkpoint"
    (tmp_path / "in" / checkpoint).write_text(f"0\n1\ntopic 0 {before}\n")
    keys = keys_file(tmp_path, "drop")
    inputs = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--drop-keys", keys)
    result = run_here("rewrite", *inputs)

    # The records below the high watermark are lost, and the rewrite is written all the same.
    assert result.returncode == int(before > after)
    assert (f"topic-0: offsets {after} to {before - 1} are missing" in result.stdout) is (
        before > after
    )
    assert (tmp_path / "out" / checkpoint).read_text() == f"0\n1\ntopic 0 {after}\n"


@pytest.mark.parametrize(
    ("line", "reason"), [("other", "no record matches"), ("k", "every record matches")]
)
def test_rewrite_that_drops_no_or_all_records_requires_force(
    tmp_path: Path, line: str, reason: str
) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k", b"k")})
    keys = keys_file(tmp_path, line)

    assert reason in refused(tmp_path / "in", tmp_path / "out", "--drop-keys", keys)
    assert not list((tmp_path / "out").glob("topic-*"))

    rewritten(tmp_path / "in", tmp_path / "out", "--drop-keys", keys, "--force")
    expected = [] if line == "k" else [0, 1]
    assert [row["offset"] for row in rows(tmp_path / "out")] == expected


@pytest.mark.parametrize("condition", ["offset >= 0", "offset > 9"])
def test_rejected_rewrite_does_not_block_a_corrected_one(tmp_path: Path, condition: str) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k", b"drop")})
    refused(tmp_path / "in", tmp_path / "out", "--drop-where", condition)
    assert not set(contents(tmp_path / "out")) - {".lock"}

    rewritten(tmp_path / "in", tmp_path / "out", "--drop-keys", keys_file(tmp_path, "drop"))

    assert [row["offset"] for row in rows(tmp_path / "out")] == [0]


def test_leftovers_of_a_rewrite_killed_early_do_not_block_a_rerun(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    # What it leaves: its lock file, what it began to write, and what executors look for.
    (tmp_path / "out" / ".lock").write_text("kafka-index\n")
    (tmp_path / "out" / f".kafka-index.{'0' * 16}.shared").touch()
    (tmp_path / "out" / "..rewrite.kafka-index.tmp").touch()

    assert [row["offset"] for row in rows(without_drop(tmp_path, batch(0, b"k", b"drop")))] == [0]


def test_rewrite_that_revives_an_older_record_of_a_compacted_topic_is_rejected(
    tmp_path: Path,
) -> None:
    tombstone = write_record_batch([Record(NOW_MS, b"k")], 1, BatchFields(leader_epoch=0))
    write_partition(tmp_path / "in", {0: batch(0, b"k") + tombstone + batch(2, b"other")})

    stderr = refused(tmp_path / "in", tmp_path / "out", "--drop-where", "offset = 1")
    assert "the record at offset 0 would reappear" in stderr

    rewritten(tmp_path / "in", tmp_path / "out", "--drop-where", "offset = 1", "--allow-revive")
    assert [row["offset"] for row in rows(tmp_path / "out")] == [0, 2]


def test_topic_not_compacted_by_the_metadata_log_is_not_checked_for_revival(tmp_path: Path) -> None:
    condition = "topic = 'page-views' AND offset >= 6000"
    shutil.copytree(DUMP / "page-views-0", tmp_path / "in" / "page-views-0")
    stderr = refused(tmp_path / "in", tmp_path / "out", "--drop-where", condition)
    assert "give --metadata" in stderr

    arguments = ("--drop-where", condition, "--metadata", DUMP)
    rewritten(tmp_path / "in", tmp_path / "out", *arguments)


def test_older_record_of_a_key_can_be_dropped_without_the_newest(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k", b"k", b"k")})

    rewritten(tmp_path / "in", tmp_path / "out", "--drop-where", "offset = 1")

    assert [row["offset"] for row in rows(tmp_path / "out")] == [0, 2]


def test_rewrite_dry_run_counts_records_and_writes_no_file(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k", b"drop")})
    keys = keys_file(tmp_path, "drop")

    result = run_here("rewrite", "--input", tmp_path / "in", "--drop-keys", keys, "--dry-run")

    assert result.returncode == 0
    assert "1 of 2 records dropped; nothing is written" in result.stdout
    assert not result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "keys.txt"]


def test_rewrite_dry_run_reports_partitions_that_would_be_rejected(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k")})
    keys = keys_file(tmp_path, "other")

    result = run_here("rewrite", "--input", tmp_path / "in", "--drop-keys", keys, "--dry-run")

    assert result.returncode == 0
    assert "would be rejected: no record matches" in result.stdout


def test_key_file_lines_are_text_hex_or_base64(tmp_path: Path) -> None:
    keys = [b"text", b"\xff\x00", b"\n", b"k", b"", b" blank "]
    write_partition(tmp_path / "in", {0: batch(0, *keys)})
    lines = ("text", "hex:ff00", f"base64:{base64.b64encode(keys[2]).decode()}", "", "hex:")
    path = keys_file(tmp_path, *lines, " blank ")
    rewritten(tmp_path / "in", tmp_path / "out", "--drop-keys", path)

    assert [row["offset"] for row in rows(tmp_path / "out")] == [3]


def test_byte_order_mark_before_the_first_key_is_ignored(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k1", b"k2", b"k3")})
    path = tmp_path / "keys.txt"
    path.write_bytes(b"\xef\xbb\xbfk1\r\nk2\r\n")
    rewritten(tmp_path / "in", tmp_path / "out", "--drop-keys", path)

    assert [row["key"] for row in rows(tmp_path / "out")] == [b"k3"]


def test_dropped_keys_are_counted_by_line_and_not_printed(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k1", b"person", b"k1", b"k3")})
    path, summary = tmp_path / "keys.txt", tmp_path / "summary.json"
    path.write_bytes(b"k1\r\n\r\nabsent\r\nhex:706572736f6e\n")
    report = tmp_path / "report.json"
    inputs = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--drop-keys", path)

    result = run_here("rewrite", *inputs, "--summary", summary, "--report", report)

    assert "dropped records by line of the key file:\n  line 1: 2\n  line 4: 1\n" in result.stdout
    assert "no record has the key in 1 line:\n  line 3\n" in result.stdout
    counts = json.loads(summary.read_text())["counts"]
    assert (counts["keys"], counts["keys_unmatched"]) == (3, 1)
    said = result.stdout + result.stderr + report.read_text() + summary.read_text()
    assert not [key for key in ("absent", "person", "7065") if key in said]


@pytest.mark.parametrize("read", [read_keys, read_offsets_file])
def test_text_that_is_not_utf8_is_rejected_with_its_line(
    tmp_path: Path, read: Callable[[str], object]
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbftopic,0,1\r\ntopic,1,\xff\r\n")
    with pytest.raises(InputError, match=r"line 2 of the .* is not UTF-8 .*0xff") as raised:
        read(str(path))
    assert (raised.value.path, raised.value.position_bytes) == (str(path), 22)


def test_malformed_key_line_is_rejected(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k")})
    keys = keys_file(tmp_path, "k", "hex:f")

    assert "line 2 is not a key" in refused(tmp_path / "in", tmp_path / "out", "--drop-keys", keys)


@pytest.mark.parametrize(
    ("condition", "dropped"),
    [
        ("key = 'a'", [0]),
        ("key <> 'a'", [1, 3]),
        ("NOT key = 'a'", [1, 3]),
        ("key IS NULL", [2]),
        ("key IS NOT NULL AND offset <> 0", [1, 3]),
        ("key = NULL", []),
        ("header('tenant') = 'acme'", [1]),
        ("header('tenant') <> 'acme'", []),
        ("header('none') = 'x' OR offset IN (2, 3)", [2, 3]),
        ("timestamp >= '1970-01-01T00:00:00.002Z'", [2, 3]),
        ("topic = 'topic' AND partition = 0 AND offset > 2", [3]),
        ("key LIKE '%a%'", [0]),
        ("key LIKE '%F%'", []),
    ],
)
def test_rewrite_accepts_sql_conditions(tmp_path: Path, condition: str, dropped: list[int]) -> None:
    records = [
        Record(0, b"a"),
        Record(1, b"b", None, [("tenant", b"old"), ("tenant", b"acme")]),
        Record(2),
        Record(3, b"\xff"),
    ]
    log = write_record_batch(records, 0, BatchFields(leader_epoch=0))
    write_partition(tmp_path / "in", {0: log})
    rewritten(tmp_path / "in", tmp_path / "out", "--drop-where", condition, "--force")

    kept = [offset for offset in range(4) if offset not in dropped]
    assert [row["offset"] for row in rows(tmp_path / "out")] == kept


def test_output_with_foreign_files_is_rejected(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k", b"drop")})
    keys = keys_file(tmp_path, "drop")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")

    assert "is not empty" in refused(tmp_path / "in", tmp_path / "out", "--drop-keys", keys)
    assert contents(tmp_path / "out") == {"file": b"mine"}
    assert "is inside the input" in refused(
        tmp_path / "in", tmp_path / "in" / "out", "--drop-keys", keys
    )


def test_directory_locked_by_a_broker_is_rejected(tmp_path: Path) -> None:
    write_partition(tmp_path / "in", {0: batch(0, b"k", b"drop")})
    (tmp_path / "out").mkdir()
    with DirectoryLock.for_data_directories([str(tmp_path / "out")]):
        keys = keys_file(tmp_path, "drop")
        refused(tmp_path / "in", tmp_path / "out", "--drop-keys", keys, code=3)


_KILLED = """
import os, sys
from kafka_index.cli import main
from kafka_index.commands.rewrite import job

publish, left = job.publish_directory, int(sys.argv[1])

def publish_until_killed(*arguments):
    global left
    if not left:
        os._exit(9)
    left -= 1
    publish(*arguments)

job.publish_directory = publish_until_killed
main(sys.argv[2:])
"""


@pytest.mark.parametrize("published", [0, 1])
def test_killed_rewrite_is_completed_only_by_the_same_rewrite(
    tmp_path: Path, published: int
) -> None:
    for name in ("a-0", "b-0"):
        write_partition(tmp_path / "in", {0: batch(0, b"k", b"drop")}, name)
    keys = keys_file(tmp_path, "drop")
    rewritten(tmp_path / "in", tmp_path / "whole", "--drop-keys", keys)
    out = tmp_path / "out"
    arguments = ["rewrite", "--input", tmp_path / "in", "--output", out, "--drop-keys", keys]
    program = [sys.executable, "-c", _KILLED, published, *arguments, "--threads", "1"]
    killed = subprocess.run(list(map(str, program)), check=False, env=environment())
    assert killed.returncode == 9
    assert sorted(path.name for path in out.glob("?-0")) == ["a-0", "b-0"][:published]

    stderr = refused(tmp_path / "in", out, "--drop-where", "offset = 0")
    assert "unfinished rewrite of another input" in stderr

    rewritten(tmp_path / "in", out, "--drop-keys", keys)
    assert contents(out) == contents(tmp_path / "whole")


def test_completed_rewrite_is_reported_again_without_writing(tmp_path: Path) -> None:
    damaged = bytearray(batch(0, b"k") + batch(1, b"k") + batch(2, b"k"))
    damaged[-80] ^= 1
    write_partition(tmp_path / "in", {0: bytes(damaged)}, "bad-0")
    write_partition(tmp_path / "in", {0: batch(0, b"drop", b"k")}, "good-0")
    keys, report = keys_file(tmp_path, "drop"), tmp_path / "report.json"
    arguments = ("--drop-keys", keys, "--report", report)
    first = refused(tmp_path / "in", tmp_path / "out", *arguments, code=1)
    result = report.read_bytes()
    report.unlink()
    # As a broker does that was started on it.
    (tmp_path / "out" / "replication-offset-checkpoint").write_text("0\n1\ngood 0 9\n")
    before = contents(tmp_path / "out")

    again = refused(tmp_path / "in", tmp_path / "out", *arguments, code=1)

    assert "finished by an earlier run" in again
    left_out = [[line for line in text.splitlines() if "bad-0" in line] for text in (first, again)]
    assert left_out[0] == left_out[1] != []
    assert report.read_bytes() == result
    assert contents(tmp_path / "out") == before
    other = refused(tmp_path / "in", tmp_path / "out", "--drop-where", "offset = 0")
    assert "the output belongs to another rewrite" in other


def test_rewrite_of_random_logs_drops_exactly_the_matching_records(tmp_path: Path) -> None:
    draw = random.Random(11)
    names = [b"drop", b"a", b"b", None]
    for number in range(5):
        log, offset, sequence = b"", 0, itertools.count()
        segments: dict[int, bytes] = {}
        start = 0
        for _ in range(draw.randrange(1, 30)):
            keys = draw.choices(names, k=draw.randrange(1, 6))
            fields: dict[str, Any] = {"codec": draw.choice(CODECS)}
            if draw.random() < 0.4:
                fields |= {"producer_id": 5, "producer_epoch": 0}
                fields["base_sequence"] = next(sequence)
                for _ in keys[1:]:
                    next(sequence)
            log += batch(offset, *keys, **fields)
            offset += len(keys)
            if draw.random() < 0.1:
                log += write_empty_batch(offset, offset + 2, 5, BatchFields(leader_epoch=0))
                offset += 3
            if draw.random() < 0.2:
                segments[start], log, start = log, b"", offset
        segments[start] = log
        write_partition(tmp_path / "in", segments, f"random-{number}")
    rewritten(
        tmp_path / "in", tmp_path / "out", "--drop-keys", keys_file(tmp_path, "drop"), "--force"
    )

    before = [row for row in rows(tmp_path / "in") if row["key"] != b"drop"]
    assert rows(tmp_path / "out") == before
    for number in range(5):
        directory = tmp_path / "out" / f"random-{number}"
        with (
            PartitionLogWriter(tmp_path / "in" / directory.name, was_clean=False) as source,
            PartitionLogWriter(directory) as log_,
        ):
            assert log_.log_end_offset == source.log_end_offset

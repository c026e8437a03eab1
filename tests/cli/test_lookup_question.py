from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kafka_index.core.format.times import format_time
from tests.support.command_line import DUMP, copy_partitions, lookup
from tests.support.segments import GZIP, batch, packed_batch

from .query_files import answer_columns, ask, queries, read_answers, write_queries

TOPIC = "orders.eu-west"
HERE = ("--topic", TOPIC, "--partition", 0)


@pytest.mark.parametrize("by", ["offset", "timestamp"])
@pytest.mark.parametrize("resolve", ["index", "batch", "record"])
def test_single_lookup_equals_bulk_lookup(by: str, resolve: str, tmp_path: Path) -> None:
    key = ask(*HERE, "--offset", 777, "--resolve", "record")["found_timestamp_ms"]
    key = 777 if by == "offset" else key
    queries_path = write_queries(tmp_path / "q.parquet", queries(by, [(TOPIC, 0, key)]))
    common = (
        "--logs",
        DUMP,
        "--queries",
        queries_path,
        "--by",
        by,
        "--resolve",
        resolve,
        "--output",
    )
    assert lookup(*common, tmp_path / "a.parquet").returncode == 0

    answer = ask(*HERE, f"--{by}", key, "--resolve", resolve)

    assert answer_columns([answer]) == answer_columns(read_answers(tmp_path / "a.parquet"))
    assert answer[by] == key
    assert answer["resolve"] == resolve


def test_single_lookup_prints_a_readable_answer() -> None:
    answer = ask(*HERE, "--offset", 777, "--resolve", "record")
    result = lookup("--logs", DUMP, *HERE, "--offset", 777, "--resolve", "record")
    assert (result.returncode, result.stderr) == (0, "")
    title, *lines = result.stdout.splitlines()
    assert title == "orders.eu-west-0, offset 777: found"
    cells = dict(line.strip().split("  ", 1) for line in lines)
    cells = {name: text.strip() for name, text in cells.items()}
    assert cells == {
        "offset": "777",
        "time": f"{format_time(answer['found_timestamp_ms'])} ({answer['found_timestamp_ms']})",
        "leader epoch": "0",
        "batch": (
            f"offsets {answer['batch_base_offset']} to {answer['batch_last_offset']}, "
            f"{answer['batch_size_bytes']} bytes at byte {answer['batch_position_bytes']}"
        ),
        "index entry": f"offset {answer['entry_offset']}, byte {answer['entry_position_bytes']}",
        "segment": str(answer["segment_base_offset"]),
        "file": os.path.relpath(answer["log_path"]),
    }


def test_status_without_an_answer_is_explained() -> None:
    result = lookup("--logs", DUMP, *HERE, "--offset", 10**6)
    assert result.returncode == 0
    assert result.stdout == (
        "orders.eu-west-0, offset 1000000: after_log_end (the offset is after the log end offset: "
        "out of range; the log begins at 0 and ends at 1463)\n"
    )


@pytest.mark.parametrize(
    ("special", "offset"),
    [("-1", 1463), ("-2", 0)],
)
def test_single_lookup_accepts_earliest_and_latest(special: str, offset: int) -> None:
    answer = ask(*HERE, "--timestamp", special)
    assert (answer["status"], answer["found_offset"]) == ("found", offset)
    assert answer["found_time"] is None


def test_single_lookup_accepts_all_time_formats() -> None:
    largest = ask(*HERE, "--timestamp", -3)
    milliseconds = largest["found_timestamp_ms"]
    iso = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    for text in (milliseconds, iso, iso.replace("+00:00", "Z"), iso.removesuffix("+00:00")):
        answer = ask(*HERE, "--timestamp", text)
        assert answer["timestamp"] == milliseconds
        assert answer["found_offset"] == largest["found_offset"]
        assert answer["found_time"] == largest["found_time"]


def test_time_before_1970_is_not_special() -> None:
    assert ask(*HERE, "--timestamp", "1969-12-31T23:59:59.999Z")["status"] == "invalid_query"


def test_timestamp_beyond_the_calendar_is_printed_as_a_number() -> None:
    assert format_time(2**62) is None
    assert ask(*HERE, "--timestamp", 2**62)["status"] == "no_record_at_or_after"


def test_logs_option_accepts_a_partition_directory() -> None:
    answer = ask(*HERE, "--offset", 5, logs=DUMP / f"{TOPIC}-0")
    assert answer == ask(*HERE, "--offset", 5)


def test_single_lookup_uses_the_log_start_offset_checkpoint() -> None:
    answer = ask("--topic", "shipments.tracking", "--partition", 0, "--timestamp", -2)
    assert answer["found_offset"] == 1500


def test_single_lookup_reads_no_other_partition(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", f"{TOPIC}-0")
    # In a listing of the dump, these two stop a run.
    (data / "twice-0").mkdir()
    (data / "twice-0" / f"{0:020d}.log").symlink_to(data / "twice-0")
    (data / "closed-0").symlink_to(data / "closed-0")
    assert ask(*HERE, "--offset", 5, logs=data)["status"] == "found"


def test_missing_partition_is_reported_with_existing_ones() -> None:
    result = lookup("--logs", DUMP, "--topic", TOPIC, "--partition", 9, "--offset", 1)
    assert (result.returncode, result.stdout) == (2, "")
    assert "the input has no partition orders.eu-west-9" in result.stderr
    assert "0, 1, 2" in result.stderr


def test_findings_are_printed_on_stderr(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", f"{TOPIC}-0")
    arguments = ("--logs", data, *HERE, "--offset", 5, "--json")
    result = lookup(*arguments)
    assert result.returncode == 0
    assert json.loads(result.stdout)["status"] == "found"
    assert "no_index: " in result.stderr
    assert lookup(*arguments, "--quiet").stderr == ""


def test_damage_is_an_exit_code(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", f"{TOPIC}-0")
    log = min(data.glob("*/*.log"))
    log.write_bytes(b"\xff" * 100 + log.read_bytes()[100:])
    result = lookup("--logs", data, *HERE, "--offset", 5, "--quiet")
    assert result.returncode == 1
    assert "unreadable" in result.stdout
    assert log.name in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--offset", "5"], "requires --topic"),
        (["--topic", "t", "--offset", "5"], "the input has no topic t"),
        ([*HERE, "--offset", "5", "--timestamp", "ms:5"], "not both"),
        ([*HERE, "--offset", "5", "--json", "--get-offsets"], "are mutually exclusive"),
        ([*HERE, "--offset", "-5"], "--offset"),
        ([*HERE, "--timestamp", "tomorrow"], "2024-05-01T00:00:00Z"),
        ([*HERE, "--timestamp", str(2**63)], "--at: "),
        ([*HERE, "--offset", "5", "--output", "x"], "--output requires --queries"),
        ([*HERE, "--offset", "5", "--overwrite"], "--overwrite requires --queries"),
        ([*HERE, "--offset", "5", "--engine", "spark"], "--engine requires --queries"),
        ([*HERE, "--offset", "5", "--threads", "1"], "--threads requires --queries"),
        (["--json"], "requires --topic"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = lookup("--logs", DUMP, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize("by_option", [True, False])
def test_batch_above_the_memory_limit_is_unreadable(tmp_path: Path, *, by_option: bool) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    big = packed_batch(0, [(0, 30)], GZIP, value_size=10_000)
    (directory / f"{0:020d}.log").write_bytes(big)
    settings = tmp_path / "settings.properties"
    settings.write_text("max.decompressed.bytes=5000\n")
    limit = ("--max-decompressed-bytes", 5000) if by_option else ("--config", settings)
    question = ("--logs", directory, "--topic", "t", "--partition", 0, "--offset", 0)
    result = lookup(*question, "--resolve", "record", *limit)
    assert result.returncode == 1
    assert "too_large" in result.stdout + result.stderr
    assert lookup(*question, "--resolve", "record").returncode == 0


def test_damage_before_the_last_stable_offset_is_printed_with_expected_and_found(
    tmp_path: Path,
) -> None:
    opened = batch(0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    log.parent.mkdir()
    log.write_bytes(opened + batch(3) + batch(4))
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 9\n")
    question = ("--topic", "orders", "--partition", "0", "--offset", "7")
    result = lookup("--input", tmp_path, *question, "--upper-bound", "last-stable-offset")
    assert result.returncode == 1
    assert "overlap" in result.stderr
    assert "(expected " in result.stderr

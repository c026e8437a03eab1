"""Questions about topics, as they are asked by hand every day."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

import kafka_index
from kafka_index.core.errors import InputError
from tests.support.command_line import DUMP, Argument, copy_partitions, json_rows, lookup
from tests.support.record_tables import write_partition
from tests.support.segments import batch
from tests.support.terminals import run_on_a_terminal
from tests.support.transactional_logs import segments

LOGS = ("--logs", DUMP)
TOPIC = (*LOGS, "--topic", "payments")
ONE = (*TOPIC, "--partition", 0)
TOPICS = (*LOGS, "--topics", r"orders\..*|payments")
ENDS = {0: 1574, 1: 1816}


def rows(*arguments: Argument) -> list[dict[str, Any]]:
    result = lookup(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_lookup_of_a_topic_prints_a_row_per_partition() -> None:
    result = lookup(*TOPIC)
    assert result.returncode == 0, result.stderr
    header, *lines = result.stdout.splitlines()
    assert header.split("  ")[0] == "partition"
    assert [line.split()[:4] for line in lines] == [
        ["0", "0", "1574", "1,574"],
        ["1", "0", "1816", "1,816"],
    ]
    for line in lines:
        first, last = map(datetime.fromisoformat, line.split()[4:6])
        assert first < last


def test_lookup_of_a_topic_equals_lookups_of_its_partitions() -> None:
    key = 1795245919114
    for row in rows(*TOPIC, "--timestamp", key):
        alone = rows(*TOPIC, "--partition", row["partition"], "--timestamp", key)[0]
        for name in ("status", "found_offset", "found_timestamp_ms", "timestamp"):
            assert row[name] == alone[name]


def test_topic_table_has_first_and_largest_timestamps() -> None:
    (row,) = rows(*ONE)
    (first,) = rows(*ONE, "--offset", 0, "--resolve", "record")
    (last,) = rows(*ONE, "--timestamp", -3)
    assert row["first_timestamp_ms"] == first["found_timestamp_ms"]
    assert row["max_timestamp_ms"] == last["found_timestamp_ms"]


def test_partitions_option_selects_several_partitions() -> None:
    named = rows(*LOGS, "--topic", "orders.eu-west", "--partition", 2, "--partition", 0)
    assert [row["partition"] for row in named] == [0, 2]


def test_topic_lookup_prints_lines_like_kafka_get_offsets() -> None:
    result = lookup(*TOPIC, "--get-offsets")
    assert (result.stdout, result.stderr) == ("payments:0:1574\npayments:1:1816\n", "")
    result = lookup(*ONE, "--offset", 7, "--get-offsets")
    assert result.stdout == "payments:0:7\n"


def test_partition_without_an_answer_is_omitted_for_scripts() -> None:
    result = lookup(*TOPIC, "--timestamp", 10**14, "--get-offsets")
    assert (result.returncode, result.stdout) == (0, "")
    assert "no offset for payments:1: no_record_at_or_after" in result.stderr


def test_partition_without_segments_is_listed(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    (data / "payments-7").mkdir()
    _, empty = rows("--logs", data, "--topic", "payments")
    assert (empty["partition"], empty["start_offset"], empty["end_offset"]) == (7, None, None)


def test_absent_topic_suggests_near_names() -> None:
    result = lookup(*LOGS, "--topic", "paymnets", "--offset", 1)
    assert result.returncode == 2
    assert "did you mean payments?" in result.stderr


def test_absent_partition_is_reported_with_the_existing_ones() -> None:
    result = lookup(*TOPIC, "--partition", 0, "--partition", 9, "--offset", 1)
    assert result.returncode == 2
    assert "the input has no partition payments-9 (found the partitions 0, 1)" in result.stderr


def test_offset_out_of_range_reports_log_start_and_end() -> None:
    result = lookup(*ONE, "--offset", 10**6)
    assert "out of range; the log begins at 0 and ends at 1574)" in result.stdout
    (answer,) = rows(*ONE, "--offset", 10**6)
    assert (answer["log_start_offset"], answer["log_end_offset"]) == (0, 1574)


@pytest.mark.parametrize("which", [ONE, TOPIC])
def test_epoch_seconds_are_rejected_as_timestamps(which: tuple[Argument, ...]) -> None:
    result = lookup(*which, "--timestamp", 1714550400)
    assert result.returncode == 2
    assert "looks like seconds (2024-05-01T08:00:00.000Z)" in result.stderr
    assert "give 1714550400000, or ms:1714550400" in result.stderr


@pytest.mark.parametrize("timestamp", ["ms:1714550400", 0, 10**11, -2, "1970-01-20T20:15:50Z"])
def test_epoch_milliseconds_are_accepted_as_timestamps(timestamp: str | int) -> None:
    (answer,) = rows(*ONE, "--timestamp", timestamp)
    assert (answer["status"], answer["found_offset"]) == ("found", 0)


def test_small_timestamps_are_accepted_if_the_log_contains_small_ones(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 2, timestamps=[1714550400, 1714550401])})
    (folder,) = tmp_path.iterdir()
    topic, _, number = folder.name.rpartition("-")
    arguments = ("--logs", tmp_path, "--topic", topic, "--partition", number)
    (answer,) = rows(*arguments, "--at", "ms:1714550401")
    assert answer["found_offset"] == 1


def test_query_table_accepts_any_timestamps(tmp_path: Path) -> None:
    asked, answers = tmp_path / "q.csv", tmp_path / "a.csv"
    asked.write_text("topic,partition,timestamp\npayments,0,1714550400\n")
    result = lookup(*LOGS, "--queries", asked, "--by", "timestamp", "--output", answers)
    assert result.returncode == 0, result.stderr
    assert '"found"' in answers.read_text()


def test_show_record_prints_the_record_of_an_answer() -> None:
    arguments = (
        *LOGS,
        "--topic",
        "orders.eu-west",
        "--partition",
        0,
        "--offset",
        12,
        "--show-record",
    )
    lines = lookup(*arguments).stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines[-3:]] == [
        ["key", '"order-4807"'],
        ["value", '"opal nectar lichen meadow quartz delta tundra tundra"'],
        ["header", '"flag" = null'],
    ]
    (answer,) = rows(*arguments)
    assert answer["record"]["offset"] == answer["found_offset"] == 12
    assert answer["record"]["key"] == "order-4807"
    assert answer["record"]["headers"] == [{"key": "flag", "value": None}]


def test_show_record_prints_a_control_record() -> None:
    batches = json_rows(min((DUMP / "payments-0").glob("*.log")))
    marker = next(each for each in batches if each["control_type"] is not None)
    arguments = (*ONE, "--offset", marker["base_offset"], "--show-record")
    (answer,) = rows(*arguments)
    assert answer["record"]["control_type"] == ("abort", "commit")[marker["control_type"]]
    last = lookup(*arguments).stdout.splitlines()[-1]
    assert last.split()[:2] == ["control", f"{answer['record']['control_type']},"]


def test_show_record_requires_a_single_query() -> None:
    assert lookup(*TOPIC, "--offset", 1, "--show-record").returncode == 2
    assert lookup(*ONE, "--offset", 1, "--show-record", "--resolve", "batch").returncode == 2


def test_lookups_can_end_at_the_last_stable_offset(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, segments(3))
    topic, _, number = folder.name.rpartition("-")
    arguments = ("--logs", tmp_path, "--topic", topic, "--partition", number)
    (log,) = rows(*arguments)
    # From the last batch back: the first offset of the transaction that is open first.
    checkpoint = tmp_path / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{topic} {number} {log['end_offset']}\n")
    bounded = (*arguments, "--upper-bound", "last-stable-offset")
    (stable,) = rows(*bounded)
    assert log["start_offset"] < stable["end_offset"] < log["end_offset"]
    (at_end,) = rows(*bounded, "--timestamp", -1)
    assert at_end["found_offset"] == stable["end_offset"]
    (hidden,) = rows(*bounded, "--offset", stable["end_offset"] + 1)
    assert hidden["status"] == "log_end"
    # The high watermark is a bound too.
    checkpoint.write_text(f"0\n1\n{topic} {number} 3\n")
    assert rows(*bounded)[0]["end_offset"] <= 3


def test_table_fits_a_terminal() -> None:
    lines = run_on_a_terminal(70, "lookup", *TOPIC, "--timestamp", 1795245919114)
    assert max(len(unstyle(line)) for line in lines) <= 70
    assert "\x1b[32mfound\x1b[0m" in "".join(lines)


@pytest.mark.parametrize("level", ["index", "batch"])
def test_unsupported_level_of_a_topic_lookup_is_rejected(level: str) -> None:
    result = lookup(*TOPIC, "--offset", 5, "--resolve", level)

    assert result.returncode == 2
    assert "--resolve" in result.stderr
    assert lookup(*ONE, "--offset", 5, "--resolve", level).returncode == 0


def test_topic_lookup_uses_record_level() -> None:
    assert rows(*TOPIC, "--offset", 5, "--resolve", "record") == rows(*TOPIC, "--offset", 5)


def test_lookup_of_several_topics_equals_lookups_of_each() -> None:
    key = 1795245919114
    alone = [
        row
        for topic in ("orders.eu-west", "payments")
        for row in rows(*LOGS, "--topic", topic, "--at", key)
    ]
    assert len(alone) == 5
    assert rows(*TOPICS, "--at", key) == alone
    result = lookup(*TOPICS, "--at", key)
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        [row["topic"], str(row["partition"])] for row in alone
    ]


def test_topics_and_partitions_options_combine() -> None:
    named = rows(*TOPICS, "--partition", 2, "--partition", 0)
    assert [(row["topic"], row["partition"]) for row in named] == [
        ("orders.eu-west", 0),
        ("orders.eu-west", 2),
        ("payments", 0),
    ]
    result = lookup(*TOPICS, "--partition", 9)
    assert result.returncode == 2
    assert "no partition 9 of the topics that match" in result.stderr


@pytest.mark.parametrize(
    ("question", "found"),
    [(("--at", -2), [0, 0]), (("--at", -1), [1574, 1816]), (("--offset", 1700), [1574, 1700])],
)
def test_topic_lookup_writes_starting_offsets(
    question: tuple[Argument, ...], found: list[int], tmp_path: Path
) -> None:
    starts, plan = tmp_path / "starts.json", tmp_path / "plan.csv"
    result = lookup(*TOPIC, *question, "--starting-offsets", starts, "--reset-offsets", plan)
    assert result.returncode == 0, result.stderr
    assert json.loads(starts.read_text()) == {"payments": dict(zip("01", found, strict=True))}
    assert plan.read_text() == f"payments,0,{found[0]}\npayments,1,{found[1]}\n"


def test_starting_offsets_are_written_only_for_all_partitions(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    (data / "payments-7").mkdir()
    starts = tmp_path / "starts.json"
    arguments = ("--logs", data, "--topics", "payments", "--starting-offsets", starts)
    assert "require --offset or --at" in lookup(*arguments).stderr
    result = lookup(*arguments, "--at", "now")
    assert result.returncode == 2
    assert "payments-7 has no starting offset: unknown_partition" in result.stderr
    assert not starts.exists()
    inside = data / "payments-0" / "starts.json"
    assert lookup(*arguments[:-1], inside, "--at", "now").returncode == 2
    assert not inside.exists()


@pytest.mark.parametrize(
    ("topics", "hint"),
    [
        ("payment", "did you mean payments?"),
        ("paymnets|order.eu-west", "did you mean payments or orders.eu-west?"),
        (
            "orders.eu-west, payment",
            "did you mean 'orders.eu-west|payments'? Alternatives are separated by |",
        ),
    ],
)
def test_topic_pattern_without_a_match_suggests_topics(topics: str, hint: str) -> None:
    result = lookup(*LOGS, "--topics", topics, "--at", "now")
    assert result.returncode == 2
    assert result.stderr.rstrip().endswith(hint)
    with pytest.raises(InputError) as refused:
        kafka_index.verify(DUMP, topics=topics)
    assert str(refused.value).endswith(hint)

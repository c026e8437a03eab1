"""Bulk lookups as a pipeline runs them: bad queries, statuses that fail a run, reruns."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.builds import finish, start
from tests.support.command_line import DUMP, Argument, copy_partitions, lookup

CSV = """topic,partition,offset
payments,0,5
,0,7
payments,x,9
payments,0,-4
nope,1,1
payments,0,
payments,0,many
"""
LOGS = ("--logs", DUMP, "--by", "offset")
FIRST = [
    (2, "topic is missing"),
    (3, "partition 'x' is not an integer"),
    (4, "offset -4 is negative"),
    (6, "offset is missing or not an integer"),
    (7, "offset 'many' is not an integer"),
]


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "queries.csv"
    path.write_text(CSV)
    return path


def test_bad_queries_are_reported_with_row_and_reason(asked: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = lookup(*LOGS, "--queries", asked, "--output", tmp_path / "a.csv", "--report", report)
    assert result.returncode == 0, result.stderr
    assert "5 malformed queries:" in result.stdout
    for row, reason in FIRST:
        assert f"row {row}: {reason}" in result.stdout
    rows = map(json.loads, report.read_text().splitlines())
    actual = [(row["row"], row["reason"]) for row in rows if row["reason_code"] == "invalid_query"]
    assert actual == FIRST


def test_ten_bad_queries_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    queries = tmp_path / "queries.parquet"
    offsets = [1] * 5 + [-1] * 14 + [2]
    table = pa.table(
        {"topic": ["payments"] * 20, "partition": [0] * 20, "offset": offsets},
    )
    pq.write_table(table, queries, row_group_size=3)
    result = lookup(*LOGS, "--queries", queries, "--output", tmp_path / "a.parquet")
    shown = [line for line in result.stdout.splitlines() if ", row " in line]
    assert [line.split(", row ")[1] for line in shown] == [
        f"{row}: offset -1 is negative" for row in range(6, 16)
    ]
    assert "  and 4 more" in result.stdout


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '{"topic": "payments", "partition": true, "offset": 1}',
            "partition 'true' is not an integer",
        ),
        ('{"topic": "payments", "partition": 0}', "offset is missing or not an integer"),
    ],
)
@pytest.mark.parametrize("output", ["a.json", "a.parquet"])
def test_bad_json_lines_are_reported_with_reasons(
    line: str, reason: str, output: str, tmp_path: Path
) -> None:
    queries = tmp_path / "queries.json"
    queries.write_text('{"topic": "payments", "partition": 0, "offset": 1}\n' + line + "\n")
    result = lookup(*LOGS, "--queries", queries, "--output", tmp_path / output)
    assert f"row 2: {reason}" in result.stdout


@pytest.mark.parametrize(
    ("statuses", "code"), [("invalid", 1), ("unknown,log_end", 1), ("log_end", 0)]
)
def test_fail_on_status_sets_the_exit_code_after_writing_answers(
    statuses: str, code: int, asked: Path, tmp_path: Path
) -> None:
    answers = tmp_path / "a.csv"
    result = lookup(*LOGS, "--queries", asked, "--output", answers, "--fail-on", statuses)
    assert result.returncode == code
    assert ("(--fail-on)" in result.stdout) == bool(code)
    assert len(answers.read_text().splitlines()) == len(CSV.splitlines())


def test_unknown_status_is_wrong_usage(asked: Path, tmp_path: Path) -> None:
    result = lookup(*LOGS, "--queries", asked, "--output", tmp_path / "a", "--fail-on", "found")
    assert result.returncode == 2
    assert "--fail-on: found is not one of the choices (expected invalid, unknown" in result.stderr


@pytest.mark.parametrize("name", ["answers.csv", "answers"])
def test_rerun_with_unchanged_inputs_does_nothing(name: str, asked: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts.json"
    asked.write_text("topic,partition,offset\npayments,0,5\n")
    output = tmp_path / name
    arguments = (*LOGS, "--queries", asked, "--output", output, "--starting-offsets", starts)
    assert lookup(*arguments).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second_result = lookup(*arguments)
    assert second_result.returncode == 0, second_result.stderr
    assert "nothing to do" in second_result.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_rerun_with_a_report_writes_all_rows_again(asked: Path, tmp_path: Path) -> None:
    output, report = tmp_path / "answers.csv", tmp_path / "report.json"
    arguments = (*LOGS, "--queries", asked, "--output", output, "--report", report)
    assert lookup(*arguments).returncode == 0
    answers, rows = output.read_bytes(), report.read_bytes()
    report.unlink()
    second_result = lookup(*arguments)
    assert second_result.returncode == 0, second_result.stderr
    assert "nothing to do" not in second_result.stdout
    assert (output.read_bytes(), report.read_bytes()) == (answers, rows)


@pytest.mark.parametrize("change", ["queries", "answers", "starts", "level"])
def test_rerun_with_changed_inputs_is_rejected(change: str, asked: Path, tmp_path: Path) -> None:
    answers, starts = tmp_path / "answers.csv", tmp_path / "starts.json"
    asked.write_text("topic,partition,offset\npayments,0,5\n")
    arguments: list[Argument] = [*LOGS, "--queries", asked, "--output", answers]
    arguments += ["--starting-offsets", starts]
    assert lookup(*arguments).returncode == 0
    if change == "level":
        arguments += ["--resolve", "record"]
    else:
        path = {"queries": asked, "answers": answers, "starts": starts}[change]
        os.utime(path, ns=(0, 0))
    result = lookup(*arguments)
    assert result.returncode == 2
    assert "the output exists already" in result.stderr


def test_rerun_fails_for_the_same_statuses(asked: Path, tmp_path: Path) -> None:
    arguments = (*LOGS, "--queries", asked, "--output", tmp_path / "a", "--fail-on", "invalid")
    assert lookup(*arguments).returncode == 1
    second_result = lookup(*arguments)
    assert second_result.returncode == 1
    assert "5 queries are invalid_query" in second_result.stdout


def test_missing_starting_offset_leaves_no_output(asked: Path, tmp_path: Path) -> None:
    answers, starts = tmp_path / "answers", tmp_path / "starts.json"
    result = lookup(*LOGS, "--queries", asked, "--output", answers, "--starting-offsets", starts)
    assert result.returncode == 2
    assert "starting offset" in result.stderr
    assert not answers.exists()
    assert not starts.exists()


def test_rerun_after_the_environment_failed_answers_again(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    asked, answers = tmp_path / "queries.csv", tmp_path / "answers.csv"
    asked.write_text("topic,partition,offset\npayments,0,5\n")
    logs = list(data.glob("*/*.log"))
    for log in logs:
        log.chmod(0)
    read = ("--logs", data, "--by", "offset", "--resolve", "record")
    arguments = (*read, "--queries", asked, "--output", answers)
    failed = finish(start(*arguments, command_name="lookup", privileged=False))
    assert failed.returncode == 3, failed.stderr
    assert "unreadable" in answers.read_text()
    for log in logs:
        log.chmod(0o644)

    second_result = lookup(*arguments)

    assert second_result.returncode == 0, second_result.stderr
    assert "unreadable" not in answers.read_text()
    assert "nothing to do" in lookup(*arguments).stdout


@pytest.mark.parametrize(("suffix", "has_folder"), [(".txnindex", False), (".snapshot", True)])
def test_rerun_at_the_last_stable_offset_detects_changed_state_files(
    tmp_path: Path, suffix: str, *, has_folder: bool
) -> None:
    data = tmp_path / "data"
    indexes = tmp_path / "indexes" if has_folder else data
    for root in {data, indexes}:
        shutil.copytree(DUMP / "payments-0", root / "payments-0")
    shutil.copy(DUMP / "replication-offset-checkpoint", data)
    queries = tmp_path / "queries.csv"
    queries.write_text("topic,partition,offset\npayments,0,5\n")
    arguments = ("--logs", data, "--indexes", indexes, "--upper-bound", "last-stable-offset")
    written = ("--by", "offset", "--queries", queries, "--output", tmp_path / "a.csv")
    result = lookup(*arguments, *written)
    assert result.returncode == 0, result.stderr
    second_result = lookup(*arguments, *written)
    assert "nothing to do" in second_result.stdout, second_result.stderr

    changed = data if suffix == ".snapshot" else indexes
    os.utime(max((changed / "payments-0").glob(f"*{suffix}")), ns=(0, 0))

    assert "the output exists already" in lookup(*arguments, *written).stderr

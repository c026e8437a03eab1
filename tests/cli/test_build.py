import json
import os
import shutil
from html import escape
from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import kafka_index as index
from kafka_index.commands.build.result import FILE_SCHEMA
from kafka_index.core.output.locks import DirectoryLock
from tests.support.command_line import (
    DUMP,
    SETTINGS,
    broker_files,
    build_here,
    copy_partitions,
    files_below,
    first_log,
    index_files,
    kafka_index,
    run_here,
)

PARTITION = "orders.eu-west-0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return copy_partitions(tmp_path / "data", PARTITION)


def flip_byte(log: Path, position: int) -> None:
    content = bytearray(log.read_bytes())
    content[position] ^= 0xFF
    log.write_bytes(content)


def test_build_writes_the_files_of_the_broker(tmp_path: Path) -> None:
    result = kafka_index(
        "build", "--input", DUMP, "--output", tmp_path / "out", "--config", SETTINGS
    )
    assert result.returncode == 0, result.stderr
    assert index_files(tmp_path / "out") == index_files(DUMP)
    assert "built" in result.stdout
    assert str(tmp_path / "out") in result.stdout


def test_option_wins_over_the_settings_file(tmp_path: Path) -> None:
    name = "trace-spans.fine-0"
    data = copy_partitions(tmp_path / "data", name)
    build = ("build", "--input", data, "--config", SETTINGS, "--output")
    assert run_here(*build, tmp_path / "file").returncode == 0
    assert index_files(tmp_path / "file") == broker_files(name)
    assert run_here(*build, tmp_path / "option", "--index-interval-bytes", 4096).returncode == 0
    assert index_files(tmp_path / "option") != broker_files(name)


def test_build_in_place_writes_next_to_the_logs(data: Path) -> None:
    result = run_here("build", "--input", data, "--in-place")
    assert result.returncode == 0, result.stderr
    assert index_files(data) == broker_files(PARTITION)
    assert "next to the logs" in result.stdout


def test_build_in_place_of_a_locked_directory_is_rejected(data: Path) -> None:
    with DirectoryLock.for_data_directories([str(data)]):
        before = list(files_below(data))
        result = run_here("build", "--input", data, "--in-place")
        assert list(files_below(data)) == before
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert ".lock" in result.stderr


def test_second_build_of_unchanged_logs_writes_no_file(data: Path, tmp_path: Path) -> None:
    arguments = ("build", "--input", data, "--output", tmp_path / "out")
    assert run_here(*arguments).returncode == 0
    second_result = run_here(*arguments)
    assert second_result.returncode == 0
    assert "unchanged" in second_result.stdout
    assert "built " not in second_result.stdout
    assert "built " in run_here(*arguments, "--force").stdout


def test_dry_run_prints_the_plan_and_writes_nothing(data: Path, tmp_path: Path) -> None:
    (data / "orders.eu-west-7.0f6e-delete").mkdir()
    before = list(files_below(tmp_path))
    result = run_here("build", "--input", data, "--output", tmp_path / "out", "--dry-run")
    assert result.returncode == 0
    assert list(files_below(tmp_path)) == before
    assert "would build 4 segments of 1 partition" in result.stdout
    assert "marked for deletion" in result.stdout


@pytest.mark.parametrize("form", ["several options", "one option", "no option", "a glob"])
def test_inputs_are_accepted_as_several_paths_and_globs(form: str, tmp_path: Path) -> None:
    other = "app-logs-0"
    data = copy_partitions(tmp_path / "data", PARTITION, other)
    one, two = str(data / PARTITION), str(data / other)
    inputs = {
        "several options": ["--input", one, "--input", two],
        "one option": ["--input", one, two],
        "no option": [one, two],
        "a glob": ["--input", str(data / "*")],
    }[form]
    result = run_here("build", *inputs, "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert index_files(tmp_path / "out") == broker_files(PARTITION, other)


def test_topic_pattern_must_match_the_full_name(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", PARTITION, "app-logs-0")
    build = ("build", "--input", data, "--output", tmp_path / "out", "--topics")
    assert run_here(*build, "app-.*").returncode == 0
    assert index_files(tmp_path / "out") == broker_files("app-logs-0")
    assert run_here(*build, "app").returncode == 2


def test_damaged_segment_is_a_report_row_and_exit_code_1(data: Path, tmp_path: Path) -> None:
    log = first_log(data)
    flip_byte(log, 30_000)
    report = tmp_path / "report.json"
    result = run_here("build", "--input", data, "--output", tmp_path / "out", "--report", report)
    assert result.returncode == 1
    assert result.stderr == ""
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert sorted(row["status"] for row in rows) == ["built", "built", "built", "truncated"]
    (damaged,) = (row for row in rows if row["status"] == "truncated")
    assert damaged["log_path"] == str(log)
    assert damaged["position_bytes"] == damaged["valid_bytes"] <= 30_000
    assert f"{log}: truncated at byte {damaged['position_bytes']}" in result.stdout


def test_preallocated_tail_is_not_damage(data: Path, tmp_path: Path) -> None:
    log = max(data.glob("*/*.log"))
    with log.open("ab") as file:
        file.truncate(log.stat().st_size + 100_000)
    result = run_here("build", "--input", data, "--output", tmp_path / "out")
    assert result.returncode == 0
    assert "preallocated zeros" in result.stdout
    assert index_files(tmp_path / "out") == broker_files(PARTITION)


def test_quiet_run_prints_only_problems(data: Path, tmp_path: Path) -> None:
    build = ("build", "--input", data, "--output", tmp_path / "out", "--quiet")
    good = run_here(*build)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    flip_byte(first_log(data), 30_000)
    bad = run_here(*build)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert str(first_log(data)) in bad.stderr


def test_reports_of_all_formats_have_the_same_rows(data: Path, tmp_path: Path) -> None:
    tables = {}
    for ending in ("parquet", "json", "csv"):
        report = tmp_path / f"report.{ending}"
        build = ("build", "--input", data, "--output", tmp_path / ending, "--threads", 1)
        assert run_here(*build, "--report", report).returncode == 0
        if ending == "parquet":
            tables[ending] = pq.read_table(report).to_pylist()
        elif ending == "csv":
            tables[ending] = pa_csv.read_csv(report).to_pylist()
        else:
            tables[ending] = [json.loads(line) for line in report.read_text().splitlines()]
        assert list(tables[ending][0]) == FILE_SCHEMA.names
        for row in tables[ending]:
            # What differs from run to run.
            for name in ("seconds", "output_path", "run_id"):
                row.pop(name)
            row["reason"] = row["reason"] or None
        tables[ending].sort(key=lambda row: row["segment_base_offset"])
    assert tables["parquet"] == tables["json"] == tables["csv"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --input"),
        (["--input", "{data}"], "--in-place"),
        (["--input", "{data}", "--output", "{out}", "--in-place"], "are mutually exclusive"),
        (["--input", "{data}", "--output", "{out}", "--quiet", "--verbose"], "mutually exclusive"),
        (["--input", "{data}", "--output", "{out}", "--report", "x.xml"], ".parquet"),
        (["--input", "{data}", "--output", "{out}", "--topics", "("], "regular expression"),
        (["--input", "{data}", "--output", "{out}", "--master", "local"], "--engine spark"),
        (["--input", "{data}", "--output", "{out}", "--config", "{out}/none"], "settings file"),
        (["--input", "{data}", "--output", "{out}", "--index-size-max-bytes", "3"], "range"),
        (["--input", "{data}", "--output", "{out}", "--engine", "flink"], "flink"),
        (
            ["--input", "{data}", "--output", "{out}", "--engine", "spark", "--master", "local[x]"],
            "'local[x]' is not a Spark master",
        ),
        (["--input", "{data}", "--output", "{data}/out"], "inside the input"),
        (["--input", "{data}", "--output", "{data}"], "is the input"),
        (["--input", "{out}", "--output", "{out}"], "{out}"),
        (["--input", "{data}", "--output", "ftp://host/out"], "ftp"),
        (["--input", "s3://bucket/dump", "--in-place"], "s3"),
        (["--input", "{empty}", "--output", "{out}"], "no segments found"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"data": data, "out": tmp_path / "out", "empty": empty}
    before = list(files_below(tmp_path))
    result = run_here("build", *(argument.format(**places) for argument in arguments))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message.format(**places) in result.stderr
    assert list(files_below(tmp_path)) == before


def test_report_that_cannot_be_written_is_rejected_before_the_work(
    data: Path, tmp_path: Path
) -> None:
    result = run_here(
        *("build", "--input", data, "--output", tmp_path / "out"),
        *("--report", tmp_path / "missing" / "report.csv"),
    )
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_verbose_prints_the_traceback_of_an_error(data: Path) -> None:
    result = run_here("build", "--input", data, "--output", data / "out", "--verbose")
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("kafka-index: error: ")


def test_build_in_place_of_a_single_index_kind_is_rejected(data: Path) -> None:
    result = run_here("build", "--input", data, "--in-place", "--what", "index,txnindex")
    assert result.returncode == 2
    assert "cannot build index without timeindex" in result.stderr


def test_build_in_place_keeps_the_index_files_of_a_damaged_log(
    tmp_path: Path,
) -> None:
    shutil.copytree(DUMP / "payments-0", tmp_path / "data" / "payments-0")
    directory = tmp_path / "data" / "payments-0"
    flip_byte(directory / f"{532:020d}.log", 20_000)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    report = tmp_path / "report.parquet"
    result = run_here("build", "--input", tmp_path / "data", "--in-place", "--report", report)
    assert result.returncode == 1
    rows = pq.read_table(report)
    assert rows["status"].to_pylist() == ["built", "truncated", "failed"]
    assert "an .index already exists: remove" in rows["reason"][1].as_py()
    assert "state_unknown" in rows["reason"][2].as_py()
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert {name: data for name, data in after.items() if not name.startswith(".")} == before


def test_what_option_given_twice_builds_all_listed_kinds_of_files(
    data: Path, tmp_path: Path
) -> None:
    for path in (data / PARTITION).glob("00000000000000000000.*"):
        path.unlink()
    arguments = ("--input", data, "--output", tmp_path / "out")
    result = run_here("build", *arguments, "--what", "index,timeindex", "--what", "snapshot")
    assert result.returncode == 0, result.stderr
    written = {path.suffix for path in (tmp_path / "out" / PARTITION).glob("0*")}
    assert written == {".index", ".timeindex", ".snapshot"}
    assert "1 segment has a note" in result.stdout


def test_build_report_includes_partitions_and_skipped_entries(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0", "reserved-for.later-0")
    flip_byte(first_log(data), 30_000)
    (data / "orders").mkdir()
    report, summary = tmp_path / "report.json", tmp_path / "summary.json"
    arguments = (
        "--report",
        report,
        "--report-rows",
        "segment,partition,skipped",
        "--summary",
        summary,
    )
    assert build_here("--input", data, "--output", tmp_path / "out", *arguments).returncode == 1
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    segments, partitions, skipped = (
        [row for row in rows if row["kind"] == kind] for kind in ("segment", "partition", "skipped")
    )
    assert {row["run_id"] for row in rows} == {json.loads(summary.read_text())["run_id"]}
    payments, reserved = partitions
    own = [row for row in segments if row["topic"] == "payments"]
    assert (payments["topic"], payments["status"], payments["segments"]) == (
        "payments",
        "truncated",
        len(own),
    )
    for name in ("log_size_bytes", "batch_count", "offset_entries", "time_entries"):
        assert payments[name] == sum(row[name] for row in own)
    for name in ("next_offset", "max_timestamp_ms"):
        assert payments[name] == max(row[name] for row in own)
    assert {row["output_path"] for row in (payments, *own)} == {str(tmp_path / "out/payments-0")}
    assert (reserved["status"], reserved["max_timestamp_ms"]) == ("built", None)
    assert [(row["log_path"], row["status"]) for row in skipped] == [
        (str(data / "orders"), "skipped")
    ]
    assert all(row["reason"] for row in skipped)


def test_build_in_place_reports_the_partition_directory_as_output(
    data: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert build_here("--input", data, "--in-place", "--report", report).returncode == 0
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert {row["output_path"] for row in rows} == {str(data / PARTITION)}


@pytest.mark.parametrize("fault", ["unread entry", "damaged batch", "batches out of order", "full"])
def test_build_terminal_report_summary_and_page_agree(
    fault: str, data: Path, tmp_path: Path
) -> None:
    log = first_log(data)
    content = log.read_bytes()
    if fault == "unread entry":
        os.mkfifo(log.parent / f"{10**6:020d}.log")
    elif fault == "damaged batch":
        flip_byte(log, 30_000)
    elif fault == "batches out of order":
        log.write_bytes(content + content)
    settings = "log.index.size.max.bytes=8\n" if fault == "full" else "\n"
    (tmp_path / "settings").write_text(settings)
    report, summary = tmp_path / "report.html", tmp_path / "summary.json"
    build = ("build", "--input", data, "--config", tmp_path / "settings", "--output")
    result = run_here(*build, tmp_path / "out", "--report", report, "--summary", summary)
    document = json.loads(summary.read_text())
    page = report.read_text(encoding="utf-8")
    built = index.build_indexes(data, tmp_path / "api", config=tmp_path / "settings")

    assert (result.returncode, document["exit_code"], document["outcome"]) == (1, 1, "damage")
    assert document["conclusion"] in result.stdout.splitlines()
    assert f'<h1 id="verdict">{escape(document["conclusion"])}</h1>' in page
    assert '<header class="bad">' in page
    expected = document["conclusion"].replace(str(tmp_path / "out"), str(tmp_path / "api"))
    assert built.conclusion.text == expected
    assert {name: document["counts"][name] for name in built.counts} == built.counts
    assert built.summary["exit_code"] == 1
    assert repr(built).startswith(f"BuildResult: {expected}"[:100])
    assert escape(expected) in built._repr_html_()
    if fault != "unread entry":
        assert f"next: kafka-index dump {log}" in result.stdout

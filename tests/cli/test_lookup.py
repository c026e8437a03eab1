from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import (
    COMMAND,
    DUMP,
    copy_partitions,
    environment,
    files_below,
    lookup,
    run_program,
)

from .query_files import answer_columns, queries, read_answers, write_queries

TOPIC = "orders.eu-west"
#: One of each status that sound logs give.
OFFSETS = queries(
    "offset",
    [
        (TOPIC, 0, 500),
        ("shipments.tracking", 0, 1499),
        (TOPIC, 0, 1463),
        (TOPIC, 0, 1464),
        ("nobody", 0, 1),
        (TOPIC, 7, 1),
        (TOPIC, 0, None),
        (TOPIC, 0, -1),
        (None, 0, 1),
    ],
)
STATUSES = ["found", "before_log_start", "log_end", "after_log_end"]
STATUSES += ["unknown_partition"] * 2 + ["invalid_query"] * 3
TIMES = queries("timestamp", [(TOPIC, 0, -1), (TOPIC, 1, -2), (TOPIC, 2, -3), (TOPIC, 0, 2**60)])


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    return write_queries(tmp_path / "offsets.parquet", OFFSETS)


@pytest.fixture
def times(tmp_path: Path) -> Path:
    return write_queries(tmp_path / "times.parquet", TIMES)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A partition without its indexes."""
    return copy_partitions(tmp_path / "data", f"{TOPIC}-0")


def damage(log: Path, position: int) -> None:
    content = bytearray(log.read_bytes())
    content[position] ^= 0xFF
    log.write_bytes(content)


def last_log(data: Path) -> Path:
    return max(data.glob("*/*.log"))


# ------------------------------------------------------------------------------------ answers


def test_lookup_writes_one_answer_per_query(offsets: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.parquet"
    result = lookup("--logs", DUMP, "--queries", offsets, "--by", "offset", "--output", out)
    assert result.returncode == 0, result.stderr
    rows = read_answers(out)
    assert [row["id"] for row in rows] == list(range(len(STATUSES)))
    assert [row["status"] for row in rows] == STATUSES
    for status in set(STATUSES):
        assert f"{status} " in result.stdout
    assert "9 queries: 1 found, " in result.stdout
    assert str(out) in result.stdout


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "ndjson"])
def test_answers_are_equal_in_all_formats(ending: str, offsets: Path, tmp_path: Path) -> None:
    queries_path = write_queries(tmp_path / f"offsets.{ending}", OFFSETS)
    for path in (offsets, queries_path):
        out = tmp_path / f"answers{path.suffix}"
        common = ("--logs", DUMP, "--by", "offset", "--resolve", "record")
        result = lookup(*common, "--queries", path, "--output", out)
        assert result.returncode == 0, result.stderr
    expected = answer_columns(read_answers(tmp_path / "answers.parquet"))
    assert answer_columns(read_answers(tmp_path / f"answers.{ending}")) == expected


def test_answers_of_text_queries_can_be_parquet(tmp_path: Path) -> None:
    queries_path = write_queries(tmp_path / "offsets.csv", OFFSETS)
    common = ("--logs", DUMP, "--queries", queries_path, "--by", "offset")
    for name in ("same.csv", "other.parquet"):
        result = lookup(*common, "--output", tmp_path / name)
        assert result.returncode == 0, result.stderr
    same, other = (read_answers(tmp_path / name) for name in ("same.csv", "other.parquet"))
    assert [row["status"] for row in other] == [row["status"] for row in same]


def test_answer_folder_has_one_file_per_query_file(tmp_path: Path) -> None:
    for number in range(2):
        write_queries(tmp_path / f"{number}.parquet", OFFSETS)
    out = tmp_path / "answers"
    glob = tmp_path / "*.parquet"
    result = lookup("--logs", DUMP, "--queries", glob, "--by", "offset", "--output", out)
    assert result.returncode == 0, result.stderr
    assert len(list(out.glob("part-*.parquet"))) == 2
    assert pq.read_table(out).num_rows == 2 * OFFSETS.num_rows


@pytest.mark.parametrize(
    ("by", "resolve", "filled"),
    [
        ("offset", None, "batch_base_offset"),
        ("timestamp", None, "found_offset"),
        ("offset", "index", "entry_offset"),
        ("timestamp", "batch", "batch_base_offset"),
        ("offset", "record", "found_offset"),
    ],
)
def test_lookup_level_defaults_to_batch_for_query_files(
    by: str, resolve: str | None, filled: str, tmp_path: Path
) -> None:
    levels = ["entry_offset", "batch_base_offset", "found_offset"]
    queries_path = write_queries(tmp_path / "one.parquet", queries(by, [(TOPIC, 0, 600)]))
    common = (
        "--logs",
        DUMP,
        "--queries",
        queries_path,
        "--by",
        by,
        "--output",
        tmp_path / "out.parquet",
    )
    assert lookup(*common, *(("--resolve", resolve) if resolve else ())).returncode == 0
    (row,) = read_answers(tmp_path / "out.parquet")
    given = [name for name in levels if row[name] is not None]
    assert given == levels[: levels.index(filled) + 1]


def test_lookup_reads_indexes_from_another_folder(
    data: Path, offsets: Path, tmp_path: Path
) -> None:
    common = ("--queries", offsets, "--by", "offset", "--output")
    result = lookup("--logs", data, "--indexes", DUMP, *common, tmp_path / "a.parquet")
    assert result.returncode == 0, result.stderr
    assert "without index files" not in result.stdout
    assert lookup("--logs", data, *common, tmp_path / "b.parquet").returncode == 0
    assert read_answers(tmp_path / "a.parquet") == read_answers(tmp_path / "b.parquet")


def test_topic_pattern_must_match_the_full_name(offsets: Path, tmp_path: Path) -> None:
    common = ("--logs", DUMP, "--queries", offsets, "--by", "offset", "--output")
    result = lookup(*common, tmp_path / "a.parquet", "--topics", "shipments.*")
    assert result.returncode == 0, result.stderr
    statuses = [row["status"] for row in read_answers(tmp_path / "a.parquet")]
    assert statuses[:4] == ["unknown_partition", "before_log_start", *["unknown_partition"] * 2]
    assert lookup(*common, tmp_path / "b.parquet", "--topics", "shipments").returncode == 2


def test_lookup_can_end_at_the_high_watermark(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", f"{TOPIC}-0")
    checkpoint = data / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{TOPIC} 0 1000\n")
    queries_path = write_queries(tmp_path / "q.parquet", queries("timestamp", [(TOPIC, 0, -1)]))
    common = ("--logs", data, "--queries", queries_path, "--by", "timestamp", "--output")
    ends = {}
    for bound in ("log-end", "high-watermark"):
        out = tmp_path / f"{bound}.parquet"
        result = lookup(*common, out, "--upper-bound", bound)
        assert result.returncode == 0, result.stderr
        ends[bound] = read_answers(out)[0]["found_offset"]
    assert ends == {"log-end": 1463, "high-watermark": 1000}


# ---------------------------------------------------------------------------- what is reported


def test_segments_without_indexes_are_reported_once(data: Path, tmp_path: Path) -> None:
    rows = [(TOPIC, 0, offset) for offset in range(0, 1400, 7)]
    queries_path = write_queries(tmp_path / "q.csv", queries("offset", rows))
    common = ("--logs", data, "--queries", queries_path, "--by", "offset", "--output")
    result = lookup(*common, tmp_path / "a.csv")
    assert result.returncode == 0
    assert "4 segments without index files (built in memory)" in result.stdout
    verbose = lookup(*common, tmp_path / "b.csv", "--verbose")
    assert verbose.stdout.count(".index: ") == 4


def test_index_that_contradicts_its_log_is_reported_and_not_used(
    data: Path, offsets: Path, tmp_path: Path
) -> None:
    indexes = tmp_path / "indexes"
    build = ("--input", data, "--output", indexes)
    subprocess.run([*COMMAND, "build", *build], check=True, env=environment(), capture_output=True)
    common = ("--logs", data, "--queries", offsets, "--by", "offset", "--output")
    assert lookup(*common, tmp_path / "a.parquet", "--indexes", indexes).returncode == 0
    wrong = sorted(indexes.glob("*/*.index"))[1]
    wrong.write_bytes(wrong.read_bytes()[:-3])

    result = lookup(*common, tmp_path / "b.parquet", "--indexes", indexes)

    assert result.returncode == 0
    assert "1 index file that does not match its log" in result.stdout
    assert str(wrong) in result.stdout
    assert read_answers(tmp_path / "a.parquet") == read_answers(tmp_path / "b.parquet")


def test_damage_is_reported_as_status_finding_and_exit_code(data: Path, tmp_path: Path) -> None:
    log = sorted(data.glob("*/*.log"))[1]
    damage(log, log.stat().st_size // 2)
    rows = [(TOPIC, 0, offset) for offset in range(479, 900)] + [(TOPIC, 0, 0), (TOPIC, 0, 1400)]
    queries_path = write_queries(tmp_path / "q.csv", queries("offset", rows))
    report = tmp_path / "report.json"
    common = ("--logs", data, "--queries", queries_path, "--by", "offset", "--resolve", "record")

    result = lookup(*common, "--output", tmp_path / "a.csv", "--report", report)

    assert result.returncode == 1
    assert result.stderr == ""
    answers = read_answers(tmp_path / "a.csv")
    unread = [row for row in answers if row["status"] == "unreadable"]
    assert 0 < len(unread) < len(rows)
    assert [row["status"] for row in answers[-2:]] == ["found", "found"]
    assert f"{len(unread)} queries not answered because of corruption" in result.stdout
    reported = [json.loads(line) for line in report.read_text().splitlines()]
    assert {row["path"] for row in reported if row["reason_code"] == "unreadable"} == {str(log)}
    assert sum(row["queries"] for row in reported if row["status"]) == len(rows)


def test_torn_tail_is_reported_and_is_not_damage(data: Path, offsets: Path, tmp_path: Path) -> None:
    log = last_log(data)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)
    common = ("--logs", data, "--queries", offsets, "--by", "offset")
    result = lookup(*common, "--output", tmp_path / "a.parquet")
    assert result.returncode == 0
    assert "1 log that ends before the end of the file" in result.stdout
    assert log.name in result.stdout


def test_quiet_run_prints_only_problems(data: Path, offsets: Path, tmp_path: Path) -> None:
    common = ("--logs", data, "--queries", offsets, "--by", "offset", "--quiet", "--output")
    good = lookup(*common, tmp_path / "a.parquet")
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    damage(min(data.glob("*/*.log")), 8)
    queries_path = write_queries(tmp_path / "q.parquet", queries("offset", [(TOPIC, 0, 1)]))
    common = ("--logs", data, "--queries", queries_path, "--by", "offset", "--quiet", "--output")
    bad = lookup(*common, tmp_path / "b.parquet")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "1 query not answered because of corruption" in bad.stderr


def test_report_counts_queries_by_partition_and_status(offsets: Path, tmp_path: Path) -> None:
    tables = {}
    for ending in ("parquet", "json", "csv"):
        report = tmp_path / f"report.{ending}"
        common = ("--logs", DUMP, "--queries", offsets, "--by", "offset", "--overwrite")
        assert lookup(*common, "--output", tmp_path / "out", "--report", report).returncode == 0
        tables[ending] = read_answers(report)
    assert tables["parquet"] == tables["json"] == tables["csv"]
    counts = {(row["topic"], row["partition"], row["status"]) for row in tables["csv"]}
    assert (TOPIC, 0, "log_end") in counts
    assert (None, 0, "invalid_query") in counts
    assert not list(tmp_path.glob(".*.tmp"))


# ------------------------------------------------------------------------- starting offsets


def test_answers_can_be_written_as_starting_offsets(tmp_path: Path) -> None:
    rows = [(TOPIC, 0, -2), (TOPIC, 1, -1), ("shipments.tracking", 0, -2)]
    queries_path = write_queries(tmp_path / "q.csv", queries("timestamp", rows))
    starts, resets = tmp_path / "starts.json", tmp_path / "resets.csv"
    common = ("--logs", DUMP, "--queries", queries_path, "--by", "timestamp")
    where = ("--starting-offsets", starts, "--reset-offsets", resets)
    result = lookup(*common, "--output", tmp_path / "a.csv", *where)
    assert result.returncode == 0, result.stderr
    assert json.loads(starts.read_text()) == {
        TOPIC: {"0": 0, "1": 1458},
        "shipments.tracking": {"0": 1500},
    }
    assert resets.read_text().splitlines() == [
        f"{TOPIC},0,0",
        f"{TOPIC},1,1458",
        "shipments.tracking,0,1500",
    ]


def test_starting_offsets_with_two_queries_of_one_partition_are_rejected(tmp_path: Path) -> None:
    rows = [(TOPIC, 0, -2), (TOPIC, 0, -1)]
    queries_path = write_queries(tmp_path / "q.csv", queries("timestamp", rows))
    starts = tmp_path / "starts.json"
    common = ("--logs", DUMP, "--queries", queries_path, "--by", "timestamp", "--output")
    result = lookup(*common, tmp_path / "a.csv", "--starting-offsets", starts)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "a.csv").exists()
    assert not starts.exists()


# ------------------------------------------------------------------------------------- usage


def test_existing_output_is_replaced_only_on_request(
    offsets: Path, times: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = ("--logs", DUMP, "--queries", offsets, "--by", "offset", "--output", out)
    assert lookup(*first).returncode == 0
    second = ("--logs", DUMP, "--queries", times, "--by", "timestamp", "--output", out)
    refused = lookup(*second)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--overwrite" in refused.stderr
    assert pq.read_table(out).num_rows == OFFSETS.num_rows
    assert lookup(*second, "--overwrite").returncode == 0
    assert pq.read_table(out).num_rows == TIMES.num_rows


WRITES = ["--queries", "{offsets}", "--by", "offset", "--output", "{out}"]
LOGS = ["--logs", "{logs}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --input"),
        (LOGS, "give --queries PATH, --topic or --topics"),
        ([*LOGS, *WRITES[:4]], "give --output"),
        ([*LOGS, *WRITES[:2], *WRITES[4:]], "give --by"),
        ([*LOGS, *WRITES, "--json"], "--json applies only to a single query"),
        ([*LOGS, *WRITES, "--timestamp", "0"], "--at applies only to a single query"),
        ([*LOGS, *WRITES, "--topic", "x"], "--topic applies only to a single query"),
        ([*LOGS, *WRITES, "--partition", "0"], "--partition applies only to a single query"),
        ([*LOGS, *WRITES, "--quiet", "--verbose"], "mutually exclusive"),
        ([*LOGS, *WRITES, "--master", "local"], "--engine spark"),
        ([*LOGS, *WRITES, "--report", "x.xml"], ".parquet"),
        ([*LOGS, *WRITES, "--report", "{out}/r.csv"], "is inside another output of this run"),
        ([*LOGS, *WRITES, "--starting-offsets", "{out}"], "is inside another output of this run"),
        ([*LOGS, *WRITES, "--starting-offsets", "{folder}"], "a folder"),
        ([*LOGS, *WRITES, "--resolve", "segment"], "segment"),
        ([*LOGS, *WRITES[:2], *WRITES[4:], "--by", "timestamp"], "--by offset"),
        ([*LOGS, *WRITES, "--indexes", "{folder}/none"], "index files"),
        ([*LOGS, *WRITES[:4], "--output", "{logs}/x"], "inside the input"),
        ([*LOGS, *WRITES[:4], "--output", "x.csv"], "format of the queries"),
        (["--logs", "{folder}/none", *WRITES], "{folder}/none"),
        (["--logs", "{empty}", *WRITES], "no segments found"),
        ([*LOGS, "--queries", "{empty}", *WRITES[2:]], "no query files found"),
        ([*LOGS, "--queries", "{folder}/*.txt", *WRITES[2:]], "no path matches"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, offsets: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"logs": DUMP, "out": tmp_path / "out", "offsets": offsets, "empty": empty}
    places["folder"] = tmp_path
    before = list(files_below(tmp_path))
    result = lookup(*(argument.format(**places) for argument in arguments))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert message.format(**places) in result.stderr
    assert list(files_below(tmp_path)) == before


def test_file_that_cannot_be_written_is_rejected_before_the_work(
    offsets: Path, tmp_path: Path
) -> None:
    common = ("--logs", DUMP, "--queries", offsets, "--by", "offset", "--output", tmp_path / "out")
    for option in ("--report", "--starting-offsets", "--reset-offsets"):
        result = lookup(*common, option, tmp_path / "missing" / "file.csv")
        assert result.returncode == 3
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_malformed_query_found_during_the_run_leaves_no_output(
    offsets: Path, tmp_path: Path
) -> None:
    queries_path = tmp_path / "q.csv"
    queries_path.write_text("topic,partition,offset\n" + f"{TOPIC},0,1\n" * 3 + f'{TOPIC},"0,1\n')
    out = tmp_path / "out.csv"
    result = lookup("--logs", DUMP, "--queries", queries_path, "--by", "offset", "--output", out)
    assert result.returncode == 2
    assert str(queries_path) in result.stderr
    assert sorted(files_below(tmp_path)) == [offsets.name, queries_path.name]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_empty_query_file_is_no_input(form: str, tmp_path: Path) -> None:
    queries_path = write_queries(tmp_path / f"q.{form}", OFFSETS.slice(0, 0))
    report = tmp_path / "report.csv"
    common = ("--logs", DUMP, "--queries", queries_path, "--by", "offset", "--report", report)
    result = lookup(*common, "--output", tmp_path / "out")
    assert (result.returncode, result.stdout) == (2, "")
    assert "the files contain no queries" in result.stderr
    assert list(files_below(tmp_path)) == [queries_path.name]


def test_local_engine_starts_no_spark(offsets: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from kafka_index.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(code or 'pyspark' in sys.modules)"
    )
    options = ("--queries", offsets, "--by", "offset", "--output", tmp_path / "out")
    result = run_program(COMMAND[0], "-c", program, "lookup", "--logs", DUMP, *options)
    assert result.returncode == 0, result.stderr


def test_timestamp_column_keeps_its_unit(tmp_path: Path) -> None:
    stamps = pa.array([-1, None, 1795228800000], pa.timestamp("ms", "UTC"))
    table = queries("timestamp", [(TOPIC, 0, 0)] * 3)
    table = table.set_column(3, "timestamp", stamps)
    queries_path = write_queries(tmp_path / "q.parquet", table)
    out = tmp_path / "out.parquet"
    result = lookup("--logs", DUMP, "--queries", queries_path, "--by", "timestamp", "--output", out)
    assert result.returncode == 0, result.stderr
    rows = read_answers(out)
    assert [row["status"] for row in rows] == ["invalid_query", "invalid_query", "found"]
    assert rows[2]["found_timestamp_ms"] >= 1795228800000


# ------------------------------------------------------------------- what is never written over


@pytest.mark.parametrize("option", ["--report", "--starting-offsets", "--reset-offsets"])
def test_output_equal_to_the_query_file_is_rejected(option: str, tmp_path: Path) -> None:
    queries_path = tmp_path / "queries.csv"
    queries_path.write_text("topic,partition,offset\npage-views,0,5\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for path in (queries_path, link / "queries.csv", f"file://{queries_path}"):
        result = lookup("--logs", DUMP, "--queries", queries_path, "--by", "offset",
                      "--output", tmp_path / "answers.csv", option, path)  # fmt: skip
        assert result.returncode == 2
        assert queries_path.read_text() == "topic,partition,offset\npage-views,0,5\n"
    assert not (tmp_path / "answers.csv").exists()


def test_output_within_the_input_is_rejected(data: Path, tmp_path: Path) -> None:
    queries_path = tmp_path / "queries.csv"
    queries_path.write_text("topic,partition,offset\npage-views,0,5\n")
    epochs = data / "page-views-0" / "leader-epoch-checkpoint"
    result = lookup("--logs", data, "--queries", queries_path, "--by", "offset",
                  "--output", tmp_path / "answers.csv", "--starting-offsets", epochs)  # fmt: skip
    assert result.returncode == 2


def test_output_and_report_of_the_same_path_are_rejected(tmp_path: Path) -> None:
    asked, both = tmp_path / "queries.csv", tmp_path / "both"
    asked.write_text("topic,partition,offset\npage-views,0,5\n")
    result = lookup("--logs", DUMP, "--queries", asked, "--by", "offset",
                  "--output", tmp_path / "answers.csv",
                  "--starting-offsets", both, "--reset-offsets", both)  # fmt: skip
    assert result.returncode == 2
    assert not both.exists()


def test_named_pipe_is_not_a_file_of_queries(tmp_path: Path) -> None:
    folder = tmp_path / "queries"
    folder.mkdir()
    os.mkfifo(folder / "a.csv")
    result = lookup("--logs", DUMP, "--queries", folder, "--by", "offset",
                  "--output", tmp_path / "answers.csv")  # fmt: skip
    assert result.returncode == 2
    assert "not a regular file" in result.stderr


def test_integer_of_thousands_of_digits_is_an_invalid_query(tmp_path: Path) -> None:
    queries_path = tmp_path / "queries.csv"
    queries_path.write_text(f"topic,partition,offset\npage-views,0,{'9' * 5000}\npage-views,0,5\n")
    out = tmp_path / "answers.csv"
    result = lookup("--logs", DUMP, "--queries", queries_path, "--by", "offset", "--output", out)
    assert result.returncode == 0, result.stderr
    assert [row["status"] for row in read_answers(out)] == ["invalid_query", "found"]


def test_logs_option_accepts_several_paths(tmp_path: Path) -> None:
    one, two = (copy_partitions(tmp_path / name, f"{TOPIC}-{name}") for name in ("0", "1"))
    queries_path = write_queries(
        tmp_path / "q.csv", queries("offset", [(TOPIC, 0, 5), (TOPIC, 1, 5)])
    )
    out = tmp_path / "out.csv"
    result = lookup(
        "--logs", one, two, "--queries", queries_path, "--by", "offset", "--output", out
    )
    assert result.returncode == 0
    assert [row["status"] for row in read_answers(out)] == ["found", "found"]

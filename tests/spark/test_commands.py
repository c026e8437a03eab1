"""Commands on Spark: what their tasks are told is what threads are told."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kafka_index
from tests.servers.s3 import S3Server
from tests.support.command_line import (
    DUMP,
    SETTINGS,
    Argument,
    build_here,
    index_files,
    lookup,
    run_here,
)
from tests.support.damaged_dumps import damage_middle, remove_segment, write_dump
from tests.support.remote import download, storage_options, upload
from tests.support.restoring import contents, copy_dump, damage, logs
from tests.support.tiered import ENCRYPTED, setting

_DROPPING = "--drop-where offset<100 --allow-revive"
ON_SPARK = ("--engine", "spark", "--master", "local[2]")
#: Reasons of bad queries, by row.
REASONS = [
    (2, "topic is missing"),
    (3, "partition 'x' is not an integer"),
    (4, "offset -4 is negative"),
]

pytestmark = pytest.mark.usefixtures("in_session")


@pytest.mark.parametrize("damage", [remove_segment, damage_middle])
@pytest.mark.parametrize("command", ["find", "export", "stats"])
def test_damage_ends_a_spark_command_with_exit_code_1(
    tmp_path: Path, command: str, damage: Callable[[Path], None]
) -> None:
    write_dump(tmp_path / "data")
    damage(tmp_path / "data")
    summary = tmp_path / "summary.json"
    given: dict[str, tuple[Argument, ...]] = {
        "find": ("--key", "absent"),
        "export": ("--output", tmp_path / "out"),
        "stats": ("--sizes",),
    }
    common = ("--input", tmp_path / "data", "--summary", summary, *ON_SPARK)

    result = run_here(command, *given[command], *common)

    assert result.returncode == 1, result.stderr
    missing = json.loads(summary.read_text())["missing_offsets"]
    assert missing["count"] == int(damage is remove_segment)


def test_statistics_on_spark_equal_those_of_threads(tmp_path: Path) -> None:
    report = tmp_path / "report.parquet"
    arguments = ("--by", "partition", "--sizes", "--keys", "3", "--compact")

    result = run_here("stats", "--input", DUMP, *arguments, "--report", report, *ON_SPARK)

    assert result.returncode == 0, result.stderr
    local = kafka_index.read_stats(DUMP, by="partition", sizes=True, keys=3, compact=True)
    assert pq.read_table(report).to_pylist() == local.to_arrow().to_pylist()


@pytest.mark.parametrize("command", ["build", "verify"])
def test_link_out_of_the_dump_is_followed_on_request(command: str, tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0", "payments-1")
    path, target = dump / "payments-0" / "leader-epoch-checkpoint", tmp_path / "elsewhere"
    shutil.move(path, target)
    path.symlink_to(target)
    report = tmp_path / "report.parquet"
    given: list[Argument] = ["--input", dump, "--report", report, *ON_SPARK]
    given += ["--output", tmp_path / "out"] if command == "build" else []

    result = run_here(command, *given)

    assert result.returncode == 1
    assert f"{path} -> {target}" in result.stdout + result.stderr
    assert [row for row in pq.read_table(report).to_pylist() if str(target) in str(row)]
    followed = run_here(command, *given, "--follow-links")
    assert followed.returncode == 0, followed.stderr


#: Commands, a pattern that a row of the report has, and how many files they write at least.
COMMANDS: dict[str, tuple[str, str, int]] = {
    "verify": ("verify --input DUMP", '"class":"bad_crc"', 1),
    "restore": ("restore --input DUMP --output OUT/data", '"status":"lost"', 80),
    "restore without keys": (
        "restore --input DUMP --output OUT/data --drop-keys KEYS",
        '"dropped":[1-9]',
        80,
    ),
    "rewrite": (f"rewrite --input {DUMP} --output OUT/data {_DROPPING}", '"dropped":100', 300),
    "rewrite remote": (
        f"rewrite REMOTE --output OUT/data --topics cut_front|wallet_tx {_DROPPING}",
        '"dropped":[1-9]',
        40,
    ),
}


def remote_segments() -> list[Argument]:
    at = setting(ENCRYPTED)
    keys = [word for name, path in at.keys for word in ("--tiered-key", f"{name}={path}")]
    return ["--input", at.data, "--tiered", at.remote, *keys]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_on_spark_equals_the_local_engine(name: str, tmp_path: Path) -> None:
    line, shown, least = COMMANDS[name]
    data, keys, out = tmp_path / "dump", tmp_path / "keys", tmp_path / "out"
    copy_dump(data, "payments-0", "audit.trail-0", "shipments.tracking-0", "customer-profiles-0")
    damage(logs(data / "audit.trail-0")[1])
    keys.write_text("".join(f"key-{number}\n" for number in range(10_000, 12_000, 3)))
    given: list[Argument] = []
    for word in line.split():
        path = word.replace("OUT", str(out)).replace("KEYS", str(keys))
        given += remote_segments() if word == "REMOTE" else [data if word == "DUMP" else path]

    def run(*engine: str) -> tuple[int, dict[str, bytes], list[str]]:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        result = run_here(*map(str, given), "--report", out / "report.json", *engine)
        assert result.returncode in (0, 1), result.stderr
        files = contents(out)
        return result.returncode, files, sorted(files.pop("report.json").decode().splitlines())

    here, there = run(), run(*ON_SPARK)

    assert there == here
    assert any(re.search(shown, row) for row in here[2])
    assert len(here[1]) + 1 >= least


def test_remote_segments_are_built_as_by_the_local_engine(tmp_path: Path) -> None:
    arguments = [*remote_segments(), "--index-interval-bytes", 1000, "--topics", "wallet_tx|log_gz"]
    for name, engine in (("threads", ()), ("spark", ON_SPARK)):
        result = build_here(*arguments, "--output", tmp_path / name, *engine)
        assert result.returncode == 0, result.stderr
    assert index_files(tmp_path / "spark") == index_files(tmp_path / "threads")


def test_build_from_and_into_a_bucket_equals_the_local_engine(
    s3: S3Server, configured_bucket: str, tmp_path: Path
) -> None:
    data = copy_dump(tmp_path / "data", "payments-0", "orders.eu-west-0", "__consumer_offsets-0")
    result = build_here("--input", data, "--output", tmp_path / "out", "--config", SETTINGS)
    assert result.returncode == 0, result.stderr
    options = [f"--storage-option={option}" for option in storage_options(s3, tmp_path)]
    result = build_here(
        *("--input", upload(data, f"{configured_bucket}/dump"), "--config", SETTINGS),
        *("--output", f"{configured_bucket}/out", *ON_SPARK, *options),
    )
    assert result.returncode == 0, result.stderr
    found, expected = (
        {name: data for name, data in files.items() if ".kafka-index" not in name}
        for files in (download(f"{configured_bucket}/out"), contents(tmp_path / "out"))
    )
    assert found == expected
    assert not [name for name in download(f"{configured_bucket}/out") if name[0] == "."]


def test_bad_queries_are_reported_with_row_and_reason(tmp_path: Path) -> None:
    asked, report = tmp_path / "queries.csv", tmp_path / "report.json"
    rows = ["payments,0,5", ",0,7", "payments,x,9", "payments,0,-4"]
    asked.write_text("\n".join(["topic,partition,offset", *rows, ""]))
    result = lookup(
        *("--logs", DUMP, "--by", "offset", "--queries", asked, "--output", tmp_path / "a.csv"),
        *("--report", report, *ON_SPARK),
    )
    assert result.returncode == 0, result.stderr
    assert "3 malformed queries:" in result.stdout
    assert all(f"row {row}: {reason}" in result.stdout for row, reason in REASONS)
    actual = map(json.loads, report.read_text().splitlines())
    assert [
        (row["row"], row["reason"]) for row in actual if row["reason_code"] == "invalid_query"
    ] == REASONS


@pytest.mark.parametrize("engine", [(), ON_SPARK], ids=["threads", "spark"])
def test_layout_is_imported_with_its_properties(tmp_path: Path, engine: tuple[str, ...]) -> None:
    (tmp_path / "in").mkdir()
    for first, lines in ((0, '"a"\n"b"\n'), (2, '"c"\n')):
        (tmp_path / "in" / f"t+0+{first}.json").write_text(lines)
    layout = ("--layout", "confluent-s3", "--layout-property", "value.converter=string")
    places = ("--input", tmp_path / "in", "--output", tmp_path / "logs")
    result = run_here("import", *places, *layout, *engine)
    assert result.returncode == 0, result.stderr
    actual = kafka_index.read_records(tmp_path / "logs").read_all().to_pylist()
    assert [(row["offset"], row["value"]) for row in actual] == [(0, b"a"), (1, b"b"), (2, b"c")]

"""Commands on Spark: what their tasks are told is what threads are told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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
from tests.support.remote import download, storage_options, upload
from tests.support.restoring import contents, copy_dump
from tests.support.tiered import ENCRYPTED, setting

ON_SPARK = ("--engine", "spark", "--master", "local[2]")
#: Reasons of bad queries, by row.
REASONS = [
    (2, "no topic"),
    (3, "partition 'x' is not an integer"),
    (4, "offset -4 is negative"),
]

pytestmark = pytest.mark.usefixtures("in_session")


@pytest.mark.parametrize("command", ["build", "verify"])
def test_a_link_out_of_the_dump_is_followed_where_that_is_asked_for(
    command: str, tmp_path: Path
) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0", "payments-1")
    path, target = dump / "payments-0" / "leader-epoch-checkpoint", tmp_path / "elsewhere"
    shutil.move(path, target)
    path.symlink_to(target)
    report = tmp_path / "report.parquet"
    given: list[Argument] = ["--input", dump, "--report", report, *ON_SPARK]
    given += ["--output", tmp_path / "out"] if command == "build" else []

    done = run_here(command, *given)

    assert done.returncode == 1
    assert f"{path} -> {target}" in done.stderr
    assert [row for row in pq.read_table(report).to_pylist() if str(target) in str(row)]
    followed = run_here(command, *given, "--follow-links")
    assert followed.returncode == 0, followed.stderr


def test_remote_segments_are_built_as_on_threads(tmp_path: Path) -> None:
    at = setting(ENCRYPTED)
    keys = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    given: list[Argument] = ["--input", at.data, "--tiered", at.remote, *keys]
    given += ["--index-interval-bytes", 1000, "--topics", "wallet_tx|log_gz|turnover"]
    for name, engine in (("threads", ()), ("spark", ON_SPARK)):
        done = build_here(*given, "--output", tmp_path / name, *engine)
        assert done.returncode == 0, done.stderr
    assert index_files(tmp_path / "spark") == index_files(tmp_path / "threads")


def test_a_build_from_and_into_a_bucket_publishes_what_threads_do(
    s3: S3Server, configured_bucket: str, tmp_path: Path
) -> None:
    data = copy_dump(tmp_path / "data", "payments-0", "orders.eu-west-0", "__consumer_offsets-0")
    done = build_here("--input", data, "--output", tmp_path / "out", "--config", SETTINGS)
    assert done.returncode == 0, done.stderr
    options = [f"--storage-option={each}" for each in storage_options(s3, tmp_path)]
    done = build_here(
        *("--input", upload(data, f"{configured_bucket}/dump"), "--config", SETTINGS),
        *("--output", f"{configured_bucket}/out", *ON_SPARK, *options),
    )
    assert done.returncode == 0, done.stderr
    found, expected = (
        {name: data for name, data in files.items() if ".kafka-index" not in name}
        for files in (download(f"{configured_bucket}/out"), contents(tmp_path / "out"))
    )
    assert found == expected
    assert not [name for name in download(f"{configured_bucket}/out") if name[0] == "."]


def test_bad_queries_are_named_by_row_and_reason(tmp_path: Path) -> None:
    asked, report = tmp_path / "queries.csv", tmp_path / "report.json"
    rows = ["payments,0,5", ",0,7", "payments,x,9", "payments,0,-4"]
    asked.write_text("\n".join(["topic,partition,offset", *rows, ""]))
    done = lookup(
        *("--logs", DUMP, "--by", "offset", "--queries", asked, "--output", tmp_path / "a.csv"),
        *("--report", report, *ON_SPARK),
    )
    assert done.returncode == 0, done.stderr
    assert "3 malformed queries:" in done.stdout
    assert all(f"row {row}: {reason}" in done.stdout for row, reason in REASONS)
    found = map(json.loads, report.read_text().splitlines())
    assert [
        (row["row"], row["reason"]) for row in found if row["reason_code"] == "invalid_query"
    ] == REASONS

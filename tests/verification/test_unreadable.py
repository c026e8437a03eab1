"""An unreadable file is a row of its own, and leaves the rows of all other files as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index.cli.run_end import ExitCode
from kafka_index.verification import FileClass, FileKind
from tests.support.builds import finish, start
from tests.support.child_processes import open_to_all
from tests.support.gates import Gate, Step
from tests.support.restoring import copy_dump

PARTITION = "app-logs-0"
Row = dict[str, object]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a broker that stopped cleanly, with one partition."""
    return copy_dump(tmp_path / "data", PARTITION)


def verified(data: Path, tmp_path: Path) -> tuple[int, str, list[Row]]:
    """Verify without privileges; return the exit code, what is printed, and the report."""
    open_to_all(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    report = out / "report.parquet"
    arguments = ("--input", data, "--report", report)
    done = finish(start(*arguments, command_name="verify", privileged=False))
    assert report.exists(), done.stderr
    return done.returncode, done.stdout, pq.read_table(report).to_pylist()


def of_kind(rows: list[Row], kind: FileKind) -> list[Row]:
    return [row for row in rows if row["kind"] == kind.value]


@pytest.mark.parametrize(("number", "logs_only"), [(0, True), (1, True), (1, False), (-1, False)])
def test_a_log_that_may_not_be_read_is_worth_a_retry_and_no_damage(
    data: Path, tmp_path: Path, number: int, *, logs_only: bool
) -> None:
    if logs_only:
        for path in (data / PARTITION).iterdir():
            if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                path.unlink()
    log = sorted((data / PARTITION).glob("*.log"))[number]
    log.chmod(0)

    code, printed, rows = verified(data, tmp_path)

    assert code == ExitCode.ENVIRONMENT, printed
    assert [row["path"] for row in rows if row["harmful"]] == []
    unread = [row["path"] for row in of_kind(rows, FileKind.LOG) if row["retriable"]]
    assert unread == [str(log)]
    (partition,) = of_kind(rows, FileKind.PARTITION)
    assert (partition["class"], partition["retriable"]) == (FileClass.UNREADABLE, True)
    assert f"{log.name}: log: unreadable" in printed


def test_files_that_may_not_be_read_are_rows_and_the_run_continues(
    data: Path, tmp_path: Path
) -> None:
    log = max((data / PARTITION).glob("*.log"))
    paths = [log.with_suffix(each) for each in (".index", ".timeindex", ".txnindex", ".snapshot")]
    for path in paths:
        path.touch()
        path.chmod(0)

    code, printed, rows = verified(data, tmp_path)

    assert code == ExitCode.ENVIRONMENT, printed
    found = {row["path"]: (row["class"], row["harmful"], row["retriable"]) for row in rows}
    assert [found[str(path)] for path in paths] == [(FileClass.UNREADABLE, False, True)] * 4
    assert of_kind(rows, FileKind.PARTITION)


def test_directories_in_the_place_of_indexes_are_damage_and_the_run_continues(
    data: Path, tmp_path: Path
) -> None:
    log = min((data / PARTITION).glob("*.log"))
    paths = [log.with_suffix(each) for each in (".index", ".timeindex", ".txnindex")]
    for path in paths:
        path.unlink(missing_ok=True)
        path.mkdir()

    code, printed, rows = verified(data, tmp_path)

    assert code == ExitCode.DAMAGE, printed
    found = {(row["path"], row["class"], row["harmful"]) for row in rows}
    assert {(str(path), FileClass.UNREADABLE, True) for path in paths} <= found
    assert of_kind(rows, FileKind.PARTITION)


def test_named_pipes_in_the_place_of_indexes_are_damage_and_not_waited_for(
    data: Path, tmp_path: Path
) -> None:
    log = min((data / PARTITION).glob("*.log"))
    paths = [log.with_suffix(each) for each in (".index", ".timeindex", ".txnindex")]
    for path in paths:
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    code, printed, rows = verified(data, tmp_path)

    assert code == ExitCode.DAMAGE, printed
    assert {str(path) for path in paths} <= {row["path"] for row in rows if row["harmful"]}
    assert of_kind(rows, FileKind.PARTITION)


def test_a_snapshot_that_vanishes_is_worth_a_retry(data: Path, tmp_path: Path) -> None:
    path = max((data / PARTITION).glob("*.snapshot"))
    gate = Gate(tmp_path / "gate", Step("open", path.name, 1))
    process = start("--input", data, "--threads", 1, command_name="verify", gate=gate)
    gate.wait(process)
    path.unlink()
    gate.open()
    done = finish(process)

    assert done.returncode == ExitCode.ENVIRONMENT, done.stderr
    assert f"{path.name}: snapshot: unreadable" in done.stdout

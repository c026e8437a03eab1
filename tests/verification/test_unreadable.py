"""What cannot be read is a row of its own, and leaves the rows of all other files as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index.cli.exit_code import ExitCode
from kafka_index.verification import FileClass, FileKind
from tests.support.builds import finish, start
from tests.support.child_processes import open_to_all
from tests.support.command_line import DUMP

PARTITION = "app-logs-0"
Row = dict[str, object]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a broker that stopped cleanly, with one partition."""
    target = tmp_path / "data"
    target.mkdir()
    shutil.copytree(DUMP / PARTITION, target / PARTITION)
    for path in DUMP.iterdir():
        if path.is_file():
            shutil.copy(path, target)
    return target


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


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("logs_only", [True, False], ids=["logs-only", "with-indexes"])
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

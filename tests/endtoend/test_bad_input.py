"""Input, output and directories that cannot be used: one line that says so, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.core.output.locks import OUTPUT_LOCK
from tests.support.builds import (
    build,
    build_with_report,
    leftover_files,
    small_disk,
    state,
    state_files,
)
from tests.support.command_line import (
    DUMP,
    Argument,
    broker_files,
    build_here,
    copy_partitions,
    first_log,
    index_files,
)
from tests.support.dumps import Log, Segment, change, dump, metadata_table, raw_table

PARTITION = "orders.eu-west-0"
ONE: dict[Segment, Log] = {("t", 3, 30): dump()["orders", 0, 0][10:60]}
_Form = Callable[[dict[Segment, Log]], pa.Table]
FORMS = pytest.mark.parametrize("form", [metadata_table, raw_table])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return copy_partitions(tmp_path / "data", PARTITION)


def refused(root: Path, *arguments: Argument, code: int, privileged: bool = True) -> str:
    """Run a build that is refused as a whole; return the line it says."""
    before = state(root)
    done = build_here(*arguments) if privileged else build(*arguments, privileged=False)
    assert state(root) == before
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("kafka-index: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


# ------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("given", ["missing", "missing/*", "data/missing-0"])
def test_missing_path_is_reported(data: Path, tmp_path: Path, given: str) -> None:
    inputs = ("--input", data, "--input", tmp_path / given)
    said = refused(tmp_path, *inputs, "--output", tmp_path / "out", code=2)
    assert str(tmp_path / given) in said


def test_partition_without_logs_has_no_segments(tmp_path: Path) -> None:
    (tmp_path / "data" / "orders-0").mkdir(parents=True)
    said = refused(tmp_path, "--input", tmp_path / "data", "--in-place", code=2)
    assert "no segments found" in said
    assert "contain no .log files" in said


def test_two_copies_of_a_partition_are_rejected(data: Path, tmp_path: Path) -> None:
    other = copy_partitions(tmp_path / "replica", PARTITION)
    inputs = ("--input", data, "--input", other)
    said = refused(tmp_path, *inputs, "--output", tmp_path / "out", code=2)
    assert "the partition orders.eu-west-0 is also in" in said
    for root in (data, other):
        assert str(root / PARTITION) in said


def test_directory_without_read_permission_is_reported(data: Path, tmp_path: Path) -> None:
    (data / PARTITION).chmod(0)
    arguments = ("--input", data, "--output", tmp_path / "out")
    try:
        result = build(*arguments, privileged=False)
    finally:
        (data / PARTITION).chmod(0o755)
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert f"{data / PARTITION}: cannot read the directory: Permission denied" in result.stderr
    assert not (tmp_path / "out").exists()


def _forbid(log: Path) -> str:
    log.chmod(0)
    return "cannot open the file: Permission denied"


def _make_too_large(log: Path) -> str:
    log.unlink()
    log.touch()
    os.truncate(log, 1 << 31)
    return "the log is larger than the maximum segment size"


@pytest.mark.parametrize(("make", "code"), [(_forbid, 3), (_make_too_large, 1)])
def test_unreadable_log_is_a_row_and_other_logs_are_built(
    data: Path, tmp_path: Path, make: Callable[[Path], str], code: int
) -> None:
    log = first_log(data)
    reason = make(log)
    done, rows = build_with_report(
        partial(build, privileged=False), tmp_path, "--input", data, "--output", tmp_path / "out"
    )
    assert done.returncode == code, done.stderr
    by_status = {row["log_path"]: row["status"] for row in rows}
    assert by_status.pop(str(log)) == "failed"
    assert set(by_status.values()) == {"built"}
    assert len(by_status) == 3
    (failed,) = (row for row in rows if row["status"] == "failed")
    assert reason in failed["reason"]
    assert failed["valid_bytes"] is None
    assert failed["retriable"] is (code == 3)
    others = {
        name: content
        for name, content in broker_files(PARTITION).items()
        if not name.startswith(f"{PARTITION}/{log.stem}")
    }
    assert index_files(tmp_path / "out") == others
    assert leftover_files(tmp_path) == []


def test_damage_and_a_log_without_read_permission_are_retriable(data: Path, tmp_path: Path) -> None:
    copy_partitions(data, "app-logs-0")
    os.truncate(min((data / "app-logs-0").glob("*.log")), 1000)
    min((data / PARTITION).glob("*.log")).chmod(0)
    done, rows = build_with_report(
        partial(build, privileged=False), tmp_path, "--input", data, "--output", tmp_path / "out"
    )
    assert done.returncode == 3, done.stderr
    assert {(row["status"], row["retriable"]) for row in rows} == {
        ("built", False),
        ("truncated", False),
        ("failed", True),
    }


def test_special_file_named_like_a_log_is_skipped_and_reported(data: Path, tmp_path: Path) -> None:
    folder, link = (data / PARTITION / f"{number:020d}.log" for number in (7, 8))
    folder.mkdir()
    link.symlink_to("nowhere")
    result = build_here("--input", data, "--output", tmp_path / "out")
    assert result.returncode == 1
    assert f"{folder}: not a file" in result.stdout
    assert f"{link} -> {link.with_name('nowhere')}: a broken link" in result.stdout
    assert index_files(tmp_path / "out") == broker_files(PARTITION)


# ------------------------------------------------------------------------------------ Parquet


def parquet(tmp_path: Path, table: pa.Table) -> list[Argument]:
    path = tmp_path / "input.parquet"
    pq.write_table(table, path)
    return ["--input", path, "--output", tmp_path / "out"]


def test_all_wrong_columns_of_a_parquet_input_are_reported_together(tmp_path: Path) -> None:
    table = metadata_table(ONE).drop_columns(["size_bytes", "last_offset"])
    index = table.column_names.index("partition")
    table = table.set_column(index, "partition", table["partition"].cast(pa.string()))
    said = refused(tmp_path, *parquet(tmp_path, table), code=2)
    for problem in (
        "size_bytes is missing",
        "last_offset is missing",
        "partition is string, not an integer",
    ):
        assert problem in said


@pytest.mark.parametrize(
    ("form", "column"),
    [
        *((metadata_table, name) for name in metadata_table(ONE).column_names),
        *((raw_table, name) for name in raw_table(ONE).column_names),
    ],
)
def test_column_of_the_wrong_type_is_reported(tmp_path: Path, form: _Form, column: str) -> None:
    table = form(ONE)
    index = table.column_names.index(column)
    wrong = pa.array([1.5] * table.num_rows)
    said = refused(tmp_path, *parquet(tmp_path, table.set_column(index, column, wrong)), code=2)
    assert f"{column} is double, not " in said


@FORMS
@pytest.mark.parametrize("column", ["topic", "partition", "segment_base_offset"])
def test_parquet_row_without_a_segment_ends_the_run(
    tmp_path: Path, form: _Form, column: str
) -> None:
    table = change(form(ONE), 4, column, None)
    result = build_here(*parquet(tmp_path, table))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"column {column} is null" in result.stderr
    assert list((tmp_path / "out").rglob("*")) == []


def _null(column: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: change(table, 20, column, None)


def _twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 20), table.slice(19)])


def _gap(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 20), table.slice(21)])


@pytest.mark.parametrize(
    ("form", "spoil", "reason"),
    [
        (metadata_table, _null("position_bytes"), "column position_bytes is null"),
        (metadata_table, _null("size_bytes"), "column size_bytes is null"),
        (metadata_table, _null("last_offset"), "column last_offset is null"),
        (metadata_table, _null("max_timestamp_ms"), "column max_timestamp_ms is null"),
        (raw_table, _null("position_bytes"), "column position_bytes is null"),
        (raw_table, _null("batch"), "column batch is null"),
        (metadata_table, _twice, "overlapping_positions"),
        (raw_table, _twice, "overlapping_positions"),
        (metadata_table, _gap, "position_gap"),
        (raw_table, _gap, "position_gap"),
    ],
)
def test_invalid_parquet_rows_fail_only_their_segment(
    tmp_path: Path, form: _Form, spoil: Callable[[pa.Table], pa.Table], reason: str
) -> None:
    good = form({("good", 0, 0): dump()["orders", 0, 0]})
    table = pa.concat_tables([spoil(form(ONE)), good])
    done, rows = build_with_report(build_here, tmp_path, *parquet(tmp_path, table))
    assert done.returncode == 1
    assert {row["topic"]: row["status"] for row in rows} == {"t": "failed", "good": "built"}
    (failed,) = (row for row in rows if row["status"] == "failed")
    assert reason in failed["reason"]
    assert set(index_files(tmp_path / "out")) == {
        f"good-0/{0:020d}.index",
        f"good-0/{0:020d}.timeindex",
    }
    assert leftover_files(tmp_path) == []


@FORMS
def test_rows_in_any_order_build_the_same_segment(tmp_path: Path, form: _Form) -> None:
    table = form(ONE)
    shuffled = table.take(pa.array(range(table.num_rows - 1, -1, -1)))
    actual = []
    for name, one in (("ordered", table), ("shuffled", shuffled)):
        (tmp_path / name).mkdir()
        result = build_here(*parquet(tmp_path / name, one))
        assert result.returncode == 0, result.stderr
        actual.append(index_files(tmp_path / name / "out"))
    assert actual[0] == actual[1] != {}


# ------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("output", ["data", "data/out", "data/orders.eu-west-0", "."])
def test_output_that_overlaps_the_input_is_rejected(
    data: Path, tmp_path: Path, output: str
) -> None:
    said = refused(tmp_path, "--input", data, "--output", tmp_path / output, code=2)
    assert "--in-place" in said


@pytest.mark.parametrize("output", ["out", "out/new/root"])
def test_output_without_write_permission_is_rejected(
    data: Path, tmp_path: Path, output: str
) -> None:
    (tmp_path / "out").mkdir(mode=0o555)
    arguments = ("--input", data, "--output", tmp_path / output)
    said = refused(tmp_path, *arguments, code=3, privileged=False)
    assert "no permission to write to the target" in said


def test_folder_without_write_permission_is_not_built_in_place(data: Path, tmp_path: Path) -> None:
    (data / PARTITION).chmod(0o555)
    before = state(data / PARTITION)
    done, rows = build_with_report(
        partial(build, privileged=False), tmp_path, "--input", data, "--in-place"
    )
    (data / PARTITION).chmod(0o755)
    assert done.returncode == 3
    assert [row["status"] for row in rows] == ["failed"] * 4
    assert all("no permission to write to the target" in row["reason"] for row in rows)
    assert leftover_files(data) == []
    assert {name: at for name, at in state(data / PARTITION).items() if name != "."}.items() <= (
        before.items()
    )


def test_file_at_the_path_of_the_output_is_an_error(data: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    said = refused(tmp_path, "--input", data, "--output", tmp_path / "out", code=3)
    assert "a file has the path of a required directory" in said
    assert (tmp_path / "out").read_text() == "precious"


def test_full_disk_fails_segments_and_the_next_run_with_space_completes(tmp_path: Path) -> None:
    partitions = (PARTITION, "app-logs-0", "page-views-0", "customer-profiles-0")
    data = copy_partitions(tmp_path / "data", *partitions)
    with small_disk(tmp_path / "disk", "100k") as disk:
        arguments: list[Argument] = ["--input", data, "--output", disk / "out", "--threads", 2]
        done, rows = build_with_report(build, tmp_path, *arguments)

        assert done.returncode == 3
        assert done.stderr == ""
        failed = [row for row in rows if row["status"] == "failed"]
        assert failed
        assert {row["status"] for row in rows} <= {"built", "failed"}
        assert all("no space left" in row["reason"] for row in failed), failed
        assert "no space left" in done.stdout
        complete_files = broker_files(*partitions)
        there = index_files(disk / "out")
        assert there.items() <= complete_files.items()
        for name in there:
            assert name.replace(".timeindex", ".index") in there
            assert name.replace(".index", ".timeindex") in there
        assert len(there) == 2 * (len(rows) - len(failed))
        assert leftover_files(disk) == []

        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        done, again = build_with_report(build, tmp_path, *arguments)

        assert done.returncode == 0
        assert index_files(disk / "out") == complete_files
        for partition in partitions:
            assert state_files(disk / "out" / partition) == state_files(DUMP / partition)
        # Those behind a failed one had been built without what only it could tell, and a partition
        # whose record found no room is built again as a whole.
        lacking = {row["log_path"] for row in rows if row["status"] == "failed" or row["note"]}
        built = {row["log_path"] for row in again if row["status"] == "built"}
        assert lacking <= built
        assert {os.path.dirname(path) for path in lacking} == {
            os.path.dirname(path) for path in built
        }


def test_disk_without_any_space_is_an_error(data: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        (disk / "filler").write_bytes(bytes(16 << 10))
        result = build("--input", data, "--output", disk / "out")
        assert result.returncode == 3
        assert "no space left" in result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        assert [path.name for path in disk.rglob("*") if path.is_file()] == ["filler"]


# -------------------------------------------------------------------------------------- locks


LOCK_HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path], None]]:
    """Let another process hold a lock file, as a broker does."""
    holders: list[Any] = []

    def start(path: Path) -> None:
        holder = subprocess.Popen(
            [sys.executable, "-c", LOCK_HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"

    yield start
    for holder in holders:
        holder.communicate(b"")


def test_data_directory_locked_by_a_broker_is_not_written(
    data: Path, tmp_path: Path, hold: Callable[[Path], None]
) -> None:
    other = copy_partitions(tmp_path / "other", "app-logs-0")
    hold(data / ".lock")
    before = state(data)
    for inputs in ([data], [data / PARTITION], [other, data]):
        result = build_here(
            *(part for input_ in inputs for part in ("--input", input_)), "--in-place"
        )
        assert result.returncode == 3
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert (
            f"{data / '.lock'}: a broker or another run has locked this directory" in result.stderr
        )
        assert state(data) == before
        assert index_files(other) == {}
        assert leftover_files(other) == []


def test_data_directory_locked_by_a_broker_is_built_to_another_folder(
    data: Path, tmp_path: Path, hold: Callable[[Path], None]
) -> None:
    hold(data / ".lock")
    before = state(data)
    assert build_here("--input", data, "--output", tmp_path / "out").returncode == 0
    assert index_files(tmp_path / "out") == broker_files(PARTITION)
    assert state(data) == before


def test_output_locked_by_another_run_is_not_written(
    data: Path, tmp_path: Path, hold: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    assert build_here("--input", data, "--output", out).returncode == 0
    hold(out / OUTPUT_LOCK)
    before = state(out / PARTITION)
    result = build_here("--input", data, "--output", out, "--overwrite")
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert ".kafka-index.lock: another run has locked this directory" in result.stderr
    assert state(out / PARTITION) == before


def test_failed_partition_leaves_no_empty_folder(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", PARTITION, "app-logs-0")
    (data / PARTITION / "leader-epoch-checkpoint").write_text("not a checkpoint")
    result = build_here("--input", data, "--output", tmp_path / "out")
    assert result.returncode == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["app-logs-0"]

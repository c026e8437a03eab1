"""Exports that find another log than the one they read before, and what becomes of their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.commands.export.partition_export import staged_folder
from tests.servers.s3 import S3Server
from tests.support.command_line import Argument, run_here
from tests.support.damage import with_checksum
from tests.support.record_tables import batch_of, write_partition
from tests.support.remote import download, new_bucket
from tests.support.segments import batch

FOLDER = "topic=topic/partition=0"


def log_of(offsets: range, word: bytes = b"old", *, epoch: int = 0) -> bytes:
    """Batches of ten records whose values tell them from others."""
    return b"".join(
        _with_epoch(
            batch_of(first, [(1000 + first, b"%d" % at, word) for at in range(first, first + 10)]),
            epoch,
        )
        for first in offsets
        if first % 10 == 0
    )


def _with_epoch(data: bytes, epoch: int) -> bytes:
    return data[:12] + epoch.to_bytes(4, "big") + data[16:]


def write(root: Path, segments: dict[int, bytes]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    write_partition(root, segments)


def export(root: Path, out: Path, *more: Argument) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and the row of the partition."""
    report = out.with_suffix(".json")
    options = ("--input", root, "--output", out, "--report", report)
    code = run_here("export", *options, *more).returncode
    (row,) = [json.loads(line) for line in report.read_text().splitlines()]
    return code, row


def exported(out: Path) -> list[tuple[int, bytes]]:
    rows: list[tuple[int, bytes]] = []
    for path in sorted((out / FOLDER).rglob("[0-9]*.parquet")):
        table = pq.ParquetFile(path).read(["offset", "value"])
        rows += zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    return rows


def rows_of(root: Path) -> list[tuple[int, bytes]]:
    table = kafka_index.read_records(root, columns=("offset", "value")).read_all()
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def files(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*.parquet")
        if path.is_file()
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An export of two runs, of offsets 0 to 499 and 500 to 999."""
    write(tmp_path / "in", {0: log_of(range(500))})
    assert export(tmp_path / "in", tmp_path / "out")[0] == 0
    write(tmp_path / "in", {0: log_of(range(1000))})
    assert export(tmp_path / "in", tmp_path / "out")[0] == 0
    return tmp_path / "out"


CUT_AND_GROWN = {0: log_of(range(800)) + log_of(range(800, 1500), b"new")}
MADE_ANEW = {0: log_of(range(1200), b"new")}
DELETED = {2000: log_of(range(2000, 2500))}
LATER_EPOCH = {0: log_of(range(800)) + log_of(range(800, 1500), epoch=1)}


@pytest.mark.parametrize(
    "segments",
    [
        CUT_AND_GROWN,
        MADE_ANEW,
        LATER_EPOCH,
        {0: log_of(range(800))},
        {2000: log_of(range(2000, 2500))},
    ],
    ids=["cut and grown", "made anew", "another epoch", "cut", "deleted by retention"],
)
def test_diverged_log_is_rejected_and_the_export_stays_unchanged(
    tmp_path: Path, out: Path, segments: dict[int, bytes]
) -> None:
    before = files(out)
    write(tmp_path / "in", segments)
    code, row = export(tmp_path / "in", out)
    assert (code, row["status"], row["records"]) == (1, "failed", 0)
    assert "--on-data-loss" in row["reason"]
    assert row["path"].endswith("topic-0")
    assert files(out) == before


def test_export_of_a_grown_log_is_continued(tmp_path: Path, out: Path) -> None:
    write(tmp_path / "in", {0: log_of(range(900)), 900: log_of(range(900, 1300))})
    code, row = export(tmp_path / "in", out)
    assert (code, row["status"], row["records"]) == (0, "exported", 300)
    assert [offset for offset, _ in exported(out)] == list(range(1300))


def test_deletion_of_exported_records_by_retention_is_not_data_loss(
    tmp_path: Path, out: Path
) -> None:
    write(tmp_path / "in", {1000: log_of(range(1000, 1200))})
    assert export(tmp_path / "in", out)[0] == 0
    assert [offset for offset, _ in exported(out)] == list(range(1200))


@pytest.mark.parametrize("kept", [0, 4, 9])
def test_batch_rewritten_by_the_cleaner_does_not_make_the_log_diverge(
    tmp_path: Path, out: Path, kept: int
) -> None:
    last = batch(990, timestamps=[1990] * kept, last_offset_delta=9)
    if kept == 9:
        last = with_checksum(last[:22] + bytes([0x40]) + last[23:])
    write(tmp_path / "in", {0: log_of(range(990)) + last, 1000: log_of(range(1000, 1100))})
    code, row = export(tmp_path / "in", out)
    assert (code, row["records"]) == (0, 100)


def test_rewritten_batch_in_the_active_segment_makes_the_log_diverge(
    tmp_path: Path, out: Path
) -> None:
    last = batch(990, timestamps=[1990], last_offset_delta=9)
    write(tmp_path / "in", {0: log_of(range(990)) + last + log_of(range(1000, 1100))})
    assert export(tmp_path / "in", out)[0] == 1


def test_continue_replaces_rows_of_a_diverged_log(tmp_path: Path, out: Path) -> None:
    before = files(out)
    write(tmp_path / "in", CUT_AND_GROWN)
    code, row = export(tmp_path / "in", out, "--on-data-loss", "continue")
    # Both agree up to the end of the first run.
    assert (code, row["status"], row["records"]) == (0, "continued", 1000)
    assert "the history of the log changed" in row["reason"]
    assert exported(out) == rows_of(tmp_path / "in")
    first = min(before)
    assert files(out)[first] == before[first]
    assert export(tmp_path / "in", out)[1]["status"] == "unchanged"
    assert (
        not staged_folder(str(out / FOLDER)) or not Path(staged_folder(str(out / FOLDER))).exists()
    )


def test_continue_starts_at_the_log_start_offset(tmp_path: Path, out: Path) -> None:
    write(tmp_path / "in", {2000: log_of(range(2000, 2500))})
    code, row = export(tmp_path / "in", out, "--on-data-loss", "continue")
    assert (code, row["status"], row["first_offset"]) == (0, "continued", 2000)
    assert "offsets 1000 to 1999 were deleted" in row["reason"]
    assert [offset for offset, _ in exported(out)] == [*range(1000), *range(2000, 2500)]
    assert export(tmp_path / "in", out)[1]["status"] == "unchanged"


def test_continue_keeps_rows_after_the_end_of_a_shorter_log(tmp_path: Path, out: Path) -> None:
    before = files(out)
    write(tmp_path / "in", {0: log_of(range(500))})
    code, row = export(tmp_path / "in", out, "--on-data-loss", "continue")
    assert (code, row["status"]) == (0, "continued")
    assert files(out) == before


@pytest.mark.parametrize("segments", [CUT_AND_GROWN, MADE_ANEW, DELETED])
def test_restart_exports_the_partition_from_scratch(
    tmp_path: Path, out: Path, segments: dict[int, bytes]
) -> None:
    write(tmp_path / "in", segments)
    code, row = export(tmp_path / "in", out, "--on-data-loss", "restart")
    assert (code, row["status"]) == (0, "restarted")
    assert exported(out) == rows_of(tmp_path / "in")
    assert export(tmp_path / "in", out)[1]["status"] == "unchanged"


#: The last batch repeats offsets, or its offsets go back. A broker computes the log end offset from
#: it, or from the base offset of its segment.
OUT_OF_ORDER = {"repeated": range(1490, 1500), "gone back": range(10)}


@pytest.mark.parametrize("last", OUT_OF_ORDER.values(), ids=OUT_OF_ORDER)
@pytest.mark.parametrize("choice", ["fail", "continue", "restart"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first export", "later export"])
def test_log_with_last_batch_out_of_order_is_exported_to_its_intact_end(
    tmp_path: Path, out: Path, last: range, choice: str, *, is_first: bool
) -> None:
    write(tmp_path / "in", {0: log_of(range(1500))})
    kafka_index.build_indexes(tmp_path / "in", in_place=True, config={"index.interval.bytes": "1"})
    log = tmp_path / "in" / "topic-0" / f"{0:020d}.log"
    whole = rows_of(tmp_path / "in")
    log.write_bytes(log.read_bytes() + log_of(last))
    target = tmp_path / "new" if is_first else out
    code, row = export(tmp_path / "in", target, "--on-data-loss", choice)
    assert (code, row["status"], row["next_offset"]) == (1, "damaged", 1500)
    assert row["reason"].startswith("overlap")
    assert exported(target) == whole


@pytest.mark.parametrize(
    ("choice", "status"), [("restart", "restarted"), ("continue", "continued")]
)
def test_shorter_export_in_place_of_a_longer_one_is_reported_with_both_end_offsets(
    tmp_path: Path, out: Path, choice: str, status: str
) -> None:
    write(tmp_path / "in", {0: log_of(range(800))})
    code, row = export(tmp_path / "in", out, "--on-data-loss", choice)
    assert (code, row["status"], row["next_offset"]) == (1, status, 800)
    assert "The previous export was longer and ended at offset 1000" in row["reason"]
    assert exported(out) == rows_of(tmp_path / "in")


def test_restart_of_a_damaged_log_keeps_the_old_files_until_the_log_is_intact(
    tmp_path: Path, out: Path
) -> None:
    before = exported(out)
    data = bytearray(MADE_ANEW[0])
    data[3000] ^= 1
    write(tmp_path / "in", {0: bytes(data)})
    code, row = export(tmp_path / "in", out, "--on-data-loss", "restart")
    assert (code, row["status"]) == (1, "damaged")
    assert exported(out) == before
    write(tmp_path / "in", MADE_ANEW)
    assert export(tmp_path / "in", out, "--on-data-loss", "restart")[0] == 0
    assert exported(out) == rows_of(tmp_path / "in")


def test_empty_export_in_place_of_a_longer_one_is_printed(tmp_path: Path, out: Path) -> None:
    write(tmp_path / "in", {0: b"", 500: b""})
    result = run_here(
        *("export", "--input", tmp_path / "in", "--output", out, "--on-data-loss", "restart")
    )
    assert result.returncode == 1
    assert "The previous export was longer and ended at offset 1000" in result.stdout


def test_on_data_loss_option_without_a_loss_changes_no_file(tmp_path: Path, out: Path) -> None:
    before = files(out)
    for choice in ("continue", "restart"):
        code, row = export(tmp_path / "in", out, "--on-data-loss", choice)
        assert (code, row["status"]) == (0, "unchanged")
    assert files(out) == before


@pytest.mark.parametrize("form", [("--format", "jsonl"), ("--by-date",)])
def test_atomic_swap_replaces_files_of_every_format(tmp_path: Path, form: tuple[str, ...]) -> None:
    root, out, whole = tmp_path / "in", tmp_path / "out", tmp_path / "whole"
    write(root, {0: log_of(range(500))})
    assert export(root, out, *form)[0] == 0
    write(root, MADE_ANEW)
    assert export(root, out, *form, "--on-data-loss", "restart")[0] == 0
    assert export(root, whole, *form)[0] == 0
    kept = [
        {path.relative_to(each): path.read_bytes() for path in each.rglob("0*") if path.is_file()}
        for each in (out, whole)
    ]
    assert kept[0] == kept[1]
    assert kept[0]


@pytest.mark.parametrize("choice", ["continue", "restart"])
def test_diverged_log_is_exported_into_a_bucket_after_a_choice(
    tmp_path: Path, s3: S3Server, choice: str
) -> None:
    root = tmp_path / "in"
    with new_bucket(s3) as bucket:
        for segments in ({0: log_of(range(500))}, {0: log_of(range(1000))}):
            write(root, segments)
            assert run_here("export", "--input", root, "--output", bucket).returncode == 0
        write(root, CUT_AND_GROWN)
        command = ("export", "--input", root, "--output", bucket)
        assert run_here(*command).returncode == 1
        assert run_here(*command, "--on-data-loss", choice).returncode == 0
        for name, data in download(bucket).items():
            path = tmp_path / "got" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        assert run_here(*command).returncode == 0
    assert exported(tmp_path / "got") == rows_of(root)
    assert not list((tmp_path / "got").rglob("*.staged"))

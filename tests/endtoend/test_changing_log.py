"""Logs that change under the scan: stopped in its middle, changed, let go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kafka_index.core.kernels.scan import CHUNK_BATCHES
from tests.support.builds import build_with_report, finish, leftover_files, start
from tests.support.command_line import Argument, build_here
from tests.support.dumps import index_files
from tests.support.gates import StopInScan
from tests.support.segments import batch
from tests.support.timeouts import wait_until

# More than three chunks of a scan.
BATCHES = 4 * CHUNK_BATCHES
_LOG = "00000000000000000000.log"
_OTHER = "00000000000000700000.log"


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of many small batches."""
    path = tmp_path_factory.mktemp("long") / _LOG
    path.write_bytes(_log(0, BATCHES))
    return path


def _log(base_offset: int, batches: int) -> bytes:
    # The checksum does not cover the base offset: all batches but for that are the same bytes.
    one = np.frombuffer(batch(0, 1, 20), np.uint8)
    log = np.tile(one, (batches, 1))
    offsets = np.arange(base_offset, base_offset + batches, dtype=">i8")
    log[:, :8] = offsets.view(np.uint8).reshape(-1, 8)
    return log.tobytes()


def _grow(log: Path) -> None:
    with log.open("ab") as file:
        file.write(_log(BATCHES, 3))


def _cut(log: Path) -> None:
    os.truncate(log, 12_345)


def _empty(log: Path) -> None:
    os.truncate(log, 0)


def _replace(log: Path) -> None:
    new = log.with_name("new")
    new.write_bytes(_log(0, 5))
    new.rename(log)


def _remove(log: Path) -> None:
    log.unlink()


def _write_into(log: Path) -> None:
    with log.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\xff" * 50)


def _is_stopped(process: subprocess.Popen[str]) -> bool:
    stat = Path("/proc", str(process.pid), "stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("options", [[], ["--no-verify-crc"]], ids=["verified", "headers"])
@pytest.mark.parametrize(
    ("change", "how"),
    [
        (_grow, "grew from"),
        (_cut, "truncated from|the file ends early"),
        (_empty, "truncated from|the file ends early"),
        (_replace, "replaced by another file"),
        (_remove, ": removed"),
        (_write_into, ": modified"),
    ],
)
def test_log_changed_during_the_scan_fails_and_is_built_when_unchanged(
    long_log: Path, tmp_path: Path, change: Callable[[Path], None], how: str, options: list[str]
) -> None:
    folder, out = tmp_path / "data" / "orders-0", tmp_path / "out"
    folder.mkdir(parents=True)
    log = folder / _LOG
    (folder / _OTHER).write_bytes(_log(700_000, 50))
    arguments: list[Argument] = [
        "--input",
        tmp_path / "data",
        "--output",
        out,
        "--threads",
        1,
        *options,
    ]

    def build_and_change(*more: Argument) -> subprocess.CompletedProcess[str]:
        shutil.copyfile(long_log, log)
        process = start(*arguments, *more, gate=StopInScan(3))
        assert wait_until(process, partial(_is_stopped, process), every=0.005)
        change(log)
        os.kill(process.pid, signal.SIGCONT)
        return finish(process)

    done, rows = build_with_report(build_and_change, tmp_path)

    assert done.returncode == 3, (done.returncode, done.stderr)
    assert done.stderr == ""
    failed, good = rows
    assert (failed["status"], good["status"]) == ("failed", "built")
    assert failed["log_path"] == str(log)
    assert any(text in failed["reason"] for text in how.split("|")), failed["reason"]
    assert failed["reason"] in done.stdout
    stem = Path(_OTHER).stem
    assert set(index_files(out)) == {f"orders-0/{stem}.index", f"orders-0/{stem}.timeindex"}
    assert leftover_files(tmp_path) == []

    shutil.copyfile(long_log, log)
    done, rows = build_with_report(build_here, tmp_path, *arguments)

    assert done.returncode == 0, done.stdout
    # The other gets the snapshot in front of it, which nobody could tell before.
    assert [row["status"] for row in rows] == ["built", "built"]
    assert len(index_files(out)) == 4


def test_constantly_growing_log_fails_without_output(long_log: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "data" / "orders-0", tmp_path / "out"
    folder.mkdir(parents=True)
    log = folder / _LOG
    shutil.copyfile(long_log, log)
    added = 0

    def grow_and_look() -> bool:
        nonlocal added
        with log.open("ab") as file:
            file.write(_log(BATCHES + added, 1))
        added += 1
        return False

    def build(*more: Argument) -> subprocess.CompletedProcess[str]:
        process = start("--input", tmp_path / "data", "--output", out, *more)
        wait_until(process, grow_and_look)
        return finish(process)

    done, rows = build_with_report(build, tmp_path)

    assert added > 10
    assert done.returncode == 3
    assert [row["status"] for row in rows] == ["failed"]
    assert "the log changed while it was read" in rows[0]["reason"]
    assert index_files(out) == {}
    assert leftover_files(tmp_path) == []

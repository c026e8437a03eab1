"""Dumps to restore, and what a restore makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command_line import DUMP, SETTINGS, Argument, run_here

MARKER = ".kafka_cleanshutdown"


@dataclass(frozen=True)
class RestoreRun:
    """A restore that has ended: its exit code and output, and the rows of its report."""

    done: subprocess.CompletedProcess[str]
    rows: list[dict[str, Any]]

    @property
    def code(self) -> int:
        """The exit code."""
        return self.done.returncode

    def partitions(self, status: str) -> set[str]:
        """The partitions of a status."""
        return {
            f"{row['topic']}-{row['partition']}" for row in self.rows if row["status"] == status
        }

    @property
    def lost(self) -> list[dict[str, Any]]:
        """The rows of ranges that were lost."""
        return [row for row in self.rows if row["status"] == "lost"]


def copy_dump(target: Path, *partitions: str) -> Path:
    """Copy the example dump, or some of its partitions with the files at its root."""
    if not partitions:
        shutil.copytree(DUMP, target)
        return target
    target.mkdir()
    for entry in DUMP.iterdir():
        if entry.is_file():
            shutil.copy2(entry, target)
    for name in partitions:
        shutil.copytree(DUMP / name, target / name)
    return target


def restore(dump: Path, output: Path, *more: Argument) -> RestoreRun:
    """Restore a dump in this process."""
    report = output.parent / f"{output.name}.json"
    report.unlink(missing_ok=True)
    done = run_here(
        "restore",
        *("--input", dump, "--output", output),
        *("--config", SETTINGS, "--report", report),
        *more,
    )
    rows = []
    if report.exists():
        rows = [json.loads(line) for line in report.read_text().splitlines()]
    return RestoreRun(done, rows)


def contents(root: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def partition_contents(root: Path, partition: str) -> dict[str, bytes]:
    """All files of a partition."""
    return contents(root / partition)


def logs(directory: Path) -> list[Path]:
    """The logs of a partition, by base offset."""
    return sorted(directory.glob("*.log"))

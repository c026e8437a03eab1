"""Dumps to restore, and what a restore makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_index.commands.restore.output import JOURNAL_FILE, STATE_FILE
from kafka_index.core.log.scan.segment_scan import read_batches
from tests.support.command_line import DUMP, SETTINGS, Argument, run_here

MARKER = ".kafka_cleanshutdown"
_DAMAGED = "audit.trail-0"
#: The exit code of a restore that loses records.
_DAMAGE = 1
_IDENTITY = "version=1\ncluster.id=fresh\nnode.id=7\ndirectory.id=ZZZZZZZZZZZZZZZZZZZZ{}\n"


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

    @property
    def lost_offsets(self) -> list[tuple[str, int, int]]:
        """The code, first and last offset of each lost range."""
        return [(row["reason_code"], row["first_offset"], row["last_offset"]) for row in self.lost]


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


def restore(dump: Argument, output: Path, *more: Argument) -> RestoreRun:
    """Restore a dump, or a run of a backup, in this process."""
    report = output.parent / f"{output.name}.json"
    report.unlink(missing_ok=True)
    result = run_here(
        "restore",
        *("--input", dump, "--output", output),
        *("--config", SETTINGS, "--report", report),
        *more,
    )
    rows = []
    if report.exists():
        rows = [json.loads(line) for line in report.read_text().splitlines()]
    return RestoreRun(result, rows)


def contents(root: Path) -> dict[str, bytes]:
    """All files below a folder, except those of runs, which have inodes, times and new ids."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in (JOURNAL_FILE, STATE_FILE)
    }


def partition_contents(root: Path, partition: str) -> dict[str, bytes]:
    """All files of a partition."""
    return contents(root / partition)


def logs(directory: Path) -> list[Path]:
    """The logs of a partition, by base offset."""
    return sorted(directory.glob("*.log"))


def batches(log: Path, *, verify_crc: bool = True) -> list[dict[str, Any]]:
    """The batches of a log up to the first damaged one."""
    tables = read_batches(log, verify_crc=verify_crc)
    return [row for table in tables for row in table.to_pylist()]


def drop_batch(log: Path, number: int) -> dict[str, Any]:
    """Take a batch out of a log; return what it was."""
    batch, data = batches(log)[number], log.read_bytes()
    start = batch["position_bytes"]
    log.write_bytes(data[:start] + data[start + batch["size_bytes"] :])
    return batch


def damage_batch(log: Path, number: int) -> int:
    """Change a byte in the records of a batch; return how many records it has."""
    batch, data = batches(log)[number], bytearray(log.read_bytes())
    data[batch["position_bytes"] + batch["size_bytes"] - 3] ^= 1
    log.write_bytes(data)
    return int(batch["record_count"])


@dataclass(frozen=True)
class Places:
    """A formatted output, a formatted controller, and the folder of the report."""

    root: Path

    def make(self) -> Places:
        for name, tag in (("out", "Ag"), ("metadata", "Bg")):
            (self.root / name).mkdir(parents=True, exist_ok=True)
            (self.root / name / "meta.properties").write_text(_IDENTITY.format(tag))
        shutil.copy2(DUMP / "bootstrap.checkpoint", self.root / "metadata")
        (self.root / "reports").mkdir(exist_ok=True)
        return self

    @property
    def output(self) -> Path:
        return self.root / "out"

    def command(self, dump: Path) -> list[Argument]:
        return [
            *("restore", "--input", dump, "--config", SETTINGS, "--threads", 1, "--quiet"),
            *("--output", self.output, "--seed", self.root / "metadata"),
            *("--report", self.root / "reports/restore.json"),
            *("--summary", self.root / "reports/summary.json"),
        ]

    def restored(self, dump: Path) -> dict[str, bytes]:
        """Restore a damaged dump to its end here; return what is written."""
        assert run_here(*map(str, self.make().command(dump))).returncode == _DAMAGE
        return self.written()

    def written(self) -> dict[str, bytes]:
        """All files but the summary, which has times; paths of this place are those of any."""
        return {
            name: data.replace(str(self.root).encode(), b"ROOT")
            for name, data in contents(self.root).items()
            if "summary" not in name
        }


def damaged_dump(target: Path) -> Path:
    """Copy partitions, groups and the metadata log of the example dump, and damage a log."""
    dump = copy_dump(target, _DAMAGED, "payments-0", "__consumer_offsets-0", "__cluster_metadata-0")
    damage(logs(dump / _DAMAGED)[1])
    return dump


def damage(log: Path) -> None:
    """Flip a bit in the middle of a log."""
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def check_loadable_only_if_complete(written: dict[str, bytes], whole: dict[str, bytes]) -> None:
    """Check the files of `Places`: with an identity all is there, and with a marker so is that."""
    if "out/meta.properties" in written:
        # All that a broker reads is there, and all that was lost is told.
        missing = {name for name in whole if written.get(name) != whole[name]}
        assert missing <= {f"out/{MARKER}"}
    if f"out/{MARKER}" in written:
        assert whole.items() <= written.items()

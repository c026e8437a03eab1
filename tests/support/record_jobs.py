"""Jobs of records, one after the other in one driver, and what threads make of the same."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import kafka_index
from tests.support.command_line import DUMP, run_here

_TOPICS = "orders.*|payments"
#: How long a driver of all jobs may take; it starts a session for each.
DRIVER_SECONDS = 300
_SUFFIXES = {".parquet", ".log", ".index", ".timeindex"}
_DRIVER = """\
import json, sys
from kafka_index.cli import job_main
from kafka_index.spark.session import build_session
from kafka_index.spark import KafkaLogSource

for name, *arguments in json.loads(sys.argv[1]):
    job_main(name, arguments)
session = build_session(None, "read")
session.dataSource.register(KafkaLogSource)
rows = session.read.format("kafka-log").load(sys.argv[2]).selectExpr("sum(offset)").first()
print(json.dumps({"offsets": rows[0]}))
session.stop()
"""


@dataclass(frozen=True)
class RecordJobs:
    """An export, an import of it, and a rewrite, a search and a read of what that made.

    `folder`: a new one; jobs and threads write below it.
    """

    folder: Path

    def driver(self) -> list[str]:
        """Return the script of a driver that runs the jobs, and its arguments."""
        self.folder.mkdir()
        path = self.folder / "driver.py"
        path.write_text(_DRIVER)
        jobs = self.folder / "jobs"
        return [str(path), json.dumps(_commands(jobs)), str(jobs / "kept")]

    def check(self, done: subprocess.CompletedProcess[str]) -> None:
        """Check that a driver made and found what threads make and find."""
        assert done.returncode == 0, done.stdout + done.stderr
        result: list[str] = []
        for command in _commands(self.folder / "threads"):
            here = run_here(*command)
            assert here.returncode == 0, here.stderr
            result = _records(here.stdout)
        assert len(result) > 10
        rows = kafka_index.read_records(self.folder / "threads" / "kept", columns=("offset",))
        offsets = sum(rows.read_all()["offset"].to_pylist())
        assert _records(done.stdout) == [*result, json.dumps({"offsets": offsets})]
        files = _contents(self.folder / "threads")
        assert {Path(name).suffix for name in files} == _SUFFIXES
        assert _contents(self.folder / "jobs") == files


def _commands(folder: Path) -> list[list[str]]:
    lake, logs, kept = (str(folder / name) for name in ("lake", "logs", "kept"))
    return [
        ["export", "--input", str(DUMP), "--topics", _TOPICS, "--output", lake],
        ["import", "--input", lake, "--output", logs],
        ["rewrite", "--input", logs, "--output", kept, "--drop-where", "offset < 100"],
        ["find", "--input", kept, "--key-regex", "7$", "--json"],
    ]


def _contents(folder: Path) -> dict[str, bytes]:
    """Return data files and logs with their indexes; other files name their run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in _SUFFIXES
    }


def _records(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("{")]

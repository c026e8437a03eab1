"""The script that cron runs: its steps, and what it tries again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT, copy_partitions, run_program
from tests.support.timeouts import TIMEOUT_SECONDS

FOLDER = ROOT / "examples" / "pipeline"
SCRIPT = FOLDER / "daily.sh"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_partitions(tmp_path / "dump", "app-logs-0")


def command(folder: Path, *, failing_with: int = 0) -> Path:
    """A ``kafka-index`` that fails so at its first call, and counts its calls."""
    program = folder / "kafka-index"
    calls = folder / "calls"
    program.write_text(
        f'#!/bin/sh\necho "$1" >> "{calls}"\n'
        f'[ $(wc -l < "{calls}") -gt 1 ] || [ {failing_with} -eq 0 ] || exit {failing_with}\n'
        f'exec "{sys.executable}" -m kafka_index "$@"\n'
    )
    program.chmod(0o755)
    return program


def run(program: Path, dump: Path, results: Path) -> tuple[int, str]:
    variables = {"KAFKA_INDEX": str(program), "KAFKA_INDEX_PAUSE": "0"}
    result = run_program("sh", SCRIPT, dump, results, variables=variables)
    return result.returncode, result.stderr


def calls(program: Path) -> list[str]:
    return program.with_name("calls").read_text().split()


def test_pipeline_of_a_day_runs_verify_build_and_lookup(tmp_path: Path, dump: Path) -> None:
    program, results = command(tmp_path), tmp_path / "results"
    results.mkdir()
    (results / "queries.csv").write_text("topic,partition,timestamp\napp-logs,0,0\n")
    code, errors = run(program, dump, results)
    assert code == 0, errors
    assert calls(program) == ["verify", "build", "lookup"]
    outcomes = [json.loads(path.read_text())["outcome"] for path in results.glob("*.json")]
    assert outcomes == ["done"] * 3
    assert "found" in (results / "answers.csv").read_text()


@pytest.mark.parametrize("code", [3, 137], ids=["environment", "killed"])
def test_environment_error_of_a_step_is_retried(tmp_path: Path, dump: Path, code: int) -> None:
    program = command(tmp_path, failing_with=code)
    assert run(program, dump, tmp_path / "results")[0] == 0
    assert calls(program) == ["verify", "verify", "build"]


def test_pipeline_of_a_damaged_day_reports_the_segment(tmp_path: Path, dump: Path) -> None:
    log = next(dump.glob("*/*.log"))
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    program, results = command(tmp_path), tmp_path / "results"
    code, errors = run(program, dump, results)
    assert (code, calls(program)) == (1, ["verify"])
    assert f"verify of {dump} ended with 1, see {results}/verify.json" in errors.splitlines()[-1]
    rows = [line for line in (results / "verify.csv").read_text().splitlines() if str(log) in line]
    assert any("bad_crc" in row for row in rows)


def test_concurrent_pipeline_run_ends_immediately(tmp_path: Path) -> None:
    (line,) = [
        line for line in (FOLDER / "crontab").read_text().splitlines() if line.startswith("15 ")
    ]
    shell = line.split(maxsplit=5)[5].replace("\\%", "%")
    marks = tmp_path / "ran"
    for place, other in (
        ("/var/lock/kafka-index.lock", tmp_path / "lock"),
        ("/var/log/kafka-index.log", tmp_path / "log"),
        ("/opt/kafka-index/daily.sh", f"sh -c 'echo \"$1\" >> {marks}' sh"),
    ):
        assert place in shell
        shell = shell.replace(place, str(other))
    subprocess.run(["sh", "-c", shell], check=True, timeout=TIMEOUT_SECONDS)
    assert marks.read_text().startswith("/dumps/20")
    with (tmp_path / "lock").open() as held:
        subprocess.run(["flock", str(held.fileno())], pass_fds=[held.fileno()], check=True)
        refused = subprocess.run(
            ["sh", "-c", shell], capture_output=True, text=True, check=True, env=os.environ
        )
    assert "exit code 75" in refused.stdout
    assert len(marks.read_text().splitlines()) == 1

"""The command line, in its own process or in this one, over copies of a real broker's files."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from kafka_index.cli import main
from tests.support.timeouts import TIMEOUT_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "examples" / "dump"
SETTINGS = ROOT / "examples" / "dump.properties"
COMMAND = [sys.executable, "-m", "kafka_index"]

Argument = str | Path | int


def environment() -> dict[str, str]:
    """Return an environment in which this checkout is imported, whatever the working folder."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "PYTHONPATH": path}


def run_program(
    *command: Argument, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with these variables besides those of `environment`."""
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**environment(), **(variables or {})},
        timeout=TIMEOUT_SECONDS,
    )


def kafka_index(
    *arguments: Argument, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return run_program(*COMMAND, *arguments, folder=folder)


def run_here(command: str, *arguments: Argument) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, for tests of its output and its effects alone."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main([command, *map(str, arguments)])
    return subprocess.CompletedProcess(
        [command, *map(str, arguments)], int(code), stdout.getvalue(), stderr.getvalue()
    )


build_here = partial(run_here, "build")
dump = partial(run_here, "dump")
lookup = partial(run_here, "lookup")


def json_rows(*arguments: Argument, code: int = 0) -> list[dict[str, Any]]:
    """Return the rows of ``dump --json``, which must exit with this code."""
    result = dump("--json", *arguments)
    assert result.returncode == code, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def copy_partitions(target: Path, *names: str) -> Path:
    """Copy partitions of the example dump, without the indexes, into a data directory."""
    for name in names:
        folder = target / name
        folder.mkdir(parents=True)
        for log in sorted((DUMP / name).glob("*.log")):
            shutil.copy2(log, folder / log.name)
    return target


def index_files(root: Path) -> dict[str, bytes]:
    """Return the index files of the partitions below a folder, by their relative names."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("*/*"))
        if path.suffix in (".index", ".timeindex")
    }


def broker_files(*names: str) -> dict[str, bytes]:
    """Return the broker's own index files of some partitions."""
    return {path: data for path, data in index_files(DUMP).items() if path.split("/")[0] in names}


def first_log(data: Path) -> Path:
    return min(data.glob("*/*.log"))


def files_below(root: Path) -> Iterator[str]:
    return (str(path.relative_to(root)) for path in sorted(root.rglob("*")))


def listed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the lists on stderr, such as what is corrupt."""
    lines = done.stderr.splitlines()
    return [line.removeprefix("  ") for line in lines if line.startswith("  ")]

"""Running ``dump`` in this process: what it prints, without the start of another one."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_index.cli import main


@dataclass(frozen=True)
class Dumped:
    """What came of a run."""

    returncode: int
    stdout: str
    stderr: str


def dump(*arguments: str | Path) -> Dumped:
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(["dump", *map(str, arguments)])
    return Dumped(int(code), output.getvalue(), errors.getvalue())


def json_rows(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    """The rows of a run with ``--json``, which is to end with this code."""
    done = dump("--json", *arguments)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]

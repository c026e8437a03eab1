"""The workspace of a process: gone with it, or after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import environment
from tests.support.timeouts import TIMEOUT_SECONDS

_SCRIPT = """
import os, signal, sys
from kafka_index.storage import workspace
folder = workspace()
open(os.path.join(folder, "file"), "w").close()
assert workspace() == folder and os.listdir(os.path.dirname(folder))
if len(sys.argv) > 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _run(folder: Path, *arguments: str) -> int:
    environ = {**environment(), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    return subprocess.run(command, env=environ, check=False, timeout=TIMEOUT_SECONDS).returncode


def test_a_workspace_lies_below_tmpdir_and_goes_with_its_process(tmp_path: Path) -> None:
    assert _run(tmp_path) == 0
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    assert _run(tmp_path, "killed") == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert _run(tmp_path) == 0
    assert os.listdir(tmp_path) == []

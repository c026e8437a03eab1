"""Messages to people: the cause, the next step, and nothing that misleads."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.command_line import DUMP, run_here
from tests.support.restoring import copy_dump


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def test_backup_without_metadata_log_warns_that_it_lacks_the_topics(tmp_path: Path) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    without = run_here("backup", "--input", data, "--output", tmp_path / "repository")
    assert without.returncode == 0
    assert "no input has the metadata log (__cluster_metadata-0)" in without.stderr
    assert "metadata.log.dir" in without.stderr
    shutil.copytree(DUMP / "__cluster_metadata-0", data / "__cluster_metadata-0")
    whole = run_here("backup", "--input", data, "--output", tmp_path / "repository")
    assert whole.returncode == 0
    assert "metadata log" not in whole.stderr

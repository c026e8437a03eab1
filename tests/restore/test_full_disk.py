"""A disk that is full: no marker, an exit code for another try, and that try completes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.builds import small_disk
from tests.support.restoring import MARKER, contents, copy_dump, restore


def test_a_full_disk_leaves_no_marker_and_a_rerun_completes_it(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "audit.trail-0", "payments-0", "orders.eu-west-1")
    restore(dump, tmp_path / "whole")
    with small_disk(tmp_path / "small", "256k") as mounted:
        run = restore(dump, mounted / "out")

        assert run.code == 3, run.done.stdout + run.done.stderr
        assert "no space left" in run.done.stdout + run.done.stderr
        assert not (mounted / "out" / MARKER).exists()
        assert not (mounted / "out/meta.properties").exists()

        subprocess.run(["mount", "-o", "remount,size=64m", str(mounted)], check=True)
        run = restore(dump, mounted / "out")

        assert run.code == 0, run.done.stdout + run.done.stderr
        assert contents(mounted / "out") == contents(tmp_path / "whole")

"""Dumps that change while they are restored: the partition is named, and there is no marker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.partition import engine_runner
from kafka_index.commands.restore.request import Link, RestoreRequest
from kafka_index.core.job.engine import ThreadEngine
from tests.support.command_line import SETTINGS, run_program
from tests.support.restoring import MARKER, copy_dump, logs, restore

CHANGED, OTHER = "audit.trail-0", "payments-0"
# The command line in a process that lets a log of the dump grow as soon as its copy is opened.
_CHANGED = """
import runpy, sys
source, output, target = sys.argv[1:4]
left = 1
def hook(name, arguments):
    global left
    opened = str(arguments[0]) if name == "open" else ""
    if left and opened.startswith(output) and opened.endswith(target):
        left = 0
        with open(source, "ab") as file:
            file.write(b"more")
sys.argv[:] = [sys.argv[0], *sys.argv[4:]]
sys.addaudithook(hook)
runpy.run_module("kafka_index", run_name="__main__")
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "dump", CHANGED, OTHER)


def truncate_log(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-1])


def grown(log: Path) -> None:
    log.write_bytes(log.read_bytes() + b"more")


def removed(log: Path) -> None:
    log.unlink()


@pytest.mark.parametrize("link", [Link.COPY, Link.HARD])
@pytest.mark.parametrize("change", [truncate_log, grown, removed])
def test_log_changed_before_it_is_read_fails_its_partition(
    tmp_path: Path, dump: Path, link: Link, change: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    job = RestoreJob.prepare(RestoreRequest(inputs=(str(dump),), output=str(out), link=link))
    log = logs(dump / CHANGED)[1]
    change(log)

    result = job.run(engine_runner(ThreadEngine(2)))

    by_name = {partition.partition.directory_name: partition for partition in result.partitions}
    assert by_name[CHANGED].is_skipped
    assert str(log) in (by_name[CHANGED].reason or "")
    assert not by_name[OTHER].is_skipped
    assert not (out / CHANGED).exists()
    assert result.runbook is None
    assert not (out / MARKER).exists()
    assert not (out / "meta.properties").exists()


def test_log_changed_while_it_is_copied_fails_its_partition(tmp_path: Path, dump: Path) -> None:
    out = tmp_path / "out"
    log = logs(dump / CHANGED)[1]
    options = ["restore", "--input", dump, "--output", out, "--config", SETTINGS, "--link", "copy"]
    result = run_program(
        sys.executable, "-c", _CHANGED, log, out, f"{CHANGED}/{log.name}", *map(str, options)
    )

    assert result.returncode == 3, result.stdout + result.stderr
    assert f"{CHANGED}: " in result.stdout
    assert str(log) in result.stdout
    assert not (out / MARKER).exists()
    # What has changed is another plan.
    assert restore(dump, out).code == 2

"""Committed offsets after the end of a log that was cut: named, and clamped where asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.layout.message_fields import Value
from kafka_index.layout.messages import GROUP_RECORDS
from kafka_index.metadata import CommittedOffset, read_metadata
from kafka_index.records.decompression import DecompressionBudget
from tests.support.command_line import SETTINGS, environment, run_here
from tests.support.metadata import (
    Pair,
    coordinator_record,
    end_of_transaction,
    log_batch,
    write_log,
)
from tests.support.restoring import MARKER, RestoreRun, contents, copy_dump, restore
from tests.support.timeouts import TIMEOUT_SECONDS

# The command line in a process that kills itself before the n-th rename to a name.
_KILLED = """
import os, runpy, signal, sys
ending, left = sys.argv[1], int(sys.argv[2])
def hook(name, arguments):
    global left
    if name == "os.rename" and str(arguments[1]).endswith(ending):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.argv[:] = [sys.argv[0], *sys.argv[3:]]
sys.addaudithook(hook)
runpy.run_module("kafka_index", run_name="__main__")
"""
HOME = "__consumer_offsets-0"
PARTITION = "audit.trail-0"
#: In the middle of a batch, before which the log ends.
LIMIT, END = 100, 82


def commit(group: str, offset: int, *, partition: int = 0, **more: Value) -> Pair:
    key: dict[str, Value] = {"group": group, "topic": "audit.trail", "partition": partition}
    value: dict[str, Value] = {
        "offset": offset,
        "leaderEpoch": 9,
        "metadata": "m",
        "commitTimestamp": 1_700_000_000,
    }
    return coordinator_record(GROUP_RECORDS, "OffsetCommit", key, value | more)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump whose groups committed before and after the end of the log that is to be."""
    dump = copy_dump(tmp_path / "dump", PARTITION, HOME)
    for path in (dump / HOME).glob("0*"):
        path.unlink()
    write_log(
        dump / HOME,
        log_batch(0, commit("before", 40), commit("at", END), commit("after", 500)),
        log_batch(
            3, commit("far", 700, topicId="A" * 21 + "w"), commit("elsewhere", 9, partition=8)
        ),
        log_batch(5, commit("open", 600), producer_id=7),
        log_batch(6, commit("done", 550), producer_id=8),
        end_of_transaction(7, 8, commit=True),
    )
    (dump / "recovery-point-offset-checkpoint").unlink()
    (dump / "replication-offset-checkpoint").unlink()
    (tmp_path / "offsets.csv").write_text(f"audit.trail,0,{LIMIT}\n")
    return dump


def clamp(dump: Path, out: Path, *more: str) -> RestoreRun:
    return restore(dump, out, "--until", dump.parent / "offsets.csv", *more)


def committed(directory: Path) -> dict[str, CommittedOffset]:
    found = read_metadata([str(directory)], budget=DecompressionBudget(2**24)).offsets
    return {one.group: one for one in found or ()}


def test_offsets_after_the_end_are_named_and_stay(tmp_path: Path, dump: Path) -> None:
    run = clamp(dump, tmp_path / "out")

    assert run.code == 0, run.done.stderr
    rows = {row["group"]: row for row in run.rows if row["status"] == "beyond_end"}
    assert set(rows) == {"after", "far", "done", "open"}
    assert rows["after"]["committed_offset"] == 500
    end = rows["after"]["log_end_offset"]
    assert f"group after committed 500 of audit.trail-0, which ends at {end}" in run.done.stdout
    assert {one.offset for one in committed(tmp_path / "out").values()} == {
        40,
        END,
        500,
        700,
        9,
        550,
    }


def test_offsets_after_the_end_are_clamped_to_it(tmp_path: Path, dump: Path) -> None:
    restore(dump, tmp_path / "plain", "--until", tmp_path / "offsets.csv")
    before = committed(dump)

    run = clamp(dump, tmp_path / "out", "--clamp-groups")

    # What a transaction commits that is open is not clamped, which is not all that was asked for.
    assert run.code == 1, run.done.stderr
    rows = {row["group"]: row["status"] for row in run.rows if row["group"]}
    assert rows == {"after": "clamped", "far": "clamped", "done": "clamped", "open": "beyond_end"}
    after = committed(tmp_path / "out")
    assert {name: one.offset for name, one in after.items()} == {
        **{name: before[name].offset for name in ("before", "at", "elsewhere")},
        **dict.fromkeys(("after", "far", "done"), END),
    }
    assert after["far"].topic_id == before["far"].topic_id
    assert after["after"].metadata == "m"
    plain, grown = (
        (tmp_path / name / HOME / f"{0:020d}.log").read_bytes() for name in ("plain", "out")
    )
    assert grown.startswith(plain)
    epochs = (tmp_path / "out" / PARTITION / "leader-epoch-checkpoint").read_text().split("\n")
    assert after["after"].leader_epoch == int(epochs[-2].split()[0])


def test_what_is_clamped_is_sound_and_checkpointed(tmp_path: Path, dump: Path) -> None:
    out = tmp_path / "out"
    clamp(dump, out, "--clamp-groups")

    # Eight records and markers, and three that clamp.
    recovery_points = (out / "recovery-point-offset-checkpoint").read_text()
    assert "__consumer_offsets 0 11\n" in recovery_points
    assert run_here("predict", "--input", out).stdout.startswith("safe")
    assert run_here("verify", "--input", out).returncode == 0
    assert not [name for name in os.listdir(out) if name.startswith(".kafka-index")]


def lose_a_record(dump: Path) -> None:
    log = dump / HOME / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)


def test_a_damaged_partition_of_offsets_is_not_appended_to(tmp_path: Path, dump: Path) -> None:
    lose_a_record(dump)
    clamp(dump, tmp_path / "plain")

    run = clamp(dump, tmp_path / "out", "--clamp-groups")

    assert run.code == 1
    assert "lost or unreadable" in run.done.stdout
    assert "clamped" not in {row["status"] for row in run.rows}
    assert contents(tmp_path / "out" / HOME) == contents(tmp_path / "plain" / HOME)


def test_nothing_can_be_clamped_without_the_offsets(tmp_path: Path, dump: Path) -> None:
    run = clamp(dump, tmp_path / "out", "--clamp-groups", "--topics", "audit.trail")

    assert run.code == 2
    assert "__consumer_offsets" in run.done.stderr
    assert not (tmp_path / "out").exists()


def test_a_restore_that_is_killed_while_it_clamps_is_completed(tmp_path: Path, dump: Path) -> None:
    clamp(dump, tmp_path / "whole", "--clamp-groups")
    out = tmp_path / "out"
    arguments = ["--input", dump, "--output", out, "--config", SETTINGS, "--clamp-groups"]
    command = ["restore", *arguments, "--until", tmp_path / "offsets.csv", "--threads", 1]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, HOME, "2", *map(str, command)],
        capture_output=True,
        check=False,
        env=environment(),
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (out / MARKER).exists()
    assert not (out / HOME).exists()

    run = clamp(dump, out, "--clamp-groups")

    assert sum(row["status"] == "clamped" for row in run.rows) == 3
    assert contents(out) == contents(tmp_path / "whole")


def test_what_a_killed_run_has_clamped_is_reported_by_the_next(tmp_path: Path, dump: Path) -> None:
    whole = clamp(dump, tmp_path / "whole", "--clamp-groups")
    out = tmp_path / "out"
    arguments = ["--input", dump, "--output", out, "--config", SETTINGS, "--clamp-groups"]
    command = ["restore", *arguments, "--until", tmp_path / "offsets.csv", "--threads", 1]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, MARKER, "1", *map(str, command)],
        capture_output=True,
        check=False,
        env=environment(),
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    inode = (out / HOME).stat().st_ino

    run = clamp(dump, out, "--clamp-groups")

    assert (out / HOME).stat().st_ino == inode
    assert {row["group"]: row["status"] for row in run.rows} == {
        row["group"]: row["status"] for row in whole.rows
    }

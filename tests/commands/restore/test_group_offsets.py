"""Committed offsets after the end of a log that was cut: named, and clamped where asked for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.commands.restore.cluster import single_replica_partitions
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage, PartitionImage, TopicImage
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset
from kafka_index.core.format.message_schemas import Value
from kafka_index.core.format.messages import GROUP_RECORDS
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.output.output import STAGING
from kafka_index.core.records.decompression import DecompressionBudget
from tests.support.command_line import DUMP, SETTINGS, environment, run_here
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
    result = read_metadata([str(directory)], budget=DecompressionBudget(2**24)).offsets
    return {one.group: one for one in result or ()}


def test_offsets_after_the_log_end_are_reported_unchanged(tmp_path: Path, dump: Path) -> None:
    run = clamp(dump, tmp_path / "out")

    assert run.code == 0, run.done.stderr
    rows = {row["group"]: row for row in run.rows if row["status"] == "beyond_end"}
    assert set(rows) == {"after", "far", "done", "open"}
    assert rows["after"]["committed_offset"] == 500
    end = rows["after"]["log_end_offset"]
    assert (
        f"group after committed offset 500 in audit.trail-0, but the log ends at {end}"
        in run.done.stdout
    )
    assert {one.offset for one in committed(tmp_path / "out").values()} == {
        40,
        END,
        500,
        700,
        9,
        550,
    }


def test_offsets_after_the_log_end_are_clamped(tmp_path: Path, dump: Path) -> None:
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


def test_clamped_partition_is_intact_and_checkpointed(tmp_path: Path, dump: Path) -> None:
    out = tmp_path / "out"
    clamp(dump, out, "--clamp-groups")

    # Eight records and markers, and three that clamp.
    recovery_points = (out / "recovery-point-offset-checkpoint").read_text()
    assert "__consumer_offsets 0 11\n" in recovery_points
    assert "\nsafe" in run_here("predict", "--input", out).stdout
    assert run_here("verify", "--input", out).returncode == 0
    assert not [name for name in os.listdir(out) if STAGING.fullmatch(name)]


def test_unclamped_offsets_are_printed_with_quiet(tmp_path: Path, dump: Path) -> None:
    summary = tmp_path / "summary.json"

    run = clamp(dump, tmp_path / "out", "--clamp-groups", "-q", "--summary", str(summary))

    assert run.code == 1
    assert (
        f"group open committed offset 600 in {PARTITION}, but the log ends at {END}"
        in run.done.stderr
    )
    assert "group after" not in run.done.stderr
    assert run.done.stderr.count("not reset: ") == 1
    counts = json.loads(summary.read_text())["counts"]
    assert (counts["offsets_clamped"], counts["offsets_beyond_end"]) == (3, 1)


@pytest.mark.parametrize(
    ("options", "severity", "verdict"),
    [
        ([], "notable", "4 committed offsets after the log end"),
        (
            ["--clamp-groups"],
            "bad",
            "3 committed offsets reset to the log end, 1 committed offset after the log end",
        ),
    ],
)
def test_restore_page_agrees_with_the_exit_code(
    tmp_path: Path, dump: Path, options: list[str], severity: str, verdict: str
) -> None:
    page = tmp_path / "page.html"

    result = run_here(
        "restore",
        *("--input", dump, "--output", tmp_path / "out", "--config", SETTINGS),
        *("--until", tmp_path / "offsets.csv", "--report", page),
        *options,
    )

    assert result.returncode == {"notable": 0, "bad": 1}[severity], result.stderr
    text = page.read_text(encoding="utf-8")
    assert f'<header class="{severity}">' in text
    assert (
        f"2 partitions restored, nothing lost up to the requested offsets, {verdict}</h1>" in text
    )


def lose_a_record(partition: Path) -> None:
    log = partition / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)


def test_damaged_partition_of_offsets_gets_no_records(tmp_path: Path, dump: Path) -> None:
    lose_a_record(dump / HOME)
    clamp(dump, tmp_path / "plain")

    run = clamp(dump, tmp_path / "out", "--clamp-groups")

    assert run.code == 1
    assert "lost or unreadable" in run.done.stdout
    assert "clamped" not in {row["status"] for row in run.rows}
    assert contents(tmp_path / "out" / HOME) == contents(tmp_path / "plain" / HOME)


def test_end_of_a_partition_that_starts_empty_is_0(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump")
    shutil.rmtree(dump / "orders.eu-west-1")

    run = restore(dump, tmp_path / "out", "--cluster", "same", "--clamp-groups")

    assert run.code == 1
    assert run.partitions("skipped") == {"orders.eu-west-1"}
    (row,) = (row for row in run.rows if row["group"])
    assert (row["status"], row["partition"], row["log_end_offset"]) == ("clamped", 1, 0)
    read = read_metadata([str(tmp_path / "out")], budget=DecompressionBudget(2**24)).offsets
    assert {one.partition: one.offset for one in read or ()} == {0: 1415, 1: 0, 2: 1207}


@pytest.mark.parametrize("is_seeded", [True, False])
def test_skipped_partition_starts_empty_if_the_cluster_has_it(
    tmp_path: Path, dump: Path, *, is_seeded: bool
) -> None:
    lose_a_record(dump / PARTITION)
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    (metadata / "bootstrap.checkpoint").write_bytes((DUMP / "bootstrap.checkpoint").read_bytes())
    (metadata / "meta.properties").write_text(
        "version=1\ncluster.id=fresh\nnode.id=7\ndirectory.id=ZZZZZZZZZZZZZZZZZZZZBw\n"
    )

    seed = ("--seed", metadata) if is_seeded else ()
    run = restore(dump, tmp_path / "out", "--salvage", "none", "--new-topic-ids", *seed)

    assert run.partitions("skipped") == {PARTITION}
    groups = {row["group"]: row["log_end_offset"] for row in run.rows if row["group"]}
    # The transaction that is open is aborted: no coordinator of the new cluster has it.
    names = ("before", "at", "after", "far", "done")
    assert groups == (dict.fromkeys(names, 0) if is_seeded else {})


def test_skipped_partition_with_other_replicas_does_not_start_empty() -> None:
    places = [((1,), ("a",)), ((1, 2), ("a", "b")), ((1,), ("b",)), ((2,), ("a",))]
    partitions = {
        number: PartitionImage(replicas, directories, replicas, (), (), 1, 0, 0, 0, (), ())
        for number, (replicas, directories) in enumerate(places)
    }
    image = ClusterImage(topics={"x": TopicImage("t", "x", partitions)})

    result = single_replica_partitions(image, {"node.id": "1", "directory.id": "a"})

    assert result == {TopicPartition("t", 0)}


def test_clamping_without_consumer_offsets_is_rejected(tmp_path: Path, dump: Path) -> None:
    run = clamp(dump, tmp_path / "out", "--clamp-groups", "--topics", "audit.trail")

    assert run.code == 2
    assert "__consumer_offsets" in run.done.stderr
    assert not (tmp_path / "out").exists()


def kill_while_clamping(dump: Path, out: Path, name: str, times: str) -> None:
    """Restore as `clamp` does, in a process that is killed as `_KILLED` says."""
    arguments = ["--input", dump, "--output", out, "--config", SETTINGS, "--clamp-groups"]
    command = ["restore", *arguments, "--until", out.parent / "offsets.csv", "--threads", 1]
    result = subprocess.run(
        [sys.executable, "-c", _KILLED, name, times, *map(str, command)],
        capture_output=True,
        check=False,
        env=environment(),
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr


def test_restore_killed_while_clamping_is_completed(tmp_path: Path, dump: Path) -> None:
    clamp(dump, tmp_path / "whole", "--clamp-groups")
    out = tmp_path / "out"
    kill_while_clamping(dump, out, HOME, "3")
    assert not (out / MARKER).exists()
    assert not (out / HOME).exists()

    run = clamp(dump, out, "--clamp-groups")

    assert sum(row["status"] == "clamped" for row in run.rows) == 3
    assert contents(out) == contents(tmp_path / "whole")


def test_offsets_clamped_by_a_killed_run_are_reported_by_the_next_run(
    tmp_path: Path, dump: Path
) -> None:
    complete_result = clamp(dump, tmp_path / "whole", "--clamp-groups")
    out = tmp_path / "out"
    kill_while_clamping(dump, out, MARKER, "1")
    inode = (out / HOME).stat().st_ino

    run = clamp(dump, out, "--clamp-groups")

    assert (out / HOME).stat().st_ino == inode
    assert {row["group"]: row["status"] for row in run.rows} == {
        row["group"]: row["status"] for row in complete_result.rows
    }

"""A data directory out of a dump: its files, and the refusals before there is any."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafka_index.commands.restore.output import JOURNAL_FILE, STATE_FILE
from tests.support.command_line import DUMP, run_here
from tests.support.restoring import MARKER, contents, copy_dump, restore

# The broker that wrote the example dump left these otherwise than a recovery does: the epoch of an
# empty log, and a snapshot below the log start.
_AS_RECOVERED = {
    "reserved-for.later-0/leader-epoch-checkpoint",
    "reserved-for.later-1/leader-epoch-checkpoint",
    "shipments.tracking-0/00000000000000001224.snapshot",
}
# Locks of one process do not conflict: another one holds it, until its input ends.
_HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def in_partitions(files: dict[str, bytes]) -> dict[str, bytes]:
    return {
        name: data
        for name, data in files.items()
        if "/" in name and not name.startswith("__cluster_metadata") and name not in _AS_RECOVERED
    }


def test_files_of_partitions_equal_the_files_of_the_broker(tmp_path: Path) -> None:
    run = restore(DUMP, tmp_path / "out")

    assert run.code == 0, run.done.stderr
    assert in_partitions(contents(tmp_path / "out")) == in_partitions(contents(DUMP))
    assert len(run.partitions("restored")) == 24


def test_start_on_the_output_is_predicted_as_safe(tmp_path: Path) -> None:
    restore(DUMP, tmp_path / "out")

    result = run_here("predict", "--input", tmp_path / "out", "--metadata", DUMP)

    assert result.returncode == 0, result.stdout
    assert "\nsafe" in result.stdout


def test_logs_without_other_files_give_the_same_files_with_new_ids(tmp_path: Path) -> None:
    dump = tmp_path / "logs"
    for log in DUMP.glob("payments-*/*.log"):
        (dump / log.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy2(log, dump / log.parent.name)

    refused = restore(dump, tmp_path / "out")
    assert refused.code == 2
    assert "--new-topic-ids" in refused.done.stderr
    assert not (tmp_path / "out").exists()

    run = restore(dump, tmp_path / "out", "--new-topic-ids")
    assert run.code == 0, run.done.stderr
    made, before = contents(tmp_path / "out"), contents(DUMP)
    names = {name for name in made if name.endswith((".index", ".timeindex", ".txnindex"))}
    assert names
    assert all(made[name] == before[name] for name in names)
    ids = {made[f"payments-{n}/partition.metadata"] for n in range(2)}
    assert len(ids) == 1


def test_checkpoints_and_clean_shutdown_file_are_written(tmp_path: Path) -> None:
    restore(DUMP, tmp_path / "out")

    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        made = (tmp_path / "out" / name).read_text().splitlines()
        assert sorted(made) == sorted((DUMP / name).read_text().splitlines())
    assert (tmp_path / "out" / MARKER).read_text() == '{"version":0,"brokerEpoch":-2}'
    ours = [name for name in os.listdir(tmp_path / "out") if "kafka-index" in name]
    assert sorted(ours) == [JOURNAL_FILE, STATE_FILE]


def test_restore_does_not_change_the_dump(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0", "orders.eu-west-1")
    before = contents(dump)

    restore(dump, tmp_path / "out")

    assert contents(dump) == before


@pytest.mark.parametrize("name", ["orders-0", "meta.properties", "notes.txt"])
def test_output_that_is_not_empty_is_rejected(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)

    run = restore(DUMP, out)

    assert run.code == 2
    assert "not empty" in run.done.stderr
    assert os.listdir(out) == [name]


def test_formatted_output_keeps_its_identity(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "meta.properties").write_text("version=1\ncluster.id=new\nnode.id=7\n")

    run = restore(DUMP, out)

    assert run.code == 0, run.done.stderr
    assert "cluster.id=new" in (out / "meta.properties").read_text()


def test_directory_of_a_running_broker_is_rejected(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(out / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        run = restore(DUMP, out)

    assert run.code == 2
    assert "running broker" in run.done.stderr
    assert os.listdir(out) == [".lock"]


def test_output_inside_the_input_is_rejected(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0")

    assert restore(dump, dump / "out").code == 2
    assert not (dump / "out").exists()


def test_hard_links_are_optional_and_exclude_the_active_segment(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "audit.trail-0")

    run = restore(dump, tmp_path / "out", "--link", "hard")

    assert run.code == 0, run.done.stderr
    assert "truncates the log of the dump" in run.done.stdout
    links = {path.name: path.stat().st_nlink for path in (tmp_path / "out/audit.trail-0").iterdir()}
    *rolled, active = sorted(name for name in links if name.endswith(".log"))
    assert {links[name] for name in rolled} == {2}
    assert links[active] == 1
    assert {count for name, count in links.items() if not name.endswith(".log")} == {1}


def test_hard_link_of_a_symbolic_link_is_the_file_of_the_dump(
    tmp_path: Path,
) -> None:
    dump = copy_dump(tmp_path / "dump", "audit.trail-0")
    log = next((dump / "audit.trail-0").glob("00000000000000000000.log"))
    log.rename(tmp_path / "kept.log")
    log.symlink_to(tmp_path / "kept.log")

    restore(dump, tmp_path / "out", "--link", "hard")

    made = tmp_path / "out/audit.trail-0" / log.name
    assert not made.is_symlink()
    assert made.samefile(tmp_path / "kept.log")


def test_hard_link_keeps_the_times_of_the_dump(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "audit.trail-0")
    log = next((dump / "audit.trail-0").glob("00000000000000000000.log"))
    # Reading sets no access time that is ahead of the clock.
    ahead_ns = (int(time.time()) + 1_000_000) * 10**9
    os.utime(log, ns=(ahead_ns, log.stat().st_mtime_ns))

    restore(dump, tmp_path / "out", "--link", "hard")

    assert log.stat().st_nlink == 2
    assert log.stat().st_atime_ns == ahead_ns


def test_partition_with_a_log_start_above_its_end_is_skipped(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0", "orders.eu-west-1")
    (dump / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 99999\n")

    run = restore(dump, tmp_path / "out")
    assert run.code == 1
    assert run.partitions("skipped") == {"payments-0"}
    assert not (tmp_path / "out/payments-0").exists()

    second_result = restore(dump, tmp_path / "again", "--log-start", "payments-0=10")
    assert second_result.code == 0, second_result.done.stdout
    text = (tmp_path / "again/log-start-offset-checkpoint").read_text()
    assert text == "0\n1\npayments 0 10\n"


def test_only_selected_topics_are_restored(tmp_path: Path) -> None:
    run = restore(DUMP, tmp_path / "out", "--topics", "payments|__consumer_offsets")

    assert run.partitions("restored") == {"payments-0", "payments-1", "__consumer_offsets-0"}


def test_report_in_the_working_folder_has_its_runbook_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_dump(Path("dump"), "payments-0")
    result = run_here("restore", "--input", "dump", "--output", "out", "--report", "report.json")
    assert result.returncode == 0, result.stderr
    assert sorted(os.listdir()) == ["dump", "out", "report.json", "report.json.runbook.txt"]
    assert Path("out", MARKER).is_file()

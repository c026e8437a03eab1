"""Restores that were killed: what a second run completes, repeats or refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.output import JOURNAL_FILE, STATE_FILE
from kafka_index.commands.restore.partition import OnFinished, PartitionSettings, engine_runner
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.request import RestoreRequest
from kafka_index.core.format.config import LogConfig
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.parameters import KafkaSettings
from tests.support.command_line import SETTINGS, Argument
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import MARKER, contents, copy_dump, damage, logs, restore

PARTITIONS = ("payments-0", "audit.trail-0", "orders.eu-west-1", "reserved-for.later-0")
#: The share of its calls that a restore has done when it is killed. At the later one, all
#: partitions are in place, and the identity of the output is not.
_IN_PARTITIONS, _AFTER_PARTITIONS = 0.25, 0.977
#: A step that no run reaches.
_NEVER = 1_000_000


class KillRestore(Protocol):
    """Restores in a process that is killed at a share of its calls; whether it was."""

    def __call__(self, dump: Path, output: Path, share: float, *more: Argument) -> bool: ...


@pytest.fixture(scope="module")
def killed_restore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillRestore]:
    def command(dump: Path, output: Path, *more: Argument) -> list[Argument]:
        arguments = ("restore", "--input", dump, "--config", SETTINGS, "--threads", 1, "--quiet")
        return [*arguments, *more, "--output", output]

    def run(dump: Path, output: Path, share: float, *more: Argument) -> bool:
        return runs.run(output, 1 + round(share * calls), *command(dump, output, *more))

    folder = tmp_path_factory.mktemp("killed")
    dump, counted = copy_dump(folder / "dump", *PARTITIONS), folder / "counted"
    with KilledRuns(*command(dump, dump.parent / "warm-up")) as runs:
        calls = runs.failing(counted, _NEVER, Failure.KILL, *command(dump, counted)).calls
        yield run


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "dump", *PARTITIONS)


def finished(output: Path) -> list[str]:
    """The partitions that the journal of an unfinished restore has."""
    lines = (output / JOURNAL_FILE).read_text().splitlines()
    result = [json.loads(line)["partition"] for line in lines]
    return [f"{each['topic']}-{each['partition']}" for each in result]


def test_finished_partitions_are_not_read_again(
    tmp_path: Path, dump: Path, killed_restore: KillRestore
) -> None:
    out = tmp_path / "out"
    assert killed_restore(dump, out, _AFTER_PARTITIONS)
    name = finished(out)[0]
    before = {path.name: path.stat().st_ino for path in (out / name).iterdir()}

    restore(dump, out)

    assert {path.name: path.stat().st_ino for path in (out / name).iterdir()} == before


def test_only_unfinished_partitions_are_restored_again(tmp_path: Path, dump: Path) -> None:
    def half(
        plans: Sequence[PartitionPlan], settings: PartitionSettings, on_finished: OnFinished
    ) -> None:
        engine_runner(ThreadEngine(1))(plans[:2], settings, on_finished)
        raise KeyboardInterrupt

    restore(dump, tmp_path / "whole")
    out = tmp_path / "out"
    config = KafkaSettings(LogConfig.load(SETTINGS))
    request = RestoreRequest(inputs=(str(dump),), output=str(out), config=config)
    with pytest.raises(KeyboardInterrupt):
        RestoreJob.prepare(request).run(half)
    before = {path: path.stat().st_ino for path in out.glob("*-[0-9]/*")}
    assert len({path.parent for path in before}) == 2

    RestoreJob.prepare(request).run(engine_runner(ThreadEngine(1)))

    assert {path: path.stat().st_ino for path in before} == before
    assert contents(out) == contents(tmp_path / "whole")


def test_other_options_do_not_complete_a_restore(
    tmp_path: Path, dump: Path, killed_restore: KillRestore
) -> None:
    out = tmp_path / "out"
    assert killed_restore(dump, out, _IN_PARTITIONS)
    before = contents(out)

    run = restore(dump, out, "--topics", "payments")

    assert run.code == 2
    assert "another input or other options" in run.done.stderr
    assert contents(out) == before


def test_restore_of_another_version_is_rejected_with_a_hint(tmp_path: Path, dump: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / STATE_FILE).write_text('{"version": 1}')

    run = restore(dump, out)

    assert run.code == 2
    assert "this version cannot read the state of a restore" in run.done.stderr
    assert "restore to an empty --output" in run.done.stderr


def test_killed_hard_link_restore_is_not_completed_by_copies(
    tmp_path: Path, dump: Path, killed_restore: KillRestore
) -> None:
    out = tmp_path / "out"
    assert killed_restore(dump, out, _IN_PARTITIONS, "--link", "hard")

    run = restore(dump, out, "--link", "copy")

    assert run.code == 2
    assert "another input or other options" in run.done.stderr
    assert not (out / MARKER).exists()


def test_resumed_restore_has_no_clean_shutdown_file_until_its_end(
    tmp_path: Path, dump: Path
) -> None:
    out = tmp_path / "out"
    request = RestoreRequest(inputs=(str(dump),), output=str(out))
    with pytest.raises(KeyboardInterrupt):
        RestoreJob.prepare(request).run(_interrupted)
    # As after a kill after the last step.
    (out / MARKER).write_text('{"version":0,"brokerEpoch":-2}')

    with pytest.raises(KeyboardInterrupt):
        RestoreJob.prepare(request).run(_interrupted)

    assert not (out / MARKER).exists()


def test_restore_completed_by_a_concurrent_run_is_not_changed(tmp_path: Path, dump: Path) -> None:
    request = RestoreRequest(inputs=(str(dump),), output=str(tmp_path / "out"))
    first, second = RestoreJob.prepare(request), RestoreJob.prepare(request)
    first.run(engine_runner(ThreadEngine(1)))
    before = contents(tmp_path / "out")

    second.run(engine_runner(ThreadEngine(1)))

    assert contents(tmp_path / "out") == before


def test_restore_begun_by_a_concurrent_run_is_completed_with_its_ids(
    tmp_path: Path, dump: Path
) -> None:
    for path in (*dump.glob("*/partition.metadata"), *dump.glob("__cluster_metadata-0/*")):
        path.unlink()
    out = tmp_path / "out"
    request = RestoreRequest(inputs=(str(dump),), output=str(out), new_topic_ids=True)
    job = RestoreJob.prepare(request)
    prepared = job.plan.new_ids["payments"]
    first = RestoreJob.prepare(request)
    with pytest.raises(KeyboardInterrupt):
        first.run(_interrupted)

    job.run(engine_runner(ThreadEngine(1)))

    made = (out / "payments-0/partition.metadata").read_text()
    assert prepared not in made
    assert first.plan.new_ids["payments"] in made


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_output_used_during_the_restore_is_rejected(
    tmp_path: Path, dump: Path, killed_restore: KillRestore
) -> None:
    out = tmp_path / "out"
    assert killed_restore(dump, out, _AFTER_PARTITIONS)
    log = next((out / finished(out)[0]).glob("*.log"))
    os.utime(log, ns=(0, 0))

    run = restore(dump, out)

    assert run.code == 2
    assert "a restored partition was changed" in run.done.stderr
    assert not (out / MARKER).exists()


def test_completed_restore_is_repeated_with_the_same_outcome(tmp_path: Path, dump: Path) -> None:
    damage(logs(dump / PARTITIONS[0])[0])
    first = restore(dump, tmp_path / "out")
    before = contents(tmp_path / "out")
    inodes = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*-[0-9]/*")}

    second = restore(dump, tmp_path / "out")

    assert first.code == second.code == 1
    assert first.rows == second.rows
    assert contents(tmp_path / "out") == before
    assert {path: path.stat().st_ino for path in inodes} == inodes


def test_completed_restore_used_by_a_broker_is_rejected(tmp_path: Path, dump: Path) -> None:
    restore(dump, tmp_path / "out")
    log = logs(tmp_path / "out" / PARTITIONS[0])[-1]
    log.write_bytes(log.read_bytes())
    os.utime(log, ns=(0, 0))
    before = contents(tmp_path / "out")

    run = restore(dump, tmp_path / "out")

    assert run.code == 2
    assert "a restored partition was changed" in run.done.stderr
    assert contents(tmp_path / "out") == before

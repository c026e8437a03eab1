"""Builds that are killed at any moment leave whole files, and the next run mends the rest."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_index.build.partition_record import PARTITION_RECORD
from tests.support.builds import (
    WITHOUT_TRANSACTIONS,
    copy_dump,
    is_transactional,
    names,
    remove_indexes,
    rubbish,
    state,
    with_rows,
)
from tests.support.command_line import SETTINGS, Argument, build_here, index_files
from tests.support.gates import Step
from tests.support.killed_runs import KilledRuns

BROKER, OTHER = 4096, 600
_Files = dict[str, bytes]


class _Dump:
    """The example dump, what undisturbed runs make of it, and runs that are killed."""

    def __init__(self, folder: Path) -> None:
        self.data = copy_dump(folder / "data")
        self.logs = {path: at for path, at in state(self.data).items() if path.endswith(".log")}
        self.expected: dict[int, _Files] = {}
        for interval in (BROKER, OTHER):
            out = folder / f"undisturbed-{interval}"
            done = build_here(*self.options(interval), "--output", out)
            assert done.returncode == 0, done.stderr
            self.expected[interval] = index_files(out)
        self.runs = KilledRuns("build", *self.options(OTHER), "--output", out)

    def options(self, interval: int) -> list[Argument]:
        options: list[Argument] = ["--input", self.data, "--topics", WITHOUT_TRANSACTIONS]
        if interval == BROKER:
            return [*options, "--config", SETTINGS]
        return [*options, "--index-interval-bytes", interval]

    @property
    def segments(self) -> int:
        return len(self.expected[BROKER]) // 2


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Dump]:
    found = _Dump(tmp_path_factory.mktemp("killed"))
    with found.runs:
        yield found


@pytest.fixture(params=["output", "in place"])
def target(request: pytest.FixtureRequest, dump: _Dump, tmp_path: Path) -> Iterator[Path]:
    if request.param == "output":
        yield tmp_path / "out"
        return
    yield dump.data
    remove_indexes(dump.data)


def where(dump: _Dump, target: Path) -> list[Argument]:
    return ["--in-place"] if target == dump.data else ["--output", target]


def check_what_a_kill_left(target: Path, builds: list[_Files]) -> set[str]:
    """Every index is whole and beside the time index of the same build; return those there."""
    found = index_files(target)
    indexes = {name for name in found if name.endswith(".index")}
    for name in indexes:
        pair = name, name.replace(".index", ".timeindex")
        assert pair[1] in found, f"{name} without its .timeindex"
        whole = [tuple(built[part] for part in pair) for built in builds]
        assert tuple(found[part] for part in pair) in whole, f"{name} is not what was built"
    assert not any(map(is_transactional, indexes))
    return indexes


def test_the_undisturbed_run_writes_what_the_broker_wrote(dump: _Dump) -> None:
    broker = {
        name: data
        for name, data in index_files(SETTINGS.parent / "dump").items()
        if not is_transactional(name)
    }
    assert dump.expected[BROKER].items() >= broker.items()
    assert len(dump.expected[BROKER]) == len(broker)
    assert dump.expected[BROKER] != dump.expected[OTHER]


def _steps(segments: int) -> list[Step]:
    some = random.Random(20261121).sample(range(3, segments), 2)
    return [
        Step("open", ".tmp", 1),
        Step("os.rename", ".index", 1),
        *(Step("os.rename", ".index", count) for count in some),
        Step("os.rename", ".kafka-index", 3),
    ]


def test_a_killed_build_is_mended_by_the_next(dump: _Dump, target: Path, tmp_path: Path) -> None:
    options = [*dump.options(BROKER), *where(dump, target), "--threads", 2]
    for step in _steps(dump.segments):
        remove_indexes(target)
        dump.runs.kill_at(step, "build", *options)
        there = check_what_a_kill_left(target, [dump.expected[BROKER]])
        if step.ending == ".index":
            # The other thread may have been on its way to rename one more.
            assert len(there) in range(max(step.count - 2, 0), step.count + 2)
        found = list(names(target))
        partitions = {os.path.dirname(path) for path in found if path.endswith(PARTITION_RECORD)}
        recorded = sum(os.path.dirname(path) in partitions for path in there)

        done, rows = with_rows(build_here, tmp_path, *options)

        assert done.returncode == 0, done.stderr
        assert index_files(target) == dump.expected[BROKER]
        assert rubbish(target) == []
        statuses = [row["status"] for row in rows]
        assert len(statuses) == dump.segments
        # The partitions that were finished are not done again.
        assert statuses.count("unchanged") == recorded <= len(there)
        assert statuses.count("built") == dump.segments - statuses.count("unchanged")


def test_a_build_killed_over_older_files_leaves_pairs_of_one_build(
    dump: _Dump, target: Path
) -> None:
    generator = random.Random(7)
    place = [*where(dump, target), "--threads", 2]
    assert build_here(*dump.options(OTHER), *place).returncode == 0
    both = [dump.expected[BROKER], dump.expected[OTHER]]
    for interval, ending in ((BROKER, ".index"), (OTHER, ".timeindex"), (BROKER, ".index")):
        step = Step("os.rename", ending, generator.randrange(1, dump.segments))
        dump.runs.kill_at(step, "build", *dump.options(interval), *place)
        check_what_a_kill_left(target, both)

    done = build_here(*dump.options(BROKER), *place)

    assert done.returncode == 0, done.stderr
    assert index_files(target) == dump.expected[BROKER]
    assert rubbish(target) == []


def test_a_build_killed_again_and_again_gets_done(dump: _Dump, tmp_path: Path) -> None:
    generator = random.Random(20261121)
    target = tmp_path / "out"
    options = [*dump.options(BROKER), "--output", target, "--threads", 2]
    # So few that all of them together are not the whole build.
    counts = [generator.randrange(1, 30) for _ in range(4)]
    steps = [
        Step("open", ".tmp", counts[0]),
        Step("os.rename", "", counts[1]),
        Step("open", ".log", counts[2]),
        Step("os.rename", "", counts[3]),
    ]
    for step in steps:
        dump.runs.kill_at(step, "build", *options)
        check_what_a_kill_left(target, [dump.expected[BROKER]])

    assert build_here(*options).returncode == 0
    assert index_files(target) == dump.expected[BROKER]
    assert rubbish(target) == []


def test_the_logs_are_as_they_were(dump: _Dump) -> None:
    assert dump.logs.items() <= state(dump.data).items()

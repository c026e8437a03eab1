"""Builds of transactional logs that are killed: a broker is never told that nothing was aborted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builds import rubbish
from tests.support.command_line import Argument, build_here
from tests.support.gates import Step
from tests.support.killed_runs import KilledRuns
from tests.support.transactional_logs import built_files, log_path, segments, write

PARTITIONS = ("pay.x-y-0", "pay.x-y-1")
COUNT = 12
_Files = dict[str, bytes]


class _Dump:
    """Logs that were built, and have changed since; and what undisturbed builds make of both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.out = root / "out"
        self.builds: list[_Files] = []
        for day, turned in enumerate((True, False)):
            for name in PARTITIONS:
                logs = segments(COUNT, value_size=40 + 10 * day, turned=turned)
                write(self.data / name, logs, day=day)
            undisturbed = root / f"undisturbed-{day}"
            assert build_here("--input", self.data, "--output", undisturbed).returncode == 0
            self.builds.append(built_files(undisturbed))
        self.runs = KilledRuns("build", "--input", self.data, "--output", undisturbed)

    def lay_out_old_files(self, target: Path) -> None:
        for path in list(target.glob("*/*")):
            if path.suffix != ".log":
                path.unlink()
        for name, content in self.builds[0].items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Dump]:
    found = _Dump(tmp_path_factory.mktemp("killed"))
    with found.runs:
        yield found
    shutil.rmtree(found.root)


def files_of(target: Path) -> _Files:
    """The files that builds left below a folder, but for empty transaction indexes.

    Where there was one, and nothing is aborted now, an empty one stays, as a broker leaves it.
    """
    found = built_files(target)
    return {name: data for name, data in found.items() if data or not name.endswith(".txnindex")}


def check_what_a_kill_left(target: Path, builds: list[_Files]) -> int:
    """Every index is beside what belongs to it; return how many of the last build there are."""
    found = files_of(target)
    new = 0
    for name in found:
        if name.endswith(".index"):
            stem = name.removesuffix("index")
            parts = [f"{stem}{kind}" for kind in ("index", "timeindex", "txnindex")]
            together = [found.get(part) for part in parts]
            of_each = [[one.get(part) for part in parts] for one in builds]
            assert together in of_each, name
            new += together == of_each[-1]
    for name, content in found.items():
        if name.endswith(".snapshot"):
            assert content in [one.get(name) for one in builds], name
    return new


@pytest.mark.parametrize("in_place", [False, True], ids=["output", "in place"])
def test_a_killed_build_leaves_old_files_or_new_ones_and_the_next_finishes(
    dump: _Dump, *, in_place: bool
) -> None:
    target = dump.data if in_place else dump.out
    where: list[Argument] = ["--in-place"] if in_place else ["--output", target]
    options = ["--input", dump.data, *where, "--threads", 2]
    some = random.Random(20261121)
    left = []
    counts = (1, *(some.randrange(3, 2 * COUNT) for _ in range(2)))
    for count, ending in zip(counts, (".index", ".timeindex", ".index"), strict=True):
        dump.lay_out_old_files(target)
        dump.runs.kill_at(Step("os.rename", ending, count), "build", *options)
        left.append(check_what_a_kill_left(target, dump.builds))

        done = build_here(*options)

        assert done.returncode == 0, done.stderr
        assert files_of(target) == dump.builds[1]
        assert rubbish(target) == []
    total = len(PARTITIONS) * COUNT
    assert any(0 < count < total for count in left), left
    assert log_path(dump.data / PARTITIONS[0], 0).stat().st_mtime == 86400

"""Disks that are full: nothing mounts that is not whole, and a rerun with room tells all losses."""

from __future__ import annotations

import random
import subprocess
from contextlib import ExitStack
from itertools import permutations, product
from pathlib import Path

import pytest

from tests.support.builds import small_disk
from tests.support.campaign import sample_size
from tests.support.command_line import run_here
from tests.support.restoring import (
    MARKER,
    Places,
    check_loadable_only_if_complete,
    contents,
    copy_dump,
    damaged_dump,
    restore,
)

#: The disks of the output, of the controller to seed, and of the report.
_DISKS = ("out", "metadata", "reports")
_ORDERS = list(permutations(_DISKS))
#: The room of each when the restore begins: none, for a part, or for all.
_CASES = list(product(_ORDERS, product(("none", "part", "all"), repeat=3)))
_RANDOM_CASES = sample_size(len(_CASES), one_in=27)
_DAMAGE, _ENVIRONMENT = 1, 3
_PAGE = 4096


def test_full_disk_leaves_no_clean_shutdown_file_and_a_rerun_completes(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "audit.trail-0", "payments-0", "orders.eu-west-1")
    restore(dump, tmp_path / "complete_files")
    with small_disk(tmp_path / "small", "256k") as mounted:
        run = restore(dump, mounted / "out")

        assert run.code == 3, run.done.stdout + run.done.stderr
        assert "no space left" in run.done.stdout + run.done.stderr
        assert not (mounted / "out" / MARKER).exists()
        assert not (mounted / "out/meta.properties").exists()

        _resize(mounted, 64 << 20)
        run = restore(dump, mounted / "out")

        assert run.code == 0, run.done.stdout + run.done.stderr
        assert contents(mounted / "out") == contents(tmp_path / "complete_files")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damaged_dump(tmp_path_factory.mktemp("disks") / "dump")


@pytest.fixture(scope="module")
def complete_files(dump: Path) -> dict[str, bytes]:
    """The files of a restore with enough room."""
    return Places(dump.parent / "complete_files").restored(dump)


@pytest.mark.parametrize(
    "number",
    range(0, len(_CASES), len(_CASES) // _RANDOM_CASES),
    ids=lambda number: f"case-{number}",
)
def test_full_disks_leave_no_partial_restore_on_which_a_broker_starts(
    tmp_path: Path, dump: Path, complete_files: dict[str, bytes], number: int
) -> None:
    order, rooms = _CASES[number]
    draw = random.Random(number)
    root = tmp_path / "root"
    root.mkdir()
    with ExitStack() as stack:
        for name in _DISKS:
            stack.enter_context(small_disk(root / name, "64m"))
        places = Places(root).make()
        before = places.written()
        for name, room in zip(_DISKS, rooms, strict=True):
            needed = sum(
                len(data) for path, data in complete_files.items() if path.startswith(f"{name}/")
            )
            part = draw.randrange(0, needed) if room == "part" else 0
            if room != "all":
                _resize(root / name, _used_bytes(root / name) + part)
        for freed in (*order, None):
            run = run_here(*map(str, places.command(dump)))
            assert run.returncode in (_DAMAGE, _ENVIRONMENT), run.stderr
            if places.written() != before:
                check_loadable_only_if_complete(places.written(), complete_files)
            if run.returncode == _DAMAGE:
                break
            assert freed is not None, run.stderr
            _resize(root / freed, 64 << 20)
        assert {name: places.written().get(name) for name in complete_files} == complete_files


def _used_bytes(disk: Path) -> int:
    result = subprocess.run(
        ["stat", "-f", "-c", "%b %f %S", str(disk)], check=True, capture_output=True, text=True
    )
    blocks, free, size = map(int, result.stdout.split())
    return (blocks - free) * size


def _resize(disk: Path, size_bytes: int) -> None:
    # tmpfs takes no limit below what is used, and a size of 0 is no limit.
    size = max(-(-size_bytes // _PAGE), 1) * _PAGE
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)

"""Builds after builds: whatever changed in between, the files are those of a build from nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_index.core.log.recovery.build_manifest import BUILD_MANIFEST
from tests.support.builds import build_with_report, leftover_files, state
from tests.support.command_line import Argument, build_here
from tests.support.segments import batch
from tests.support.transactional_logs import built_files, log_path, segments, write

FOLDER = "pay.x-y-0"
COUNT = 5
LOGS = segments(COUNT + 1)
BASES = sorted(LOGS)
_Files = dict[str, bytes]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data" / FOLDER, {base: LOGS[base] for base in BASES[:COUNT]})


def run(root: Path, data: Path, *options: Argument) -> tuple[int, list[dict[str, Any]]]:
    done, rows = build_with_report(build_here, root, "--input", data, *options)
    assert done.stderr == ""
    assert leftover_files(root) == []
    return done.returncode, rows


def from_nothing(tmp_path: Path, data: Path) -> _Files:
    """The files of a build of the logs as they are, into an empty folder."""
    bare = tmp_path / "bare"
    shutil.copytree(data, bare, ignore=lambda _, names: {n for n in names if not is_log(n)})
    code, rows = run(tmp_path, bare, "--output", tmp_path / "from-nothing")
    assert code == 0, rows
    return built_files(tmp_path / "from-nothing")


def is_log(name: str) -> bool:
    return name.endswith(("-0", ".log", ".log.swap"))


def check_rerun(root: Path, data: Path, where: list[Argument], target: Path) -> None:
    """Nothing is written once everything is right."""
    before = state(target / FOLDER)
    code, rows = run(root, data, *where)
    after = state(target / FOLDER)
    assert (code, {row["status"] for row in rows}) == (0, {"unchanged"})
    # The probe of whether the folder can be written has come and gone.
    assert after.pop(".")[:3] == before.pop(".")[:3]
    assert after == before


# --------------------------------------------------------------------------- logs that changed


def _go_on(folder: Path) -> None:
    write(folder, {BASES[COUNT]: LOGS[BASES[COUNT]]})


def _roll_empty(folder: Path) -> None:
    write(folder, {BASES[COUNT]: b""})


def _turn_the_second(folder: Path) -> None:
    write(folder, {BASES[1]: segments(COUNT, turned=True)[BASES[1]]}, day=2)


def _compact_the_third(folder: Path) -> None:
    write(folder, {BASES[2]: batch(BASES[2], 1, leader_epoch=1), BASES[3]: b""}, day=2)


def _swap_the_third(folder: Path) -> None:
    path = log_path(folder, BASES[2])
    path.rename(path.with_suffix(".log.swap"))


def _cut_the_end_off(folder: Path) -> None:
    log_path(folder, BASES[4]).unlink()
    log_path(folder, BASES[3]).unlink()


def _whole_end(log: bytes, size: int) -> bytes:
    """The batches in front of a position."""
    position = 0
    while position + 12 + int.from_bytes(log[position + 8 : position + 12]) <= size:
        position += 12 + int.from_bytes(log[position + 8 : position + 12])
    return log[:position]


def _shorten_the_second(folder: Path) -> None:
    log = LOGS[BASES[1]]
    write(folder, {BASES[1]: _whole_end(log, len(log) // 2)}, day=2)


@pytest.mark.parametrize("in_place", [False, True], ids=["output", "in place"])
@pytest.mark.parametrize(
    "change",
    [
        _go_on,
        _roll_empty,
        _turn_the_second,
        _compact_the_third,
        _shorten_the_second,
        _swap_the_third,
        _cut_the_end_off,
    ],
)
def test_changed_logs_are_built_like_new_logs(
    data: Path, tmp_path: Path, change: Callable[[Path], None], *, in_place: bool
) -> None:
    target = data if in_place else tmp_path / "out"
    where: list[Argument] = ["--in-place"] if in_place else ["--output", target]
    assert run(tmp_path, data, *where)[0] == 0
    before = built_files(target)
    change(data / FOLDER)
    expected = from_nothing(tmp_path, data)
    assert expected != before

    code, rows = run(tmp_path, data, *where)

    assert code == 0, rows
    actual = built_files(target)
    # Files of segments that are gone are nobody's; but a snapshot could be loaded by mistake.
    left = actual.keys() - expected.keys()
    assert {name for name in left if name.endswith(".snapshot")} == set()
    assert left <= before.keys()
    assert {name: actual[name] for name in expected} == expected
    check_rerun(tmp_path, data, where, target)


# -------------------------------------------------------------------------- files that changed


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("change", [_flip, _empty, Path.unlink])
@pytest.mark.parametrize(
    "name",
    [
        f"{BASES[2]:020d}.txnindex",
        f"{BASES[2]:020d}.snapshot",
        f".{BASES[2]:020d}.kafka-index-state",
        "leader-epoch-checkpoint",
    ],
)
def test_changed_output_files_are_restored_by_the_next_build(
    data: Path, tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    where: list[Argument] = ["--output", tmp_path / "out"]
    assert run(tmp_path, data, *where)[0] == 0
    expected = built_files(tmp_path / "out")
    change(tmp_path / "out" / FOLDER / name)

    code, rows = run(tmp_path, data, *where)

    assert code == 0
    assert built_files(tmp_path / "out") == expected
    # Those behind it need not be scanned again.
    built = [row["segment_base_offset"] for row in rows if row["status"] == "built"]
    assert built in ([BASES[2]], []), name
    check_rerun(tmp_path, data, where, tmp_path / "out")


@pytest.mark.parametrize("change", [_flip, _empty, Path.unlink])
def test_partition_without_its_manifest_is_built_again(
    data: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    where: list[Argument] = ["--output", tmp_path / "out"]
    assert run(tmp_path, data, *where)[0] == 0
    expected = built_files(tmp_path / "out")
    change(tmp_path / "out" / FOLDER / BUILD_MANIFEST)

    code, rows = run(tmp_path, data, *where)

    assert (code, [row["status"] for row in rows]) == (0, ["built"] * COUNT)
    assert built_files(tmp_path / "out") == expected
    check_rerun(tmp_path, data, where, tmp_path / "out")


def test_output_of_an_older_version_without_state_is_built_again(
    data: Path, tmp_path: Path
) -> None:
    where: list[Argument] = ["--output", tmp_path / "out"]
    assert run(tmp_path, data, *where, "--what", "index,timeindex")[0] == 0
    expected = from_nothing(tmp_path, data)

    code, rows = run(tmp_path, data, *where)

    assert (code, [row["status"] for row in rows]) == (0, ["built"] * COUNT)
    assert built_files(tmp_path / "out") == expected


def test_unknown_snapshot_is_removed_as_by_a_broker(data: Path, tmp_path: Path) -> None:
    assert run(tmp_path, data, "--in-place")[0] == 0
    expected = built_files(data)
    for offset in (BASES[2] + 1, 10**6):
        (data / FOLDER / f"{offset:020d}.snapshot").write_bytes(b"of nobody")

    assert run(tmp_path, data, "--in-place")[0] == 0

    assert built_files(data) == expected


def test_in_place_snapshot_at_the_log_start_has_the_earlier_producers(
    data: Path, tmp_path: Path
) -> None:
    assert run(tmp_path, data, "--in-place")[0] == 0
    complete_files = built_files(data)
    for path in (data / FOLDER).glob(f"*{BASES[0]:020d}.*"):
        path.unlink()

    code, rows = run(tmp_path, data, "--in-place", "--force")

    assert code == 0
    assert rows[0]["note"] == f"earlier producers were loaded from {BASES[1]:020d}.snapshot"
    kept = {name: data for name, data in complete_files.items() if f"{BASES[0]:020d}" not in name}
    epochs = f"{FOLDER}/leader-epoch-checkpoint"
    result = built_files(data)
    assert result.pop(epochs) == kept.pop(epochs)
    assert result == kept

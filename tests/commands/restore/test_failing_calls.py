"""Restores of which any call fails: no broker starts on a part, and a rerun tells all losses."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.campaign import drawn
from tests.support.command_line import run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import Places, check_mountable_only_if_whole, damaged_dump

_FAILURES = (Failure.KILL, Failure.DISK, Failure.FULL, Failure.DENIED)
_DRAWN = drawn(300, one_in=30)
_DAMAGE, _ENVIRONMENT, _USAGE = 1, 3, 2
#: A step that no run reaches.
_NEVER = 1_000_000


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of which a restore loses records."""
    return damaged_dump(tmp_path_factory.mktemp("failing") / "dump")


@pytest.fixture(scope="module")
def whole(dump: Path) -> dict[str, bytes]:
    """The files of a restore that nothing interrupts."""
    return Places(dump.parent / "whole").restored(dump)


@pytest.fixture(scope="module")
def runs(dump: Path) -> Iterator[KilledRuns]:
    with KilledRuns(*Places(dump.parent / "warm-up").make().command(dump)) as runs:
        yield runs


@pytest.fixture(scope="module")
def calls(dump: Path, runs: KilledRuns) -> dict[Failure, int]:
    """The number of calls of a restore of the dump that each failure can meet."""
    counted = {}
    for failure in _FAILURES:
        places = Places(dump.parent / failure).make()
        ended = runs.failing(places.root, _NEVER, failure, *places.command(dump))
        counted[failure] = ended.calls
    return counted


@pytest.mark.parametrize("failure", _FAILURES)
@pytest.mark.parametrize("number", range(_DRAWN))
def test_no_broker_starts_on_a_part_and_a_rerun_is_as_if_nothing_had_failed(
    tmp_path: Path,
    dump: Path,
    whole: dict[str, bytes],
    runs: KilledRuns,
    calls: dict[Failure, int],
    number: int,
    failure: Failure,
) -> None:
    places = Places(tmp_path / "root").make()
    step = 1 + number * calls[failure] // _DRAWN
    code = runs.failing(places.root, step, failure, *places.command(dump)).code

    assert code in (_DAMAGE, _ENVIRONMENT, -signal.SIGKILL)
    written = places.written()
    is_untouched = not any(name.startswith("out/payments") for name in written)
    if not is_untouched:
        check_mountable_only_if_whole(written, whole)
    if code != _DAMAGE:
        assert run_here(*map(str, places.command(dump))).returncode == _DAMAGE
    assert {name: places.written().get(name) for name in whole} == whole


def test_restore_with_failed_last_call_is_complete_and_repeatable(
    tmp_path: Path, dump: Path, whole: dict[str, bytes], runs: KilledRuns, calls: dict[Failure, int]
) -> None:
    places = Places(tmp_path / "root").make()

    # The last call publishes the summary: the restore is complete before.
    step = calls[Failure.DISK]
    assert runs.failing(places.root, step, Failure.DISK, *places.command(dump)).code == _ENVIRONMENT
    assert {name: places.written().get(name) for name in whole} == whole
    assert run_here(*map(str, places.command(dump))).returncode == _DAMAGE
    assert {name: places.written().get(name) for name in whole} == whole

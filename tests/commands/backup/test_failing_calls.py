"""Backups of which any call on the repository fails: it is as before, or has one more whole run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafka_index
from tests.commands.backup.repositories import verify
from tests.support.campaign import sample_size
from tests.support.command_line import Argument, run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import contents, copy_dump

_FAILURES = (Failure.KILL, Failure.DISK, Failure.FULL, Failure.DENIED)
_RANDOM_CASES = sample_size(200, one_in=40)
_DONE, _ENVIRONMENT = 0, 3
#: A step that no run reaches.
_NEVER = 1_000_000


def command(dump: Path, repository: Path) -> list[Argument]:
    return ["backup", "--quiet", "--input", dump, "--output", repository]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump that has more than its first run, which is in `repository` beside it."""
    root = tmp_path_factory.mktemp("failing")
    earlier = copy_dump(root / "earlier", "payments-0", "__transaction_state-0")
    result = run_here(*map(str, command(earlier, root / "repository")))
    assert result.returncode == _DONE, result.stderr
    names = ("payments-0", "payments-1", "audit.trail-0", "__transaction_state-0")
    return copy_dump(root / "dump", *names)


@pytest.fixture(scope="module")
def runs(dump: Path) -> Iterator[KilledRuns]:
    with KilledRuns(*command(dump, dump.parent / "warm-up")) as runs:
        yield runs


@pytest.fixture(scope="module")
def calls(dump: Path, runs: KilledRuns) -> dict[Failure, int]:
    """The number of calls of a run that each failure can meet."""
    counted = {}
    for failure in _FAILURES:
        repository = shutil.copytree(dump.parent / "repository", dump.parent / failure)
        ended = runs.failing(repository, _NEVER, failure, *command(dump, repository))
        assert ended.code == _DONE
        assert ended.calls > len(list(repository.rglob("*.log")))
        counted[failure] = ended.calls
    return counted


@pytest.mark.parametrize("failure", _FAILURES)
@pytest.mark.parametrize("number", range(_RANDOM_CASES))
def test_failed_call_leaves_the_repository_unchanged_or_with_one_more_complete_backup(
    tmp_path: Path,
    dump: Path,
    runs: KilledRuns,
    calls: dict[Failure, int],
    number: int,
    failure: Failure,
) -> None:
    repository = shutil.copytree(dump.parent / "repository", tmp_path / "repository")
    before = contents(repository)
    step = 1 + number * calls[failure] // _RANDOM_CASES
    ended = runs.failing(repository, step, failure, *command(dump, repository))

    assert ended.code in (_DONE, _ENVIRONMENT, -signal.SIGKILL), ended
    after = contents(repository)
    assert before.items() <= after.items()
    rows = kafka_index.open_backup(repository).rows
    assert rows.num_rows in (1, 2)
    assert set(rows["status"].to_pylist()) == {"complete"}
    assert verify(str(repository)).ok
    if ended.code == _DONE:
        assert rows.num_rows == 2
    # The next run takes all, whatever the failed one has left.
    result = run_here(*map(str, command(dump, repository)))
    assert result.returncode == _DONE, result.stderr
    newest = kafka_index.open_backup(repository).newest
    assert newest is not None
    assert newest["partitions"] == 4
    assert verify(str(repository)).ok

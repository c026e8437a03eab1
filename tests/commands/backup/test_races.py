"""Backups, expirings, readers and verifications of one repository beside each other.

Two brokers' logs grow, are cut back and come back with the same batches, so that objects are wanted
again which no manifest has named for long. All but the readers are killed at random.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import kafka_index
from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.registry import store_of
from tests.commands.backup.fake_broker import PARTITIONS, StoppedBroker
from tests.commands.backup.repositories import NEWEST_ONLY, expire, verify
from tests.commands.backup.unsafe_expiration import UnsafeExpiration
from tests.support.campaign import sample_size
from tests.support.command_line import Argument
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.timeouts import scaled

_SECONDS = sample_size(640, one_in=70)
#: In full, a folder and a bucket.
_PLACES = ("folder", "bucket")[: sample_size(2, one_in=2)]
#: In full, slower ones, for a busy machine.
_RULES = (
    UnsafeExpiration(longest_run=3, clocks=1.2, settled=1),
    UnsafeExpiration(longest_run=10, clocks=4, settled=3),
)[sample_size(2, one_in=2) - 1]
_KEEP = ("--keep-last", 1, "--keep-daily", 0, "--keep-weekly", 0, "--keep-monthly", 0)
_DONE, _ENVIRONMENT = 0, 3
_WANTED = ("expired runs", "deleted objects", "reads", "slow reads", "verifications")
_KILLED_ONE_IN = 4
_HEADLINE = re.compile(r"([\d,]+) runs? expired, .*; ([\d,]+) objects? of")
#: A call that no run reaches.
_NEVER = 1_000_000


@dataclass
class _ConcurrentLoops:
    """Loops beside each other, until a time and all that is wanted has come, or a fault."""

    seconds: float
    has_all: Callable[[], bool]
    faults: list[BaseException] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    def _is_over(self) -> bool:
        passed = time.monotonic() - self._began
        return passed > (self.seconds if self.has_all() else scaled(self.seconds))

    def loop(self, act: Callable[[], object]) -> None:
        def run() -> None:
            try:
                while not self.faults and not self._is_over():
                    act()
            except BaseException as error:  # noqa: BLE001, which is raised by `join`
                self.faults.append(error)

        self._threads.append(threading.Thread(target=run))

    def join(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        for fault in self.faults:
            raise fault


class _Killed:
    """Runs of the command line. Some are killed after a random time or at a random call."""

    def __init__(self, runs: KilledRuns, root: str, draw: random.Random) -> None:
        self._runs, self._root, self._draw = runs, root, draw

    def run(self, *arguments: Argument) -> int:
        if self._draw.randrange(_KILLED_ONE_IN):
            return self.whole(*arguments)
        failure = self._draw.choice([Failure.KILL, Failure.TIME])
        step = self._draw.randrange(1, 120 if failure is Failure.KILL else 500)
        ended = self._runs.failing(Path(self._root), step, failure, *arguments)
        assert ended.code in (_DONE, _ENVIRONMENT, -signal.SIGKILL), ended
        self.stdout = ended.stdout
        return ended.code

    def whole(self, *arguments: Argument) -> int:
        ended = self._runs.failing(Path(self._root), _NEVER, Failure.KILL, *arguments)
        assert ended.code in (_DONE, _ENVIRONMENT), ended
        self.stdout = ended.stdout
        return ended.code


def _records_of(path: str) -> dict[str, list[int]]:
    """Return the offsets of the records in a run, by partition."""
    rows = kafka_index.read_records(path).to_arrow()
    result: dict[str, list[int]] = {name: [] for name in PARTITIONS}
    columns = (rows[column].to_pylist() for column in ("topic", "partition", "offset"))
    for topic, partition, offset in zip(*columns, strict=True):
        result[f"{topic}-{partition}"].append(offset)
    return result


def _below(root: str, folder: str) -> set[str]:
    pages = store_of(root).list_tree(f"{root}/{folder}")
    return {path for page in pages for path in page["path"].to_pylist()}


@pytest.fixture(params=_PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """A kind of repository."""
    return str(request.param)


@pytest.fixture
def root(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a repository."""
    if place == "folder":
        return str(tmp_path / "repository")
    return f"{request.getfixturevalue('bucket')}/backups"


@pytest.fixture
def rules() -> Iterator[UnsafeExpiration]:
    """Rules by which a day lasts some seconds."""
    with _RULES.apply():
        yield _RULES


class _Race:
    """All that is done to a repository, each in a loop of its own."""

    def __init__(self, root: str, rules: UnsafeExpiration, folder: Path) -> None:
        self.root, self.rules = root, rules
        self.counts: Counter[str] = Counter()
        self.brokers = [StoppedBroker(folder / f"broker{n}", n, random.Random(n)) for n in (1, 2)]
        self._draw = random.Random(3)
        self._newest = ""
        self.longest_pause_s = 0.0

    def back_up(self, broker: StoppedBroker, runs: _Killed) -> None:
        broker.change()
        # Both together in some seconds, and each alone in the others.
        nodes = str(broker.node_id) if int(time.time()) % 4 else "1,2"
        code = runs.run(*broker.command(self.root, nodes))
        self.counts[f"backups that ended with {code}"] += 1
        time.sleep(self._draw.choice([0, 0.02, 0.1]))
        time.sleep(0 if self._draw.randrange(20) else self.rules.longest_run / 2)

    def expire_killed(self, runs: _Killed) -> None:
        code = runs.run("backups", "expire", self.root, *_KEEP)
        self.counts[f"expirings that ended with {code}"] += 1
        for expired, deleted in _HEADLINE.findall(runs.stdout):
            self.counts["expired runs"] += int(expired)
            self.counts["deleted objects"] += int(deleted)

    def expire(self) -> None:
        result = expire(self.root, **NEWEST_ONLY)
        self.counts["expired runs"] += result.counts["expired"]
        self.counts["deleted objects"] += result.deleted_objects
        time.sleep(0.1)

    def checked(self, act: Callable[[], None]) -> None:
        """Read something, which may fail only where it takes longer than a day.

        It may fail, too, where processes have stood still for longer than the rules allow for.
        """
        began = time.monotonic()
        try:
            act()
        except (AssertionError, KafkaIndexError):
            is_quick = time.monotonic() - began < self.rules.longest_run - self.rules.clocks
            if is_quick and self.longest_pause_s < self.rules.settled / 2:
                raise
            self.counts["reads that took days"] += 1

    def watch(self) -> None:
        """Note for how long a process may stand still here."""
        began = time.monotonic()
        time.sleep(0.05)
        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began - 0.05)

    def read(self) -> None:
        result = open_repository(self.root).find_backup()
        assert result >= self._newest, "a run is gone, and none is newer"
        self._newest = result
        for offsets in _records_of(f"backup:{self.root}").values():
            assert offsets == [*range(len(offsets))]
        self.counts["reads"] += 1
        time.sleep(0.05)

    def read_slowly(self) -> None:
        repository = open_repository(self.root)
        run, brokers = self._draw.choice([*repository.brokers_by_backup().items()])
        # A run that is not complete may become so meanwhile.
        if repository.complete_manifests(run, brokers):
            path = f"backup:{self.root}@{run}"
            records = _records_of(path)
            time.sleep(self.rules.longest_run * self._draw.random() / 3)
            assert _records_of(path) == records
            self.counts["slow reads"] += 1

    def verify(self) -> None:
        result = verify(self.root)
        assert result.ok, [(row["path"], row["reason"]) for row in result.printed_rows.to_pylist()]
        self.counts["verifications"] += 1
        time.sleep(0.1)


def test_listed_backup_stays_complete_under_concurrent_expiration(
    root: str, rules: UnsafeExpiration, tmp_path: Path
) -> None:
    race = _Race(root, rules, tmp_path)
    warm_up = race.brokers[0].command(tmp_path / "warm-up", "1")
    prepared = ["tests.commands.backup.unsafe_expiration"]
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        started = [
            stack.enter_context(killed_runs)
            for killed_runs in pool.map(lambda _: KilledRuns(*warm_up, prepared=prepared), range(3))
        ]
        killed = [
            _Killed(killed_runs, root, random.Random(n)) for n, killed_runs in enumerate(started)
        ]
        assert killed[0].whole(*race.brokers[0].command(root, "1")) == _DONE
        beside = _ConcurrentLoops(_SECONDS, lambda: all(race.counts[name] for name in _WANTED))
        for broker, runs in zip(race.brokers, killed, strict=False):
            beside.loop(partial(race.back_up, broker, runs))
        beside.loop(partial(race.expire_killed, killed[2]))
        beside.loop(race.expire)
        beside.loop(race.watch)
        for act in (race.read, race.read_slowly, race.verify):
            beside.loop(partial(race.checked, act))
        beside.join()

    print(dict(race.counts), race.longest_pause_s)
    assert all(race.counts[name] for name in _WANTED), race.counts
    assert verify(root).ok
    # Nobody is there any more: runs that were under way expire, and what no manifest names goes.
    for _ in range(2):
        expire(root, **NEWEST_ONLY)
        time.sleep(rules.spared + 1.1)
    for _ in range(2):
        expire(root, **NEWEST_ONLY)
    repository = open_repository(root)
    object_paths = {
        f"{partition.folder}/{stored_object.object_name}".removeprefix("data/")
        for run, nodes in repository.brokers_by_backup().items()
        for manifest in (repository.manifest(run, node_id) for node_id in nodes)
        for partition in manifest.partitions
        for stored_object in partition.objects
    }
    assert _below(root, "data") == object_paths
    folders = ("runs", "expired", "announced", "barriers")
    below = {path for folder in folders for path in _below(root, folder)}
    assert not {path for path in below if path.endswith(".tmp")}
    assert not _below(root, "expired")

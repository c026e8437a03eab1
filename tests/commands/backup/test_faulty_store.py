"""Backups in an object store that fails: it is as before, or has one more whole run.

A request is refused, or dropped before the store sees it, or done and not answered, or cut in its
answer: a fifth of all requests, or the n-th one, or all from the n-th one on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import kafka_index
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.registry import store_of
from tests.commands.backup.fake_broker import PARTITIONS, StoppedBroker
from tests.commands.backup.repositories import verify
from tests.commands.backup.unsafe_expiration import UnsafeExpiration
from tests.servers.faults import MANY, NONE, FaultProxy, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.campaign import sample_size
from tests.support.command_line import SETTINGS, Argument
from tests.support.killed_runs import EndedRun, Failure, KilledRuns
from tests.support.remote import new_bucket
from tests.support.restoring import contents
from tests.support.timeouts import TIMEOUT_SECONDS

_DONE, _ENVIRONMENT = 0, 3
_FAULTS = ("unavailable", "dropped", "unanswered", "cut")
_BACKUPS = ("first", "next", "two")
_OTHERS = ("list", "verify", "expire", "restore", "read")
_KEEP = ("--keep-last", 2, "--keep-daily", 0, "--keep-weekly", 0, "--keep-monthly", 0)
_ROUNDS = sample_size(60, one_in=60)
_STEPS = sample_size(240, one_in=40)
_PREPARED = ("tests.commands.backup.unsafe_expiration", "tests.servers.no_waits")
#: Objects are deleted, too, once there were rounds for a minute.
_RULES = UnsafeExpiration(longest_run=30, clocks=10, settled=0.3)


@dataclass
class _Faulty:
    """Two brokers, and processes that run commands on a bucket behind a proxy."""

    proxy: FaultProxy
    bucket: str
    folder: Path
    brokers: tuple[StoppedBroker, ...]
    processes: tuple[KilledRuns, ...]
    root: str = ""
    #: Requests of each command without faults.
    requests: dict[str, int] = field(default_factory=dict)
    count: int = 0
    complaints: list[str] = field(default_factory=list)

    def run(self, *arguments: Argument, process: int = 0) -> EndedRun:
        """Run a command, which ends by itself, and fails at most for its environment."""
        limit = int(TIMEOUT_SECONDS * 100)
        ended = self.processes[process].failing(Path("/"), limit, Failure.TIME, *arguments)
        assert ended.code in (_DONE, _ENVIRONMENT), ended
        return ended

    def back_up(self, *nodes: int) -> list[int]:
        """Back up brokers at once; return the exit codes."""
        names = ",".join(map(str, nodes))

        def run(node: int) -> int:
            command = self.brokers[node - 1].command(self.root, names)
            ended = self.run(*command, process=node - 1)
            self.complaints.append(ended.stderr)
            return ended.code

        with ThreadPoolExecutor() as pool:
            return [*pool.map(run, nodes)]

    def act(self, name: str) -> tuple[bool, object]:
        """Run the command of a name; return whether all went well, and what it put out."""
        self.count += 1
        if name == "first":
            self.root = f"{self.bucket}/{self.count}"
        if name in _BACKUPS:
            nodes = (1, 2) if name == "two" else (1,)
            return self.back_up(*nodes) == [_DONE] * len(nodes), None
        if name in ("list", "verify", "expire"):
            more = _KEEP if name == "expire" else ()
            return self.run("backups", name, self.root, *more).code == _DONE, None
        run = ("--input", f"backup:{self.root}")
        if name == "read":
            ended = self.run("cat", "orders", *run)
            return ended.code == _DONE, ended.stdout
        output = self.folder / f"restored-{self.count}"
        ended = self.run("restore", *run, "--output", output, "--config", SETTINGS)
        logs = {name: data for name, data in contents(output).items() if name.endswith(".log")}
        return ended.code == _DONE, logs

    def change(self) -> None:
        for broker in self.brokers:
            broker.change()

    def checked(self) -> dict[str, tuple[int, ...]]:
        """Return the runs with their brokers, all of which are sound."""
        assert verify(self.root).ok
        return open_repository(self.root).brokers_by_backup()

    def next_takes_all(self) -> None:
        """Check that a backup of each broker takes what it has."""
        for broker in self.brokers:
            assert self.back_up(broker.node_id) == [_DONE], self.complaints[-1]
            run = kafka_index.open_backup(self.root).rows["backup_id"].to_pylist()[-1]
            result = open_repository(self.root).manifest(run, broker.node_id)
            for partition in result.partitions:
                data = b"".join(
                    store_of(self.root).read(f"{self.root}/{partition.folder}/{chunk.object_name}")
                    for chunk in partition.chunks
                )
                assert data == broker.fake_broker.logs[partition.topic_partition.directory_name]
            assert len(result.partitions) == len(PARTITIONS)


@pytest.fixture(scope="module")
def faulty(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    brokers = tuple(StoppedBroker(folder / f"{n}", n, random.Random(n)) for n in (1, 2))
    warm_up = brokers[0].command(folder / "warm-up", "1")
    with (
        _RULES.apply(),
        fault_proxy(s3.endpoint) as proxy,
        new_bucket(s3.behind(proxy.endpoint)) as bucket,
        ExitStack() as stack,
        ThreadPoolExecutor() as pool,
    ):
        processes = tuple(
            stack.enter_context(runs)
            for runs in pool.map(lambda _: KilledRuns(*warm_up, prepared=_PREPARED), brokers)
        )
        result = _Faulty(proxy, bucket, folder, brokers, processes)
        for name in (*_BACKUPS, *_OTHERS):
            result.change()
            proxy.clear()
            is_done, _ = result.act(name)
            assert is_done
            result.requests[name] = len(proxy.requests)
        yield result


def _is_done(faulty: _Faulty, name: str, begin_faults: Callable[[], None]) -> bool:
    """Run a command under faults and check the repository; return whether the command was done."""
    before = {} if name == "first" else faulty.checked()
    expected = faulty.act(name)[1] if name in ("restore", "read") else None
    faulty.change()
    begin_faults()
    try:
        is_done, backups = faulty.act(name)
    finally:
        faulty.proxy.draw(NONE)
    assert backups == expected or not is_done
    if name == "first" and not is_done and not store_of(faulty.root).list_directory(faulty.root):
        return False
    after = faulty.checked()
    if name == "expire":
        assert {*[*before][-1:]} <= {*after} <= {*before}
        return is_done
    assert before.items() <= after.items()
    more = [node_ids for run, node_ids in after.items() if run not in before]
    if name not in _BACKUPS:
        assert not more
    elif name != "two":
        assert more == [(1,)] or (not is_done and not more)
    else:
        # Each is in the run of both, or opened one of its own where it came too late.
        nodes = sorted(node for node_ids in more for node in node_ids)
        assert nodes == [1, 2] or (not is_done and nodes in ([], [1], [2]))
    return is_done


@pytest.mark.parametrize("seed", range(_ROUNDS))
def test_backup_succeeds_if_a_fifth_of_requests_fails(faulty: _Faulty, seed: int) -> None:
    faulty.proxy.clear()
    results = [
        _is_done(faulty, name, partial(faulty.proxy.draw, MANY)) for name in (*_BACKUPS, *_OTHERS)
    ]
    # The library retries more often than a request fails in a row.
    assert sum(results) >= len(results) - 1, seed
    faulty.next_takes_all()
    assert {request.fault for request in faulty.proxy.requests} > {None, "dropped"}


@pytest.mark.parametrize("number", range(_STEPS))
def test_repository_stays_valid_if_requests_fail(faulty: _Faulty, number: int) -> None:
    draw = random.Random(number)
    fault = _FAULTS[number % len(_FAULTS)]
    # Backups more often.
    name = draw.choice((*_BACKUPS, *_BACKUPS, *_OTHERS))
    first = draw.randrange(1, faulty.requests[name] + 1)
    for_good = draw.randrange(2)
    numbers = range(first, 1_000_000 if for_good else first + 1)
    is_done = _is_done(faulty, name, lambda: faulty.proxy.plan(fault, numbers))
    assert is_done or for_good, (name, fault, first, faulty.complaints[-2:])
    faulty.next_takes_all()

"""Brokers of a run meet before any of them cuts what the others' coordinators decide on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from kafka_index.commands.backup.barrier import (
    BackupBarrier,
    Barrier,
    BarrierMissedError,
    ScheduledCutoff,
    SingleBroker,
    expired_barriers,
    join_backup,
)
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import backup_id_at, backup_id_ms
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.local_store import LocalStore

THREE = (1, 2, 3)
#: Where all brokers come, and where somebody is missing.
PATIENCE_S, SHORT_S = 30.0, 0.4

_Found = TypeVar("_Found")


def at_once(*works: Callable[[], _Found]) -> list[_Found]:
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(work) for work in works]]


def opened(
    root: Path,
    node_id: int,
    brokers: Sequence[int] = THREE,
    *,
    timeout_s: float = PATIENCE_S,
    now: Callable[[], int] = now_ms,
    newest_backup_id: str | None = None,
) -> BackupBarrier:
    return join_backup(
        str(root),
        node_id,
        brokers,
        timeout_s=timeout_s,
        newest_backup_id=newest_backup_id,
        clock_ms=now,
    )


def test_brokers_that_join_in_time_share_a_backup(tmp_path: Path) -> None:
    for number in range(20):
        root = tmp_path / str(number)
        result = at_once(*(partial(opened, root, node) for node in THREE))
        assert len({barrier.backup_id for barrier in result}) == 1


def test_barrier_of_a_killed_broker_is_opened_by_the_next_broker(tmp_path: Path) -> None:
    opened(tmp_path, 1)
    (tmp_path / "barriers" / "0000000002").mkdir()
    later = now_ms() + 120_000
    result = at_once(*(partial(opened, tmp_path, node, now=lambda: later) for node in THREE))
    assert len({barrier.backup_id for barrier in result}) == 1
    assert (tmp_path / "barriers" / "0000000002" / "open.json").is_file()


def test_stage_of_a_killed_broker_is_closed_by_the_next_broker(tmp_path: Path) -> None:
    meeting = opened(tmp_path, 1, (1, 2), timeout_s=SHORT_S)
    closed = tmp_path / "barriers" / "0000000001" / "joined" / "closed.json"
    with ThreadPoolExecutor(1) as thread:
        with AtomicFile(str(closed)):
            waiting = thread.submit(meeting.await_capture)
            time.sleep(3 * SHORT_S)
            assert not waiting.done()
        waiting.result()
    assert b'"members":[1]' in closed.read_bytes()


def test_capture_of_other_topics_waits_until_all_brokers_captured_internal_topics(
    tmp_path: Path,
) -> None:
    cut: list[int] = []
    before: list[int] = []

    def take(node_id: int) -> tuple[int, ...]:
        meeting = opened(tmp_path, node_id)
        meeting.await_capture()
        time.sleep(random.random() * 0.3)
        cut.append(node_id)
        met = meeting.await_others()
        before.append(len(cut))
        return met

    assert at_once(*(partial(take, node) for node in THREE)) == [THREE] * 3
    assert before == [3, 3, 3]


def test_backup_proceeds_without_an_absent_broker(tmp_path: Path) -> None:
    def take(node_id: int) -> tuple[int, ...]:
        meeting = opened(tmp_path, node_id, timeout_s=SHORT_S)
        meeting.await_capture()
        return meeting.await_others()

    assert at_once(lambda: take(1), lambda: take(3)) == [(1, 3)] * 2


def test_late_broker_opens_its_own_backup(tmp_path: Path) -> None:
    early = [opened(tmp_path, node, timeout_s=SHORT_S) for node in (1, 2)]
    at_once(*(barrier.await_capture for barrier in early))
    late = opened(tmp_path, 3, timeout_s=SHORT_S)
    assert late.backup_id > early[0].backup_id
    late.await_capture()
    assert late.await_others() == (3,)
    assert at_once(*(barrier.await_others for barrier in early)) == [(1, 2)] * 2


def test_joined_broker_that_captures_late_gets_an_error(tmp_path: Path) -> None:
    meetings = [opened(tmp_path, node, timeout_s=SHORT_S) for node in THREE]
    at_once(*(meeting.await_capture for meeting in meetings))
    assert at_once(*(meeting.await_others for meeting in meetings[:2])) == [(1, 2)] * 2
    with pytest.raises(BarrierMissedError, match="broker 3 arrived too late"):
        meetings[2].await_others()
    assert opened(tmp_path, 3, timeout_s=SHORT_S).backup_id > meetings[0].backup_id


def test_broker_that_joins_a_closing_stage_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(tmp_path, 1, timeout_s=SHORT_S), opened(tmp_path, 2, timeout_s=SHORT_S)
    assert isinstance(second, Barrier)
    real_put = LocalStore.put

    def put(self: LocalStore, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        if path.endswith("joined/closed.json"):
            assert third.join()
        return real_put(self, path, data, if_absent=if_absent)

    third = Barrier(str(tmp_path), "0000000001", first.backup_id, 3, THREE, SHORT_S)
    monkeypatch.setattr(LocalStore, "put", put)
    first.await_capture()
    monkeypatch.undo()
    second.await_capture()
    with pytest.raises(BarrierMissedError):
        third.await_capture()


def test_restarted_agent_is_distinguished_from_its_killed_process(tmp_path: Path) -> None:
    killed = opened(tmp_path, 1)
    restarted_barrier = opened(tmp_path, 1)
    assert restarted_barrier.backup_id > killed.backup_id
    other_barrier = opened(tmp_path, 2)
    assert other_barrier.backup_id == restarted_barrier.backup_id


def test_abandoned_barrier_is_not_joined(tmp_path: Path) -> None:
    killed = opened(tmp_path, 1)
    assert opened(tmp_path, 2, now=lambda: now_ms() + 29_000).backup_id == killed.backup_id
    assert opened(tmp_path, 3, now=lambda: now_ms() + 31_000).backup_id > killed.backup_id


def test_backup_names_ascend_when_clocks_go_back(tmp_path: Path) -> None:
    runs = []
    for step in range(3):
        meeting = opened(tmp_path, 1, timeout_s=0.0, now=partial(int, 10_000 - step))
        meeting.await_capture()
        runs.append(meeting.backup_id)
    assert runs == sorted(set(runs))
    last = backup_id_at(20_000)
    alone = opened(tmp_path, 1, (1,), newest_backup_id=last, now=lambda: 5)
    assert isinstance(alone, SingleBroker)
    assert backup_id_ms(alone.backup_id) == 20_001


def test_partition_without_a_leader_is_stored_by_all_replicas(tmp_path: Path) -> None:
    led = {1: "data/a", 2: "data/b", 3: "data/c"}
    leaders = {"data/a": 1, "data/b": 2, "data/c": 3, "data/d": 9, "data/e": None}

    def take(node_id: int) -> set[str]:
        meeting = opened(tmp_path, node_id)
        meeting.await_capture()
        meeting.await_others()
        # The second leader could not take its partition.
        stored_folders = {led[node_id]} - {"data/b"}
        followed_leaders = {folder: at for folder, at in leaders.items() if folder != led[node_id]}
        return meeting.await_leaders(stored_folders, followed_leaders)

    first, second, third = at_once(*(partial(take, node) for node in THREE))
    assert first == third == {"data/b", "data/d", "data/e"}
    assert second == {"data/d", "data/e"}


def test_silent_leader_is_awaited_up_to_a_timeout(tmp_path: Path) -> None:
    meetings = [opened(tmp_path, node, (1, 2), timeout_s=SHORT_S) for node in (1, 2)]
    at_once(*(meeting.await_capture for meeting in meetings))
    at_once(*(meeting.await_others for meeting in meetings))
    began = time.monotonic()
    assert meetings[0].await_leaders([], {"data/b": 2}) == {"data/b"}
    assert time.monotonic() - began >= SHORT_S


def test_brokers_capture_at_an_agreed_time(tmp_path: Path) -> None:
    at_ms = now_ms() + 300
    meetings = [ScheduledCutoff(str(tmp_path), at_ms, node, (1, 2), PATIENCE_S) for node in (1, 2)]

    def take(meeting: BackupBarrier) -> tuple[int, int]:
        meeting.await_capture()
        first = now_ms()
        assert meeting.await_others() == ()
        return first, now_ms()

    times = at_once(*(partial(take, meeting) for meeting in meetings))
    assert min(captured_ms for captured_ms, _ in times) >= at_ms
    assert max(captured_ms for captured_ms, _ in times) < min(others_ms for _, others_ms in times)
    assert {meeting.backup_id for meeting in meetings} == {backup_id_at(at_ms)}
    with pytest.raises(BarrierMissedError, match="has passed"):
        meetings[0].await_capture()


def test_barrier_objects_are_expired_except_those_of_the_newest_barrier(tmp_path: Path) -> None:
    for time_ms in (1000, 2000, 3000, 9000):
        meeting = opened(tmp_path, 1, timeout_s=0.0, now=partial(int, time_ms))
        meeting.await_capture()
        meeting.await_others()
    ScheduledCutoff(str(tmp_path), 1500, 1, (1, 2), 0.0).await_leaders([], {})
    old = {
        path.removeprefix(f"{tmp_path}/barriers/") for path in expired_barriers(str(tmp_path), 2500)
    }
    assert {object_path.partition("/")[0] for object_path in old} == {
        "0000000001",
        "0000000002",
        backup_id_at(1500),
    }
    assert f"{backup_id_at(1500)}/taken/1.json" in old
    assert "0000000002/cut/closed.json" in old
    LocalStore().delete(expired_barriers(str(tmp_path), 10**13))
    assert opened(tmp_path, 1, timeout_s=0.0, now=lambda: 9000).backup_id == backup_id_at(9001)
    assert expired_barriers(str(tmp_path / "none"), 10**13) == []


@pytest.mark.parametrize("seed", range(6))
def test_brokers_at_random_barriers_agree_on_the_members(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    delays = [(rng.random() * 0.5, rng.random() * 0.5) for _ in range(4)]
    lock = threading.Lock()
    cuts: dict[str, list[float]] = {}
    rests: dict[str, list[float]] = {}
    met: dict[str, set[tuple[int, ...]]] = {}

    def take(node_id: int) -> None:
        arrives, cuts_after = delays[node_id]
        time.sleep(arrives)
        for _ in range(5):
            meeting = join_backup(str(tmp_path), node_id, range(4), timeout_s=0.25)
            try:
                meeting.await_capture()
                time.sleep(cuts_after)
                first = time.monotonic()
                members = meeting.await_others()
            except BarrierMissedError:
                cuts_after = 0.0
                continue
            with lock:
                cuts.setdefault(meeting.backup_id, []).append(first)
                rests.setdefault(meeting.backup_id, []).append(time.monotonic())
                met.setdefault(meeting.backup_id, set()).add(members)
            return
        raise AssertionError("always late")

    at_once(*(partial(take, node) for node in range(4)))
    assert sum(map(len, cuts.values())) == 4
    for run, firsts in cuts.items():
        assert max(firsts) < min(rests[run])
        assert len(met[run]) == 1
        assert len(next(iter(met[run]))) == len(firsts)

"""Brokers are backed up under load by agents that are killed, and restored to points in time.

``make campaign`` runs all of it: one broker and three, both versions of transactions.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kafka_index.core.fs.backup.manifest import backup_id_ms
from tests.conformance.broker.backups import BackedUpCluster, Point, back_up, restored
from tests.conformance.broker.three_brokers import NODES
from tests.conformance.kafka_jars import class_path, needing_kafka, tool
from tests.support.campaign import sample_size

if TYPE_CHECKING:
    from pathlib import Path

_RUNS = sample_size(40, one_in=13)
_POINTS = sample_size(10)
_LONGEST_CUT_MS = 2000


@pytest.fixture(scope="module", autouse=True)
def _kafka() -> None:
    with needing_kafka():
        class_path("4.3.1")
        for needed in ("java", "javac"):
            tool(needed)


def _points(backed: BackedUpCluster, rng: random.Random) -> list[Point]:
    """Runs, and times between runs."""
    result = []
    for number in range(_POINTS):
        at = rng.randrange(1, len(backed.runs))
        before, taken = backed.runs[at - 1 : at + 1]
        first, last = backup_id_ms(before.name) + _LONGEST_CUT_MS, backup_id_ms(taken.name)
        is_between = number % 2 == 0 and first < last
        until_ms = rng.randrange(first, last) if is_between else None
        result.append(Point(taken, before if is_between else None, until_ms))
    return result


def _check(backed: BackedUpCluster, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for number, point in enumerate(_points(backed, rng)):
        root = tmp_path / f"restored-{number}"
        root.mkdir()
        restored(backed, point, root)


def test_backup_of_one_broker_can_be_restored(tmp_path: Path) -> None:
    _check(back_up(tmp_path / "backed", 1, runs=_RUNS), tmp_path, 2)


@pytest.mark.skipif(sample_size(10) != 10, reason="make campaign runs it")
def test_backup_of_one_broker_keeps_producer_epochs(tmp_path: Path) -> None:
    features = {"transaction.version": 1}
    _check(back_up(tmp_path / "backed", 3, runs=_RUNS, features=features), tmp_path, 4)


@pytest.mark.skipif(sample_size(10) != 10, reason="make campaign runs it")
def test_backup_of_one_broker_with_preallocated_logs(tmp_path: Path) -> None:
    settings = {"log.preallocate": "true"}
    _check(back_up(tmp_path / "backed", 7, runs=_RUNS, settings=settings), tmp_path, 8)


@pytest.mark.skipif(sample_size(10) != 10, reason="make campaign runs it")
def test_backup_of_one_broker_into_a_bucket(tmp_path: Path, bucket: str) -> None:
    repository = f"{bucket}/repository"
    _check(back_up(tmp_path / "backed", 9, runs=_RUNS, repository=repository), tmp_path, 10)


@pytest.mark.skipif(sample_size(10) != 10, reason="make campaign runs it")
def test_backup_of_three_brokers_can_be_restored(tmp_path: Path) -> None:
    _check(back_up(tmp_path / "backed", 5, runs=_RUNS, nodes=NODES), tmp_path, 6)

"""A broker on restored partitions that lacked transaction markers.

Its consumers get what was committed, and nothing that was aborted. Its coordinators end what is
open, so that the last stable offset of each partition becomes its end.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kafka_index import predict, restore_dump
from kafka_index.core.format.names import TopicPartition
from tests.support.damaged_histories import USERS, DamagedHistory
from tests.support.restoring import batches, logs

from .broker import CLEAN_SHUTDOWN, Broker, BrokerFolders
from .client import Client, run_program

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_index.commands.restore.result import RestoreResult

_SETTINGS = {"transaction.state.log.num.partitions": "2"}
# The coordinator looks for transactions that have timed out every ten seconds.
_WAIT_SECONDS = 30
_UNKNOWN = "unknown_transaction_outcome"


class Consumed:
    """The offsets that a consumer got, and where the partitions end for it."""

    def __init__(self, bootstrap: str, path: Path, isolation: str) -> None:
        path.unlink(missing_ok=True)
        run_program("Load", bootstrap, "consume", str(path), isolation, "t")
        self.offsets: dict[TopicPartition, set[int]] = defaultdict(set)
        self.ends: dict[TopicPartition, int] = {}
        for line in path.read_text().splitlines():
            kind, topic, number, offset, *_ = line.split("\t")
            partition = TopicPartition(topic, int(number))
            if kind == "end":
                self.ends[partition] = int(offset)
            else:
                self.offsets[partition].add(int(offset))


@dataclass(frozen=True)
class ConsumedHistory:
    """A history that was damaged, restored, and read from a broker."""

    damaged: DamagedHistory
    home: BrokerFolders
    restored: RestoreResult
    everything: Consumed
    committed: Consumed


def consume(
    broker: Broker, broker_root: Path, *, waits_for_end: bool = True
) -> tuple[Consumed, Consumed]:
    """Consume all records, and then those of read_committed, until these end where all do."""
    end = time.monotonic() + _WAIT_SECONDS
    with broker, Client(broker.bootstrap, broker_root) as client:
        client.await_in_sync(1, ["t"])
        while True:
            result = tuple(
                Consumed(broker.bootstrap, broker_root / "consumed.txt", isolation)
                for isolation in ("read_uncommitted", "read_committed")
            )
            is_over = waits_for_end and result[0].ends == result[1].ends
            if is_over or time.monotonic() > end:
                return result[0], result[1]
            time.sleep(1)


@pytest.fixture(scope="module", params=[3, 4])
def consumed_history(broker_root: Path, request: pytest.FixtureRequest) -> ConsumedHistory:
    dump = broker_root / f"lost-markers-{request.param}"
    damaged = DamagedHistory.make(dump, request.param, has_states=True, steps=500)
    home = BrokerFolders(broker_root / f"lost-markers-{request.param}-home")
    broker = Broker(home, more_settings=_SETTINGS)
    restored = restore_dump(
        dump, home.data, seeds=home.metadata, new_topic_ids=True, salvage="batches"
    )
    return ConsumedHistory(damaged, home, restored, *consume(broker, broker_root))


def test_consumers_of_a_restored_history_get_committed_records_up_to_its_end(
    consumed_history: ConsumedHistory,
) -> None:
    result = {each.partition: each for each in consumed_history.restored.partitions}
    assert any(each.is_edited for each in result.values())
    assert consumed_history.committed.ends == consumed_history.everything.ends
    for partition in USERS:
        left_out = [
            range(lost.first_offset or 0, (lost.last_offset or 0) + 1)
            for lost in result[partition].lost
            if lost.code == _UNKNOWN
        ]
        got = consumed_history.committed.offsets[partition]
        assert consumed_history.damaged.faults(partition, got, set(), left_out) == []


def test_offset_of_a_transaction_that_stays_open_is_predicted(
    consumed_history: ConsumedHistory, broker_root: Path
) -> None:
    home = consumed_history.home.copy_to(broker_root / f"{consumed_history.home.root.name}-open")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (home.data / name).unlink()
    (home.data / CLEAN_SHUTDOWN).unlink()
    opened = {}
    for partition in USERS:
        directory = home.data / partition.directory_name
        cut_off_last_marker(directory)
        opened[partition] = first_open_offset(directory)
    assert any(offset is not None for offset in opened.values())

    predicted = predict(home.data, metadata=home.metadata)
    _, committed = consume(Broker(home, more_settings=_SETTINGS), broker_root, waits_for_end=False)

    assert not predicted.ok
    for one in predicted.partitions:
        if one.topic == "t":
            result = re.search("from offset ([0-9]+) on", one.unserved or "")
            stays_open = None if result is None else int(result[1])
            partition = TopicPartition(one.topic, one.partition)
            assert stays_open == opened[partition]
            if stays_open is not None:
                assert committed.ends[partition] == stays_open


def cut_off_last_marker(directory: Path) -> None:
    """Cut the last log of a partition before its last marker."""
    log = logs(directory)[-1]
    ends = [row["position_bytes"] for row in batches(log) if row["control_type"] is not None]
    if ends:
        log.write_bytes(log.read_bytes()[: ends[-1]])


def first_open_offset(directory: Path) -> int | None:
    """Return the offset of the first batch of a transaction without a marker."""
    opened: dict[int, int] = {}
    for row in (row for log in logs(directory) for row in batches(log)):
        if row["control_type"] is not None:
            opened.pop(row["producer_id"], None)
        elif row["attributes"] & 16:
            opened.setdefault(row["producer_id"], row["base_offset"])
    return min(opened.values(), default=None)

"""A broker on restored partitions that had lost transaction markers.

Its consumers get what was committed, and nothing that was aborted. Its coordinators end what is
open, so that the last stable offset of each partition becomes its end.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from kafka_index import restore_dump
from kafka_index.layout.names import TopicPartition
from tests.support.damaged_histories import USERS, DamagedHistory

from .broker import Broker, Home
from .client import Client, run_program

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = {"transaction.state.log.num.partitions": "2"}
# The coordinator looks for transactions that have timed out every ten seconds.
_WAIT_SECONDS = 60
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


@pytest.mark.parametrize("seed", [3, 4])
def test_consumers_of_a_restored_history_get_committed_records_up_to_its_end(
    room: Path, seed: int
) -> None:
    dump = room / f"lost-markers-{seed}"
    damaged = DamagedHistory.make(dump, seed, has_states=True, steps=500)
    home = Home(room / f"lost-markers-{seed}-home")
    broker = Broker(home, more_settings=_SETTINGS)

    restored = restore_dump(
        dump, home.data, seeds=home.metadata, new_topic_ids=True, salvage="batches"
    )

    found = {each.partition: each for each in restored.partitions}
    assert any(each.is_edited for each in found.values())
    ledger = room / f"lost-markers-{seed}.txt"
    with broker, Client(broker.bootstrap, room) as client:
        client.await_in_sync(1, ["t"])
        end = time.monotonic() + _WAIT_SECONDS
        everything = Consumed(broker.bootstrap, ledger, "read_uncommitted")
        committed = Consumed(broker.bootstrap, ledger, "read_committed")
        while committed.ends != everything.ends and time.monotonic() < end:
            time.sleep(1)
            everything = Consumed(broker.bootstrap, ledger, "read_uncommitted")
            committed = Consumed(broker.bootstrap, ledger, "read_committed")
    assert committed.ends == everything.ends
    for partition in USERS:
        left_out = [
            range(lost.first_offset or 0, (lost.last_offset or 0) + 1)
            for lost in found[partition].lost
            if lost.code == _UNKNOWN
        ]
        got = committed.offsets[partition]
        assert damaged.faults(partition, got, set(), left_out) == []

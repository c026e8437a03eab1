"""Histories of transactions whose logs lose batches, and the records that consumers may get."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kafka_index import build_indexes
from kafka_index.core.format.names import TopicPartition
from tests.support.restoring import logs
from tests.support.transaction_histories import PARTITIONS, Append, History

USERS = [partition for partition in PARTITIONS if partition.topic == "t"]


@dataclass
class DamagedHistory:
    """A dump of a history of transactions; by partition, the offsets of the lost batches."""

    dump: Path
    history: History
    lost: dict[TopicPartition, set[int]]

    @classmethod
    def make(cls, dump: Path, seed: int, *, has_states: bool, steps: int = 150) -> DamagedHistory:
        """Write a history, and change or cut off markers and some other batches."""
        rng = random.Random(seed)
        history = History(rng)
        history.run(steps)
        damaged = cls(dump, history, {user: set() for user in USERS})
        damaged.lost = damaged._write(dump, rng, has_states=has_states)
        return damaged

    def add_copy(self, dump: Path, seed: int, *, has_states: bool) -> None:
        """Write another dump of the same history, with damage of its own."""
        lost = self._write(dump, random.Random(seed), has_states=has_states)
        self.lost = {user: self.lost[user] & lost[user] for user in USERS}

    def _write(
        self, dump: Path, rng: random.Random, *, has_states: bool
    ) -> dict[TopicPartition, set[int]]:
        history = self.history
        moments = dict.fromkeys((*USERS, *history.states), history.moment)
        written = dict(history.write(dump, moments))
        build_indexes(dump, in_place=True)
        if not has_states:
            for each in history.states:
                shutil.rmtree(dump / each.directory_name, ignore_errors=True)
        lost = {}
        for partition in USERS:
            appends = history.logs[partition]
            markers = [append for append in appends if append.is_marker]
            hit = rng.sample(markers, min(len(markers), rng.randrange(4)))
            hit += rng.sample(appends, min(len(appends), rng.randrange(2)))
            cut = appends[-1:] if rng.random() < 0.3 else []
            lost[partition] = {each.offset for each in (*hit, *cut)}
            if partition in written:
                _damage(written[partition], hit, cut)
        return lost

    def faults(
        self,
        partition: TopicPartition,
        committed: set[int],
        opened: set[int],
        left_out: Iterable[range] = (),
    ) -> list[str]:
        """Return what is wrong in the batches that consumers get, and that are not decided yet."""
        faults = []
        for each in self.history.logs[partition]:
            if each.is_marker or each.offset in self.lost[partition]:
                continue
            if not _is_committed(each):
                if each.offset in committed:
                    faults.append(f"{each.offset} was aborted, and is served")
            elif each.offset not in committed.union(opened, *left_out):
                faults.append(f"{each.offset} was committed, and is not served")
            if each.offset in opened and not self.is_ended_by_coordinator(partition, each):
                faults.append(f"{each.offset} stays open")
        return faults

    def is_ended_by_coordinator(self, partition: TopicPartition, append: Append) -> bool:
        """Return whether the coordinator of a batch will end a transaction as the batch was."""
        pending = self.history.open_transaction(int.from_bytes(append.data[43:51]))
        transaction = append.transaction
        return (
            pending is not None
            and transaction is not None
            and partition in pending.listed_at
            and (pending is transaction or pending.commits == transaction.commits)
        )


def _is_committed(append: Append) -> bool:
    transaction = append.transaction
    return transaction is None or (transaction.commits and transaction.prepared_at is not None)


def _damage(directory: Path, changed: list[Append], cut: list[Append]) -> None:
    for log in logs(directory):
        data = bytearray(log.read_bytes())
        for each in changed:
            at = data.find(each.data)
            if at >= 0:
                data[at + len(each.data) - 1] ^= 1
        end = len(data)
        for each in cut:
            at = data.find(each.data[:16])
            end = at if at >= 0 else end
        log.write_bytes(data[:end])

"""The ends of logs, over random histories of transactions that were cut at known moments."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kafka_index.core.cluster.transaction_boundary import BackupLog, find_transaction_boundary
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.decompression import shared_budget
from tests.support.campaign import sample_size
from tests.support.transaction_histories import PARTITIONS, Append, History

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kafka_index.core.format.names import TopicPartition

_SEEDS = sample_size(3000, one_in=40)
_NEVER = 1 << 60


class _Run:
    """A history, cut: states first, each at a moment of its own, then the partitions.

    With `apart` the moments at which states are cut are far apart.
    """

    def __init__(self, seed: int, root: Path, *, apart: int = 1) -> None:
        rng = random.Random(seed)
        history = self.history = History(rng)
        history.run(rng.randrange(100))
        if rng.random() < 0.3:
            history.expire()
        history.run(rng.randrange(20, 300))
        settled_moment = history.moment
        history.now_ms += 1
        self.begun_ms = history.now_ms
        history.run(1 + rng.randrange(apart))
        self.cuts = {
            state: rng.randrange(settled_moment, history.moment + 1) for state in history.states
        }
        first = max(self.cuts.values())
        history.run(rng.randrange(80))
        self.cuts |= {
            partition: rng.randrange(first, history.moment + 1) for partition in PARTITIONS
        }
        history.run(20)
        self.directories = dict(history.write(root, self.cuts))
        self._settled = settled_moment
        self._parts = random.Random(seed)

    def random_ends(self, rng: random.Random) -> dict[TopicPartition, int]:
        """Ends of all logs, each at a moment of its own, as clocks that differ give them."""
        result = {
            partition: self._offset(partition, rng.randrange(self._settled, self.history.moment))
            for partition in self.cuts
        }
        return {
            partition: end
            for partition, end in result.items()
            if any(
                append.offset >= end for append in self.history.cut(partition, self.cuts[partition])
            )
        }

    def logs(self, ends: Mapping[TopicPartition, int]) -> list[BackupLog]:
        """The logs, joined out of random parts, with ends that are asked for."""
        return [
            BackupLog(
                partition,
                list_dump([str(directory)], topics=None).segments,
                self._offset(partition, self._settled),
                self._random_parts(partition),
                ends.get(partition, INT64_MAX),
            )
            for partition, directory in self.directories.items()
        ]

    def _offset(self, partition: TopicPartition, moment: int) -> int:
        later = [
            append.offset for append in self.history.logs[partition] if append.moment >= moment
        ]
        return later[0] if later else _NEVER

    def _random_parts(self, partition: TopicPartition) -> list[tuple[int, int]]:
        """Parts that begin where segments do, and between."""
        begin = {int(path.stem) for path in self.directories[partition].iterdir()}
        parts: list[tuple[int, int]] = []
        for append in self.history.cut(partition, self.cuts[partition]):
            if not parts or append.offset in begin or self._parts.random() < 0.3:
                parts.append((append.offset, 0))
            parts[-1] = parts[-1][0], parts[-1][1] + len(append.data)
        return parts

    def clamped(
        self, ends: Mapping[TopicPartition, int] | None = None
    ) -> Mapping[TopicPartition, int]:
        """The ends of the logs; they end nowhere later than is asked for."""
        result = find_transaction_boundary(
            self.logs(ends or {}), self.begun_ms, shared_budget(1 << 24)
        )
        assert not result.faults
        return result.ends

    def with_ends(self, ends: Mapping[TopicPartition, int]) -> Kept:
        """The run with these ends."""
        cuts = dict(self.cuts)
        for partition in cuts:
            if partition in ends and partition not in PARTITIONS:
                (append,) = [
                    entry
                    for entry in self.history.logs[partition]
                    if entry.offset == ends[partition]
                ]
                cuts[partition] = append.moment
        kept_appends = {
            partition: [
                entry
                for entry in self.history.cut(partition, self.cuts[partition])
                if entry.offset < ends.get(partition, _NEVER)
            ]
            for partition in PARTITIONS
        }
        return Kept(self.history, cuts, kept_appends)


class Kept:
    """The rest of a history: moments at which coordinators were cut, and batches of logs."""

    def __init__(
        self,
        history: History,
        cuts: Mapping[TopicPartition, int],
        appends: Mapping[TopicPartition, list[Append]],
    ) -> None:
        self._history = history
        self._cuts = cuts
        self.kept = appends

    def knows(self, partition: TopicPartition, append: Append) -> bool:
        """Whether the coordinator of a batch had logged what led to it, when it was cut."""
        transaction = append.transaction
        if transaction is None:
            return True
        at = transaction.prepared_at if append.is_marker else transaction.listed_at[partition]
        return at is not None and at < self._cuts[transaction.home]

    def torn(self) -> list[tuple[int, TopicPartition, str]]:
        """Transactions that coordinators do not make whole if they go on from here."""
        result = []
        for transaction in self._history.transactions:
            cut = self._cuts[transaction.home]
            is_decided = transaction.prepared_at is not None and transaction.prepared_at < cut
            is_over = transaction.completed_at is not None and transaction.completed_at < cut
            for partition, listed_at in transaction.listed_at.items():
                transaction_appends = [
                    append for append in self.kept[partition] if append.transaction is transaction
                ]
                records = [append for append in transaction_appends if not append.is_marker]
                has_marker = len(records) < len(transaction_appends)
                written_offsets = transaction.written_at.get(partition, ())
                place = (transaction.number, partition)
                if has_marker and not is_decided:
                    result.append((*place, "ended by a marker that its coordinator will not write"))
                if is_decided and len(records) != len(written_offsets):
                    result.append((*place, "records are missing"))
                if is_over and not has_marker:
                    result.append((*place, "open for ever"))
                if records and not has_marker and listed_at >= cut:
                    result.append((*place, "open where no coordinator knows"))
        return result


def test_captured_transactions_are_complete_or_absent_in_all_logs(tmp_path: Path) -> None:
    clamped = states_cut = 0
    for seed in range(_SEEDS):
        run = _Run(seed, tmp_path / str(seed), apart=300 if seed % 2 else 1)
        result = run.clamped()
        remaining_ends = run.with_ends(result)
        assert remaining_ends.torn() == [], seed
        _check_ends(run, remaining_ends, result, seed)
        clamped += bool(result)
        states_cut += any(state in result for state in run.history.states)
    assert clamped > _SEEDS / 4
    assert states_cut > _SEEDS / 100


def test_logs_are_truncated_to_complete_transactions(
    tmp_path: Path,
) -> None:
    cut_more = 0
    for seed in range(_SEEDS):
        run = _Run(seed, tmp_path / str(seed), apart=60)
        ends = run.random_ends(random.Random(seed))
        result = run.clamped(ends)
        assert run.with_ends(result).torn() == [], seed
        assert all(result[partition] <= end for partition, end in ends.items()), seed
        cut_more += result != ends
    assert cut_more > _SEEDS / 4


def _check_ends(
    run: _Run, kept_logs: Kept, end_offsets: Mapping[TopicPartition, int], seed: int
) -> None:
    """No log has a batch that is not known, none ends early, and states only where they have to."""
    for partition in PARTITIONS:
        appends = run.history.cut(partition, run.cuts[partition])
        unknown = [append.offset for append in appends if not kept_logs.knows(partition, append)]
        assert end_offsets.get(partition) == (unknown[0] if unknown else None), (seed, partition)
    at_once = run.with_ends(
        {key: offset for key, offset in end_offsets.items() if key in PARTITIONS}
    )
    if any(state in end_offsets for state in run.history.states):
        assert at_once.torn(), seed

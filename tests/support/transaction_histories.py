"""Random histories of transactions: what coordinators and leaders append, one after the other.

Every append has its place in one order over all logs, so that a test can cut each log at a moment
of its own, and know of each batch whether it was there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_index.core.format.message_schemas import Struct
from kafka_index.core.format.messages import TRANSACTION_RECORDS
from kafka_index.core.format.names import TopicPartition
from tests.support.metadata import coordinator_record
from tests.support.segments import batch, marker, record

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from kafka_index.core.format.message_schemas import Value

_EMPTY, _ONGOING, _COMMIT, _ABORT, _COMMITTED, _ABORTED = range(6)
_LAST_EPOCH = 2**15 - 1
_EXPIRY_MS = 7 * 86400 * 1000
STATE_PARTITIONS = 2
PARTITIONS = [
    *(TopicPartition("t", number) for number in range(4)),
    TopicPartition("__consumer_offsets", 0),
]


@dataclass
class Transaction:
    """A transaction, with the moments at which its coordinator logged what it decided."""

    number: int
    home: TopicPartition
    listed_at: dict[TopicPartition, int] = field(default_factory=dict)
    #: The moments of the records in each partition.
    written_at: dict[TopicPartition, list[int]] = field(default_factory=dict)
    prepared_at: int | None = None
    completed_at: int | None = None
    commits: bool = False


@dataclass(frozen=True)
class Append:
    """A batch in a log, with its moment, and the transaction whose records or marker it has."""

    moment: int
    offset: int
    data: bytes
    transaction: Transaction | None = None
    is_marker: bool = False

    @property
    def end_offset(self) -> int:
        """The offset after it."""
        return self.offset + int.from_bytes(self.data[23:27]) + 1


@dataclass
class _Id:
    """A transactional id at its coordinator."""

    name: str
    home: TopicPartition
    producer_id: int
    version: int
    epoch: int = 0
    previous_id: int = -1
    status: int = _EMPTY
    open: Transaction | None = None
    begun_ms: int = -1
    #: The decision has this time, and so has the record that the transaction is over.
    decided_ms: int | None = None
    #: Of the client; the record has that of the last transaction.
    logged_version: int = 0
    left: list[TopicPartition] = field(default_factory=list)
    next_id: int = -1
    is_fenced: bool = False


def _java_hash(text: str) -> int:
    """``String.hashCode``, by which Kafka finds the coordinator of a transactional id, positive."""
    result = 0
    for character in text:
        result = (31 * result + ord(character)) & 0xFFFFFFFF
    return abs(result - (result >> 31 << 32))


class History:
    """Logs of partitions and of coordinators, as they are appended to."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.now_ms = 1_700_000_000_000
        self.moment = 0
        self.times: list[int] = []
        self.states = [
            TopicPartition("__transaction_state", number) for number in range(STATE_PARTITIONS)
        ]
        self.logs: dict[TopicPartition, list[Append]] = {
            partition: [] for partition in (*PARTITIONS, *self.states)
        }
        self._ends = dict.fromkeys(self.logs, 0)
        self.transactions: list[Transaction] = []
        self._ids: list[_Id] = []
        self._next_id = 0
        self._names = 0

    def run(self, steps: int) -> None:
        """Append."""
        for _ in range(steps):
            self._step()

    def open_transaction(self, producer_id: int) -> Transaction | None:
        """Return the transaction of a producer that its coordinator has not completed."""
        return next((id_.open for id_ in self._ids if id_.producer_id == producer_id), None)

    def expire(self) -> None:
        """End all transactions, wait, and delete the transactional ids but one."""
        for id_ in self._ids:
            while id_.status not in (_EMPTY, _COMMITTED, _ABORTED):
                self._go_on(id_)
        self.now_ms += _EXPIRY_MS + 1
        for id_ in self._ids[1:]:
            self._log(id_, None)
        del self._ids[1:]

    def _step(self) -> None:
        rng = self._rng
        self.now_ms += rng.choice((0, 0, 1, 3, 20))
        if rng.random() < 0.2:
            partition = rng.choice(PARTITIONS)
            self._append(
                partition, batch(self._ends[partition], 2, timestamps=[self.now_ms] * 2), 2
            )
        elif not self._ids or (len(self._ids) < 6 and rng.random() < 0.04):
            self._names += 1
            # Each coordinator has a block of producer ids of its own.
            home = self.states[_java_hash(f"id-{self._names}") % STATE_PARTITIONS]
            self._next_id += 1
            result = _Id(
                f"id-{self._names}",
                home,
                1000 * home.partition + self._next_id,
                rng.choice((1, 2)),
                epoch=rng.choice((0, 0, 0, _LAST_EPOCH - 4)),
            )
            self._ids.append(result)
            self._log_state(result)
        else:
            self._go_on(rng.choice(self._ids))

    def _go_on(self, one: _Id) -> None:
        rng = self._rng
        match one.status:
            case _ if one.status in (_EMPTY, _COMMITTED, _ABORTED):
                if one.is_fenced or rng.random() < 0.15:
                    one.version = rng.choice((1, 2))
                    self._initialize(one)
                else:
                    # The servers were upgraded.
                    one.version = 2 if rng.random() < 0.02 else one.version
                    self._begin(one)
            case _ if one.status == _ONGOING:
                what = rng.random()
                if what < 0.3:
                    self._add(one, rng.choice(PARTITIONS))
                elif what < 0.7:
                    self._produce(one)
                else:
                    self._prepare(one, commits=rng.random() < 0.6, is_timeout=what > 0.95)
            case _:
                self._end(one)

    def _initialize(self, one: _Id) -> None:
        if one.epoch >= _LAST_EPOCH - 1:
            one.previous_id, one.epoch = one.producer_id, 0
            self._next_id += 1
            one.producer_id = 1000 * one.home.partition + self._next_id
        else:
            one.epoch += 1
        one.status, one.is_fenced, one.decided_ms = _EMPTY, False, None
        self._log_state(one)

    def _begin(self, one: _Id) -> None:
        one.open = Transaction(len(self.transactions), one.home)
        self.transactions.append(one.open)
        one.begun_ms, one.status, one.decided_ms = self.now_ms, _ONGOING, None
        one.logged_version = one.version
        self._add(one, self._rng.choice(PARTITIONS))
        # What follows is another request, after an answer.
        self.now_ms += 1

    def _add(self, one: _Id, partition: TopicPartition) -> None:
        assert one.open is not None
        if partition not in one.open.listed_at:
            one.open.listed_at[partition] = self.moment
            self._log_state(one)

    def _produce(self, one: _Id) -> None:
        assert one.open is not None
        partition = self._rng.choice(list(one.open.listed_at))
        one.open.written_at.setdefault(partition, []).append(self.moment)
        data = batch(
            self._ends[partition],
            2,
            timestamps=[self.now_ms] * 2,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            base_sequence=0,
            transactional=True,
        )
        self._append(partition, data, 2, one.open)

    def _prepare(self, one: _Id, *, commits: bool, is_timeout: bool) -> None:
        assert one.open is not None
        self.now_ms += 1
        if is_timeout:
            # The coordinator fences, by the version of the servers.
            commits, one.logged_version, one.is_fenced = False, 2, True
            one.epoch += one.epoch < _LAST_EPOCH - 1
        if one.logged_version == 2:
            one.epoch += 1
            if one.epoch >= _LAST_EPOCH:
                self._next_id += 1
                one.next_id = 1000 * one.home.partition + self._next_id
        one.open.commits, one.open.prepared_at = commits, self.moment
        one.status, one.decided_ms = _COMMIT if commits else _ABORT, self.now_ms
        one.left = list(one.open.listed_at)
        self._rng.shuffle(one.left)
        self._log_state(one)

    def _end(self, one: _Id) -> None:
        assert one.open is not None
        if one.left:
            partition = one.left.pop()
            data = marker(
                self._ends[partition],
                one.producer_id,
                one.epoch,
                commit=one.open.commits,
                timestamp=self.now_ms,
            )
            self._append(partition, data, 1, one.open, is_marker=True)
            return
        one.status = _COMMITTED if one.open.commits else _ABORTED
        one.open.completed_at = self.moment
        if one.next_id >= 0:
            one.previous_id, one.producer_id, one.epoch = one.producer_id, one.next_id, 0
            one.next_id = -1
        one.open, one.begun_ms = None, -1
        self._log_state(one)

    def _log_state(self, one: _Id) -> None:
        places = [] if one.open is None else sorted(one.open.listed_at)
        topics: list[Value] = [
            Struct(
                topic=topic,
                partitionIds=[place.partition for place in places if place.topic == topic],
            )
            for topic in sorted({place.topic for place in places})
        ]
        value: dict[str, Value] = {
            "producerId": one.producer_id,
            # A coordinator notes the same id as that before, too.
            "previousProducerId": (
                one.producer_id
                if one.previous_id < 0 and one.logged_version == 2
                else one.previous_id
            ),
            "nextProducerId": one.next_id,
            "producerEpoch": one.epoch,
            "transactionTimeoutMs": 60_000,
            "transactionStatus": one.status,
            "transactionPartitions": topics,
            "transactionLastUpdateTimestampMs": (
                self.now_ms if one.decided_ms is None else one.decided_ms
            ),
            "transactionStartTimestampMs": one.begun_ms,
            "clientTransactionVersion": one.logged_version,
        }
        self._log(one, value)

    def _log(self, one: _Id, value: dict[str, Value] | None) -> None:
        key: dict[str, Value] = {"transactionalId": one.name}
        pair = coordinator_record(TRANSACTION_RECORDS, "TransactionLog", key, value)
        data = batch(self._ends[one.home], 1, timestamps=[self.now_ms], payload=record(0, 0, *pair))
        self._append(one.home, data, 1)

    def _append(
        self,
        partition: TopicPartition,
        data: bytes,
        offsets: int,
        transaction: Transaction | None = None,
        *,
        is_marker: bool = False,
    ) -> None:
        at = self._ends[partition]
        self.logs[partition].append(Append(self.moment, at, data, transaction, is_marker))
        self._ends[partition] += offsets
        self.times.append(self.now_ms)
        self.moment += 1

    def cut(self, partition: TopicPartition, moment: int) -> list[Append]:
        """The batches that a log has at a moment."""
        return [each for each in self.logs[partition] if each.moment < moment]

    def write(
        self, root: Path, cuts: dict[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, Path]]:
        """Write logs as they were at a moment each; yield the directories of all with batches."""
        for partition, moment in cuts.items():
            appends = self.cut(partition, moment)
            if not appends:
                continue
            directory = root / partition.directory_name
            directory.mkdir(parents=True)
            # In up to three segments.
            count = self._rng.randrange(1, 4)
            size = -(-len(appends) // count)
            for first in range(0, len(appends), size):
                some = appends[first : first + size]
                path = directory / f"{some[0].offset:020d}.log"
                path.write_bytes(b"".join(each.data for each in some))
            yield partition, directory

"""The events of growing logs, generated from a seed: nothing that Kafka would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.core.log.append.incoming_batches import Isolation
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_end_transaction_marker,
    write_record_batch,
)

from .kafka_jars import DEFAULT_VERSION

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from .both_logs import ComparedLogs, LiveLog

#: Index files that are soon full: an append of several batches could be refused.
FEW_ENTRIES_BYTES = 60

_CODECS = ("none",) * 5 + ("gzip", "snappy", "lz4", "zstd")
#: Some share a bucket of a Java map.
_PRODUCERS = (-1, -1, -1, 5, 21, 37, 6, 2**33 + 5)
_SIZES = (0, 10, 100, 400)


def random_settings(rng: random.Random, version: str = DEFAULT_VERSION) -> dict[str, object]:
    """Settings with which segments are rolled for every reason there is."""
    segment_bytes = "internal.segment.bytes" if version == DEFAULT_VERSION else "segment.bytes"
    return {
        segment_bytes: rng.choice((6000, 20_000, 10**6)),
        "segment.ms": rng.choice((50, 1000, 10**12)),
        "index.interval.bytes": rng.choice((0, 100, 1000, 4096)),
        "segment.index.bytes": rng.choice((FEW_ENTRIES_BYTES, 1000, 4096)),
        "message.timestamp.type": rng.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        "preallocate": rng.choice(("true", "false", "false")),
    }


class Growth:
    """Appends what `rng` draws to a log, or the same to two, with these settings of a topic."""

    def __init__(
        self, rng: random.Random, logs: LiveLog | ComparedLogs, settings: dict[str, object]
    ) -> None:
        self._rng = rng
        self._log = logs
        # With index files that are soon full only appends of one batch are safe.
        self._following = settings["segment.index.bytes"] != FEW_ENTRIES_BYTES
        self._leader_epoch = 0
        # Epoch and next sequence of each producer; those in a transaction.
        self._next: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def step(self) -> None:
        """One thing more."""
        self._log.set_clock(self._log.now_ms + self._rng.choice((0, 0, 1, 40, 900)))
        steps = self._steps()
        self._rng.choices(list(steps), list(steps.values()))[0]()

    def _steps(self) -> dict[Callable[[], None], int]:
        return {
            self._lead: 8,
            self._lead_in_bulk: 5,
            self._end_transaction: 4,
            self._log.roll: 1,
            self._elect: 1,
            self._follow: 6 if self._following else 0,
        }

    def _lead(self) -> None:
        self._log.append_as_leader([self._batch(0)[0]], self._leader_epoch)

    def _lead_in_bulk(self) -> None:
        batches = [self._batch(0)[0] for _ in range(self._rng.randrange(1, 12))]
        self._log.append_as_leader(batches, self._leader_epoch)

    def _end_transaction(self) -> None:
        if self._open:
            marker = self._marker(0)
            self._log.append_as_leader([marker], self._leader_epoch, "COORDINATOR")

    def _follow(self) -> None:
        offset = self._log.log_end_offset + self._rng.choice((0, 0, 0, 3))
        if self._rng.random() < 0.03:
            offset += 2**31 + 5
        batches = []
        for _ in range(self._rng.randrange(1, 8)):
            if self._open and self._rng.random() < 0.3:
                batches.append(self._marker(offset))
                offset += 1
            else:
                batch, records = self._batch(offset)
                batches.append(batch)
                offset += records + self._rng.choice((0, 0, 2))
        self._log.append_as_follower(b"".join(batches), self._leader_epoch)

    def _batch(self, offset: int) -> tuple[bytes, int]:
        rng = self._rng
        count = rng.choice((1, 1, 2, 5))
        producer_id = rng.choice(_PRODUCERS)
        fields = BatchFields(leader_epoch=self._leader_epoch, compression=rng.choice(_CODECS))
        if producer_id >= 0:
            epoch, sequence = self._next.get(producer_id, (0, 0))
            if rng.random() < 0.05:
                epoch, sequence = epoch + 1, 0
            self._next[producer_id] = epoch, sequence + count
            if rng.random() < 0.3:
                self._open.add(producer_id)
            fields = BatchFields(
                leader_epoch=self._leader_epoch,
                compression=fields.compression,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=producer_id in self._open,
            )
        times = [self._log.now_ms + rng.choice((-500, -10, 0, 5)) for _ in range(count)]
        if rng.random() < 0.05:
            times[0] = -1
        records = [
            Record(
                time,
                rng.choice((None, b"key")),
                rng.choice((None, rng.randbytes(rng.choice(_SIZES)))),
                [("h", b"v"), ("", None)] if rng.random() < 0.1 else (),
            )
            for time in times
        ]
        return write_record_batch(records, offset, fields), count

    def _marker(self, offset: int) -> bytes:
        producer_id = self._rng.choice(sorted(self._open))
        self._open.remove(producer_id)
        return write_end_transaction_marker(
            offset,
            self._log.now_ms,
            producer_id,
            self._next[producer_id][0],
            is_commit=self._rng.random() < 0.4,
            coordinator_epoch=0,
            leader_epoch=self._leader_epoch,
        )

    def _elect(self) -> None:
        self._leader_epoch += 1


class ComparedGrowth(Growth):
    """Also reads both logs, makes them durable, opens them anew and truncates them."""

    def __init__(self, rng: random.Random, logs: ComparedLogs, settings: dict[str, object]) -> None:
        super().__init__(rng, logs, settings)
        self._logs = logs

    def _steps(self) -> dict[Callable[[], None], int]:
        logs = self._logs
        more = {self._read: 3, logs.flush: 1, logs.reopen: 1, self._truncate: 2}
        return super()._steps() | more

    def _read(self) -> None:
        log, rng = self._logs.ours, self._rng
        offset = rng.randint(log.log_start_offset, log.log_end_offset)
        self._logs.assert_same_read(
            offset,
            rng.choice((0, 1, 100, 1000, 10**6)),
            rng.choice(list(Isolation)),
            min_one_message=rng.random() < 0.5,
        )

    def _truncate(self) -> None:
        end = self._logs.ours.log_end_offset
        near = max(0, end - self._rng.randrange(8))
        self._logs.truncate_to(self._rng.choice((near, self._rng.randrange(end + 2))))
        # What is known of a producer now decides on what it may append.
        known = {producer.producer_id: producer for producer in self._logs.kafka.producers()}
        self._open = {one for one in known if known[one].transaction_first_offset >= 0}
        self._next = {one: (known[one].producer_epoch + 1, 0) for one in known}

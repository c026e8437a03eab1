"""Appends to a log as producers, coordinators and leaders make them, drawn from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .judged_files import EndMarker, WrittenBatch, WrittenRecord, write_batches
from .judged_log import DAY_MS
from .written_segments import CODECS

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from .judge import Judge
    from .judged_files import Written
    from .judged_log import JudgedLog, LogState

#: Index files that are soon full: an append of several batches could be refused.
FEW_ENTRIES_BYTES = 60

_START_MS = 30 * DAY_MS
_SIZES = (0, 10, 200, 900)


class Traffic:
    """Writes into a log what `rng` draws; no append is refused.

    Without `following` each append is one batch, as a leader's is.
    """

    def __init__(
        self,
        judge: Judge,
        log: JudgedLog,
        scratch: Path,
        rng: random.Random,
        *,
        following: bool = True,
    ) -> None:
        self._judge = judge
        self._log = log
        self._batches = scratch / "append"
        self._rng = rng
        self._following = following
        self._now_ms = _START_MS
        self._epoch = 0
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()
        self.state: LogState = log.loaded

    def append(self) -> None:
        """One append, or now and then a roll or a new leader."""
        self._now_ms += self._rng.choice((0, 1, 50, 5000))
        self._log.set_clock(self._now_ms)
        what = self._rng.randrange(20)
        if what == 0:
            self.state = self._log.roll()
        elif what == 1 and self._open:
            self._end_transaction()
        elif what < 6 and self._following:
            self._follow()
        else:
            self._epoch += self._rng.randrange(15) == 0
            self._lead()

    def _lead(self) -> None:
        producer_id = self._rng.choice((-1, -1, 1, 2, 3))
        batch = WrittenBatch(
            self._records(0, gaps=False),
            codec=self._rng.choice(CODECS[2]),
            producer_id=producer_id,
            producer_epoch=-1 if producer_id == -1 else 0,
            base_sequence=self._sequences.get(producer_id, 0) if producer_id > 0 else -1,
            transactional=producer_id == 3,
        )
        if producer_id > 0:
            self._sequences[producer_id] = batch.base_sequence + len(batch.records)
        if producer_id == 3:
            self._open.add(producer_id)
        self._append_as_leader(batch, "CLIENT")

    def _end_transaction(self) -> None:
        producer_id = self._open.pop()
        marker = EndMarker(
            0, producer_id, commit=self._rng.random() < 0.5, timestamp_ms=self._now_ms
        )
        self._append_as_leader(marker, "COORDINATOR")

    def _append_as_leader(self, batch: Written, origin: str) -> None:
        write_batches(self._judge, self._batches, [batch])
        self.state = self._log.append_as_leader(self._batches, self._epoch, origin).state

    def _follow(self) -> None:
        offset = self.state.log_end_offset
        batches = []
        for _ in range(self._rng.randrange(1, 6)):
            records = self._records(offset, gaps=True)
            last_offset = records[-1].offset + self._rng.choice((0, 0, 4))
            batches.append(
                WrittenBatch(
                    records,
                    codec=self._rng.choice(CODECS[2]),
                    leader_epoch=self._epoch,
                    last_offset=last_offset,
                )
            )
            offset = last_offset + 1
        write_batches(self._judge, self._batches, batches)
        self.state = self._log.append_as_follower(self._batches, self._epoch).state

    def _records(self, offset: int, *, gaps: bool) -> tuple[WrittenRecord, ...]:
        records = []
        for _ in range(self._rng.choice((1, 1, 2, 8))):
            timestamp = self._now_ms - self._rng.choice((0, 0, 1, 9000))
            value = self._rng.randbytes(self._rng.choice(_SIZES))
            records.append(WrittenRecord(offset, timestamp, b"key", value))
            offset += self._rng.choice((1, 1, 3)) if gaps else 1
        return tuple(records)


def drawn_settings(rng: random.Random, version: str) -> dict[str, object]:
    """Settings of a topic with which segments are rolled for every reason there is."""
    segment_bytes = "segment.bytes" if version.startswith("3.") else "internal.segment.bytes"
    return {
        segment_bytes: rng.choice((40_000, 100_000, 2**30)),
        "segment.ms": rng.choice((3000, 100_000, 7 * DAY_MS)),
        "index.interval.bytes": rng.choice((0, 100, 4096, 4096)),
        "segment.index.bytes": rng.choice((FEW_ENTRIES_BYTES, 10_000_000)),
        "message.timestamp.type": rng.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        "preallocate": rng.choice(("false", "false", "true")),
    }

"""The speed of Kafka's own code: the part of the judge that measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .judge_results import BenchResult, LookupBenchResult, RecordsBenchResult

if TYPE_CHECKING:
    from pathlib import Path


class JudgeBenches(ABC):
    """Measurements on one thread, the JVM warm, the pages cached."""

    @abstractmethod
    def demand(self, *fields: object) -> list[str]:
        """Send a request and return the reply's fields."""

    def bench(
        self,
        partition_dir: Path,
        base_offset: int,
        index_interval_bytes: int = 4096,
        seconds: float = 5.0,
    ) -> BenchResult:
        """Time ``LogSegment.recover`` of a sound segment, again and again, for about `seconds`.

        Raises `JudgeError` when Kafka refuses the segment or cuts it.
        """
        reply = self.demand("bench", partition_dir, base_offset, index_interval_bytes, seconds)
        return BenchResult(float(reply[1]), int(reply[2]), int(reply[3]))

    def bench_records(self, log: Path, seconds: float = 5.0) -> RecordsBenchResult:
        """Time reading all records of a log as a consumer does, each key and value copied out."""
        reply = self.demand("bench-records", log, seconds)
        return RecordsBenchResult(float(reply[1]), int(reply[2]), int(reply[3]))

    def bench_index_lookup(
        self, partition_dir: Path, base_offset: int, seconds: float = 5.0, *, in_order: bool = False
    ) -> LookupBenchResult:
        """Time ``OffsetIndex.lookup`` in an ``.index``, of random offsets or of these sorted."""
        kind = "index-sorted" if in_order else "index-random"
        return self._bench_lookup(kind, partition_dir, base_offset, seconds)

    def bench_translate_offset(
        self, partition_dir: Path, base_offset: int, seconds: float = 5.0
    ) -> LookupBenchResult:
        """Time ``LogSegment.translateOffset`` of random offsets of a segment.

        Index files that are missing are built first, and stay.
        """
        return self._bench_lookup("translate", partition_dir, base_offset, seconds)

    def bench_find_offset_by_timestamp(
        self, partition_dir: Path, base_offset: int, seconds: float = 5.0
    ) -> LookupBenchResult:
        """Time ``LogSegment.findOffsetByTimestamp`` between a segment's batches' timestamps.

        Index files that are missing are built first, and stay.
        """
        return self._bench_lookup("find", partition_dir, base_offset, seconds)

    def _bench_lookup(
        self, kind: str, partition_dir: Path, base_offset: int, seconds: float
    ) -> LookupBenchResult:
        reply = self.demand("bench-lookup", kind, partition_dir, base_offset, seconds)
        return LookupBenchResult(float(reply[1]), int(reply[2]), int(reply[3]))

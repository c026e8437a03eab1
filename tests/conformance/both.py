"""One question to Kafka and to us, about one partition; our answers in the form of Kafka's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.choices import Resolve, UpperBound
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.partitions import DIRECTORY, Row, ask_offsets, ask_times

from .kafka_answers import offset_rows, time_rows
from .reference_partition import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafka_index.core.log.read.answers import LookupFinding

    from .kafka_reference import KafkaReference
    from .partitions import Partition
    from .reference_partition import ReferencePartition


@dataclass(frozen=True)
class Queries:
    """The questions to a partition."""

    offsets: Sequence[int] = ()
    times: Sequence[int] = ()


@dataclass(frozen=True)
class QueryResults:
    """Answers to the questions at each level, and our findings meanwhile."""

    offsets: dict[Resolve, list[Row]]
    times: dict[Resolve, list[Row]]
    log_start_offset: int
    log_end_offset: int
    findings: Sequence[LookupFinding] = ()


def query_kafka_index(
    directory: Path,
    questions: Queries,
    *,
    interval: int = 4096,
    indexes: Path | None = None,
    high_watermark: bool = False,
    levels: Sequence[Resolve] = tuple(Resolve),
) -> QueryResults:
    """Look everything up.

    `directory`: partition directory in a data directory with its checkpoints. `questions`,
    `levels`: what, and how far. `interval`: ``index.interval.bytes``, for indexes that have to be
    built. `indexes`: where the index files are, if not beside the logs: the folder of the
    partition's folder. `high_watermark`: whether the checkpointed high watermark is the bound.
    """
    bound = UpperBound.HIGH_WATERMARK if high_watermark else UpperBound.LOG_END
    config = IndexConfig(index_interval_bytes=interval)
    with PartitionLog.open(directory, indexes=indexes, upper_bound=bound, config=config) as log:
        return QueryResults(
            {level: ask_offsets(log, questions.offsets, level) for level in levels},
            {level: ask_times(log, questions.times, level) for level in levels},
            log.log_start_offset,
            log.log_end_offset,
            log.take_findings(),
        )


@dataclass(frozen=True)
class ComparedPartition:
    """Kafka and us; each can be asked alone too, we without index files."""

    reference: KafkaReference
    scratch: Path

    def offset(self, partition: Partition, offset: int, resolve: Resolve = Resolve.BATCH) -> Row:
        """The answer of both to a lookup of an offset, which has to be the same."""
        kafka = self.kafka_offset(partition, offset, resolve)
        assert self.our_offset(partition, offset, resolve) == kafka
        return kafka

    def time(self, partition: Partition, time: int, resolve: Resolve = Resolve.RECORD) -> Row:
        """The answer of both to a lookup of a timestamp, which has to be the same."""
        kafka = self.kafka_time(partition, time, resolve)
        assert self.our_time(partition, time, resolve) == kafka
        return kafka

    def times(self, partition: Partition, times: Sequence[int]) -> list[Row]:
        """The answers of both to lookups of timestamps, ours together and each alone."""
        with self.opened(partition) as kafka_log:
            kafka = time_rows(kafka_log, times, Resolve.RECORD)
        assert self._ours(partition, Queries(times=times), Resolve.RECORD).times == {
            Resolve.RECORD: kafka
        }
        assert [self.our_time(partition, time) for time in times] == kafka
        return kafka

    def kafka_offset(
        self, partition: Partition, offset: int, resolve: Resolve = Resolve.BATCH
    ) -> Row:
        """Kafka's answer alone."""
        with self.opened(partition) as kafka_log:
            return offset_rows(kafka_log, [offset], resolve)[0]

    def kafka_time(
        self,
        partition: Partition,
        time: int,
        resolve: Resolve = Resolve.RECORD,
        *,
        file_time_ms: int = NEVER_MS,
    ) -> Row:
        """Kafka's answer alone."""
        with self.opened(partition, file_time_ms=file_time_ms) as kafka_log:
            return time_rows(kafka_log, [time], resolve)[0]

    def our_offset(
        self, partition: Partition, offset: int, resolve: Resolve = Resolve.BATCH
    ) -> Row:
        """Our answer alone."""
        return self._ours(partition, Queries(offsets=[offset]), resolve).offsets[resolve][0]

    def our_time(self, partition: Partition, time: int, resolve: Resolve = Resolve.RECORD) -> Row:
        """Our answer alone."""
        return self._ours(partition, Queries(times=[time]), resolve).times[resolve][0]

    def _ours(self, partition: Partition, questions: Queries, resolve: Resolve) -> QueryResults:
        return query_kafka_index(
            self._written("us", partition),
            questions,
            interval=partition.index_interval_bytes,
            high_watermark=partition.high_watermark is not None,
            levels=[resolve],
        )

    def opened(
        self,
        partition: Partition,
        *,
        file_time_ms: int = NEVER_MS,
        rotten: Partition | None = None,
    ) -> ReferencePartition:
        """The partition as a broker has it open; `rotten` is what became of it meanwhile."""
        directory = self._written("kafka", partition)
        kafka_log = self.reference.open_partition(
            directory,
            partition.index_interval_bytes,
            log_start_offset=partition.log_start_offset,
            file_time_ms=file_time_ms,
        )
        if partition.high_watermark is not None:
            kafka_log.update_high_watermark(partition.high_watermark)
        for segment in rotten.segments if rotten else ():
            path = directory / f"{segment.base_offset:020d}.log"
            with path.open("r+b") as file:
                file.write(segment.log)
        return kafka_log

    def _written(self, side: str, partition: Partition) -> Path:
        data_directory = self.scratch / "both" / side
        shutil.rmtree(data_directory, ignore_errors=True)
        partition.write(data_directory / DIRECTORY)
        return data_directory / DIRECTORY

"""One question to Kafka and to us, about one partition."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_index.layout.names import LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT
from kafka_index.reading.answers import Resolve
from tests.support.partitions import Row

from .judged_partition import NEVER_MS
from .kafka_answers import offset_rows, time_rows
from .our_answers import DIRECTORY, Questions, ask_us, write_checkpoint, write_epochs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .judge import Judge
    from .judged_partition import JudgedPartition
    from .partitions import Partition


@dataclass(frozen=True)
class Both:
    """Kafka and us; each can be asked alone too."""

    judge: Judge
    scratch: Path

    def offset(
        self,
        partition: Partition,
        offset: int,
        resolve: Resolve = Resolve.BATCH,
        *,
        high_watermark: int | None = None,
    ) -> Row:
        """The answer of both to a lookup of an offset, which has to be the same."""
        kafka = self.kafka_offset(partition, offset, resolve, high_watermark=high_watermark)
        ours = self.our_offset(partition, offset, resolve, high_watermark=high_watermark)
        assert ours == kafka
        return kafka

    def time(
        self,
        partition: Partition,
        time: int,
        resolve: Resolve = Resolve.RECORD,
        *,
        high_watermark: int | None = None,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> Row:
        """The answer of both to a lookup of a timestamp, which has to be the same."""
        kafka = self.kafka_time(
            partition, time, resolve, high_watermark=high_watermark, epochs=epochs
        )
        ours = self.our_time(partition, time, resolve, high_watermark=high_watermark, epochs=epochs)
        assert ours == kafka
        return kafka

    def times(self, partition: Partition, times: Sequence[int]) -> list[Row]:
        """The answers of both to lookups of timestamps, ours together and each alone."""
        with self.opened(partition) as judged:
            kafka = time_rows(judged, times, Resolve.RECORD, None)
        directory = self._written("us", partition)
        interval = partition.index_interval_bytes
        together = ask_us(directory, Questions(times=times), interval=interval)
        assert together.times[Resolve.RECORD] == kafka
        assert [self.our_time(partition, time) for time in times] == kafka
        return kafka

    def kafka_offset(
        self,
        partition: Partition,
        offset: int,
        resolve: Resolve = Resolve.BATCH,
        *,
        high_watermark: int | None = None,
    ) -> Row:
        """Kafka's answer alone."""
        with self.opened(partition) as judged:
            if high_watermark is not None:
                high_watermark = judged.update_high_watermark(high_watermark)
            return offset_rows(judged, [offset], resolve, high_watermark)[0]

    def kafka_time(
        self,
        partition: Partition,
        time: int,
        resolve: Resolve = Resolve.RECORD,
        *,
        high_watermark: int | None = None,
        epochs: Sequence[tuple[int, int]] = (),
        file_time_ms: int = NEVER_MS,
    ) -> Row:
        """Kafka's answer alone."""
        with self.opened(partition, epochs=epochs, file_time_ms=file_time_ms) as judged:
            if high_watermark is not None:
                high_watermark = judged.update_high_watermark(high_watermark)
            return time_rows(judged, [time], resolve, high_watermark)[0]

    def our_offset(
        self,
        partition: Partition,
        offset: int,
        resolve: Resolve = Resolve.BATCH,
        *,
        high_watermark: int | None = None,
    ) -> Row:
        """Our answer alone, without index files."""
        directory = self._written("us", partition, high_watermark=high_watermark)
        ours = ask_us(
            directory,
            Questions(offsets=[offset]),
            interval=partition.index_interval_bytes,
            high_watermark=high_watermark is not None,
            levels=[resolve],
        )
        return ours.offsets[resolve][0]

    def our_time(
        self,
        partition: Partition,
        time: int,
        resolve: Resolve = Resolve.RECORD,
        *,
        high_watermark: int | None = None,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> Row:
        """Our answer alone, without index files."""
        directory = self._written("us", partition, epochs=epochs, high_watermark=high_watermark)
        ours = ask_us(
            directory,
            Questions(times=[time]),
            interval=partition.index_interval_bytes,
            high_watermark=high_watermark is not None,
            levels=[resolve],
        )
        return ours.times[resolve][0]

    def opened(
        self,
        partition: Partition,
        *,
        epochs: Sequence[tuple[int, int]] = (),
        file_time_ms: int = NEVER_MS,
        rotten: Partition | None = None,
    ) -> JudgedPartition:
        """The partition as a broker has it open; `rotten` is what became of it meanwhile."""
        directory = self._written("kafka", partition, epochs=epochs)
        judged = self.judge.open_partition(
            directory,
            partition.index_interval_bytes,
            log_start_offset=partition.log_start_offset,
            file_time_ms=file_time_ms,
        )
        for segment in rotten.segments if rotten else ():
            path = directory / f"{segment.base_offset:020d}.log"
            with path.open("r+b") as file:
                file.write(segment.log)
        return judged

    def _written(
        self,
        side: str,
        partition: Partition,
        *,
        epochs: Sequence[tuple[int, int]] = (),
        high_watermark: int | None = None,
    ) -> Path:
        data_directory = self.scratch / "both" / side
        shutil.rmtree(data_directory, ignore_errors=True)
        directory = data_directory / DIRECTORY
        partition.write(directory)
        if partition.log_start_offset:
            write_checkpoint(data_directory, LOG_START_CHECKPOINT, partition.log_start_offset)
        if high_watermark is not None:
            write_checkpoint(data_directory, REPLICATION_CHECKPOINT, high_watermark)
        if epochs:
            write_epochs(directory, epochs)
        return directory

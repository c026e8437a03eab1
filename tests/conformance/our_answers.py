"""Our answers, in a form that can be compared with Kafka's."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafka_index.config import IndexConfig
from kafka_index.reading.answers import Resolve, UpperBound
from kafka_index.reading.partition_log import PartitionLog
from tests.support.partitions import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from kafka_index.reading.answers import Finding

DIRECTORY = "topic-0"


@dataclass(frozen=True)
class Questions:
    """The questions to a partition."""

    offsets: Sequence[int] = ()
    times: Sequence[int] = ()


@dataclass(frozen=True)
class Answered:
    """Our answers to the questions at each level, and what was noticed meanwhile."""

    offsets: dict[Resolve, list[Row]]
    times: dict[Resolve, list[Row]]
    log_start_offset: int
    log_end_offset: int
    findings: list[Finding]


def write_checkpoint(data_directory: Path, name: str, offset: int) -> None:
    """Note an offset of the partition in a checkpoint of its data directory."""
    (data_directory / name).write_text(f"0\n1\ntopic 0 {offset}\n", encoding="utf-8")


def write_epochs(partition_directory: Path, epochs: Sequence[tuple[int, int]]) -> None:
    """Note leader epochs and their start offsets as a broker does."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    text = "\n".join(lines) + "\n"
    (partition_directory / "leader-epoch-checkpoint").write_text(text, encoding="utf-8")


def ask_us(
    directory: Path,
    questions: Questions,
    *,
    interval: int = 4096,
    indexes: Path | None = None,
    high_watermark: bool = False,
    levels: Sequence[Resolve] = tuple(Resolve),
) -> Answered:
    """Look everything up.

    `directory`: partition directory in a data directory with its checkpoints. `questions`,
    `levels`: what, and how far. `interval`: ``index.interval.bytes``, for indexes that have to be
    built. `indexes`: where the index files are, if not beside the logs: the folder of the
    partition's folder. `high_watermark`: whether the checkpointed high watermark is the bound.
    """
    bound = UpperBound.HIGH_WATERMARK if high_watermark else UpperBound.LOG_END
    config = IndexConfig(index_interval_bytes=interval)
    with PartitionLog.open(directory, indexes=indexes, upper_bound=bound, config=config) as log:
        offsets = np.array(questions.offsets, np.int64)
        times = np.array(questions.times, np.int64)
        return Answered(
            {level: _rows(log.lookup_offsets(offsets, resolve=level)) for level in levels},
            {level: _rows(log.lookup_timestamps(times, resolve=level)) for level in levels},
            log.log_start_offset,
            log.log_end_offset,
            log.take_findings(),
        )


def differences(
    asked: Sequence[int],
    ours: Sequence[Row],
    kafka: Sequence[Row],
    same: Callable[[Row, Row], bool] = operator.eq,
) -> list[tuple[int, Row, Row]]:
    """Target, our answer and Kafka's, where they are not the same."""
    return [
        (target, our, theirs)
        for target, our, theirs in zip(asked, ours, kafka, strict=True)
        if not same(our, theirs)
    ]


def _rows(answers: pa.RecordBatch) -> list[Row]:
    columns = [column.to_pylist() for column in answers.columns]
    return [Row(*values) for values in zip(*columns, strict=True)]

"""The bounds and times of the partitions of a topic, and the answer of each to one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kafka_index.config import LogConfig
from kafka_index.layout.integers import Longs
from kafka_index.lookup import By, Inventory, Keys, Lookups, LookupSettings
from kafka_index.reading.answers import (
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
    Answers,
    Finding,
    Resolve,
    SpecialTimestamp,
    Status,
)


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """A partition, and its answer; unknown fields are None.

    The end offset is the exclusive end of the question; the timestamps are that of its first
    record, and its largest one. The status is None where no question was asked.
    """

    partition: int
    start_offset: int | None
    end_offset: int | None
    first_timestamp_ms: int | None
    max_timestamp_ms: int | None
    status: Status | None = None
    found_offset: int | None = None
    found_timestamp_ms: int | None = None

    @property
    def max_records(self) -> int | None:
        """Its offsets, which is its records where none was compacted away and none is a marker."""
        if self.start_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.start_offset, 0)


def answer_partitions(
    inventory: Inventory,
    topic: str,
    config: LogConfig,
    question: tuple[By, Keys] | None,
) -> tuple[list[PartitionAnswer], list[Finding]]:
    """Return the answers of the partitions of a topic, and the findings about their logs.

    The inventory may have several topics; the question has one key, asked of every partition.
    """
    rows = inventory.partitions.select(["topic", "partition", "segment_count"]).to_pylist()
    asked = [(code, row) for code, row in enumerate(rows) if row["topic"] == topic]
    numbers = np.array([row["partition"] for _, row in asked], np.int64)
    findings: list[Finding] = []
    with Lookups(inventory, LookupSettings(By.TIMESTAMP, Resolve.RECORD, config)) as lookups:
        latest = _ask(lookups, topic, numbers, SpecialTimestamp.MAX_TIMESTAMP)
        starts = [
            lookups.start_offset(code) if row["segment_count"] else None for code, row in asked
        ]
        ends = [lookups.end_offset(code) if row["segment_count"] else None for code, row in asked]
        answers = None
        if question is not None and question[0] is By.TIMESTAMP:
            answers = _answer(lookups, topic, numbers, question[1])
        findings += lookups.drain_findings()
    with Lookups(inventory, LookupSettings(By.OFFSET, Resolve.RECORD, config)) as lookups:
        first = lookups.answer(
            pa.array([topic] * len(numbers), pa.string()),
            pa.array(numbers),
            Keys(np.array([start or 0 for start in starts], np.int64)),
        )
        if question is not None and question[0] is By.OFFSET:
            answers = _answer(lookups, topic, numbers, question[1])
        findings += lookups.drain_findings()
    found = [
        PartitionAnswer(
            partition=int(numbers[number]),
            start_offset=starts[number],
            end_offset=ends[number],
            first_timestamp_ms=_time(first, number),
            max_timestamp_ms=_time(latest, number),
            status=None if answers is None else Status(int(answers.status[number])),
            found_offset=None if answers is None else _value(answers, FOUND_OFFSET, number),
            found_timestamp_ms=None if answers is None else _time(answers, number),
        )
        for number in range(len(numbers))
    ]
    return found, list(dict.fromkeys(findings))


def _ask(lookups: Lookups, topic: str, partitions: Longs, timestamp: int) -> Answers:
    return _answer(lookups, topic, partitions, Keys(np.array([timestamp], np.int64)))


def _answer(lookups: Lookups, topic: str, partitions: Sequence[int] | Longs, key: Keys) -> Answers:
    count = len(partitions)
    keys = Keys(np.repeat(key.values, count), specials=key.specials)
    return lookups.answer(pa.array([topic] * count, pa.string()), pa.array(partitions), keys)


def _time(answers: Answers, number: int) -> int | None:
    value = _value(answers, FOUND_TIMESTAMP, number)
    return None if value is None or value < 0 else value


def _value(answers: Answers, column: int, number: int) -> int | None:
    value = int(answers.values[column, number])
    return None if value == NULL else value

"""The record that a lookup has found: key, value and headers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_index.cli.lookup_logs import partition_directories
from kafka_index.cli.printed_records import NUMBER_COLUMNS, PrintedRecords, decoder_of
from kafka_index.cli.record_text import RecordText
from kafka_index.errors import CorruptLogError
from kafka_index.layout.names import TopicPartition
from kafka_index.tables import read_records

if TYPE_CHECKING:
    from kafka_index.cli.lookup_command import QuestionOptions


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record to be printed, and its partition."""

    records: PrintedRecords
    partition: TopicPartition

    def lines(self) -> list[str]:
        """Return its lines, as those of the answer before them."""
        members = list(self._text(as_json=False).members(self.records))
        width = max(len("leader epoch"), *(len(name) for name, _ in members))
        return [f"  {name.ljust(width)}  {text}" for name, text in members]

    def as_object(self) -> dict[str, Any]:
        """Return it as ``dump --records --json`` prints it."""
        record: dict[str, Any] = json.loads("".join(self._text(as_json=True).lines(self.records)))
        return record

    def _text(self, *, as_json: bool) -> RecordText:
        decode = decoder_of(os.path.join(self.partition.directory_name, "log"))
        return RecordText(as_json=as_json, keys=None, values=None, decode=decode)


def read_record(
    partition: TopicPartition, offset: int, question: QuestionOptions
) -> ShownRecord | None:
    """Return a record; None where a place without a record was found, such as the end.

    Raises `KafkaIndexError` if its batch cannot be read.
    """
    paths: Sequence[str] = question.inputs
    topic, number = partition.topic, partition.partition
    if question.tiered is None:
        paths = partition_directories(paths, topic, [number])
    rows = read_records(
        paths,
        partitions={topic: [number]},
        starting_offsets={topic: {number: offset}},
        ending_offsets={topic: {number: offset + 1}},
        columns=[*NUMBER_COLUMNS, "key", "value", "headers"],
        include_control=True,
        tiered=question.tiered,
        indexes=question.indexes,
        max_decompressed_bytes=question.config.max_decompressed_bytes,
    )
    for batch in rows:
        if batch.num_rows > 1:
            raise CorruptLogError(f"offset {offset} is that of more than one record")
        if batch.num_rows:
            return ShownRecord(PrintedRecords.of_rows(batch), partition)
    return None

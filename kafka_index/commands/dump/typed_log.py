"""Decode the keys and values of logs that are dumped."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa

from kafka_index.commands.dump.request import DumpRequest
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.query.printed_records import PRINTED_COLUMNS
from kafka_index.core.query.typed_records import (
    WriterFinder,
    check_mapping,
    decode_options,
    typed_columns,
)
from kafka_index.core.schema.decode import DecodeOptions, TypedColumns
from kafka_index.core.schema.sources import FROM_DUMP


class TypedLog:
    """Decodes the keys and values of a log.

    The topic is empty if the folder of the log is not a partition directory.
    """

    def __init__(self, partition: TopicPartition, options: DecodeOptions) -> None:
        self.partition = partition
        self._options = options
        self._types: TypedColumns | None = None

    def find_types(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Determine the types of the columns from the keys, values and headers of records."""
        finder, topic = WriterFinder(self._options), self.partition.topic
        for batch in batches:
            finder.add(topic, batch)
        types = typed_columns(
            [topic], finder.counts, self._options, PRINTED_COLUMNS, keeps_raw=True
        )
        check_mapping(self._options, {topic: types})
        self._types = types

    def decode(self, records: pa.RecordBatch, errors: Counter[str]) -> Iterator[pa.RecordBatch]:
        """Yield records with typed columns.

        Raises `CorruptRecordError` if a record does not decode and decode errors are fatal.
        """
        assert self._types is not None  # noqa: S101, because mypy needs it
        return self._types.decode(records, errors)


def typed_logs(paths: Iterable[str], request: DumpRequest) -> dict[str, TypedLog]:
    """Return the decoders of the keys and values of logs, by path.

    By default, the schemas are read from the topic ``_schemas`` next to the folder of the
    partition. Raises `InputError` if no schema source exists.
    """
    logs_by_path: dict[str, TypedLog] = {}
    options_by_topic: dict[tuple[str, str], DecodeOptions] = {}
    for path in paths:
        directory = os.path.dirname(absolute_path(path))
        partition = parse_partition_directory(os.path.basename(directory))
        uses_dump = request.schemas.partition(":")[0] == FROM_DUMP
        if partition is None and uses_dump and request.value_schema is None:
            raise InputError(
                "the schema topic cannot be found, because the log is not in a partition directory",
                path=path,
                hint="give --schemas a folder or file of schemas, or the URL of a registry",
            )
        partition = partition or TopicPartition("", 0)
        root = os.path.dirname(directory)
        if (root, partition.topic) not in options_by_topic:
            options = decode_options(request, [partition.topic], [root])
            assert options is not None  # noqa: S101, because mypy needs it
            options_by_topic[root, partition.topic] = options
        logs_by_path[path] = TypedLog(partition, options_by_topic[root, partition.topic])
    return logs_by_path

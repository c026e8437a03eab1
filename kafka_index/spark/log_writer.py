"""The writer of the data source ``kafka-log``: DataFrames to logs that a broker mounts.

Each task writes the partitions of its rows aside. The commit checks that no partition came from two
tasks, and publishes them; otherwise nothing appears.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafka_index.errors import InputError, PublishError, first_of, help_page
from kafka_index.layout.names import TopicPartition
from kafka_index.spark.executors import NOT_SHARED_HINT
from kafka_index.spark.workers import arrow_schema
from kafka_index.storage import DirectoryLock, local_path
from kafka_index.stores import is_remote
from kafka_index.writing.import_columns import OrderError, check_columns, partitions_of
from kafka_index.writing.import_settings import ImportMode, ImportSettings
from kafka_index.writing.import_target import ImportTarget, check_overwrite
from kafka_index.writing.partition_import import ImportedPartition, PartitionImport
from kafka_index.writing.staging import create_staging, remove_directory, staging_directory

#: The last two are for the command ``import``, which refuses partitions that are there.
_OWN = ("path", "orderby", "topicids", "runid", "importmode")
_SHOWN = 3
#: A task that writes more partitions at a time has as many logs open.
_MAX_OPEN = 512


@dataclass
class PartitionsWritten(WriterCommitMessage):
    """The partitions that a task has written aside."""

    partitions: tuple[ImportedPartition, ...]


class KafkaLogWriter(DataSourceArrowWriter):
    """Writes records to log directories.

    The options are ``path``, ``orderBy``, ``topicIds``, and settings under Kafka's names.
    `overwrite` replaces the output of an earlier import, instead of continuing it.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._root = _root(given)
        self._settings = _settings(given, overwrite=overwrite)
        check_columns(arrow_schema(schema), self._settings)
        self._staging = staging_directory(self._root)
        os.makedirs(self._root, exist_ok=True)
        # A broker that runs is refused before the work, and again at the commit.
        with DirectoryLock.of_data_directories([self._root]):
            if overwrite:
                check_overwrite(self._root)
            create_staging(self._staging)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task aside."""
        if not os.path.isdir(self._staging):
            raise PublishError(
                "the executors do not see the output, or another run has taken it over",
                path=self._staging,
                hint=NOT_SHARED_HINT,
            )
        folder = os.path.join(self._staging, uuid.uuid4().hex)
        os.mkdir(folder)
        logs: dict[TopicPartition, PartitionImport] = {}
        try:
            for batch in iterator:
                for partition, rows in partitions_of(batch):
                    if partition not in logs:
                        self._check_count(len(logs))
                        logs[partition] = PartitionImport(
                            self._root, folder, partition, self._settings
                        )
                    logs[partition].append(rows)
            written = tuple(logs[partition].finish() for partition in sorted(logs))
        except BaseException as error:
            for log in logs.values():
                log.abort()
            remove_directory(folder)
            if isinstance(error, OrderError):
                error.hint = f"sort the rows: df.{self._remedy()}"
            raise
        return PartitionsWritten(written)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the partitions of all tasks.

        Raises `InputError` if a partition came from two tasks. Nothing has been published then.
        """
        partitions = [
            partition
            for message in messages
            if isinstance(message, PartitionsWritten)
            for partition in message.partitions
        ]
        with ImportTarget(self._root, self._settings.mode, staging=self._staging) as target:
            counts = Counter(each.staged.partition for each in partitions)
            torn = sorted(each for each, count in counts.items() if count > 1)
            if torn:
                names = first_of([each.directory_name for each in torn], _SHOWN)
                raise InputError(
                    f"the rows of a partition came from several tasks: {names}; nothing was "
                    "written",
                    path=self._root,
                    hint=f"write df.{self._remedy()}",
                )
            for each in partitions:
                target.publish(each)
            target.remove_others()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002, because Spark passes it
        """Remove what was written aside."""
        remove_directory(self._staging)

    def _remedy(self) -> str:
        by = self._settings.order_by or "offset"
        return (
            'repartition("topic", "partition")'
            f'.sortWithinPartitions("topic", "partition", {json.dumps(by)})'
        )

    def _check_count(self, count: int) -> None:
        if count == _MAX_OPEN:
            raise InputError(
                "a task has the rows of too many partitions",
                expected=f"{_MAX_OPEN} or less",
                hint=f"use more tasks: df.repartition(n, ...) instead of df.{self._remedy()}",
            )


def _root(options: Mapping[str, str]) -> str:
    if "path" not in options:
        raise InputError("the option path is missing", hint="name a data directory")
    if is_remote(options["path"]):
        raise InputError(
            "logs are written to a file system, for a broker to mount",
            path=options["path"],
            hint="write to a folder that driver and executors share, and copy it",
        )
    return os.path.realpath(local_path(options["path"]))


def _settings(options: Mapping[str, str], *, overwrite: bool) -> ImportSettings:
    unknown = [name for name in options if name not in _OWN and "." not in name]
    if unknown:
        raise InputError(
            "kafka-log has no such option for writing",
            found=unknown[0],
            hint=f"see {help_page('import')}",
        )
    try:
        topic_ids = json.loads(options.get("topicids", "{}"))
    except ValueError:
        topic_ids = None
    if not isinstance(topic_ids, dict):
        raise InputError(
            "topicIds is not JSON", expected='{"TOPIC": "ID"}', found=options.get("topicids")
        )
    mode = ImportMode.OVERWRITE if overwrite else ImportMode.APPEND
    settings = ImportSettings.of_properties(
        {name: value for name, value in options.items() if name not in _OWN},
        mode=ImportMode(options.get("importmode", mode.value)),
        order_by=options.get("orderby"),
        topic_ids=topic_ids,
    )
    run_id = options.get("runid")
    return settings if run_id is None else replace(settings, run_id=run_id)

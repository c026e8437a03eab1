"""Import files of records as a Spark job: read the files, shuffle rows by partition, write logs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from kafka_index.commands.import_.import_columns import check_columns
from kafka_index.commands.import_.import_job import AFTER_FAILURE, Imported, run_import
from kafka_index.commands.import_.import_manifest import (
    digest_of_import,
    finished_import,
    list_imported_partitions,
    running_import,
)
from kafka_index.commands.import_.request import ImportMode, ImportRequest, ImportSettings
from kafka_index.commands.import_.result import ImportResult
from kafka_index.commands.import_.table_files import (
    ROW_NUMBER,
    TableFile,
    read_tables,
    table_schema,
)
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.job.engine import Engine, Listener, Workers
from kafka_index.core.job.result import ReportSink
from kafka_index.core.output.output import Output
from kafka_index.spark.data_source import KafkaLogSource
from kafka_index.spark.workers import SparkWorkers, read_tasks, spark_schema, spark_workers

#: Row numbers of file number N start at N times this number.
_FILE_ROWS = 1 << 40
# Assumed size of each file, which is so large that each file becomes a task.
_FILE_BYTES = 1 << 30


def write_tables(
    workers: Workers,
    files: Sequence[TableFile],
    root: str,
    settings: ImportSettings,
    properties: Mapping[str, str],
) -> None:
    """Import files of records into a data directory; each file is read by one task.

    Driver and executors share the directory. `properties` are the user's settings with Kafka's
    names.
    """
    schema = table_schema(files[0], settings.order_by)
    check_columns(schema.remove(len(schema) - 1), settings)
    order_column = settings.order_by or "offset"
    spark = spark_workers(workers)
    rows = _read_files(spark, files, schema)
    sorted_rows = (
        rows.repartition("topic", "partition")
        .sortWithinPartitions("topic", "partition", order_column, ROW_NUMBER)
        .drop(ROW_NUMBER)
    )
    spark.session.dataSource.register(KafkaLogSource)
    overwrite = settings.mode is ImportMode.OVERWRITE
    writer = sorted_rows.write.format(KafkaLogSource.name()).mode(
        "overwrite" if overwrite else "append"
    )
    options = {
        **properties,
        "topicIds": json.dumps(dict(settings.topic_ids)),
        "runId": settings.run_id,
        "importMode": settings.mode.value,
    }
    if settings.order_by is not None:
        options["orderBy"] = settings.order_by
    with spark.jobs.job(f"import {len(files):,} files"):
        writer.options(**options).save(root)


def _read_files(workers: SparkWorkers, files: Sequence[TableFile], schema: pa.Schema) -> DataFrame:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        column_index = schema.get_field_index(ROW_NUMBER)
        for number, file in read_tasks(batches):
            for rows in read_tables([file], schema):
                numbers = pa.array(
                    rows.column(column_index).to_numpy() + number * _FILE_ROWS, pa.int64()
                )
                yield rows.set_column(column_index, schema.field(column_index), numbers)

    frame = workers.frame(list(enumerate(files)), [_FILE_BYTES] * len(files))
    return frame.mapInArrow(workers.task(read), spark_schema(schema))


def import_tables(
    request: ImportRequest,
    engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> ImportResult:
    """Import the tables of a request on Spark, like `import_job.import_tables` on threads."""
    return run_import(request, partial(_import_on_spark, engine, request.properties or {}))


def _import_on_spark(
    engine: Engine,
    properties: Mapping[str, str],
    files: Sequence[TableFile],
    output: Output,
    settings: ImportSettings,
) -> Imported:
    digest = digest_of_import(files, settings)
    root = output.root
    try:
        with ExitStack() as stack:
            # The lock is released before the job, because the commit acquires the lock in another
            # process.
            with output:
                if finished := finished_import(root, digest, settings.mode):
                    return finished, False
                running = running_import(root, digest, settings, lock=output)
                running_settings = stack.enter_context(running)
            workers = stack.enter_context(
                # No `outputs` are checked here, because each task checks that it sees the staging
                # directory.
                engine.start(
                    "import", after_failure=AFTER_FAILURE, inputs=[file.path for file in files]
                )
            )
            write_tables(workers, files, root, running_settings, properties)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        # Spark wraps the original error. As on threads, raise an InputError if a table cannot be
        # imported.
        raise InputError(error.message, hint="nothing was imported") from error
    return list_imported_partitions(root, running_settings.run_id), True

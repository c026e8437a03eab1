"""Building from the rows of a DataFrame: a table of Delta or Iceberg, ORC, or a query."""

from __future__ import annotations

from collections.abc import Collection

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.commands.build.job import AFTER_FAILURE, BuildRequest, BuildResult, BuiltRows
from kafka_index.commands.build.parquet import held_target
from kafka_index.commands.build.parquet_input import input_of_schemas
from kafka_index.core.arguments import config_of, optional_path, outputs_of
from kafka_index.core.errors import ConfigError
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.parameters import Config, Path
from kafka_index.spark.jobs import job_failure
from kafka_index.spark.package import ship_package
from kafka_index.spark.parquet import Rows, build_rows
from kafka_index.spark.workers import arrow_schema, session_workers

_NAME = "DataFrame"


def build_indexes(
    frame: DataFrame,
    output: Path,
    *,
    what: Collection[str] | None = None,
    config: Config | None = None,
    verify_crc: bool = True,
    fail_fast: bool = False,
) -> BuildResult:
    """Build index files from batches in the rows of a DataFrame.

    Parameters
    ----------
    frame : DataFrame
        A row per batch, in any order: the columns ``topic``, ``partition``,
        ``segment_base_offset``, ``position_bytes``, and ``batch`` (the bytes of the batch) or the
        metadata of the batch, as a Parquet input has them. Columns of other names do not matter. It
        is read twice, or more often if it has many segments: persist an expensive one.
    output : path
        Folder for a folder of files per partition: a URI, or a local path that the executors see.
    what : list of str, optional
        The files to build: ``index``, ``timeindex``, ``txnindex``, ``snapshot``, ``epochs``; by
        default all, or ``index`` and ``timeindex`` where columns for the others are missing.
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as a broker's ``server.properties``.
    verify_crc : bool
        Whether checksums of raw batches are verified.
    fail_fast : bool
        Stop at the first segment that fails.

    Returns
    -------
    BuildResult
        A row per segment. A damaged segment is a row, not an exception.

    Raises
    ------
    InputError
        Columns are missing or of the wrong type, there are no rows, or a key is null.
    PublishError
        The output cannot be made, locked or written.
    EngineError
        A job failed because of the cluster or its environment.
    """
    target = optional_path(output, "output")
    if not target:
        raise ConfigError("a build of a DataFrame requires an output", found=repr(output))
    source = input_of_schemas(_NAME, (), [arrow_schema(frame.schema)])
    columns = [F.col(f"`{name}`").alias(name) for name in source.columns]
    rows = Rows(source, frame=frame.select(*columns))
    request = BuildRequest(
        inputs=(),
        output=target,
        outputs=outputs_of(what),
        config=config_of(config),
        verify_crc=verify_crc,
    )
    session = frame.sparkSession
    found = BuiltRows()
    with held_target(request, source, target, new_run_id()) as settings:
        try:
            ship_package(session)
            with session_workers(session, outputs=[str(settings.target_root)]) as workers:
                build_rows(workers, rows, settings, listener=found, fail_fast=fail_fast)
        except (PySparkException, Py4JError) as error:
            raise job_failure(error, AFTER_FAILURE) from error
    return found.result()

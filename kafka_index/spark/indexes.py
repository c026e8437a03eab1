"""Builds on Spark, from logs or from the rows of a DataFrame (Delta, Iceberg, ORC, queries)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.commands.build.job import build as build_on
from kafka_index.commands.build.parquet import build_from_table
from kafka_index.commands.build.parquet_input import input_of_schemas
from kafka_index.commands.build.request import BuildRequest, InputFormat
from kafka_index.commands.build.result import FILE_SCHEMA, BuildResult
from kafka_index.core.job.engine import SILENT, Listener
from kafka_index.core.job.result import KeptRows
from kafka_index.core.parameters import Config, Path
from kafka_index.spark.jobs import job_failure
from kafka_index.spark.package import ship_package
from kafka_index.spark.parquet import build_rows
from kafka_index.spark.workers import SparkWorkers, arrow_schema, session_workers

_NAME = "DataFrame"
#: The function of `build` on Spark.
build = partial(build_on, build_table=build_rows)


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
        One row per batch, in any order: the columns ``topic``, ``partition``,
        ``segment_base_offset``, ``position_bytes``, and ``batch`` (the bytes of the batch) or the
        metadata of the batch, as in a Parquet input. Other columns are ignored. It is read twice,
        or more often if it has many segments, so persist an expensive one.
    output : path
        Folder for a folder of files per partition: a URI, or a local path visible to executors.
    what : list of str, optional
        The files to build: ``index``, ``timeindex``, ``txnindex``, ``snapshot``, ``epochs``. By
        default all, or ``index`` and ``timeindex`` if columns for the others are missing.
    config : path, mapping or LogConfig, optional
        Kafka settings, such as a broker's ``server.properties``.
    verify_crc : bool
        Whether to verify the checksums of raw batches.
    fail_fast : bool
        Stop at the first segment that fails.

    Returns
    -------
    BuildResult
        One row per segment. A corrupt segment is a row, not an exception.

    Raises
    ------
    InputError
        Columns are missing or have the wrong type, there are no rows, or a key is null.
    ConfigError
        There is no output, or an argument is invalid.
    PublishError
        The output cannot be created, locked or written.
    EngineError
        A job failed because of the cluster or its environment.
    """
    given = dict(locals())
    del given["frame"]
    request = BuildRequest.build({**given, "inputs": (_NAME,), "format": InputFormat.PARQUET})
    source = input_of_schemas(_NAME, (), [arrow_schema(frame.schema)])
    columns = [F.col(f"`{name}`").alias(name) for name in source.columns]
    build_table = partial(build_rows, frame=frame.select(*columns))
    report = KeptRows(FILE_SCHEMA)
    engine = _SessionEngine(frame.sparkSession)
    built = build_from_table(request, source, engine, SILENT, report, build_table)
    return replace(built, rows=report.to_table())


@dataclass(frozen=True, slots=True)
class _SessionEngine:
    """The engine for an existing session."""

    session: SparkSession
    on_spark = True

    @contextmanager
    def start(
        self,
        _command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,  # noqa: ARG002, of `Engine.start`, as are the others
        works: int = 0,  # noqa: ARG002
        inputs: Sequence[str] = (),  # noqa: ARG002
        outputs: Sequence[str] = (),
    ) -> Iterator[SparkWorkers]:
        try:
            ship_package(self.session)
            with session_workers(self.session, outputs=outputs) as workers:
                yield workers
        except (PySparkException, Py4JError) as error:
            raise job_failure(error, after_failure) from error

"""The common parts of Spark jobs: tasks, Arrow schemas as Spark ones, and the id of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kafka_index.errors import EngineError, KafkaIndexError, RetriableError, is_retriable
from kafka_index.execution.tasks import attempt_id
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.stores import StorageOptions, configure_stores, storage_options

_ON_DRIVER = "driver"
_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def task(function: _Function, target: SharedTarget | None = None) -> _Function:
    """Return a function for ``mapInArrow`` that opens stores as this process does.

    Options travel as they were given: each process reads the files of secrets for itself. With a
    target, the function first checks that it writes where the driver looks.
    """
    return partial(_run_task, function=function, options=storage_options(), target=target)


def _run_task(
    batches: Iterable[pa.RecordBatch],
    *,
    function: _Function,
    options: StorageOptions,
    target: SharedTarget | None,
) -> Iterator[pa.RecordBatch]:
    configure_stores(options)
    if target is not None:
        target.check()
    try:
        yield from function(batches)
    except KafkaIndexError as error:
        # Its class and text reach the driver, but not its cause.
        if is_retriable(error) and not isinstance(error, RetriableError):
            raise EngineError(str(error)) from error
        raise


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as a Spark one: the same names, types and nullability."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that Spark expects of record batches."""
    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Spark before 4.2, where that is not a parameter.
        found = to_arrow_schema(schema)
    return found


def current_attempt_id() -> str:
    """Return the id of the attempt that runs here: no two of a run may share scratch files."""
    context = TaskContext.get()
    if context is None:
        return _ON_DRIVER
    return attempt_id(context.taskAttemptId(), context.attemptNumber())

"""What the Spark jobs share: Arrow schemas as Spark ones, and the id of a task's attempt."""

from __future__ import annotations

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kafka_index.tasks import attempt_id

_ON_DRIVER = "driver"


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as a Spark one: the same names, types and nullability."""
    return from_arrow_schema(schema)


def current_attempt_id() -> str:
    """Return the id of the attempt that runs here: no two of a run may share scratch files."""
    context = TaskContext.get()
    if context is None:
        return _ON_DRIVER
    return attempt_id(context.taskAttemptId(), context.attemptNumber())

"""Spark's form of the Arrow schemas, which are the ones that are declared."""

from __future__ import annotations

import functools

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kafka_index.build.report import REPORT_SCHEMA


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as a Spark one: the same names, types and nullability."""
    return from_arrow_schema(schema)


@functools.cache
def report_schema() -> StructType:
    """Return the schema of the build report."""
    return spark_schema(REPORT_SCHEMA)

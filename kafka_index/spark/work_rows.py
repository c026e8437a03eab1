"""Pieces of work on their way to tasks: a row each, pickled, with the bin that does it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kafka_index.execution.tasks import BIN

_WORK = "work"
_WORK_SCHEMA = pa.schema(
    [pa.field(BIN, pa.int32(), nullable=False), pa.field(_WORK, pa.binary(), nullable=False)]
)


def work_rows(session: SparkSession, works: Sequence[object], numbers: Sequence[int]) -> DataFrame:
    """Return a row per piece of work, each with the number of its bin."""
    packed = [pickle.dumps(work) for work in works]
    return session.createDataFrame(pa.table([list(numbers), packed], schema=_WORK_SCHEMA))


def read_work(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the work in rows from `work_rows`."""
    for batch in batches:
        for packed in batch.column(_WORK).to_pylist():
            yield pickle.loads(packed)  # noqa: S301, written by our own driver

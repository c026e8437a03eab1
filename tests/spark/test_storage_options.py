"""A task opens stores as the driver does, and is sent the name of a secret's file only."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from kafka_index.spark.workers import task
from kafka_index.stores import (
    StorageOptions,
    configure_stores,
    parse_storage_options,
    storage_options,
)


def test_options_reach_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    def options_of_task(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given, resolved = storage_options().items, storage_options().resolve()
        yield pa.record_batch({"options": [repr(given), repr(resolved)]})

    secret = tmp_path / "secret"
    secret.write_text("hidden")
    configure_stores(parse_storage_options(["region=eu-west-1", f"session_token=@{secret}"]))
    try:
        frame = spark.range(0, 1, 1, 1).mapInArrow(task(options_of_task), "options string")
        given, resolved = [row.options for row in frame.collect()]
        plan = str(frame._jdf.queryExecution().toString())
    finally:
        configure_stores(StorageOptions())

    assert "hidden" not in given
    assert "eu-west-1" in given
    assert "hidden" in resolved
    # The task was read from the file, when it ran.
    assert "hidden" not in plan
    assert base64.b64encode(b"hidden").decode() not in plan

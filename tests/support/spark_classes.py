"""A program that makes the archive of the classes of the installed PySpark, if it is not there.

python -m tests.support.spark_classes
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from tests.conformance.kafka_jars import ensure_made, java_version
from tests.support.java import QUICK, SPARK_CLASSES, dumping


def main() -> None:
    stamp = f"{pyspark.__version__} {pyspark.__file__}\n{java_version()}"
    ensure_made(SPARK_CLASSES.parent, stamp, _run_driver)


def _run_driver() -> None:
    """Run in one JVM what drivers and executors do, and let it end."""
    os.environ |= {"JDK_JAVA_OPTIONS": " ".join(QUICK), "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.extraJavaOptions", shlex.join(dumping(SPARK_CLASSES)))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.showConsoleProgress", "false")
    )
    session = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        session.range(10).mapInArrow(_same, "id long").write.parquet(f"{folder}/rows")
        rows = session.read.parquet(f"{folder}/rows")
        rows.groupBy("id").count().join(rows, "id").orderBy("id").collect()
        session.sparkContext.parallelize([1, 2]).map(str).collect()
    # Only this knows when the JVM has ended.
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main()

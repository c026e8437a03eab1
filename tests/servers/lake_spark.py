"""Spark 4.1 in an environment of its own, with its runtimes of Iceberg and Delta.

They exist for no newer Spark. The environment is installed once, outside the checkout. As a
program, this module reads tables there, and writes their rows to Parquet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_PACKAGES = ["pyspark==4.1.4"]
_CATALOG = "rest"


def read_tables(tables: list[dict[str, str]], catalog: str) -> None:
    """Read tables by Spark; each has a `format`, a `source` and an `output`.

    The source of a Delta table is its folder. That of an Iceberg table is the path of its metadata,
    or the identifier of a table in a REST catalog, whose URI is given.
    """
    from tests.conformance.kafka_jars import lake_reader_jars, needing_kafka  # noqa: PLC0415

    with needing_kafka():
        jars = ",".join(map(str, lake_reader_jars()))
    given = json.dumps({"tables": tables, "catalog": catalog, "jars": jars})
    # The variables of the tests lead to another Spark.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK", "PYTHON", "JDK_JAVA"))
    }
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    subprocess.run([_python(), __file__], input=given, text=True, check=True, env=environment)


def _python() -> Path:
    from tests.conformance.kafka_jars import ensure_made  # noqa: PLC0415
    from tests.servers.processes import built_folder  # noqa: PLC0415

    folder = built_folder() / "spark-4.1"

    def install() -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *_PACKAGES], check=True)

    ensure_made(folder, " ".join(_PACKAGES), install)
    return folder / "bin" / "python"


def _main() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = json.load(sys.stdin)
    builder = SparkSession.builder.master("local[2]")
    settings = {
        "spark.jars": given["jars"],
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{_CATALOG}.type": "rest",
        f"spark.sql.catalog.{_CATALOG}.uri": given["catalog"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as spark:
        for table in given["tables"]:
            source = table["source"]
            if table["format"] == "iceberg" and "/" not in source:
                rows = spark.table(f"{_CATALOG}.{source}")
            else:
                rows = spark.read.format(table["format"]).load(source)
            rows.write.parquet(table["output"])


if __name__ == "__main__":
    _main()

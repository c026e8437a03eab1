"""A program: reads by Spark's Kafka source from a broker, and by ``kafka-log`` from its directory.

    python -m tests.conformance.broker.spark_rows QUESTIONS.json OUTPUT

QUESTIONS has the options of the reads, by name, and the options that only one source takes. Rows go
to ``OUTPUT/NAME/SOURCE`` as Parquet, and why a read fails to ``OUTPUT/errors.json``. A process of
its own, because a Java machine knows its jars from the start.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafka_index.spark import KafkaLogSource
from tests.conformance.kafka_jars import spark_kafka_jars

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestampType")
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
    "spark.log.level": "OFF",
}


def main(questions: Path, output: Path) -> None:
    """Read everything, and write what was read."""
    asked: dict[str, Any] = json.loads(questions.read_text(encoding="utf-8"))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("rows of Kafka and of logs")
    jars = os.pathsep.join(map(str, spark_kafka_jars()))
    builder = builder.config("spark.driver.extraClassPath", jars)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.dataSource.register(KafkaLogSource)
    errors: dict[str, dict[str, str]] = {}
    for name, options in asked["reads"].items():
        for source, own in asked["sources"].items():
            reader = session.read.format(source).options(**own).options(**options)
            frame = reader.option("includeHeaders", "true")
            try:
                loaded = frame.load().selectExpr(
                    *_COLUMNS, "unix_millis(timestamp) AS timestamp", "headers"
                )
                loaded.write.parquet(str(output / name / source))
            except (PySparkException, Py4JError) as error:
                errors.setdefault(name, {})[source] = str(error)
    (output / "errors.json").write_text(json.dumps(errors), encoding="utf-8")
    session.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))

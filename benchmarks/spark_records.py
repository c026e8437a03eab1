"""Records to Parquet on Spark: from log directories, and from a broker on the same logs.

A dump of 1 GiB (8 partitions, batches of one size, records of 130 B) goes to Parquet on
``local[2]`` three ways, in turn, in one run, with a warm page cache:

- *broker*: Spark's Kafka source, from a broker on this machine, with Kafka's usual Java options;
- *logs*: ``spark.read.format("kafka-log")``, from its data directory;
- *export*: ``kafka-index export`` on two threads.

Seconds are those of the write, without the start of Spark and of the broker. The broker's own work
is on the same two cores: that is what a cluster that is restored to be read costs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from benchmarks.logs import benchmark_log
from benchmarks.mount import JAVA_OPTIONS, TOPIC, build_seconds, make_dump
from kafka_index.cli import main
from kafka_index.spark.data_source import KafkaLogSource
from tests.conformance.broker.broker import Broker
from tests.conformance.kafka_jars import spark_kafka_jars

BATCH_BYTES = (1024, 16384)
_ROUNDS = 3
_GOAL = 4.0


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goal is reached."""
    session = _session()
    session.dataSource.register(KafkaLogSource)
    print("1 GiB of records to Parquet, local[2]; seconds (median of rounds, in turn)")
    print("batch bytes   broker     logs   export    broker/logs   goal")
    reached = True
    for batch_bytes in BATCH_BYTES:
        with TemporaryDirectory(dir=scratch) as folder:
            home = make_dump(Path(folder), benchmark_log(scratch, batch_bytes), batch_bytes)
            build_seconds(home)
            out = Path(folder) / "out"
            with Broker(home, java_options=JAVA_OPTIONS) as broker:
                seconds = _measure(session, home.data, broker.bootstrap, out)
        # The first round warms everything up.
        medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
        ratio = medians["broker"] / medians["logs"]
        reached &= ratio >= _GOAL
        times = " ".join(f"{medians[name]:8.2f}" for name in medians)
        print(f"{batch_bytes:11d} {times} {ratio:14.1f} {_GOAL:6.1f}", flush=True)
    session.stop()
    return reached


def _measure(
    session: SparkSession, data: Path, bootstrap: str, out: Path
) -> dict[str, list[float]]:
    """Return the seconds of each way, by round."""
    from_broker = session.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    from_logs = session.read.format("kafka-log").option("path", str(data))
    readers = [one.option("subscribe", TOPIC.name) for one in (from_broker, from_logs)]
    ways: dict[str, Callable[[], object]] = {
        "broker": lambda: readers[0].load().write.parquet(str(out)),
        "logs": lambda: readers[1].load().write.parquet(str(out)),
        "export": lambda: _export(data, out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    rows = set()
    for _ in range(_ROUNDS + 1):
        for name, way in ways.items():
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
            rows.add(ds.dataset(out, format="parquet").count_rows())
    if len(rows) != 1:
        raise RuntimeError(f"the ways do not agree on the number of records: {rows}")
    return seconds


def _export(data: Path, out: Path) -> None:
    arguments = ["export", "--quiet", "--threads", "2", "--topics", TOPIC.name]
    if main([*arguments, "--input", str(data), "--output", str(out)]):
        raise RuntimeError("the export failed")


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = os.pathsep.join(map(str, spark_kafka_jars()))
    builder = SparkSession.builder.master("local[2]").appName("records to Parquet")
    for name, value in (
        ("spark.driver.extraClassPath", jars),
        ("spark.driver.memory", "1g"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.ui.enabled", "false"),
        ("spark.log.level", "ERROR"),
        ("spark.python.unix.domain.socket.enabled", "true"),
    ):
        builder = builder.config(name, value)
    return builder.getOrCreate()

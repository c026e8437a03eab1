"""Records to Parquet on Spark: from log directories, and from a broker on the same logs.

A dump of 1 GiB (8 partitions, batches of one size, records of 130 B) goes to Parquet on
``local[2]``, in turn, in one run, with a warm page cache and the session that the commands make:

- *broker*: Spark's Kafka source, from a broker on this machine, with Kafka's usual Java options;
- *export*: the tasks of ``kafka-index export --engine spark``, which write the files themselves;
- *threads*: ``kafka-index export`` on two threads, without Spark;
- *logs*: ``spark.read.format("kafka-log")``, from its data directory;
- *copy*: Spark reads what *logs* wrote, and writes it again: its own reader before its own writer;
- *broker, read* and *logs, read*: the same rows, which Spark's ``noop`` sink throws away.

Seconds are those of the write, without the start of Spark and of the broker, and, after the slash,
the processor time of all processes, the broker's among them: it works on the same two cores, and a
cluster that is restored to be read costs that. The goal is for *export* and its processor time,
which other work on the machine changes least. *logs* cannot reach it: with Spark's writer, *copy*
shows what is left when reading costs nearly nothing.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.dataset as ds
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession

from benchmarks.logs import benchmark_log
from benchmarks.mount import JAVA_OPTIONS, TOPIC, build_seconds, make_dump
from kafka_index.cli import main
from kafka_index.commands.export.export_job import export_splits
from kafka_index.commands.export.plan import plan_export
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.query.records import list_partitions
from kafka_index.spark import KafkaLogSource
from kafka_index.spark.session import complete_settings
from kafka_index.spark.workers import session_workers
from tests.conformance.broker.broker import Broker
from tests.conformance.kafka_jars import spark_kafka_jars

BATCH_BYTES = (1024, 16384)
_ROUNDS = 3
_GOAL = 4.0


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goal is reached."""
    session = _session()
    session.dataSource.register(KafkaLogSource)
    print("1 GiB of records to Parquet, local[2]; seconds / processor seconds (medians of")
    print("rounds, in turn), and how many times less than from the broker")
    reached = True
    for batch_bytes in BATCH_BYTES:
        with TemporaryDirectory(dir=scratch) as folder:
            home = make_dump(Path(folder), benchmark_log(scratch, batch_bytes), batch_bytes)
            build_seconds(home)
            out = Path(folder) / "out"
            with Broker(home, java_options=JAVA_OPTIONS) as broker:
                found = _measure(session, home.data, broker.bootstrap, out)
        # The first round warms everything up.
        medians = {name: _median(taken[1:]) for name, taken in found.items()}
        slowest = medians["broker"]
        reached &= slowest.cpu / medians["export"].cpu >= _GOAL
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"batches of {batch_bytes} B, goal of export {_GOAL:.0f} times; load average {load}")
        for name, cost in medians.items():
            ratios = f"{slowest.seconds / cost.seconds:7.1f} / {slowest.cpu / cost.cpu:4.1f}"
            print(f"{name:12} {cost.seconds:7.2f} / {cost.cpu:6.2f} {ratios}")
        print(flush=True)
    session.stop()
    return reached


@dataclass(frozen=True)
class Cost:
    """The time that a way takes: by the clock, and of the processor, children included."""

    seconds: float
    cpu: float


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(one.seconds for one in costs), statistics.median(one.cpu for one in costs)
    )


def _measure(session: SparkSession, data: Path, bootstrap: str, out: Path) -> dict[str, list[Cost]]:
    """Return the costs of each way, by round."""
    from_broker = session.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    from_logs = session.read.format("kafka-log").option("path", str(data))
    readers = [one.option("subscribe", TOPIC.name) for one in (from_broker, from_logs)]
    written = out.with_name("written")
    readers[1].load().write.parquet(str(written))
    ways: dict[str, Callable[[], object]] = {
        "broker": lambda: readers[0].load().write.parquet(str(out)),
        "export": lambda: _export_on_spark(session, data, out),
        "threads": lambda: _export(data, out),
        "logs": lambda: readers[1].load().write.parquet(str(out)),
        "copy": lambda: session.read.parquet(str(written)).write.parquet(str(out)),
        "broker, read": lambda: _throw_away(readers[0].load()),
        "logs, read": lambda: _throw_away(readers[1].load()),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    rows = set()
    for _ in range(_ROUNDS + 1):
        for name, way in ways.items():
            shutil.rmtree(out, ignore_errors=True)
            began, cpu = time.perf_counter(), family_cpu_seconds()
            way()
            costs[name].append(Cost(time.perf_counter() - began, family_cpu_seconds() - cpu))
            if out.exists():
                rows.add(ds.dataset(out, format="parquet").count_rows())
    if len(rows) != 1:
        raise RuntimeError(f"the ways do not agree on the number of records: {rows}")
    return costs


def family_cpu_seconds() -> float:
    """Return the processor time of this process and its descendants, also ended ones."""
    parents, ticks = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        ticks[int(name)] = sum(map(int, fields[11:15]))

    def is_family(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return sum(own for pid, own in ticks.items() if is_family(pid)) / os.sysconf("SC_CLK_TCK")


def _throw_away(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _export_on_spark(session: SparkSession, data: Path, out: Path) -> None:
    """Run the tasks of ``export --engine spark`` in this session."""
    out.mkdir()
    settings = ExportSettings(str(out))
    plan = plan_export(list_partitions(data, topics=TOPIC.name).files, settings)
    for partition in plan.partitions:
        partition.begin()
    with session_workers(session, outputs=[settings.output]) as workers:
        for done in export_splits(workers, plan.tasks, settings):
            if done.failure is not None:
                raise RuntimeError(done.failure.reason)


def _export(data: Path, out: Path) -> None:
    arguments = ["export", "--quiet", "--threads", "2", "--topics", TOPIC.name]
    if main([*arguments, "--input", str(data), "--output", str(out)]):
        raise RuntimeError("the export failed")


def _session() -> SparkSession:
    jars = os.pathsep.join(map(str, spark_kafka_jars()))
    conf = complete_settings(SparkConf(), "local[2]", "records to Parquet", submitted=False)
    conf.set("spark.driver.extraClassPath", jars)
    conf.set("spark.driver.memory", "1g")
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    return SparkSession.builder.config(conf=conf).getOrCreate()

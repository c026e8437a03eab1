"""Failed jobs: Spark passes on a task's traceback as text, and the kind of its error is kept."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkConf, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafka_index.cli.exit_status import ExitCode
from kafka_index.core.errors import CorruptLogError, InputError, PublishError, StartRefusedError
from kafka_index.spark.jobs import job_failure
from kafka_index.spark.session import complete_settings, launch_settings, refuse_speculation
from kafka_index.spark.workers import task

# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def _damage() -> None:
    raise CorruptLogError("bad_crc", path="/dump/a.log", position_bytes=7)


def _full_disk() -> None:
    raise PublishError("no space left", path="/out")


def _caused() -> None:
    try:
        with open("/dev/full", "w") as full:
            full.write("x")
    except OSError as error:
        raise PublishError("cannot write", path="/out") from error


def _failed_read() -> None:
    try:
        os.read(-1, 1)
    except OSError as error:
        raise CorruptLogError("cannot be read", path="/dump/a.log") from error


def _damage_after_a_failed_read() -> None:
    try:
        os.read(-1, 1)
    except OSError:
        raise CorruptLogError("bad_crc", path="/dump/a.log")  # noqa: B904, not its cause


def _damage_of_a_missing_file() -> None:
    try:
        os.stat("no-such-file")
    except FileNotFoundError as error:
        raise CorruptLogError("missing", path="/dump/a.log") from error


def _refusal() -> None:
    raise StartRefusedError("a broker does not start", path="/dump/a.log")


def _memory() -> None:
    raise MemoryError


def _bug() -> None:
    raise IndexError("list index out of range")


def _lines() -> None:
    raise InputError("first\nsecond: Error: third")


def _killed() -> None:
    os._exit(9)


@pytest.mark.parametrize(
    ("fail", "code", "message"),
    [
        (_damage, 1, "/dump/a.log: at byte 7: bad_crc"),
        (_lines, 1, "first second"),
        (_full_disk, 3, "/out: no space left"),
        (_caused, 3, "/out: cannot write"),
        (_failed_read, 3, "/dump/a.log: cannot be read"),
        (_damage_after_a_failed_read, 1, "/dump/a.log: bad_crc"),
        (_damage_of_a_missing_file, 1, "/dump/a.log: missing"),
        (_refusal, 1, "/dump/a.log: a broker does not start"),
        (_memory, 3, "MemoryError"),
        # How Spark notices the death of a worker is a race.
        (_killed, 3, "Python worker exited unexpectedly|Connection reset"),
        (_bug, 70, "IndexError: list index out of range"),
    ],
)
def test_failed_job_has_the_exit_code_of_its_task(
    spark: SparkSession, fail: Callable[[], None], code: int, message: str
) -> None:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fail()
        yield from batches

    with pytest.raises((PySparkException, Py4JError)) as caught:
        spark.range(0, 1, 1, 1).mapInArrow(task(run), "id long").collect()
    failure = job_failure(caught.value, "run again")
    assert ExitCode.from_error(failure) == code
    assert re.search(message, str(failure))


def test_progress_bar_of_the_jvm_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    conf = complete_settings(SparkConf(loadDefaults=False), "local[1]", "a test", submitted=False)
    # Else spark-submit turns it on, as if the user had asked for it.
    assert launch_settings(conf).get("spark.ui.showConsoleProgress") == "false"


def test_requested_speculation_is_disabled_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    conf = complete_settings(SparkConf(loadDefaults=False), "local[1]", "a test", submitted=False)
    refuse_speculation(conf)
    assert (conf.get("spark.speculation"), caplog.text) == ("false", "")

    conf.set("spark.speculation", "true")
    refuse_speculation(conf)
    assert conf.get("spark.speculation") == "false"
    assert "spark.speculation=true is ignored" in caplog.text

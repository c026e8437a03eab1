"""The one place where Spark sessions are made.

Under ``spark-submit``, the settings given there win over those made here. The console script
starts a JVM of its own, and configures its logs too.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from kafka_index.engines.gateway import check_java, owned_jvm
from kafka_index.engines.job_errors import failure_reason, job_failure
from kafka_index.engines.masters import CONNECT_SCHEME, check_master
from kafka_index.engines.spark_settings import (
    SQL_SETTINGS,
    is_on_this_machine,
    known_settings,
    launch_settings,
    prefer_given,
    settle,
)
from kafka_index.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.shared_target import SharedTarget

# A standalone master that wants these speaks first to those who authenticate or encrypt.
_SECURE_SETTINGS = ("spark.authenticate", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
_SAMPLED_INPUTS = 4
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"


@contextmanager
def open_session(
    master: str | None, app_name: str, *, after_failure: str
) -> Iterator[SparkSession]:
    """Start a session, stop it at the end, and turn Spark's errors into those of this package.

    Parameters
    ----------
    master, app_name : str
        As for `build_session`.
    after_failure : str
        Hint for the error of a job that fails.

    Raises
    ------
    EngineError
        Spark does not start, or a job fails because of the cluster or its environment.
    KafkaIndexError
        A task fails because of its data.
    RuntimeError
        A task fails because of an error in this package.
    """
    session = build_session(master, app_name)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield session
    except (PySparkException, Py4JError) as error:
        raise job_failure(error, after_failure) from error
    finally:
        # A notebook's or a job's session on Databricks is not ours to stop.
        if _DATABRICKS not in os.environ:
            session.stop()


def prepare_executors(
    session: SparkSession,
    jobs: Jobs,
    target: SharedTarget,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> int:
    """Check what the executors of a cluster have; return how many tasks run at a time.

    Parameters
    ----------
    session, jobs, target
        As for `kafka_index.spark.executors.check_executors`.
    inputs : sequence of str
        What tasks will read; a few of them are looked for.
    outputs : sequence of str
        Where tasks will write.

    Raises
    ------
    EngineError
        As `kafka_index.spark.executors.check_executors`.
    """
    from kafka_index.spark.executors import check_executors
    from kafka_index.spark.jobs import is_connect

    if not is_connect(session) and is_on_this_machine(session.sparkContext.master or ""):
        return session.sparkContext.defaultParallelism
    sample = {*inputs[:: max(len(inputs) // _SAMPLED_INPUTS, 1)], *inputs[-1:]}
    return check_executors(session, jobs, target=target, inputs=sorted(sample), outputs=outputs)


def build_session(master: str | None, app_name: str) -> SparkSession:
    """Start a Spark session, or return the one that is running.

    Parameters
    ----------
    master : str, optional
        ``local[N]``, ``spark://host:port``, ``yarn``, or ``sc://host:port`` for Spark Connect.
        Without it: that of ``spark-submit``, else all cores of this machine.
    app_name : str
        Name of the application, unless ``spark-submit`` was given one.

    Raises
    ------
    EngineError
        PySpark is not installed, there is no Java to run it, or Spark does not start.
    """
    for needed in ("pyspark", "pandas"):  # mapInArrow asks for pandas, without using it
        if importlib.util.find_spec(needed) is None:
            raise EngineError(
                f"the Spark engine needs {needed}, which is not installed",
                hint="install it, or use --engine local",
            )
    from pyspark.sql import SparkSession

    from kafka_index.spark.package import ship_package

    remote = os.environ.get("SPARK_REMOTE") or (
        master if master is not None and master.startswith(CONNECT_SCHEME) else None
    )
    if remote is not None:
        return _connect(remote)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
    conf = settle(known_settings(submitted=submitted), master, app_name, submitted=submitted)
    chosen = conf.get("spark.master") or ""
    if not submitted:
        check_master(chosen, is_plain=not any(map(conf.get, _SECURE_SETTINGS)))
    # Under spark-submit the JVM is there, and this process its child.
    jvm = nullcontext() if submitted else owned_jvm(launch_settings(conf))
    try:
        with jvm:
            if not submitted:
                prefer_given(conf)
            with _kept_interrupt_handler():
                session = SparkSession.builder.config(conf=conf).getOrCreate()
            if not is_on_this_machine(chosen):
                ship_package(session)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"Spark does not start: {failure_reason(error)}",
            hint="check --master and the Spark settings",
        ) from error
    return session


@contextmanager
def _kept_interrupt_handler() -> Iterator[None]:
    """Restore what SIGINT does: a SparkContext replaces it, even where the signal is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None:  # as it is where no Python code has set it
            signal.signal(signal.SIGINT, handler)


def _connect(remote: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from kafka_index.spark.package import ship_package

    check_master(remote)
    if is_on_this_machine(remote):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        session = SparkSession.builder.remote(remote).getOrCreate()
        for name, value in SQL_SETTINGS.items():
            session.conf.set(name, value)
        ship_package(session)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise EngineError(
            f"cannot use the Spark Connect server: {first_line}",
            path=remote,
            hint="check the address and that the server runs Spark 4",
        ) from error
    return session

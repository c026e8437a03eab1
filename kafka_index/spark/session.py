"""Creation of Spark sessions and their settings.

Under ``spark-submit``, its settings take precedence over those set here. The console script starts
its own JVM and configures its logging.

The package is sent to a cluster as a zip. The Python daemon imports it before any task runs, and
thus before Spark adds sent files to the path of workers. So the zips are put on the executors' path
here, by name: an executor downloads them into its working folder before it starts the daemon. A
Connect server starts its daemon independently; its workers start without compiled kernels.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_index
from kafka_index.core.errors import EngineError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.spark.gateway import CONNECT_SCHEME, check_java, check_master, owned_jvm
from kafka_index.spark.jobs import failure_reason, is_connect, job_failure

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

#: spark-submit enables this in every JVM started by Python programs, unless told otherwise.
_SPECULATION = "spark.speculation"
_LOGGER = logging.getLogger(__name__)
_PROGRESS = "spark.ui.showConsoleProgress"
SQL_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # No limit in bytes: with a limit, Spark sums the buffer sizes of all columns after every row,
    # which doubles the cost of record batches. Jobs with large rows set their own limit.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(INT32_MAX),
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    # Spark warns about plans with more columns than this, and reports have more by default.
    "spark.sql.debug.maxToStringFields": "100",
}
_SETTINGS = {
    **SQL_SETTINGS,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "kafka_index.spark.daemon",
    _PROGRESS: "false",
    # See `refuse_speculation`.
    _SPECULATION: "false",
}
_LOG_LEVEL = "spark.log.level"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_LOG_CONFIGURATION = "log4j2.configurationFile"
# With these settings, a standalone master responds only to authenticated or encrypted clients.
_SECURE_SETTINGS = ("spark.authenticate", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"


@contextmanager
def open_session(
    master: str | None, app_name: str, *, after_failure: str
) -> Iterator[SparkSession]:
    """Start a session, stop it at the end, and convert Spark's errors to those of this package.

    `after_failure` is the hint for the error of a failed job. Raises `EngineError` if Spark does
    not start, or a job fails because of the cluster or its environment, `KafkaIndexError` if a task
    fails because of its data, and `RuntimeError` if one fails because of an error in this package.
    """
    session = build_session(master, app_name)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield session
    except (PySparkException, Py4JError) as error:
        raise job_failure(error, after_failure) from error
    finally:
        # On Databricks, the session belongs to the notebook or job.
        if _DATABRICKS not in os.environ:
            session.stop()


def build_session(master: str | None, app_name: str) -> SparkSession:
    """Start a Spark session, or return the running one.

    The master is ``local[N]``, ``spark://host:port``, ``yarn``, or ``sc://host:port`` for Spark
    Connect. Default: the master of ``spark-submit``, otherwise all local cores. `app_name` is used
    unless ``spark-submit`` was given a name.
    """
    for needed in ("pyspark", "pandas"):  # mapInArrow requires pandas, without using it.
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
    # Under spark-submit, the JVM exists and is the parent of this process.
    jvm = nullcontext() if submitted else owned_jvm(launch_settings(conf))
    try:
        with jvm:
            if not submitted:
                prefer_given(conf)
            refuse_speculation(conf)
            with _kept_interrupt_handler():
                session = SparkSession.builder.config(conf=conf).getOrCreate()
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
    """Restore the SIGINT handler, which a SparkContext replaces even if the signal is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None:  # None if no Python code has set a handler.
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


def known_settings(*, submitted: bool) -> SparkConf:
    """Return the settings with which a driver was started."""
    from pyspark import SparkConf, SparkContext

    if submitted:
        # Only the JVM knows the settings of spark-submit, and no public function connects to it
        # without starting a context.
        SparkContext._ensure_initialized()  # noqa: SLF001
    return SparkConf()


def settle(conf: SparkConf, master: str | None, app_name: str, *, submitted: bool) -> SparkConf:
    """Complete the settings of a classic session from `known_settings`; existing ones are kept.

    `submitted`: ``spark-submit`` runs this process.
    """
    settings = dict(_SETTINGS)
    if not submitted or conf.get("spark.master", None) is None:
        settings["spark.master"] = master or "local[*]"
    if not submitted or conf.get("spark.app.name", None) in (None, Path(sys.argv[0]).name):
        conf.setAppName(app_name)
    chosen = conf.get("spark.master", None) or settings["spark.master"]
    if chosen.startswith("local"):
        settings["spark.ui.enabled"] = "false"
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    java_options = conf.get(_DRIVER_OPTIONS, None) or ""
    if _LOG_CONFIGURATION not in java_options:
        configuration = Path(kafka_index.__file__).parent / "spark" / "log4j2.properties"
        if submitted or not configuration.is_file():
            settings[_LOG_LEVEL] = "ERROR"
        else:
            settings[_DRIVER_OPTIONS] = f"-D{_LOG_CONFIGURATION}={configuration.as_uri()}"
    for name, value in settings.items():
        conf.setIfMissing(name, value)
    path = [*_package_paths(conf, chosen), conf.get(_WORKER_PATH, None)]
    conf.set(_WORKER_PATH, os.pathsep.join(part for part in path if part))
    return conf


def refuse_speculation(conf: SparkConf) -> None:
    """Set ``spark.speculation`` to false, and warn if it was true.

    A second attempt would publish the same files, and Spark kills the slower attempt at any time.
    """
    if (conf.get(_SPECULATION, None) or "").lower() == "true":
        _LOGGER.warning(
            "%s=true is ignored: a killed task attempt could undo another attempt", _SPECULATION
        )
        conf.set(_SPECULATION, "false")


def launch_settings(conf: SparkConf) -> SparkConf:
    """Return the settings that a JVM needs at startup, without those that users may have set."""
    from pyspark import SparkConf

    launch = SparkConf(loadDefaults=False)
    for name, value in conf.getAll():
        if name == _PROGRESS or (name not in _SETTINGS and name != _WORKER_PATH):
            launch.set(name, value)
    return launch


def prefer_given(conf: SparkConf) -> None:
    """Let ``spark-defaults.conf`` and PYSPARK_SUBMIT_ARGS override the settings made here.

    They are known only after the JVM has started.
    """
    from pyspark import SparkConf

    given = SparkConf()
    for name in _SETTINGS:
        value = given.get(name, None)
        if value is not None:
            conf.set(name, value)
    path = [conf.get(_WORKER_PATH, None), given.get(_WORKER_PATH, None)]
    conf.set(_WORKER_PATH, os.pathsep.join(dict.fromkeys(part for part in path if part)))


def is_on_this_machine(master: str) -> bool:
    """Return whether executors of a master see the package at this process's path."""
    return master.startswith("local")


def runs_here(session: SparkSession) -> bool:
    """Return whether the executors of a session are local, not on a server."""
    return not is_connect(session) and is_on_this_machine(session.sparkContext.master or "")


def _package_paths(conf: SparkConf, master: str) -> list[str]:
    files = (conf.get("spark.submit.pyFiles", None) or "").split(",")
    names = [name.rpartition("/")[2] for name in files if name.endswith((".zip", ".egg"))]
    if is_on_this_machine(master):
        return [str(Path(kafka_index.__file__).resolve().parent.parent), *names]
    from kafka_index.spark.package import package_file

    # Executors keep received files in their working folder.
    return [package_file().name, *names]

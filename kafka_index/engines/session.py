"""The one place where Spark sessions are made.

Under ``spark-submit``, the settings given there win over those made here. The console script
starts a JVM of its own, and configures its logs too.

The workers' daemon imports this package before any task, and so before Spark adds the files of
``--py-files`` to a worker's path. They are put on the daemon's path here by name, because an
executor unpacks them into its working directory before it starts the daemon.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_index
from kafka_index import errors
from kafka_index.errors import EngineError, KafkaIndexError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LEAST_JAVA = 17

_ARROW_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Raw batches reach megabytes each, so rows alone do not bound a record batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
}
_SETTINGS = {
    **_ARROW_SETTINGS,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "kafka_index.spark.daemon",
    "spark.ui.showConsoleProgress": "false",
    # Two attempts at one bin write the same files: the slower one could remove an index that the
    # other has published, and be killed before it publishes its own.
    "spark.speculation": "false",
}
_LOG_LEVEL = "spark.log.level"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_LOG_CONFIGURATION = "log4j2.configurationFile"
_JAVA_HINT = f"install Java {LEAST_JAVA} or newer and set JAVA_HOME, or use --engine local"

_CONNECT_SECONDS = 5.0

# The last line of a traceback: the class of the error, with its module unless it is a builtin.
_RAISED = re.compile(r"(?:([a-zA-Z_][\w.]*)\.)?([A-Z]\w*)(?:: |$)")
# A Connect server does not report its cores, only its number of shuffle partitions.
_CONNECT_PARALLELISM = "spark.sql.shuffle.partitions"


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
        raise _job_failure(error, after_failure) from error
    finally:
        session.stop()


def parallelism(session: SparkSession) -> int:
    """Return the number of tasks that run at a time, as far as it is known."""
    from kafka_index.spark.progress import is_connect

    if is_connect(session):
        return int(session.conf.get(_CONNECT_PARALLELISM) or 1)
    return session.sparkContext.defaultParallelism


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

    remote = os.environ.get("SPARK_REMOTE") or master or ""
    if remote.startswith("sc://"):
        return _connect(remote)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
    conf = _settle(_known_settings(submitted=submitted), master, app_name, submitted=submitted)
    if not submitted:
        _check_master(conf.get("spark.master") or "")
    try:
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise EngineError(
            f"Spark does not start: {_reason(error)}",
            hint="check --master and the Spark settings",
        ) from error


def check_java() -> None:
    """Check that there is a Java that Spark runs on.

    Raises
    ------
    EngineError
        There is no ``java`` in JAVA_HOME or on the PATH, or it is too old or does not run.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise EngineError("Spark needs Java, and there is no java on the PATH", hint=_JAVA_HINT)
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            "Spark needs Java, and this one does not run", path=java, hint=_JAVA_HINT
        ) from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    if version is not None and int(version[1]) < LEAST_JAVA:
        raise EngineError(
            "this Java is too old for Spark",
            path=java,
            expected=f"{LEAST_JAVA} or newer",
            found=version[1],
            hint=_JAVA_HINT,
        )


def _check_master(master: str) -> None:
    """Check that a standalone master accepts connections: Spark itself tries for over a minute."""
    if not master.startswith("spark://"):
        return
    reason: OSError | None = None
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (ValueError, OverflowError):
            return  # Spark refuses a malformed address at once
        except OSError as error:
            reason = error
        else:
            return
    raise EngineError(
        f"Spark does not start: no connection to its master ({reason})",
        path=master,
        hint="check --master and that the master runs",
    ) from reason


def _job_failure(error: Exception, hint: str) -> Exception:
    """Return the error of a job that failed: what a task raised, or what Spark reports."""
    from pyspark.errors import PythonException

    reason = _reason(error)
    message = f"the Spark job failed: {reason}"
    if not isinstance(error, PythonException):
        return EngineError(message, hint=hint)
    # Of what a task raised only the traceback arrives; its last line begins with the class.
    raised = [match for match in map(_RAISED.match, str(error).splitlines()) if match is not None]
    module, name = raised[-1].groups() if raised else (None, None)
    if module == errors.__name__:
        kind = getattr(errors, name or "", KafkaIndexError)
        is_retriable = issubclass(kind, errors.RetriableError)
        return (EngineError if is_retriable else KafkaIndexError)(message, hint=hint)
    kind = getattr(builtins, name or "", Exception)
    if module is None and issubclass(kind, OSError | MemoryError):
        return EngineError(message, hint=hint)
    return RuntimeError(f"a Spark task failed: {reason}")


def _reason(error: Exception) -> str:
    """Return the line of a Spark error that names its cause, often one of many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (causes or lines or [type(error).__name__])[-1].removeprefix("Caused by: ")


def _known_settings(*, submitted: bool) -> SparkConf:
    from pyspark import SparkConf, SparkContext

    if submitted:
        # Only the JVM knows the settings of spark-submit, and no public function connects to it
        # without starting a context as well.
        SparkContext._ensure_initialized()  # noqa: SLF001
    return SparkConf()


def _settle(conf: SparkConf, master: str | None, app_name: str, *, submitted: bool) -> SparkConf:
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
    path = [conf.get(_WORKER_PATH, None), *_package_paths(conf, chosen)]
    conf.set(_WORKER_PATH, os.pathsep.join(part for part in path if part))
    return conf


def _package_paths(conf: SparkConf, master: str) -> list[str]:
    files = (conf.get("spark.submit.pyFiles", None) or "").split(",")
    names = [name.rpartition("/")[2] for name in files if name.endswith((".zip", ".egg"))]
    if master.startswith("local"):
        # The executors are on this machine and import the package of this process.
        names.insert(0, str(Path(kafka_index.__file__).resolve().parent.parent))
    return names


def _connect(remote: str) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(remote).getOrCreate()
        for name, value in _ARROW_SETTINGS.items():
            session.conf.set(name, value)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise EngineError(
            f"cannot use the Spark Connect server: {first_line}",
            path=remote,
            hint="check the address and that the server runs Spark 4",
        ) from error
    return session

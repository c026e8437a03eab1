"""The settings of our Spark sessions, and whose win: those that a user gives, wherever.

A cluster is sent the package as a zip. The daemon of the workers imports it before any task, and so
before Spark adds the files that it has sent to a worker's path. Zips are therefore put on the path
of the executors here, by name: an executor fetches them into its working folder before it starts
the daemon. A Connect server has chosen its daemon long before; its workers start cold.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_index
from kafka_index.layout.integers import INT32_MAX

if TYPE_CHECKING:
    from pyspark import SparkConf

#: What spark-submit turns on in every JVM that Python programs start, unless it is told not to.
_PROGRESS = "spark.ui.showConsoleProgress"
SQL_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # No bound in bytes: with one, Spark sums the buffers of all columns after every row, which
    # doubles what its record batches cost. A job with large rows sets a bound of its own.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(INT32_MAX),
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    # Spark warns of a plan that has more columns than it prints, and a report has more.
    "spark.sql.debug.maxToStringFields": "100",
}
_SETTINGS = {
    **SQL_SETTINGS,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "kafka_index.spark.daemon",
    _PROGRESS: "false",
    # Two attempts at one bin write the same files: the slower one could remove an index that the
    # other has published, and be killed before it publishes its own.
    "spark.speculation": "false",
}
_LOG_LEVEL = "spark.log.level"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_LOG_CONFIGURATION = "log4j2.configurationFile"


def known_settings(*, submitted: bool) -> SparkConf:
    """Return the settings that a driver was started with."""
    from pyspark import SparkConf, SparkContext

    if submitted:
        # Only the JVM knows the settings of spark-submit, and no public function connects to it
        # without starting a context as well.
        SparkContext._ensure_initialized()  # noqa: SLF001
    return SparkConf()


def settle(conf: SparkConf, master: str | None, app_name: str, *, submitted: bool) -> SparkConf:
    """Complete the settings of a classic session; what is set already stays.

    Parameters
    ----------
    conf : SparkConf
        From `known_settings`; changed.
    master, app_name : str
        As for `kafka_index.engines.session.build_session`.
    submitted : bool
        Whether ``spark-submit`` runs this process.
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


def launch_settings(conf: SparkConf) -> SparkConf:
    """Return what a JVM has to know when it starts, without what others may have set."""
    from pyspark import SparkConf

    launch = SparkConf(loadDefaults=False)
    for name, value in conf.getAll():
        if name == _PROGRESS or (name not in _SETTINGS and name != _WORKER_PATH):
            launch.set(name, value)
    return launch


def prefer_given(conf: SparkConf) -> None:
    """Let the settings of ``spark-defaults.conf`` and PYSPARK_SUBMIT_ARGS win over those made here.

    Only the JVM that has started knows them.
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
    """Return whether the executors of a master see the package where this process has it."""
    return master.startswith("local")


def _package_paths(conf: SparkConf, master: str) -> list[str]:
    """Return where executors find this package, and then what they find with it."""
    files = (conf.get("spark.submit.pyFiles", None) or "").split(",")
    names = [name.rpartition("/")[2] for name in files if name.endswith((".zip", ".egg"))]
    if is_on_this_machine(master):
        return [str(Path(kafka_index.__file__).resolve().parent.parent), *names]
    from kafka_index.spark.package import package_file

    # Executors keep what is sent to them in their working folder.
    return [package_file().name, *names]

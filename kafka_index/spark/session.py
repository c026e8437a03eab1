"""Creation of Spark sessions and their settings.

Under ``spark-submit``, the settings of its command line take precedence over the settings here. The
console script starts its own JVM and configures its logging.

The package is sent to a cluster as a zip. The Python daemon imports it before any task runs, and
thus before Spark adds sent files to the path of workers. So the zips are put on the executors' path
here, by name: an executor downloads them into its working folder before it starts the daemon. A
Spark Connect server starts its own daemon, without this package. Its workers load the kernels when
they start their first task.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit
from weakref import WeakSet

import kafka_index
from kafka_index.core.contexts import deferred_signals
from kafka_index.core.errors import EngineError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.spark.jobs import failure_reason, is_connect, job_failure, without_package

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


LEAST_JAVA = 17
_JAVA_HINT = f"install Java {LEAST_JAVA} or newer and set JAVA_HOME, or use --engine local"

_CONNECTION_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_INT32 = struct.Struct(">i")
_POLL_SECONDS = 0.05
_READ_SECONDS = 2.0
_STOP_SECONDS = 5.0
# Py4J logs this message with a traceback if a signal ends a call. The exception is sufficient.
_STOPPED_CALL = "KeyboardInterrupt while sending command."
# Startup messages of the JVM that users cannot act on.
_IGNORED_STDERR = (b"NOTE: Picked up ", b"Picked up ", b"WARNING: Using incubator modules")

CONNECT_SCHEME = "sc://"
_STANDALONE_SCHEME = "spark://"
_KUBERNETES_SCHEME = "k8s://"
_CONNECT_PORT = 15002
#: Timeout for all addresses of a master together, so that a run that cannot start ends within half
#: a minute.
_TOTAL_SECONDS = 20.0
_MAX_CONNECT_SECONDS = 5.0
# Spark's transport protocol (org.apache.spark.network.protocol): a frame has its length, a type,
# and a body. The body of the two frame types used here is a length and UTF-8 bytes.
_FRAME_LENGTH = struct.Struct(">q")
_STREAM_REQUEST = 6
_STREAM_FAILURE = 8
_STRING_LENGTH = struct.Struct(">i")
_MAX_FRAME_BYTES = 1 << 16
# No master serves this file; a master responds with an error frame, and logs nothing.
_NO_STREAM = b"/files/kafka-index"
_NOT_SPARK = "the server is not a Spark master"


def check_java() -> None:
    """Check that the installed Java version can run Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise EngineError("Spark requires Java, but PATH contains no java", hint=_JAVA_HINT)
    try:
        version_output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            "Spark requires Java, but this program fails to run", path=java, hint=_JAVA_HINT
        ) from error
    version = re.search(r'version "(?:1\.)?(\d+)', version_output)
    if version is not None and int(version[1]) < LEAST_JAVA:
        raise EngineError(
            "this Java is too old for Spark",
            path=java,
            expected=f"{LEAST_JAVA} or newer",
            found=version[1],
            hint=_JAVA_HINT,
        )


@contextlib.contextmanager
def owned_jvm(conf: SparkConf) -> Iterator[None]:
    """Start a JVM for PySpark, unless PySpark has a JVM; kill the JVM if the context fails.

    While the context is open, the stderr output of the JVM is collected. If the context fails, this
    output is added to the exception as a note.
    """
    from pyspark import SparkContext

    # PySpark has no public API to find or set the gateway.
    if SparkContext._gateway is not None:  # noqa: SLF001
        yield
        return
    jvm = _Jvm()
    # Py4J logs `_STOPPED_CALL` to the root logger, at any time during the life of the JVM.
    logging.getLogger().addFilter(_is_not_stopped_call)
    try:
        jvm.connect(jvm.start(conf))
        yield
    except BaseException as error:
        jvm.kill()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
        # Only for errors: notes of exceptions that signals raise would be printed.
        if isinstance(error, Exception) and (stderr := jvm.collected_stderr()):
            error.add_note(stderr)
        raise
    finally:
        jvm.forward_stderr()


def _is_not_stopped_call(record: logging.LogRecord) -> bool:
    return record.msg != _STOPPED_CALL


class _Jvm:
    """A JVM that waits for PySpark to connect."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-index-"))
        self._lock = threading.Lock()
        self._stderr_lines: list[bytes] | None = []

    def start(self, conf: SparkConf) -> subprocess.Popen[bytes]:
        from pyspark.find_spark_home import _find_spark_home

        command = [str(Path(_find_spark_home(), "bin", "spark-submit"))]
        for name, value in conf.getAll():
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        path = str(self._folder / "connection")
        environment = {**os.environ, "SPARK_CONNECT_MODE": "0", _CONNECTION_FILE: path}
        with deferred_signals():
            self._process = process = subprocess.Popen(
                command,
                env=environment,
                # The JVM exits when stdin is closed, and thus when this process exits for any
                # reason.
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        self._reader = threading.Thread(
            target=self._read_stderr, args=[process.stderr], name="jvm-stderr", daemon=True
        )
        self._reader.start()
        return process

    def connect(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the JVM is ready, and set it as PySpark's gateway."""
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        path = self._folder / "connection"
        while not path.is_file():
            if process.poll() is not None and not path.is_file():
                raise EngineError(
                    f"Spark does not start: {self._exit_reason()}",
                    hint="check --master and the Spark settings",
                )
            time.sleep(_POLL_SECONDS)
        content = path.read_bytes()
        (port,), secret = _INT32.unpack_from(content), content[2 * _INT32.size :].decode()
        os.environ |= {_PORT: str(port), _SECRET: secret}
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ[_PORT], os.environ[_SECRET]
        gateway.proc = process
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001

    def kill(self) -> None:
        """Kill the JVM process and all its children."""
        process = self._process
        if process is None:
            return
        try:
            # SIGTERM lets the JVM remove its temporary folders.
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def collected_stderr(self) -> str:
        """Return the collected stderr output of the JVM."""
        if self._reader is not None:
            # An exiting JVM may still write to stderr.
            self._reader.join(_READ_SECONDS)
        with self._lock:
            return b"".join(self._stderr_lines or ()).decode(errors="replace")

    def forward_stderr(self) -> None:
        """Forward later stderr output; discard the collected output and the connection file."""
        with self._lock:
            self._stderr_lines = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _exit_reason(self) -> str:
        """Return the line of stderr that explains why the JVM exited."""
        lines = [line.strip() for line in self.collected_stderr().splitlines() if line.strip()]
        causes = [line for line in lines if "Exception: " in line or "Error: " in line]
        reason = (causes or lines or ["the JVM exited without an error message"])[0]
        return without_package(reason.removeprefix('Exception in thread "main" '))

    def _read_stderr(self, stream: BinaryIO) -> None:
        with stream:
            for line in stream:
                if line.startswith(_IGNORED_STDERR):
                    continue
                with self._lock:
                    if self._stderr_lines is not None:
                        self._stderr_lines.append(line)
                        continue
                # Written to descriptor 2, because a caller may have replaced sys.stderr.
                with contextlib.suppress(OSError):
                    os.write(2, line)


def check_master(master: str, *, is_plain: bool = True) -> None:
    """Check that a server responds at the host and port in the URL of a master, if it has both.

    If `is_plain`, the master uses Spark's protocol without authentication and encryption, and can
    be distinguished from other servers.
    """
    addresses = _parse_addresses(master)
    if not addresses:
        return
    seconds = _TOTAL_SECONDS / 2 / len(addresses)
    checks_protocol = is_plain and master.startswith(_STANDALONE_SCHEME)
    reason: Exception | None = None
    for address in addresses:
        try:
            with socket.create_connection(address, min(seconds, _MAX_CONNECT_SECONDS)) as server:
                if checks_protocol:
                    server.settimeout(seconds)
                    _check_protocol(server)
                return
        except (OSError, _NotSparkError) as error:
            reason = reason or error
    raise EngineError(
        f"Spark does not start: no connection to the master ({reason})",
        path=master,
        hint="check --master, and start the master",
    ) from reason


class _NotSparkError(Exception):
    pass


def _parse_addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a master; empty if only Spark can parse it."""
    if master.startswith(_STANDALONE_SCHEME):
        hosts_and_ports = master.removeprefix(_STANDALONE_SCHEME).split(",")
        addresses = [
            _parse_host_and_port(f"//{host_and_port}", None) for host_and_port in hosts_and_ports
        ]
    elif master.startswith(_KUBERNETES_SCHEME):
        url = master.removeprefix(_KUBERNETES_SCHEME)
        url = url if re.match("https?://", url) else f"https://{url}"
        addresses = [_parse_host_and_port(url, 80 if url.startswith("http:") else 443)]
    elif master.startswith(CONNECT_SCHEME):
        url = master.removeprefix(CONNECT_SCHEME).partition(";")[0]
        addresses = [_parse_host_and_port(f"//{url}", _CONNECT_PORT)]
    else:
        return []
    parsed_addresses = [address for address in addresses if address is not None]
    return parsed_addresses if len(parsed_addresses) == len(addresses) else []


def _parse_host_and_port(url: str, usual_port: int | None) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or usual_port
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def _check_protocol(server: socket.socket) -> None:
    """Request a stream that does not exist; Spark servers respond with an error frame."""
    body = bytes([_STREAM_REQUEST]) + _STRING_LENGTH.pack(len(_NO_STREAM)) + _NO_STREAM
    server.sendall(_FRAME_LENGTH.pack(_FRAME_LENGTH.size + len(body)) + body)
    try:
        (length,) = _FRAME_LENGTH.unpack(_receive(server, _FRAME_LENGTH.size))
        if not _FRAME_LENGTH.size < length < _MAX_FRAME_BYTES:
            raise _NotSparkError(_NOT_SPARK)
        # Read the complete response, because the master would otherwise log a connection reset.
        response = _receive(server, length - _FRAME_LENGTH.size)
    except TimeoutError:
        raise _NotSparkError("the server accepts connections but does not respond") from None
    if response[0] != _STREAM_FAILURE:
        raise _NotSparkError(_NOT_SPARK)


def _receive(server: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = server.recv(count - len(received))
        if not chunk:
            raise _NotSparkError(_NOT_SPARK)
        received += chunk
    return received


#: spark-submit enables this setting in every JVM that Python programs start, unless it is set.
_SPECULATION = "spark.speculation"
_LOGGER = logging.getLogger(__name__)
_PROGRESS = "spark.ui.showConsoleProgress"
SQL_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # No limit in bytes: with a limit, Spark sums the buffer sizes of all columns after every row,
    # which doubles the cost of record batches. Jobs with large rows set their own limit.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(INT32_MAX),
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    # Spark warns about plans with more columns than this limit. Reports have more than 25 columns,
    # the default.
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
    """Start a session, stop it at the end, and convert Spark's errors to errors of this package.

    `after_failure` is the hint for the error of a failed job. Raises `EngineError` if Spark does
    not start, or a job fails because of the cluster or its environment, `KafkaIndexError` if a task
    fails because of its data, and `RuntimeError` if a task fails because of an error in this
    package.
    """
    session = build_session(master, app_name)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield session
    except (PySparkException, Py4JError) as error:
        raise job_failure(error, after_failure) from error
    finally:
        # On Databricks, the session belongs to the notebook or job, so it is not stopped.
        if _DATABRICKS not in os.environ:
            session.stop()


def build_session(master: str | None, app_name: str) -> SparkSession:
    """Start a Spark session, or return the running session.

    The master is ``local[N]``, ``spark://host:port``, ``yarn``, or ``sc://host:port`` for Spark
    Connect. Default: the master of ``spark-submit``, otherwise all local cores. `app_name` is used
    unless ``spark-submit`` was given a name.
    """
    for module in ("pyspark", "pandas"):  # mapInArrow requires pandas, without using it.
        if importlib.util.find_spec(module) is None:
            raise EngineError(
                f"the Spark engine requires the Python package {module}, which is not installed",
                hint=f"install {module}, or use --engine local",
            )
    from pyspark.sql import SparkSession

    remote = os.environ.get("SPARK_REMOTE") or (
        master if master is not None and master.startswith(CONNECT_SCHEME) else None
    )
    if remote is not None:
        return _connect(remote)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
    conf = complete_settings(
        initial_settings(submitted=submitted), master, app_name, submitted=submitted
    )
    resolved_master = conf.get("spark.master") or ""
    if not submitted:
        check_master(resolved_master, is_plain=not any(map(conf.get, _SECURE_SETTINGS)))
    # Under spark-submit, the JVM exists and is the parent of this process.
    jvm = nullcontext() if submitted else owned_jvm(launch_settings(conf))
    try:
        with jvm:
            if not submitted:
                apply_user_settings(conf)
            refuse_speculation(conf)
            with _preserve_sigint_handler():
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
def _preserve_sigint_handler() -> Iterator[None]:
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


def initial_settings(*, submitted: bool) -> SparkConf:
    """Return the Spark settings with which this driver was started."""
    from pyspark import SparkConf, SparkContext

    if submitted:
        # Only the JVM has the settings of spark-submit, and no public function connects to the JVM
        # without starting a context.
        SparkContext._ensure_initialized()  # noqa: SLF001
    return SparkConf()


def complete_settings(
    conf: SparkConf, master: str | None, app_name: str, *, submitted: bool
) -> SparkConf:
    """Add the settings of this package for a classic session, unless they are already set.

    If `submitted`, ``spark-submit`` runs this process.
    """
    settings = dict(_SETTINGS)
    if not submitted or conf.get("spark.master", None) is None:
        settings["spark.master"] = master or "local[*]"
    if not submitted or conf.get("spark.app.name", None) in (None, Path(sys.argv[0]).name):
        conf.setAppName(app_name)
    resolved_master = conf.get("spark.master", None) or settings["spark.master"]
    if resolved_master.startswith("local"):
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
    path = [*_package_paths(conf, resolved_master), conf.get(_WORKER_PATH, None)]
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
    """Return the settings with which a JVM is started, without settings that users may override."""
    from pyspark import SparkConf

    launch = SparkConf(loadDefaults=False)
    for name, value in conf.getAll():
        if name == _PROGRESS or (name not in _SETTINGS and name != _WORKER_PATH):
            launch.set(name, value)
    return launch


def apply_user_settings(conf: SparkConf) -> None:
    """Override settings by those in ``spark-defaults.conf`` and PYSPARK_SUBMIT_ARGS.

    Both are known only after a JVM has started.
    """
    from pyspark import SparkConf

    launch_conf = SparkConf()
    for name in _SETTINGS:
        value = launch_conf.get(name, None)
        if value is not None:
            conf.set(name, value)
    path = [conf.get(_WORKER_PATH, None), launch_conf.get(_WORKER_PATH, None)]
    conf.set(_WORKER_PATH, os.pathsep.join(dict.fromkeys(part for part in path if part)))


def is_on_this_machine(master: str) -> bool:
    """Return whether the executors of a master run on this machine, and see its paths."""
    return master.startswith("local")


def has_local_executors(session: SparkSession) -> bool:
    """Return whether the executors of a session run on this machine."""
    return not is_connect(session) and is_on_this_machine(session.sparkContext.master or "")


def _package_paths(conf: SparkConf, master: str) -> list[str]:
    files = (conf.get("spark.submit.pyFiles", None) or "").split(",")
    names = [name.rpartition("/")[2] for name in files if name.endswith((".zip", ".egg"))]
    if is_on_this_machine(master):
        return [str(Path(kafka_index.__file__).resolve().parent.parent), *names]

    # Executors store received files in their working folder.
    return [package_file().name, *names]


_PACKAGE = __name__.partition(".")[0]
_SUFFIXES = (".py", ".properties", ".typed", ".bin")
# The earliest time that a zip entry can have.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_DIGEST_DIGITS = 16
# Sessions whose executors have received the package.
_sessions_with_package: WeakSet[SparkSession] = WeakSet()


def ship_package(session: SparkSession) -> None:
    """Send this package to the executors of a session, for all tasks that start later.

    Executors import this package from the zip, even if they have it installed. They import
    dependencies from their own Python installation. Nothing is sent to local executors, or to
    executors that already have the zip.
    """
    if session in _sessions_with_package or has_local_executors(session):
        return
    if is_connect(session):
        session.addArtifact(str(package_file()), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(package_file()))
    _sessions_with_package.add(session)


@functools.cache
def package_file() -> Path:
    """Return the path of the zip of this package, created once per process and removed at exit."""
    content = _zip_package()
    folder = Path(tempfile.mkdtemp(prefix="kafka-index-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_DIGITS]
    path = folder / f"{_PACKAGE}-{digest}.zip"
    path.write_bytes(content)
    return path


def _zip_package() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in _list_sources(files(_PACKAGE), _PACKAGE):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = 0o644 << 16
            # Not compressed, because compressed bytes depend on the version of zlib.
            archive.writestr(entry, source.read_bytes())
    return buffer.getvalue()


def _list_sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the files of a package in order of name; the package may be in a folder or in a zip."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _list_sources(entry, name)
        elif name.endswith(_SUFFIXES):
            yield name, entry

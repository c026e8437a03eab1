"""Connection to Spark: a check of the master, and a JVM that is killed if the start fails.

``SparkSession.builder.getOrCreate()`` is not sufficient, as measured with Spark 4.3. It tried a
closed port and a silent server for more than 70 s each, and the error did not mention the master.
After an interrupt within 3 s, Python ended but the JVM stayed, because PySpark had removed the
folder in which the JVM announces its port. PySpark returns the process of its JVM only after it has
started.

Here the JVM is started in its own process group, which no terminal interrupts, with the protocol
between ``spark-submit`` and Python programs. If the start fails, the group is killed. A standalone
master is first checked with Spark's transport protocol.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from kafka_index.core.errors import EngineError
from kafka_index.core.signals import deferred_signals
from kafka_index.spark.jobs import without_package

if TYPE_CHECKING:
    from pyspark import SparkConf


LEAST_JAVA = 17
_JAVA_HINT = f"install Java {LEAST_JAVA} or newer and set JAVA_HOME, or use --engine local"

_CONNECTION_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_INT = struct.Struct(">i")
_POLL_SECONDS = 0.05
_READ_SECONDS = 2.0
_STOP_SECONDS = 5.0
# Py4J logs this with a traceback if a signal ends a call; the exception is sufficient.
_STOPPED_CALL = "KeyboardInterrupt while sending command."
# Startup messages of the JVM that users cannot act on.
_CHATTER = (b"NOTE: Picked up ", b"Picked up ", b"WARNING: Using incubator modules")

CONNECT_SCHEME = "sc://"
_STANDALONE_SCHEME = "spark://"
_KUBERNETES_SCHEME = "k8s://"
_CONNECT_PORT = 15002
#: Timeout for all masters together, so that a run that cannot start ends within half a minute.
_TOTAL_SECONDS = 20.0
_MAX_CONNECT_SECONDS = 5.0
# Spark's transport protocol (org.apache.spark.network.protocol): a frame has its length, a type,
# and a body. The body of these two types is a length and UTF-8 bytes.
_FRAME_LENGTH = struct.Struct(">q")
_STREAM_REQUEST = 6
_STREAM_FAILURE = 8
_STRING_LENGTH = struct.Struct(">i")
_MAX_FRAME_BYTES = 1 << 16
# No master serves this file; it responds without logging.
_NO_STREAM = b"/files/kafka-index"
_NOT_SPARK = "what answers there is not a Spark master"


def check_java() -> None:
    """Check that a Java version is installed on which Spark runs."""
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


@contextlib.contextmanager
def owned_jvm(conf: SparkConf) -> Iterator[None]:
    """Start a JVM for PySpark, unless it has one; kill it if the context fails.

    While the context is open, the stderr of the JVM is collected: the error shows its cause in one
    line, and the rest as a note in the traceback.
    """
    from pyspark import SparkContext

    # PySpark has no public API to find or set the gateway.
    if SparkContext._gateway is not None:  # noqa: SLF001
        yield
        return
    jvm = _Jvm()
    # Py4J logs it to the root logger, at any time during the life of the JVM.
    logging.getLogger().addFilter(_is_worth_saying)
    try:
        jvm.connect(jvm.start(conf))
        yield
    except BaseException as error:
        jvm.kill()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
        # The notes of an exception raised by a signal would be printed.
        if isinstance(error, Exception) and (held := jvm.held_output()):
            error.add_note(held)
        raise
    finally:
        jvm.release_output()


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return record.msg != _STOPPED_CALL


class _Jvm:
    """A JVM that waits for PySpark to connect."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-index-"))
        self._guard = threading.Lock()
        self._held: list[bytes] | None = []

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
                # The JVM ends when its stdin is closed, and so when this process ends for any
                # reason.
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        self._reader = threading.Thread(
            target=self._read_output, args=[process.stderr], name="jvm-stderr", daemon=True
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
                    f"Spark does not start: {self._reason()}",
                    hint="check --master and the Spark settings",
                )
            time.sleep(_POLL_SECONDS)
        content = path.read_bytes()
        (port,), secret = _INT.unpack_from(content), content[2 * _INT.size :].decode()
        os.environ |= {_PORT: str(port), _SECRET: secret}
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ[_PORT], os.environ[_SECRET]
        gateway.proc = process
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001

    def kill(self) -> None:
        """Kill the process and all its children."""
        process = self._process
        if process is None:
            return
        try:
            # Allows it to remove its temporary folders, if it has started.
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

    def held_output(self) -> str:
        """Return the collected stderr."""
        if self._reader is not None:
            # A process that is ending may still be writing.
            self._reader.join(_READ_SECONDS)
        with self._guard:
            return b"".join(self._held or ()).decode(errors="replace")

    def release_output(self) -> None:
        """Forward further stderr; discard the collected output and the connection file."""
        with self._guard:
            self._held = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reason(self) -> str:
        """Return the line that explains why the process ended."""
        lines = [line.strip() for line in self.held_output().splitlines() if line.strip()]
        causes = [line for line in lines if "Exception: " in line or "Error: " in line]
        reason = (causes or lines or ["it ends without a word"])[0]
        return without_package(reason.removeprefix('Exception in thread "main" '))

    def _read_output(self, stderr: BinaryIO) -> None:
        with stderr:
            for line in stderr:
                if line.startswith(_CHATTER):
                    continue
                with self._guard:
                    if self._held is not None:
                        self._held.append(line)
                        continue
                # The original stderr, since a caller may have replaced sys.stderr.
                with contextlib.suppress(OSError):
                    os.write(2, line)


def check_master(master: str, *, is_plain: bool = True) -> None:
    """Check that a server responds at the host and port of a master, if it has them.

    `is_plain`: the master uses Spark's protocol without authentication and encryption. Only then
    can it be distinguished from another server.
    """
    addresses = _addresses(master)
    if not addresses:
        return
    seconds = _TOTAL_SECONDS / 2 / len(addresses)
    asks_spark = is_plain and master.startswith(_STANDALONE_SCHEME)
    reason: Exception | None = None
    for address in addresses:
        try:
            with socket.create_connection(address, min(seconds, _MAX_CONNECT_SECONDS)) as server:
                if asks_spark:
                    server.settimeout(seconds)
                    _ask_spark(server)
                return
        except (OSError, _NotSparkError) as error:
            reason = reason or error
    raise EngineError(
        f"Spark does not start: no connection to its master ({reason})",
        path=master,
        hint="check --master and that the master runs",
    ) from reason


class _NotSparkError(Exception):
    pass


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a master; empty if only Spark can parse it."""
    if master.startswith(_STANDALONE_SCHEME):
        given = master.removeprefix(_STANDALONE_SCHEME).split(",")
        addresses = [_host_and_port(f"//{each}", None) for each in given]
    elif master.startswith(_KUBERNETES_SCHEME):
        url = master.removeprefix(_KUBERNETES_SCHEME)
        url = url if re.match("https?://", url) else f"https://{url}"
        addresses = [_host_and_port(url, 80 if url.startswith("http:") else 443)]
    elif master.startswith(CONNECT_SCHEME):
        url = master.removeprefix(CONNECT_SCHEME).partition(";")[0]
        addresses = [_host_and_port(f"//{url}", _CONNECT_PORT)]
    else:
        return []
    known = [address for address in addresses if address is not None]
    return known if len(known) == len(addresses) else []


def _host_and_port(url: str, usual_port: int | None) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or usual_port
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def _ask_spark(server: socket.socket) -> None:
    """Request a stream that does not exist; Spark servers respond with an error frame."""
    body = bytes([_STREAM_REQUEST]) + _STRING_LENGTH.pack(len(_NO_STREAM)) + _NO_STREAM
    server.sendall(_FRAME_LENGTH.pack(_FRAME_LENGTH.size + len(body)) + body)
    try:
        (length,) = _FRAME_LENGTH.unpack(_receive(server, _FRAME_LENGTH.size))
        if not _FRAME_LENGTH.size < length < _MAX_FRAME_BYTES:
            raise _NotSparkError(_NOT_SPARK)
        # Read completely, otherwise the master logs a connection reset.
        answer = _receive(server, length - _FRAME_LENGTH.size)
    except TimeoutError:
        raise _NotSparkError("it accepts connections and does not answer") from None
    if answer[0] != _STREAM_FAILURE:
        raise _NotSparkError(_NOT_SPARK)


def _receive(server: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = server.recv(count - len(received))
        if not part:
            raise _NotSparkError(_NOT_SPARK)
        received += part
    return received

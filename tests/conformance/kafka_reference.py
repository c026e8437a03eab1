"""Kafka's recovery and lookups as a Python object, which builds and starts the reference program.

The reference program is a long-running JVM with Kafka's storage classes. ``reference/src/shared``
has the sources for all versions, ``reference/src/kafka-VERSION`` those for one version. They are
compiled if they have changed, which needs ``javac``. `kafka_jars` downloads the jars.
`reference_log` has its operations on logs, `reference_files` those on single files.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.timeouts import TIMEOUT_SECONDS

from .kafka_jars import (
    DEFAULT_VERSION,
    KafkaUnavailable,
    ensure_made,
    jars,
    project_hash,
    project_of,
    target_of,
    tool,
)
from .reference_partition import NEVER_MS, ReferencePartition

DEFAULT_SEGMENT_INDEX_BYTES = 10 * 1024 * 1024

#: How much of a request an error shows.
_SHOWN = 200
_REFERENCE = Path(__file__).parent / "reference"
_JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Xshare:auto")
#: What keeps Kafka's log lines out of the reference program's way.
_QUIET = {
    "4.3.1": "-Dlog4j2.level=OFF",
    "3.9.1": f"-Dlog4j.configuration={(_REFERENCE / 'log4j.properties').as_uri()}",
}
#: Where classes of the shared sources' names live in an older version.
_FORMER_NAMES = {
    "3.9.1": {
        "org.apache.kafka.common.record.internal": "org.apache.kafka.common.record",
        "org.apache.kafka.server.storage.log.FetchIsolation": (
            "org.apache.kafka.storage.internals.log.FetchIsolation"
        ),
    }
}


class KafkaReferenceError(Exception):
    """The reference program broke the line protocol or died; the message names the request."""


class KafkaRefusal(KafkaReferenceError):  # noqa: N818 - an answer, as good as any other
    """Kafka threw: the simple name of the exception's class, and its message."""

    def __init__(self, request: str, error_class: str, error_message: str) -> None:
        super().__init__(f"{request}: {error_class}: {error_message}")
        self.error_class = error_class
        self.error_message = error_message


class RecoverResult(NamedTuple):
    """The result of ``LogSegment.recover`` on a segment.

    `truncated_bytes`: bytes cut off the end of the log; None when Kafka refused. `next_offset`:
    last offset of the last batch that stayed, plus one, or the base offset when none did; None when
    Kafka refused. `error_class`: simple name of the exception that recovery threw; None when it
    went well. `error_message`: its message.
    """

    truncated_bytes: int | None
    next_offset: int | None
    error_class: str | None = None
    error_message: str | None = None


class KafkaReference:
    """A running reference program; a context manager that ends the JVM on exit.

    Not thread-safe: one request is in flight at a time.

    `version`: whose code it runs, one of `kafka_jars.VERSIONS`. Raises `KafkaUnavailable` when a
    tool or the jars are missing, or the compiler refuses the reference program.
    """

    def __init__(self, version: str = DEFAULT_VERSION) -> None:
        self.version = version
        path = os.pathsep.join(map(str, (_built(version), *jars(version))))
        self._process = subprocess.Popen(
            [tool("java"), *_JVM_OPTIONS, _QUIET[version], "-cp", path, "KafkaReference"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            bufsize=1,
        )

    def recover(
        self,
        partition_dir: Path,
        base_offset: int,
        index_interval_bytes: int = 4096,
        segment_index_bytes: int = DEFAULT_SEGMENT_INDEX_BYTES,
    ) -> RecoverResult:
        """Run ``LogSegment.recover`` on one segment, no producers and no epochs known before it.

        `partition_dir`: partition directory with a copy of the ``.log``, which is cut; the indexes
        appear there. `base_offset`: base offset of the segment, the one in its file name.
        `index_interval_bytes`, `segment_index_bytes`: Kafka's topic settings
        ``index.interval.bytes`` and ``segment.index.bytes``. Returns also when Kafka refuses; it
        then holds nothing about the files.
        """
        reply = self._ask(
            "recover", partition_dir, base_offset, index_interval_bytes, segment_index_bytes
        )
        if reply[0] == "error":
            return RecoverResult(None, None, reply[1], _unescape(reply[2]))
        return RecoverResult(int(reply[1]), int(reply[2]))

    def open_partition(
        self,
        partition_dir: Path,
        index_interval_bytes: int = 4096,
        segment_index_bytes: int = DEFAULT_SEGMENT_INDEX_BYTES,
        *,
        log_start_offset: int = 0,
        file_time_ms: int = NEVER_MS,
    ) -> ReferencePartition:
        """Open a partition as a broker does after a clean shutdown; one at a time.

        `partition_dir`: partition directory with copies of its logs. Segments without ``.index``
        get their index files by recovery of each alone; the others' are trusted. What a broker
        leaves there (snapshots, trimmed index files) is left there. `log_start_offset`: the entry
        of the data directory's ``log-start-offset-checkpoint``. `file_time_ms`: modification time
        that all files get. Kafka takes it for the largest timestamp of a segment without
        timestamps; the default is before every timestamp. Raises `KafkaReferenceError` if Kafka
        rejects the partition.
        """
        reply = self.demand(
            "open",
            partition_dir,
            index_interval_bytes,
            segment_index_bytes,
            log_start_offset,
            file_time_ms,
        )
        return ReferencePartition(self.demand, reply)

    def bench_recovery(self, partition_dir: Path, seconds: float) -> float:
        """Median seconds of ``LogSegment.recover`` of a sound segment that begins at 0.

        Measured for about `seconds` on one thread, the JVM warm, the pages cached, as the others.
        """
        return float(self.demand("bench", partition_dir, 0, 4096, seconds)[1])

    def bench_records(self, log: Path, seconds: float) -> tuple[float, int]:
        """Least seconds of CPU time to read a log as a consumer does, and how many records it has.

        Each key and value is copied out.
        """
        reply = self.demand("bench-records", log, seconds)
        return float(reply[1]), int(reply[2])

    def bench_lookup(self, kind: str, partition_dir: Path, seconds: float) -> float:
        """Lookups a second in a segment that begins at 0.

        `kind`: ``index-random`` or ``index-sorted`` offsets by ``OffsetIndex.lookup``;
        ``translate`` of random offsets by ``LogSegment.translateOffset``, ``find`` of timestamps
        by ``LogSegment.findOffsetByTimestamp``: missing index files are built first, and stay.
        """
        return float(self.demand("bench-lookup", kind, partition_dir, 0, seconds)[1])

    def close(self) -> None:
        """End the JVM."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # the end of its input is the end of the reference program
        try:
            self._process.wait(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def demand(self, *fields: object) -> list[str]:
        """Send a request and return the reply's fields, ``ok`` the first of them.

        Raises `KafkaRefusal`: Kafka threw.
        """
        reply = self._ask(*fields)
        if reply[0] == "error":
            what = " ".join(str(field) for field in fields[:5])[:_SHOWN]
            raise KafkaRefusal(what, reply[1], _unescape(reply[2]))
        return reply

    def _ask(self, *fields: object) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = "\t".join(str(field) for field in fields)
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as gone:
            raise KafkaReferenceError(
                f"the JVM ended with {self._process.wait()} before {line!r}"
            ) from gone
        reply = self._process.stdout.readline().rstrip("\n").split("\t")
        if reply[0] not in ("ok", "error"):
            raise KafkaReferenceError(
                f"no answer to {line!r}: {reply!r}, exit code {self._process.poll()}"
            )
        return reply


def _unescape(text: str) -> str:
    """Undo the reference program's escaping of tabs, line ends and backslashes."""
    return (
        text.replace("\\\\", "\0")
        .replace("\\t", "\t")
        .replace("\\n", "\n")
        .replace("\\r", "\r")
        .replace("\0", "\\")
    )


def _built(version: str) -> Path:
    """Return the folder of the compiled classes; compile them if the sources have changed."""
    classes = target_of(version) / "classes"
    sources = {}
    for folder in (_REFERENCE / "src" / "shared", _REFERENCE / "src" / project_of(version).name):
        for path in sorted(folder.glob("*.java")):
            text = path.read_text(encoding="utf-8")
            for name, former in _FORMER_NAMES.get(version, {}).items():
                text = text.replace(name, former)
            sources[path.name] = text
    digest = hashlib.sha256(project_hash(project_of(version)).encode())
    for name, text in sources.items():
        digest.update(f"{name}\0{text}\0".encode())
    ensure_made(classes, digest.hexdigest(), lambda: _compile(version, sources, classes))
    return classes


def _compile(version: str, sources: dict[str, str], classes: Path) -> None:
    folder = classes.with_name("sources")
    folder.mkdir(exist_ok=True)
    for former in folder.glob("*.java"):
        former.unlink()
    for name, text in sources.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = os.pathsep.join(map(str, jars(version)))
    options = ("--release=17", "-proc:none", "-nowarn", "-d", str(classes), "-cp", path)
    result = subprocess.run(
        [tool("javac"), *options, *(str(folder / name) for name in sources)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise KafkaUnavailable(
            f"javac refused the reference program of Kafka {version}:\n"
            f"{(result.stdout + result.stderr).strip()[-2000:]}"
        )

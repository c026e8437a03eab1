"""Kafka's own recovery and lookups as a Python object: starts the judge and talks to it.

The judge is one long-running JVM (``judge/src/main/java``) with Kafka's storage classes in it;
`judge_build` builds it when its sources have changed. Its answers about logs that grow are in
`judged_log`, of single files in `judged_files`.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Self

from tests.support.timeouts import TIMEOUT_SECONDS

from .judge_benches import JudgeBenches
from .judge_build import class_path, ensure_judge, quiet_options, tool
from .judge_results import BenchResult, LookupBenchResult, RecoverResult
from .judged_partition import NEVER_MS, JudgedPartition
from .kafka_jars import DEFAULT_VERSION

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BenchResult",
    "Judge",
    "JudgeError",
    "KafkaRefusal",
    "LookupBenchResult",
    "RecoverResult",
]

DEFAULT_SEGMENT_INDEX_BYTES = 10 * 1024 * 1024

#: How much of a request an error shows.
_SHOWN = 200

_JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Xshare:auto")


class JudgeError(Exception):
    """The judge broke the line protocol or died; the message names the request."""


class KafkaRefusal(JudgeError):  # noqa: N818 - an answer, as good as any other
    """Kafka threw: the simple name of the exception's class, and its message."""

    def __init__(self, request: str, error_class: str, error_message: str) -> None:
        super().__init__(f"{request}: {error_class}: {error_message}")
        self.error_class = error_class
        self.error_message = error_message


class Judge(JudgeBenches):
    """A running judge; a context manager that ends the JVM on exit.

    Not thread-safe: one request is in flight at a time.

    `version`: whose code it runs, one of `kafka_jars.VERSIONS`.
    """

    def __init__(self, version: str = DEFAULT_VERSION) -> None:
        ensure_judge(version)
        self.version = version
        self._process = subprocess.Popen(
            [
                tool("java"),
                *_JVM_OPTIONS,
                *quiet_options(version),
                "-cp",
                class_path(version),
                "Judge",
            ],
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
            return RecoverResult(
                None, None, error_class=reply[1], error_message=_unescape(reply[2])
            )
        return RecoverResult(truncated_bytes=int(reply[1]), next_offset=int(reply[2]))

    def open_partition(
        self,
        partition_dir: Path,
        index_interval_bytes: int = 4096,
        segment_index_bytes: int = DEFAULT_SEGMENT_INDEX_BYTES,
        *,
        log_start_offset: int = 0,
        file_time_ms: int = NEVER_MS,
    ) -> JudgedPartition:
        """Open a partition as a broker does after a clean shutdown; one at a time.

        `partition_dir`: partition directory with copies of its logs. Segments without ``.index``
        get their index files by recovery of each alone; the others' are trusted. What a broker
        leaves there (snapshots, trimmed index files) is left there. `log_start_offset`: the entry
        of the data directory's ``log-start-offset-checkpoint``. `file_time_ms`: modification time
        that all files get. Kafka takes it for the largest timestamp of a segment without
        timestamps; the default lies before every timestamp. Raises `JudgeError` when Kafka refuses
        the partition.
        """
        reply = self.demand(
            "open",
            partition_dir,
            index_interval_bytes,
            segment_index_bytes,
            log_start_offset,
            file_time_ms,
        )
        return JudgedPartition(self.demand, reply)

    def close(self) -> None:
        """End the JVM."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # the end of its input is the end of the judge
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
            raise JudgeError(f"the JVM ended with {self._process.wait()} before {line!r}") from gone
        reply = self._process.stdout.readline().rstrip("\n").split("\t")
        if reply[0] not in ("ok", "error"):
            raise JudgeError(f"no answer to {line!r}: {reply!r}, exit code {self._process.poll()}")
        return reply


def _unescape(text: str) -> str:
    """Undo the judge's escaping of tabs, line ends and backslashes."""
    return (
        text.replace("\\\\", "\0")
        .replace("\\t", "\t")
        .replace("\\n", "\n")
        .replace("\\r", "\r")
        .replace("\0", "\\")
    )

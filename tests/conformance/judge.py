"""Kafka's own recovery and lookups as a Python object: starts the judge and talks to it.

The judge is one long-running JVM (``judge/src/main/java``) with Kafka's storage classes in it;
`judge_build` builds it when its sources have changed.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Self

from .judge_build import class_path, ensure_judge, tool
from .judge_results import BenchResult, LookupBenchResult, RecoverResult
from .judged_partition import NEVER_MS, JudgedPartition

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["BenchResult", "Judge", "JudgeError", "LookupBenchResult", "RecoverResult"]

DEFAULT_SEGMENT_INDEX_BYTES = 10 * 1024 * 1024

_JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Xshare:auto")


class JudgeError(Exception):
    """The judge broke the line protocol or died; the message says at which request."""


class Judge:
    """A running judge; a context manager that ends the JVM on exit.

    Not thread-safe: one request is in flight at a time.
    """

    def __init__(self) -> None:
        ensure_judge()
        self._process = subprocess.Popen(
            [tool("java"), *_JVM_OPTIONS, "-cp", class_path(), "Judge"],
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

        Parameters
        ----------
        partition_dir
            Partition directory with a copy of the ``.log``, which is cut; the indexes appear there.
        base_offset
            Base offset of the segment, the one in its file name.
        index_interval_bytes, segment_index_bytes
            Kafka's topic settings ``index.interval.bytes`` and ``segment.index.bytes``.

        Returns
        -------
        RecoverResult
            Also when Kafka refuses; nothing is then said about the files.
        """
        reply = self._ask(
            "recover", partition_dir, base_offset, index_interval_bytes, segment_index_bytes
        )
        if reply[0] == "error":
            return RecoverResult(
                None, None, error_class=reply[1], error_message=_unescape(reply[2])
            )
        return RecoverResult(truncated_bytes=int(reply[1]), next_offset=int(reply[2]))

    def bench(
        self,
        partition_dir: Path,
        base_offset: int,
        index_interval_bytes: int = 4096,
        seconds: float = 5.0,
    ) -> BenchResult:
        """Time ``LogSegment.recover`` of a sound segment, again and again, for about `seconds`.

        Raises
        ------
        JudgeError
            When Kafka refuses the segment or cuts it.
        """
        reply = self._demand("bench", partition_dir, base_offset, index_interval_bytes, seconds)
        return BenchResult(float(reply[1]), int(reply[2]), int(reply[3]))

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

        Parameters
        ----------
        partition_dir
            Partition directory with copies of its logs. Segments without ``.index`` get their
            index files by recovery of each alone; the others' are believed. What a broker leaves
            there (snapshots, trimmed index files) is left there.
        log_start_offset
            The entry of the data directory's ``log-start-offset-checkpoint``.
        file_time_ms
            Modification time that all files get. Kafka takes it for the largest timestamp of a
            segment without timestamps; the default lies before every timestamp.

        Raises
        ------
        JudgeError
            When Kafka refuses the partition.
        """
        reply = self._demand(
            "open",
            partition_dir,
            index_interval_bytes,
            segment_index_bytes,
            log_start_offset,
            file_time_ms,
        )
        return JudgedPartition(self._demand, reply)

    def bench_index_lookup(
        self,
        partition_dir: Path,
        base_offset: int,
        seconds: float = 5.0,
        *,
        in_order: bool = False,
    ) -> LookupBenchResult:
        """Time ``OffsetIndex.lookup`` in an ``.index``, of random offsets or of these sorted."""
        kind = "index-sorted" if in_order else "index-random"
        return self._bench_lookup(kind, partition_dir, base_offset, seconds)

    def bench_translate_offset(
        self, partition_dir: Path, base_offset: int, seconds: float = 5.0
    ) -> LookupBenchResult:
        """Time ``LogSegment.translateOffset`` of random offsets of a segment.

        Index files that are missing are built first, and stay.
        """
        return self._bench_lookup("translate", partition_dir, base_offset, seconds)

    def bench_find_offset_by_timestamp(
        self, partition_dir: Path, base_offset: int, seconds: float = 5.0
    ) -> LookupBenchResult:
        """Time ``LogSegment.findOffsetByTimestamp`` between a segment's batches' timestamps.

        Index files that are missing are built first, and stay.
        """
        return self._bench_lookup("find", partition_dir, base_offset, seconds)

    def close(self) -> None:
        """End the JVM."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # the end of its input is the end of the judge
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _bench_lookup(
        self, kind: str, partition_dir: Path, base_offset: int, seconds: float
    ) -> LookupBenchResult:
        reply = self._demand("bench-lookup", kind, partition_dir, base_offset, seconds)
        return LookupBenchResult(float(reply[1]), int(reply[2]), int(reply[3]))

    def _demand(self, *fields: object) -> list[str]:
        """Ask what must not be refused."""
        reply = self._ask(*fields)
        if reply[0] == "error":
            what = " ".join(str(field) for field in fields[:5])
            raise JudgeError(f"{what}: {reply[1]}: {_unescape(reply[2])}")
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

"""Kafka's own recovery of a segment as a Python object: starts the judge and talks to it.

The judge is one long-running JVM (``judge/src/main/java/Judge.java``) with Kafka's storage classes
in it; `judge_build` builds it when its sources have changed.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from .judge_build import class_path, ensure_judge, tool

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

DEFAULT_SEGMENT_INDEX_BYTES = 10 * 1024 * 1024

_JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Xshare:auto")


class JudgeError(Exception):
    """The judge broke the line protocol or died; the message says at which request."""


@dataclass(frozen=True)
class RecoverResult:
    """What ``LogSegment.recover`` did with a segment.

    Attributes
    ----------
    truncated_bytes
        Bytes cut off the end of the log; None when Kafka refused.
    next_offset
        Last offset of the last batch that stayed, plus one, or the base offset when none did; None
        when Kafka refused.
    error_class
        Simple name of the exception that recovery threw; None when it went well.
    error_message
        Its message.
    """

    truncated_bytes: int | None
    next_offset: int | None
    error_class: str | None = None
    error_message: str | None = None

    @property
    def refused(self) -> bool:
        """Whether recovery threw."""
        return self.error_class is not None


@dataclass(frozen=True)
class BenchResult:
    """Speed of ``LogSegment.recover`` on one segment, the JVM warm, the pages cached."""

    median_seconds: float
    log_size_bytes: int
    rounds: int


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
        reply = self._ask("bench", partition_dir, base_offset, index_interval_bytes, seconds)
        if reply[0] == "error":
            raise JudgeError(f"bench of {partition_dir}: {reply[1]}: {_unescape(reply[2])}")
        return BenchResult(float(reply[1]), int(reply[2]), int(reply[3]))

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

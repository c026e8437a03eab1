"""The judge's reports about a recovery and about speed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecoverResult:
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


@dataclass(frozen=True)
class LookupBenchResult:
    """Speed of one kind of lookup on one thread, the JVM warm, the pages cached."""

    queries_per_second: float
    queries_per_round: int
    rounds: int


@dataclass(frozen=True)
class RecordsBenchResult:
    """Speed of reading the records of a log on one thread, the JVM warm, the pages cached.

    The least CPU time of that thread, which a machine that runs other programs disturbs least.
    """

    best_seconds: float
    records: int
    rounds: int

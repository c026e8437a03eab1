"""Findings about a log while its queries are answered, and the queries that each affects."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafka_index.errors import (
    OPEN_FILES_HINT,
    KafkaIndexError,
    is_retriable,
    lacks_open_files,
)
from kafka_index.layout.integers import Longs
from kafka_index.reading.answers import Answers, Status
from kafka_index.reading.segment_log import SegmentLog
from kafka_index.storage import SegmentFile

#: An index file is missing: it is built in memory.
NO_INDEX = "no_index"
#: An index file does not fit its log: another one is built in memory.
INDEX_REFUSED = "index_refused"
#: The last segment ends in bytes that a broker cuts off when it starts; the log ends there.
TAIL = "tail"
#: Damage, or a failing disk, hides the answers to some queries.
UNREADABLE = "unreadable"
KINDS = (NO_INDEX, INDEX_REFUSED, TAIL, UNREADABLE)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a partition, or about one of its segments, that users should know.

    `kind` is one of `KINDS`, and `queries` the number of queries without an answer because of it. A
    `retriable` finding is a fault of the environment (permission, disk, memory), not of the data.
    """

    topic: str
    partition: int
    segment_base_offset: int | None
    path: str
    kind: str
    reason: str
    position_bytes: int | None = None
    queries: int = 0
    retriable: bool = False


class Findings:
    """Collects findings; a repeated one adds its queries to the first."""

    def __init__(self) -> None:
        self._found: dict[Finding, int] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        key = replace(finding, queries=0)
        self._found[key] = self._found.get(key, 0) + finding.queries

    def drain(self) -> list[Finding]:
        """Return the findings since the last call."""
        found, self._found = self._found, {}
        return [replace(finding, queries=queries) for finding, queries in found.items()]


class SegmentFindings:
    """Adds the findings of a segment to those of its partition.

    Queries that they leave without an answer are marked.
    """

    def __init__(self, segment: SegmentFile, log: SegmentLog, findings: Findings) -> None:
        self._segment = segment
        self._log = log
        self._findings = findings

    def add(
        self,
        kind: str,
        path: str,
        reason: str,
        position_bytes: int | None = None,
        queries: int = 0,
        *,
        retriable: bool = False,
    ) -> None:
        """Add a finding."""
        segment = self._segment
        self._findings.add(
            Finding(
                segment.topic,
                segment.partition,
                segment.base_offset,
                path,
                kind,
                reason,
                position_bytes,
                queries,
                retriable,
            )
        )

    def damage(self, answers: Answers, rows: Longs, position_bytes: int) -> None:
        """Mark queries as unreadable because of damage at a position."""
        if len(rows):
            answers.status[rows] = Status.UNREADABLE
            reason = self._log.why_unreadable(position_bytes)
            self.add(UNREADABLE, self._segment.log_path, reason, position_bytes, len(rows))

    def failure(self, answers: Answers, rows: Longs, error: KafkaIndexError) -> None:
        """Mark queries as unreadable because of an error."""
        if len(rows):
            answers.status[rows] = Status.UNREADABLE
            path = error.path or self._segment.log_path
            self.add(
                UNREADABLE,
                path,
                f"{error.message}; {OPEN_FILES_HINT}" if lacks_open_files(error) else error.message,
                error.position_bytes,
                len(rows),
                retriable=is_retriable(error),
            )

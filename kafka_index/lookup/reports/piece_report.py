"""What a task tells of the piece it answered. Small, picklable."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.reading.findings import Finding

#: Findings that one piece tells one by one.
MOST_FINDINGS = 1_000


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """How many queries of a partition have a status.

    Parameters
    ----------
    topic, partition
        As the queries say. None: they say none, or are among the many partitions that are not
        there, of which only the first are told one by one.
    status : int
        `Status`.
    queries : int
        How many.
    """

    topic: str | None
    partition: int | None
    status: int
    queries: int


@dataclass(frozen=True, slots=True)
class StartingOffset:
    """Where to start reading a partition, as one query asks.

    Parameters
    ----------
    topic, partition
        As the query says.
    status : int
        `Status` of its answer.
    offset : int, optional
        None where the answer names no place.
    """

    topic: str | None
    partition: int | None
    status: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class PieceReport:
    """What became of a piece.

    Parameters
    ----------
    number : int
        Of the piece.
    rows : int
        Queries, and answers.
    counts : tuple of PartitionCount
        By partition and status; they add up to `rows`.
    findings : tuple of Finding
        What was noticed, at most `MOST_FINDINGS`.
    findings_left_out : int
        How many more.
    starting_offsets : tuple of StartingOffset
        When asked for: one a query, up to one more than there are partitions.
    """

    number: int
    rows: int
    counts: tuple[PartitionCount, ...]
    findings: tuple[Finding, ...] = ()
    findings_left_out: int = 0
    starting_offsets: tuple[StartingOffset, ...] = ()

"""Whether queries are grouped by partition before they are answered. Nothing is read here.

A task answers the queries of its piece as they stand, and opens every segment that they ask for.
Grouped, all queries of a partition go to one task, and each segment is opened once; but every
query has to be sent there, and its answer back.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

#: What sending a query to another task and its answer back costs, in seconds of one core.
MOVE_SECONDS = 1e-6
#: Opening a segment and its indexes on a local disk, in seconds.
LOCAL_OPEN_SECONDS = 2e-4
# Where both ways cost about the same, the simple one is taken.
_CLEARLY = 0.8


class Grouping(Enum):
    """Whether to group."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Workload:
    """What decides whether grouping pays.

    Parameters
    ----------
    queries : int
        How many, or about.
    pieces : int
        Parts of the query files that are answered at a time.
    partitions, segments : int
        Of the dump.
    workers : int
        Tasks that run at a time.
    max_open_segments : int
        Segments that a worker keeps open.
    open_seconds : float
        What opening a segment costs: more over a network, and much more where an index is missing
        and the log has to be read for it.
    """

    queries: int
    pieces: int
    partitions: int
    segments: int
    workers: int
    max_open_segments: int
    open_seconds: float = LOCAL_OPEN_SECONDS

    @property
    def opens_in_pieces(self) -> int:
        """Segments that are opened, counted again in each worker, when pieces stay whole."""
        workers = max(min(self.workers, self.pieces), 1)
        held = _distinct(self.segments, self.queries / workers)
        if held <= self.max_open_segments:
            return round(workers * held)
        # What a worker closed to open others, the next piece wants again.
        pieces = max(self.pieces, 1)
        return round(pieces * _distinct(self.segments, self.queries / pieces))

    @property
    def opens_in_groups(self) -> int:
        """Segments that are opened when queries are grouped: each by one worker."""
        return round(_distinct(self.segments, self.queries))


@dataclass(frozen=True, slots=True)
class GroupingChoice:
    """Whether queries are grouped, and why."""

    grouped: bool
    reason: str

    @property
    def text(self) -> str:
        """The choice as one line."""
        way = "grouped by partition" if self.grouped else "answered piece by piece"
        return f"queries were {way}: {self.reason}"


def choose_grouping(workload: Workload, wish: Grouping = Grouping.AUTO) -> GroupingChoice:
    """Choose between pieces as they are and queries grouped by partition.

    Parameters
    ----------
    workload : Workload
        What there is to do.
    wish : Grouping
        What was asked for; AUTO: the cheaper way, of which this is an estimate. It takes queries
        to be spread over all segments: where they are not, fewer are opened and grouping pays less.
    """
    if wish is not Grouping.AUTO:
        return GroupingChoice(wish is Grouping.ALWAYS, f"as asked for ({wish.value})")
    if workload.partitions < 2 or workload.workers < 2:
        one = "one partition" if workload.partitions < 2 else "one worker"
        return GroupingChoice(grouped=False, reason=f"there is {one}")
    in_pieces = workload.opens_in_pieces * workload.open_seconds
    moved = workload.queries * MOVE_SECONDS
    in_groups = workload.opens_in_groups * workload.open_seconds + moved
    grouped = in_groups < in_pieces * _CLEARLY
    reason = (
        f"{workload.opens_in_pieces:,} segments to open instead of {workload.opens_in_groups:,}, "
        f"at {1000 * workload.open_seconds:.3g} ms each, against {workload.queries:,} queries to "
        f"send ({in_pieces:.3g} s and {in_groups:.3g} s of work)"
    )
    return GroupingChoice(grouped, reason)


@dataclass(frozen=True, slots=True)
class PartitionBins:
    """Which task answers which queries of which partition.

    Parameters
    ----------
    starts : ndarray of int64, shape (partitions + 1,)
        Where the bins of each partition begin in `bins`.
    bins : ndarray of int32
        One bin of most partitions; several of one that has more queries than a task should answer.
    """

    starts: NDArray[np.int64]
    bins: NDArray[np.int32]

    def of_rows(self, codes: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the bins of queries.

        Parameters
        ----------
        codes : ndarray of int32, shape (n,)
            Numbers of their partitions, 0 or more.
        rows : ndarray of int64, shape (n,)
            Their places in their piece, which spread the queries of a large partition.
        """
        first = self.starts[codes]
        return self.bins[first + rows % (self.starts[codes + 1] - first)]


def bin_partitions(
    queries: NDArray[np.int64], segments: NDArray[np.int64], bins: int, *, open_seconds: float
) -> PartitionBins:
    """Spread partitions over bins of about equal work.

    Parameters
    ----------
    queries, segments : ndarray of int64, shape (partitions,)
        Of each partition.
    bins : int
        How many, 1 or more.
    open_seconds : float
        What opening a segment costs.
    """
    if bins < 1:
        raise ValueError(f"queries need one bin or more, not {bins}")
    opened = np.minimum(queries, segments) * (open_seconds / MOVE_SECONDS)
    work = queries + opened
    fair = max(float(work.sum()) / bins, 1.0)
    shares = np.clip(np.ceil(queries / fair), 1, bins).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(shares)))
    # The largest first, each to the bin that has least by then.
    loads = [(0.0, number) for number in range(bins)]
    chosen = np.zeros(int(starts[-1]), np.int32)
    for code in np.argsort(-work / shares, kind="stable").tolist():
        share = float(work[code] / shares[code])
        for place in range(int(starts[code]), int(starts[code + 1])):
            load, number = loads[0]
            chosen[place] = number
            heapq.heapreplace(loads, (load + share, number))
    return PartitionBins(starts, chosen)


def _distinct(segments: int, queries: float) -> float:
    """Return how many of so many segments are met by queries that are spread over all of them."""
    if segments < 2:
        return float(min(segments, math.ceil(queries)))
    return -segments * math.expm1(queries * math.log1p(-1 / segments))

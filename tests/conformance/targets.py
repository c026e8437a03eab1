"""Useful questions to a partition: the edges of all that is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .judged_partition import JudgedPartition

INT64_MAX = 2**63 - 1
#: Latest, earliest, the largest timestamp.
SPECIAL_TIMES = (-1, -2, -3)


def offsets_of(judged: JudgedPartition) -> list[int]:
    """Offsets of batches, segments, log start and log end, and their neighbours; no negative."""
    edges = {judged.log_start_offset, judged.log_end_offset, *judged.base_offsets}
    for base_offset in judged.base_offsets:
        for batch, _ in judged.batches(base_offset):
            middle = (batch.base_offset + batch.last_offset) // 2
            edges |= {batch.base_offset, batch.last_offset, middle}
    return _with_neighbours(edges, least=0)


def times_of(judged: JudgedPartition, offsets: Iterable[int]) -> list[int]:
    """Timestamps of batches and of these records, their neighbours, 0 and the special times."""
    edges = {0, INT64_MAX}
    for base_offset in judged.base_offsets:
        edges.update(timestamp for _, timestamp in judged.batches(base_offset))
    for answer in judged.record(offsets):
        if isinstance(answer, tuple):
            edges.add(answer[-2])  # its timestamp
    return [*SPECIAL_TIMES, *_with_neighbours(edges, least=0)]


def _with_neighbours(edges: set[int], least: int) -> list[int]:
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    return sorted(number for number in near if least <= number <= INT64_MAX)

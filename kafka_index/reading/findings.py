"""What is noticed about a log while its queries are answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: There are no index files: they are built in memory.
NO_INDEX = "no_index"
#: Index files do not fit their log: others are built in memory.
INDEX_REFUSED = "index_refused"
#: The last segment ends in what a broker cuts off when it starts; the log ends there.
TAIL = "tail"
#: Damage, or a failing disk, stands between some queries and their answers.
UNREADABLE = "unreadable"
KINDS = (NO_INDEX, INDEX_REFUSED, TAIL, UNREADABLE)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a log that users should know.

    Parameters
    ----------
    topic, partition
        The partition.
    segment_base_offset : int, optional
        The segment; None when it concerns the partition.
    path : str
        The file or directory.
    kind : str
        One of `KINDS`.
    reason : str
        What was found.
    position_bytes : int, optional
        Where in the file.
    queries : int
        How many queries have no answer because of it.
    retriable : bool
        The environment is at fault (permission, disk, memory), not the data.
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
    """Gathers findings; what is found again counts its queries to the first."""

    def __init__(self) -> None:
        self._found: dict[Finding, int] = {}

    def add(self, finding: Finding) -> None:
        """Take a finding."""
        key = replace(finding, queries=0)
        self._found[key] = self._found.get(key, 0) + finding.queries

    def take(self) -> list[Finding]:
        """Return what was found since this was last called."""
        found, self._found = self._found, {}
        return [replace(finding, queries=queries) for finding, queries in found.items()]

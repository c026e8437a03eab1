"""What a fold leaves of a partition: final rows, and files that wait to be published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_index.build.report import SegmentReport
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.storage import PublishedFile, StagedFile
from kafka_index.storage.directories import Entry


@dataclass(frozen=True, slots=True)
class FoldedSegment:
    """A segment with its final row, and the state files to publish before its ``.index``.

    Parameters
    ----------
    staged : StagedSegment
        As it was scanned.
    report : SegmentReport
        Its final row.
    files : tuple of StagedFile
        Its state files.
    """

    staged: StagedSegment
    report: SegmentReport
    files: tuple[StagedFile, ...] = ()


@dataclass
class FoldedPartition:
    """A partition whose files wait to be published.

    Parameters
    ----------
    staged : sequence of StagedSegment
        Its segments, as they were scanned.
    segments : list of FoldedSegment
        The same, folded; those up to the error when there is one.
    own_files : tuple of StagedFile
        The files that belong to no segment, to appear before any other.
    first_offset : int
        Where the log starts for a broker.
    snapshots : set of int, optional
        The offsets of all snapshots that the partition is to have; None when they are not known.
    error : KafkaIndexError, optional
        What keeps the whole partition from being published.
    published : list of PublishedFile
        The state files that the partition is to have, new or not.
    log_start_offset : int, optional
        As checkpointed beside the logs.
    start_entries : sequence of Entry, optional
        The directory of its logs in a store, as it was listed for the fold.
    """

    staged: Sequence[StagedSegment]
    segments: list[FoldedSegment] = field(default_factory=list)
    own_files: tuple[StagedFile, ...] = ()
    first_offset: int = 0
    snapshots: set[int] | None = None
    error: KafkaIndexError | None = None
    published: list[PublishedFile] = field(default_factory=list)
    log_start_offset: int | None = None
    start_entries: Sequence[Entry] | None = None

    @property
    def directory(self) -> str:
        """The target folder: of any segment, as those that failed early may not know it."""
        return max(each.directory for each in self.staged)

"""A log of a backup with damaged objects: their remains are written, and each object is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from kafka_index.errors import CorruptObjectError
from kafka_index.restore.output_files import write_log
from kafka_index.restore.restored_partition import LostRange, Salvage
from kafka_index.scan.file_records import LogBatches, open_log
from kafka_index.storage import Bytes, SegmentFile
from kafka_index.stores.backup.manifest import Piece
from kafka_index.stores.backup.store import JoinedFile

MISSING_OBJECT = "missing_object"
ALTERED_OBJECT = "altered_object"


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """An object of a log that is missing or altered, by its offsets, the end exclusive.

    Its intact batches end at `held_to`, or go on after damage if it is not `is_short`. `kept_after`
    counts the offsets of later objects that are not written.
    """

    first_offset: int
    end_offset: int
    held_to: int
    is_short: bool
    is_missing: bool
    error: CorruptObjectError
    kept_after: int = 0

    def loss(self, source: SegmentFile, known: Iterable[LostRange]) -> LostRange | None:
        """Return the lost offsets outside of the known ranges; None if there are none.

        If the object has its size, nobody knows which of its offsets they are.
        """
        first = self.held_to if self.is_short else self.first_offset
        for each in known:
            if self.overlaps(each):
                end = self.end_offset if each.last_offset is None else each.last_offset + 1
                first = max(first, end) if self.is_short else self.end_offset
        if first >= self.end_offset:
            return None
        return LostRange(
            source.base_offset,
            source.log_path,
            first,
            self.end_offset - 1,
            MISSING_OBJECT if self.is_missing else ALTERED_OBJECT,
            str(self.error),
            is_known=self.is_short,
            kept_by_batches=self.kept_after,
        )

    def overlaps(self, lost: LostRange) -> bool:
        """Return whether a lost range has some of its offsets."""
        first, last = lost.first_offset, lost.last_offset
        return (first is None or first < self.end_offset) and (
            last is None or last >= self.first_offset
        )


def write_surviving(source: SegmentFile, target: str, salvage: Salvage) -> list[DamagedObject]:
    """Write the bytes that the objects of a log still have; return the damaged objects.

    A prefix ends at the first object whose batches end too early.
    """
    damaged: list[DamagedObject] = []

    def pieces(log: JoinedFile) -> Iterator[Bytes]:
        kept_after, is_ended = 0, False
        for named, data, error in log.surviving():
            if not isinstance(named, Piece):
                raise TypeError(f"not a log: {source.log_path}")
            end = named.last_offset + 1
            if is_ended:
                kept_after += 0 if error else end - named.base_offset
                last = damaged[-1]
                damaged[-1] = replace(last, end_offset=end, kept_after=kept_after)
                continue
            array = np.frombuffer(data, np.uint8)
            if error is not None:
                held_to, ends_after_batch = _held_to(array, named.base_offset)
                is_short = len(data) < named.size_bytes
                offsets = named.base_offset, end, held_to
                damaged.append(DamagedObject(*offsets, is_short, not data, error))
                is_ended = is_short and ends_after_batch and salvage is Salvage.PREFIX
            yield array

    with closing(open_log(source.log_path, source)) as log:
        if not isinstance(log, JoinedFile):
            raise TypeError(f"not a log of a backup: {source.log_path}")
        write_log(target, pieces(log))
    return damaged


def with_damaged_objects(
    lost: Iterable[LostRange], damaged: Sequence[DamagedObject], source: SegmentFile
) -> list[LostRange]:
    """Return the losses of a log with their objects, and losses that its batches do not show."""
    found = []
    for each in lost:
        reasons = [str(one.error) for one in damaged if one.overlaps(each)]
        found.append(replace(each, reason="; ".join([each.reason, *reasons])))
    losses = [one.loss(source, found) for one in damaged]
    return [*found, *filter(None, losses)]


def _held_to(data: Bytes, base_offset: int) -> tuple[int, bool]:
    """Return the offset after the intact batches at the start, and whether nothing follows them."""
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    end = base_offset
    for chunk in batches:
        end = int(chunk.last_offset[-1]) + 1
    return end, batches.stop is None

"""One partition of a run: what of it is new is read, and goes into the repository as pieces.

A log that is only appended to goes on after the last batch that is stored, while that is there. A
log that is cleaned is read again where it is not as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from kafka_index.backup.logs import CutLog, LeftOutError, find_batch, last_offset_in
from kafka_index.backup.looks import CutPartition
from kafka_index.backup.pieces import LogReading, Run, holds_piece, read_piece, small_pieces
from kafka_index.backup.politeness import Bandwidth
from kafka_index.backup.result import BackedUpPartition, BackupStatus
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import CLUSTER_METADATA_TOPIC
from kafka_index.stores.backup.manifest import (
    KeptFile,
    PartitionBackup,
    Piece,
    SeenSegment,
    partition_folder,
)


class Storing:
    """A partition that is being stored; `earlier` is what an earlier run has of it.

    `high_watermark` is None where its logs end where the broker says. `files` are kept whole.
    """

    def __init__(
        self,
        found: CutPartition,
        earlier: PartitionBackup | None,
        bandwidth: Bandwidth,
        *,
        is_compacted: bool,
        high_watermark: int | None = None,
    ) -> None:
        self.found = found
        self.folder = partition_folder(found.partition, found.topic_id)
        self.files: list[KeptFile] = []
        #: Names of damaged objects that cannot be stored again.
        self.lost_objects: set[str] = set()
        self.new_bytes = self._read_bytes = 0
        self._earlier = earlier
        self._bandwidth = bandwidth
        self._is_compacted = is_compacted
        self._high_watermark = high_watermark
        self._logs = found.logs
        self._seen = {each.base_offset: each for each in earlier.segments} if earlier else {}
        self._earlier_header = earlier.last_header if earlier else None
        self._last_header: bytes | None = None
        self._kept: list[Piece] = []
        self._puts: list[Future[tuple[Piece, int]]] = []
        self._segments: list[SeenSegment] = []
        self._end_offset = 0
        self._settled_offset = earlier.end_offset if earlier else 0
        self._has_gap = self._is_cut_short = False

    def keep(self, known: PartitionBackup) -> None:
        """Take what an earlier run has, as nothing of it has changed."""
        self._high_watermark = known.high_watermark
        self._kept, self._segments = [*known.pieces], [*known.segments]
        self._end_offset = known.end_offset
        self._last_header = self._earlier_header
        self._has_gap = known.is_compacted

    def read(self, put: Callable[[Run], Future[tuple[Piece, int]]]) -> None:
        """Read what is new, and put it; raises `LeftOutError` if it cannot be read."""
        self._put = put
        next_offset = self._read_cleaned() if self._is_compacted else self._read_plain()
        self._end_offset = next_offset
        if self._logs and not self._is_cut_short:
            # An empty last log says where the log ends, too.
            base = self._logs[-1].base_offset
            if self._high_watermark is not None:
                base = min(base, self._high_watermark)
            self._end_offset = max(next_offset, base)

    def put_damaged_again(
        self, damaged: Collection[str], put: Callable[[str, memoryview], None]
    ) -> None:
        """Put stored pieces again that are damaged, given by name, if the logs still have them."""
        for log, end in zip(self._logs, [*self.found.bases[1:], INT64_MAX], strict=True):
            position = 0
            for piece in self._kept:
                if not log.base_offset <= piece.base_offset < end:
                    continue
                if piece.object_name in damaged:
                    data = None
                    with suppress(LeftOutError):
                        data = read_piece(log, position, piece, self._bandwidth)
                    if data is None:
                        self.lost_objects.add(piece.object_name)
                    else:
                        put(f"{self.folder}/{piece.object_name}", data.data)
                        self.new_bytes += piece.size_bytes
                position += piece.size_bytes

    def finish(
        self, *, is_leader: bool | None, start_offset: int, cleaner_offset: int | None
    ) -> PartitionBackup:
        """Wait for the pieces, and return what the run has of the partition."""
        found, partition = self.found, self.found.partition
        pieces = [*self._kept]
        for each in self._puts:
            piece, new_bytes = each.result()
            pieces.append(piece)
            self.new_bytes += new_bytes
        bases = found.bases
        first = bases[0] if bases else 0
        # Logs that were as before may come after cleaned ones.
        pieces = sorted(
            (piece for piece in pieces if piece.last_offset >= first),
            key=lambda piece: piece.base_offset,
        )
        snapshot = found.snapshot
        if pieces and pieces[0].base_offset < first:
            # It has more than the producers before the first piece.
            snapshot = None
        end = self._end_offset
        backup = PartitionBackup(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=found.topic_id,
            directory=found.directory,
            is_leader=is_leader,
            is_compacted=self._is_compacted or self._has_gap,
            start_offset=min(max(start_offset, first), end),
            end_offset=end,
            high_watermark=end if self._high_watermark is None else self._high_watermark,
            settled_offset=min(self._settled_offset, end),
            epochs=tuple(each for each in found.epochs if each[1] <= end),
            cleaner_offset=cleaner_offset,
            snapshot=snapshot,
            pieces=tuple(pieces),
            files=tuple(self.files),
            segments=tuple(self._segments),
            last_header=self._last_header,
        )
        if (
            partition.topic != CLUSTER_METADATA_TOPIC
            and len(backup.segments) == len(bases)
            and len(backup.epochs) == len(found.epochs)
            and snapshot is found.snapshot
        ):
            # All that a look finds is in the manifest.
            backup = msgspec.structs.replace(backup, seen_directory=found.seen_directory)
        return backup

    def row_of(self, backup: PartitionBackup) -> BackedUpPartition:
        """Return the row of the report."""
        return BackedUpPartition(
            backup.topic,
            backup.partition,
            self.found.path,
            BackupStatus.STORED if self.new_bytes else BackupStatus.UNCHANGED,
            None,
            backup.topic_id,
            backup.start_offset,
            backup.end_offset,
            backup.high_watermark,
            sum(piece.size_bytes for piece in backup.pieces),
            self.new_bytes,
            self._read_bytes,
            len(backup.pieces),
        )

    def _read_plain(self) -> int:
        """Read what comes after the last batch that is stored, if that is still there."""
        logs, earlier = self._logs, self._earlier
        first, position, next_offset = 0, 0, logs[0].base_offset if logs else 0
        if earlier is not None and self._earlier_header is not None and logs:
            place = self._place_of_last(self._earlier_header)
            if place is not None:
                first, position = place
                self._kept = [*earlier.pieces]
                self._last_header = self._earlier_header
                next_offset = last_offset_in(self._last_header) + 1
                self._has_gap = earlier.is_compacted
                if not self._has_gap:
                    position, next_offset = self._give_up_small(logs[first], position, next_offset)
            else:
                # The log has lost batches that were stored: from there on it has another history.
                self._settled_offset = 0
                first, position, next_offset = self._keep_first(earlier)
        for log in logs[:first]:
            self._note(log, log.end_bytes)
        for number in range(first, len(logs)):
            log = logs[number]
            before = self._seen.get(log.base_offset)
            if before is not None and log.is_as(before) and position == before.covered_bytes:
                self._note(log, position)
            else:
                next_offset = self._read_log(number, position, next_offset)
                if self._is_cut_short:
                    break
            position = 0
        return next_offset

    def _give_up_small(self, log: CutLog, position: int, next_offset: int) -> tuple[int, int]:
        """Give up small pieces that a log ends with, so that they are read again as a large one.

        Return the position from which it is read, and the next offset there. What is not in the log
        as it is stored, or not below the high watermark, is kept.
        """
        count = small_pieces(self._kept, log.base_offset)
        small = self._kept[len(self._kept) - count :]
        start = position - sum(piece.size_bytes for piece in small)
        is_below = self._high_watermark is None or next_offset <= self._high_watermark
        if not small or start < 0 or not is_below:
            return position, next_offset
        at = start
        for piece in small:
            self._read_bytes += piece.size_bytes
            try:
                is_there = holds_piece(log, at, piece, self._bandwidth)
            except LeftOutError:
                is_there = False
            if not is_there:
                return position, next_offset
            at += piece.size_bytes
        del self._kept[-count:]
        return start, small[0].base_offset

    def _keep_first(self, earlier: PartitionBackup) -> tuple[int, int, int]:
        """Keep the pieces that the log still begins with, but for the last of them.

        Return the number of the log where they end, the position there, and the next offset. The
        last piece is cut again, as the header of its last batch is wanted.
        """
        logs = self._logs
        ends = [(0, 0, logs[0].base_offset)]
        number = position = 0
        for piece in earlier.pieces:
            if piece.last_offset < logs[0].base_offset:
                continue
            while number + 1 < len(logs) and logs[number + 1].base_offset <= piece.base_offset:
                number, position = number + 1, 0
            if not holds_piece(logs[number], position, piece, self._bandwidth):
                break
            self._read_bytes += piece.size_bytes
            position += piece.size_bytes
            self._kept.append(piece)
            ends.append((number, position, piece.last_offset + 1))
        if self._kept:
            del self._kept[-1], ends[-1]
        return ends[-1]

    def _place_of_last(self, header: bytes) -> tuple[int, int] | None:
        """Return the log that has the last batch that is stored, and where that ends in it."""
        last = last_offset_in(header)
        at = [number for number, log in enumerate(self._logs) if log.base_offset <= last]
        if not at:
            return None
        log = self._logs[at[-1]]
        before = self._seen.get(log.base_offset)
        covered = before.covered_bytes if before is not None else 0
        if log.is_file_of(before):
            return at[-1], covered
        found = find_batch(log, last, header, covered, self._bandwidth)
        return None if found is None else (at[-1], found)

    def _read_cleaned(self) -> int:
        """Read the logs that are not as they were: all of a cleaned one, the end of a grown one."""
        next_offset = self._logs[0].base_offset if self._logs else 0
        for number, log in enumerate(self._logs):
            before = self._seen.get(log.base_offset)
            end = self._end_of(number)
            own = self._pieces_of(log.base_offset)
            if own and end is not None and own[-1].last_offset >= end:
                own = []
            position = 0
            next_offset = max(next_offset, log.base_offset)
            if log.is_as(before) and before is not None:
                self._kept += own
                next_offset = own[-1].last_offset + 1 if own else next_offset
                self._note(log, before.covered_bytes)
                continue
            if own and before is not None:
                place = self._grown_from(log, before, own[-1].last_offset)
                if place is not None:
                    self._kept += own
                    position, next_offset = place, own[-1].last_offset + 1
            next_offset = self._read_log(number, position, next_offset)
            if self._is_cut_short:
                break
        self._last_header = self._last_header or self._earlier_header
        return next_offset

    def _grown_from(self, log: CutLog, before: SeenSegment, last_offset: int) -> int | None:
        """Return where a log goes on that was the last one of an earlier run; None for others."""
        header = self._earlier_header
        if (log.device, log.inode) != (before.device, before.inode) or not header:
            return None
        if last_offset_in(header) != last_offset:
            return None
        found = find_batch(log, last_offset, header, before.covered_bytes, self._bandwidth)
        return found if found == before.covered_bytes else None

    def _pieces_of(self, base: int) -> list[Piece]:
        """Return the pieces of a segment of an earlier run."""
        if self._earlier is None or base not in self._seen:
            return []
        end = min((other for other in self._seen if other > base), default=INT64_MAX)
        return [piece for piece in self._earlier.pieces if base <= piece.base_offset < end]

    def _read_log(self, number: int, position: int, next_offset: int) -> int:
        """Read a log from a position on; return the next offset."""
        log = self._logs[number]
        reading = LogReading(
            log,
            position,
            max(next_offset, log.base_offset),
            self._high_watermark,
            self._end_of(number),
            self._bandwidth,
        )
        for run in reading.runs(is_cleaned=self._is_compacted):
            self._puts.append(self._put(run))
            self._last_header = run.last_header
        self._read_bytes += reading.read_bytes
        self._settled_offset = max(self._settled_offset, reading.settled_offset)
        self._has_gap |= reading.has_gap
        self._is_cut_short = reading.is_below
        self._note(log, reading.position, is_done=not reading.is_below)
        return reading.next_offset

    def _end_of(self, number: int) -> int | None:
        """Return the offset at which the next log begins; None for the last one."""
        return self._logs[number + 1].base_offset if number + 1 < len(self._logs) else None

    def _note(self, log: CutLog, covered_bytes: int, *, is_done: bool = True) -> None:
        """Note a log as it was seen, for the next run."""
        # A preallocated log that is written to twice between two ticks of the clock looks the same.
        ctime_ns = 0 if log.is_preallocated else log.ctime_ns
        file = log.device, log.inode, ctime_ns, log.end_bytes
        self._segments.append(SeenSegment(log.base_offset, *file, covered_bytes, is_done))

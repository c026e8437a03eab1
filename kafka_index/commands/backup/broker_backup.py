"""One run of one broker: what it has is looked at, cut, read from open files, and committed.

The order is that of `BrokerBackup`'s methods, which `agent.take` calls:

1. `look`: all partitions, before anything is cut. What they have by then is settled: the
   `__transaction_state` of the run knows of it.
2. `cut_coordinators`, `cut_others`: log starts are read before, high watermarks come from after.
3. `await_high_watermarks`.
4. `store`: new batches as pieces. Until `commit` puts the manifest, nothing refers to them; the
   next run finds those of a killed one by their names.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Self

import msgspec

from kafka_index.commands.backup.capture import COORDINATOR_TOPICS, Cutting
from kafka_index.commands.backup.captured_log import (
    CapturedLog,
    SkippedError,
    find_batch,
    last_offset_in,
)
from kafka_index.commands.backup.chunks import (
    LogReading,
    Run,
    Uploads,
    holds_piece,
    put_object,
    read_piece,
    small_pieces,
)
from kafka_index.commands.backup.high_watermarks import (
    BrokerCheckpoint,
    HighWatermarks,
    Replacements,
    Source,
    ask_high_watermarks,
    is_locked,
)
from kafka_index.commands.backup.low_impact_io import Bandwidth
from kafka_index.commands.backup.partition_inspector import CapturedPartition, Looked
from kafka_index.commands.backup.request import BackupRequest, Broker
from kafka_index.commands.backup.result import BackedUpPartition, BackupResult, BackupStatus
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    COMPACTED_INTERNAL_TOPICS,
    LOG_START_CHECKPOINT,
    METADATA_LOG,
    TopicPartition,
)
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    Cut,
    KeptFile,
    Manifest,
    Missed,
    PartitionBackup,
    Piece,
    SeenSegment,
    content_of,
    partition_folder,
)
from kafka_index.core.fs.backup.repository import MissingManifestError
from kafka_index.core.fs.paths import absolute_path, refuse_overlap, repository_of
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.records.decompression import shared_budget


class PartitionUploader:
    """A partition that is being stored; `earlier` is what an earlier run has of it.

    `high_watermark` is None where its logs end where the broker says. `files` are kept whole.
    """

    def __init__(
        self,
        found: CapturedPartition,
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
        """Read what is new, and put it; raises `SkippedError` if it cannot be read."""
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
                    with suppress(SkippedError):
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

    def _give_up_small(self, log: CapturedLog, position: int, next_offset: int) -> tuple[int, int]:
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
            except SkippedError:
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

    def _grown_from(self, log: CapturedLog, before: SeenSegment, last_offset: int) -> int | None:
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

    def _note(self, log: CapturedLog, covered_bytes: int, *, is_done: bool = True) -> None:
        """Note a log as it was seen, for the next run."""
        # A preallocated log that is written to twice between two ticks of the clock looks the same.
        ctime_ns = 0 if log.is_preallocated else log.ctime_ns
        file = log.device, log.inode, ctime_ns, log.end_bytes
        self._segments.append(SeenSegment(log.base_offset, *file, covered_bytes, is_done))


# From so many bytes on, objects are looked for that a killed run has left.
_WORTH_LISTING_BYTES = 1 << 20
_LOGGER = logging.getLogger(__name__)
_METADATA_READS = 20
_BETWEEN_READS_S = 0.2
_UPLOAD_THREADS = 4


class BrokerBackup:
    """One run of one broker; a context manager, at whose end all its files are closed."""

    def __init__(
        self,
        request: BackupRequest,
        bandwidth: Bandwidth | None = None,
        looked: Looked | None = None,
    ) -> None:
        self._request = request
        self._bandwidth = bandwidth or Bandwidth()
        self.broker = Broker.of(request)
        root = absolute_path(request.output)
        refuse_overlap(root, request.output, self.broker.paths)
        self.repository = repository_of(root).create(self.broker.cluster_id, request.brokers)
        self.previous = self.repository.newest(self.broker.node_id)
        self._damaged = self.repository.damaged()
        # A partition with damaged objects is read again even if it is unchanged.
        self._earlier = {
            (each.topic_partition, each.topic_id): each
            if each.folder not in self._damaged
            else msgspec.structs.replace(each, seen_directory=None)
            for each in (self.previous.partitions if self.previous else ())
        }
        self._cutting = Cutting(
            self.broker.paths,
            request.wants,
            {partition: each for (partition, _), each in self._earlier.items()},
            looked,
        )
        self._is_held = any(map(is_locked, self.broker.paths))
        self._starts: list[BrokerCheckpoint] = []
        self._cleaned: list[BrokerCheckpoint] = []
        self._times: dict[str, int] = {}
        self._high_watermarks = HighWatermarks({}, Source.EARLIER_RUN, 0)
        self._cluster: ClusterImage | None = None
        self._taken: list[PartitionBackup] = []
        self._of_others: dict[tuple[TopicPartition, str], PartitionBackup] | None = None
        self._rows: list[BackedUpPartition] = []
        #: The broker's part of the run, once it is committed.
        self.manifest: Manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cutting.close()

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers that a run expects."""
        given = self._request.brokers or self.repository.file().brokers
        if not given and self.previous is not None:
            given = self.previous.brokers
        if not given:
            cluster = self._read_cluster()
            given = () if cluster is None else tuple(cluster.brokers)
        return tuple(sorted({*given, self.broker.node_id}))

    def look(self) -> None:
        """Look at all partitions, before anything is cut."""
        self._cutting.look()

    def cut_coordinators(self) -> None:
        """Cut `__transaction_state`, then `__consumer_offsets`."""
        paths = self.broker.paths
        self._starts = [BrokerCheckpoint.read(path, LOG_START_CHECKPOINT) for path in paths]
        self._cleaned = [BrokerCheckpoint.read(path, CLEANER_CHECKPOINT) for path in paths]
        self._times["begun_ms"] = now_ms()
        self._cutting.cut(COORDINATOR_TOPICS)
        self._times["coordinators_cut_ms"] = now_ms()

    def cut_others(self) -> None:
        """Cut the other topics, and the metadata log last."""
        self._times["others_begun_ms"] = now_ms()
        self._cutting.cut(others_than=COORDINATOR_TOPICS)
        self._times["ended_ms"] = now_ms()
        self._replacements = self._next_replacements()

    def _next_replacements(self) -> Replacements:
        partitions: dict[str, list[str]] = {}
        for found in self._cutting.partitions.values():
            if found.partition.topic != CLUSTER_METADATA_TOPIC:
                directory = self.broker.paths[found.directory]
                partitions.setdefault(directory, []).append(found.path)
        return Replacements(partitions, self._request.interval_ms)

    def await_high_watermarks(self) -> None:
        """Wait for high watermarks from after the cut, if a log has anything new."""
        self._cluster = self._read_cluster()
        if all(map(self._is_stored, self._cutting.partitions.values())):
            self._high_watermarks = HighWatermarks({}, Source.EARLIER_RUN, now_ms())
        else:
            self._high_watermarks = self._ask_broker() or self._replacements.wait()

    def await_elections(self) -> None:
        """Wait for high watermarks once more, for partitions whose leader was killed.

        A follower learns the last one of the old leader from the new leader. The agent of the
        killed broker has waited for longer than an election takes.
        """
        if self._high_watermarks.source in (Source.CHECKPOINT, Source.BROKER):
            self._high_watermarks = self._next_replacements().wait()

    def _ask_broker(self) -> HighWatermarks | None:
        """Return the high watermarks that a running broker tells; None where none is asked, or is.

        A copy that another broker leads may hold other batches below them, which it is about to
        lose: for it the checkpoint counts, as old as it may be.
        """
        address = self._request.bootstrap_server
        led = {
            partition: found
            for partition, found in self._cutting.partitions.items()
            if partition.topic != CLUSTER_METADATA_TOPIC
            and self._leader(found) == self.broker.node_id
        }
        asked = None if address is None else ask_high_watermarks(address, [*led])
        if asked is None or any(self._is_there(led[each]) for each in led.keys() - asked.keys()):
            return None
        known = self._replacements.read(Source.BROKER)
        return replace(known, offsets={**known.offsets, **asked})

    @property
    def is_running(self) -> bool:
        """Whether the broker was seen to run, or was stopped in an orderly way."""
        return self._high_watermarks.source is not Source.OLD_CHECKPOINT

    @property
    def leaders(self) -> dict[str, int | None]:
        """The leaders of the partitions that were cut, by their folders; None for unknown ones."""
        return {
            partition_folder(partition, found.topic_id): self._leader(found)
            for partition, found in self._cutting.partitions.items()
        }

    @property
    def stored_folders(self) -> list[str]:
        """The folders of the partitions that were stored."""
        return [each.folder for each in self._taken]

    def looked(self) -> Looked:
        """Return what was looked at and not stored, for the next run of this process."""
        found = {
            partition: each
            for partition, each in self._cutting.partitions.items()
            if each.known is None
        }
        for each in found.values():
            each.is_cleaned = self._is_compacted(each)
        return found

    def forget_left_out(self, brokers: Collection[int]) -> None:
        """Say nothing of partitions that could not be taken, and which brokers of the run lead."""
        topics = {} if self._cluster is None else self._cluster.topics
        leaders = {
            TopicPartition(topic.name, number): partition.leader
            for topic in topics.values()
            for number, partition in topic.partitions.items()
        }
        for partition in [*self._cutting.left_out]:
            leader = leaders.get(partition)
            if leader in brokers and leader != self.broker.node_id:
                del self._cutting.left_out[partition]

    def store(self, is_wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Store the partitions whose folders are wanted, and were not stored yet."""
        with Uploads(self.repository, _UPLOAD_THREADS) as uploads:
            pending = [
                stored
                for partition, found in [*self._cutting.partitions.items()]
                if is_wanted(partition_folder(partition, found.topic_id))
                and (stored := self._store_or_miss(found, uploads)) is not None
            ]
            for each in pending:
                self._finish(each)

    def commit(self, run: str, brokers: tuple[int, ...], met: tuple[int, ...] = ()) -> BackupResult:
        """Put the manifest, by which the broker is in the run, and return what it has."""
        missed = [*self._missed()]
        cut = Cut(
            **self._times,
            high_watermarks_ms=self._high_watermarks.time_ms,
            high_watermarks_from=self._high_watermarks.source.value,
            met=met,
        )
        rows = sorted(self._rows, key=lambda row: (row.topic, row.partition))
        manifest = Manifest(
            run=run,
            cluster_id=self.broker.cluster_id,
            node_id=self.broker.node_id,
            brokers=tuple(sorted({*brokers, self.broker.node_id})),
            cut=cut,
            directories=self.broker.directories,
            partitions=tuple(sorted(self._taken, key=lambda each: each.topic_partition)),
            missed=tuple(missed),
            new_bytes=sum(row.new_bytes or 0 for row in rows),
            tool_version=version("kafka-index"),
        )
        self.repository.put_manifest(manifest)
        self.manifest = manifest
        return BackupResult(
            run,
            self.broker.node_id,
            self.repository.root,
            rows,
            cut.high_watermarks_from,
            cut.ended_ms - cut.begun_ms,
            max(cut.high_watermarks_ms - cut.ended_ms, 0),
        )

    # ------------------------------------------------------------------------- one partition

    def _is_stored(self, found: CapturedPartition) -> bool:
        """Return whether an earlier run has stored all of a partition."""
        if found.known is not None or found.partition.topic == CLUSTER_METADATA_TOPIC:
            return True
        earlier = self._earlier.get((found.partition, found.topic_id))
        if earlier is None:
            return False
        seen = {each.base_offset: each for each in earlier.segments}
        return all(log.is_as(seen.get(log.base_offset)) for log in found.logs)

    def _store_or_miss(
        self, found: CapturedPartition, uploads: Uploads
    ) -> PartitionUploader | None:
        del self._cutting.partitions[found.partition]
        try:
            return self._store(found, uploads)
        except SkippedError as error:
            self._cutting.left_out[found.partition] = error
            return None
        finally:
            found.close()

    def _store(self, found: CapturedPartition, uploads: Uploads) -> PartitionUploader | None:
        """Read a partition and hand its pieces to uploads; None if it was deleted meanwhile."""
        is_compacted = self._is_compacted(found)
        if found.known is not None:
            stored = PartitionUploader(
                found, found.known, self._bandwidth, is_compacted=is_compacted
            )
            stored.keep(found.known)
            return stored
        earlier = self._earlier_of(found)
        is_stored = self._is_stored(found)
        high_watermark = None
        if not is_stored:
            if not self._is_there(found):
                return None
            high_watermark = self._high_watermark(found)
        elif earlier is not None and found.partition.topic != CLUSTER_METADATA_TOPIC:
            high_watermark = earlier.high_watermark
        stored = PartitionUploader(
            found,
            earlier,
            self._bandwidth,
            is_compacted=is_compacted,
            high_watermark=high_watermark,
        )
        known: set[str] = set()
        if earlier is not None and not is_stored:
            known = {piece.object_name for piece in earlier.pieces}
        sizes = sum(log.end_bytes for log in found.logs)
        before = sum(each.covered_bytes for each in earlier.segments) if earlier else 0
        if earlier is None or sizes - before > _WORTH_LISTING_BYTES:
            known |= self.repository.names(stored.folder)
        damaged = self._damaged.get(stored.folder, set())
        known -= damaged
        stored.read(lambda run: uploads.put(stored.folder, known, run))
        if damaged:
            stored.put_damaged_again(damaged, partial(put_object, self.repository))
        for name, data in found.files.items():
            kept = KeptFile(name, *content_of(data))
            stored.files.append(kept)
            is_stored = earlier is not None and kept in earlier.files
            if not is_stored or kept.object_name in damaged:
                put_object(self.repository, f"{stored.folder}/{kept.object_name}", data)
                stored.new_bytes += len(data)
        return stored

    def _earlier_of(self, found: CapturedPartition) -> PartitionBackup | None:
        """Return what an earlier run has of a partition, of another broker if need be."""
        key = found.partition, found.topic_id
        if key in self._earlier or found.partition.topic == CLUSTER_METADATA_TOPIC:
            return self._earlier.get(key)
        if self._of_others is None:
            self._of_others = {}
            newest = {
                node_id: run
                for run, brokers in self.repository.brokers_of_runs().items()
                for node_id in brokers
                if node_id != self.broker.node_id
            }
            for node_id, run in sorted(newest.items(), key=lambda each: each[1]):
                with suppress(MissingManifestError):  # it has just expired
                    for each in self.repository.count_on(run, node_id).partitions:
                        # Its files are others.
                        own = msgspec.structs.replace(each, segments=(), seen_directory=None)
                        self._of_others[each.topic_partition, each.topic_id] = own
        return self._of_others.get(key)

    def _finish(self, stored: PartitionUploader) -> None:
        """Wait for the pieces of a partition, and note what the run has of it."""
        found, leader = stored.found, self._leader(stored.found)
        backup = stored.finish(
            is_leader=None if leader is None else leader == self.broker.node_id and self.is_running,
            start_offset=self._starts[found.directory].of(found, must_be_later=self._is_held) or 0,
            cleaner_offset=self._cleaned[found.directory].of(found, must_be_later=self._is_held),
        )
        damaged = self._damaged.get(stored.folder, set())
        if damaged:
            names = {each.object_name for each in backup.objects}
            self.repository.unmark_damaged(stored.folder, damaged & names - stored.lost_objects)
        for name in sorted(stored.lost_objects):
            _LOGGER.warning(
                "%s/%s/%s is damaged, and the log no longer contains its batches",
                *(self.repository.root, stored.folder, name),
            )
        self._taken.append(backup)
        self._rows.append(stored.row_of(backup))

    def _missed(self) -> Iterator[Missed]:
        """Yield the partitions that the run has not, and note why."""
        before = {
            (each.topic, each.partition): each.runs
            for each in (self.previous.missed if self.previous else ())
        }
        for partition, error in sorted(self._cutting.left_out.items()):
            runs = before.get((partition.topic, partition.partition), 0) + 1
            status = BackupStatus.UNREADABLE if error.is_fault else BackupStatus.MISSED
            self._rows.append(
                BackedUpPartition(
                    partition.topic,
                    partition.partition,
                    None,
                    status,
                    error.reason,
                    runs_missed=runs,
                )
            )
            yield Missed(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=None,
                reason=error.reason,
                runs=runs,
            )

    # ------------------------------------------------------------------- what is known of it

    def _high_watermark(self, found: CapturedPartition) -> int | None:
        if self._high_watermarks.source is Source.LOG_END:
            return None
        offset = self._high_watermarks.offsets.get(found.partition)
        if offset is None:
            raise SkippedError("it has no high watermark yet")
        return offset

    def _is_there(self, found: CapturedPartition) -> bool:
        """Return whether a partition was not deleted; it may have moved."""
        try:
            if found.is_at(os.stat(found.path)):
                return True
        except OSError:
            pass
        name = found.partition.directory_name
        others = [os.path.join(path, name) for path in self.broker.paths]
        return any(_has_id(other, found.topic_id) for other in others)

    def _leader(self, found: CapturedPartition) -> int | None:
        if self._cluster is None:
            return None
        topic = self._cluster.topics.get(found.topic_id)
        partition = None if topic is None else topic.partitions.get(found.partition.partition)
        return None if partition is None else partition.leader

    def _is_compacted(self, found: CapturedPartition) -> bool:
        topic = found.partition.topic
        if topic == CLUSTER_METADATA_TOPIC:
            return False
        if topic in COMPACTED_INTERNAL_TOPICS:
            return True
        properties = self._request.properties
        cluster = self._cluster or ClusterImage()
        policy = cluster.cleanup_policy(topic, properties, self.broker.node_id)
        if policy is None and self._cluster is None:
            cleaned = self._cleaned[found.directory]
            return cleaned.of(found, must_be_later=self._is_held) is not None
        return "compact" in (policy or "")

    def _read_cluster(self) -> ClusterImage | None:
        """Return the state of the cluster as the metadata log says it; None without one."""
        paths = [os.path.join(path, METADATA_LOG) for path in self.broker.paths]
        paths = [path for path in paths if os.path.isdir(path)]
        for number in range(_METADATA_READS if paths else 0):
            if number:
                time.sleep(_BETWEEN_READS_S)
            try:
                return read_metadata(
                    paths[:1],
                    budget=shared_budget(self._request.max_decompressed_bytes),
                    topics=(CLUSTER_METADATA_TOPIC,),
                    recovers=True,
                ).cluster
            except InputError as error:
                # The broker deletes files of it meanwhile.
                if number + 1 == _METADATA_READS and is_retriable(error):
                    raise
        return None


def _has_id(directory: str, topic_id: str) -> bool:
    try:
        return read_topic_id(directory) == topic_id
    except KafkaIndexError:
        return False

"""One backup of one broker: its partitions are inspected, captured, stored and committed.

`agent.back_up` calls the methods of `BrokerBackup` in this order:

1. `inspect`: all partitions, before the first capture. Their batches are settled by then: the
   ``__transaction_state`` of the backup contains their transactions.
2. `capture_coordinators`, `capture_others`. Log start offsets are read before them.
3. `await_high_watermarks`, which were written after the captures.
4. `store`: new batches become chunks. No manifest refers to them until `commit`. The next backup
   finds the chunks of a killed backup by their names.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Self

import msgspec

from kafka_index.commands.backup.capture import COORDINATOR_TOPICS, LogCapture
from kafka_index.commands.backup.captured_log import (
    CapturedLog,
    SkippedError,
    find_batch,
    last_offset_in,
)
from kafka_index.commands.backup.chunks import (
    BatchRange,
    ChunkUploader,
    LogChunkReader,
    count_small_chunks,
    has_chunk,
    put_object,
    read_chunk,
)
from kafka_index.commands.backup.high_watermarks import (
    BrokerCheckpoint,
    CheckpointWatcher,
    HighWatermarks,
    checkpoint_interval_ms,
    fetch_high_watermarks,
    is_locked,
)
from kafka_index.commands.backup.low_impact_io import Bandwidth, read_noatime
from kafka_index.commands.backup.partition_inspector import CapturedPartition, InspectedPartitions
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackedUpPartition, BackupResult, BackupStatus, Source
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    COMPACTED_INTERNAL_TOPICS,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    METADATA_LOG,
    TopicPartition,
)
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    CaptureTimes,
    DataDirectory,
    KeptFile,
    LogChunk,
    Manifest,
    PartitionBackup,
    SeenSegment,
    SkippedPartition,
    content_of,
    partition_folder,
)
from kafka_index.core.fs.backup.repository import MissingManifestError
from kafka_index.core.fs.paths import (
    absolute_path,
    expand_directories,
    open_repository,
    refuse_overlap,
)
from kafka_index.core.fs.uris import refuse_remote
from kafka_index.core.logdir.metadata_files import MetaProperties, read_topic_id
from kafka_index.core.records.decompression import shared_budget


class PartitionUploader:
    """Stores a captured partition; `earlier` is the partition in an earlier backup.

    `high_watermark` is None if the log ends are committed. `files` are stored unchanged.
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
        self._kept: list[LogChunk] = []
        self._puts: list[Future[tuple[LogChunk, int]]] = []
        self._segments: list[SeenSegment] = []
        self._end_offset = 0
        self._settled_offset = earlier.end_offset if earlier else 0
        self._has_gap = self._is_cut_short = False

    def keep(self, known: PartitionBackup) -> None:
        """Use the chunks of an earlier backup, because the partition is unchanged."""
        self._high_watermark = known.high_watermark
        self._kept, self._segments = [*known.chunks], [*known.segments]
        self._end_offset = known.end_offset
        self._last_header = self._earlier_header
        self._has_gap = known.is_compacted

    def read(self, put: Callable[[BatchRange], Future[tuple[LogChunk, int]]]) -> None:
        """Read new batches and put them; raises `SkippedError` if they cannot be read."""
        self._put = put
        next_offset = self._read_cleaned() if self._is_compacted else self._read_plain()
        self._end_offset = next_offset
        if self._logs and not self._is_cut_short:
            # The base offset of an empty last log is the log end offset.
            base = self._logs[-1].base_offset
            if self._high_watermark is not None:
                base = min(base, self._high_watermark)
            self._end_offset = max(next_offset, base)

    def put_damaged_again(
        self, damaged: Collection[str], put: Callable[[str, memoryview], None]
    ) -> None:
        """Put damaged chunks again, given by object name, if the logs still contain them."""
        for log, end in zip(self._logs, [*self.found.bases[1:], INT64_MAX], strict=True):
            position = 0
            for chunk in self._kept:
                if not log.base_offset <= chunk.base_offset < end:
                    continue
                if chunk.object_name in damaged:
                    data = None
                    with suppress(SkippedError):
                        data = read_chunk(log, position, chunk, self._bandwidth)
                    if data is None:
                        self.lost_objects.add(chunk.object_name)
                    else:
                        put(f"{self.folder}/{chunk.object_name}", data.data)
                        self.new_bytes += chunk.size_bytes
                position += chunk.size_bytes

    def finish(
        self, *, is_leader: bool | None, start_offset: int, cleaner_offset: int | None
    ) -> PartitionBackup:
        """Wait for the chunks, and return the partition for the manifest."""
        found, partition = self.found, self.found.partition
        chunks = [*self._kept]
        for each in self._puts:
            chunk, new_bytes = each.result()
            chunks.append(chunk)
            self.new_bytes += new_bytes
        bases = found.bases
        first = bases[0] if bases else 0
        # Chunks of unchanged logs may follow those of cleaned logs.
        chunks = sorted(
            (chunk for chunk in chunks if chunk.last_offset >= first),
            key=lambda chunk: chunk.base_offset,
        )
        snapshot = found.snapshot
        if chunks and chunks[0].base_offset < first:
            # The snapshot contains producers of later batches than those before the first chunk.
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
            chunks=tuple(chunks),
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
            # The manifest contains everything that an inspection finds.
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
            sum(chunk.size_bytes for chunk in backup.chunks),
            self.new_bytes,
            self._read_bytes,
            len(backup.chunks),
        )

    def _read_plain(self) -> int:
        """Read the batches after the last stored batch, if the log still contains that."""
        logs, earlier = self._logs, self._earlier
        first, position, next_offset = 0, 0, logs[0].base_offset if logs else 0
        if earlier is not None and self._earlier_header is not None and logs:
            place = self._place_of_last(self._earlier_header)
            if place is not None:
                first, position = place
                self._kept = [*earlier.chunks]
                self._last_header = self._earlier_header
                next_offset = last_offset_in(self._last_header) + 1
                self._has_gap = earlier.is_compacted
                if not self._has_gap:
                    position, next_offset = self._give_up_small(logs[first], position, next_offset)
            else:
                # The log was truncated below stored batches, and has another history since.
                self._settled_offset = 0
                first, position, next_offset = self._keep_first(earlier)
        for log in logs[:first]:
            self._note(log, log.end_bytes)
        for number in range(first, len(logs)):
            log = logs[number]
            before = self._seen.get(log.base_offset)
            if before is not None and log.is_stored_as(before) and position == before.covered_bytes:
                self._note(log, position)
            else:
                next_offset = self._read_log(number, position, next_offset)
                if self._is_cut_short:
                    break
            position = 0
        return next_offset

    def _give_up_small(self, log: CapturedLog, position: int, next_offset: int) -> tuple[int, int]:
        """Drop the small chunks at the end of a log, so that they are read again as one chunk.

        Return the position from which it is read, and the next offset there. What is not in the log
        as it is stored, or not below the high watermark, is kept.
        """
        count = count_small_chunks(self._kept, log.base_offset)
        small = self._kept[len(self._kept) - count :]
        start = position - sum(chunk.size_bytes for chunk in small)
        is_below = self._high_watermark is None or next_offset <= self._high_watermark
        if not small or start < 0 or not is_below:
            return position, next_offset
        at = start
        for chunk in small:
            self._read_bytes += chunk.size_bytes
            try:
                is_there = has_chunk(log, at, chunk, self._bandwidth)
            except SkippedError:
                is_there = False
            if not is_there:
                return position, next_offset
            at += chunk.size_bytes
        del self._kept[-count:]
        return start, small[0].base_offset

    def _keep_first(self, earlier: PartitionBackup) -> tuple[int, int, int]:
        """Keep the first chunks that the log still contains, except the last of them.

        Return the number of the log where they end, the position there, and the next offset. The
        last chunk is read again, because the header of its last batch is needed.
        """
        logs = self._logs
        ends = [(0, 0, logs[0].base_offset)]
        number = position = 0
        for chunk in earlier.chunks:
            if chunk.last_offset < logs[0].base_offset:
                continue
            while number + 1 < len(logs) and logs[number + 1].base_offset <= chunk.base_offset:
                number, position = number + 1, 0
            if not has_chunk(logs[number], position, chunk, self._bandwidth):
                break
            self._read_bytes += chunk.size_bytes
            position += chunk.size_bytes
            self._kept.append(chunk)
            ends.append((number, position, chunk.last_offset + 1))
        if self._kept:
            del self._kept[-1], ends[-1]
        return ends[-1]

    def _place_of_last(self, header: bytes) -> tuple[int, int] | None:
        """Return the number of the log with the last stored batch, and the position of its end."""
        last = last_offset_in(header)
        at = [number for number, log in enumerate(self._logs) if log.base_offset <= last]
        if not at:
            return None
        log = self._logs[at[-1]]
        before = self._seen.get(log.base_offset)
        covered = before.covered_bytes if before is not None else 0
        if log.is_same_file(before):
            return at[-1], covered
        found = find_batch(log, last, header, covered, self._bandwidth)
        return None if found is None else (at[-1], found)

    def _read_cleaned(self) -> int:
        """Read the changed logs: a cleaned log completely, of a grown log the new batches."""
        next_offset = self._logs[0].base_offset if self._logs else 0
        for number, log in enumerate(self._logs):
            before = self._seen.get(log.base_offset)
            end = self._end_of(number)
            own = self._chunks_of(log.base_offset)
            if own and end is not None and own[-1].last_offset >= end:
                own = []
            position = 0
            next_offset = max(next_offset, log.base_offset)
            if log.is_stored_as(before) and before is not None:
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
        """Return the end of an earlier backup in its last log; None for other logs."""
        header = self._earlier_header
        if (log.device, log.inode) != (before.device, before.inode) or not header:
            return None
        if last_offset_in(header) != last_offset:
            return None
        found = find_batch(log, last_offset, header, before.covered_bytes, self._bandwidth)
        return found if found == before.covered_bytes else None

    def _chunks_of(self, base: int) -> list[LogChunk]:
        """Return the chunks of a segment in the earlier backup."""
        if self._earlier is None or base not in self._seen:
            return []
        end = min((other for other in self._seen if other > base), default=INT64_MAX)
        return [chunk for chunk in self._earlier.chunks if base <= chunk.base_offset < end]

    def _read_log(self, number: int, position: int, next_offset: int) -> int:
        """Read a log from a position on; return the next offset."""
        log = self._logs[number]
        reader = LogChunkReader(
            log,
            position,
            max(next_offset, log.base_offset),
            self._high_watermark,
            self._end_of(number),
            self._bandwidth,
        )
        for batch_range in reader.batch_ranges(is_cleaned=self._is_compacted):
            self._puts.append(self._put(batch_range))
            self._last_header = batch_range.last_header
        self._read_bytes += reader.read_bytes
        self._settled_offset = max(self._settled_offset, reader.settled_offset)
        self._has_gap |= reader.has_gap
        self._is_cut_short = reader.is_below
        self._note(log, reader.position, is_done=not reader.is_below)
        return reader.next_offset

    def _end_of(self, number: int) -> int | None:
        """Return the offset at which the next log begins; None for the last one."""
        return self._logs[number + 1].base_offset if number + 1 < len(self._logs) else None

    def _note(self, log: CapturedLog, covered_bytes: int, *, is_done: bool = True) -> None:
        """Record a log in its current state, for the next backup."""
        # Two appends to a preallocated log may leave the same size and ctime.
        ctime_ns = 0 if log.is_preallocated else log.ctime_ns
        file = log.device, log.inode, ctime_ns, log.end_bytes
        self._segments.append(SeenSegment(log.base_offset, *file, covered_bytes, is_done))


# With so many new bytes, objects of a killed backup are listed and reused.
_WORTH_LISTING_BYTES = 1 << 20
_LOGGER = logging.getLogger(__name__)
_METADATA_READS = 20
_BETWEEN_READS_S = 0.2
_UPLOAD_THREADS = 4
_MB = 1_000_000
#: Topics that are in every backup, whatever topics are requested.
_ALWAYS_STORED = frozenset({*COORDINATOR_TOPICS, CLUSTER_METADATA_TOPIC})


@dataclass(frozen=True)
class Broker:
    """A broker by its data directories, each with its ``meta.properties``."""

    node_id: int
    cluster_id: str
    directories: tuple[DataDirectory, ...]

    @property
    def paths(self) -> list[str]:
        """The paths of the directories."""
        return [each.path for each in self.directories]

    @classmethod
    def from_request(cls, request: BackupRequest) -> Broker:
        """Return the broker of a request.

        Raises `InputError` if a directory is not a data directory of a broker, or the directories
        belong to several brokers.
        """
        for path in request.inputs:
            refuse_remote(
                path,
                "a broker's directories are on a disk of this machine",
                hint="run the command on the machine that mounts them, or a snapshot of them",
            )
        found: dict[int, list[tuple[DataDirectory, str]]] = {}
        for path in expand_directories(request.inputs):
            file = os.path.join(path, META_PROPERTIES)
            try:
                text, _ = read_noatime(file)
            except FileNotFoundError:
                text = b""
            except OSError as error:
                raise InputError(f"cannot read the file: {error.strerror}", path=file) from error
            properties = MetaProperties.of(text, file)
            if properties.cluster_id is None or properties.node_id is None:
                raise InputError(
                    f"not a data directory of a broker: its {META_PROPERTIES} is missing, or has "
                    "no cluster.id or node.id",
                    path=path,
                )
            directory = DataDirectory(
                path=os.path.abspath(path), meta_properties=text.decode(errors="replace")
            )
            found.setdefault(properties.node_id, []).append((directory, properties.cluster_id))
        node_id = request.node_id
        if node_id is None:
            if len(found) > 1:
                nodes = ", ".join(map(str, sorted(found)))
                raise InputError(
                    "the directories belong to several brokers", found=nodes, hint="give --node"
                )
            node_id = min(found)
        clusters = {cluster for _, cluster in found.get(node_id, [])}
        if len(clusters) != 1:
            raise InputError(
                f"the directories of broker {node_id} must belong to one cluster",
                expected="one cluster.id",
                found=", ".join(sorted(clusters)) or f"directories of {sorted(found)}",
            )
        return cls(node_id, clusters.pop(), tuple(each for each, _ in found[node_id]))


class BrokerBackup:
    """One backup of one broker; a context manager that closes all logs."""

    def __init__(
        self, request: BackupRequest, inspected: InspectedPartitions | None = None
    ) -> None:
        self._request = request
        rate = None if request.max_bandwidth is None else request.max_bandwidth * _MB
        self._bandwidth = Bandwidth(rate)
        self.broker = Broker.from_request(request)
        root = absolute_path(request.output)
        refuse_overlap(root, request.output, self.broker.paths)
        self.repository = open_repository(root).create(self.broker.cluster_id, request.brokers)
        self.previous = self.repository.newest(self.broker.node_id)
        self._damaged = self.repository.damaged()
        # A partition with damaged objects is read again even if it is unchanged.
        self._earlier = {
            (each.topic_partition, each.topic_id): each
            if each.folder not in self._damaged
            else msgspec.structs.replace(each, seen_directory=None)
            for each in (self.previous.partitions if self.previous else ())
        }
        self._capture = LogCapture(
            self.broker.paths,
            self._is_requested,
            {partition: each for (partition, _), each in self._earlier.items()},
            inspected,
        )
        self._is_held = any(map(is_locked, self.broker.paths))
        self._starts: list[BrokerCheckpoint] = []
        self._cleaned: list[BrokerCheckpoint] = []
        self._times: dict[str, int] = {}
        self._high_watermarks = HighWatermarks({}, Source.EARLIER_BACKUP, 0)
        self._cluster: ClusterImage | None = None
        self._stored_partitions: list[PartitionBackup] = []
        self._of_others: dict[tuple[TopicPartition, str], PartitionBackup] | None = None
        self._rows: list[BackedUpPartition] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._capture.close()

    def _is_requested(self, topic: str) -> bool:
        topics = self._request.topics
        return topics is None or topics.fullmatch(topic) is not None or topic in _ALWAYS_STORED

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers that a backup expects."""
        given = self._request.brokers or self.repository.file().brokers
        if not given and self.previous is not None:
            given = self.previous.brokers
        if not given:
            cluster = self._read_cluster()
            given = () if cluster is None else tuple(cluster.brokers)
        return tuple(sorted({*given, self.broker.node_id}))

    def inspect(self) -> None:
        """Inspect all partitions, before the first capture."""
        self._capture.inspect()

    def capture_coordinators(self) -> None:
        """Capture ``__transaction_state``, then ``__consumer_offsets``."""
        paths = self.broker.paths
        self._starts = [BrokerCheckpoint.read(path, LOG_START_CHECKPOINT) for path in paths]
        self._cleaned = [BrokerCheckpoint.read(path, CLEANER_CHECKPOINT) for path in paths]
        self._times["begun_ms"] = now_ms()
        self._capture.capture(COORDINATOR_TOPICS)
        self._times["coordinators_captured_ms"] = now_ms()

    def capture_others(self) -> None:
        """Capture the other topics, and the metadata log last."""
        self._times["others_begun_ms"] = now_ms()
        self._capture.capture(others_than=COORDINATOR_TOPICS)
        self._times["ended_ms"] = now_ms()
        self._watcher = self._new_watcher()

    def _new_watcher(self) -> CheckpointWatcher:
        partitions: dict[str, list[str]] = {}
        for found in self._capture.partitions.values():
            if found.partition.topic != CLUSTER_METADATA_TOPIC:
                directory = self.broker.paths[found.directory]
                partitions.setdefault(directory, []).append(found.path)
        return CheckpointWatcher(
            partitions, checkpoint_interval_ms(self._request.config.properties)
        )

    def await_high_watermarks(self) -> None:
        """Wait for high watermarks from after the capture, if a log has new batches."""
        self._cluster = self._read_cluster()
        if all(map(self._is_stored, self._capture.partitions.values())):
            self._high_watermarks = HighWatermarks({}, Source.EARLIER_BACKUP, now_ms())
        else:
            self._high_watermarks = self._ask_broker() or self._watcher.wait()

    def await_elections(self) -> None:
        """Wait for high watermarks once more, for partitions whose leader was killed.

        A follower learns the last one of the old leader from the new leader. The agent of the
        killed broker has waited for longer than an election takes.
        """
        if self._high_watermarks.source in (Source.CHECKPOINT, Source.BROKER):
            self._high_watermarks = self._new_watcher().wait()

    def _ask_broker(self) -> HighWatermarks | None:
        """Request the high watermarks from the running broker; None if that fails or is not wanted.

        A copy that another broker leads may hold other batches below them, which it is about to
        lose: for it the checkpoint counts, as old as it may be.
        """
        address = self._request.bootstrap_server
        led = {
            partition: found
            for partition, found in self._capture.partitions.items()
            if partition.topic != CLUSTER_METADATA_TOPIC
            and self._leader(found) == self.broker.node_id
        }
        asked = None if address is None else fetch_high_watermarks(address, [*led])
        if asked is None or any(self._is_there(led[each]) for each in led.keys() - asked.keys()):
            return None
        known = self._watcher.read(Source.BROKER)
        return replace(known, offsets={**known.offsets, **asked})

    @property
    def is_running(self) -> bool:
        """Whether the broker runs, or was shut down cleanly."""
        return self._high_watermarks.source is not Source.OLD_CHECKPOINT

    @property
    def leaders(self) -> dict[str, int | None]:
        """The leaders of the captured partitions, by folder; None if unknown."""
        return {
            partition_folder(partition, found.topic_id): self._leader(found)
            for partition, found in self._capture.partitions.items()
        }

    @property
    def stored_folders(self) -> list[str]:
        """The folders of the stored partitions."""
        return [each.folder for each in self._stored_partitions]

    def inspected(self) -> InspectedPartitions:
        """Return the partitions that were inspected and not stored, for the next backup."""
        found = {
            partition: each
            for partition, each in self._capture.partitions.items()
            if each.known is None
        }
        for each in found.values():
            each.is_cleaned = self._is_compacted(each)
        return found

    def forget_skipped(self, brokers: Collection[int]) -> None:
        """Do not report skipped partitions that another broker of the backup leads."""
        topics = {} if self._cluster is None else self._cluster.topics
        leaders = {
            TopicPartition(topic.name, number): partition.leader
            for topic in topics.values()
            for number, partition in topic.partitions.items()
        }
        for partition in [*self._capture.skipped]:
            leader = leaders.get(partition)
            if leader in brokers and leader != self.broker.node_id:
                del self._capture.skipped[partition]

    def store(self, is_selected: Callable[[str], bool] = lambda _: True) -> None:
        """Store the selected partitions, by folder, that are not stored yet."""
        with ChunkUploader(self.repository, _UPLOAD_THREADS) as uploads:
            pending = [
                stored
                for partition, found in [*self._capture.partitions.items()]
                if is_selected(partition_folder(partition, found.topic_id))
                and (stored := self._store_or_skip(found, uploads)) is not None
            ]
            for each in pending:
                self._finish(each)

    def commit(
        self, backup_id: str, brokers: tuple[int, ...], members: tuple[int, ...] = ()
    ) -> BackupResult:
        """Put the manifest, which adds the broker to the backup, and return the result.

        `members` are the brokers that waited for each other at the barrier.
        """
        capture = CaptureTimes(
            **self._times,
            high_watermarks_ms=self._high_watermarks.time_ms,
            high_watermarks_from=self._high_watermarks.source.value,
            barrier_members=members,
        )
        skipped = tuple(self._skipped_partitions())
        rows = sorted(self._rows, key=lambda row: (row.topic, row.partition))
        expected = {*brokers, self.broker.node_id}
        partitions = sorted(self._stored_partitions, key=lambda each: each.topic_partition)
        manifest = Manifest(
            backup_id=backup_id,
            cluster_id=self.broker.cluster_id,
            node_id=self.broker.node_id,
            brokers=tuple(sorted(expected)),
            capture=capture,
            directories=self.broker.directories,
            partitions=tuple(partitions),
            skipped=skipped,
            new_bytes=sum(row.new_bytes or 0 for row in rows),
            tool_version=version("kafka-index"),
        )
        self.repository.put_manifest(manifest)
        missing = expected - {self.broker.node_id, *members} if members else set()
        logs = [log for each in partitions for log in each.segments]
        return BackupResult(
            backup_id,
            self.broker.node_id,
            self.repository.root,
            rows,
            capture.high_watermarks_from,
            cutoff_ms=capture.begun_ms,
            capture_ms=capture.ended_ms - capture.begun_ms,
            wait_ms=max(capture.high_watermarks_ms - capture.ended_ms, 0),
            missing_brokers=tuple(sorted(missing)),
            lag_bytes=sum(log.size_bytes - log.covered_bytes for log in logs),
        )

    # ------------------------------------------------------------------------- one partition

    def _is_stored(self, found: CapturedPartition) -> bool:
        """Return whether an earlier backup contains all batches of a partition."""
        if found.known is not None or found.partition.topic == CLUSTER_METADATA_TOPIC:
            return True
        earlier = self._earlier.get((found.partition, found.topic_id))
        if earlier is None:
            return False
        seen = {each.base_offset: each for each in earlier.segments}
        return all(log.is_stored_as(seen.get(log.base_offset)) for log in found.logs)

    def _store_or_skip(
        self, found: CapturedPartition, uploads: ChunkUploader
    ) -> PartitionUploader | None:
        del self._capture.partitions[found.partition]
        try:
            return self._store(found, uploads)
        except SkippedError as error:
            self._capture.skipped[found.partition] = error
            return None
        finally:
            found.close()

    def _store(self, found: CapturedPartition, uploads: ChunkUploader) -> PartitionUploader | None:
        """Read a partition and upload its chunks; None if it was deleted concurrently."""
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
            known = {chunk.object_name for chunk in earlier.chunks}
        sizes = sum(log.end_bytes for log in found.logs)
        before = sum(each.covered_bytes for each in earlier.segments) if earlier else 0
        if earlier is None or sizes - before > _WORTH_LISTING_BYTES:
            known |= self.repository.names(stored.folder)
        damaged = self._damaged.get(stored.folder, set())
        known -= damaged
        stored.read(lambda batch_range: uploads.put(stored.folder, known, batch_range))
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
        """Return a partition from an earlier backup of this broker, or of another."""
        key = found.partition, found.topic_id
        if key in self._earlier or found.partition.topic == CLUSTER_METADATA_TOPIC:
            return self._earlier.get(key)
        if self._of_others is None:
            self._of_others = {}
            newest = {
                node_id: backup_id
                for backup_id, brokers in self.repository.brokers_by_backup().items()
                for node_id in brokers
                if node_id != self.broker.node_id
            }
            for node_id, backup_id in sorted(newest.items(), key=lambda each: each[1]):
                with suppress(MissingManifestError):  # it has just expired
                    for each in self.repository.count_on(backup_id, node_id).partitions:
                        # The files of another broker are different files.
                        own = msgspec.structs.replace(each, segments=(), seen_directory=None)
                        self._of_others[each.topic_partition, each.topic_id] = own
        return self._of_others.get(key)

    def _finish(self, stored: PartitionUploader) -> None:
        """Wait for the chunks of a partition, and add it to the manifest."""
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
        self._stored_partitions.append(backup)
        self._rows.append(stored.row_of(backup))

    def _skipped_partitions(self) -> Iterator[SkippedPartition]:
        """Yield the skipped partitions, and add their rows."""
        before = {
            (each.topic, each.partition): each.backups
            for each in (self.previous.skipped if self.previous else ())
        }
        for partition, error in sorted(self._capture.skipped.items()):
            backups = before.get((partition.topic, partition.partition), 0) + 1
            status = BackupStatus.UNREADABLE if error.is_fault else BackupStatus.SKIPPED
            self._rows.append(
                BackedUpPartition(
                    partition.topic,
                    partition.partition,
                    None,
                    status,
                    error.reason,
                    backups_skipped=backups,
                )
            )
            yield SkippedPartition(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=None,
                reason=error.reason,
                backups=backups,
            )

    # ------------------------------------------------------------------- state of a partition

    def _high_watermark(self, found: CapturedPartition) -> int | None:
        if self._high_watermarks.source is Source.LOG_END:
            return None
        offset = self._high_watermarks.offsets.get(found.partition)
        if offset is None:
            raise SkippedError("it has no high watermark yet")
        return offset

    def _is_there(self, found: CapturedPartition) -> bool:
        """Return whether a partition still exists; it may have moved."""
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
        properties = self._request.config.properties
        cluster = self._cluster or ClusterImage()
        policy = cluster.cleanup_policy(topic, properties, self.broker.node_id)
        if policy is None and self._cluster is None:
            cleaned = self._cleaned[found.directory]
            return cleaned.of(found, must_be_later=self._is_held) is not None
        return "compact" in (policy or "")

    def _read_cluster(self) -> ClusterImage | None:
        """Return the cluster image from the metadata log; None without a metadata log."""
        paths = [os.path.join(path, METADATA_LOG) for path in self.broker.paths]
        paths = [path for path in paths if os.path.isdir(path)]
        for number in range(_METADATA_READS if paths else 0):
            if number:
                time.sleep(_BETWEEN_READS_S)
            try:
                return read_metadata(
                    paths[:1],
                    budget=shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES),
                    topics=(CLUSTER_METADATA_TOPIC,),
                    recovers=True,
                ).cluster
            except InputError as error:
                # The broker may delete files of the log concurrently.
                if number + 1 == _METADATA_READS and is_retriable(error):
                    raise
        return None


def _has_id(directory: str, topic_id: str) -> bool:
    try:
        return read_topic_id(directory) == topic_id
    except KafkaIndexError:
        return False

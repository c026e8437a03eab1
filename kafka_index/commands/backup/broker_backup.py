"""One backup of one broker: partitions are inspected, captured, stored and committed.

`agent.back_up` calls the methods of `BrokerBackup` in this order:

1. `inspect` inspects all partitions before the first capture. The batches found are settled: the
   ``__transaction_state`` in the backup contains the transactions of these batches.
2. `capture_coordinators` reads log start offsets and captures the coordinators' topics.
   `capture_others` captures all other topics.
3. `await_high_watermarks` waits for high watermarks that were written after the captures.
4. `store` uploads new batches as chunks. No manifest refers to these chunks until `commit`. The
   next backup finds the chunks of a killed backup by name.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from typing import Self

import msgspec

from kafka_index.commands.backup.capture import (
    COORDINATOR_TOPICS,
    CapturedPartition,
    InspectedPartitions,
    LogCapture,
    SkippedError,
)
from kafka_index.commands.backup.chunks import (
    ChunkUploader,
    PartitionUploader,
    put_object,
)
from kafka_index.commands.backup.low_impact_io import Bandwidth, open_noatime, read_noatime
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackedUpPartition, BackupResult, BackupStatus, Source
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.errors import (
    BadFileError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX, parse_java_integer
from kafka_index.core.format.names import (
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    COMPACTED_INTERNAL_TOPICS,
    INTERNAL_TOPICS,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    METADATA_LOG,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    CaptureTimes,
    DataDirectory,
    KeptFile,
    Manifest,
    PartitionBackup,
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
from kafka_index.core.logdir.data_directory import OffsetCheckpoint
from kafka_index.core.logdir.metadata_files import MetaProperties, read_topic_id
from kafka_index.core.records.decompression import shared_budget

#: Broker setting for the interval between high watermark checkpoints, and its default.
INTERVAL_SETTING = "replica.high.watermark.checkpoint.interval.ms"
DEFAULT_INTERVAL_MS = 5000


def checkpoint_interval_ms(properties: Mapping[str, str] | None) -> int:
    """Return the interval at which the broker writes high watermarks."""
    interval_ms = parse_java_integer((properties or {}).get(INTERVAL_SETTING, ""), INT64_MAX)
    return interval_ms if interval_ms is not None and interval_ms > 0 else DEFAULT_INTERVAL_MS


# Timeout for two replacements of a checkpoint, in checkpoint intervals. The timeout is longer if a
# running broker, which may be busy, has locked the directory.
_INTERVALS_IF_LOCKED, _INTERVALS = 12, 3
_POLL_S = 0.05
# A response takes milliseconds, unless a topic was deleted concurrently.
_REQUEST_TIMEOUT_MS = 5000
_MS_NS = 1_000_000

# struct flock of Linux on 64 bits: type, whence, start, length, process.
_FLOCK = struct.Struct("hh4xqqi4x")


@dataclass(frozen=True)
class BrokerCheckpoint:
    """An offset checkpoint of one data directory, and the time at which it was written."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    mtime_ns: int = 0

    @classmethod
    def read(cls, directory: str, name: str) -> BrokerCheckpoint:
        """Read a checkpoint; empty if the file is missing, or if a broker could not parse it."""
        path, mtime_ns = os.path.join(directory, name), 0
        try:
            data, status = read_noatime(path)
            checkpoint = OffsetCheckpoint.from_text(path, data.decode())
            mtime_ns = status.st_mtime_ns
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            if is_retriable(error):
                raise InputError(f"cannot read the file: {error}", path=path) from error
            checkpoint = OffsetCheckpoint.from_error(path, BadFileError(str(error), path=path))
        checkpoint.note_fault()
        return cls(checkpoint.offsets, mtime_ns)

    def find_offset(self, partition: CapturedPartition, *, must_be_later: bool) -> int | None:
        """Return the offset of a partition.

        With `must_be_later`, returns None if the checkpoint is older than the topic ID: its offset
        may belong to an earlier topic of the same name.
        """
        is_later = not must_be_later or self.mtime_ns > partition.id_ns
        return self.offsets.get(partition.partition) if is_later else None


def is_locked(directory: str) -> bool:
    """Return whether a local broker has locked a data directory, without locking it."""
    try:
        descriptor = open_noatime(os.path.join(directory, BROKER_LOCK))
    except OSError:
        return False
    try:
        requested_lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        conflicting_lock = fcntl.fcntl(descriptor, fcntl.F_GETLK, requested_lock)
        return bool(_FLOCK.unpack(conflicting_lock)[0] != fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class HighWatermarks:
    offsets: Mapping[TopicPartition, int]
    source: Source
    time_ms: int


class CheckpointWatcher:
    """Waits until the high watermark checkpoints of data directories have been replaced twice.

    A broker writes high watermarks every five seconds, and collects all values before it writes
    them. The first replacement after a capture may therefore contain values from before the
    capture. The second replacement does not.

    A broker writes no checkpoint in a directory without partitions, such as the directory of its
    metadata log. A directory is therefore watched only while one of its captured partitions exists.
    """

    def __init__(
        self, partitions: Mapping[str, Sequence[str]], interval_ms: int = DEFAULT_INTERVAL_MS
    ) -> None:
        self._partitions = partitions
        self._interval_s = interval_ms / 1000
        self._versions = {directory: _checkpoint_version(directory) for directory in partitions}
        self._replacements = dict.fromkeys(partitions, 0)

    def wait(self) -> HighWatermarks:
        """Wait for the second replacement of each checkpoint, or for the timeout.

        Raises `InputError` if a checkpoint cannot be read.
        """
        started = time.monotonic()
        is_running = any(map(is_locked, self._partitions))
        timeout_s = (_INTERVALS_IF_LOCKED if is_running else _INTERVALS) * self._interval_s
        while True:
            elapsed_s = time.monotonic() - started
            if all(
                os.path.exists(os.path.join(directory, CLEAN_SHUTDOWN))
                for directory in self._partitions
            ):
                return HighWatermarks({}, Source.LOG_END, now_ms())
            if self._are_all_replaced(elapsed_s):
                return self.read(Source.CHECKPOINT)
            if elapsed_s > timeout_s:
                return self.read(Source.OLD_CHECKPOINT)
            time.sleep(_POLL_S)

    def _are_all_replaced(self, elapsed_s: float) -> bool:
        for directory in self._partitions:
            version = _checkpoint_version(directory)
            if version is not None and version != self._versions[directory]:
                self._replacements[directory] += 1
                self._versions[directory] = version
        pending_directories = [path for path, count in self._replacements.items() if count < 2]
        if elapsed_s > 2 * self._interval_s:
            pending_directories = [
                path
                for path in pending_directories
                if any(map(os.path.isdir, self._partitions[path]))
            ]
        return not pending_directories

    def read(self, source: Source) -> HighWatermarks:
        """Return the current content of the checkpoints.

        For `Source.OLD_CHECKPOINT`, the time is the earliest modification time of the checkpoints.
        """
        offsets: dict[TopicPartition, int] = {}
        time_ms = now_ms()
        for directory in self._partitions:
            checkpoint = BrokerCheckpoint.read(directory, REPLICATION_CHECKPOINT)
            if source is Source.OLD_CHECKPOINT and checkpoint.offsets:
                time_ms = min(time_ms, checkpoint.mtime_ns // _MS_NS)
            for partition, offset in checkpoint.offsets.items():
                # While a partition moves between data directories, both checkpoints contain the
                # partition. The greater offset is newer, because high watermarks only grow.
                offsets[partition] = max(offset, offsets.get(partition, 0))
        return HighWatermarks(offsets, source, time_ms)


def _checkpoint_version(directory: str) -> tuple[int, int, int] | None:
    path = os.path.join(directory, REPLICATION_CHECKPOINT)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def fetch_high_watermarks(
    bootstrap_server: str, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int] | None:
    """Request the high watermarks of partitions from their leaders; None if that fails.

    Raises `InputError` if the library is not installed.
    """
    try:
        from aiokafka.errors import KafkaError  # noqa: PLC0415, because it is optional
    except ImportError as error:
        raise InputError(
            "requests to a broker need the package aiokafka, which is not installed",
            path=bootstrap_server,
            hint="pip install 'kafka-index[backup]'",
        ) from error
    try:
        return asyncio.run(_request_end_offsets(bootstrap_server, partitions))
    except (KafkaError, OSError, ValueError) as error:
        _LOGGER.warning(
            "broker %s does not respond (%s); waiting for its checkpoint", bootstrap_server, error
        )
        return None


async def _request_end_offsets(
    bootstrap_server: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    from aiokafka import AIOKafkaConsumer  # noqa: PLC0415, because it is optional
    from aiokafka import TopicPartition as Key  # noqa: PLC0415

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_server, request_timeout_ms=_REQUEST_TIMEOUT_MS
    )
    try:
        await consumer.start()
        # end_offsets would wait for topics that were deleted since the capture.
        topics = await consumer.topics()
        keys = {
            Key(partition.topic, partition.partition): partition
            for partition in partitions
            if partition.topic in topics or partition.topic in INTERNAL_TOPICS
        }
        return {keys[key]: end for key, end in (await consumer.end_offsets([*keys])).items()}
    finally:
        await consumer.stop()


# If a partition has more new bytes, its folder is listed to reuse objects of a killed backup.
_MIN_LISTING_BYTES = 1 << 20
_LOGGER = logging.getLogger(__name__)
_METADATA_ATTEMPTS = 20
_METADATA_PAUSE_S = 0.2
_UPLOAD_THREADS = 4
_MB = 1_000_000
#: Topics that every backup contains, even if they are not requested.
_ALWAYS_STORED = frozenset({*COORDINATOR_TOPICS, CLUSTER_METADATA_TOPIC})


@dataclass(frozen=True)
class Broker:
    """A broker with its data directories, identified by their ``meta.properties``."""

    node_id: int
    cluster_id: str
    directories: tuple[DataDirectory, ...]

    @property
    def paths(self) -> list[str]:
        return [directory.path for directory in self.directories]

    @classmethod
    def from_request(cls, request: BackupRequest) -> Broker:
        """Return the broker of a request.

        Raises `InputError` if a directory is not a data directory of a broker, or the directories
        belong to several brokers.
        """
        for path in request.inputs:
            refuse_remote(
                path,
                "the data directories of a broker must be on a local disk",
                hint="run the command on a machine that mounts the directories, or a snapshot",
            )
        directories_by_node: dict[int, list[tuple[DataDirectory, str]]] = {}
        for path in expand_directories(request.inputs):
            properties_path = os.path.join(path, META_PROPERTIES)
            try:
                properties_data, _ = read_noatime(properties_path)
            except FileNotFoundError:
                properties_data = b""
            except OSError as error:
                raise InputError(
                    f"cannot read the file: {error.strerror}", path=properties_path
                ) from error
            properties = MetaProperties.parse(properties_data, properties_path)
            if properties.cluster_id is None or properties.node_id is None:
                raise InputError(
                    f"the directory is not a data directory of a broker: {META_PROPERTIES} is "
                    "missing, or lacks cluster.id or node.id",
                    path=path,
                )
            directory = DataDirectory(
                path=os.path.abspath(path), meta_properties=properties_data.decode(errors="replace")
            )
            directories_by_node.setdefault(properties.node_id, []).append(
                (directory, properties.cluster_id)
            )
        nodes = f"brokers {', '.join(map(str, sorted(directories_by_node)))}"
        node_id = request.node_id
        if node_id is None:
            if len(directories_by_node) > 1:
                raise InputError(
                    "the directories belong to several brokers", found=nodes, hint="give --node"
                )
            node_id = min(directories_by_node)
        if node_id not in directories_by_node:
            raise InputError(f"no directory belongs to broker {node_id}", found=nodes)
        directories, cluster_ids = zip(*directories_by_node[node_id], strict=True)
        clusters = sorted({*cluster_ids})
        if len(clusters) != 1:
            raise InputError(
                f"the directories of broker {node_id} must belong to one cluster",
                expected="one cluster.id",
                found=", ".join(clusters),
            )
        return cls(node_id, clusters[0], directories)


class BrokerBackup:
    """One backup of one broker; a context manager that closes all logs."""

    def __init__(
        self, request: BackupRequest, inspected_partitions: InspectedPartitions | None = None
    ) -> None:
        self._request = request
        rate = None if request.max_bandwidth is None else request.max_bandwidth * _MB
        self._bandwidth = Bandwidth(rate)
        self.broker = Broker.from_request(request)
        root = absolute_path(request.output)
        refuse_overlap(root, request.output, self.broker.paths)
        self.repository = open_repository(root).create(self.broker.cluster_id, request.brokers)
        self.previous = self.repository.newest(self.broker.node_id)
        self._damaged_names = self.repository.list_damaged()
        # Partitions with damaged objects are read again, even if their directories are unchanged.
        self._earlier_partitions = {
            (partition_backup.topic_partition, partition_backup.topic_id): partition_backup
            if partition_backup.folder not in self._damaged_names
            else msgspec.structs.replace(partition_backup, seen_directory=None)
            for partition_backup in (self.previous.partitions if self.previous else ())
        }
        self._capture = LogCapture(
            self.broker.paths,
            self._is_requested,
            {
                partition: partition_backup
                for (partition, _), partition_backup in self._earlier_partitions.items()
            },
            inspected_partitions,
        )
        self._is_locked = any(map(is_locked, self.broker.paths))
        self._log_start_checkpoints: list[BrokerCheckpoint] = []
        self._cleaner_checkpoints: list[BrokerCheckpoint] = []
        self._capture_times: dict[str, int] = {}
        self._high_watermarks = HighWatermarks({}, Source.EARLIER_BACKUP, 0)
        self._cluster: ClusterImage | None = None
        self._stored_partitions: list[PartitionBackup] = []
        self._replica_partitions: dict[tuple[TopicPartition, str], PartitionBackup] | None = None
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
        """The brokers that this backup expects."""
        node_ids = self._request.brokers or self.repository.file().brokers
        if not node_ids and self.previous is not None:
            node_ids = self.previous.brokers
        if not node_ids:
            cluster = self._read_cluster()
            node_ids = () if cluster is None else tuple(cluster.brokers)
        return tuple(sorted({*node_ids, self.broker.node_id}))

    def inspect(self) -> None:
        """Inspect all partitions, before the first capture."""
        self._capture.inspect()

    def capture_coordinators(self) -> None:
        """Capture ``__transaction_state``, then ``__consumer_offsets``."""
        paths = self.broker.paths
        self._log_start_checkpoints = [
            BrokerCheckpoint.read(path, LOG_START_CHECKPOINT) for path in paths
        ]
        self._cleaner_checkpoints = [
            BrokerCheckpoint.read(path, CLEANER_CHECKPOINT) for path in paths
        ]
        self._capture_times["begun_ms"] = now_ms()
        self._capture.capture(COORDINATOR_TOPICS)
        self._capture_times["coordinators_captured_ms"] = now_ms()

    def capture_others(self) -> None:
        """Capture the other topics, and the metadata log last."""
        self._capture_times["others_begun_ms"] = now_ms()
        self._capture.capture(others_than=COORDINATOR_TOPICS)
        self._capture_times["ended_ms"] = now_ms()
        self._watcher = self._new_watcher()

    def _new_watcher(self) -> CheckpointWatcher:
        partitions: dict[str, list[str]] = {}
        for captured in self._capture.partitions.values():
            if captured.partition.topic != CLUSTER_METADATA_TOPIC:
                directory = self.broker.paths[captured.directory]
                partitions.setdefault(directory, []).append(captured.path)
        return CheckpointWatcher(
            partitions, checkpoint_interval_ms(self._request.config.properties)
        )

    def await_high_watermarks(self) -> None:
        """If a log has new batches, wait for high watermarks written after the capture."""
        self._cluster = self._read_cluster()
        if all(map(self._is_stored, self._capture.partitions.values())):
            self._high_watermarks = HighWatermarks({}, Source.EARLIER_BACKUP, now_ms())
        else:
            self._high_watermarks = self._request_high_watermarks() or self._watcher.wait()

    def await_elections(self) -> None:
        """Wait again for high watermarks, because the leader of some partitions was killed.

        The new leader sends the last high watermark of the old leader to its followers. The agent
        of the killed broker has waited for longer than an election takes, so the new leader is
        elected by now.
        """
        if self._high_watermarks.source in (Source.CHECKPOINT, Source.BROKER):
            self._high_watermarks = self._new_watcher().wait()

    def _request_high_watermarks(self) -> HighWatermarks | None:
        """Request high watermarks from the running broker.

        Returns None without a bootstrap server, or if the request fails. Partitions that this
        broker follows keep the offset in its checkpoint, however old. Below the leader's high
        watermark, a follower may have other batches, which it is about to truncate.
        """
        address = self._request.bootstrap_server
        led_partitions = {
            partition: captured
            for partition, captured in self._capture.partitions.items()
            if partition.topic != CLUSTER_METADATA_TOPIC
            and self._leader(captured) == self.broker.node_id
        }
        fetched_offsets = (
            None if address is None else fetch_high_watermarks(address, [*led_partitions])
        )
        if fetched_offsets is None or any(
            self._still_exists(led_partitions[missing])
            for missing in led_partitions.keys() - fetched_offsets.keys()
        ):
            return None
        checkpoint = self._watcher.read(Source.BROKER)
        return replace(checkpoint, offsets={**checkpoint.offsets, **fetched_offsets})

    @property
    def is_running(self) -> bool:
        """Whether the broker runs, or was shut down cleanly."""
        return self._high_watermarks.source is not Source.OLD_CHECKPOINT

    @property
    def leaders(self) -> dict[str, int | None]:
        """The leaders of the captured partitions, by folder; None if unknown."""
        return {
            partition_folder(partition, captured.topic_id): self._leader(captured)
            for partition, captured in self._capture.partitions.items()
        }

    @property
    def stored_folders(self) -> list[str]:
        return [partition_backup.folder for partition_backup in self._stored_partitions]

    def inspected_partitions(self) -> InspectedPartitions:
        """Return the partitions that were inspected but not stored, for the next backup."""
        inspected_partitions = {
            partition: captured
            for partition, captured in self._capture.partitions.items()
            if captured.known is None
        }
        for captured in inspected_partitions.values():
            captured.is_cleaned = self._is_compacted(captured)
        return inspected_partitions

    def forget_skipped(self, brokers: Collection[int]) -> None:
        """Forget the skipped partitions whose leader is another broker of the backup."""
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
        """Store the captured partitions whose folder is selected and that are not stored yet."""
        with ChunkUploader(self.repository, _UPLOAD_THREADS) as uploads:
            pending_uploaders = [
                uploader
                for partition, captured in [*self._capture.partitions.items()]
                if is_selected(partition_folder(partition, captured.topic_id))
                and (uploader := self._store_or_skip(captured, uploads)) is not None
            ]
            for uploader in pending_uploaders:
                self._finish_partition(uploader)

    def commit(
        self, backup_id: str, brokers: tuple[int, ...], members: tuple[int, ...] = ()
    ) -> BackupResult:
        """Put the manifest, which adds the broker to the backup, and return the result.

        `members` are the brokers that waited for each other at the barrier.
        """
        capture = CaptureTimes(
            **self._capture_times,
            high_watermarks_ms=self._high_watermarks.time_ms,
            high_watermarks_from=self._high_watermarks.source.value,
            barrier_members=members,
        )
        skipped_partitions = tuple(self._skipped_partitions())
        rows = sorted(self._rows, key=lambda row: (row.topic, row.partition))
        expected_brokers = {*brokers, self.broker.node_id}
        partitions = sorted(
            self._stored_partitions, key=lambda partition_backup: partition_backup.topic_partition
        )
        manifest = Manifest(
            backup_id=backup_id,
            cluster_id=self.broker.cluster_id,
            node_id=self.broker.node_id,
            brokers=tuple(sorted(expected_brokers)),
            capture=capture,
            directories=self.broker.directories,
            partitions=tuple(partitions),
            skipped=skipped_partitions,
            new_bytes=sum(row.new_bytes or 0 for row in rows),
            tool_version=version("kafka-index"),
        )
        self.repository.put_manifest(manifest)
        missing_brokers = expected_brokers - {self.broker.node_id, *members} if members else set()
        logs = [log for partition_backup in partitions for log in partition_backup.segments]
        return BackupResult(
            backup_id,
            self.broker.node_id,
            self.repository.root,
            rows,
            capture.high_watermarks_from,
            cutoff_ms=capture.begun_ms,
            capture_ms=capture.ended_ms - capture.begun_ms,
            wait_ms=max(capture.high_watermarks_ms - capture.ended_ms, 0),
            missing_brokers=tuple(sorted(missing_brokers)),
            lag_bytes=sum(log.size_bytes - log.covered_bytes for log in logs),
        )

    # ------------------------------------------------------------------------- one partition

    def _is_stored(self, captured: CapturedPartition) -> bool:
        """Return whether an earlier backup contains all batches of a partition."""
        if captured.known is not None or captured.partition.topic == CLUSTER_METADATA_TOPIC:
            return True
        earlier_backup = self._earlier_partitions.get((captured.partition, captured.topic_id))
        if earlier_backup is None:
            return False
        earlier_segments = {segment.base_offset: segment for segment in earlier_backup.segments}
        return all(log.is_stored_as(earlier_segments.get(log.base_offset)) for log in captured.logs)

    def _store_or_skip(
        self, captured: CapturedPartition, uploads: ChunkUploader
    ) -> PartitionUploader | None:
        del self._capture.partitions[captured.partition]
        try:
            return self._store_partition(captured, uploads)
        except SkippedError as error:
            self._capture.skipped[captured.partition] = error
            return None
        finally:
            captured.close()

    def _store_partition(
        self, captured: CapturedPartition, uploads: ChunkUploader
    ) -> PartitionUploader | None:
        """Read a partition and start to upload its chunks; None if the partition was deleted."""
        is_compacted = self._is_compacted(captured)
        if captured.known is not None:
            uploader = PartitionUploader(
                captured, captured.known, self._bandwidth, is_compacted=is_compacted
            )
            uploader.keep(captured.known)
            return uploader
        earlier_backup = self._find_earlier(captured)
        is_stored = self._is_stored(captured)
        high_watermark = None
        if not is_stored:
            if not self._still_exists(captured):
                return None
            high_watermark = self._high_watermark(captured)
        elif earlier_backup is not None and captured.partition.topic != CLUSTER_METADATA_TOPIC:
            high_watermark = earlier_backup.high_watermark
        uploader = PartitionUploader(
            captured,
            earlier_backup,
            self._bandwidth,
            is_compacted=is_compacted,
            high_watermark=high_watermark,
        )
        existing_names: set[str] = set()
        if earlier_backup is not None and not is_stored:
            existing_names = {chunk.object_name for chunk in earlier_backup.chunks}
        log_bytes = sum(log.end_bytes for log in captured.logs)
        covered_bytes = (
            sum(segment.covered_bytes for segment in earlier_backup.segments)
            if earlier_backup
            else 0
        )
        if earlier_backup is None or log_bytes - covered_bytes > _MIN_LISTING_BYTES:
            existing_names |= self.repository.list_reusable_names(uploader.folder)
        damaged_names = self._damaged_names.get(uploader.folder, set())
        existing_names -= damaged_names
        uploader.read(lambda batch_range: uploads.put(uploader.folder, existing_names, batch_range))
        if damaged_names:
            uploader.put_damaged_again(damaged_names, partial(put_object, self.repository))
        for name, data in captured.files.items():
            kept_file = KeptFile(name, *content_of(data))
            uploader.files.append(kept_file)
            is_stored = earlier_backup is not None and kept_file in earlier_backup.files
            if not is_stored or kept_file.object_name in damaged_names:
                put_object(self.repository, f"{uploader.folder}/{kept_file.object_name}", data)
                uploader.new_bytes += len(data)
        return uploader

    def _find_earlier(self, captured: CapturedPartition) -> PartitionBackup | None:
        """Return a partition from an earlier backup of this broker or of another broker."""
        key = captured.partition, captured.topic_id
        if key in self._earlier_partitions or captured.partition.topic == CLUSTER_METADATA_TOPIC:
            return self._earlier_partitions.get(key)
        if self._replica_partitions is None:
            self._replica_partitions = {}
            newest = {
                node_id: backup_id
                for backup_id, brokers in self.repository.brokers_by_backup().items()
                for node_id in brokers
                if node_id != self.broker.node_id
            }
            for node_id, backup_id in sorted(newest.items(), key=itemgetter(1)):
                with suppress(MissingManifestError):  # The manifest has just expired.
                    manifest = self.repository.read_base_manifest(backup_id, node_id)
                    for partition in manifest.partitions:
                        # This broker's files have other inodes than the other broker's, so they are
                        # not compared.
                        self._replica_partitions[partition.topic_partition, partition.topic_id] = (
                            msgspec.structs.replace(partition, segments=(), seen_directory=None)
                        )
        return self._replica_partitions.get(key)

    def _finish_partition(self, uploader: PartitionUploader) -> None:
        """Wait for the uploads of a partition, and add the partition to the manifest."""
        captured, leader = uploader.captured, self._leader(uploader.captured)
        partition_backup = uploader.finish(
            is_leader=None if leader is None else leader == self.broker.node_id and self.is_running,
            start_offset=self._log_start_checkpoints[captured.directory].find_offset(
                captured, must_be_later=self._is_locked
            )
            or 0,
            cleaner_offset=self._cleaner_checkpoints[captured.directory].find_offset(
                captured, must_be_later=self._is_locked
            ),
        )
        damaged_names = self._damaged_names.get(uploader.folder, set())
        if damaged_names:
            object_names = {stored_object.object_name for stored_object in partition_backup.objects}
            self.repository.unmark_damaged(
                uploader.folder, damaged_names & object_names - uploader.lost_objects
            )
        for name in sorted(uploader.lost_objects):
            _LOGGER.warning(
                "damaged object %s/%s/%s cannot be stored again: its batches are not in the log",
                *(self.repository.root, uploader.folder, name),
            )
        self._stored_partitions.append(partition_backup)
        self._rows.append(uploader.report_row(partition_backup))

    def _skipped_partitions(self) -> Iterator[SkippedPartition]:
        """Yield the skipped partitions, and add their rows to the report."""
        previous_counts = {
            (skipped_partition.topic, skipped_partition.partition): skipped_partition.backups
            for skipped_partition in (self.previous.skipped if self.previous else ())
        }
        for partition, error in sorted(self._capture.skipped.items()):
            backups = previous_counts.get((partition.topic, partition.partition), 0) + 1
            status = BackupStatus.UNREADABLE if error.is_fault else BackupStatus.SKIPPED
            self._rows.append(
                BackedUpPartition(
                    partition.topic,
                    partition.partition,
                    None,
                    status,
                    error.reason,
                    backups_skipped=backups,
                    retriable=error.retriable,
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

    def _high_watermark(self, captured: CapturedPartition) -> int | None:
        if self._high_watermarks.source is Source.LOG_END:
            return None
        offset = self._high_watermarks.offsets.get(captured.partition)
        if offset is None:
            raise SkippedError("the partition has no high watermark yet")
        return offset

    def _still_exists(self, captured: CapturedPartition) -> bool:
        """Return whether a partition still exists, possibly in another directory."""
        try:
            if captured.is_same_directory(os.stat(captured.path)):
                return True
        except OSError:
            pass
        name = captured.partition.directory_name
        candidates = [os.path.join(path, name) for path in self.broker.paths]
        return any(_has_topic_id(candidate, captured.topic_id) for candidate in candidates)

    def _leader(self, captured: CapturedPartition) -> int | None:
        if self._cluster is None:
            return None
        topic = self._cluster.topics.get(captured.topic_id)
        partition = None if topic is None else topic.partitions.get(captured.partition.partition)
        return None if partition is None else partition.leader

    def _is_compacted(self, captured: CapturedPartition) -> bool:
        topic = captured.partition.topic
        if topic == CLUSTER_METADATA_TOPIC:
            return False
        if topic in COMPACTED_INTERNAL_TOPICS:
            return True
        properties = self._request.config.properties
        cluster = self._cluster or ClusterImage()
        policy = cluster.cleanup_policy(topic, properties, self.broker.node_id)
        if policy is None and self._cluster is None:
            cleaner_checkpoint = self._cleaner_checkpoints[captured.directory]
            return (
                cleaner_checkpoint.find_offset(captured, must_be_later=self._is_locked) is not None
            )
        return "compact" in (policy or "")

    def _read_cluster(self) -> ClusterImage | None:
        """Return the cluster image from the metadata log; None without a metadata log."""
        log_paths = [os.path.join(path, METADATA_LOG) for path in self.broker.paths]
        log_paths = [path for path in log_paths if os.path.isdir(path)]
        for attempt in range(_METADATA_ATTEMPTS if log_paths else 0):
            if attempt:
                time.sleep(_METADATA_PAUSE_S)
            try:
                metadata = read_metadata(
                    log_paths[:1],
                    budget=shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES),
                    topics=(CLUSTER_METADATA_TOPIC,),
                    recovers=True,
                    may_grow=True,
                )
                # The broker may delete log files while they are read.
                for fault in filter(is_retriable, metadata.faults.first):
                    raise fault
            except (InputError, ReadError) as error:
                if attempt + 1 == _METADATA_ATTEMPTS and is_retriable(error):
                    raise
            else:
                return metadata.cluster
        return None


def _has_topic_id(directory: str, topic_id: str) -> bool:
    try:
        return read_topic_id(directory) == topic_id
    except KafkaIndexError:
        return False

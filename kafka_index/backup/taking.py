"""One run of one broker: what it has is looked at, cut, read from open files, and committed.

The order is that of `Taking`'s methods, which `agent.take` calls:

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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Self

import msgspec

from kafka_index.backup.cut import COORDINATOR_TOPICS, Cutting
from kafka_index.backup.high_watermarks import (
    BrokerCheckpoint,
    HighWatermarks,
    Replacements,
    Source,
    ask_high_watermarks,
    is_held,
)
from kafka_index.backup.logs import LeftOutError
from kafka_index.backup.looks import CutPartition, Looked
from kafka_index.backup.pieces import Uploads, put_object
from kafka_index.backup.politeness import Bandwidth
from kafka_index.backup.request import BackupRequest, Broker
from kafka_index.backup.result import BackedUpPartition, BackupResult, BackupStatus
from kafka_index.backup.storing import Storing
from kafka_index.dump.small_files import read_topic_id
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import (
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    COMPACTED_INTERNAL_TOPICS,
    LOG_START_CHECKPOINT,
    METADATA_LOG,
    TopicPartition,
)
from kafka_index.layout.times import now_ms
from kafka_index.metadata import read_metadata
from kafka_index.metadata.cluster_image import ClusterImage
from kafka_index.records.decompression import shared_budget
from kafka_index.storage.paths import absolute_path, refuse_overlap, repository_of
from kafka_index.stores.backup.manifest import (
    Cut,
    KeptFile,
    Manifest,
    Missed,
    PartitionBackup,
    content_of,
    partition_folder,
)
from kafka_index.stores.backup.repository import MissingManifestError

# From so many bytes on, objects are looked for that a killed run has left.
_WORTH_LISTING_BYTES = 1 << 20
_LOGGER = logging.getLogger(__name__)
_METADATA_READS = 20
_BETWEEN_READS_S = 0.2
_UPLOAD_THREADS = 4


class Taking:
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
        self._is_held = any(map(is_held, self.broker.paths))
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

    def _is_stored(self, found: CutPartition) -> bool:
        """Return whether an earlier run has stored all of a partition."""
        if found.known is not None or found.partition.topic == CLUSTER_METADATA_TOPIC:
            return True
        earlier = self._earlier.get((found.partition, found.topic_id))
        if earlier is None:
            return False
        seen = {each.base_offset: each for each in earlier.segments}
        return all(log.is_as(seen.get(log.base_offset)) for log in found.logs)

    def _store_or_miss(self, found: CutPartition, uploads: Uploads) -> Storing | None:
        del self._cutting.partitions[found.partition]
        try:
            return self._store(found, uploads)
        except LeftOutError as error:
            self._cutting.left_out[found.partition] = error
            return None
        finally:
            found.close()

    def _store(self, found: CutPartition, uploads: Uploads) -> Storing | None:
        """Read a partition and hand its pieces to uploads; None if it was deleted meanwhile."""
        is_compacted = self._is_compacted(found)
        if found.known is not None:
            stored = Storing(found, found.known, self._bandwidth, is_compacted=is_compacted)
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
        stored = Storing(
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

    def _earlier_of(self, found: CutPartition) -> PartitionBackup | None:
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

    def _finish(self, stored: Storing) -> None:
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

    def _high_watermark(self, found: CutPartition) -> int | None:
        if self._high_watermarks.source is Source.LOG_END:
            return None
        offset = self._high_watermarks.offsets.get(found.partition)
        if offset is None:
            raise LeftOutError("it has no high watermark yet")
        return offset

    def _is_there(self, found: CutPartition) -> bool:
        """Return whether a partition was not deleted; it may have moved."""
        try:
            if found.is_at(os.stat(found.path)):
                return True
        except OSError:
            pass
        name = found.partition.directory_name
        others = [os.path.join(path, name) for path in self.broker.paths]
        return any(_has_id(other, found.topic_id) for other in others)

    def _leader(self, found: CutPartition) -> int | None:
        if self._cluster is None:
            return None
        topic = self._cluster.topics.get(found.topic_id)
        partition = None if topic is None else topic.partitions.get(found.partition.partition)
        return None if partition is None else partition.leader

    def _is_compacted(self, found: CutPartition) -> bool:
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

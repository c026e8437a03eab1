"""The capture of the partitions of data directories, group by group.

All partitions are inspected before the first is captured. The capture of a partition is another
inspection, which takes microseconds unless its directory has changed since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from kafka_index.commands.backup.captured_log import SkippedError
from kafka_index.commands.backup.low_impact_io import open_noatime
from kafka_index.commands.backup.partition_inspector import (
    InspectedPartitions,
    PartitionInspector,
    RemovedError,
    attempts,
    directory_version,
)
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    parse_partition_directory,
)
from kafka_index.core.fs.backup.manifest import PartitionBackup

#: The topics that are captured first, in this order.
COORDINATOR_TOPICS = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)


class LogCapture:
    """The partitions of data directories, inspected and then captured, group by group.

    `known` is for `PartitionInspector`. `inspected` has the partitions that an earlier backup of
    this process inspected and other brokers stored. In an unchanged directory only the last log is
    inspected, and the files that the log cleaner may replace.
    """

    def __init__(
        self,
        directories: Sequence[str],
        is_requested: Callable[[str], bool],
        known: Mapping[TopicPartition, PartitionBackup],
        inspected: InspectedPartitions | None = None,
    ) -> None:
        self._directories = directories
        self._is_requested = is_requested
        self._inspector = PartitionInspector(directories, known)
        self._parsed: dict[str, TopicPartition | None] = {}
        # The newest listing, and the versions of the directories if none changed meanwhile.
        self._listed: list[tuple[TopicPartition, int, int]] = []
        self._listed_at: list[tuple[int, int, int] | None] | None = None
        self._inspected = inspected or {}
        self.partitions: InspectedPartitions = {}
        self.skipped: dict[TopicPartition, SkippedError] = {}

    def close(self) -> None:
        """Close all logs."""
        for found in (*self._inspected.values(), *self.partitions.values()):
            found.close()

    def inspect(self) -> None:
        """Inspect all partitions: their batches are older than every capture."""
        earlier, self._inspected = self._inspected, {}
        for partition, directory in self._places(lambda _: True).items():
            # A partition that cannot be inspected now may be captured a moment later.
            with suppress(SkippedError, RemovedError):
                found = self._inspector.inspect(partition, directory, earlier.get(partition))
                for log in found.logs:
                    log.settled_bytes = log.end_bytes
                self._inspected[partition] = found
        self.skipped.clear()

    def capture(self, topics: Collection[str] = (), *, others_than: Collection[str] = ()) -> None:
        """Capture the partitions of some topics, or of all other topics."""

        def is_selected(topic: str) -> bool:
            return topic in topics or (bool(others_than) and topic not in others_than)

        for partition, directory in self._places(is_selected).items():
            try:
                before = self._inspected.pop(partition, None)
                self.partitions[partition] = self._inspector.inspect(partition, directory, before)
            except SkippedError as error:
                self.skipped[partition] = error
            except RemovedError:
                # A deleted partition may be omitted; it may also have moved, or be created again.
                if self._is_back(partition):
                    self.skipped[partition] = SkippedError("it was moved during the capture")

    def _is_back(self, partition: TopicPartition) -> bool:
        name = partition.directory_name
        return any(os.path.isdir(os.path.join(each, name)) for each in self._directories)

    def _places(self, is_selected: Callable[[str], bool]) -> dict[TopicPartition, int]:
        """Return the directories of partitions, from two equal listings or one atomic listing.

        The listing is repeated while a partition is in two directories, or in only one of two
        listings. If that does not end, the partition is skipped.
        """
        before = last = None
        for _ in attempts(at_once=2):
            now = self._list(is_selected)
            is_certain = self._listed_at is not None or now == before
            if is_certain and all(len(each) == 1 for each in now.values()):
                break
            before, last = now, before
        else:
            for partition, each in now.items():
                if len(each) > 1 or (last or {}).get(partition) != each:
                    self.skipped[partition] = SkippedError(
                        "it was created or moved during the capture"
                    )
        return {
            partition: next(iter(each))[0]
            for partition, each in sorted(now.items(), key=_order)
            if partition not in self.skipped
        }

    def _list(
        self, is_selected: Callable[[str], bool]
    ) -> dict[TopicPartition, set[tuple[int, int]]]:
        """Return directories and inodes of the live partitions.

        The directories are listed again only if one has changed since the newest listing.
        """
        at = self._versions()
        if at is None or at != self._listed_at:
            self._listed = [
                (partition, number, inode)
                for number, path in enumerate(self._directories)
                for name, inode in _entries(path)
                if (partition := self._partition_named(name)) is not None
            ]
            self._listed_at = at if at == self._versions() else None
        found: dict[TopicPartition, set[tuple[int, int]]] = {}
        for partition, number, inode in self._listed:
            if is_selected(partition.topic):
                found.setdefault(partition, set()).add((number, inode))
        return found

    def _partition_named(self, name: str) -> TopicPartition | None:
        """Return the requested partition whose directory has a name; None for other directories."""
        if name not in self._parsed:
            partition = parse_partition_directory(name)
            is_requested = partition is not None and self._is_requested(partition.topic)
            self._parsed[name] = partition if is_requested else None
        return self._parsed[name]

    def _versions(self) -> list[tuple[int, int, int] | None] | None:
        """Return the versions of the directories; None if one may change with the same ctime."""
        now_ns = time.time_ns()
        try:
            found = [directory_version(os.stat(path), now_ns) for path in self._directories]
        except OSError:
            return None
        return None if None in found else found


def _order(found: tuple[TopicPartition, object]) -> tuple[int, str, int]:
    """Return the sort key of a capture: coordinators' topics first, the metadata log last."""
    topic, partition = found[0].topic, found[0].partition
    if topic in COORDINATOR_TOPICS:
        return COORDINATOR_TOPICS.index(topic), topic, partition
    return len(COORDINATOR_TOPICS) + (topic == CLUSTER_METADATA_TOPIC), topic, partition


def _entries(path: str) -> list[tuple[str, int]]:
    """Return the names and inodes of the directories in a data directory."""
    try:
        descriptor = open_noatime(path, flags=os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                return [(each.name, each.inode()) for each in entries if each.is_dir()]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error

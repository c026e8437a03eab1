"""The cut: the partitions of data directories as they are at a moment, group by group.

All are looked at before anything is cut. The cut of a partition is another look, which takes
microseconds unless its directory has changed since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from kafka_index.commands.backup.captured_log import SkippedError
from kafka_index.commands.backup.low_impact_io import open_noatime
from kafka_index.commands.backup.partition_inspector import (
    Looked,
    PartitionInspector,
    RemovedError,
    looks,
    seen_state,
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

#: The topics that are cut first, in this order.
COORDINATOR_TOPICS = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)


class Cutting:
    """The partitions of data directories, looked at and then cut, group by group.

    `known` is for `PartitionInspector`. `looked` is what an earlier run of this process has looked
    at, and others have stored: of an unchanged directory only the last log and the files that a
    cleaner may replace are inspected.
    """

    def __init__(
        self,
        directories: Sequence[str],
        is_wanted: Callable[[str], bool],
        known: Mapping[TopicPartition, PartitionBackup],
        looked: Looked | None = None,
    ) -> None:
        self._directories = directories
        self._is_wanted = is_wanted
        self._looks = PartitionInspector(directories, known)
        self._parsed: dict[str, TopicPartition | None] = {}
        # The newest listing, and what the directories were when it was made, if that was one
        # moment for all of them.
        self._listed: list[tuple[TopicPartition, int, int]] = []
        self._listed_at: list[tuple[int, int, int] | None] | None = None
        self._looked = looked or {}
        self.partitions: Looked = {}
        self.left_out: dict[TopicPartition, SkippedError] = {}

    def close(self) -> None:
        """Close all logs."""
        for found in (*self._looked.values(), *self.partitions.values()):
            found.close()

    def look(self) -> None:
        """Look at all partitions: what they have now is older than all that is cut."""
        earlier, self._looked = self._looked, {}
        for partition, directory in self._places(lambda _: True).items():
            # A partition that cannot be looked at now may be cut a moment later.
            with suppress(SkippedError, RemovedError):
                found = self._looks.again(partition, directory, earlier.get(partition))
                for log in found.logs:
                    log.settled_bytes = log.end_bytes
                self._looked[partition] = found
        self.left_out.clear()

    def cut(self, topics: Collection[str] = (), *, others_than: Collection[str] = ()) -> None:
        """Cut the partitions of some topics, or those of all but some."""

        def is_now(topic: str) -> bool:
            return topic in topics or (bool(others_than) and topic not in others_than)

        for partition, directory in self._places(is_now).items():
            try:
                before = self._looked.pop(partition, None)
                self.partitions[partition] = self._looks.again(partition, directory, before)
            except SkippedError as error:
                self.left_out[partition] = error
            except RemovedError:
                # In the run or not, both are right; but it may have moved, or be another already.
                if self._is_back(partition):
                    self.left_out[partition] = SkippedError("it was moved while it was cut")

    def _is_back(self, partition: TopicPartition) -> bool:
        name = partition.directory_name
        return any(os.path.isdir(os.path.join(each, name)) for each in self._directories)

    def _places(self, is_now: Callable[[str], bool]) -> dict[TopicPartition, int]:
        """Return the directories of partitions by two listings that agree, or one of one moment.

        A partition that is in two directories, or is there in one listing alone, is asked for
        again; if that does not end, it is left out.
        """
        before = last = None
        for _ in looks(at_once=2):
            now = self._list(is_now)
            is_certain = self._listed_at is not None or now == before
            if is_certain and all(len(each) == 1 for each in now.values()):
                break
            before, last = now, before
        else:
            for partition, each in now.items():
                if len(each) > 1 or (last or {}).get(partition) != each:
                    self.left_out[partition] = SkippedError("it was created or moved meanwhile")
        return {
            partition: next(iter(each))[0]
            for partition, each in sorted(now.items(), key=_order)
            if partition not in self.left_out
        }

    def _list(self, is_now: Callable[[str], bool]) -> dict[TopicPartition, set[tuple[int, int]]]:
        """Return directories and inodes of the live partitions, by one listing of each.

        The newest listing does while no directory has changed since.
        """
        at = self._moments()
        if at is None or at != self._listed_at:
            self._listed = [
                (partition, number, inode)
                for number, path in enumerate(self._directories)
                for name, inode in _entries(path)
                if (partition := self._partition_named(name)) is not None
            ]
            self._listed_at = at if at == self._moments() else None
        found: dict[TopicPartition, set[tuple[int, int]]] = {}
        for partition, number, inode in self._listed:
            if is_now(partition.topic):
                found.setdefault(partition, set()).add((number, inode))
        return found

    def _partition_named(self, name: str) -> TopicPartition | None:
        """Return the wanted partition whose directory has a name; None for other directories."""
        if name not in self._parsed:
            partition = parse_partition_directory(name)
            is_wanted = partition is not None and self._is_wanted(partition.topic)
            self._parsed[name] = partition if is_wanted else None
        return self._parsed[name]

    def _moments(self) -> list[tuple[int, int, int] | None] | None:
        """Return what the data directories are; None if one may change without another ctime."""
        now_ns = time.time_ns()
        try:
            found = [seen_state(os.stat(path), now_ns) for path in self._directories]
        except OSError:
            return None
        return None if None in found else found


def _order(found: tuple[TopicPartition, object]) -> tuple[int, str, int]:
    """Return the place of a partition in a cut: coordinators first, the metadata log last."""
    topic, partition = found[0].topic, found[0].partition
    if topic in COORDINATOR_TOPICS:
        return COORDINATOR_TOPICS.index(topic), topic, partition
    return len(COORDINATOR_TOPICS) + (topic == CLUSTER_METADATA_TOPIC), topic, partition


def _entries(path: str) -> list[tuple[str, int]]:
    """Return the names and inodes of the directories in a data directory."""
    try:
        held = open_noatime(path, flags=os.O_DIRECTORY)
        try:
            with os.scandir(held) as entries:
                return [(each.name, each.inode()) for each in entries if each.is_dir()]
        finally:
            os.close(held)
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error

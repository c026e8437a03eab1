"""The checkpoints of a broker, and its high watermarks.

A running broker writes high watermarks to ``replication-offset-checkpoint`` every five seconds, in
each data directory. It collects all values before it writes them. So the first replacement of the
file after a capture may contain older values; the second cannot.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka_index.commands.backup.low_impact_io import open_noatime, read_noatime
from kafka_index.commands.backup.partition_inspector import CapturedPartition
from kafka_index.commands.backup.result import Source
from kafka_index.core.errors import InputError
from kafka_index.core.format.checkpoints import parse_offset_checkpoint
from kafka_index.core.format.integers import INT64_MAX, parse_java_integer
from kafka_index.core.format.names import (
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    INTERNAL_TOPICS,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.core.format.times import now_ms

#: The setting for the interval of checkpoints, and its default.
INTERVAL_SETTING = "replica.high.watermark.checkpoint.interval.ms"
DEFAULT_INTERVAL_MS = 5000


def checkpoint_interval_ms(properties: Mapping[str, str] | None) -> int:
    """Return the time between two writes of the broker's high watermarks."""
    given = parse_java_integer((properties or {}).get(INTERVAL_SETTING, ""), INT64_MAX)
    return given if given is not None and given > 0 else DEFAULT_INTERVAL_MS


# The wait for two replacements ends after so many intervals, if a broker has locked the directory
# and may be busy, and otherwise.
_INTERVALS_HELD, _INTERVALS = 12, 3
_POLL_S = 0.05
# A response takes milliseconds, unless a topic was deleted concurrently.
_ASKED_MS = 5000
_MS_NS = 1_000_000

# struct flock of Linux on 64 bits: type, whence, start, length, process.
_FLOCK = struct.Struct("hh4xqqi4x")

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerCheckpoint:
    """An offset checkpoint of one data directory, and the time at which it was written."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    mtime_ns: int = 0

    @classmethod
    def read(cls, directory: str, name: str) -> BrokerCheckpoint:
        """Read a checkpoint; empty if it does not exist, or a broker could not read it."""
        path = os.path.join(directory, name)
        try:
            data, found = read_noatime(path)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
        try:
            return cls(parse_offset_checkpoint(data.decode(), path=path), found.st_mtime_ns)
        except (InputError, UnicodeDecodeError):
            return cls()

    def of(self, partition: CapturedPartition, *, must_be_later: bool) -> int | None:
        """Return the entry of a partition.

        With `must_be_later`, None if the entry may be of an earlier topic with the same name.
        """
        is_later = not must_be_later or self.mtime_ns > partition.id_ns
        return self.offsets.get(partition.partition) if is_later else None


def is_locked(directory: str) -> bool:
    """Return whether a broker on this machine has locked a data directory, without locking it."""
    try:
        descriptor = open_noatime(os.path.join(directory, BROKER_LOCK))
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class HighWatermarks:
    """High watermarks, their source, and their time."""

    offsets: Mapping[TopicPartition, int]
    source: Source
    time_ms: int


class CheckpointWatcher:
    """Watches the checkpoints of data directories until each has been replaced twice.

    A broker writes no checkpoint in a directory without partitions, such as that of its metadata
    log. So the directories are given with the paths of their partitions, and a directory is only
    watched while one of these exists.
    """

    def __init__(
        self, partitions: Mapping[str, Sequence[str]], interval_ms: int = DEFAULT_INTERVAL_MS
    ) -> None:
        self._partitions = partitions
        self._interval_s = interval_ms / 1000
        self._last = {each: _identity(each) for each in partitions}
        self._counts = dict.fromkeys(partitions, 0)

    def wait(self) -> HighWatermarks:
        """Wait for the second replacement of each checkpoint, or for the timeout.

        Raises `InputError` if a checkpoint cannot be read.
        """
        began = time.monotonic()
        is_running = any(map(is_locked, self._partitions))
        timeout_s = (_INTERVALS_HELD if is_running else _INTERVALS) * self._interval_s
        while True:
            passed_s = time.monotonic() - began
            if all(os.path.exists(os.path.join(each, CLEAN_SHUTDOWN)) for each in self._partitions):
                return HighWatermarks({}, Source.LOG_END, now_ms())
            if self._are_replaced(passed_s):
                return self.read(Source.CHECKPOINT)
            if passed_s > timeout_s:
                return self.read(Source.OLD_CHECKPOINT)
            time.sleep(_POLL_S)

    def _are_replaced(self, passed_s: float) -> bool:
        for directory in self._partitions:
            now = _identity(directory)
            if now is not None and now != self._last[directory]:
                self._counts[directory] += 1
                self._last[directory] = now
        late = [each for each, count in self._counts.items() if count < 2]
        if passed_s > 2 * self._interval_s:
            late = [each for each in late if any(map(os.path.isdir, self._partitions[each]))]
        return not late

    def read(self, source: Source) -> HighWatermarks:
        """Return the current content of the checkpoints; an old one has the time of its file."""
        offsets: dict[TopicPartition, int] = {}
        time_ms = now_ms()
        for directory in self._partitions:
            checkpoint = BrokerCheckpoint.read(directory, REPLICATION_CHECKPOINT)
            if source is Source.OLD_CHECKPOINT and checkpoint.offsets:
                time_ms = min(time_ms, checkpoint.mtime_ns // _MS_NS)
            for partition, offset in checkpoint.offsets.items():
                # A partition that moved is in both; its high watermark only increases.
                offsets[partition] = max(offset, offsets.get(partition, 0))
        return HighWatermarks(offsets, source, time_ms)


def _identity(directory: str) -> tuple[int, int, int] | None:
    path = os.path.join(directory, REPLICATION_CHECKPOINT)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


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
            "the library for requests to brokers is not installed",
            path=bootstrap_server,
            hint="pip install 'kafka-index[backup]'",
        ) from error
    try:
        return asyncio.run(_list_offsets(bootstrap_server, partitions))
    except (KafkaError, OSError, ValueError) as error:
        _LOGGER.warning(
            "%s does not respond (%s); waiting for its checkpoint", bootstrap_server, error
        )
        return None


async def _list_offsets(
    bootstrap_server: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    from aiokafka import AIOKafkaConsumer  # noqa: PLC0415, because it is optional
    from aiokafka import TopicPartition as Key  # noqa: PLC0415

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_server, request_timeout_ms=_ASKED_MS)
    try:
        await consumer.start()
        # end_offsets would wait for topics that were deleted since the capture.
        topics = await consumer.topics()
        keys = {
            Key(each.topic, each.partition): each
            for each in partitions
            if each.topic in topics or each.topic in INTERNAL_TOPICS
        }
        return {keys[key]: end for key, end in (await consumer.end_offsets([*keys])).items()}
    finally:
        await consumer.stop()

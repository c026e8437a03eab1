"""A log that grows by Kafka's own ``UnifiedLog``, and beside it one of ours from the same bytes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.log.append.incoming_batches import AppendOrigin, Isolation
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.append.settings import LogSettings
from tests.support.golden_segments import PARTITION

from .kafka_reference import KafkaRefusal
from .reference_log import ReferenceLog, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from .kafka_reference import KafkaReference

START_MS = 1_700_000_000_000


class LiveLog:
    """Kafka's log alone; every batch is an append, but for those of a follower."""

    def __init__(self, log: ReferenceLog, scratch: Path) -> None:
        self._log = log
        self._append = scratch / "append"
        self.set_clock(START_MS)

    @property
    def log_end_offset(self) -> int:
        return self._log.state().log_end_offset

    def set_clock(self, now_ms: int) -> None:
        """Set the time."""
        self.now_ms = now_ms
        self._log.set_clock(now_ms)

    def append_as_leader(
        self, batches: Sequence[bytes], leader_epoch: int, origin: str = "CLIENT"
    ) -> None:
        """Append batches, each by an append."""
        for batch in batches:
            self._append.write_bytes(batch)
            self._log.append_as_leader(self._append, leader_epoch, origin)

    def append_as_follower(self, batches: bytes, leader_epoch: int) -> None:
        """Append batches as they are, by one append."""
        self._append.write_bytes(batches)
        self._log.append_as_follower(self._append, leader_epoch)

    def roll(self) -> None:
        """Begin a segment."""
        self._log.roll()


class ComparedLogs:
    """Kafka's log and ours; each method does the same to both.

    `settings` are the topic's, by Kafka's names.
    """

    def __init__(
        self, reference: KafkaReference, scratch: Path, settings: Mapping[str, object]
    ) -> None:
        self._reference = reference
        self._settings = settings
        self._folder = scratch / "growing"
        self._append = self._folder / "append"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._directories = self._folder / "kafka" / PARTITION, self._folder / "ours" / PARTITION
        for directory in self._directories:
            directory.parent.mkdir(parents=True)
        self.now_ms = START_MS
        self.open()

    def open(self, *, was_clean: bool = True) -> None:
        """Open both, after a clean shutdown or not."""
        directory = self._directories[0]
        self.kafka = load(
            self._reference, directory, clean=was_clean, now_ms=self.now_ms, settings=self._settings
        )
        self.ours = self._open_ours(was_clean=was_clean)

    def _open_ours(self, *, was_clean: bool) -> PartitionLogWriter:
        properties = {
            name.removeprefix("internal."): str(value) for name, value in self._settings.items()
        }
        return PartitionLogWriter(
            self._directories[1],
            LogSettings.of_properties(properties),
            was_clean=was_clean,
            clock=lambda: self.now_ms,
        )

    def reopen(self) -> None:
        """Close both, compare what is left, and open both again."""
        self.close()
        self.open()

    def close(self) -> None:
        """Close both and compare what is left."""
        self.kafka.close()
        self.ours.close()
        self.assert_same_files()

    def kill_kafkas_and_recover(self) -> bool:
        """Kill Kafka's, give ours the files it leaves, and let both recover them.

        Index files that are too small for a rebuild keep a broker from starting, and us from
        opening; returns whether both did.
        """
        self.ours.close()
        self.kafka.kill()
        kafkas, ours = self._directories
        shutil.rmtree(ours)
        shutil.copytree(kafkas, ours)
        try:
            self.open(was_clean=False)
        except KafkaRefusal:
            with pytest.raises(KafkaIndexError):
                self._open_ours(was_clean=False)
            return False
        return True

    @property
    def log_end_offset(self) -> int:
        return self.ours.log_end_offset

    def abandon(self) -> None:
        """Let go of ours; Kafka's goes with the next that is opened."""
        self.ours.close()

    def set_clock(self, now_ms: int) -> None:
        """Set the time of both."""
        self.now_ms = now_ms
        self.kafka.set_clock(now_ms)

    def append_as_leader(
        self, batches: Sequence[bytes], leader_epoch: int, origin: str = "CLIENT"
    ) -> None:
        """Append batches, Kafka by an append each."""
        for batch in batches:
            self._append.write_bytes(batch)
            self.kafka.append_as_leader(self._append, leader_epoch, origin)
        self.ours.append_as_leader(b"".join(batches), leader_epoch, origin=AppendOrigin[origin])

    def append_as_follower(self, batches: bytes, leader_epoch: int) -> None:
        """Append batches as they are, by one append."""
        self._append.write_bytes(batches)
        self.kafka.append_as_follower(self._append, leader_epoch)
        self.ours.append_as_follower(batches, leader_epoch)

    def assert_both_reject_as_leader(self, batch: bytes, origin: str = "CLIENT") -> None:
        """Both refuse a batch, and ours is as it was."""
        self._append.write_bytes(batch)
        self._assert_both_reject(
            lambda: self.kafka.append_as_leader(self._append, 0, origin),
            lambda: self.ours.append_as_leader(batch, 0, origin=AppendOrigin[origin]),
        )

    def assert_both_reject_as_follower(self, batches: bytes) -> None:
        """Both refuse batches, and ours is as it was."""
        self._append.write_bytes(batches)
        self._assert_both_reject(
            lambda: self.kafka.append_as_follower(self._append, 0),
            lambda: self.ours.append_as_follower(batches, 0),
        )

    def roll(self) -> None:
        """Begin a segment in both."""
        self.kafka.roll()
        self.ours.roll()

    def flush(self) -> None:
        """Make both durable."""
        self.kafka.flush()
        self.ours.flush()

    def truncate_to(self, offset: int) -> None:
        """Cut both."""
        self.kafka.truncate_to(offset)
        self.ours.truncate_to(offset)

    def assert_same_read(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> None:
        """Both read the same bytes, from the same place."""
        read = self.kafka.read(
            offset, max_bytes, min_one_message=min_one_message, isolation=isolation.name
        )
        result = self.ours.read(
            offset, max_bytes, isolation=isolation, min_one_message=min_one_message
        )
        assert read.aborted == tuple(result.aborted_transactions or ())
        if read.segment_base_offset is None:
            assert result.records == b""
            return
        assert read[:4] == (
            result.segment_base_offset,
            result.position_bytes,
            len(result.records),
            result.base_offset,
        )
        log = self._directories[0] / f"{read.segment_base_offset:020d}.log"
        assert read.position_bytes is not None
        assert log.read_bytes()[read.position_bytes :].startswith(result.records)

    def assert_same(self) -> None:
        """Both report the same about themselves, and have the same files."""
        state = self.kafka.state()
        ours = self.ours
        assert (ours.log_start_offset, ours.log_end_offset) == state[:2]
        assert ours.last_stable_offset == state.last_stable_offset
        bases = tuple(segment.base_offset for segment in ours.segments)
        assert bases == state.base_offsets
        epochs = [(entry.epoch, entry.start_offset) for entry in ours.leader_epochs]
        assert epochs == self.kafka.epochs()
        # An index file of a segment that was just begun is there once somebody has asked for it.
        self._assert_same_files(_without_new_indexes)

    def assert_same_files(self) -> None:
        """Both directories hold the same."""
        self._assert_same_files(dict)

    def _assert_same_files(self, of: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
        kafkas, ours = (of(_contents(directory)) for directory in self._directories)
        assert sorted(ours) == sorted(kafkas)
        for name, data in kafkas.items():
            assert ours[name] == data, name

    def _assert_both_reject(self, kafkas: Callable[[], object], ours: Callable[[], object]) -> None:
        self.ours.active_segment.growth()  # makes the index files, as Kafka's check does
        before = _contents(self._directories[1])
        refusals: list[Exception] = []
        for append in (kafkas, ours):
            try:
                append()
            except (KafkaRefusal, KafkaIndexError) as refusal:
                refusals.append(refusal)
        assert [type(one) is KafkaRefusal for one in refusals] == [True, False], refusals
        assert _contents(self._directories[1]) == before


def _contents(directory: Path) -> dict[str, bytes]:
    # A broker removes what is called deleted a minute later.
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if not path.name.endswith(".deleted")
    }


def _without_new_indexes(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith("index") or any(data)}

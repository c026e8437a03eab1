"""Index files that brokers wrote and rebuilt are those that we build, byte for byte.

Every segment is compared, rolled or not. No log was appended to after a restart, which is checked:
a broker forgets then how many bytes lie behind the last entry, and its next entries come elsewhere.
The last segments of a killed broker are the only ones that differ before its recovery: their files
end in zeros, and the time index may lack the entry that is made when a segment is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafka_index.layout.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafka_index.log import PartitionLog

from .commands import build
from .files import changed_logs, differences, last_logs, segments_by_partition
from .topics import FOLLOWED, KILLED, TOPICS

if TYPE_CHECKING:
    from pathlib import Path

    from .broker import Home
    from .conftest import Recovered, Written

#: An index file that is appended to has its largest size, in whole entries.
ROOM_BYTES = {OFFSET_INDEX_SUFFIX: 10_485_760, TIME_INDEX_SUFFIX: 10_485_756}
TIME_ENTRY_BYTES = 12


def test_every_topic_has_rolled_on_leader_and_follower(written: Written) -> None:
    for home in (written.leader, written.follower):
        segments = segments_by_partition(home.data)
        for topic in (*TOPICS, *FOLLOWED):
            for partition in range(topic.partitions):
                assert segments[f"{topic.name}-{partition}"] >= 2, (home, topic.name)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_files_of_a_live_broker_are_ours(written: Written, tmp_path: Path, role: str) -> None:
    home = written.leader if role == "leader" else written.follower
    build(home.data, tmp_path, written.config)
    assert not differences(home.data, tmp_path)


def test_files_of_a_live_broker_of_an_older_version_are_ours(
    written: Written, older: Home, tmp_path: Path
) -> None:
    assert set(segments_by_partition(older.data)) >= {f"{topic.name}-0" for topic in TOPICS}
    build(older.data, tmp_path, written.config)
    assert not differences(older.data, tmp_path)


def test_files_that_a_broker_rebuilds_from_logs_alone_are_ours(
    written: Written, rebuilt: Recovered, tmp_path: Path
) -> None:
    assert not changed_logs(rebuilt.before.data, rebuilt.after.data)
    build(rebuilt.before.data, tmp_path, written.config)
    assert not differences(rebuilt.after.data, tmp_path)


def test_compaction_took_records_away(written: Written) -> None:
    for topic in (*TOPICS, *FOLLOWED):
        for partition in range(topic.partitions if topic.is_compacted else 0):
            name = f"{topic.name}-{partition}"
            with PartitionLog.open(written.leader.data / name) as log:
                assert (
                    0 < written.digests["read_uncommitted"][name].records < 0.9 * log.log_end_offset
                ), name


def test_a_killed_broker_leaves_room_behind_the_last_entries_and_records(
    written: Written, killed: Recovered, tmp_path: Path
) -> None:
    rows = build(killed.before.data, tmp_path, written.config)
    in_room = {row["topic"] for row in rows if row["reason"] == "preallocated_tail"}
    assert in_room == {topic.name for topic in KILLED if "preallocate" in topic.settings}
    for log in last_logs(killed.before.data):
        for suffix, size_bytes in ROOM_BYTES.items():
            assert (killed.before.data / log.with_suffix(suffix)).stat().st_size == size_bytes


def test_files_of_a_killed_broker_are_ours_and_what_it_had_written_of_the_last_ones(
    written: Written, killed: Recovered, tmp_path: Path
) -> None:
    build(killed.before.data, tmp_path, written.config)
    last = last_logs(killed.before.data)
    assert not differences(killed.before.data, tmp_path, last)
    for log in last:
        for suffix, size_bytes in ROOM_BYTES.items():
            name = log.with_suffix(suffix)
            ours = (tmp_path / name).read_bytes()
            # The last entry of a time index is made when the segment is closed.
            without_last = ours[:-TIME_ENTRY_BYTES] if suffix == TIME_INDEX_SUFFIX else ours
            assert (killed.before.data / name).read_bytes() in {
                entries.ljust(size_bytes, b"\0") for entries in (ours, without_last)
            }, name


def test_files_that_a_broker_recovers_after_it_was_killed_are_ours(
    written: Written, killed: Recovered, tmp_path: Path
) -> None:
    assert not changed_logs(killed.before.data, killed.after.data)
    build(killed.before.data, tmp_path, written.config)
    assert not differences(killed.after.data, tmp_path)

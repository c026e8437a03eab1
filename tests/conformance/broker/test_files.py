"""We build the files that brokers wrote and rebuilt beside their logs, byte for byte.

Every segment is compared, rolled or not, with its indexes and snapshots, and the epochs of every
partition. No log was appended to after a restart, which is checked: a broker forgets then how many
bytes follow the last entry, and its next entries come elsewhere.

What a broker rebuilds has no exceptions. What it wrote has these:

- An epoch in which no record came yet is in its checkpoint alone (``differences``).
- Snapshots and transaction indexes of compacted topics, and snapshots below a moved log start
  (`is_written_only_by_live_brokers`).
- A follower may note a later last stable offset with an aborted transaction than its leader.
- When a broker is killed, the indexes of last segments end in zeros, the time index may lack the
  entry that is made when a segment is closed, and the snapshot at the log's end is not made yet.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import kafka_index
from kafka_index import build_indexes
from kafka_index.commands.verify.result import FileClass, FileKind
from kafka_index.core.format.names import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_partition_directory,
)
from kafka_index.core.format.records import ABORTED_TXN
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.state.snapshots import decode_snapshot
from kafka_index.core.startup.prediction import Verdict

from .files import (
    build,
    changed_logs,
    differences,
    last_logs,
    partition_files,
    segments_by_partition,
)
from .topics import FOLLOWED, KILLED, TOPICS, TRIMMED, TRIMMED_TO

if TYPE_CHECKING:
    from .broker import BrokerFolders
    from .conftest import Recovered, Written

#: An index file that is appended to has its largest size, in whole entries.
ROOM_BYTES = {OFFSET_INDEX_SUFFIX: 10_485_760, TIME_INDEX_SUFFIX: 10_485_756}
TIME_ENTRY_BYTES = 12
STATE_SUFFIXES = (SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)
COMPACTED = {topic.name for topic in (*TOPICS, *FOLLOWED) if topic.is_compacted}


def is_kept_after_compaction(name: Path) -> bool:
    """Whether a file holds producers and transactions that compaction may have removed.

    Snapshots and transaction indexes were written when the batches were there. Compaction removes
    batches of a producer, its last one in a segment and the first one of a transaction too.
    """
    return name.suffix in STATE_SUFFIXES and topic_of(name) in COMPACTED


def is_written_only_by_live_brokers(name: Path) -> bool:
    """Whether a live broker's file may differ from what its logs give.

    A snapshot from before the records that were deleted may, too: a broker drops it at its next
    start, where it would make none.
    """
    is_snapshot = name.suffix == SNAPSHOT_SUFFIX and topic_of(name) == TRIMMED.name
    is_before_start = is_snapshot and int(name.stem) <= TRIMMED_TO
    return is_before_start or is_kept_after_compaction(name)


def topic_of(name: Path) -> str:
    directory = parse_partition_directory(name.parent.name)
    assert directory is not None
    return directory.topic


def aborted(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), ABORTED_TXN)


def log_end(partition: Path) -> int:
    with PartitionLog.open(partition) as log:
        return log.log_end_offset


def test_every_topic_has_rolled_on_leader_and_follower(written: Written) -> None:
    for home in (written.leader, written.follower):
        segments = segments_by_partition(home.data)
        for topic in (*TOPICS, *FOLLOWED):
            for partition in range(topic.partitions):
                assert segments[f"{topic.name}-{partition}"] >= 2, (home, topic.name)


def test_files_of_a_live_leader_equal_built_files(written: Written, tmp_path: Path) -> None:
    build(written.leader.data, written.config, tmp_path)
    assert not differences(written.leader.data, tmp_path, is_written_only_by_live_brokers)


def test_files_of_a_live_leader_equal_files_built_with_its_metadata_settings(
    written: Written, tmp_path: Path
) -> None:
    leader = written.leader
    build_indexes([leader.data, leader.metadata], tmp_path)
    shutil.rmtree(tmp_path / "__cluster_metadata-0")
    assert not differences(leader.data, tmp_path, is_written_only_by_live_brokers)


def test_files_of_a_live_follower_equal_built_files(written: Written, tmp_path: Path) -> None:
    build(written.follower.data, written.config, tmp_path)

    def excluded(name: Path) -> bool:
        return name.suffix == TXN_INDEX_SUFFIX or is_written_only_by_live_brokers(name)

    assert not differences(written.follower.data, tmp_path, excluded)


def test_aborted_transactions_of_a_live_follower_equal_built_ones_except_last_stable_offsets(
    written: Written, tmp_path: Path
) -> None:
    # It appends several batches at once, and sees transactions that begin after a marker.
    build(written.follower.data, written.config, tmp_path)
    names = {*partition_files(written.follower.data, (TXN_INDEX_SUFFIX,))}
    names |= {*partition_files(tmp_path, (TXN_INDEX_SUFFIX,))}
    names = {name for name in names if not is_kept_after_compaction(name)}
    assert names
    for name in names:
        followers, ours = aborted(written.follower.data / name), aborted(tmp_path / name)
        for field in ("version", "producer_id", "first_offset", "last_offset"):
            assert followers[field].tolist() == ours[field].tolist(), name
        assert (followers["last_stable_offset"] >= ours["last_stable_offset"]).all(), name


def test_files_of_live_brokers_are_harmful_only_if_a_follower_hides_transactions(
    written: Written,
) -> None:
    leader, follower = written.leader, written.follower
    verified = kafka_index.verify([leader.data], metadata=leader.metadata)
    assert not verified.is_harmful, verified
    predicted = kafka_index.predict(leader.data, metadata=leader.metadata)
    assert predicted.verdict is Verdict.SAFE, predicted

    # A last stable offset passes over the transaction of its own producer that comes next
    # (``ProducerStateManager.lastStableOffset``), which searches then miss.
    verified = kafka_index.verify(follower.data)
    rows = [row for row in verified.findings if row.topic is not None]
    for row in rows:
        assert not row.harmful or row.kind in (FileKind.TXN_INDEX, FileKind.PARTITION), row
        if row.kind is FileKind.TXN_INDEX and row.file_class is FileClass.CORRUPT:
            assert row.harmful
            assert row.entry is not None
            entries = aborted(Path(row.path))
            hiding, hidden = entries[row.entry - 1], entries[row.entry]
            assert hiding["producer_id"] == hidden["producer_id"]
            assert hiding["last_stable_offset"] > hidden["first_offset"]
    unserved = filter(
        None, (partition.unserved for partition in kafka_index.predict(follower.data).partitions)
    )
    assert all("in the order of their transaction markers" in text for text in unserved)


def test_live_broker_keeps_producers_and_transactions_removed_by_compaction(
    written: Written, tmp_path: Path
) -> None:
    data = written.leader.data
    build(data, written.config, tmp_path)
    different = differences(data, tmp_path, lambda name: not is_kept_after_compaction(name))
    assert different
    for name in filter(is_kept_after_compaction, partition_files(tmp_path, STATE_SUFFIXES)):
        if name.suffix == SNAPSHOT_SUFFIX:
            ids = [
                decode_snapshot((at / name).read_bytes())["producer_id"] for at in (data, tmp_path)
            ]
        else:
            ids = [aborted(at / name)["last_offset"] for at in (data, tmp_path)]
        remembered, ours = (set(id_.tolist()) for id_ in ids)
        assert ours <= remembered, name


def test_files_of_a_live_older_broker_equal_built_files(
    written: Written, older_directory: BrokerFolders, tmp_path: Path
) -> None:
    assert set(segments_by_partition(older_directory.data)) >= {
        f"{topic.name}-0" for topic in TOPICS
    }
    build(older_directory.data, written.config, tmp_path)
    assert not differences(older_directory.data, tmp_path, is_written_only_by_live_brokers)


def test_files_rebuilt_by_a_broker_equal_built_files(
    written: Written, rebuilt: Recovered, tmp_path: Path
) -> None:
    assert not changed_logs(rebuilt.before.data, rebuilt.after.data)
    build(rebuilt.before.data, written.config, tmp_path)
    assert not differences(rebuilt.after.data, tmp_path)


def test_compaction_removed_records_of_the_test_topic(written: Written) -> None:
    for topic in (*TOPICS, *FOLLOWED):
        for partition in range(topic.partitions if topic.is_compacted else 0):
            name = f"{topic.name}-{partition}"
            with PartitionLog.open(written.leader.data / name) as log:
                assert (
                    0 < written.digests["read_uncommitted"][name].records < 0.9 * log.log_end_offset
                ), name


def test_killed_broker_leaves_preallocated_tails(
    written: Written, killed: Recovered, tmp_path: Path
) -> None:
    rows = build(killed.before.data, written.config, tmp_path)
    in_room = {row["topic"] for row in rows if row["reason"] == "preallocated_tail"}
    assert in_room == {topic.name for topic in KILLED if "preallocate" in topic.settings}
    for log in last_logs(killed.before.data):
        for suffix, size_bytes in ROOM_BYTES.items():
            assert (killed.before.data / log.with_suffix(suffix)).stat().st_size == size_bytes


def test_files_of_a_killed_broker_are_prefixes_of_built_files(
    written: Written, killed: Recovered, tmp_path: Path
) -> None:
    build(killed.before.data, written.config, tmp_path)
    last = last_logs(killed.before.data)
    at_close = {log.with_suffix(suffix) for log in last for suffix in ROOM_BYTES}
    at_close |= {
        log.with_name(f"{log_end(killed.before.data / log.parent):020d}{SNAPSHOT_SUFFIX}")
        for log in last
    }
    assert not differences(killed.before.data, tmp_path, at_close.__contains__)
    for log in last:
        for suffix, size_bytes in ROOM_BYTES.items():
            name = log.with_suffix(suffix)
            ours = (tmp_path / name).read_bytes()
            # The last entry of a time index is made when the segment is closed.
            without_last = ours[:-TIME_ENTRY_BYTES] if suffix == TIME_INDEX_SUFFIX else ours
            assert (killed.before.data / name).read_bytes() in {
                entries.ljust(size_bytes, b"\0") for entries in (ours, without_last)
            }, name


def test_files_recovered_by_a_killed_broker_equal_built_files(
    written: Written, killed: Recovered, tmp_path: Path
) -> None:
    assert not changed_logs(killed.before.data, killed.after.data)
    build(killed.before.data, written.config, tmp_path)
    assert not differences(killed.after.data, tmp_path)

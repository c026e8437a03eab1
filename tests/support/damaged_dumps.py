"""A dump of one partition, and each kind of damage to it."""

from __future__ import annotations

from pathlib import Path

from kafka_index.core.cluster.metadata.decoding import TOPIC_RESOURCE
from kafka_index.core.format.names import METADATA_LOG
from tests.support.metadata import cluster_record, log_batch, uuid_of, write_log
from tests.support.segments import batch, marker, record

NAME = "orders-0"
BASES = (0, 12, 24)
BATCH_SPAN = 4
VALUE = b"v"


def log_path(root: Path, base_offset: int) -> Path:
    return root / NAME / f"{base_offset:020d}.log"


def records_of(base_offset: int, *, magic: int = 2, producer_id: int = -1) -> bytes:
    """A batch of four records with the keys ``k<offset>``."""
    payload = b"".join(
        record(at, at, f"k{base_offset + at}".encode(), VALUE) for at in range(BATCH_SPAN)
    )
    times = [1000 + base_offset + at for at in range(BATCH_SPAN)]
    return batch(
        base_offset,
        BATCH_SPAN,
        timestamps=times,
        payload=payload,
        magic=magic,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 0,
        base_sequence=-1 if producer_id < 0 else 0,
        transactional=producer_id >= 0,
    )


def write_dump(root: Path) -> None:
    """A data directory with a topic that is not compacted: 36 records in three segments."""
    for base in BASES:
        starts = range(base, base + 12, BATCH_SPAN)
        write_log(root / NAME, *map(records_of, starts), base_offset=base)
    topic = cluster_record("TopicRecord", name="orders", topicId=uuid_of(7))
    policy = cluster_record(
        "ConfigRecord",
        resourceType=TOPIC_RESOURCE,
        resourceName="orders",
        name="cleanup.policy",
        value="delete",
    )
    partition = cluster_record(
        "PartitionRecord", topicId=uuid_of(7), partitionId=0, replicas=[1], isr=[1], leader=1
    )
    write_log(root / METADATA_LOG, log_batch(0, topic, policy, partition))
    (root / "meta.properties").write_text(f"version=1\ncluster.id={uuid_of(1)}\nnode.id=1\n")
    metadata = f"version: 0\ntopic_id: {uuid_of(7)}"
    (root / NAME / "partition.metadata").write_text(metadata)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x01
    path.write_bytes(data)


def remove_segment(root: Path) -> None:
    log_path(root, 12).unlink()


def remove_segment_of_unknown_topic(root: Path) -> None:
    log_path(root, 12).unlink()
    (root / METADATA_LOG / f"{0:020d}.log").unlink()
    (root / METADATA_LOG).rmdir()


def remove_batch(root: Path) -> None:
    log = log_path(root, 12)
    size = len(records_of(12))
    log.write_bytes(log.read_bytes()[:size] + log.read_bytes()[2 * size :])


def remove_last_segment(root: Path) -> None:
    log_path(root, 24).unlink()
    (root / "replication-offset-checkpoint").write_text("0\n1\norders 0 36\n")


def make_log_a_folder(root: Path) -> None:
    log_path(root, 12).unlink()
    log_path(root, 12).mkdir()


def damage_start(root: Path) -> None:
    flip(log_path(root, 0), len(records_of(0)) - 1)


def damage_middle(root: Path) -> None:
    flip(log_path(root, 12), len(records_of(12)) * 2 - 1)


def damage_last_batch(root: Path) -> None:
    flip(log_path(root, 24), log_path(root, 24).stat().st_size - 1)


def repeat_last_batch(root: Path) -> None:
    log = log_path(root, 24)
    log.write_bytes(log.read_bytes() + records_of(32))


def append_early_batch(root: Path) -> None:
    log = log_path(root, 24)
    log.write_bytes(log.read_bytes() + records_of(0))


def abort_transaction(root: Path) -> None:
    log = log_path(root, 24)
    end = marker(40, 5, 0, commit=False, timestamp=1040)
    log.write_bytes(log.read_bytes() + records_of(36, producer_id=5) + end)


def write_unknown_magic(root: Path) -> None:
    log = log_path(root, 24)
    log.write_bytes(log.read_bytes() + records_of(36, magic=3))


def garble_log_starts(root: Path) -> None:
    (root / "log-start-offset-checkpoint").write_text("garbage")


def garble_high_watermarks(root: Path) -> None:
    """A broker starts, and serves no partition."""
    (root / "replication-offset-checkpoint").write_text("0\n1\norders 0 x\n")


def garble_cleaner_offsets(root: Path) -> None:
    (root / "cleaner-offset-checkpoint").mkdir()


def garble_leader_epochs(root: Path) -> None:
    (root / NAME / "leader-epoch-checkpoint").write_text("0\n1\nepoch 0\n")


def reset_log_starts(root: Path) -> None:
    """A broker uses 0 for every log start (``LogManager.loadLogs``)."""
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 x\n")


def leave_intact(root: Path) -> None:
    assert log_path(root, 0).exists()

"""Findings in the dump of a real broker, intact and damaged."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_index import verify
from kafka_index.commands.verify.result import FileClass, FileKind, Finding, Verification
from kafka_index.commands.verify.settings import known_topics
from kafka_index.core.cluster.listing import DumpMetadata, list_logs
from kafka_index.core.cluster.metadata.decoding import ALL_BROKERS, BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_index.core.cluster.metadata.directory import read_cluster
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import METADATA_LOG
from kafka_index.core.log.state.snapshots import decode_snapshot, encode_snapshot
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import Outcome
from tests.support.metadata import cluster_record, log_batch, uuid_of, write_log
from tests.support.restoring import copy_dump

PARTITION = "app-logs-0"
PAYMENTS = "payments-0"
COMPACTED = "customer-profiles-0"
MARKER = ".kafka_cleanshutdown"
_HARMLESS = {FileClass.IDENTICAL, FileClass.EQUIVALENT, FileClass.INTACT, FileClass.EMPTY}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a broker that stopped cleanly, with a few partitions."""
    return copy_dump(tmp_path / "data", PARTITION, PAYMENTS, COMPACTED)


def verified(data: Path, *, fast: bool = False) -> Verification:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    result = verify([data], threads=1, fast=fast)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    return result


def metadata_of(folder: Path, topic_id: str, policy: str) -> Path:
    """Write a metadata log with the topic of `PARTITION`."""
    name = PARTITION.rpartition("-")[0]
    write_log(
        folder,
        log_batch(
            0,
            cluster_record("TopicRecord", name=name, topicId=topic_id),
            cluster_record(
                "ConfigRecord",
                resourceType=TOPIC_RESOURCE,
                resourceName=name,
                name="cleanup.policy",
                value=policy,
            ),
        ),
    )
    return folder


def findings(data: Path, *, fast: bool = False) -> list[Finding]:
    """Return the rows of files except for harmless ones."""
    result = verified(data, fast=fast)
    return [
        row
        for row in result.findings
        if row.kind is not FileKind.PARTITION and row.file_class not in _HARMLESS
    ]


def single_finding(data: Path) -> Finding:
    (row,) = findings(data)
    return row


def logs(data: Path, name: str = PARTITION) -> list[Path]:
    return sorted((data / name).glob("*.log"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_files_of_a_stopped_broker_are_valid(data: Path) -> None:
    result = verified(data)

    assert not result.is_harmful
    assert findings(data) == []
    assert [partition.lost for partition in result.partitions] == [()] * 3


def test_every_file_has_a_row(data: Path) -> None:
    result = verified(data)

    with_rows = {row.path for row in result.findings if row.kind is not FileKind.PARTITION}
    ignored = {"bootstrap.checkpoint"}
    assert with_rows == {
        str(path) for path in data.rglob("*") if path.is_file() and path.name not in ignored
    }


def test_wrong_checksum_is_reported_with_its_position_and_lost_offsets(data: Path) -> None:
    first = logs(data)[0]
    flip(first, first.stat().st_size - 1)

    result = verified(data)
    (one,) = [partition for partition in result.partitions if partition.topic == "app-logs"]
    (log,) = [row for row in result.findings if row.harmful and row.kind is FileKind.LOG]
    (lost,) = one.lost

    assert (log.path, log.file_class) == (str(first), FileClass.BAD_CRC)
    assert log.position_bytes == lost.position_bytes
    assert (lost.end_offset, lost.reason) == (1063, "bad_crc")
    assert lost.position_bytes + lost.size_bytes == first.stat().st_size


def test_headers_only_verification_misses_a_bad_checksum(data: Path) -> None:
    first = logs(data)[0]
    flip(first, first.stat().st_size - 1)

    assert findings(data, fast=True) == []


@pytest.mark.parametrize(
    ("change", "file_class"),
    [
        (lambda log: log[:-100], FileClass.TORN),
        # Preallocated zeros.
        (lambda log: log + bytes(4096), FileClass.PADDED),
    ],
)
def test_torn_tail_is_safe_only_without_the_clean_shutdown_file(
    data: Path, change: Callable[[bytes], bytes], file_class: FileClass
) -> None:
    last = logs(data)[-1]
    last.write_bytes(change(last.read_bytes()))
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (data / name).unlink()
    for path in (data / PARTITION).glob("*.snapshot"):
        path.unlink()
    with_marker = [row for row in findings(data) if row.kind is FileKind.LOG]
    (data / MARKER).unlink()
    without = [row for row in findings(data) if row.kind is FileKind.LOG]

    assert [(row.file_class, row.harmful) for row in with_marker] == [(file_class, True)]
    assert [(row.file_class, row.harmful) for row in without] == [(file_class, False)]


def test_missing_segment_is_a_gap(data: Path) -> None:
    for path in (data / PARTITION).glob(f"{logs(data)[1].stem}.*"):
        path.unlink()

    result = verified(data)
    (one,) = [partition for partition in result.partitions if partition.topic == "app-logs"]
    (gap,) = [
        row for row in result.findings if row.file_class is FileClass.GAP and row.kind == "log"
    ]

    assert gap.harmful
    assert [(lost.first_offset, lost.end_offset) for lost in one.lost] == [(1063, 2117)]


def test_offsets_removed_by_compaction_are_not_a_gap(data: Path) -> None:
    (data / "cleaner-offset-checkpoint").unlink()

    assert [row for row in findings(data) if row.harmful] == []


@pytest.mark.parametrize(
    ("policy", "why"),
    [("compact,delete", "cannot be known"), ("delete", "topic is not compacted")],
)
@pytest.mark.parametrize("in_dump", [True, False])
def test_compacted_topics_are_read_from_the_metadata_log(
    data: Path, tmp_path: Path, policy: str, why: str, *, in_dump: bool
) -> None:
    for path in (data / PARTITION).glob(f"{logs(data)[1].stem}.*"):
        path.unlink()
    topic_id = read_topic_id(str(data / PARTITION))
    assert topic_id is not None
    folder = metadata_of((data if in_dump else tmp_path) / METADATA_LOG, topic_id, policy)

    result = verify([data], topics="app-logs", metadata=None if in_dump else folder, threads=1)

    (gap,) = [
        row for row in result.findings if row.file_class is FileClass.GAP and row.kind == "log"
    ]
    assert gap.harmful
    assert gap.effect is not None
    assert why in gap.effect


@pytest.mark.parametrize(
    ("setting", "why"), [("compact", "cannot be known"), ("delete", "topic is not compacted")]
)
def test_broker_default_policy_determines_compacted_topics(
    data: Path, tmp_path: Path, setting: str, why: str
) -> None:
    for path in (data / PARTITION).glob(f"{logs(data)[1].stem}.*"):
        if path.suffix != ".snapshot":
            path.unlink()
    topic_id = read_topic_id(str(data / PARTITION))
    topic = cluster_record("TopicRecord", name="app-logs", topicId=topic_id)
    write_log(tmp_path / METADATA_LOG, log_batch(0, topic))
    properties = {"log.cleanup.policy": setting}

    result = verify(
        [data],
        topics="app-logs",
        metadata=tmp_path / METADATA_LOG,
        config=properties,
        threads=1,
    )
    cluster = read_cluster([str(tmp_path / METADATA_LOG)], budget=DecompressionBudget(2**24))
    conditions = StartConditions(LogConfig(), cluster, properties=properties)
    predicted = predict_directories([str(data)], conditions)

    (gap,) = [
        row for row in result.findings if row.file_class is FileClass.GAP and row.kind == "log"
    ]
    (row,) = [partition for partition in predicted.partitions if partition.topic == "app-logs"]
    assert why in (gap.effect or "")
    assert [why in note for note in row.notes if note.startswith("gap: ")] == [True]


@pytest.mark.parametrize("policy", [None, "compact"])
def test_cleanup_policy_absent_from_the_metadata_is_unknown(
    data: Path, tmp_path: Path, policy: str | None
) -> None:
    config = cluster_record(
        "ConfigRecord",
        resourceType=BROKER_RESOURCE,
        resourceName=ALL_BROKERS,
        name="log.cleanup.policy",
        value=policy,
    )
    topic = cluster_record("TopicRecord", name="app-logs", topicId=uuid_of(7))
    write_log(tmp_path / METADATA_LOG, log_batch(0, topic, *[config] * (policy is not None)))
    cluster = read_cluster([str(tmp_path / METADATA_LOG)], budget=DecompressionBudget(2**24))
    segments = SegmentTable.from_files(
        list_logs([str(data / PARTITION)], None, topics=None).segments
    )

    (known,) = known_topics(DumpMetadata(cluster), segments).values()

    assert known.cleanup_policy == policy


def test_topic_id_that_differs_from_the_metadata_is_reported(data: Path, tmp_path: Path) -> None:
    folder = metadata_of(tmp_path / METADATA_LOG, uuid_of(7), "delete")

    result = verify([data], topics="app-logs", metadata=folder, threads=1)

    harmful = [row for row in result.findings if row.topic is not None and row.harmful]
    assert [(row.kind, row.file_class) for row in harmful[:1]] == [
        (FileKind.METADATA, FileClass.FOREIGN)
    ]
    assert uuid_of(7) in (harmful[0].expected or "")


def test_damaged_metadata_log_of_the_dump_is_not_used(data: Path) -> None:
    folder = metadata_of(data / METADATA_LOG, uuid_of(7), "delete")
    flip(folder / "00000000000000000000.log", -1)

    result = verify([data], topics="app-logs", threads=1)

    assert not result.is_harmful


def test_damaged_log_of_the_given_metadata_directory_is_harmful(data: Path, tmp_path: Path) -> None:
    folder = metadata_of(tmp_path / METADATA_LOG, uuid_of(7), "delete")
    log = folder / "00000000000000000000.log"
    flip(log, -1)

    result = verify([data], metadata=folder, threads=1)

    assert [row.path for row in result.findings if row.harmful] == [str(log)]


def offset_entries(path: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">ii", path.read_bytes()))


def write_offsets(path: Path, entries: list[tuple[int, int]]) -> None:
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))


def pad(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(240))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-24])


def misplace(path: Path) -> None:
    entries = offset_entries(path)
    entries[3] = entries[3][0], entries[3][1] + 1
    write_offsets(path, entries)


def lower(path: Path) -> None:
    entries = offset_entries(path)
    entries[3] = entries[2][0] + 1, entries[3][1]
    write_offsets(path, entries)


def lengthen(path: Path) -> None:
    entries = offset_entries(path)
    offset, position = entries[-1]
    write_offsets(path, [*entries, (offset + 1000, position + 10_000_000)])


def disorder(path: Path) -> None:
    entries = offset_entries(path)
    entries[2], entries[3] = entries[3], entries[2]
    write_offsets(path, entries)


def fill(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def replace_by_next(path: Path) -> None:
    following = sorted(path.parent.glob(f"*{path.suffix}"))[1]
    shutil.copy(following, path)


@pytest.mark.parametrize(
    ("suffix", "change", "file_class", "harmful"),
    [
        (".index", pad, FileClass.PADDED, False),
        (".index", shorten, FileClass.INCOMPLETE, False),
        (".index", misplace, FileClass.MISPLACED, True),
        (".index", lower, FileClass.TOO_LOW, True),
        (".index", lengthen, FileClass.STALE, True),
        (".index", disorder, FileClass.CORRUPT, True),
        (".index", fill, FileClass.CORRUPT, True),
        (".index", Path.unlink, FileClass.MISSING, False),
        (".timeindex", pad, FileClass.PADDED, True),
        (".timeindex", shorten, FileClass.INCOMPLETE, True),
        (".timeindex", fill, FileClass.CORRUPT, True),
        (".timeindex", replace_by_next, FileClass.FOREIGN, True),
        (".timeindex", Path.unlink, FileClass.MISSING, True),
    ],
)
def test_index_is_equivalent_if_its_entries_point_to_batches(
    data: Path, suffix: str, change: Callable[[Path], None], file_class: FileClass, *, harmful: bool
) -> None:
    path = logs(data)[0].with_suffix(suffix)
    change(path)

    row = single_finding(data)

    assert (row.path, row.file_class, row.harmful) == (str(path), file_class, harmful)
    assert row.effect


def test_index_of_the_active_segment_that_a_start_rebuilds_is_harmless(data: Path) -> None:
    path = logs(data)[-1].with_suffix(".timeindex")
    pad(path)
    assert single_finding(data).harmful

    (data / MARKER).unlink()

    assert not single_finding(data).harmful


def transactions(data: Path) -> Path:
    return next(
        path for path in sorted((data / PAYMENTS).glob("*.txnindex")) if path.stat().st_size
    )


def reverse_entries(path: Path) -> None:
    entries = path.read_bytes()
    path.write_bytes(b"".join(entries[at : at + 34] for at in range(0, len(entries), 34)[::-1]))


@pytest.mark.parametrize(
    ("change", "file_class"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-34]), FileClass.INCOMPLETE),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(34)), FileClass.PADDED),
        (lambda path: flip(path, 0), FileClass.CORRUPT),
        (Path.unlink, FileClass.MISSING),
        (reverse_entries, FileClass.CORRUPT),
    ],
)
def test_transaction_index_without_an_aborted_transaction_is_harmful(
    data: Path, change: Callable[[Path], object], file_class: FileClass
) -> None:
    path = transactions(data)
    change(path)

    rows = [row for row in findings(data) if row.kind is FileKind.TXN_INDEX]

    assert [(row.path, row.file_class, row.harmful) for row in rows] == [
        (str(path), file_class, True)
    ]


def test_missing_snapshots_after_a_clean_shutdown_lose_the_producers(data: Path) -> None:
    for path in (data / PAYMENTS).glob("*.snapshot"):
        path.unlink()

    row = single_finding(data)

    assert (row.kind, row.file_class, row.harmful) == (FileKind.SNAPSHOT, FileClass.MISSING, True)


def test_snapshot_with_a_wrong_checksum_is_skipped(data: Path) -> None:
    path = max((data / PAYMENTS).glob("*.snapshot"))
    flip(path, path.stat().st_size - 1)

    row = single_finding(data)

    assert (row.path, row.file_class, row.harmful) == (str(path), FileClass.CORRUPT, False)
    assert (row.expected or "").startswith("0x")
    assert (row.found or "").startswith("the checksum of the snapshot does not match: 0x")


@pytest.mark.parametrize("with_marker", [True, False])
def test_last_snapshot_with_wrong_producers_is_rewritten_after_an_unclean_shutdown(
    data: Path, *, with_marker: bool
) -> None:
    path = max((data / PAYMENTS).glob("*.snapshot"))
    entries = decode_snapshot(path.read_bytes()).copy()
    entries["producer_id"] += 1000
    path.write_bytes(encode_snapshot(entries))
    if not with_marker:
        (data / ".kafka_cleanshutdown").unlink()

    now_ms = int(entries["timestamp_ms"].max())
    result = verify([data], topics="payments", threads=1, now=f"ms:{now_ms}")
    (row,) = [row for row in result.findings if row.path == str(path)]

    assert row.file_class in (FileClass.CORRUPT, FileClass.INCOMPLETE)
    assert row.harmful is with_marker


@pytest.mark.parametrize("text", ["0\n1\nx 0\n", "0\n2\n0 0\n", "0\n0\n", "0\n1\n0 500\n"])
def test_leader_epochs_that_differ_from_the_batches_are_reported(data: Path, text: str) -> None:
    path = data / PARTITION / "leader-epoch-checkpoint"
    path.write_text(text)

    row = single_finding(data)

    assert (row.path, row.harmful) == (str(path), True)


def test_partition_without_its_metadata_is_stray(data: Path) -> None:
    (data / PARTITION / "partition.metadata").unlink()

    row = single_finding(data)

    assert (row.kind, row.file_class, row.harmful) == (FileKind.METADATA, FileClass.MISSING, True)


@pytest.mark.parametrize(
    ("name", "text", "harmful"),
    [
        ("log-start-offset-checkpoint", "0\n1\napp-logs 0 999999\n", True),
        ("replication-offset-checkpoint", "0\n1\napp-logs 0 999999\n", True),
        ("recovery-point-offset-checkpoint", "0\n2\napp-logs 0 0\n", True),
        ("recovery-point-offset-checkpoint", "0\n1\napp-logs 0 x\n", False),
        ("replication-offset-checkpoint", "0\n1\napp-logs 0 x\n", True),
        ("meta.properties", "version=1\n", True),
        (MARKER, "?", False),
    ],
)
def test_root_files_are_classified_as_by_a_broker(
    data: Path, name: str, text: str, *, harmful: bool
) -> None:
    (data / name).write_text(text)

    (row,) = [row for row in findings(data) if row.kind is FileKind.ROOT]

    assert (row.path, row.harmful) == (str(data / name), harmful)


def test_logs_without_index_files_are_one_line_and_not_damage(data: Path) -> None:
    lone = data.parent / "logs"
    for path in data.glob("*/*.log"):
        target = lone / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)

    result = verified(lone)

    assert not result.is_harmful
    missing = [
        (row.topic, row.partition, row.kind)
        for row in result.findings
        if row.topic is not None and row.file_class is FileClass.MISSING
    ]
    assert missing == [
        (partition.topic, partition.partition, FileKind.INDEX) for partition in result.partitions
    ]


@pytest.mark.parametrize(
    ("name", "file_class", "harmful"),
    [
        ("00000000000000000900.index", FileClass.ORPHAN, False),
        ("00000000000000000900.log.deleted", FileClass.LEFTOVER, False),
        ("00000000000000000900.timeindex.cleaned", FileClass.LEFTOVER, False),
        ("00000000000000000900.snapshot", FileClass.ORPHAN, False),
        ("x.log", FileClass.CORRUPT, True),
    ],
)
def test_files_without_a_segment_are_reported(
    data: Path, name: str, file_class: FileClass, *, harmful: bool
) -> None:
    (data / PARTITION / name).write_bytes(b"")

    row = single_finding(data)

    assert (row.file_class, row.harmful) == (file_class, harmful)


def test_partition_row_describes_the_effect_of_a_start(data: Path) -> None:
    last = logs(data)[-1]
    _, position = offset_entries(last.with_suffix(".index"))[-1]
    last.write_bytes(last.read_bytes()[: position + 100])

    result = verified(data)
    row = [row for row in result.findings if row.topic == "app-logs"][-1]

    assert row.kind is FileKind.PARTITION
    assert row.harmful
    assert "loses or no longer serves" in (row.effect or "")


def test_index_without_its_log_shows_missing_records(data: Path) -> None:
    first = logs(data)[0]
    first.unlink()

    orphans = [row for row in findings(data) if row.file_class is FileClass.ORPHAN]

    assert {Path(row.path).suffix for row in orphans if row.harmful} == {".index", ".timeindex"}


def test_empty_time_index_lacks_entries(data: Path) -> None:
    path = logs(data)[0].with_suffix(".timeindex")
    path.write_bytes(b"")

    row = single_finding(data)

    assert (row.file_class, row.harmful) == (FileClass.INCOMPLETE, True)


@pytest.mark.parametrize(
    ("text", "outcome", "effect"),
    [
        (None, Outcome.STRAY, "stray: a broker creates an empty log"),
        ("", Outcome.REFUSED, "a broker does not start"),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", Outcome.REFUSED, "does not start"),
    ],
)
def test_partition_row_without_a_topic_id_agrees_with_predict(
    data: Path, text: str | None, outcome: Outcome, effect: str
) -> None:
    path = data / PARTITION / "partition.metadata"
    path.unlink()
    if text is not None:
        path.write_text(text)

    (row,) = [
        row for row in verified(data).findings if row.kind is FileKind.PARTITION and row.harmful
    ]
    predicted = predict_directories([str(data)], StartConditions(LogConfig()))

    assert row.path == str(data / PARTITION)
    assert effect in (row.effect or "")
    assert "serves offsets" not in (row.effect or "")
    (one,) = [partition for partition in predicted.partitions if partition.directory == row.path]
    assert one.outcome is outcome

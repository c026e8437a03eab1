"""Manifests of backups, and the names of objects in a repository."""

import msgspec
import pytest

from kafka_index.core.errors import CorruptObjectError, InputError
from kafka_index.core.fs.backup.manifest import (
    FORMAT,
    CaptureTimes,
    DataDirectory,
    KeptFile,
    LogChunk,
    Manifest,
    PartitionBackup,
    RepositoryFile,
    backup_id_at,
    backup_id_ms,
    encode,
    hash_of,
    is_backup_id,
    is_consistent,
    parse_manifest,
    parse_repository_file,
)

HASH = hash_of(b"batches")


def manifest(**changes: object) -> Manifest:
    """Return a manifest of one partition with two pieces; `changes` are of the partition."""
    partition = PartitionBackup(
        topic="orders",
        partition=0,
        topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
        directory=0,
        is_leader=True,
        is_compacted=False,
        start_offset=3,
        end_offset=20,
        high_watermark=21,
        settled_offset=10,
        epochs=((0, 0),),
        chunks=(LogChunk(0, 9, 700, HASH, 1), LogChunk(10, 19, 700, HASH, 1)),
    )
    return Manifest(
        backup_id=backup_id_at(1_763_000_000_123),
        cluster_id="cluster",
        node_id=1,
        brokers=(1,),
        capture=CaptureTimes(
            begun_ms=1,
            coordinators_captured_ms=2,
            others_begun_ms=3,
            ended_ms=4,
            high_watermarks_ms=5,
            high_watermarks_from="checkpoint",
        ),
        directories=(DataDirectory(path="/kafka", meta_properties="version=1\n"),),
        partitions=(msgspec.structs.replace(partition, **changes),),
    )


def test_written_manifest_is_read_back() -> None:
    expected = manifest()
    assert parse_manifest(encode(expected), "m") == expected


def test_written_repository_file_is_read_back() -> None:
    expected = RepositoryFile(cluster_id="cluster", brokers=(1, 2))
    assert parse_repository_file(encode(expected), "r") == expected


def test_object_names_contain_hash_and_size() -> None:
    chunk = LogChunk(78, 99, 700, HASH, 1)
    assert chunk.object_name == "00000000000000000078-" + chunk.object_name[21:43] + ".log"
    assert len(chunk.object_name) == 20 + 1 + 22 + 4
    kept_file = KeptFile("00000000000000000100-0000000001.checkpoint", 10, HASH, 1)
    assert kept_file.object_name.startswith("00000000000000000100-0000000001-")
    assert kept_file.object_name.endswith(".checkpoint")
    assert KeptFile("quorum-state", 10, HASH, 1).object_name.startswith("quorum-state-")


@pytest.mark.parametrize("time_ms", [0, 999, 1_763_000_000_123])
def test_backup_name_contains_its_time(time_ms: int) -> None:
    assert is_backup_id(backup_id_at(time_ms))
    assert backup_id_ms(backup_id_at(time_ms)) == time_ms


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"chunks": (LogChunk(10, 19, 7, HASH, 1), LogChunk(0, 9, 7, HASH, 1))},
            "not in offset order",
        ),
        (
            {"chunks": (LogChunk(0, 9, 7, HASH, 1), LogChunk(9, 19, 7, HASH, 1))},
            "not in offset order",
        ),
        ({"chunks": (LogChunk(9, 8, 7, HASH, 1),)}, "not in offset order"),
        ({"end_offset": 19}, "the end offset is below"),
        ({"start_offset": 21}, "below the start offset or the end of the chunks"),
        ({"directory": 1}, "no data directory with this number"),
        ({"directory": -1}, "no data directory with this number"),
    ],
)
def test_contradictory_manifest_is_rejected(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(CorruptObjectError, match=expected):
        parse_manifest(encode(manifest(**changes)), "m")


def test_truncated_manifest_is_damage() -> None:
    data = encode(manifest())
    for size in range(len(data)):
        with pytest.raises(CorruptObjectError):
            parse_manifest(data[:size], "m")


def test_manifest_of_another_format_version_is_rejected() -> None:
    with pytest.raises(InputError, match="unsupported format"):
        parse_manifest(encode(msgspec.structs.replace(manifest(), format=FORMAT + 1)), "m")


def manifest_captured_at(
    node_id: int, first_ms: int, others_ms: int, members: tuple[int, ...] = ()
) -> Manifest:
    result = manifest()
    times = {
        "coordinators_captured_ms": first_ms,
        "others_begun_ms": others_ms,
        "barrier_members": members,
    }
    cut = msgspec.structs.replace(result.capture, **times)
    return msgspec.structs.replace(result, node_id=node_id, brokers=(1, 2), capture=cut)


@pytest.mark.parametrize(
    ("first", "second", "is_kept"),
    [
        (manifest_captured_at(1, 5, 8), manifest_captured_at(2, 7, 9), True),
        (manifest_captured_at(1, 5, 8), manifest_captured_at(2, 8, 9), False),
        (manifest_captured_at(1, 5, 8, (1, 2)), manifest_captured_at(2, 90, 91, (1, 2)), True),
        (manifest_captured_at(1, 5, 8, (1, 2)), manifest_captured_at(2, 90, 91, (2,)), False),
    ],
)
def test_backup_is_consistent_if_brokers_synchronized_or_clocks_show_it(
    first: Manifest,
    second: Manifest,
    is_kept: bool,  # noqa: FBT001
) -> None:
    assert is_consistent([first, second]) is is_kept
    assert is_consistent([second, first]) is is_kept
    assert is_consistent([first])

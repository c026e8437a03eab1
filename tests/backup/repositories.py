"""Repositories of backups that are cut from data directories at rest."""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import structs

from kafka_index.dump.data_directory import DataDirectory
from kafka_index.layout.checkpoints import parse_leader_epoch_checkpoint
from kafka_index.layout.names import CLEANER_CHECKPOINT, TopicPartition, parse_partition_directory
from kafka_index.stores.backup.manifest import (
    Cut,
    KeptFile,
    Manifest,
    PartitionBackup,
    Piece,
    SeenSegment,
    hash_of,
    run_name,
)
from kafka_index.stores.backup.manifest import DataDirectory as StoredDirectory
from kafka_index.stores.backup.repository import Repository

_HEADER = struct.Struct(">qi4xb6xi")
_OVERHEAD_BYTES = 12
_KEPT = (".checkpoint", "quorum-state")


def cluster_id_of(root: Path) -> str:
    """Return the cluster that a data directory is of."""
    return DataDirectory(str(root)).properties["cluster.id"]


def cut_run(
    repository: Repository,
    root: Path,
    *,
    time_ms: int,
    node_id: int = 1,
    brokers: tuple[int, ...] = (1,),
    piece_bytes: int = 20_000,
    ends: dict[str, int] | None = None,
    settled: dict[str, int] | None = None,
    only: Collection[str] = (),
    pause_s: float = 0,
) -> Manifest:
    """Put a run of a data directory into a repository.

    Pieces are whole batches of about so many bytes, and may span segments. `ends`: offsets at which
    the logs of directories end, by default where they do. `settled`: the offsets that they had
    before anything was cut, by default all. `only` these directories are taken, if any are named.
    The manifest is put after a pause.
    """
    home = DataDirectory(str(root))
    partitions = [
        _partition(repository, home, folder, key, piece_bytes, (ends or {}).get(folder.name))
        for folder in sorted(root.iterdir())
        if (not only or folder.name in only)
        and (key := parse_partition_directory(folder.name)) is not None
    ]
    partitions = [
        structs.replace(each, settled_offset=(settled or {}).get(name, each.settled_offset))
        for each in partitions
        for name in (each.topic_partition.directory_name,)
    ]
    manifest = Manifest(
        run=run_name(time_ms),
        cluster_id=home.properties["cluster.id"],
        node_id=node_id,
        brokers=brokers,
        cut=Cut(
            begun_ms=time_ms,
            coordinators_cut_ms=time_ms + 1,
            others_begun_ms=time_ms + 2,
            ended_ms=time_ms + 3,
            high_watermarks_ms=time_ms + 4,
            high_watermarks_from="log ends",
        ),
        directories=(
            StoredDirectory(path=str(root), meta_properties=(root / "meta.properties").read_text()),
        ),
        partitions=tuple(partitions),
    )
    time.sleep(pause_s)
    repository.put_manifest(manifest)
    return manifest


def _partition(
    repository: Repository,
    home: DataDirectory,
    folder: Path,
    key: TopicPartition,
    piece_bytes: int,
    end: int | None,
) -> PartitionBackup:
    logs = sorted(folder.glob("*.log"))
    epochs = (folder / "leader-epoch-checkpoint").read_text()
    snapshots = sorted(folder.glob("*.snapshot"))
    own = PartitionBackup(
        topic=key.topic,
        partition=key.partition,
        topic_id=(folder / "partition.metadata").read_text().split()[-1],
        directory=0,
        is_leader=True,
        is_compacted=home.cleaned_to(key) is not None,
        start_offset=0,
        end_offset=0,
        high_watermark=0,
        settled_offset=0,
        epochs=tuple(
            (each.epoch, each.start_offset) for each in parse_leader_epoch_checkpoint(epochs)
        ),
        cleaner_offset=home.offset(CLEANER_CHECKPOINT, key),
    )
    pieces, files = [], []
    there = repository.names(own.folder)
    next_offset = int(logs[0].stem)
    for base, last, data in _pieces(logs, piece_bytes, end):
        piece = Piece(base, last, len(data), hash_of(data))
        if piece.object_name not in there:
            assert repository.put(f"{own.folder}/{piece.object_name}", data)
        pieces.append(piece)
        next_offset = last + 1
    for path in sorted(folder.iterdir()):
        if path.name.endswith(_KEPT):
            data = path.read_bytes()
            file = KeptFile(path.name, len(data), hash_of(data))
            assert repository.put(f"{own.folder}/{file.object_name}", data)
            files.append(file)
    before = [each for each in snapshots if pieces and int(each.stem) == pieces[0].base_offset]
    return PartitionBackup(
        **{
            **{name: getattr(own, name) for name in own.__struct_fields__},
            "start_offset": home.log_start_offset(key) or int(logs[0].stem),
            "end_offset": next_offset,
            "high_watermark": next_offset,
            "settled_offset": next_offset,
            "snapshot": base64.b64encode(before[0].read_bytes()).decode() if before else None,
            "pieces": tuple(pieces),
            "files": tuple(files),
            "segments": tuple(
                SeenSegment(int(log.stem), 0, 0, 0, size, covered_bytes=size, is_done=True)
                for log, size in ((log, log.stat().st_size) for log in logs)
            ),
        }
    )


def _pieces(
    logs: list[Path], piece_bytes: int, end: int | None
) -> Iterator[tuple[int, int, bytes]]:
    """Yield the first and last offset of runs of batches, and their bytes."""
    held = bytearray()
    first = last = -1
    for log in logs:
        for base, last_offset, batch in _batches(log):
            if end is not None and last_offset >= end:
                break
            if held and len(held) + len(batch) > piece_bytes:
                yield first, last, bytes(held)
                held.clear()
            if not held:
                first = max(base, last + 1)
            held += batch
            last = last_offset
    if held:
        yield first, last, bytes(held)


def _batches(log: Path) -> Iterator[tuple[int, int, bytes]]:
    data = log.read_bytes()
    at = 0
    next_offset = int(log.stem)
    while at < len(data):
        base, length, magic, delta = _HEADER.unpack_from(data, at)
        size = _OVERHEAD_BYTES + length
        # The offset of a message set of old formats is its last one.
        first, last = (base, base + delta) if magic == 2 else (next_offset, base)
        yield first, last, data[at : at + size]
        next_offset = last + 1
        at += size

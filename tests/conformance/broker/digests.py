"""The records of a log directory, as a digest that Kafka's consumer is compared by."""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING

import kafka_index

from .client import Digest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from kafka_index.core.fs.uris import TieredOptions

COLUMNS = ("offset", "timestamp", "timestampType", "leader_epoch", "key", "value", "headers")


def digest(
    data: Path, topic: str, partition: int, isolation: str, tiered: TieredOptions | None = None
) -> Digest:
    """Digests of the same records as `Client.digests` makes them.

    The whole log directory is read for a tiered partition, as its metadata topic counts.
    """
    paths, of_topic, of_partition = data / f"{topic}-{partition}", None, None
    if tiered is not None:
        paths, of_topic, of_partition = data, re.escape(topic), {topic: [partition]}
    return digest_of(
        kafka_index.read_records(
            paths,
            topics=of_topic,
            partitions=of_partition,
            columns=COLUMNS,
            isolation=isolation,
            tiered=tiered,
        )
    )


def digest_of(batches: Iterable[pa.RecordBatch]) -> Digest:
    """Digests, as of `Client.digests`, of records in these columns, `COLUMNS`."""
    count, sha256 = 0, hashlib.sha256()
    for batch in batches:
        count += len(batch)
        columns = [
            column.cast("int64") if name == "timestamp" else column
            for name, column in zip(COLUMNS, batch.columns, strict=True)
        ]
        for offset, time, time_type, epoch, key, value, headers in zip(
            *(column.to_pylist() for column in columns), strict=True
        ):
            sha256.update(struct.pack(">qqii", offset, time, time_type, epoch))
            sha256.update(_sized(key) + _sized(value))
            for header in headers or ():
                name = header["key"].encode()
                sha256.update(struct.pack(">H", len(name)) + name + _sized(header["value"]))
    return Digest(count, sha256.hexdigest())


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

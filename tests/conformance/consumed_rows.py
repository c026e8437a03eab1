"""Random valid logs, read by us and by Kafka's consumer in both isolation levels, and compared.

The consumer's side is a broker's log, loaded and fetched from, and the consumer's own class that
takes fetches apart: it verifies checksums, leaves out aborted transactions and control batches.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa

from kafka_index import read_records
from tests.support.random_records import LogGenerator, draw_intact_log

from .reference_log import ConsumedRecord, load

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

_COLUMNS = ("offset", "timestamp", "timestampType", "leader_epoch", "key", "value", "headers")
_FETCH_BYTES = (1, 2000, 1 << 20)


def compare_with_consumer(reference: KafkaReference, scratch: Path, seed: int) -> int:
    """Draw the log of a seed, and compare what is read of it; return how many records were.

    It is read twice: from its logs alone, and with all files that the broker has left.
    """
    generated = LogGenerator(seed)
    log = draw_intact_log(generated)
    bare, kept = (scratch / side / "topic-0" for side in ("bare", "kept"))
    for folder in (bare, kept):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for base_offset, data in log.segments.items():
            (folder / f"{base_offset:020d}.log").write_bytes(data)
    compared = 0
    with load(reference, kept, clean=False, now_ms=0) as kafka_log:
        start, end = kafka_log.loaded.log_start_offset, kafka_log.loaded.log_end_offset
        for committed in (False, True):
            first = generated.choice((start, start, generated.randrange(start, end + 1)))
            size = generated.choice(_FETCH_BYTES)
            consumed = kafka_log.consume(first, committed=committed, max_bytes=size)
            assert consumed.fault is None, (seed, consumed.fault)
            for folder in (bare, kept):
                ours = _read(folder, first, committed=committed)
                assert ours == list(consumed.records), (seed, folder.parent.name, committed, first)
                compared += len(ours)
    return compared


def _read(folder: Path, first_offset: int, *, committed: bool) -> list[ConsumedRecord]:
    rows = read_records(
        folder,
        columns=_COLUMNS,
        starting_offsets=first_offset,
        isolation="read_committed" if committed else "read_uncommitted",
    ).read_all()
    lists = [
        column.cast(pa.int64()).to_pylist()
        if pa.types.is_timestamp(column.type)
        else column.to_pylist()
        for column in rows.columns
    ]
    return [
        ConsumedRecord._make((*fields, tuple((one["key"], one["value"]) for one in headers or ())))
        for *fields, headers in zip(*lists, strict=True)
    ]

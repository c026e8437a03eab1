"""A rewrite leaves of a log the same as Kafka's own filter (MemoryRecords.filterTo)."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.log.filter.partition_rewrite import SegmentRewriter, match_partition
from kafka_index.core.log.filter.selection import Selection
from kafka_index.core.log.recovery.state_merge import PartitionStart
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.support.segments import PACKERS, marker, message

from .campaign import random_cases
from .reference_files import read_batches

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

_DROPPED = b"drop"
_TIMES = (-1, 0, 5, 1_700_000_000_000, 1_700_000_009_999, 2**63 - 1)
_VALUES = (b"", b"v", b"value" * 50, bytes(range(256)) * 4)
_MAX_BYTES = 1 << 26
#: The header without its length and its checksum.
_HEADER = slice(8), slice(12, 17), slice(21, 61)


def random_log(rng: random.Random, codec: str) -> tuple[bytes, list[int]]:
    """A log, and the last offsets of the batches that stay even when they are empty."""
    log, offset, sequence, staying = b"", rng.choice((0, 7, 2**40)), 0, {}
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.1:
            log += marker(offset, 5, 0, commit=True)
            staying[-1] = offset
            offset += 1
            continue
        known = rng.random() < 0.4
        step = rng.choice((1, 1, 3))
        keys = [rng.choice((_DROPPED, b"k", None)) for _ in range(rng.choice((1, 2, 5)))]
        records = [
            Record(
                rng.choice(_TIMES),
                key,
                rng.choice(_VALUES),
                [("h\u00e9" * (n % 2), rng.choice(_VALUES)) for n in range(rng.choice((0, 0, 2)))],
                n * step,
            )
            for n, key in enumerate(keys)
        ]
        last = records[-1].offset_delta or 0
        last += rng.choice((0, 0, 4))
        fields = BatchFields(
            leader_epoch=3,
            compression=codec,
            log_append_time_ms=rng.choice((None, None, 17)),
            producer_id=5 if known else -1,
            producer_epoch=0 if known else -1,
            base_sequence=sequence if known else -1,
            delete_horizon_ms=rng.choice((None, None, 12_345)),
            last_offset_delta=last,
        )
        log += write_record_batch(records, offset, fields)
        if known:
            sequence += last + 1
            staying[5] = offset + last
        offset += last + 1
        staying[-1] = offset - 1
    return log, [*staying.values()]


def rewritten(folder: Path, log: bytes) -> Path:
    """The log that our rewrite makes of another one."""
    shutil.rmtree(folder / "random", ignore_errors=True)
    source, target = folder / "random" / "in" / "topic-0", folder / "random" / "out"
    for each in (source, target):
        each.mkdir(parents=True)
    base_offset = int.from_bytes(log[:8], "big")
    (source / f"{base_offset:020d}.log").write_bytes(log)
    segments = list(list_dump([str(source)], topics=None).segments)
    selection = Selection((_DROPPED,))
    state = PartitionStart.read(segments[0], None, with_epochs=False).state
    match = match_partition(
        segments, selection, state, max_decompressed_bytes=_MAX_BYTES, checks_revival=False
    )
    path = target / segments[0].log_path.rpartition("/")[2]
    SegmentRewriter(match, selection, _MAX_BYTES).rewrite(segments[0], str(path))
    return path


def filtered(reference: KafkaReference, folder: Path, log: bytes, staying: list[int]) -> Path:
    """The log that Kafka's filter makes of it."""
    (folder / "before").write_bytes(log)
    reference.demand("filter", folder / "before", folder / "after", _DROPPED.hex(), *staying)
    return folder / "after"


def described(reference: KafkaReference, path: Path) -> list[tuple[object, ...]]:
    """Each batch: its header, but for length and checksum, and its records as Kafka reads them."""
    data = path.read_bytes()
    return [
        (*(data[batch.position_bytes :][part] for part in _HEADER), batch.records, batch.fault)
        for batch in read_batches(reference, path)
    ]


@random_cases(0.03)
@given(seed=st.integers(0, 2**63))
def test_plain_logs_have_kafkas_bytes(reference: KafkaReference, scratch: Path, seed: int) -> None:
    log, staying = random_log(random.Random(seed), "none")
    ours, kafkas = rewritten(scratch, log), filtered(reference, scratch, log, staying)
    assert ours.read_bytes() == kafkas.read_bytes()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@random_cases(0.01)
@given(seed=st.integers(0, 2**63))
def test_packed_logs_have_kafkas_batches_and_records(
    reference: KafkaReference, scratch: Path, codec: str, seed: int
) -> None:
    log, staying = random_log(random.Random(seed), codec)
    ours, kafkas = rewritten(scratch, log), filtered(reference, scratch, log, staying)
    assert described(reference, ours) == described(reference, kafkas)


@pytest.mark.parametrize(("magic", "codec"), [(0, 1), (1, 1), (1, 3)])
def test_old_messages_become_kafkas_batches(
    reference: KafkaReference, scratch: Path, magic: int, codec: int
) -> None:
    keys = [b"a", _DROPPED, None, b"b"]
    inner = b"".join(
        message(offset, magic, 1_700_000_000_000 + offset, b"v", key)
        for offset, key in enumerate(keys)
    )
    last = 3
    log = message(last, magic, 1_700_000_000_003, PACKERS[codec](inner), attributes=codec)
    ours, kafkas = rewritten(scratch, log), filtered(reference, scratch, log, [])
    assert described(reference, ours) == described(reference, kafkas)

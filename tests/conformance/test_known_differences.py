"""Intended differences between the product and Kafka: each shown by one case, both sides of it.

Those of lookups are in ``test_lookup_differences.py``, those of versions of Kafka in
``test_versions.py``; ``docs/conformance.md`` lists them all.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.log.state.snapshots import decode_snapshot
from kafka_index.core.logdir.listing import list_dump
from tests.support.dumps import built_rows
from tests.support.segments import CODEC_GZIP, INT32_MAX, batch, message

from .kafka_loading import partition_files
from .reference_files import index_operations
from .test_index_operations import our_operations
from .test_partition_state import DIRECTORY, NEVER_MS, StatePartition, by_kafka

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_index.core.log.recovery.settings import SegmentReport

    from .kafka_reference import KafkaReference

#: So far apart that a Java map puts them into few buckets.
COLLIDING = 2**20


def built_by_kafka(
    reference: KafkaReference, scratch: Path, partition: StatePartition
) -> dict[str, bytes]:
    shutil.rmtree(scratch / "kafka", ignore_errors=True)
    files = by_kafka(reference, scratch, partition, now_ms=0, expiration_ms=NEVER_MS)
    assert isinstance(files, dict), files
    return files


def built_by_us(scratch: Path, partition: StatePartition) -> tuple[Path, list[SegmentReport]]:
    """The places of the files, and the rows of the report."""
    for name in ("ours", "out"):
        shutil.rmtree(scratch / name, ignore_errors=True)
    partition.write(scratch / "ours")
    listed = list_dump([str(scratch / "ours")], topics=None).segments
    settings = BuildSettings(target_root=str(scratch / "out"))
    return scratch / "out" / DIRECTORY, built_rows(listed, settings, threads=1)


def test_segments_that_overlap_are_loaded_by_kafka_and_fail_in_a_build(
    reference: KafkaReference, scratch: Path
) -> None:
    overlapping = StatePartition({0: batch(0) + batch(3), 3: batch(3) + batch(6)})
    assert f"{9:020d}.snapshot" in built_by_kafka(reference, scratch, overlapping)
    _, rows = built_by_us(scratch, overlapping)
    assert any(row.reason_code == "segments_overlap" for row in rows)


def test_producers_in_one_hash_bucket_may_differ_in_order(
    reference: KafkaReference, scratch: Path
) -> None:
    log = b"".join(
        batch(n, 1, producer_id=COLLIDING * (37 * n % 61), producer_epoch=0, base_sequence=0)
        for n in range(61)
    )
    crowded = StatePartition({0: log})
    name = f"{61:020d}.snapshot"
    kafkas = decode_snapshot(built_by_kafka(reference, scratch, crowded)[name])
    directory, _ = built_by_us(scratch, crowded)
    ours = decode_snapshot((directory / name).read_bytes())
    assert kafkas.tolist() != ours.tolist()
    assert sorted(kafkas.tolist()) == sorted(ours.tolist())


def test_fetch_end_beyond_2_gib_overflows_in_kafka(
    reference: KafkaReference, scratch: Path
) -> None:
    operations = [
        "open 40",
        "append 5 100",
        f"append 9 {INT32_MAX - 10}",
        f"upper-bound 9 {INT32_MAX - 10} 100",
    ]
    path = scratch / "far.index"
    path.unlink(missing_ok=True)
    assert index_operations(reference, "offset", path, 0, operations)[-1] == "5 100"
    path.unlink()
    assert our_operations("offset", path, 0, operations)[-1] == "-"


def test_log_that_starts_after_its_end_is_emptied_by_kafka_and_built_with_a_note(
    reference: KafkaReference, scratch: Path
) -> None:
    files = partition_files(reference, scratch, {0: [batch(0), batch(3)], 6: [batch(6)]})
    with files.load(clean=False, log_start_offset=10) as log:
        assert log.loaded.base_offsets == (10,)
        assert (log.loaded.log_start_offset, log.loaded.log_end_offset) == (10, 10)
    logs = {0: batch(0) + batch(3), 6: batch(6)}
    _, rows = built_by_us(scratch, StatePartition(logs, log_start_offset=10))
    assert [row.status for row in rows] == ["built", "built"]
    assert [row.reason_code for row in rows] == [None, "log_start_above_end"]
    assert "the log ends at offset 9, below the log start offset" in str(rows[-1].note)
    _, rows = built_by_us(scratch, StatePartition(logs, log_start_offset=9))
    assert [row.reason_code for row in rows] == [None, None]


def test_offsets_too_far_apart_for_one_segment_are_split_by_kafka_and_fail_in_a_build(
    reference: KafkaReference, scratch: Path
) -> None:
    far = INT32_MAX + 5
    files = partition_files(reference, scratch, {0: [batch(0), batch(far)]})
    with files.load(clean=False) as log:
        assert log.loaded.base_offsets == (0, far)
    _, rows = built_by_us(scratch, StatePartition({0: batch(0) + batch(far)}))
    assert [(row.status, row.reason_code) for row in rows] == [("failed", "offset_overflow")]


def test_log_that_starts_with_an_unreadable_message_is_built_but_not_loaded_by_kafka(
    reference: KafkaReference, scratch: Path
) -> None:
    unreadable = message(3, 1, 50, value=b"nothing compressed", attributes=CODEC_GZIP)
    partition = StatePartition({0: unreadable + batch(4)})
    files = by_kafka(reference, scratch, partition, now_ms=0, expiration_ms=NEVER_MS)
    assert not isinstance(files, dict)
    _, (row,) = built_by_us(scratch, partition)
    assert row.status == "built"

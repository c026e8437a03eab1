"""All differences of Kafka 4.3.1 and 3.9.1 with the same bytes.

The product equals 4.3.1. What it promises holds for a dump of a 3.9.1 broker too, but for the
tests here whose names state a difference.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden_segments import PARTITION, write_log
from tests.support.named_segments import (
    AFTER,
    KEY,
    NAMED,
    VALUE,
    control,
    open_transaction,
    payload,
)
from tests.support.segments import CODEC_GZIP, Segment, batch, message, record, segment, wrapper
from tests.support.strategies import segments

from .campaign import random_cases
from .kafka_reference import KafkaRefusal
from .reference_files import WrittenBatch, WrittenRecord, write_batches
from .reference_log import load
from .reference_partition import Answer, RejectedCall
from .written_segments import random_segment

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference, RecoverResult
    from .reference_partition import ReferencePartition

FIRST, NEXT = batch(0), batch(3)
#: A sound message but for what is packed in it.
UNREADABLE = message(3, 1, 50, value=b"nothing packed", attributes=CODEC_GZIP)
#: What 4.3.1 refuses: the value of a marker ends before its coordinator epoch.
SHORT_VALUE = "BufferUnderflowException"


def recovered(
    reference: KafkaReference, directory: Path, generated: Segment
) -> tuple[RecoverResult, dict[str, bytes]]:
    """The report of recovery, and all files that it leaves unless it refuses."""
    partition = write_log(directory, generated).parent
    result = reference.recover(
        partition,
        generated.base_offset,
        generated.index_interval_bytes,
        generated.segment_index_bytes,
    )
    if result.error_class is not None:
        return result, {}
    return result, {path.name: path.read_bytes() for path in partition.iterdir()}


def assert_recovered_alike(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, generated: Segment
) -> None:
    """Both leave the same files, or refuse with the same exception."""
    new, new_files = recovered(reference, scratch / "new", generated)
    old, old_files = recovered(old_reference, scratch / "old", generated)
    if new.error_class == SHORT_VALUE:
        return
    assert old.error_class == new.error_class
    assert old.truncated_bytes == new.truncated_bytes
    # Of offsets that go back after the last index entry 4.3.1 may not find the end.
    assert new.next_offset in {old.next_offset, generated.base_offset}
    assert old_files == new_files


@pytest.mark.parametrize(
    "generated",
    [pytest.param(case.segment, id=case.name) for case in NAMED if case.expected != SHORT_VALUE],
)
def test_named_segment_is_recovered_equally_by_both_versions(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, generated: Segment
) -> None:
    new, _ = recovered(reference, scratch / "new", generated)
    assert new.error_class != SHORT_VALUE
    assert_recovered_alike(reference, old_reference, scratch, generated)


@random_cases(0.1)
@given(generated=segments(damaged=None))
def test_random_segment_is_recovered_equally_by_both_versions(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, generated: Segment
) -> None:
    assert_recovered_alike(reference, old_reference, scratch, generated)


def test_end_of_a_log_with_backward_offsets_after_the_last_index_entry_is_found_by_3_9_1(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path
) -> None:
    log = b"".join(batch(base_offset, 10) for base_offset in (0, 10, 40, 20))
    # So that the third batch has an entry, and the last one has none.
    backward = Segment(log, index_interval_bytes=len(batch(0, 10)))
    assert recovered(reference, scratch / "new", backward)[0].next_offset == 0
    assert recovered(old_reference, scratch / "old", backward)[0].next_offset == 30


@pytest.mark.parametrize(
    "marker",
    [
        *(pytest.param(control(KEY, VALUE[:n]), id=f"{n} bytes") for n in range(6)),
        pytest.param(control(KEY, b"\0\1"), id="2 bytes of version 1"),
        pytest.param(
            payload(record(0, 0, KEY, VALUE[:1]), attributes=0), id="1 byte, plain payload"
        ),
    ],
)
def test_marker_with_a_short_value_is_rejected_by_4_3_1_and_ends_the_scan_of_3_9_1(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, marker: bytes
) -> None:
    short = segment(open_transaction(), marker, AFTER)
    assert recovered(reference, scratch / "new", short)[0].error_class == SHORT_VALUE
    assert recovered(old_reference, scratch / "old", short)[0].truncated_bytes == len(AFTER)


def opened(
    reference: KafkaReference, scratch: Path, log: bytes, base_offset: int = 0, interval: int = 4096
) -> ReferencePartition:
    """A partition of one segment, its index files built."""
    directory = scratch / reference.version
    write_log(directory, Segment(log, base_offset))
    return reference.open_partition(directory / PARTITION, interval)


SIZE = len(FIRST)
#: What ends before it begins, and a sound old wrapper.
ODD, PACKED = batch(5, last_offset_delta=-3), wrapper(2, 1, [(0, 50), (1, 60), (2, 70)], CODEC_GZIP)
UNREAD = len(UNREADABLE)
#: A log and an offset, and how each version translates it.
TRANSLATED: dict[str, tuple[bytes, int, Answer, Answer]] = {
    "name is the base offset in 4.3.1 and the last in 3.9.1": (
        FIRST + NEXT,
        4,
        (3, SIZE, SIZE),
        (5, SIZE, SIZE),
    ),
    "of duplicated batches 4.3.1 finds the last and 3.9.1 the first": (
        FIRST + NEXT + NEXT,
        4,
        (3, 2 * SIZE, SIZE),
        (5, SIZE, SIZE),
    ),
    "of duplicated batches both find the first by its base offset": (
        FIRST + NEXT + NEXT,
        3,
        (3, SIZE, SIZE),
        (5, SIZE, SIZE),
    ),
    "a batch that ends before it begins is found by 4.3.1 and passed over by 3.9.1": (
        FIRST + ODD + batch(9),
        4,
        (5, SIZE, len(ODD)),
        (11, SIZE + len(ODD), SIZE),
    ),
    "records of an old wrapper are looked into by 4.3.1 and not by 3.9.1": (
        FIRST + UNREADABLE + AFTER,
        3,
        RejectedCall("KafkaException"),
        (3, SIZE, UNREAD),
    ),
    "sound old wrappers are found alike": (
        PACKED + NEXT,
        1,
        (0, 0, len(PACKED)),
        (2, 0, len(PACKED)),
    ),
}


@pytest.mark.parametrize("name", TRANSLATED)
def test_offset_translation_of_both_versions_is_as_documented(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, name: str
) -> None:
    log, offset, new, old = TRANSLATED[name]
    for version, expected in ((reference, new), (old_reference, old)):
        with opened(version, scratch, log) as partition:
            assert partition.translate(0, [offset]) == [expected]


def test_read_is_labelled_with_the_base_offset_in_4_3_1_and_the_requested_offset_in_3_9_1(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path
) -> None:
    for version, name in ((reference, 3), (old_reference, 4)):
        directory = scratch / version.version
        write_log(directory, segment(FIRST, NEXT))
        with load(version, directory / PARTITION, clean=False) as log:
            assert log.read(4, 1).name_offset == name


def test_partition_that_begins_with_an_unreadable_wrapper_is_loaded_by_3_9_1_only(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path
) -> None:
    directory = scratch / "unreadable"
    write_log(directory, segment(UNREADABLE, AFTER))
    with load(old_reference, directory / PARTITION) as log:
        assert log.loaded.log_end_offset == 23
    with pytest.raises(KafkaRefusal, match="KafkaException"):
        load(reference, directory / PARTITION)


@random_cases(0.05)
@given(seed=st.integers(0, 2**63))
def test_lookups_in_intact_segments_equal_in_both_versions_except_names(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, seed: int
) -> None:
    generated = random_segment(random.Random(seed))
    path = scratch / "written.log"
    write_batches(reference, path, generated.batches)
    log = path.read_bytes()
    with (
        opened(reference, scratch, log, generated.base_offset, interval=0) as new,
        opened(old_reference, scratch, log, generated.base_offset, interval=0) as old,
    ):
        base_offset = generated.base_offset
        batches = new.batches(base_offset)
        assert old.batches(base_offset) == batches
        offsets = sorted(
            {
                at + near
                for b, _ in batches
                for at in b[1:3]
                for near in (-1, 0, 1)
                if at + near >= 0
            }
        )
        timestamps = sorted({t + near for _, t in batches for near in (-1, 0, 1)} | {-3, -2, -1})
        assert _nameless(old.translate(base_offset, offsets)) == _nameless(
            new.translate(base_offset, offsets)
        )
        assert old.fetch(offsets) == new.fetch(offsets)
        assert old.record(offsets) == new.record(offsets)
        assert old.time(timestamps) == new.time(timestamps)
        assert old.find(base_offset, timestamps, 0) == new.find(base_offset, timestamps, 0)


def _nameless(answers: list[Answer]) -> list[Answer]:
    return [answer[1:] if isinstance(answer, tuple) else answer for answer in answers]


def test_both_versions_index_each_batch_of_an_append(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path
) -> None:
    batches = [WrittenBatch((WrittenRecord(i, 1000 + i),)) for i in range(5)]
    entries = []
    for version in (reference, old_reference):
        directory = scratch / version.version / PARTITION
        shutil.rmtree(directory.parent, ignore_errors=True)
        sizes = write_batches(version, scratch / "appended", batches)
        with load(version, directory, settings={"index.interval.bytes": 0}) as log:
            log.append_as_follower(scratch / "appended")
        entries.append((directory / f"{0:020d}.index").read_bytes())
        assert len(entries[-1]) == 8 * (len(sizes) - 1)
    assert entries[0] == entries[1]

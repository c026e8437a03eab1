"""Lookups that are meant to answer differently, and Kafka's behaviour there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.core.log.choices import Resolve
from tests.support.segments import CODEC_GZIP, batch, message, wrapper

from .kafka_answers import offset_rows
from .partitions import partition

if TYPE_CHECKING:
    from .both import ComparedPartition

FIRST, NEXT, LAST = batch(0), batch(3), batch(6, timestamps=[5000] * 3)
SOUND = partition((0, [FIRST, NEXT]), (6, [LAST]))
# One bit of a value is another.
ROTTEN = partition((0, [FIRST[:-3] + b"\1" + FIRST[-2:], NEXT]), (6, [LAST]))


def test_file_time_is_used_as_timestamp_by_kafka_only(both: ComparedPartition) -> None:
    # A dump's files are as old as their copies.
    old = partition((0, [message(0, 0)]), (1, [batch(1, 1, timestamps=[50])]))
    assert both.kafka_time(old, 20, file_time_ms=1000).status == "no_record_at_or_after"
    assert both.our_time(old, 20).found_offset == 1


def test_torn_tail_of_the_last_segment_is_ignored_as_by_kafka(both: ComparedPartition) -> None:
    torn = partition((0, [FIRST]), (3, [NEXT, LAST[:50]]))
    assert both.offset(torn, 6).status == "log_end"


def test_trailing_zeros_of_the_last_segment_are_ignored_as_by_kafka(
    both: ComparedPartition,
) -> None:
    preallocated = partition((0, [FIRST]), (3, [NEXT, bytes(4096)]))
    assert both.offset(preallocated, 6).status == "log_end"


def test_torn_tail_of_an_earlier_segment_is_unreadable_but_ignored_by_kafka(
    both: ComparedPartition,
) -> None:
    torn = partition((0, [FIRST, NEXT[:50]]), (6, [LAST]))
    assert both.kafka_offset(torn, 4).batch_base_offset == 6
    assert both.our_offset(torn, 4).status == "unreadable"


def test_records_before_damage_are_found_as_by_kafka(both: ComparedPartition) -> None:
    torn = partition((0, [FIRST, NEXT[:50]]), (6, [LAST]))
    assert both.offset(torn, 1).batch_base_offset == 0


def test_records_in_undamaged_segments_are_found_as_by_kafka(both: ComparedPartition) -> None:
    torn = partition((0, [FIRST, NEXT[:50]]), (6, [LAST]))
    assert both.offset(torn, 7).batch_base_offset == 6


def test_record_of_a_batch_with_a_wrong_checksum_is_unreadable_but_found_by_kafka(
    both: ComparedPartition,
) -> None:
    with both.opened(SOUND, rotten=ROTTEN) as kafka_log:
        kafka = offset_rows(kafka_log, [1], Resolve.RECORD)[0]
    assert kafka.found_offset == 1
    assert both.our_offset(ROTTEN, 1, Resolve.RECORD).status == "unreadable"


def test_batch_with_a_wrong_checksum_is_found_as_by_kafka(both: ComparedPartition) -> None:
    with both.opened(SOUND, rotten=ROTTEN) as kafka_log:
        kafka = offset_rows(kafka_log, [1], Resolve.BATCH)[0]
    assert both.our_offset(ROTTEN, 1) == kafka


def test_timestamp_int64_min_is_null(both: ComparedPartition) -> None:
    least = partition((0, [message(0, 1, -(2**63))]))
    assert both.our_offset(least, 0, Resolve.RECORD).found_timestamp_ms is None


def test_message_with_negative_magic_has_a_timestamp_unlike_in_kafka(
    both: ComparedPartition,
) -> None:
    # Kafka takes the header of a message for one of magic 0 or 1 only once it has read it whole.
    odd = partition((0, [message(0, -1, 50)]))
    assert both.kafka_time(odd, 20).status == "unreadable"
    assert both.our_time(odd, 20).found_offset == 0


def test_message_of_magic_0_that_starts_above_its_offset_hides_records_in_kafka_only(
    both: ComparedPartition,
) -> None:
    odd = partition((10, [wrapper(14, 0, [(20, -1), (21, -1)], CODEC_GZIP), batch(15), batch(18)]))
    assert both.offset(odd, 14).batch_base_offset == 20
    assert both.kafka_offset(odd, 16).batch_base_offset == 20
    assert both.our_offset(odd, 16).batch_base_offset == 15

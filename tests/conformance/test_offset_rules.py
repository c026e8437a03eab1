"""The results of lookups of offsets: each rule by a partition that shows it, as Kafka answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafka_index.reading.answers import Resolve
from tests.support.segments import (
    CODECS,
    INT32_MAX,
    WRAPPER_CODECS,
    batch,
    marker,
    message,
    packed_batch,
    wrapper,
)

from .partitions import partition

if TYPE_CHECKING:
    from .both import Both
    from .partitions import Partition

# Offsets 0..2, 3..5 and, in a second segment, 6..8.
PLAIN = partition((0, [batch(0), batch(3)]), (6, [batch(6)]))
# 0..2, then what compaction left: 10..12 and, in a segment named 20, 23..25; the end is 40.
GAPS = partition((0, [batch(0), batch(10)]), (20, [batch(23), batch(30, 0, last_offset_delta=9)]))


def warm_partition(batches: int) -> Partition:
    """A segment whose index is longer than the part that Kafka searches first."""
    return partition((0, [batch(i, 1, 0) for i in range(batches)]), interval=0)


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_offset_leads_to_the_batch_that_holds_it(both: Both, offset: int) -> None:
    row = both.offset(PLAIN, offset)
    assert (row.status, row.batch_base_offset, row.batch_last_offset) == ("found", 3, 5)
    assert (row.batch_position_bytes, row.batch_size_bytes) == (len(batch(0)), len(batch(3)))


def test_offset_in_a_gap_leads_to_the_next_batch(both: Both) -> None:
    assert both.offset(GAPS, 5).batch_base_offset == 10


def test_offset_after_a_segments_batches_leads_to_the_next_segment(both: Both) -> None:
    row = both.offset(GAPS, 15)
    assert (row.segment_base_offset, row.batch_base_offset) == (20, 23)


def test_offset_between_segment_name_and_first_batch_leads_to_that_batch(both: Both) -> None:
    assert both.offset(GAPS, 21).batch_base_offset == 23


def test_segments_without_batches_are_passed_over(both: Both) -> None:
    row = both.offset(partition((0, [batch(0)]), (3, []), (4, []), (9, [batch(9)])), 3)
    assert (row.segment_base_offset, row.batch_base_offset) == (9, 9)


def test_log_whose_offsets_go_back_after_its_last_index_entry_ends_where_it_starts(
    both: Both,
) -> None:
    # The entry is that of 40..49, and from there on no batch holds its offset.
    back = partition((0, [batch(base, 10, 5) for base in (0, 10, 40, 20)]), interval=300)
    assert [both.offset(back, offset).status for offset in (0, 25, 45)] == [
        "log_end",
        "after_log_end",
        "after_log_end",
    ]


def test_batch_without_records_is_found_by_its_offsets(both: Both) -> None:
    row = both.offset(GAPS, 35)
    assert (row.batch_base_offset, row.batch_last_offset) == (30, 39)


def test_record_after_the_last_one_is_not_found(both: Both) -> None:
    assert both.offset(GAPS, 35, Resolve.RECORD).status == "no_record_at_or_after"


def test_nothing_is_found_when_the_last_batches_were_compacted_away(both: Both) -> None:
    # The log ends at 9, by the name of its last segment.
    row = both.offset(partition((0, [batch(0)]), (9, [])), 5)
    assert row.status == "no_record_at_or_after"


def test_log_end_is_an_empty_read(both: Both) -> None:
    assert both.offset(PLAIN, 9).status == "log_end"


def test_offset_above_the_log_end_is_out_of_range(both: Both) -> None:
    assert both.offset(PLAIN, 10).status == "after_log_end"


def test_first_offset_of_an_empty_partition_is_its_end(both: Both) -> None:
    assert both.offset(partition((7, [])), 7).status == "log_end"


def test_offset_below_the_first_segment_is_out_of_range(both: Both) -> None:
    assert both.offset(partition((7, [batch(7)])), 6).status == "before_log_start"


def test_offset_below_the_log_start_is_out_of_range(both: Both) -> None:
    moved = partition((0, [batch(0), batch(3)]), log_start=4)
    assert both.offset(moved, 3).status == "before_log_start"


def test_log_start_inside_a_batch_leads_to_that_batch(both: Both) -> None:
    moved = partition((0, [batch(0), batch(3)]), log_start=4)
    assert both.offset(moved, 4).batch_base_offset == 3


def test_log_start_above_all_segments_is_an_empty_log(both: Both) -> None:
    gone = partition((0, [batch(0)]), log_start=50)
    assert [both.offset(gone, offset).status for offset in (49, 50, 51)] == [
        "before_log_start",
        "log_end",
        "after_log_end",
    ]


def test_of_a_batch_written_twice_an_offset_inside_leads_to_the_later(both: Both) -> None:
    row = both.offset(partition((0, [batch(0), batch(3), batch(3), batch(6)])), 4)
    assert row.batch_position_bytes == 2 * len(batch(0))


def test_of_a_batch_written_twice_its_base_offset_leads_to_the_earlier(both: Both) -> None:
    row = both.offset(partition((0, [batch(0), batch(3), batch(3), batch(6)])), 3)
    assert row.batch_position_bytes == len(batch(0))


def test_batch_in_front_decides_when_offsets_step_back(both: Both) -> None:
    # 0..9, then 4..5, then 10..12: for 7, the search has forgotten the first batch.
    stepping = partition((0, [batch(0, 10), batch(4, 2), batch(10)]))
    assert both.offset(stepping, 7).batch_base_offset == 10


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_message_is_a_batch_of_its_own(both: Both, magic: int) -> None:
    row = both.offset(partition((0, [message(0, magic, 5), message(1, magic, 6)])), 1)
    assert (row.batch_base_offset, row.batch_last_offset) == (1, 1)


@pytest.mark.parametrize("codec", WRAPPER_CODECS)
def test_wrapper_of_magic_1_begins_at_its_first_message(both: Both, codec: int) -> None:
    old = partition((10, [wrapper(14, 1, [(0, 5), (2, 6), (4, 7)], codec), batch(15)]))
    row = both.offset(old, 12)
    assert (row.batch_base_offset, row.batch_last_offset) == (10, 14)


@pytest.mark.parametrize("codec", WRAPPER_CODECS)
def test_wrapper_of_magic_0_begins_at_its_first_message(both: Both, codec: int) -> None:
    old = partition((10, [wrapper(14, 0, [(11, -1), (14, -1)], codec), batch(15)]))
    assert both.offset(old, 12).batch_base_offset == 11


def test_wrapper_offset_0_makes_the_offsets_inside_absolute(both: Both) -> None:
    # As some versions of librdkafka wrote it.
    old = partition((0, [wrapper(0, 1, [(0, 5), (1, 6), (2, 7)], 1), batch(3)]))
    assert both.offset(old, 2, Resolve.RECORD).found_offset == 3


@pytest.mark.parametrize("codec", CODECS)
def test_record_is_found_in_a_compressed_batch(both: Both, codec: int) -> None:
    packed = partition((0, [packed_batch(0, [(0, 50), (3, 40), (6, 60)], codec)]))
    row = both.offset(packed, 1, Resolve.RECORD)
    assert (row.found_offset, row.found_timestamp_ms) == (3, 40)


def test_record_is_found_in_snappy_without_framing(both: Both) -> None:
    packed = partition((0, [packed_batch(0, [(0, 50), (3, 40)], 2, unframed=True)]))
    assert both.offset(packed, 1, Resolve.RECORD).found_offset == 3


def test_record_is_looked_for_in_later_batches_when_its_own_lost_it(both: Both) -> None:
    row = both.offset(
        partition((0, [packed_batch(0, [(0, 50)], last_offset_delta=9), batch(10)])),
        5,
        Resolve.RECORD,
    )
    assert (row.found_offset, row.batch_base_offset) == (10, 10)


def test_record_is_looked_for_in_later_segments_when_its_own_lost_it(both: Both) -> None:
    row = both.offset(
        partition((0, [batch(0, 0, last_offset_delta=9)]), (10, [batch(10)])), 5, Resolve.RECORD
    )
    assert (row.segment_base_offset, row.found_offset) == (10, 10)


def test_control_record_counts_as_a_record(both: Both) -> None:
    ended = partition((0, [batch(0), marker(3, 5, 0, commit=True, timestamp=77)]))
    row = both.offset(ended, 3, Resolve.RECORD)
    assert (row.found_offset, row.found_timestamp_ms) == (3, 77)


def test_log_append_time_stands_for_the_records_own(both: Both) -> None:
    appended = partition((0, [packed_batch(0, [(0, 50), (1, 60)], log_append_ms=1234)]))
    assert both.offset(appended, 0, Resolve.RECORD).found_timestamp_ms == 1234


def test_leader_epoch_is_the_batchs(both: Both) -> None:
    led = partition((0, [batch(0, leader_epoch=7)]))
    assert both.offset(led, 1, Resolve.RECORD).found_leader_epoch == 7


def test_batch_without_leader_epoch_has_none(both: Both) -> None:
    old = partition((0, [batch(0, leader_epoch=-1)]))
    assert both.offset(old, 1, Resolve.RECORD).found_leader_epoch is None


@pytest.mark.parametrize("offset", [0, 1, 1023, 1024, 1974, 1975, 1976, 2998, 2999])
def test_floor_entry_is_found_in_an_index_of_many_pages(both: Both, offset: int) -> None:
    row = both.offset(warm_partition(3000), offset, Resolve.INDEX)
    assert row.entry_offset == offset


def test_without_entries_the_floor_is_the_segments_beginning(both: Both) -> None:
    row = both.offset(PLAIN, 7, Resolve.INDEX)
    assert (row.entry_offset, row.entry_position_bytes) == (6, 0)


def test_index_alone_does_not_see_the_log_end(both: Both) -> None:
    assert both.offset(PLAIN, 1000, Resolve.INDEX).status == "found"


def test_offset_at_the_high_watermark_is_not_visible_yet(both: Both) -> None:
    assert both.offset(PLAIN, 6, high_watermark=6).status == "log_end"


def test_offset_below_the_high_watermark_is_found(both: Both) -> None:
    assert both.offset(PLAIN, 5, high_watermark=6).batch_base_offset == 3


def test_log_end_above_the_high_watermark_is_an_empty_read(both: Both) -> None:
    assert both.offset(PLAIN, 9, high_watermark=6).status == "log_end"


def test_offset_above_the_log_end_is_out_of_range_whatever_is_visible(both: Both) -> None:
    assert both.offset(PLAIN, 10, high_watermark=6).status == "after_log_end"


def test_high_watermark_above_the_log_end_is_the_log_end(both: Both) -> None:
    assert both.offset(PLAIN, 8, high_watermark=1000).batch_base_offset == 6


def test_high_watermark_below_the_log_start_is_the_log_start(both: Both) -> None:
    moved = partition((0, [batch(0), batch(3)]), log_start=3)
    assert both.offset(moved, 3, high_watermark=1).status == "log_end"


def test_farthest_offset_of_a_segment_is_found(both: Both) -> None:
    wide = partition((5, [batch(5), batch(5 + INT32_MAX, 1)]))
    assert both.offset(wide, 5 + INT32_MAX).batch_base_offset == 5 + INT32_MAX

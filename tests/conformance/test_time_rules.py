"""The results of lookups of timestamps: each rule by a partition, as Kafka answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafka_index.reading.answers import Resolve
from tests.support.segments import CODECS, WRAPPER_CODECS, batch, message, packed_batch, wrapper

from .partitions import partition

if TYPE_CHECKING:
    from .both import Both

LATEST, EARLIEST, LARGEST = -1, -2, -3
INT64_MAX = 2**63 - 1
# Offsets 0..2 at 10, 30, 20; 3..4 at 25, 50; in a second segment 5..6 at 40, 60.
PLAIN = partition(
    (0, [batch(0, timestamps=[10, 30, 20]), batch(3, 2, timestamps=[25, 50])]),
    (5, [batch(5, 2, timestamps=[40, 60])]),
)


@pytest.mark.parametrize(("time", "offset"), [(0, 0), (10, 0), (11, 1), (30, 1), (31, 4), (51, 6)])
def test_timestamp_leads_to_the_first_record_as_late(both: Both, time: int, offset: int) -> None:
    assert both.time(PLAIN, time).found_offset == offset


def test_timestamp_later_than_all_is_not_found(both: Both) -> None:
    assert both.time(PLAIN, 61).status == "no_record_at_or_after"


def test_first_segment_with_a_timestamp_as_late_is_searched(both: Both) -> None:
    # 50 is in the first segment; 40, earlier and in the second one, is never looked at.
    assert both.time(PLAIN, 40).found_offset == 4


def test_batch_of_a_timestamp_is_the_first_with_a_largest_timestamp_as_late(both: Both) -> None:
    row = both.time(PLAIN, 25, Resolve.BATCH)
    assert (row.batch_base_offset, row.found_offset) == (0, None)


def test_batch_whose_latest_record_is_gone_is_passed_over(both: Both) -> None:
    left = partition((0, [packed_batch(0, [(0, 10)], max_timestamp=99), batch(5, 1)]))
    assert both.time(left, 50).found_offset == 5


def test_later_segments_are_not_tried_when_the_chosen_one_has_nothing(both: Both) -> None:
    empty = batch(0, 0, last_offset_delta=4, max_timestamp=99)
    left = partition((0, [empty]), (5, [batch(5, timestamps=[200] * 3)]))
    assert both.time(left, 50).status == "no_record_at_or_after"


def test_segment_wholly_below_the_log_start_is_chosen_and_has_nothing(both: Both) -> None:
    moved = partition(
        (0, [batch(0, timestamps=[10, 20, 99])]), (3, [batch(3, timestamps=[200] * 3)]), log_start=3
    )
    assert both.time(moved, 50).status == "no_record_at_or_after"


def test_records_below_the_log_start_are_passed_over(both: Both) -> None:
    moved = partition((0, [batch(0, timestamps=[10, 20, 30]), batch(3)]), log_start=2)
    assert both.time(moved, 5).found_offset == 2


@pytest.mark.parametrize("codec", CODECS)
def test_record_is_found_in_a_compressed_batch(both: Both, codec: int) -> None:
    packed = partition((0, [packed_batch(0, [(0, 50), (3, 40), (6, 60)], codec)]))
    assert both.time(packed, 55).found_offset == 6


@pytest.mark.parametrize("codec", WRAPPER_CODECS)
def test_record_is_found_in_a_wrapper_of_magic_1(both: Both, codec: int) -> None:
    old = partition((10, [wrapper(14, 1, [(0, 5), (2, 9), (4, 7)], codec)]))
    row = both.time(old, 6)
    assert (row.found_offset, row.found_timestamp_ms, row.found_leader_epoch) == (12, 9, None)


def test_wrappers_log_append_time_stands_for_its_messages_own(both: Both) -> None:
    old = partition((10, [wrapper(14, 1, [(0, 5), (4, 7)], 1, log_append_ms=80)]))
    row = both.time(old, 50)
    assert (row.found_offset, row.found_timestamp_ms) == (10, 80)


def test_messages_of_magic_0_have_no_timestamp_to_be_found_by(both: Both) -> None:
    assert both.time(partition((0, [message(0, 0)])), 0).status == "no_record_at_or_after"


def test_record_with_a_negative_timestamp_is_earlier_than_0(both: Both) -> None:
    early = partition((0, [batch(0, timestamps=[-5, 3, -1])]))
    assert both.time(early, 0).found_offset == 1


def test_largest_timestamp_of_all_is_found(both: Both) -> None:
    late = partition((0, [batch(0, timestamps=[1, INT64_MAX, 2])]))
    assert both.time(late, INT64_MAX).found_offset == 1


def test_floor_time_entry_is_the_last_one_not_later(both: Both) -> None:
    # The first batch is never indexed; the second one's entry is 50.
    times = (10, 50, 30, 70, 60)
    indexed = partition((0, [batch(i, 1, timestamps=[t]) for i, t in enumerate(times)]), interval=0)
    row = both.time(indexed, 60, Resolve.INDEX)
    assert (row.entry_timestamp_ms, row.entry_offset) == (50, 1)


def test_without_a_time_entry_not_later_the_floor_is_kafkas_placeholder(both: Both) -> None:
    row = both.time(PLAIN, 5, Resolve.INDEX)
    assert (row.entry_timestamp_ms, row.entry_offset, row.entry_position_bytes) == (-1, 0, 0)


def test_position_of_a_time_entry_is_never_in_front_of_the_log_start(both: Both) -> None:
    batches = [batch(i, 1, timestamps=[10 + i]) for i in range(5)]
    moved = partition((0, batches), interval=0, log_start=3)
    row = both.time(moved, 11, Resolve.INDEX)
    assert (row.entry_offset, row.entry_position_bytes) == (1, 3 * len(batches[0]))


def test_latest_is_the_log_end(both: Both) -> None:
    row = both.time(PLAIN, LATEST)
    assert (row.status, row.found_offset, row.found_timestamp_ms) == ("found", 7, -1)


def test_earliest_is_the_log_start(both: Both) -> None:
    moved = partition((0, [batch(0), batch(3)]), log_start=2)
    row = both.time(moved, EARLIEST)
    assert (row.status, row.found_offset, row.found_timestamp_ms) == ("found", 2, -1)


def test_latest_and_earliest_of_an_empty_partition_are_the_same(both: Both) -> None:
    empty = partition((7, []))
    assert both.time(empty, LATEST).found_offset == both.time(empty, EARLIEST).found_offset == 7


def test_largest_is_the_first_record_with_the_largest_timestamp(both: Both) -> None:
    twice = partition((0, [batch(0), batch(3, timestamps=[99_999, 5, 99_999])]), (6, [batch(6)]))
    row = both.time(twice, LARGEST)
    assert (row.found_offset, row.found_timestamp_ms) == (3, 99_999)


def test_answers_where_offsets_go_back_do_not_depend_on_their_neighbours(both: Both) -> None:
    # Only the last batch is indexed: the entry for 3009 leads past its own batch, and the log ends
    # at 20.
    batches = [
        batch(base, 10, 5, range(time, time + 10))
        for base, time in ((0, 1000), (30, 3000), (10, 2000))
    ]
    rows = both.times(partition((0, batches), interval=300), [1000, 1010, 3009, 3010])
    assert [row.found_offset for row in rows] == [0, None, None, None]


def test_largest_of_equal_segments_is_in_the_first(both: Both) -> None:
    equal = partition((0, [batch(0, timestamps=[5] * 3)]), (3, [batch(3, timestamps=[5] * 3)]))
    assert both.time(equal, LARGEST).found_offset == 0


def test_largest_takes_no_notice_of_the_log_start(both: Both) -> None:
    moved = partition((0, [batch(0, timestamps=[99, 5, 5])]), log_start=2)
    assert both.time(moved, LARGEST).found_offset == 0


def test_largest_is_not_found_when_its_batch_is_empty(both: Both) -> None:
    emptied = partition(
        (0, [batch(0, timestamps=[5] * 3), batch(3, 0, last_offset_delta=2, max_timestamp=99)])
    )
    assert both.time(emptied, LARGEST).status == "no_record_at_or_after"


def test_largest_is_not_found_in_messages_of_magic_0(both: Both) -> None:
    assert both.time(partition((0, [message(0, 0)])), LARGEST).status == "no_record_at_or_after"


def test_largest_without_any_timestamp_is_the_first_record_without_one(both: Both) -> None:
    untimed = partition((0, [batch(0, timestamps=[-1] * 3)]))
    row = both.time(untimed, LARGEST)
    assert (row.found_offset, row.found_timestamp_ms) == (0, -1)


def test_largest_is_not_found_when_all_timestamps_are_below_minus_1(both: Both) -> None:
    negative = partition((0, [batch(0, timestamps=[-9, -8, -7])]))
    assert both.time(negative, LARGEST).status == "no_record_at_or_after"


def test_latest_has_the_latest_epoch(both: Both) -> None:
    assert both.time(PLAIN, LATEST, epochs=[(2, 0), (5, 3)]).found_leader_epoch == 5


def test_latest_has_the_epoch_of_a_leader_that_has_appended_nothing(both: Both) -> None:
    assert both.time(PLAIN, LATEST, epochs=[(2, 0), (5, 7)]).found_leader_epoch == 5


def test_epochs_that_start_after_the_log_end_are_forgotten(both: Both) -> None:
    assert both.time(PLAIN, LATEST, epochs=[(2, 0), (5, 8)]).found_leader_epoch == 2


def test_earliest_has_the_epoch_that_covers_the_log_start(both: Both) -> None:
    moved = partition((0, [batch(0), batch(3)]), log_start=4)
    row = both.time(moved, EARLIEST, epochs=[(2, 0), (5, 3), (6, 5)])
    assert row.found_leader_epoch == 5


def test_earliest_has_no_epoch_when_the_first_one_starts_later(both: Both) -> None:
    assert both.time(PLAIN, EARLIEST, epochs=[(5, 3)]).found_leader_epoch is None


@pytest.mark.parametrize(
    ("lines", "latest", "earliest"),
    [
        ([(5, 0), (3, 1)], 3, None),
        ([(3, 1), (5, 0)], 5, 5),
        ([(5, 1), (7, 0)], 7, 7),
        ([(1, 0), (3, 2), (2, 1)], 2, 1),
    ],
)
def test_lines_of_a_checkpoint_that_contradict_others_take_their_place(
    both: Both, lines: list[tuple[int, int]], latest: int, earliest: int | None
) -> None:
    assert both.time(PLAIN, LATEST, epochs=lines).found_leader_epoch == latest
    assert both.time(PLAIN, EARLIEST, epochs=lines).found_leader_epoch == earliest


def test_latest_below_the_high_watermark_is_the_high_watermark(both: Both) -> None:
    assert both.time(PLAIN, LATEST, high_watermark=3).found_offset == 3


def test_record_at_the_high_watermark_is_not_visible_yet(both: Both) -> None:
    assert both.time(PLAIN, 31, high_watermark=3).status == "no_record_at_or_after"


def test_largest_timestamp_at_the_high_watermark_is_not_visible_yet(both: Both) -> None:
    assert both.time(PLAIN, LARGEST, high_watermark=5).status == "no_record_at_or_after"

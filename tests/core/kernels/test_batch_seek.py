"""Walks that many targets share against one walk for each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.kernels import batch_header, batch_seek
from tests.support import seek_model
from tests.support.campaign import sample_size
from tests.support.seek_cases import (
    GZIP,
    INT64S,
    UNTOUCHED,
    Log,
    address_of,
    all_offsets,
    damaged,
    entries_of,
    logs,
    offset_answer,
    seek_offsets,
    seek_times,
    time_answer,
)
from tests.support.seek_model import OffsetEntry, TimeEntry
from tests.support.segments import batch, message

# ------------------------------------------------------------------------- walks to offsets


@settings(max_examples=sample_size(150, one_in=4))
@given(logs(backward=True), st.data())
def test_shared_scan_to_offsets_equals_single_scans(log: Log, data: st.DataObject) -> None:
    entries, _ = entries_of(data, log)
    targets = sorted(data.draw(st.lists(st.sampled_from(all_offsets(log)), max_size=30)))
    floors = [seek_model.floor_offset(entries, target, 0) for target in targets]
    walked = seek_offsets(log, targets, floors)
    expected = [
        offset_answer(log, floor.position, target)
        for target, floor in zip(targets, floors, strict=True)
    ]
    assert (walked.code, walked.batches) == (batch_seek.SEEK_DONE, expected)


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.sampled_from((0, 90, 300)))
def test_index_entry_of_an_intact_log_changes_no_answer(log: Log, interval: int) -> None:
    entries, _ = seek_model.index_of(log.headers, interval)
    targets = all_offsets(log)
    floors = [seek_model.floor_offset(entries, target, 0) for target in targets]
    assert seek_offsets(log, targets, floors).batches == [
        offset_answer(log, 0, target) for target in targets
    ]


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(backward=True, damaged_inside=True), st.data())
def test_damage_inside_a_compressed_message_hides_its_records(
    log: Log, data: st.DataObject
) -> None:
    entries, _ = entries_of(data, log)
    targets = all_offsets(log)
    floors = [seek_model.floor_offset(entries, target, 0) for target in targets]
    assert seek_offsets(log, targets, floors).batches == [
        offset_answer(log, floor.position, target)
        for target, floor in zip(targets, floors, strict=True)
    ]


@settings(max_examples=sample_size(150, one_in=4))
@given(logs(), st.data())
def test_shared_scan_over_damage_equals_single_scans(log: Log, data: st.DataObject) -> None:
    broken = damaged(data, log)
    targets = sorted(data.draw(st.lists(st.sampled_from(all_offsets(broken)) | INT64S)))
    floors = [OffsetEntry(0, 0)] * len(targets)
    assert seek_offsets(broken, targets, floors).batches == [
        offset_answer(broken, 0, target) for target in targets
    ]


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.data())
def test_scan_from_a_wrong_entry_reports_it(log: Log, data: st.DataObject) -> None:
    positions = [header.position for header in log.headers if header.position]
    if not positions:
        return
    near = st.sampled_from(positions) | st.integers(1, len(log.data) + 20)
    entry = OffsetEntry(data.draw(st.integers(0, 60)), data.draw(near))
    walked = seek_offsets(log, [entry.offset], [entry])
    holds = seek_model.offset_entry_holds(log.data, entry)
    assert (walked.code == batch_seek.SEEK_DONE) == holds
    assert walked.code in (batch_seek.SEEK_DONE, batch_seek.SEEK_MISMATCH)
    if holds:
        assert walked.batches == [offset_answer(log, 0, entry.offset)]


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.data())
def test_lookups_before_a_wrong_index_entry_are_correct(log: Log, data: st.DataObject) -> None:
    entries, _ = entries_of(data, log, interval=0)
    if not entries:
        return
    slot = data.draw(st.integers(0, len(entries) - 1))
    shifted = entries[slot].position + data.draw(st.sampled_from((-9, -1, 1, 30)))
    entries[slot] = entries[slot]._replace(position=max(shifted, 0))
    targets = all_offsets(log)
    floors = [seek_model.floor_offset(entries, target, 0) for target in targets]
    walked = seek_offsets(log, targets, floors)
    right = [offset_answer(log, 0, target) for target in targets]
    if walked.code == batch_seek.SEEK_MISMATCH:
        assert floors[walked.query] == entries[slot]
        assert walked.batches[walked.query] == UNTOUCHED
        right = right[: walked.query]
    assert walked.batches[: len(right)] == right


def test_seek_from_an_entry_of_several_batches_finds_the_requested_batch() -> None:
    # Older brokers made one entry for an append: the first batch's position, the last's offset.
    log = Log(b"".join(batch(offset) for offset in (0, 3, 6, 9)))
    size = len(batch(0))
    entry = OffsetEntry(8, size)
    assert seek_offsets(log, [8, 9, 11], [entry] * 3).batches == [2 * size, 3 * size, 3 * size]


def test_message_is_decompressed_once_for_all_targets_in_it() -> None:
    entry = message(9, 1, value=b"", attributes=GZIP)
    log = Log(entry + batch(10), {0: 4})
    walked = seek_offsets(log, [5, 6, 7, 8, 9, 10], [OffsetEntry(0, 0)] * 6)
    assert walked.batches == [0] * 5 + [len(entry)]
    assert walked.unpacked == [0]


def test_message_that_ends_below_the_target_is_not_decompressed() -> None:
    entry = message(9, 1, value=b"", attributes=GZIP)
    assert seek_offsets(Log(entry), [10], [OffsetEntry(0, 0)]).unpacked == []


def test_batch_before_damage_is_found() -> None:
    log = Log(batch(0) + batch(3, length=5))
    walked = seek_offsets(log, [2, 3], [OffsetEntry(0, 0)] * 2)
    assert walked.batches == [0, batch_header.damage_at(len(batch(0)))]


# ---------------------------------------------------------------------- walks to timestamps


@settings(max_examples=sample_size(150, one_in=4))
@given(logs(), st.data())
def test_shared_scan_to_timestamps_equals_single_scans(log: Log, data: st.DataObject) -> None:
    offsets, times = entries_of(data, log)
    starting = data.draw(st.sampled_from(all_offsets(log)[1:-1]))
    targets = sorted(data.draw(st.lists(st.integers(0, 14), max_size=30)))
    entries = [seek_model.floor_time(times, target, 0) for target in targets]
    floors = [seek_model.floor_offset(offsets, max(entry.offset, starting), 0) for entry in entries]
    walked = seek_times(log, targets, entries, floors, starting)
    expected = [
        time_answer(log, floor.position, target, starting)
        for target, floor in zip(targets, floors, strict=True)
    ]
    assert (walked.code, walked.batches) == (batch_seek.SEEK_DONE, expected)


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.sampled_from((0, 90, 300)))
def test_index_entry_of_an_intact_log_changes_no_timestamp_answer(log: Log, interval: int) -> None:
    offsets, times = seek_model.index_of(log.headers, interval)
    targets = list(range(14))
    entries = [seek_model.floor_time(times, target, 0) for target in targets]
    floors = [seek_model.floor_offset(offsets, entry.offset, 0) for entry in entries]
    assert seek_times(log, targets, entries, floors).batches == [
        time_answer(log, 0, target) for target in targets
    ]


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.data())
def test_shared_scan_to_timestamps_over_damage_equals_single_scans(
    log: Log, data: st.DataObject
) -> None:
    broken = damaged(data, log)
    targets = list(range(14))
    entries, floors = [TimeEntry(-1, 0)] * 14, [OffsetEntry(0, 0)] * 14
    assert seek_times(broken, targets, entries, floors).batches == [
        time_answer(broken, 0, target) for target in targets
    ]


@settings(max_examples=sample_size(150, one_in=4))
@given(logs(), st.data())
def test_scan_from_a_wrong_time_entry_reports_it(log: Log, data: st.DataObject) -> None:
    offsets, _ = entries_of(data, log)
    entry = TimeEntry(data.draw(st.integers(0, 13)), data.draw(st.integers(0, 50)))
    floor = seek_model.floor_offset(offsets, entry.offset, 0)
    walked = seek_times(log, [entry.timestamp], [entry], [floor])
    holds = seek_model.time_entry_holds(log.data, floor.position, entry)
    assert walked.code == (batch_seek.SEEK_DONE if holds else batch_seek.SEEK_TIME_MISMATCH)


def test_time_entry_below_the_starting_offset_is_not_checked() -> None:
    # Kafka begins at the starting offset then, whatever the entry holds.
    log = Log(batch(0, max_timestamp=5) + batch(3, max_timestamp=9))
    size = len(batch(0))
    walked = seek_times(log, [7], [TimeEntry(7, 1)], [OffsetEntry(5, size)], starting_offset=4)
    assert (walked.code, walked.batches) == (batch_seek.SEEK_DONE, [size])


def test_wrong_entries_of_the_two_indexes_are_distinguished() -> None:
    log = Log(batch(0, max_timestamp=5) + batch(3, max_timestamp=9))
    walked = seek_times(log, [9], [TimeEntry(9, 5)], [OffsetEntry(4, len(batch(0)))])
    assert walked.code == batch_seek.SEEK_MISMATCH


# ------------------------------------------------------------------ entries and what follows


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.data())
def test_offset_entry_ends_at_the_batch_with_its_offset(log: Log, data: st.DataObject) -> None:
    headers = log.headers
    if not headers:
        return
    begin = data.draw(st.integers(0, len(headers) - 1))
    offset = data.draw(st.integers(0, 60))
    result = batch_seek.entry_end(
        address_of(log.array), len(log.data), headers[begin].position, offset
    )
    ends = [header.position for header in headers[begin:] if header.last_offset == offset]
    # Which of the two it is depends on what stands in the way first.
    assert result == ends[0] if ends else result in (batch_header.AT_END, batch_header.AT_DAMAGE)


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.data())
def test_largest_timestamp_after_a_batch_is_its_first_occurrence(
    log: Log, data: st.DataObject
) -> None:
    headers = log.headers
    begin = data.draw(st.integers(0, len(headers)))
    start = headers[begin].position if begin < len(headers) else len(log.data)
    later = [header for header in headers[begin:] if header.max_timestamp > -1]
    expected = max(
        ((one.max_timestamp, one.last_offset) for one in later),
        key=lambda pair: pair[0],
        default=(-1, -1),
    )
    actual = batch_seek.largest_timestamp_after(address_of(log.array), len(log.data), start)
    assert actual == (*expected, len(log.data))


def test_largest_timestamp_after_a_batch_is_the_one_before_damage() -> None:
    log = Log(batch(0, max_timestamp=5) + batch(3, max_timestamp=9, length=0))
    result = batch_seek.largest_timestamp_after(address_of(log.array), len(log.data), 0)
    assert result == (5, 2, len(batch(0)))


@settings(max_examples=sample_size(100, one_in=4))
@given(logs(), st.integers(-3, 12))
def test_first_batch_with_exactly_the_timestamp_is_found(log: Log, timestamp: int) -> None:
    same = [header.position for header in log.headers if header.max_timestamp == timestamp]
    result = batch_seek.first_with_timestamp(address_of(log.array), len(log.data), 0, timestamp)
    assert result == (same[0] if same else batch_header.AT_END)


def test_search_for_an_exact_timestamp_ends_at_damage() -> None:
    log = Log(batch(0, max_timestamp=5) + batch(3, max_timestamp=9, length=0))
    result = batch_seek.first_with_timestamp(address_of(log.array), len(log.data), 0, 9)
    assert result == batch_header.damage_at(len(batch(0)))

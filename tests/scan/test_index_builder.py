"""From batches to index files, in chunks of any size."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.layout.records import TIME_ENTRY
from kafka_index.records import ScanStop
from tests.support import twins
from tests.support.batch_sources import Built, Cell, build, chunk_of, rows, streamed
from tests.support.campaign import drawn
from tests.support.cases import Case
from tests.support.named import NAMED
from tests.support.segments import Segment, batch, control_batch, control_key, marker, segment
from tests.support.strategies import segments


def split(cells: list[Cell], cuts: list[int]) -> list[list[Cell]]:
    """The batches in parts, none of them empty."""
    places = sorted({0, len(cells), *(cut % (len(cells) + 1) for cut in cuts)})
    return [cells[start:end] for start, end in pairwise(places)]


def built(one: Segment, cuts: list[int] | None = None, *, growing: bool = True) -> Built:
    """Build a segment with its batches in one chunk, or in several."""
    parts = split(rows(streamed(one.log, [], one.base_offset)), cuts or [])
    return build(
        map(chunk_of, parts),
        one.base_offset,
        one.index_interval_bytes,
        one.segment_index_bytes,
        growing=growing,
    )


def reason(one: Segment) -> tuple[str, int] | None:
    """The code of why recovery fails or ends, and where."""
    stop = built(one).stop
    return None if stop is None else (stop.code, stop.position_bytes)


@settings(deadline=None, max_examples=drawn(150, one_in=4))
@given(segments(), st.lists(st.integers(0, 40), max_size=6))
def test_chunks_make_no_difference_to_files_and_stops(one: Segment, cuts: list[int]) -> None:
    whole, parts = built(one), built(one, cuts)
    assert parts.stop == whole.stop
    if whole.stop is None or not whole.stop.refused:
        assert parts == whole


@settings(deadline=None, max_examples=60)
@given(segments())
def test_growing_files_end_as_those_that_take_all_at_once(one: Segment) -> None:
    assert built(one) == built(one, growing=False)


# No index can be made with less room than an entry takes.
ROOMY = [case for case in NAMED if case.segment.segment_index_bytes >= TIME_ENTRY.itemsize]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ROOMY])
def test_named_segments_make_no_difference_batch_by_batch(case: Case) -> None:
    one_by_one = built(case.segment, list(range(200)))
    assert one_by_one.stop == built(case.segment).stop


@settings(deadline=None, max_examples=drawn(100, one_in=4))
@given(segments(damaged=False))
def test_entries_are_those_of_the_rule(one: Segment) -> None:
    result = built(one)
    if result.stop is not None:
        return
    batches = twins.scan_log(one.log, one.base_offset)[2]
    chosen, (_, latest, latest_offset) = twins.choose_entries(
        [(row.position, row.last_offset, row.max_timestamp) for row in batches],
        one.index_interval_bytes,
    )
    expected = [
        (batches[row].last_offset - one.base_offset, batches[row].position) for row, *_ in chosen
    ]
    assert list(struct.iter_unpack(">ii", result.offset_index)) == expected
    times: list[tuple[int, int]] = []
    for timestamp, offset in [*((time, at) for _, time, at in chosen), (latest, latest_offset)]:
        if timestamp > (times[-1][0] if times else -1):
            times.append((timestamp, offset - one.base_offset))
    assert list(struct.iter_unpack(">qi", result.time_index)) == times


def test_no_batches_make_empty_files() -> None:
    assert build([], base_offset=10) == Built(b"", b"", None, 0, 0, 10, -1)


def test_counts_and_ends_are_those_of_the_batches() -> None:
    log = batch(10) + batch(13, 2, timestamps=[5000, 4000])
    result = built(segment(log, base_offset=10))
    assert (result.valid_bytes, result.batch_count) == (len(log), 2)
    assert (result.next_offset, result.max_timestamp_ms) == (15, 5000)


SIZE = len(batch(0, 1))


def ones(*offsets: int) -> list[bytes]:
    """Batches of one record and one size, each a millisecond later."""
    return [batch(offset, 1, timestamps=[at]) for at, offset in enumerate(offsets)]


def test_a_full_offset_index_is_refused_where_it_is_full() -> None:
    one = segment(*ones(*range(9)), interval=0, index_bytes=16)
    assert reason(one) == ("index_full", SIZE)


def test_a_backward_offset_is_refused_at_its_index_entry() -> None:
    one = segment(*ones(0, 5, 2), interval=0)
    assert reason(one) == ("offset_backward", 2 * SIZE)


def test_a_refusal_of_the_last_time_entry_is_told_at_the_end() -> None:
    # The largest timestamp comes last, with an offset below the one that has an entry.
    entries = [batch(10, 1, timestamps=[5]), batch(20, 1, timestamps=[6])]
    one = segment(*entries, batch(5, 1, timestamps=[9]), interval=SIZE - 1)
    assert reason(one) == ("offset_backward", 2 * SIZE)


def test_a_transactional_fault_is_refused_at_its_batch() -> None:
    opened = batch(0, producer_id=7, producer_epoch=0, transactional=True)
    one = segment(opened, batch(3, producer_id=7, producer_epoch=0))
    assert built(one).stop == ScanStop("not_transactional", len(opened), refused=True)


def test_an_unreadable_marker_keeps_its_batch_and_ends_after_it() -> None:
    bad = control_batch(3, 7, 0, b"", b"")
    one = segment(batch(0), bad, batch(4))
    result = built(one)
    assert result.stop == ScanStop("invalid_marker", len(batch(0)))
    assert (result.valid_bytes, result.next_offset) == (len(batch(0) + bad), 4)


def test_a_marker_of_another_type_is_refused() -> None:
    one = segment(batch(0), control_batch(3, 7, 0, control_key(2), b""))
    assert reason(one) == ("unreadable_marker", len(batch(0)))


def test_an_index_that_refuses_a_batch_does_so_before_its_producer_does() -> None:
    opened = batch(5, 1, producer_id=7, producer_epoch=0, transactional=True)
    again = batch(5, 1, producer_id=7, producer_epoch=0, timestamps=[9])
    one = segment(opened, opened, again, interval=0)
    assert reason(one) == ("offset_backward", 2 * len(opened))


def test_ended_transactions_pass() -> None:
    opened = batch(0, producer_id=7, producer_epoch=0, transactional=True)
    one = segment(opened, marker(3, 7, 0, commit=True), batch(4, producer_id=7))
    assert reason(one) is None

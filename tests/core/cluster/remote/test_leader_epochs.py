"""The remote segments from which offsets are read, by leader epochs."""

from __future__ import annotations

import pytest

from kafka_index.core.cluster.merged_listing import choose_segments, valid_end
from kafka_index.core.cluster.remote.uploads import RemoteObjects, Upload
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.fs.uris import Layout, SegmentKey


def _epochs(*entries: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*entry) for entry in entries)


def _segment(
    number: int, start: int, end: int, *epochs: tuple[int, int], uploaded_ms: int = 0
) -> Upload:
    objects = RemoteObjects("", Layout.LOCAL, SegmentKey("", "", "", 0, start, str(number)))
    return Upload(objects, "", start, end, _epochs(*(epochs or ((0, start),))), 0, uploaded_ms)


def _number(segment: Upload) -> int:
    return int(segment.objects.key.segment_id)


def _readable(
    candidates: list[Upload], *lineage: tuple[int, int]
) -> tuple[list[tuple[int, int, int]], list[int]]:
    readable, rejected = choose_segments(
        candidates, _epochs(*lineage), same_content=lambda _first, _second: True
    )
    return (
        [(_number(each.upload), each.upload.start_offset, each.end_offset) for each in readable],
        [_number(each.upload) for each in rejected],
    )


def test_successive_remote_segments_are_all_read() -> None:
    segments = [_segment(1, 10, 19), _segment(0, 0, 9), _segment(2, 20, 29)]

    assert _readable(segments, (0, 0)) == ([(0, 0, 9), (1, 10, 19), (2, 20, 29)], [])


def test_latest_upload_of_an_offset_range_is_read() -> None:
    segments = [_segment(0, 0, 9, uploaded_ms=1), _segment(1, 0, 9, uploaded_ms=2)]

    assert _readable(segments) == ([(1, 0, 9)], [0])


def test_remote_segment_within_a_longer_one_is_not_read() -> None:
    segments = [_segment(0, 0, 29), _segment(1, 10, 19), _segment(2, 30, 39)]

    assert _readable(segments) == ([(0, 0, 29), (2, 30, 39)], [1])


def test_overlap_of_two_remote_segments_is_read_from_the_later_one() -> None:
    segments = [_segment(0, 0, 14), _segment(1, 10, 24)]

    assert _readable(segments) == ([(0, 0, 9), (1, 10, 24)], [])


def test_offsets_truncated_by_an_unclean_election_are_not_read() -> None:
    # The leader of epoch 0 uploaded up to 29; that of epoch 2 had the log up to 19 only.
    segments = [
        _segment(0, 0, 14),
        _segment(1, 15, 29),
        _segment(2, 15, 39, (0, 15), (2, 20)),
    ]

    assert _readable(segments, (0, 0), (2, 20)) == ([(0, 0, 14), (2, 15, 39)], [1])


def test_segment_of_an_epoch_unknown_to_the_log_is_rejected() -> None:
    assert _readable([_segment(0, 20, 29, (1, 20))], (0, 0), (2, 15)) == ([], [0])


@pytest.mark.parametrize(
    ("epochs", "lineage", "end"),
    [
        ([(0, 0)], [(0, 0)], 29),
        ([(0, 0)], [(0, 0), (2, 20)], 19),
        ([(0, 0), (2, 10)], [(0, 0), (2, 10)], 29),
        ([(0, 0), (1, 10)], [(0, 0), (2, 20)], 9),
        # The first segments were deleted, so epochs below the log start are unknown.
        ([(0, 0), (2, 10)], [(2, 15)], 29),
        ([(0, 0)], [(2, 15)], 14),
        ([(5, 0)], [(2, 15)], -1),
        ([(0, 0)], [], 29),
    ],
)
def test_remote_segment_is_valid_up_to_its_first_diverging_epoch(
    epochs: list[tuple[int, int]], lineage: list[tuple[int, int]], end: int
) -> None:
    assert valid_end(_segment(0, 0, 29, *epochs), _epochs(*lineage)) == end

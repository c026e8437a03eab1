"""A log of which only ranges are read gives the answers of the whole log, whatever is fetched."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.build import build_segment_files
from kafka_index.config import IndexConfig
from kafka_index.reading import fetched_log, segment_indexes
from kafka_index.reading.answers import Resolve
from kafka_index.reading.partition_log import PartitionLog
from tests.support.campaign import drawn
from tests.support.index_damage import damaged_indexes
from tests.support.packed import packed_batch
from tests.support.packing import GZIP
from tests.support.partitions import DIRECTORY, ask_offsets, ask_times
from tests.support.ranged import Ranges
from tests.support.segments import batch, message

PAGE = fetched_log._PAGE
SPECIAL_TIMES = (-1, -2, -3)
FURTHER = (Resolve.BATCH, Resolve.RECORD)


@st.composite
def logs(draw: st.DrawFn, base_offset: int) -> bytes:
    """Batches over several pages, some larger than one, perhaps damaged, cut, or with a tail."""
    offset = base_offset
    data = b""
    for _ in range(draw(st.integers(1, 12))):
        time = draw(st.sampled_from((1000 + 10 * offset, 1000, 3000 - 10 * offset)))
        count = draw(st.integers(1, 4))
        size = draw(st.sampled_from((10, 900, 3000, 9000, 20000)))
        kind = draw(st.sampled_from(("plain", "plain", "packed", "old")))
        if kind == "old":
            count = 1
            data += message(offset, 1, time, bytes(size))
        elif kind == "packed":
            data += packed_batch(
                offset, [(i, time + i % 3) for i in range(count)], GZIP, value_size=size
            )
        else:
            data += batch(offset, count, size, [time + i for i in range(count)])
        offset += count
    match draw(st.sampled_from(("sound", "sound", "flip", "cut", "zeros", "noise"))):
        case "flip":
            at = draw(st.integers(0, len(data) - 1))
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        case "cut":
            data = data[: draw(st.integers(0, len(data)))]
        case "zeros":
            data += bytes(draw(st.integers(1, 3 * PAGE)))
        case "noise":
            data += np.random.default_rng(len(data)).bytes(draw(st.integers(1, 2 * PAGE)))
    return data


@st.composite
def dumps(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """The logs of segments 40 offsets apart, and an interval."""
    count = draw(st.integers(1, 3))
    interval = draw(st.sampled_from((4096, 0, 300, 20000)))
    return [draw(logs(40 * number)) for number in range(count)], interval


def write(
    folder: Path, contents: list[bytes], interval: int, *, indexes: bool, step: int = 40
) -> Path:
    """Write the logs of segments so many offsets apart, and their indexes."""
    directory, built = folder / "dump" / DIRECTORY, folder / "built"
    for made in (directory, built):
        made.mkdir(parents=True)
    for number, content in enumerate(contents):
        log = directory / f"{step * number:020d}.log"
        log.write_bytes(content)
        if indexes:
            config = IndexConfig(index_interval_bytes=interval)
            build_segment_files(log, built, config=config)
    for suffix in (".index", ".timeindex"):
        for path in built.glob(f"*{suffix}"):
            path.rename(directory / path.name)
    return directory


@pytest.mark.parametrize("resolve", Resolve)
@settings(max_examples=60)
@given(
    dump=dumps(),
    indexes=st.booleans(),
    gap_pages=st.sampled_from((0, 0, 2)),
    planned=st.booleans(),
    read_pages=st.integers(1, 20),
)
def test_answers_by_ranges_are_those_of_the_whole_log(
    resolve: Resolve,
    dump: tuple[list[bytes], int],
    gap_pages: int,
    read_pages: int,
    *,
    indexes: bool,
    planned: bool,
) -> None:
    contents, interval = dump
    offsets = list(range(0, 130, 3))
    times = [*SPECIAL_TIMES, *range(900, 3100, 90)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        directory = write(Path(folder), contents, interval, indexes=indexes)
        fetch_little(patch, gap_pages, read_pages, planned=planned)
        with PartitionLog.open(directory) as whole, Ranges().of(whole) as ranged:
            assert ask_offsets(ranged, offsets, resolve) == ask_offsets(whole, offsets, resolve)
            assert ask_times(ranged, times, resolve) == ask_times(whole, times, resolve)
            assert ranged.take_findings() == whole.take_findings()


@settings(max_examples=drawn(100, one_in=4))
@given(dump=dumps(), gap_pages=st.sampled_from((0, 0, 2)), data=st.data())
def test_damaged_indexes_do_not_change_answers_by_ranges(
    dump: tuple[list[bytes], int], gap_pages: int, data: st.DataObject
) -> None:
    contents, interval = dump
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        directory = write(Path(folder), contents, interval, indexes=True)
        data.draw(damaged_indexes(directory))
        fetch_little(patch, gap_pages, 20, planned=True)
        with PartitionLog.open(directory) as whole, Ranges().of(whole) as ranged:
            for resolve in FURTHER:
                for ask, asked in (
                    (ask_offsets, list(range(0, 130, 3))),
                    (ask_times, [*SPECIAL_TIMES, *range(900, 3100, 90)]),
                ):
                    # An entry that nothing uses is not compared with a remote log.
                    found = [row.without_entry for row in ask(ranged, asked, resolve)]
                    assert found == [row.without_entry for row in ask(whole, asked, resolve)]


def fetch_little(
    patch: pytest.MonkeyPatch, gap_pages: int, read_pages: int, *, planned: bool
) -> None:
    """Fetch no more than is needed, or without a plan."""
    patch.setattr(fetched_log, "MAX_GAP_BYTES", gap_pages * PAGE)
    patch.setattr(fetched_log, "_FIRST_AHEAD_BYTES", PAGE)
    patch.setattr(fetched_log, "MAX_KEPT_BYTES", 4 * PAGE)
    patch.setattr(segment_indexes, "MAX_READ_BYTES", read_pages * PAGE)
    if not planned:
        patch.setattr(fetched_log.FetchedLog, "request", lambda *_, **__: None)

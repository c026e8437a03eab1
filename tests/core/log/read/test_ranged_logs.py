"""A log of which only ranges are read gives the answers of the whole log, whatever is fetched."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.fs import fetched_file
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read import log_segment
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.logdir.partition_files import SegmentFile
from tests.support.campaign import sample_size
from tests.support.index_files import damaged_indexes
from tests.support.partitions import DIRECTORY, ask_offsets, ask_times
from tests.support.segments import GZIP, batch, message, packed_batch


@dataclass
class Ranges:
    """The ranges that were read of the logs, by path."""

    read: list[tuple[str, int, int]] = field(default_factory=list)

    def open(self, path: str, _segment: SegmentFile) -> ByteSource:
        """Open a local log so that it is not mapped."""
        return RangedSource(store_of(path).open(path), self)

    def of(self, log: PartitionLog, *, interval: int = 4096) -> PartitionLog:
        """Return another view of a partition, by ranges."""
        config = IndexConfig(index_interval_bytes=interval)
        return PartitionLog(log.files, config=config, open_source=self.open)


class RangedSource:
    """A file that is open for reading ranges of it."""

    def __init__(self, file: ByteSource, ranges: Ranges) -> None:
        self._file = file
        self._ranges = ranges
        self.path, self.size_bytes, self.mtime_ns = file.path, file.size_bytes, file.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return a copy of a range."""
        self._ranges.read.append((self.path, position_bytes, size_bytes))
        return self._file.read_at(position_bytes, size_bytes).copy()

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return copies of ranges."""
        return [self.read_at(start, end - start) for start, end in zip(starts, ends, strict=True)]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the rest of the file."""
        yield self.read_at(start_bytes, self.size_bytes - start_bytes)

    def changed(self) -> str | None:
        """Return how the file differs from the one opened."""
        return self._file.changed()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


PAGE = fetched_file._PAGE
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
def test_answers_by_range_requests_equal_a_full_read(
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


@settings(max_examples=sample_size(100, one_in=4))
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
                    result = [row.without_entry for row in ask(ranged, asked, resolve)]
                    assert result == [row.without_entry for row in ask(whole, asked, resolve)]


def fetch_little(
    patch: pytest.MonkeyPatch, gap_pages: int, read_pages: int, *, planned: bool
) -> None:
    """Fetch no more than is needed, or without a plan."""
    patch.setattr(fetched_file, "MAX_GAP_BYTES", gap_pages * PAGE)
    patch.setattr(fetched_file, "_FIRST_FETCH_BYTES", PAGE)
    patch.setattr(fetched_file, "MAX_RESIDENT_BYTES", 4 * PAGE)
    patch.setattr(log_segment, "MAX_READ_BYTES", read_pages * PAGE)
    if not planned:
        patch.setattr(fetched_file.FetchedFile, "request", lambda *_, **__: None)

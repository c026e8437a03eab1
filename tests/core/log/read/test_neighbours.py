"""Questions asked together are answered as each of them alone is, whatever the log is like."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.partitions import DIRECTORY, Row, ask_offset, ask_offsets, ask_time, ask_times
from tests.support.segments import batch, message, packed_batch

SPECIAL_TIMES = (-1, -2, -3)


@st.composite
def logs(draw: st.DrawFn, base_offset: int) -> bytes:
    """Batches whose offsets and timestamps go forward and back, perhaps damaged."""
    offset = base_offset
    data = b""
    for _ in range(draw(st.integers(1, 7))):
        step = draw(st.sampled_from((0, 0, 0, 5, -10, 20, -35)))
        offset = max(base_offset, offset + step)
        time = draw(st.sampled_from((1000 + 10 * offset, 1000, 3000 - 10 * offset)))
        count = draw(st.integers(1, 10))
        kind = draw(st.sampled_from(("plain", "plain", "packed", "old")))
        if kind == "old":
            count = 1
            data += message(offset, 1, time, bytes(30))
        elif kind == "packed":
            data += packed_batch(offset, [(i, time + i % 3) for i in range(count)], 1)
        else:
            data += batch(offset, count, 5, [time + i for i in range(count)])
        offset += count
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
    return data


@st.composite
def dumps(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """The logs of segments 25 offsets apart, and an interval."""
    count = draw(st.integers(1, 2))
    interval = draw(st.sampled_from((300, 0, 100, 4096)))
    return [draw(logs(25 * number)) for number in range(count)], interval


#: The entry for the largest timestamp leads past the batch it was made of.
LEADING_PAST = b"".join(
    batch(base, 10, 5, range(time, time + 10)) for base, time in ((0, 1000), (30, 3000), (10, 2000))
)


@pytest.mark.parametrize("resolve", Resolve)
@settings(max_examples=30)
@example(dump=([LEADING_PAST], 300), indexes=False)
@example(dump=([LEADING_PAST], 300), indexes=True)
@given(dump=dumps(), indexes=st.booleans())
def test_answer_does_not_depend_on_other_queries(
    resolve: Resolve, dump: tuple[list[bytes], int], *, indexes: bool
) -> None:
    contents, interval = dump
    offsets = list(range(0, 90, 7))
    times = [*SPECIAL_TIMES, *range(900, 3100, 190), *range(1000, 1008, 3)]
    with tempfile.TemporaryDirectory() as folder:
        directory, target = Path(folder) / "dump" / DIRECTORY, Path(folder) / "indexes" / DIRECTORY
        for made in (directory, target):
            made.mkdir(parents=True)
        config = IndexConfig(index_interval_bytes=interval)
        for number, content in enumerate(contents):
            path = directory / f"{25 * number:020d}.log"
            path.write_bytes(content)
            if indexes:
                build_segment_files(path, target, config=config)

        def opened() -> PartitionLog:
            return PartitionLog.open(directory, indexes=target.parent, config=config)

        with opened() as log:
            together = ask_offsets(log, offsets, resolve), ask_times(log, times, resolve)
        assert together == (
            [_alone(opened, ask_offset, offset, resolve) for offset in offsets],
            [_alone(opened, ask_time, time, resolve) for time in times],
        )


def _alone(
    opened: Callable[[], PartitionLog],
    ask: Callable[[PartitionLog, int, Resolve], Row],
    target: int,
    resolve: Resolve,
) -> Row:
    """The answer of a log that was asked nothing else."""
    with opened() as log:
        return ask(log, target, resolve)


def test_log_end_does_not_depend_on_invalid_indexes(tmp_path: Path) -> None:
    # The file ends before a batch with a wrong checksum, which an index built in memory passes.
    batches = [bytearray(batch(base, 3)) for base in range(0, 15, 3)]
    batches[3][-1] ^= 1
    size = len(batches[0])
    directory = tmp_path / DIRECTORY
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    wrong, right = struct.pack(">ii", 5, size + 1), struct.pack(">ii", 8, 2 * size)
    (directory / f"{0:020d}.index").write_bytes(wrong + right)
    config = IndexConfig(index_interval_bytes=0)
    with PartitionLog.open(directory, config=config) as log:
        rows = ask_offsets(log, [5, 7, 8, 12, 14, 15], Resolve.BATCH)
    assert [row.status for row in rows] == ["found"] * 3 + ["unreadable"] * 3

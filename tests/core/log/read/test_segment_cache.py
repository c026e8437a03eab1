"""The number of segments that stay open; closed ones are opened again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kafka_index.core.contexts import Closeable
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.read.segment_log import SegmentCache
from tests.support.partitions import (
    Partition,
    Segment,
    ask_offsets,
    ask_times,
    batches_with_timestamps,
)

SEGMENTS = 7
PLAIN = Partition(
    tuple(
        Segment(
            4 * number, (batches_with_timestamps(4 * number, *range(40 * number, 40 * number + 4)),)
        )
        for number in range(SEGMENTS)
    )
)
OFFSETS = list(range(4 * SEGMENTS))


class Opened(Closeable):
    """Something that can be closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def mapped_logs(directory: Path) -> set[str]:
    """Names of the logs that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines if str(directory) in line}
    return {path.name for path in paths if path.suffix == ".log"}


def open_files(directory: Path) -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.resolve()).startswith(str(directory)) for link in links)


def opened(directory: Path, max_open: int) -> tuple[PartitionLog, SegmentCache]:
    cache = SegmentCache(max_open)
    with PLAIN.open(directory) as listed:
        return PartitionLog(listed.files, cache=cache), cache


# -------------------------------------------------------------------------------- the cache alone


def test_least_recently_used_segment_is_closed() -> None:
    cache = SegmentCache(2)
    first, second, third = segments = Opened(), Opened(), Opened()
    for one in (first, second, first, third, third):
        cache.use(one)
    assert [segment.closed for segment in segments] == [0, 1, 0]
    assert len(cache) == 2
    for one in (second, first):
        cache.forget(one)
    cache.use(second)
    assert ([segment.closed for segment in segments], len(cache)) == ([0, 1, 0], 2)


@pytest.mark.parametrize("max_open", [0, -1])
def test_segment_cache_of_size_zero_is_rejected(max_open: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        SegmentCache(max_open)


# ----------------------------------------------------------------------------------- with segments


@pytest.mark.parametrize("max_open", [1, 2, 3, SEGMENTS])
def test_mapped_segments_are_bounded(tmp_path: Path, max_open: int) -> None:
    directory = PLAIN.write(tmp_path)
    log, cache = opened(directory, max_open)
    for offset in OFFSETS:
        ask_offsets(log, [offset], Resolve.RECORD)
        assert len(mapped_logs(directory)) <= max_open
    assert len(cache) == max_open
    log.close()


_MANY_SEGMENTS = """
import resource, sys
import numpy as np
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.read.answers import Resolve
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
count = int(sys.argv[2])
with PartitionLog.open(sys.argv[1]) as log:
    by_time = log.lookup_timestamps(np.arange(0, 40 * count, 40), resolve=Resolve.RECORD)
    by_offset = log.lookup_offsets(np.arange(2 * count), resolve=Resolve.RECORD)
    for answers in (by_time, by_offset):
        print(*sorted(set(answers["status"].to_pylist())))
"""


def test_default_segment_cache_fits_the_open_file_limit(tmp_path: Path) -> None:
    count = 300
    segments = tuple(
        Segment(
            2 * number,
            (
                batches_with_timestamps(2 * number, 40 * number),
                batches_with_timestamps(2 * number + 1, 40 * number),
            ),
        )
        for number in range(count)
    )
    directory = Partition(segments).write(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", _MANY_SEGMENTS, str(directory), str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.returncode) == ("found\nfound\n", 0), result.stderr


@pytest.mark.parametrize("indexes", [True, False], ids=["indexed", "unindexed"])
@pytest.mark.parametrize("max_open", [1, 2])
def test_answers_do_not_depend_on_the_cache_size(
    tmp_path: Path, max_open: int, *, indexes: bool
) -> None:
    directory = PLAIN.write(tmp_path, indexes=indexes)
    log, _ = opened(directory, max_open)
    with PLAIN.open(directory) as roomy:
        for resolve in Resolve:
            for _ in range(2):
                assert ask_offsets(log, OFFSETS[::-1], resolve) == ask_offsets(
                    roomy, OFFSETS[::-1], resolve
                )
                times = [-3, -2, -1, *range(0, 300, 7)]
                assert ask_times(log, times, resolve) == ask_times(roomy, times, resolve)
    log.close()


def test_reopened_segment_counts_in_the_cache(tmp_path: Path) -> None:
    log_bytes = PLAIN.segments[-1].log
    broken = PLAIN.replaced(-1, log_bytes[:8] + bytes(4) + log_bytes[12:] + bytes(range(9)))
    directory = broken.write(tmp_path, indexes=False)
    log, _ = opened(directory, 1)
    assert [row.status for row in ask_offsets(log, [0, OFFSETS[-1]], Resolve.BATCH)] == [
        "found",
        "unreadable",
    ]
    assert ask_offsets(log, [5], Resolve.BATCH)[0].status == "found"
    assert len(mapped_logs(directory)) <= 1
    log.close()


def test_cache_is_shared_by_partitions(tmp_path: Path) -> None:
    cache = SegmentCache(1)
    logs = []
    for name in ("one", "two"):
        with PLAIN.open(PLAIN.write(tmp_path / name)) as listed:
            logs.append(PartitionLog(listed.files, cache=cache))
    for _ in range(2):
        for log in logs:
            assert log.lookup_offsets(np.array([5]))["batch_base_offset"].to_pylist() == [4]
            assert len(mapped_logs(tmp_path)) == 1
    for log in logs:
        log.close()


def test_closed_partition_has_nothing_open(tmp_path: Path) -> None:
    directory = PLAIN.write(tmp_path)
    log, cache = opened(directory, SEGMENTS)
    ask_offsets(log, OFFSETS, Resolve.RECORD)
    ask_times(log, [0, 100], Resolve.RECORD)
    log.close()
    assert (mapped_logs(directory), open_files(directory), len(cache)) == (set(), 0, 0)


def test_segment_cache_opens_no_segment_before_its_use(tmp_path: Path) -> None:
    directory = PLAIN.write(tmp_path)
    log, cache = opened(directory, SEGMENTS)
    assert (len(cache), mapped_logs(directory)) == (0, set())
    ask_offsets(log, [5], Resolve.BATCH)
    # The one with the offset, and the last, which tells where the log ends.
    assert mapped_logs(directory) == {f"{4:020d}.log", f"{4 * (SEGMENTS - 1):020d}.log"}
    log.close()

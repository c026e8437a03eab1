"""The files that a broker wrote as it went are those of a build, rolled for whatever reason.

Both versions index batch by batch. A log that was opened again, or truncated, is left out: the
broker then forgets how many bytes follow the last entry.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.build import build_segment_files
from kafka_index.config import IndexConfig
from tests.support.golden_segments import PARTITION

from .campaign import drawn_cases
from .judge import KafkaRefusal
from .judged_files import WrittenBatch, WrittenRecord, write_batches
from .judged_log import load
from .kafka_traffic import FEW_ENTRIES_BYTES, Traffic, drawn_settings

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge


def assert_built_as_written(partition: Path, settings: dict[str, object]) -> int:
    """Compare the index files of all segments; how many segments there are."""
    target = partition.parent / "built"
    target.mkdir()
    config = IndexConfig(
        index_interval_bytes=int(str(settings["index.interval.bytes"])),
        index_size_max_bytes=int(str(settings["segment.index.bytes"])),
    )
    logs = sorted(partition.glob("*.log"))
    for log in logs:
        report = build_segment_files(log, target, config=config)
        assert report.status == "built", report
        for suffix in (".index", ".timeindex"):
            path = log.with_suffix(suffix)
            assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    return len(logs)


def written_live(
    judge: Judge, scratch: Path, rng: random.Random, settings: dict[str, object], appends: int
) -> Path:
    """Partition directory of a log with so many appends, after a clean shutdown."""
    partition = scratch / "live" / PARTITION
    shutil.rmtree(partition.parent, ignore_errors=True)
    with load(judge, partition, settings=settings) as log:
        following = settings["segment.index.bytes"] != FEW_ENTRIES_BYTES
        traffic = Traffic(judge, log, scratch, rng, following=following)
        for _ in range(appends):
            traffic.append()
        log.close()
    return partition


@pytest.mark.parametrize("version", ["judge", "old_judge"])
@drawn_cases(0.02)
@given(seed=st.integers(0, 2**63))
def test_drawn_traffic_leaves_the_index_files_of_a_build(
    request: pytest.FixtureRequest, scratch: Path, version: str, seed: int
) -> None:
    judge = request.getfixturevalue(version)
    rng = random.Random(seed)
    settings = drawn_settings(rng, judge.version)
    partition = written_live(judge, scratch, rng, settings, rng.randrange(1, 60))
    assert_built_as_written(partition, settings)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"internal.segment.bytes": 40_000}, id="by its size"),
        pytest.param({"segment.ms": 3000}, id="by its age"),
        pytest.param(
            {"segment.index.bytes": FEW_ENTRIES_BYTES, "index.interval.bytes": 0},
            id="by a full index",
        ),
    ],
)
def test_segments_are_rolled_and_their_index_files_are_those_of_a_build(
    judge: Judge, scratch: Path, changed: dict[str, object]
) -> None:
    settings = {"index.interval.bytes": 4096, "segment.index.bytes": 10_000_000, **changed}
    partition = written_live(judge, scratch, random.Random(1), settings, 60)
    assert assert_built_as_written(partition, settings) > 4


def test_several_batches_of_one_append_can_be_too_many_for_a_small_index(
    judge: Judge, scratch: Path
) -> None:
    partition = scratch / "live" / PARTITION
    shutil.rmtree(partition.parent, ignore_errors=True)
    batches = [WrittenBatch((WrittenRecord(i, 1000 + i),)) for i in range(6)]
    write_batches(judge, scratch / "append", batches)
    settings = {"segment.index.bytes": FEW_ENTRIES_BYTES, "index.interval.bytes": 0}
    with (
        load(judge, partition, settings=settings) as log,
        pytest.raises(KafkaRefusal, match="full time index"),
    ):
        log.append_as_follower(scratch / "append")


def test_a_restart_in_the_middle_of_a_segment_shifts_its_later_entries(
    judge: Judge, scratch: Path
) -> None:
    partition = scratch / "live" / PARTITION
    shutil.rmtree(partition.parent, ignore_errors=True)
    settings = {"index.interval.bytes": 300, "segment.index.bytes": 10_000_000}
    for first in (0, 9):
        batches = [
            WrittenBatch((WrittenRecord(first + i, 1000, None, bytes(50)),)) for i in range(9)
        ]
        write_batches(judge, scratch / "append", batches)
        with load(judge, partition, settings=settings) as log:
            log.append_as_follower(scratch / "append")
            log.close()
    log_path = partition / f"{0:020d}.log"
    live = log_path.with_suffix(".index").read_bytes()
    target = partition.parent / "built"
    target.mkdir()
    config = IndexConfig(index_interval_bytes=300)
    assert build_segment_files(log_path, target, config=config).status == "built"
    built = (target / f"{0:020d}.index").read_bytes()
    assert live != built
    assert live[:8] == built[:8]

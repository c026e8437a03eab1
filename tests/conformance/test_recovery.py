"""A build's files are, byte for byte, those that Kafka's own recovery leaves.

Segments are the named ones and drawn ones, sound and damaged.

``KAFKA_INDEX_CASES`` is how many of each are drawn (default 400). Under ``CI`` the draw is the same
every time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from kafka_index.build import build_segment_files
from kafka_index.config import IndexConfig

from .cases import Case
from .named import NAMED
from .recovering import Recovered, recovered_by_kafka, write_log
from .strategies import segments

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge
    from .segments import Segment

drawn_cases = settings(
    max_examples=int(os.environ.get("KAFKA_INDEX_CASES", "400")),
    derandomize=bool(os.environ.get("CI")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def recovered_by_build(directory: Path, segment: Segment) -> Recovered:
    """The build's answer, from a copy under `directory`, its status and the log checked."""
    log_path = write_log(directory, segment)
    target = directory / "built"
    target.mkdir()
    config = IndexConfig(
        index_interval_bytes=segment.index_interval_bytes,
        index_size_max_bytes=segment.segment_index_bytes,
    )
    report = build_segment_files(log_path, target, config=config)
    assert log_path.read_bytes() == segment.log
    if report.status == "failed":
        assert report.reason
        return Recovered(refusal=report.reason)
    assert report.status == ("built" if report.valid_bytes == len(segment.log) else "truncated")
    return Recovered(
        valid_bytes=report.valid_bytes,
        next_offset=report.next_offset,
        offset_index=(target / log_path.name).with_suffix(".index").read_bytes(),
        time_index=(target / log_path.name).with_suffix(".timeindex").read_bytes(),
    )


def assert_same(judge: Judge, scratch: Path, segment: Segment) -> None:
    """Both refuse the segment, or both leave the same."""
    kafka = recovered_by_kafka(judge, scratch / "kafka", segment)
    build = recovered_by_build(scratch / "build", segment)
    if kafka.refusal is not None:
        assert build.refusal is not None, (
            f"Kafka refuses with {kafka.refusal}, the build has {build}"
        )
    else:
        assert build == kafka


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NAMED])
def test_named_segment_is_built_as_kafka_recovers_it(
    judge: Judge, scratch: Path, case: Case
) -> None:
    assert_same(judge, scratch, case.segment)


@drawn_cases
@given(segment=segments(damaged=False))
def test_drawn_segment_is_built_as_kafka_recovers_it(
    judge: Judge, scratch: Path, segment: Segment
) -> None:
    assert_same(judge, scratch, segment)


@drawn_cases
@given(segment=segments(damaged=True))
def test_damaged_segment_is_built_as_kafka_recovers_it(
    judge: Judge, scratch: Path, segment: Segment
) -> None:
    assert_same(judge, scratch, segment)

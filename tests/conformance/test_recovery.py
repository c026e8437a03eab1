"""A build's files are, byte for byte, the files that Kafka's own recovery leaves.

Segments are the named ones and random ones, sound and damaged; `campaign` sets how many. Where
recovery fails, a build fails for the same reason. A random segment on which the two differ is
shrunk, and kept as a golden one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from tests.support.cases import Case
from tests.support.golden_segments import (
    compressed_marker_refused,
    is_emptied_by_backward_wrapper_offsets,
    recovered_by_build,
)
from tests.support.named_segments import COMPRESSED, NAMED
from tests.support.strategies import segments

from .campaign import random_cases
from .recovering import kept_on_failure, recovered_by_kafka

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.segments import Segment

    from .kafka_reference import KafkaReference


def assert_same(reference: KafkaReference, scratch: Path, test: str, segment: Segment) -> None:
    """Both refuse the segment for the same reason, or both leave the same."""
    kafka = recovered_by_kafka(reference, scratch / "kafka", segment)
    with kept_on_failure(test, segment, kafka):
        built = recovered_by_build(scratch / "build", segment)
        assert (
            built == kafka
            or compressed_marker_refused(segment, built)
            or is_emptied_by_backward_wrapper_offsets(segment, kafka, built)
        )


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NAMED])
def test_named_segment_is_recovered_and_built_as_expected(
    reference: KafkaReference, scratch: Path, case: Case
) -> None:
    kafka = recovered_by_kafka(reference, scratch / "kafka", case.segment)
    if isinstance(case.expected, str):
        assert (kafka.reason or "").startswith(f"{case.expected}: ")
    else:
        assert kafka.valid_bytes == len(case.segment.log) - case.expected
    built = recovered_by_build(scratch / "build", case.segment)
    assert built == kafka or (case in COMPRESSED and built.refusal == "compressed_marker")


@random_cases(share=0.25)
@given(segment=segments(damaged=False))
def test_random_segment_is_built_as_kafka_recovers_it(
    reference: KafkaReference, scratch: Path, segment: Segment
) -> None:
    assert_same(reference, scratch, "sound", segment)


@random_cases(share=0.75)
@given(segment=segments(damaged=True))
def test_damaged_segment_is_built_as_kafka_recovers_it(
    reference: KafkaReference, scratch: Path, segment: Segment
) -> None:
    assert_same(reference, scratch, "damaged", segment)

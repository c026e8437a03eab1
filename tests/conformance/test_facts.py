"""Kafka does to the named segments what each of them states: the facts builds rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cases import Case
from tests.support.golden_segments import write_log
from tests.support.named import NAMED

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NAMED])
def test_kafka_does_what_the_case_expects(judge: Judge, scratch: Path, case: Case) -> None:
    segment = case.segment
    log_path = write_log(scratch / "kafka", segment)
    result = judge.recover(
        log_path.parent,
        segment.base_offset,
        segment.index_interval_bytes,
        segment.segment_index_bytes,
    )
    assert (result.error_class if result.refused else result.truncated_bytes) == case.expected, (
        result
    )

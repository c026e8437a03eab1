"""One segment through Kafka's recovery."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.golden_segments import Recovered, write_log

from .refusals import kind_of_refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.segments import Segment

    from .judge import Judge


def recovered_by_kafka(judge: Judge, directory: Path, segment: Segment) -> Recovered:
    """Kafka's answer, from a copy under `directory`."""
    log_path = write_log(directory, segment)
    result = judge.recover(
        log_path.parent,
        segment.base_offset,
        segment.index_interval_bytes,
        segment.segment_index_bytes,
    )
    if result.truncated_bytes is None:
        assert result.error_class is not None
        return Recovered(
            refusal=kind_of_refusal(result.error_class, result.error_message),
            reason=_lasting(f"{result.error_class}: {result.error_message}", log_path.parent),
        )
    valid_bytes = log_path.stat().st_size
    assert valid_bytes == len(segment.log) - result.truncated_bytes
    return Recovered(
        valid_bytes=valid_bytes,
        next_offset=result.next_offset,
        offset_index=log_path.with_suffix(".index").read_bytes(),
        time_index=log_path.with_suffix(".timeindex").read_bytes(),
    )


def _lasting(message: str, partition: Path) -> str:
    """A message without what is another in each run: folders, and when a file was written."""
    return re.sub(r"lastModifiedTime=\d+, ", "", message.replace(f"{partition}/", ""))

"""Batches from Kafka's own builders are built as Kafka recovers it, and read as Kafka reads it.

Each segment is written by the builders of both versions, so that no version is compared with
itself only.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import CorruptLogError
from tests.support.golden_segments import recovered_by_build
from tests.support.record_tables import read_contents, read_records
from tests.support.segments import Segment

from .campaign import random_cases
from .recovering import recovered_by_kafka
from .reference_files import read_batches, write_batches
from .written_segments import FORMATS, NAMED, WrittenSegment, random_segment

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

VERSIONS = ("reference", "old_reference")
INTERVALS = (0, 300, 4096)
EVERY = [pytest.param(segment, id=segment.name) for segment in (*FORMATS, *NAMED)]


def written(reference: KafkaReference, scratch: Path, segment: WrittenSegment) -> bytes:
    """The segment's bytes by a version's builders."""
    path = scratch / "written.log"
    sizes = write_batches(reference, path, segment.batches)
    log = path.read_bytes()
    assert sum(sizes) == len(log)
    return log


def assert_built_as_recovered(
    reference: KafkaReference, scratch: Path, log: bytes, base_offset: int, interval: int
) -> None:
    segment = Segment(log, base_offset, interval)
    kafka = recovered_by_kafka(reference, scratch / "kafka", segment)
    assert recovered_by_build(scratch / "build", segment) == kafka


def assert_read_alike(reference: KafkaReference, scratch: Path, log: bytes) -> None:
    """Our records of every entry, and what is in them, are what Kafka's iteration hands out."""
    path = scratch / "read.log"
    path.write_bytes(log)
    for batch in read_batches(reference, path):
        end = batch.position_bytes + batch.size_bytes
        entry = np.frombuffer(log[batch.position_bytes : end], np.uint8)
        try:
            ours = read_records(entry)
        except CorruptLogError:
            assert batch.fault is not None
            assert batch.records == ()
            continue
        assert ours.rows == [(record.offset, record.timestamp_ms) for record in batch.records]
        assert (ours.fault is None) == (batch.fault is None)
        assert read_contents(entry) == [
            (
                record.key,
                record.value,
                tuple((name.encode(), content) for name, content in record.headers),
            )
            for record in batch.records
        ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("segment", EVERY)
def test_written_segment_is_built_as_kafka_recovers_it(
    request: pytest.FixtureRequest, scratch: Path, version: str, segment: WrittenSegment
) -> None:
    reference = request.getfixturevalue(version)
    log = written(reference, scratch, segment)
    for interval in INTERVALS:
        assert_built_as_recovered(reference, scratch, log, segment.base_offset, interval)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("segment", EVERY)
def test_written_segment_is_read_as_kafka_reads_it(
    request: pytest.FixtureRequest, scratch: Path, version: str, segment: WrittenSegment
) -> None:
    reference = request.getfixturevalue(version)
    log = written(reference, scratch, segment)
    assert read_batches(reference, scratch / "written.log")
    assert_read_alike(reference, scratch, log)


@random_cases(0.1)
@given(seed=st.integers(0, 2**63))
def test_random_written_segment_is_built_and_read_as_by_kafka(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, seed: int
) -> None:
    rng = random.Random(seed)
    segment = random_segment(rng)
    writer = rng.choice((reference, old_reference))
    log = written(writer, scratch, segment)
    assert_read_alike(reference, scratch, log)
    assert_built_as_recovered(reference, scratch, log, segment.base_offset, rng.choice(INTERVALS))


@pytest.mark.parametrize("segment", EVERY)
def test_each_version_reads_segments_written_by_the_other(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path, segment: WrittenSegment
) -> None:
    for writer, reader in ((reference, old_reference), (old_reference, reference)):
        write_batches(writer, scratch / "written.log", segment.batches)
        assert read_batches(reader, scratch / "written.log") == read_batches(
            writer, scratch / "written.log"
        )

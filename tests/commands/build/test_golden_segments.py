"""Builds of the golden segments leave what Kafka's recovery left (``tests/golden/README.md``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_index.core.records import batch_table as source
from tests.support.golden_segments import (
    GOLDEN,
    MANIFEST,
    GoldenSegment,
    compressed_marker_refused,
    hashes,
    read_all,
    recovered_by_build,
)

ALL = read_all()
REFUSALS = {
    "abort_offset_backward",
    "epoch_offset_negative",
    "index_full",
    "not_transactional",
    "offset_backward",
    "offset_overflow",
    "transaction_unknown",
    "unreadable_marker",
}
STOPS = {
    source.PREALLOCATED_TAIL,
    source.TORN_HEADER,
    source.TORN_BATCH,
    source.BAD_LENGTH,
    source.BAD_SIZE,
    source.BAD_CRC,
    source.INVALID_MARKER,
}


def test_golden_files_agree_with_their_manifest() -> None:
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    assert manifest["sha256"] == hashes(), "make golden writes the files and the manifest"


def test_golden_files_are_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 3_000_000


def test_golden_segments_cover_every_rejection() -> None:
    assert {one.kafka.refusal for one in ALL} >= REFUSALS


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in ALL])
def test_golden_segment_is_built_as_recovered_by_kafka(one: GoldenSegment, tmp_path: Path) -> None:
    built = recovered_by_build(tmp_path / "build", one.segment)
    assert built == one.kafka or compressed_marker_refused(one.segment, built)


def test_golden_segments_cover_every_truncation(tmp_path: Path) -> None:
    cut = [one for one in ALL if one.kafka.valid_bytes not in (None, len(one.segment.log))]
    reasons = {recovered_by_build(tmp_path / "build", one.segment).reason or "" for one in cut}
    assert {reason.split()[0] for reason in reasons} >= STOPS

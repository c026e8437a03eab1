"""Build records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.storage import (
    BuildRecord,
    PublishedFile,
    ScanSettings,
    SegmentCounts,
    SegmentFile,
    record_path,
    unchanged_record,
)
from tests.support.publications import BASE, record_of

FILES = {f"{BASE}.timeindex": b"", f"{BASE}.index": b"12345678"}
SETTINGS = ScanSettings(4096, 10485760, verify_crc=True)
UNVERIFIED = replace(SETTINGS, verify_crc=False)
SEGMENT = SegmentFile("t", 0, 5, f"/dump/t-0/{BASE}.log", 100, 7)


@pytest.fixture
def record(tmp_path: Path) -> BuildRecord:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return record_of(FILES, tmp_path)


def write(record: BuildRecord, directory: Path) -> None:
    Path(record_path(str(directory), 5)).write_bytes(record.to_bytes())


def test_a_record_survives_writing_and_reading(record: BuildRecord, tmp_path: Path) -> None:
    truncated = replace(
        record, status="truncated", reason="CRC\nis wrong", reason_code="bad_crc", position_bytes=61
    )
    write(truncated, tmp_path)
    assert BuildRecord.read(record_path(str(tmp_path), 5)) == truncated


def test_a_record_is_one_hidden_line(record: BuildRecord) -> None:
    assert record.to_bytes().count(b"\n") == 1
    assert record_path("/out/t-0", 5) == f"/out/t-0/.{BASE}.kafka-index"


def test_a_missing_record_is_none(tmp_path: Path) -> None:
    assert BuildRecord.read(str(tmp_path / "gone")) is None
    assert BuildRecord.read(str(tmp_path)) is None


@given(st.data())
def test_a_damaged_record_is_none(data: st.DataObject) -> None:
    good = BuildRecord(
        "x.log", 100, 7, SETTINGS, "built", None, None, None, SegmentCounts(100, 3, 1, 2, 8, 99),
        (PublishedFile("x.index", 8, "ab"),),
    ).to_bytes()  # fmt: skip
    position = data.draw(st.integers(0, len(good) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[position]))
    assert BuildRecord.from_bytes(good[:position]) is None
    assert BuildRecord.from_bytes(good[:position] + bytes([byte]) + good[position + 1 :]) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b'{"record":3,"version":1}', b"\xff"])
def test_other_json_is_none(data: bytes) -> None:
    assert BuildRecord.from_bytes(data) is None


def test_a_record_of_another_version_is_none(record: BuildRecord) -> None:
    outer = json.loads(record.to_bytes())
    outer["version"] += 1
    assert BuildRecord.from_bytes(json.dumps(outer).encode()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda r: replace(r, counts=replace(r.counts, batch_count="3")),
        lambda r: replace(r, counts=replace(r.counts, batch_count=True)),
        lambda r: replace(r, settings=replace(r.settings, verify_crc=1)),
        lambda r: replace(r, reason=3),
        lambda r: replace(r, position_bytes=""),
        lambda r: replace(r, files=(PublishedFile("../x.index", 1, "ab"),)),
    ],
)
def test_a_record_with_values_of_another_type_is_none(
    record: BuildRecord, wrong: Callable[[BuildRecord], BuildRecord]
) -> None:
    assert BuildRecord.from_bytes(wrong(record).to_bytes()) is None


def test_a_record_matches_the_log_and_settings_it_was_made_of(record: BuildRecord) -> None:
    assert record.matches(SEGMENT, SETTINGS)


@pytest.mark.parametrize(
    "segment",
    [
        replace(SEGMENT, log_size_bytes=101),
        replace(SEGMENT, log_mtime_ns=8),
        replace(SEGMENT, log_path=f"/dump/t-0/{BASE}.log.swap"),
    ],
)
def test_a_record_does_not_match_another_log(record: BuildRecord, segment: SegmentFile) -> None:
    assert not record.matches(segment, SETTINGS)


@pytest.mark.parametrize(
    "settings",
    [replace(SETTINGS, index_interval_bytes=8), replace(SETTINGS, index_size_max_bytes=8)],
)
def test_a_record_does_not_match_other_settings(
    record: BuildRecord, settings: ScanSettings
) -> None:
    assert not record.matches(SEGMENT, settings)


def test_a_record_without_verification_does_not_do_for_a_run_that_verifies(
    record: BuildRecord,
) -> None:
    unverified = replace(record, settings=UNVERIFIED)
    assert not unverified.matches(SEGMENT, SETTINGS)
    assert unverified.matches(SEGMENT, UNVERIFIED)
    assert record.matches(SEGMENT, UNVERIFIED)


def test_files_as_written_are_intact(record: BuildRecord, tmp_path: Path) -> None:
    assert record.files_intact(str(tmp_path))


def test_a_flipped_byte_is_noticed(record: BuildRecord, tmp_path: Path) -> None:
    (tmp_path / f"{BASE}.index").write_bytes(b"12345679")
    assert not record.files_intact(str(tmp_path))


def test_a_longer_file_is_noticed(record: BuildRecord, tmp_path: Path) -> None:
    (tmp_path / f"{BASE}.timeindex").write_bytes(b"x")
    assert not record.files_intact(str(tmp_path))


def test_a_missing_file_is_noticed(record: BuildRecord, tmp_path: Path) -> None:
    (tmp_path / f"{BASE}.timeindex").unlink()
    assert not record.files_intact(str(tmp_path))


def test_a_record_of_no_files_vouches_for_nothing(record: BuildRecord, tmp_path: Path) -> None:
    assert not replace(record, files=()).files_intact(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "interval", "found"),
    [(list(FILES), 4096, True), (list(FILES), 1, False), ([*FILES, "more"], 4096, False)],
)
def test_a_segment_is_unchanged_when_record_files_and_settings_agree(
    record: BuildRecord, tmp_path: Path, names: list[str], interval: int, *, found: bool
) -> None:
    write(record, tmp_path)
    unchanged = unchanged_record(
        str(tmp_path), SEGMENT, names, replace(SETTINGS, index_interval_bytes=interval)
    )
    assert unchanged == (record if found else None)

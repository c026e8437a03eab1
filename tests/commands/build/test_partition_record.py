"""Records of partitions: what is written is read, and what is damaged is no record."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.core.fs.registry import scan_directory
from kafka_index.core.log.recovery.build_manifest import (
    MANIFEST_FILES,
    MANIFEST_SEGMENTS,
    BuildManifest,
    ManifestFile,
)
from kafka_index.core.log.recovery.settings import ScanSettings
from kafka_index.core.log.recovery.staged_segment import PublishedFile

ROW = {
    **dict.fromkeys(MANIFEST_SEGMENTS.names, 7),
    "log_name": "a.log",
    "log_version": "",
    "status": "built",
    **dict.fromkeys(("reason", "note", "reason_code", "scan_reason_code")),
}
FILE = {"name": "a.index", "size_bytes": 8, "change": "12", "digest": "ab"}
RECORD = BuildManifest(
    "run",
    ScanSettings(4096, 1000, verify_crc=True),
    ("index", "timeindex"),
    None,
    5,
    "start",
    True,  # noqa: FBT003, because the fields are in order
    pa.Table.from_pylist([ROW], MANIFEST_SEGMENTS),
    pa.Table.from_pylist([FILE], MANIFEST_FILES),
)


def test_written_build_manifest_is_read_back() -> None:
    assert BuildManifest.from_bytes(RECORD.to_bytes()) == RECORD


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_build_manifest_with_a_flipped_byte_is_ignored(share: float) -> None:
    data = bytearray(RECORD.to_bytes())
    data[int(share * len(data))] ^= 1
    assert BuildManifest.from_bytes(bytes(data)) is None


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.99])
def test_truncated_build_manifest_is_ignored(share: float) -> None:
    data = RECORD.to_bytes()
    assert BuildManifest.from_bytes(data[: int(share * len(data))]) is None


def test_missing_build_manifest_is_none(tmp_path: Path) -> None:
    assert BuildManifest.read(str(tmp_path)) is None


def _published(path: Path) -> ManifestFile:
    (entry,) = scan_directory(str(path.parent))
    return ManifestFile(PublishedFile.of(str(path)), entry.file_version()[1])


def test_change_that_keeps_size_and_time_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.index"
    path.write_bytes(b"12345678")
    before = path.stat()
    file = _published(path)
    path.write_bytes(b"12345679")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (entry,) = scan_directory(str(tmp_path))
    assert not file.is_intact(str(tmp_path), entry)


def test_copied_partition_output_is_recognized_as_intact_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.index"
    path.write_bytes(b"12345678")
    file = _published(path)
    path.unlink()
    path.write_bytes(b"12345678")
    os.utime(path, ns=(1, 1))
    (entry,) = scan_directory(str(tmp_path))
    assert file.is_intact(str(tmp_path), entry)

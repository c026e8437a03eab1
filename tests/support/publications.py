"""Published files of a segment: a build record, and files staged for publication."""

from __future__ import annotations

from pathlib import Path

from kafka_index.storage import (
    BuildRecord,
    Publication,
    PublishedFile,
    ScanSettings,
    SegmentCounts,
    StagedFile,
    record_path,
    scratch_path,
    write_scratch,
)

BASE = "00000000000000000005"


def record_of(files: dict[str, bytes], directory: Path) -> BuildRecord:
    """A build record of files that are written in a folder of their own to be digested."""
    published = []
    for name, data in files.items():
        path = directory / f"digest-{name}"
        path.write_bytes(data)
        published.append(PublishedFile.of(str(path), name))
        path.unlink()
    return BuildRecord(
        log_name=f"{BASE}.log",
        log_size_bytes=100,
        log_mtime_ns=7,
        settings=ScanSettings(4096, 10485760, verify_crc=True),
        status="built",
        reason=None,
        reason_code=None,
        position_bytes=None,
        counts=SegmentCounts(100, 3, 1, 2, 8, 99),
        files=tuple(published),
    )


def stage(
    directory: Path,
    content: bytes,
    *,
    base: str = BASE,
    attributes_of: Path | None = None,
    run_id: str = "run1",
) -> Publication:
    """Stage a time index, an index and a build record, each with `content`."""
    directory.mkdir(parents=True, exist_ok=True)
    like = None if attributes_of is None else str(attributes_of)
    files = {f"{base}.timeindex": b"time " + content, f"{base}.index": b"offset " + content}

    def staged(final_path: str, data: bytes) -> StagedFile:
        scratch = scratch_path(final_path, run_id, "0")
        write_scratch(scratch, data, attributes_of=like)
        return StagedFile(scratch, final_path)

    record = record_of(files, directory)
    return Publication(
        tuple(staged(str(directory / name), data) for name, data in files.items()),
        staged(record_path(str(directory), int(base)), record.to_bytes()),
        like,
    )

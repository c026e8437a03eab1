"""Files of a segment, staged for publication."""

from __future__ import annotations

from pathlib import Path

from kafka_index.storage import Publication, StagedFile, scratch_path, write_scratch

BASE = "00000000000000000005"


def stage(
    directory: Path,
    content: bytes,
    *,
    base: str = BASE,
    attributes_of: Path | None = None,
    run_id: str = "run1",
) -> Publication:
    """Stage a time index and an index, each with `content`."""
    directory.mkdir(parents=True, exist_ok=True)
    like = None if attributes_of is None else str(attributes_of)
    files = {f"{base}.timeindex": b"time " + content, f"{base}.index": b"offset " + content}

    def staged(final_path: str, data: bytes) -> StagedFile:
        scratch = scratch_path(final_path, run_id, "0")
        write_scratch(scratch, data, attributes_of=like)
        return StagedFile(scratch, final_path)

    return Publication(
        tuple(staged(str(directory / name), data) for name, data in files.items()),
        like,
        is_segment=True,
    )

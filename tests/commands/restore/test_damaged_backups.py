"""Backups with damaged objects, restored with salvage: the intact batches, and named losses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import pytest

from kafka_index.core.log.scan.segment_scan import read_batches
from tests.commands.backup.repositories import make_backup
from tests.support.restoring import copy_dump, restore

# A topic without transactions: restore drops the batches of a transaction of unknown outcome.
_NAME = "app-logs-0"


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def first_batch_end(data: bytes) -> int:
    return 12 + int.from_bytes(data[8:12], "big")


#: Each returns the bytes that an object has afterwards, None for no object.
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": lambda data: flip(data, len(data) // 2),
    "short": lambda data: data[: len(data) // 2],
    "after-a-batch": lambda data: data[: first_batch_end(data)],
    "empty": lambda _: b"",
    "missing": lambda _: None,
    "directory": lambda _: None,
    "fifo": lambda _: None,
    "longer": lambda data: data + b"more",
    # No checksum covers the leader epoch.
    "epoch": lambda data: flip(data, 15),
}


@pytest.fixture(scope="module")
def backed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("backed")
    data = copy_dump(root / "data", _NAME)
    make_backup(root / "repository", data, time_ms=1_700_000_000_000, chunk_bytes=20_000)
    return root


def offsets_in(directory: Path) -> set[int]:
    return {
        offset
        for log in directory.glob("*.log")
        for chunk in read_batches(log)
        for batch in chunk.to_pylist()
        for offset in range(batch["base_offset"], batch["last_offset"] + 1)
    }


def ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return offsets as ranges, which print shorter."""
    groups = groupby(enumerate(sorted(set(offsets))), lambda each: each[1] - each[0])
    result = [[offset for _, offset in group] for _, group in groups]
    return [(each[0], each[-1]) for each in result]


@pytest.mark.parametrize("place", [0, 4, -1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_restore_keeps_intact_batches_of_a_damaged_object_and_reports_it(
    backed: Path, tmp_path: Path, damage: str, place: int
) -> None:
    path = sorted((backed / "repository" / "data").glob(f"{_NAME}-*/*.log"))[place]
    complete_data = path.read_bytes()
    left = DAMAGES[damage](complete_data)
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    elif damage == "directory":
        path.mkdir()
    elif damage == "fifo":
        os.mkfifo(path)
    try:
        source = f"backup:{backed / 'repository'}"
        run = restore(source, tmp_path / "out", "--salvage", "batches")
        prefix = restore(source, tmp_path / "prefix", "--salvage", "prefix")
        none = restore(source, tmp_path / "none", "--salvage", "none")
    finally:
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(complete_data)
    all_offsets = offsets_in(backed / "data" / _NAME)
    for each, output in ((run, "out"), (prefix, "prefix")):
        assert each.code == 1, each.done.stderr
        assert any(str(path) in row["reason"] for row in each.lost)
        kept = offsets_in(tmp_path / output / _NAME)
        lost = [
            offset
            for row in each.lost
            for offset in range(row["first_offset"], row["last_offset"] + 1)
        ]
        if damage in ("epoch", "longer"):
            # Which of its bytes are other ones, nobody knows.
            assert kept == all_offsets
            assert [row["reason_code"] for row in each.lost] == ["altered_object"]
        else:
            assert ranges(lost) == ranges(all_offsets - kept)
            assert len(lost) == len(set(lost)) > 0
    assert offsets_in(tmp_path / "prefix" / _NAME) <= offsets_in(tmp_path / "out" / _NAME)
    if damage == "flipped":
        assert len(all_offsets - offsets_in(tmp_path / "out" / _NAME)) <= 40
    assert none.partitions("skipped") == {_NAME}

"""Logs that are taken over: cloned where the file systems share blocks, and the results."""

from __future__ import annotations

import array
import fcntl
import os
import struct
from pathlib import Path

import pytest

from tests.support.builds import small_disk, xfs_disk
from tests.support.restoring import contents, copy_dump, logs, restore

PARTITIONS = ("audit.trail-0", "payments-0")


def test_topic_id_behind_a_link_out_of_the_dump_is_rejected(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0")
    path = dump / "payments-0" / "partition.metadata"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    run = restore(dump, tmp_path / "out")

    assert run.code == 2
    assert f"{path}: the topic ID of payments is unknown" in run.done.stderr
    assert "--follow-links" in run.done.stderr
    assert not (tmp_path / "out").exists()
    assert restore(dump, tmp_path / "out", "--follow-links").code == 0


@pytest.mark.parametrize("link", ["auto", "reflink"])
def test_logs_are_cloned_if_the_file_system_shares_blocks(tmp_path: Path, link: str) -> None:
    restore(copy_dump(tmp_path / "dump", *PARTITIONS), tmp_path / "copied")
    with xfs_disk(tmp_path / "xfs") as disk:
        dump = copy_dump(disk / "dump", *PARTITIONS)
        before = contents(dump)

        run = restore(dump, disk / "out", "--link", link)

        assert run.code == 0, run.done.stderr
        assert "clones, which share blocks" in run.done.stdout
        assert contents(disk / "out") == contents(tmp_path / "copied")
        for log in logs(disk / "out/audit.trail-0"):
            assert log.stat().st_nlink == 1
            assert shares_blocks(log)
            log.write_bytes(b"")
        assert contents(dump) == before


def shares_blocks(path: Path) -> bool:
    """Whether the first bytes of a file lie where those of another one lie (FS_IOC_FIEMAP)."""
    # struct fiemap with one struct fiemap_extent, FIEMAP_FLAG_SYNC, FIEMAP_EXTENT_SHARED.
    header, extent, shared = struct.Struct("=QQLLLL"), struct.Struct("=QQQQQLLLL"), 0x2000
    request = array.array("B", header.pack(0, 1 << 62, 1, 0, 1, 0) + bytes(extent.size))
    with path.open("rb") as file:
        fcntl.ioctl(file.fileno(), 0xC020660B, request)
    return bool(extent.unpack_from(request, header.size)[5] & shared)


def test_clone_without_file_system_support_is_rejected(tmp_path: Path) -> None:
    with small_disk(tmp_path / "tmpfs", "64m") as disk:
        dump = copy_dump(tmp_path / "dump", "payments-0")

        run = restore(dump, disk / "out", "--link", "reflink")

        assert run.code == 2
        assert "--link auto" in run.done.stderr
        assert os.listdir(disk / "out") in ([], [".lock"])

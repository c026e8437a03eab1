"""The start of a broker on the files of a partition: the ground under our claims.

A segment without ``.index`` is recovered on its own, whatever the recovery point is; one with it
is trusted below the recovery point or after a clean shutdown, and else recovered so that the first
cut ends the log.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from kafka_index.build import build_segment_files
from tests.support.segments import batch

from .judged_files import dump_log
from .judged_log import load
from .kafka_loading import (
    ABORTED,
    EVERY_BATCH,
    PartitionFiles,
    indexed,
    indexed_then,
    partition_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge

SOUND = {0: [batch(0), batch(3)], 6: [batch(6), batch(9)], 12: [batch(12)]}
#: The second batch of the middle segment has a wrong checksum.
DAMAGED = {**SOUND, 6: [batch(6), batch(9, crc=1)]}
GARBAGE = b"\x7f" * 24


@pytest.mark.parametrize("clean", [True, False])
def test_segment_without_index_is_recovered_alone_and_the_others_are_trusted(
    judge: Judge, scratch: Path, *, clean: bool
) -> None:
    files = indexed(judge, scratch, SOUND)
    before = files.contents()
    files.path(6, ".index").unlink()
    files.write(6, ".timeindex", GARBAGE)
    files.write(0, ".index", GARBAGE)
    with load(judge, files.directory, clean=clean, recovery_point=15, settings=EVERY_BATCH) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".index") == before[files.path(6, ".index").name]
    assert files.read(6, ".timeindex") == before[files.path(6, ".timeindex").name]
    assert files.read(0, ".index") == GARBAGE


@pytest.mark.parametrize("clean", [True, False])
def test_cut_of_a_segment_without_index_leaves_the_later_segments(
    judge: Judge, scratch: Path, *, clean: bool
) -> None:
    files = indexed_then(judge, scratch, SOUND, DAMAGED)
    files.remove(".index")
    with load(judge, files.directory, clean=clean) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
        assert log.loaded.log_end_offset == 15
    assert files.read(6, ".log") == DAMAGED[6][0]


def test_cut_of_a_segment_with_index_above_the_recovery_point_ends_the_log(
    judge: Judge, scratch: Path
) -> None:
    files = indexed_then(judge, scratch, SOUND, DAMAGED)
    with load(judge, files.directory, clean=False) as log:
        assert log.loaded.base_offsets == (0, 6)
        assert log.loaded.log_end_offset == 9
    assert files.read(6, ".log") == DAMAGED[6][0]
    assert {"12.log.deleted", "12.index.deleted", "12.timeindex.deleted"} <= files.names()
    assert "12.log" not in files.names()


def test_segment_below_the_recovery_point_is_not_looked_at(judge: Judge, scratch: Path) -> None:
    files = indexed_then(judge, scratch, SOUND, DAMAGED)
    with load(judge, files.directory, clean=False, recovery_point=12) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".log") == b"".join(DAMAGED[6])


def test_the_recovery_point_lies_in_the_first_segment_that_is_recovered(
    judge: Judge, scratch: Path
) -> None:
    files = indexed_then(judge, scratch, SOUND, DAMAGED)
    with load(judge, files.directory, clean=False, recovery_point=11) as log:
        assert log.loaded.base_offsets == (0, 6)


def test_nothing_is_looked_at_after_a_clean_shutdown(judge: Judge, scratch: Path) -> None:
    files = indexed_then(judge, scratch, SOUND, DAMAGED)
    files.write(0, ".index", GARBAGE)
    with load(judge, files.directory) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".log") == b"".join(DAMAGED[6])
    assert files.read(0, ".index") == GARBAGE


def test_index_files_of_a_build_are_trusted_and_stay(judge: Judge, scratch: Path) -> None:
    files = partition_files(scratch, SOUND)
    _place_built(files, scratch)
    built = {name: data for name, data in files.contents().items() if name.endswith("index")}
    load(judge, files.directory).close()
    assert built.items() <= files.contents().items()


def test_index_files_of_a_build_are_what_an_unclean_start_makes(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, SOUND)
    _place_built(files, scratch)
    built = {name: data for name, data in files.contents().items() if name.endswith("index")}
    load(judge, files.directory, clean=False).close()
    assert built.items() <= files.contents().items()


def test_kafkas_own_tool_finds_no_fault_in_the_index_files_of_a_build(
    judge: Judge, old_judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, SOUND)
    _place_built(files, scratch)
    for version in (judge, old_judge):
        for suffix in (".index", ".timeindex"):
            printed = dump_log(
                version,
                scratch / "dump.txt",
                "--verify-index-only",
                "--files",
                ",".join(str(files.path(base, suffix)) for base in SOUND),
            )
            assert printed.count("Dumping") == len(SOUND)
            assert "Mismatches" not in printed
            assert "Found timestamp" not in printed


def test_missing_time_index_becomes_an_empty_one_where_index_is_there(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, SOUND)
    files.remove(".timeindex")
    load(judge, files.directory).kill()
    assert files.read(0, ".timeindex") == b""
    assert files.read(6, ".timeindex") == b""


def test_missing_transaction_index_stays_missing_where_index_is_there(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, ABORTED)
    with load(judge, files.directory) as log:
        assert log.read(0, 1000).aborted == ((7, 0),)
    files.remove(".txnindex")
    with load(judge, files.directory) as log:
        assert log.read(0, 1000).aborted == ()
    assert "0.txnindex" not in files.names()


def test_missing_transaction_index_is_rebuilt_with_a_missing_index(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, ABORTED)
    before = files.read(0, ".txnindex")
    files.remove(".txnindex")
    files.remove(".index")
    load(judge, files.directory).close()
    assert files.read(0, ".txnindex") == before


def test_stray_transaction_index_is_emptied_by_recovery_and_not_deleted(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, SOUND)
    files.write(6, ".txnindex", struct.pack(">hqqqq", 0, 7, 6, 8, 9))
    files.remove(".index")
    load(judge, files.directory).close()
    assert files.read(6, ".txnindex") == b""
    assert "0.txnindex" not in files.names()


def test_transaction_index_that_ends_below_its_segment_has_the_segment_recovered(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, SOUND)
    before = files.read(6, ".index")
    files.write(6, ".index", GARBAGE)
    files.write(6, ".txnindex", struct.pack(">hqqqq", 0, 7, 0, 5, 6))
    load(judge, files.directory, settings=EVERY_BATCH).close()
    assert files.read(6, ".index") == before
    assert files.read(6, ".txnindex") == b""


def _place_built(files: PartitionFiles, scratch: Path) -> None:
    """Put the index files of a build beside the logs."""
    target = scratch / "placed"
    target.mkdir(exist_ok=True)
    for log in sorted(files.directory.glob("*.log")):
        assert build_segment_files(log, target).status == "built"
    for path in target.iterdir():
        if not path.name.startswith("."):
            (files.directory / path.name).write_bytes(path.read_bytes())
        path.unlink()

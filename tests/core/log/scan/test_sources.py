"""Scanning a log from a file and from pieces of any size: the same batches, the same stop."""

from __future__ import annotations

import gzip
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import InputError
from kafka_index.core.kernels.scan import CHUNK_BATCHES
from kafka_index.core.log.scan.segment_scan import ByteStreamSource, LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records import batch_table as source
from kafka_index.core.records.batch_table import ScanStop
from tests.support import kernel_models
from tests.support.batch_sources import file_source, rows, stored, streamed, write_log
from tests.support.campaign import sample_size
from tests.support.cases import Case
from tests.support.named_segments import NAMED
from tests.support.page_cache import are_still_resident, evict, resident_pages
from tests.support.segments import Segment, batch, message
from tests.support.strategies import segments

CUTS = st.lists(st.integers(0, 10**6), max_size=12)
SOUND = batch(0)
AT = len(SOUND)


def from_file(log: bytes, base_offset: int = 0, *, verify_crc: bool = True) -> LogFileSource:
    """An exhausted source over a file."""
    with tempfile.TemporaryDirectory() as folder:
        one = file_source(write_log(Path(folder), log, base_offset), verify_crc=verify_crc)
        rows(one)
        return one


def unnamed(stop: ScanStop | None) -> ScanStop | None:
    """Take away the quotation of what is no log: pieces without a name may be anybody's."""
    return replace(stop, found="other bytes") if stop is not None and stop.is_foreign else stop


def stop_of(*entries: bytes, base_offset: int = 0) -> ScanStop | None:
    """The reason for the end of a scan, the same for a file and for pieces of it."""
    log = b"".join(entries)
    stop = from_file(log, base_offset).stop
    pieces = streamed(log, range(0, len(log), 7), base_offset)
    rows(pieces)
    assert pieces.stop == unnamed(stop)
    with stored(log, range(0, len(log), 7), base_offset) as remote:
        rows(remote)
        assert remote.stop == stop
    return stop


# ----------------------------------------------------------------------------- equal sources


@settings(deadline=None, max_examples=sample_size(200, one_in=4))
@given(one=segments(), cuts=CUTS, verify_crc=st.booleans())
def test_scan_of_any_chunk_size_equals_scan_of_the_file(
    *, one: Segment, cuts: list[int], verify_crc: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder), one.log, one.base_offset)
        file = file_source(path, verify_crc=verify_crc)
        pieces = streamed(one.log, cuts, one.base_offset, verify_crc=verify_crc)
        assert rows(pieces) == rows(file)
        assert pieces.stop == unnamed(file.stop)
        with stored(one.log, cuts, one.base_offset, verify_crc=verify_crc) as remote:
            assert rows(remote) == rows(file)
            assert remote.stop == file.stop
            assert remote.log_size_bytes == len(one.log)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NAMED])
def test_scan_of_chunks_stops_like_scan_of_the_file(case: Case) -> None:
    one = case.segment
    file = from_file(one.log, one.base_offset)
    for size in (1, 30, 64):
        pieces = streamed(one.log, range(0, len(one.log), size), one.base_offset)
        rows(pieces)
        assert pieces.stop == unnamed(file.stop)
        with stored(one.log, range(0, len(one.log), size), one.base_offset) as remote:
            rows(remote)
            assert remote.stop == file.stop


def test_scan_of_many_windows_returns_every_batch(tmp_path: Path) -> None:
    # More batches than a chunk takes, and larger than what is read at a time.
    entries = [batch(at, 1, value_size=at % 700) for at in range(CHUNK_BATCHES + 500)]
    log = b"".join(entries)
    assert len(log) > 3 << 20
    expected = [
        (row.position, row.size, row.base_offset, row.last_offset, row.max_timestamp)
        for row in kernel_models.scan_log(log, 0)[2]
    ]
    for one in (file_source(write_log(tmp_path, log)), streamed(log, range(0, len(log), 99_991))):
        assert [row[:5] for row in rows(one)] == expected
    with stored(log, range(0, len(log), 999_991)) as one:
        assert [row[:5] for row in rows(one)] == expected


@pytest.mark.parametrize("verify_crc", [True, False])
def test_batch_larger_than_a_read_is_one_batch(tmp_path: Path, *, verify_crc: bool) -> None:
    entries = [batch(0), batch(3, 1, value_size=3 << 20), batch(4), batch(7, 1, value_size=5 << 20)]
    one = file_source(write_log(tmp_path, b"".join(entries)), verify_crc=verify_crc)
    assert [row[1] for row in rows(one)] == [len(entry) for entry in entries]
    assert one.stop is None
    log = b"".join(entries)
    with stored(log, range(0, len(log), 2 << 20), verify_crc=verify_crc) as remote:
        assert [row[1] for row in rows(remote)] == [len(entry) for entry in entries]
        assert remote.stop is None


def test_size_of_a_log_is_known_after_its_scan(tmp_path: Path) -> None:
    log = batch(0) + batch(3)
    for one in (file_source(write_log(tmp_path, log)), streamed(log, [5])):
        rows(one)
        assert one.log_size_bytes == len(log)


def test_empty_log_has_no_batches_and_no_fault(tmp_path: Path) -> None:
    for one in (file_source(write_log(tmp_path, b"")), streamed(b"")):
        assert (rows(one), one.stop, one.log_size_bytes) == ([], None, 0)


def test_empty_chunks_are_skipped() -> None:
    nothing, log = np.empty(0, np.uint8), np.frombuffer(SOUND, np.uint8)
    one = ByteStreamSource([nothing, log[:9], nothing, log[9:], nothing], segment_base_offset=0)
    assert len(rows(one)) == 1


# ------------------------------------------------------------------------------------- stops


def test_scan_of_an_intact_log_reaches_its_end() -> None:
    assert stop_of(SOUND, message(3, 1, 9), batch(4)) is None


def test_torn_header_is_reported() -> None:
    assert stop_of(SOUND, SOUND[:17]) == ScanStop(
        source.TORN_HEADER, AT, "more than 17 bytes", "17"
    )


def test_torn_batch_is_reported() -> None:
    assert stop_of(SOUND, SOUND[:-1]) == ScanStop(source.TORN_BATCH, AT, f"{AT} bytes", str(AT - 1))


def test_bad_length_is_reported() -> None:
    assert stop_of(SOUND, batch(3, length=13)) == ScanStop(
        source.BAD_LENGTH, AT, "14 or more", "13"
    )


def test_bad_size_is_reported() -> None:
    assert stop_of(SOUND, batch(3, length=20)[:32]) == ScanStop(
        source.BAD_SIZE, AT, "61 bytes or more", "32"
    )


def test_bad_checksum_is_reported_with_stored_and_computed_values() -> None:
    right = f"0x{kernel_models.checksums(batch(3))[1]:08x}"
    assert stop_of(SOUND, batch(3, crc=1), SOUND) == ScanStop(
        source.BAD_CRC, AT, "0x00000001", right
    )


def test_offset_overflow_is_reported_and_rejected() -> None:
    assert stop_of(batch(10), batch(5, 2), base_offset=10) == ScanStop(
        source.OFFSET_OVERFLOW, AT, "a last offset in 10..2147483657", "6", refused=True
    )


def test_far_offset_error_describes_the_split_by_a_broker() -> None:
    stop = stop_of(batch(10), batch(10 + 2**31), base_offset=10)
    assert stop is not None
    assert stop.text.startswith("offset_overflow: the offset is too far above the base offset")


@pytest.mark.parametrize("size", [1, 11, 12, 17, 18, 61, 5000, (1 << 20) + 3])
def test_zeros_to_the_end_are_a_preallocated_tail(size: int) -> None:
    assert from_file(SOUND + bytes(size)).stop == ScanStop(source.PREALLOCATED_TAIL, AT)
    pieces = streamed(SOUND + bytes(size), range(0, size, 1000))
    rows(pieces)
    assert pieces.stop == ScanStop(source.PREALLOCATED_TAIL, AT)
    assert pieces.log_size_bytes == AT + size
    with stored(SOUND + bytes(size), range(0, size, 1000)) as remote:
        rows(remote)
        assert remote.stop == ScanStop(source.PREALLOCATED_TAIL, AT)


def test_zeros_before_other_bytes_are_damage() -> None:
    stop = ScanStop(source.BAD_LENGTH, AT, "14 or more", "0")
    assert stop_of(SOUND, bytes(100), SOUND) == stop
    assert stop_of(SOUND, bytes(2 << 20), b"\1") == stop


TEXT = b"# kafka-index\n\nkafka-index rebuilds the indexes of Kafka logs.\n"


@pytest.mark.parametrize(
    "content",
    [TEXT, TEXT[:17], TEXT[:9], b"hi\n", gzip.compress(TEXT, mtime=0), bytes(range(255, 0, -1))],
)
def test_file_of_something_else_is_not_a_log(content: bytes) -> None:
    stop = stop_of(content)
    assert stop is not None
    assert (stop.position_bytes, stop.reason_code) == (0, source.NOT_A_LOG)
    assert stop.text.startswith("not a Kafka log (expected a record batch, found ")


@pytest.mark.parametrize(
    "log",
    [
        SOUND[:-1],
        SOUND[:9],
        batch(0, length=13),
        batch(0, crc=1),
        SOUND[:8] + TEXT,
        TEXT[:8] + SOUND[8:],
    ],
)
def test_log_with_damage_in_its_first_batch_is_a_log(log: bytes) -> None:
    stop = stop_of(log)
    assert stop is not None
    assert stop.reason_code == stop.code != source.NOT_A_LOG


def test_text_after_a_batch_is_damage_of_a_log() -> None:
    stop = stop_of(SOUND, TEXT)
    assert stop is not None
    assert stop.reason_code == source.TORN_BATCH


def test_file_of_zeros_is_a_preallocated_tail() -> None:
    assert stop_of(bytes(500)) == ScanStop(source.PREALLOCATED_TAIL, 0)


def test_stop_message_has_expected_and_found() -> None:
    stop = stop_of(SOUND, batch(3, length=13))
    assert stop is not None
    assert stop.text == "bad_length (expected 14 or more, found 13)"
    assert ScanStop("some_reason", 0).text == "some_reason"


# ---------------------------------------------------------------------------------- changes


def long_log() -> bytes:
    """More than one chunk."""
    return b"".join(batch(at, 1) for at in range(CHUNK_BATCHES + 10))


def after_a_chunk(path: Path, change: Callable[..., object], *, verify_crc: bool) -> None:
    """Continue after the log was changed beyond the first chunk."""
    chunks = file_source(path, verify_crc=verify_crc).chunks()
    next(chunks)
    change()
    for _ in chunks:
        pass


@pytest.mark.parametrize("verify_crc", [True, False])
@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda path: path.open("ab").write(SOUND), "grew"),
        (lambda path: os.truncate(path, 2 << 18), "truncated"),
        (lambda path: os.truncate(path, 0), "truncated"),
        (lambda path: path.with_name("new").rename(path), "replaced"),
        (lambda path: path.unlink(), ": removed"),
        (lambda path: os.utime(path, ns=(0, time.time_ns() + 10**9)), ": modified"),
    ],
    ids=["grown", "cut", "emptied", "replaced", "removed", "modified"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_log_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, change: Callable[..., object], how: str, *, verify_crc: bool
) -> None:
    path = write_log(tmp_path, long_log())
    path.with_name("new").write_bytes(long_log())
    with pytest.raises(InputError, match=how):
        after_a_chunk(path, lambda: change(path), verify_crc=verify_crc)


def listed(path: Path, *, size: int = 0, mtime_ns: int = 0) -> SegmentFile:
    """The log as it was listed, off by so much."""
    now = path.stat()
    return SegmentFile(
        "some-topic", 3, 0, str(path), now.st_size + size, now.st_mtime_ns + mtime_ns
    )


def test_unchanged_listed_log_is_read(tmp_path: Path) -> None:
    one = LogFileSource.of_segment(listed(write_log(tmp_path, SOUND)), verify_crc=True)
    assert len(rows(one)) == 1


@pytest.mark.parametrize(("size", "mtime_ns"), [(1, 0), (-1, 0), (0, 1)])
def test_log_changed_since_its_listing_is_an_error(
    tmp_path: Path, size: int, mtime_ns: int
) -> None:
    segment = listed(write_log(tmp_path, SOUND), size=size, mtime_ns=mtime_ns)
    with pytest.raises(InputError, match="changed"):
        rows(LogFileSource.of_segment(segment, verify_crc=True))


def test_log_above_the_maximum_segment_size_is_an_error(tmp_path: Path) -> None:
    path = write_log(tmp_path, b"")
    os.truncate(path, 2**31)
    with pytest.raises(InputError, match="larger than the maximum segment size"):
        rows(file_source(path))


def test_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        rows(file_source(tmp_path / f"{0:020d}.log"))


def test_name_without_a_base_offset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="20 digits"):
        file_source(tmp_path / "some.log")


def test_scan_does_not_change_the_log(tmp_path: Path) -> None:
    path = write_log(tmp_path, SOUND + b"\1" * 30)
    path.chmod(0o444)
    before = path.stat()
    rows(file_source(path))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


BATCH_BYTES = 1 << 20
BATCHES = 24


@pytest.fixture
def cold_log(disk_path: Path) -> Path:
    """A log of large batches, on a disk and not in memory."""
    value = np.random.default_rng(1).bytes(BATCH_BYTES)
    path = write_log(disk_path, b"".join(batch(at, 1, payload=value) for at in range(BATCHES)))
    evict(path)
    return path


def test_scan_without_checksums_reads_only_the_pages_of_headers(cold_log: Path) -> None:
    one = file_source(cold_log, verify_crc=False)
    positions = [row[0] for row in rows(one)]
    assert len(positions) == BATCHES
    headers = {at // mmap.PAGESIZE for start in positions for at in (start, start + 60)}
    assert headers.issuperset(resident_pages(cold_log))
    assert are_still_resident(headers, cold_log)


def test_scan_with_checksums_reads_all_pages(cold_log: Path) -> None:
    rows(file_source(cold_log))
    assert are_still_resident(range(cold_log.stat().st_size // mmap.PAGESIZE), cold_log)

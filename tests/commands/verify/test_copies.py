"""Two copies of a partition, compared batch by batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from kafka_index.commands.verify.copies import CopySegments, compare_copies
from kafka_index.commands.verify.result import FileClass
from kafka_index.core.log.missing_offsets import Cleaning
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from tests.support.command_line import DUMP, run_here
from tests.support.missing_offsets import (
    CleanedLogs,
    read_cleaned_logs,
    remove_batches_of_a_segment,
    write_partition,
)
from tests.support.restoring import copy_dump
from tests.support.segments import batch, packed_batch, wrapper

Batches = dict[int, list[bytes]]


def write(root: Path, logs: Batches) -> list[SegmentFile]:
    """Write the segments of a partition, by base offset."""
    directory = root / "orders-0"
    directory.mkdir(parents=True)
    for base_offset, batches in logs.items():
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
    return list(list_dump([str(root)], topics=None).segments)


def records(base_offset: int, epoch: int = 0, timestamp: int = 1000) -> bytes:
    return batch(base_offset, 3, leader_epoch=epoch, max_timestamp=timestamp)


def compared(tmp_path: Path, ours: Batches, theirs: Batches) -> tuple[FileClass, str, bool]:
    first = CopySegments(write(tmp_path / "ours", ours))
    second = CopySegments(write(tmp_path / "theirs", theirs))
    row = compare_copies((first, second), "test")
    return row.file_class, row.found or "", row.harmful


A, B, C, D = (records(offset) for offset in (0, 3, 6, 9))
B_OF_1, B_OF_2, LATE_B = records(3, epoch=1), records(3, epoch=2), records(3, timestamp=2000)
OLD_A = wrapper(2, 1, [(at, 1000 + at) for at in range(3)], 1, value_size=20)
ROTTEN_B = B[:-1] + bytes([B[-1] ^ 1])
HARMFUL = (FileClass.DIVERGED, FileClass.GAP, FileClass.BAD_CRC)
#: Two copies, and what is found; ``{0}`` is the place of the first of them, ``{1}`` the other.
COPIES: list[tuple[Batches, Batches, FileClass, str]] = [
    ({0: [A, B], 6: [C]}, {0: [A], 3: [B, C]}, FileClass.IDENTICAL, "from offset 0 up to offset 9"),
    # Retention removed segments of one copy.
    ({0: [A], 3: [B], 6: [C]}, {6: [C]}, FileClass.IDENTICAL, "equal from offset 6 up to offset 9"),
    (
        {0: [A, B]},
        {0: [A, ROTTEN_B]},
        FileClass.BAD_CRC,
        "different bytes in the batch at offset 3",
    ),
    ({0: [A, B]}, {0: [A]}, FileClass.PREFIX, "the {1} copy ends at offset 3"),
    ({0: [A, B]}, {6: [C]}, FileClass.PREFIX, "offset 6, and no offset is in both"),
    # Cleaners of Kafka 4 write old messages as batches.
    (
        {0: [OLD_A, B]},
        {0: [A, B]},
        FileClass.EQUIVALENT,
        "batches that compaction removed or rewrote",
    ),
    (
        {0: [A, B_OF_1]},
        {0: [A, B_OF_2, C]},
        FileClass.DIVERGED,
        "at offset 3, with leader epochs {2}",
    ),
    ({0: [A, B]}, {0: [A, LATE_B]}, FileClass.DIVERGED, "at offset 3, with leader epochs 0 and 0"),
    ({0: [A, B, C, D]}, {0: [A, D]}, FileClass.GAP, "the {1} copy lacks 2 batches from offset 3"),
    ({0: [A, B, D]}, {0: [A, C, D]}, FileClass.GAP, "the {1} copy lacks 1 batch from offset 3"),
    ({0: [A, B, D]}, {0: [A, C, D]}, FileClass.GAP, "the {0} copy lacks 1 batch from offset 6"),
    (
        {0: [A, B]},
        {9: [D]},
        FileClass.GAP,
        "the copies have no common offset, and neither copy has offsets 6 to 8",
    ),
]


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("case", range(len(COPIES)))
def test_copies_are_compared_by_their_batches(
    tmp_path: Path, case: int, *, is_swapped: bool
) -> None:
    ours, theirs, file_class, found = COPIES[case]
    words = ("second", "first", "2 and 1") if is_swapped else ("first", "second", "1 and 2")

    row = compared(tmp_path, *((theirs, ours) if is_swapped else (ours, theirs)))

    assert (row[0], row[2]) == (file_class, file_class in HARMFUL)
    assert found.format(*words) in row[1]


def test_partition_that_one_copy_lacks_is_missing() -> None:
    segment = SegmentFile("orders", 0, 0, "/x/orders-0/00000000000000000000.log", 1, 0)

    row = compare_copies((CopySegments([segment]), CopySegments(())), "test")

    assert (row.file_class, row.harmful) == (FileClass.MISSING, True)


def test_vanished_log_is_a_row_of_the_comparison(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours", {0: [records(0)]})
    theirs = write(tmp_path / "theirs", {0: [records(0)]})
    Path(theirs[0].log_path).unlink()

    row = compare_copies((CopySegments(ours), CopySegments(theirs)), "test")

    assert row.file_class is FileClass.UNREADABLE


FORMS = {f"{log.magic}-{log.codec}": log for log in read_cleaned_logs()}
T = 1_700_000_000_000


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> CleanedLogs:
    return FORMS[request.param]


@pytest.mark.parametrize("is_first", [False, True])
def test_compaction_is_not_a_difference_of_copies(
    tmp_path: Path, form: CleanedLogs, *, is_first: bool
) -> None:
    before = write_partition(tmp_path / "before", form.before)
    after = write_partition(tmp_path / "after", form.after, form.cleaned_to)
    copies = (after, before) if is_first else (before, after)

    result = run_here("verify", "--input", copies[0], "--against", copies[1])

    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith("no harmful difference was found in 1 partition\n")


def test_records_missing_above_the_cleaner_checkpoint_are_a_difference(
    tmp_path: Path, form: CleanedLogs
) -> None:
    before = write_partition(tmp_path / "before", form.before)
    after = write_partition(tmp_path / "after", form.after, form.cleaned_to)
    remove_batches_of_a_segment(after)

    result = run_here("verify", "--input", before, "--against", after)

    assert result.returncode == 1
    assert "the second copy lacks" in result.stdout
    assert "from offset 8" in result.stdout
    assert "harmful differences in 1 of 1 partition:" in result.stdout


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_changed_record_in_a_cleaned_batch_is_a_difference(tmp_path: Path, codec: int) -> None:
    complete_batch = packed_batch(0, [(0, T), (1, T), (2, T)], codec)
    cleaned = packed_batch(0, [(0, T), (2, T)], codec, last_offset_delta=2)
    changed = packed_batch(0, [(0, T), (2, T + 1)], codec, last_offset_delta=2)

    equal = compared(tmp_path / "a", {0: [complete_batch]}, {0: [cleaned]})
    other = compared(tmp_path / "b", {0: [complete_batch]}, {0: [changed]})

    assert (equal[0], equal[2]) == (FileClass.THINNED, False)
    assert other[0] is FileClass.DIVERGED


@pytest.mark.parametrize(
    ("policy", "is_harmful"), [("delete", True), ("compact", False), (None, False)]
)
def test_missing_records_inside_batches_of_a_copy_are_counted(
    tmp_path: Path, policy: str | None, *, is_harmful: bool
) -> None:
    whole = [packed_batch(at, [(0, T), (1, T), (2, T)]) for at in (0, 3, 6)]
    thinned = packed_batch(3, [(1, T)], last_offset_delta=2)
    cleaning = Cleaning.from_policy("orders", None, policy, is_topic_known=policy is not None)
    copies = [
        CopySegments(write(tmp_path / name, {0: batches}), cleaning)
        for name, batches in (("ours", whole), ("theirs", [whole[0], thinned, whole[2]]))
    ]

    row = compare_copies((copies[0], copies[1]), "test")

    assert (row.file_class, row.harmful) == (FileClass.THINNED, is_harmful)
    assert row.found == "the second copy lacks 2 records inside batches from offset 3 on"


def test_compacted_topics_of_copies_are_taken_from_the_metadata_log(tmp_path: Path) -> None:
    copies = [copy_dump(tmp_path / name, "payments-0") for name in ("ours", "theirs")]
    log = next(path for path in (copies[1] / "payments-0").glob("*.log") if path.stat().st_size)
    log.write_bytes(b"".join(without_last_record(log.read_bytes())))

    done = [
        run_here("verify", "--input", copies[0], "--against", copies[1], *more)
        for more in ((), ("--metadata", DUMP))
    ]

    assert [each.returncode for each in done] == [0, 1]
    assert all("lacks 1 record inside batches" in each.stdout for each in done)


def without_last_record(log: bytes) -> Iterator[bytes]:
    """Yield the batches of a log; the first one with several records lacks its last record."""
    at, is_done = 0, False
    while at < len(log):
        (size,) = struct.unpack_from(">i", log, at + 8)
        data = log[at : at + 12 + size]
        (count,) = struct.unpack_from(">i", data, 57)
        is_packed = struct.unpack_from(">h", data, 21)[0] & 7
        at += len(data)
        if is_done or count < 2 or is_packed:
            yield data
            continue
        is_done = True
        place = 61
        for _ in range(count - 1):
            last = place
            length, shift = 0, 0
            while True:
                byte = data[place]
                place += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
            place += length >> 1
            assert place > last
        kept = bytearray(data[:place])
        struct.pack_into(">i", kept, 8, len(kept) - 12)
        struct.pack_into(">i", kept, 57, count - 1)
        struct.pack_into(">I", kept, 17, google_crc32c.value(bytes(kept[21:])))
        yield bytes(kept)


@pytest.mark.parametrize(("epoch", "last"), [(5, 2), (0, 5)])
def test_missing_records_that_a_cleaner_keeps_are_a_difference(
    tmp_path: Path, epoch: int, last: int
) -> None:
    complete_batch = packed_batch(0, [(0, T), (1, T), (2, T)])
    cleaned = packed_batch(0, [(0, T)], last_offset_delta=last, leader_epoch=epoch)

    assert compared(tmp_path, {0: [complete_batch]}, {0: [cleaned]})[0] is FileClass.DIVERGED

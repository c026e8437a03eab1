"""Two copies of a partition, compared batch by batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.storage import SegmentFile, list_dump
from kafka_index.verification import FileClass
from kafka_index.verification.copies import CopySegments, comparison_finding
from tests.support.command_line import run_here
from tests.support.missing_offsets import CleanedLogs, read_cleaned_logs, within, write_partition
from tests.support.segments import batch, packed_batch

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
    row = comparison_finding((first, second), "test")
    return row.file_class, row.found or "", row.harmful


def test_equal_batches_are_identical_however_they_are_split(tmp_path: Path) -> None:
    ours = {0: [records(0), records(3)], 6: [records(6)]}
    theirs = {0: [records(0)], 3: [records(3), records(6)]}

    assert compared(tmp_path, ours, theirs) == (
        FileClass.IDENTICAL,
        "equal up to offset 9",
        False,
    )


def test_a_copy_that_ends_before_is_a_prefix(tmp_path: Path) -> None:
    ours = {0: [records(0), records(3)]}
    theirs = {0: [records(0)]}

    assert compared(tmp_path, ours, theirs) == (
        FileClass.PREFIX,
        "the second copy ends at offset 3",
        False,
    )


def test_different_batches_at_an_offset_diverge_under_their_epochs(tmp_path: Path) -> None:
    ours = {0: [records(0), records(3, epoch=1)]}
    theirs = {0: [records(0), records(3, epoch=2), records(6, epoch=2)]}

    assert compared(tmp_path, ours, theirs) == (
        FileClass.DIVERGED,
        "diverged at offset 3 under epochs 1 and 2",
        True,
    )


def test_equal_headers_with_another_checksum_diverge(tmp_path: Path) -> None:
    ours = {0: [records(0), records(3)]}
    theirs = {0: [records(0), records(3, timestamp=2000)]}

    assert compared(tmp_path, ours, theirs)[0] is FileClass.DIVERGED


def test_what_retention_removed_of_one_copy_is_no_difference(tmp_path: Path) -> None:
    ours = {0: [records(0)], 3: [records(3)], 6: [records(6)]}
    theirs = {6: [records(6)]}

    assert compared(tmp_path, ours, theirs)[0] is FileClass.IDENTICAL


def test_batches_that_one_copy_lacks_are_a_gap(tmp_path: Path) -> None:
    ours = {0: [records(0), records(3), records(6), records(9)]}
    theirs = {0: [records(0), records(9)]}

    assert compared(tmp_path, ours, theirs) == (
        FileClass.GAP,
        "the second copy lacks 2 batches from offset 3 on",
        True,
    )


@pytest.mark.parametrize("is_first_later", [False, True])
def test_offsets_between_the_copies_that_neither_has_are_a_gap(
    tmp_path: Path, *, is_first_later: bool
) -> None:
    copies = [{0: [records(0), records(3)]}, {9: [records(9)]}]
    ours, theirs = reversed(copies) if is_first_later else copies

    assert compared(tmp_path, ours, theirs) == (
        FileClass.GAP,
        "the copies share no offset: 6 to 8 are in neither",
        True,
    )


def test_a_copy_that_begins_where_the_other_ends_is_no_gap(tmp_path: Path) -> None:
    ours = {0: [records(0), records(3)]}
    theirs = {6: [records(6)]}

    assert compared(tmp_path, ours, theirs)[0] is FileClass.PREFIX


def test_a_partition_that_one_copy_lacks_is_missing() -> None:
    segment = SegmentFile("orders", 0, 0, "/x/orders-0/00000000000000000000.log", 1, 0)

    row = comparison_finding((CopySegments([segment]), CopySegments(())), "test")

    assert (row.file_class, row.harmful) == (FileClass.MISSING, True)


def test_a_log_that_is_gone_is_a_row(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours", {0: [records(0)]})
    theirs = write(tmp_path / "theirs", {0: [records(0)]})
    Path(theirs[0].log_path).unlink()

    row = comparison_finding((CopySegments(ours), CopySegments(theirs)), "test")

    assert row.file_class is FileClass.UNREADABLE


FORMS = {f"{one.magic}-{one.codec}": one for one in read_cleaned_logs()}
T = 1_700_000_000_000


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> CleanedLogs:
    return FORMS[request.param]


@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_cleaner_does_is_no_difference(
    tmp_path: Path, form: CleanedLogs, *, is_first: bool
) -> None:
    before = write_partition(tmp_path / "before", form.before)
    after = write_partition(tmp_path / "after", form.after, form.cleaned_to)
    copies = (after, before) if is_first else (before, after)

    done = run_here("verify", "--input", copies[0], "--against", copies[1])

    assert done.returncode == 0, done.stdout
    assert "1 partition compared, 0 with harmful differences" in done.stdout


def test_what_is_missing_above_the_cleaner_is_a_difference(
    tmp_path: Path, form: CleanedLogs
) -> None:
    before = write_partition(tmp_path / "before", form.before)
    after = write_partition(tmp_path / "after", form.after, form.cleaned_to)
    within(after)

    done = run_here("verify", "--input", before, "--against", after)

    assert done.returncode == 1
    assert "the second copy lacks" in done.stdout
    assert "from offset 8" in done.stdout
    assert "1 partition compared, 1 with harmful differences" in done.stdout
    assert "1 partition with harmful differences:" in done.stdout


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_record_that_changed_is_a_difference_in_a_cleaned_batch_too(
    tmp_path: Path, codec: int
) -> None:
    whole = packed_batch(0, [(0, T), (1, T), (2, T)], codec)
    cleaned = packed_batch(0, [(0, T), (2, T)], codec, last_offset_delta=2)
    changed = packed_batch(0, [(0, T), (2, T + 1)], codec, last_offset_delta=2)

    equal = compared(tmp_path / "a", {0: [whole]}, {0: [cleaned]})
    other = compared(tmp_path / "b", {0: [whole]}, {0: [changed]})

    assert equal[0] is FileClass.IDENTICAL
    assert other[0] is FileClass.DIVERGED


@pytest.mark.parametrize(("epoch", "last"), [(5, 2), (0, 5)])
def test_what_a_cleaner_keeps_of_a_batch_is_a_difference(
    tmp_path: Path, epoch: int, last: int
) -> None:
    whole = packed_batch(0, [(0, T), (1, T), (2, T)])
    cleaned = packed_batch(0, [(0, T)], last_offset_delta=last, leader_epoch=epoch)

    assert compared(tmp_path, {0: [whole]}, {0: [cleaned]})[0] is FileClass.DIVERGED

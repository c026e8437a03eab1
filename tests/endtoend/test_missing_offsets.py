"""Every command names the same missing offsets: each magic and codec, cleaned or not."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from kafka_index import verify
from kafka_index.commands.verify.result import FileClass, FileKind, Finding
from kafka_index.core.log.scan.segment_scan import read_batches
from tests.support.campaign import combine_cases
from tests.support.command_line import run_here
from tests.support.missing_offsets import (
    END,
    REMOVALS,
    CleanedLogs,
    Removal,
    checkpoint,
    log_at,
    predicted,
    read,
    read_cleaned_logs,
    remove_batches_of_a_segment,
    remove_batches_of_two_segments,
    remove_offsets,
    remove_segment_log,
    remove_segment_log_and_next_batches,
    restored,
    time_index_at,
    verified,
    write_partition,
)

FORMS = {f"{log.magic}-{log.codec}": log for log in read_cleaned_logs()}


def of_some_forms(names: str, *values: Iterable[object]) -> pytest.MarkDecorator:
    """Take all cases, each of a third of the forms in turn."""
    cases = combine_cases(product(*values), list(FORMS), at_once=4)
    rows = [(*case, form) for case, form in cases]
    return pytest.mark.parametrize(f"{names},form", rows, indirect=["form"])


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> CleanedLogs:
    return FORMS[request.param]


def write(root: Path, form: CleanedLogs, *, cleaned: bool) -> Path:
    if cleaned:
        return write_partition(root, form.after, form.cleaned_to)
    return write_partition(root, form.before)


@of_some_forms("place,cleaned", REMOVALS, (False, True))
def test_every_command_reports_the_same_missing_offsets(
    tmp_path: Path, form: CleanedLogs, place: Removal, *, cleaned: bool
) -> None:
    root = write(tmp_path / "data", form, cleaned=cleaned)
    missing = place(root)

    assert every_command(root) == (1, missing)


@pytest.mark.parametrize("cleaned", [False, True])
def test_offsets_removed_by_a_cleaner_are_not_missing(
    tmp_path: Path, form: CleanedLogs, *, cleaned: bool
) -> None:
    root = write(tmp_path / "data", form, cleaned=cleaned)

    assert every_command(root) == (0, [])


def every_command(root: Path) -> tuple[int, list[tuple[int, int]]]:
    """The missing offsets that all commands report."""
    code, missing = verified(root)
    assert restored(root) == (code, missing)
    assert predicted(root) == (code, missing)
    assert read(root) == missing
    return code, missing


@of_some_forms("base_offset,cleaned", (0, 24, 72), (False, True))
def test_log_with_remaining_index_files_is_lost(
    tmp_path: Path, form: CleanedLogs, base_offset: int, *, cleaned: bool
) -> None:
    root = write(tmp_path / "data", form, cleaned=cleaned)
    time_index_at(root, base_offset)
    log_at(root, base_offset).unlink()

    assert every_command(root) == (1, [(base_offset, base_offset + 23)])


@of_some_forms("kept_to,cleaned", (24, 36), (False, True))
def test_missing_log_end_known_from_index_files_is_reported_as_lost(
    tmp_path: Path, form: CleanedLogs, kept_to: int, *, cleaned: bool
) -> None:
    root = write(tmp_path / "data", form, cleaned=cleaned)
    other = write(tmp_path / "other", form, cleaned=cleaned)
    log = log_at(root, 24)
    remove_offsets(log, kept_to, 47)
    first = last_offset(log) + 1 if kept_to > 24 else 24
    time_index_at(root, 24)

    assert every_command(root) == (1, [(first, 47)])
    assert restored(root, other) == restored(other, root) == (0, [])


def last_offset(log: Path) -> int:
    """The last offset of a log."""
    (*_, table) = read_batches(log)
    return int(table["last_offset"][-1].as_py())


@of_some_forms("base_offset,cleaned", (0, 24, 72), (False, True))
def test_segment_without_any_file_may_be_deleted(
    tmp_path: Path, form: CleanedLogs, base_offset: int, *, cleaned: bool
) -> None:
    root = write(tmp_path / "data", form, cleaned=cleaned)
    log_at(root, base_offset).unlink()
    # The snapshot of a segment that is gone shows nothing.
    log_at(root, base_offset).with_suffix(".snapshot.deleted").touch()

    is_noticed = base_offset == 24 and not cleaned
    assert every_command(root) == ((1, [(24, 47)]) if is_noticed else (0, []))


@pytest.mark.parametrize("ending", [".deleted", ".cleaned"])
def test_log_marked_for_deletion_is_not_lost(tmp_path: Path, ending: str) -> None:
    root = write(tmp_path / "data", FORMS["2-none"], cleaned=True)
    time_index_at(root, 24)
    log_at(root, 24).rename(log_at(root, 24).with_suffix(f".log{ending}"))

    assert every_command(root) == (0, [])


def test_index_without_entries_shows_no_lost_log(tmp_path: Path) -> None:
    root = write(tmp_path / "data", FORMS["2-none"], cleaned=True)
    time_index_at(root, 24).write_bytes(bytes(1200))
    log_at(root, 24).with_suffix(".txnindex").touch()
    log_at(root, 24).unlink()

    assert every_command(root) == (0, [])


@pytest.mark.parametrize(("start", "missing"), [(0, [(0, 23)]), (7, [(7, 23)]), (24, []), (30, [])])
def test_lost_log_below_the_log_start_counts_as_deleted(
    tmp_path: Path, start: int, missing: list[tuple[int, int]]
) -> None:
    root = write(tmp_path / "data", FORMS["2-none"], cleaned=True)
    time_index_at(root, 0)
    log_at(root, 0).unlink()
    checkpoint(root, "log-start-offset-checkpoint", start)

    assert every_command(root) == (int(bool(missing)), missing)


def test_index_within_another_log_shows_no_lost_log(tmp_path: Path) -> None:
    root = write(tmp_path / "data", FORMS["2-none"], cleaned=False)
    time_index_at(root, 60)

    assert every_command(root) == (0, [])


def test_consecutive_lost_logs_are_one_range(tmp_path: Path) -> None:
    root = write(tmp_path / "data", FORMS["2-none"], cleaned=True)
    for base_offset in (24, 48):
        time_index_at(root, base_offset)
        log_at(root, base_offset).unlink()

    assert every_command(root) == (1, [(24, 71)])


def test_complete_copy_repairs_a_lost_log(tmp_path: Path, form: CleanedLogs) -> None:
    root = write(tmp_path / "data", form, cleaned=True)
    other = write(tmp_path / "other", form, cleaned=True)
    time_index_at(root, 24)
    log_at(root, 24).unlink()
    end_earlier(other)

    assert restored(root, other) == (0, [])


def test_offsets_are_not_lost_without_the_checkpoint(tmp_path: Path, form: CleanedLogs) -> None:
    root = write_partition(tmp_path / "data", form.after)

    code, _ = every_command(root)

    actual = verify([root], threads=1)
    gaps = [finding.effect or "" for finding in actual.findings if is_gap(finding)]
    assert code == int(bool(gaps))
    assert all("cannot be known" in effect for effect in gaps)
    # A batch of magic 2, and what is compressed, keeps marks of the cleaner.
    assert (code == 0) is (form.magic == 2 or form.codec != "none")
    result = run_here("restore", "--input", root, "--output", tmp_path / "out")
    assert "record lost" not in result.stdout
    assert "records lost" not in result.stdout
    named = re.findall(r"\d+ offsets? possibly lost in ", result.stdout)
    assert len(named) == code


def is_gap(finding: Finding) -> bool:
    """Whether a row is of a log with missing offsets."""
    return finding.file_class is FileClass.GAP and finding.kind is FileKind.LOG


@of_some_forms(
    "place,cleaned",
    (remove_batches_of_a_segment, remove_segment_log, remove_batches_of_two_segments),
    (False, True),
)
def test_complete_copy_repairs_missing_offsets(
    tmp_path: Path, form: CleanedLogs, place: Removal, *, cleaned: bool
) -> None:
    root = write(tmp_path / "data", form, cleaned=cleaned)
    other = write(tmp_path / "other", form, cleaned=cleaned)
    place(root)
    end_earlier(other)

    assert restored(root, other) == (0, [])


@pytest.mark.parametrize("place", [remove_batches_of_a_segment, remove_segment_log])
def test_incomplete_copy_repairs_a_part_of_the_range(
    tmp_path: Path, form: CleanedLogs, place: Removal
) -> None:
    root = write(tmp_path / "data", form, cleaned=True)
    other = write(tmp_path / "other", form, cleaned=True)
    place(root)
    remove_offsets(log_at(other, 48), 56, 59)
    remove_offsets(log_at(other, 72), 80, 83)
    end_earlier(other)

    assert restored(root, other) == (
        1,
        [(80, 83)] if place is remove_batches_of_a_segment else [(56, 59)],
    )


def test_missing_start_of_a_log_is_repaired(tmp_path: Path, form: CleanedLogs) -> None:
    root = write(tmp_path / "data", form, cleaned=False)
    other = write(tmp_path / "other", form, cleaned=False)
    remove_segment_log_and_next_batches(root)
    end_earlier(other)

    assert restored(root, other) == (0, [])


def end_earlier(root: Path) -> None:
    """Let the log end earlier than that of another copy, which is the base then."""
    remove_offsets(log_at(root, 72), END - 4, END - 1)


def test_offsets_between_the_cleaner_checkpoint_and_the_next_batch_are_missing(
    tmp_path: Path, form: CleanedLogs
) -> None:
    root = write(tmp_path / "data", form, cleaned=True)
    remove_offsets(log_at(root, 24), 44, 47)
    log_at(root, 48).unlink()

    assert every_command(root) == (1, [(48, 71)])


def test_offsets_below_the_log_start_are_not_missing(tmp_path: Path, form: CleanedLogs) -> None:
    root = write(tmp_path / "data", form, cleaned=False)
    remove_offsets(log_at(root, 0), 8, 19)
    checkpoint(root, "log-start-offset-checkpoint", 14)

    assert every_command(root) == (1, [(14, 19)])


def test_unreadable_message_hides_its_inner_offsets(tmp_path: Path) -> None:
    form = FORMS["1-gzip"]
    root = write(tmp_path / "data", form, cleaned=False)
    log = log_at(root, 24)
    data = bytearray(log.read_bytes())
    # What follows the header of the gzip stream; the checksum of the message is made right.
    data[60] ^= 0xFF
    with_right_checksum(data)
    log.write_bytes(data)

    code, missing = verified(root)

    assert (code, missing) == (1, [(24, 26)])
    assert restored(root) == (1, missing)


def with_right_checksum(data: bytearray) -> None:
    end = 12 + int.from_bytes(data[8:12])
    data[12:16] = zlib.crc32(data[16:end]).to_bytes(4)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topic_without_metadata_counts_as_compacted(tmp_path: Path, name: str) -> None:
    root = write(tmp_path / "data", FORMS["2-none"], cleaned=False)
    remove_segment_log(root)
    shutil.move(root / "orders-0", root / f"{name}-0")

    result = verify([root], threads=1)
    (gap,) = filter(is_gap, result.findings)
    assert "cannot be known" in (gap.effect or "")

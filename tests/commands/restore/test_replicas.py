"""Several dumps of the same partitions: the base, what fills it, and what never does."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from kafka_index import restore_dump
from tests.support.command_line import run_here
from tests.support.restoring import (
    RestoreRun,
    batches,
    contents,
    copy_dump,
    damage_batch,
    drop_batch,
    logs,
    restore,
)

PARTITION = "audit.trail-0"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "first", PARTITION)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "second", PARTITION)


def restore_both(first: Path, second: Path, output: Path, *more: str) -> RestoreRun:
    return restore(first, output, "--input", second, *more)


@pytest.mark.parametrize("number", [0, 5, -1])
def test_damaged_batch_is_repaired_from_the_other_copy(
    tmp_path: Path, first: Path, second: Path, number: int
) -> None:
    complete_contents = contents(second / PARTITION)
    damage_batch(logs(first / PARTITION)[1], number)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == complete_contents
    (row,) = run.rows
    assert "repaired from" in (row["note"] or "") or row["path"] == str(second / PARTITION)


def test_missing_segment_is_repaired_from_the_other_copy(
    tmp_path: Path, first: Path, second: Path
) -> None:
    complete_contents = contents(second / PARTITION)
    damage_batch(logs(second / PARTITION)[-1], -1)
    logs(first / PARTITION)[1].unlink()

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == complete_contents


def checkpoint_log_start(dump: Path, offset: int) -> None:
    text = f"0\n1\naudit.trail 0 {offset}\n"
    (dump / "log-start-offset-checkpoint").write_text(text)


def test_missing_first_segment_is_repaired_from_the_log_start(
    tmp_path: Path, first: Path, second: Path
) -> None:
    log = logs(first / PARTITION)[0]
    before = batches(log)
    start = before[2]["base_offset"] + 1
    log.unlink()
    checkpoint_log_start(first, start)
    damage_batch(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    made, second_log = logs(tmp_path / "out" / PARTITION)[:2]
    restored = batches(made)
    assert [row["crc"] for row in restored] == [row["crc"] for row in before[2:]]
    assert int(made.stem) == before[2]["base_offset"]
    assert second_log.name == logs(first / PARTITION)[0].name
    starts = (tmp_path / "out/log-start-offset-checkpoint").read_text()
    assert starts == f"0\n1\naudit.trail 0 {start}\n"
    assert "repaired from" in run.rows[0]["note"]
    assert "\nsafe" in run_here("predict", "--input", tmp_path / "out").stdout


def test_offsets_below_the_log_start_are_not_repaired(
    tmp_path: Path, first: Path, second: Path
) -> None:
    logs(first / PARTITION)[0].unlink()
    checkpoint_log_start(first, int(logs(first / PARTITION)[0].stem))
    damage_batch(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    names = [log.name for log in logs(tmp_path / "out" / PARTITION)]
    assert names == [log.name for log in logs(first / PARTITION)]


def test_damaged_first_batch_is_repaired(tmp_path: Path, first: Path, second: Path) -> None:
    complete_contents = contents(second / PARTITION)
    damage_batch(logs(first / PARTITION)[0], 0)
    damage_batch(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == complete_contents


def test_offsets_missing_in_both_copies_are_lost(tmp_path: Path, first: Path, second: Path) -> None:
    damage_batch(logs(first / PARTITION)[1], 5)
    damage_batch(logs(second / PARTITION)[1], 5)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert run.code == 1
    assert len(run.lost) == 1


def with_epoch(log: Path, number: int, epoch: int) -> None:
    """Give a batch another leader epoch, which no checksum covers."""
    position = batches(log)[number]["position_bytes"]
    data = bytearray(log.read_bytes())
    struct.pack_into(">i", data, position + 12, epoch)
    log.write_bytes(data)


@pytest.mark.parametrize("beside", [4, 6])
def test_copies_that_differ_next_to_the_range_are_not_joined(
    tmp_path: Path, first: Path, second: Path, beside: int
) -> None:
    damage_batch(logs(first / PARTITION)[1], 5)
    with_epoch(logs(second / PARTITION)[1], beside, 7)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert run.code == 1
    (lost,) = run.lost
    assert lost["reason_code"] == "bad_crc"


def test_copy_with_the_highest_epoch_and_end_is_the_base(
    tmp_path: Path, first: Path, second: Path
) -> None:
    last = logs(first / PARTITION)[-1]
    position = batches(last)[-1]["position_bytes"]
    last.write_bytes(last.read_bytes()[:position])

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    (row,) = run.rows
    assert row["path"] == str(second / PARTITION)


@pytest.fixture
def third(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "third", PARTITION)


def without_batches(log: Path, first: int, last: int) -> tuple[int, int]:
    """Take batches out of a log, and let those after them be a log of their own.

    Return the offsets that are missing then.
    """
    rows = batches(log)
    data = log.read_bytes()
    following = rows[last + 1]
    rest = data[following["position_bytes"] :]
    log.write_bytes(data[: rows[first]["position_bytes"]])
    log.with_name(f"{following['base_offset']:020d}.log").write_bytes(rest)
    for index in log.parent.glob(f"{log.stem}.*index"):
        index.unlink()
    return rows[first]["base_offset"], following["base_offset"] - 1


def damage_all(log: Path, first: int, last: int) -> None:
    # Batches are read up to the first damaged one.
    for number in range(last, first - 1, -1):
        damage_batch(log, number)


@pytest.mark.parametrize("start", [0, 5])
def test_offsets_missing_in_a_repair_are_a_loss(
    tmp_path: Path, first: Path, second: Path, start: int
) -> None:
    names = [log.name for log in logs(first / PARTITION)]
    damage_all(logs(first / PARTITION)[0], start, 14)
    for dump in (first, second):
        (dump / PARTITION / names[2]).unlink()
    missing = without_batches(logs(second / PARTITION)[0], 8, 9)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 1
    gap = int(Path(names[2]).stem), int(Path(names[3]).stem) - 1
    assert sorted(run.lost_offsets) == [("gap", *missing), ("gap", *gap)]


def test_gap_within_one_log_of_a_repair_is_a_loss(
    tmp_path: Path, first: Path, second: Path
) -> None:
    damage_all(logs(first / PARTITION)[1], 2, 6)
    missing = drop_batch(logs(second / PARTITION)[1], 4)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert run.code == 1
    assert run.lost_offsets == [("gap", missing["base_offset"], missing["last_offset"])]


def test_offsets_before_a_repair_are_a_loss(tmp_path: Path, first: Path, second: Path) -> None:
    damage_all(logs(first / PARTITION)[0], 0, 6)
    other = logs(second / PARTITION)[0]
    rows = batches(other)
    other.write_bytes(other.read_bytes()[rows[3]["position_bytes"] :])

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 1
    assert run.lost_offsets == [("gap", 0, rows[3]["base_offset"] - 1)]


def test_complete_copy_repairs_before_a_copy_with_gaps(
    tmp_path: Path, first: Path, second: Path, third: Path
) -> None:
    complete_contents = contents(third / PARTITION)
    damage_all(logs(first / PARTITION)[0], 5, 14)
    without_batches(logs(second / PARTITION)[0], 8, 9)

    run = restore_both(first, second, tmp_path / "out", "--input", str(third))

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == complete_contents


def test_log_start_is_repaired_from_the_complete_copy(
    tmp_path: Path, first: Path, second: Path, third: Path
) -> None:
    second_log = logs(first / PARTITION)[1]
    whole = {log.name: log.read_bytes() for log in logs(third / PARTITION)}
    for log in logs(first / PARTITION)[:2]:
        log.unlink()
    checkpoint_log_start(first, 10)
    (second / PARTITION / second_log.name).unlink()

    run = restore_both(first, second, tmp_path / "out", "--input", str(third))

    assert run.code == 0, run.done.stdout
    made = b"".join(log.read_bytes() for log in logs(tmp_path / "out" / PARTITION))
    assert b"".join(whole.values()).endswith(made)
    assert int(logs(tmp_path / "out" / PARTITION)[0].stem) <= 10


def test_rest_of_a_repaired_log_start_is_repaired_from_the_next_copy(
    tmp_path: Path, first: Path, second: Path, third: Path
) -> None:
    names = [log.name for log in logs(first / PARTITION)]
    for name in names[:2]:
        (first / PARTITION / name).unlink()
    checkpoint_log_start(first, 10)
    missing = without_batches(second / PARTITION / names[1], 8, 9)
    (third / PARTITION / names[0]).unlink()

    run = restore_both(first, second, tmp_path / "out", "--input", str(third))

    assert run.code == 0, run.done.stdout
    restored = [row for log in logs(tmp_path / "out" / PARTITION) for row in batches(log)]
    assert missing[0] in [row["base_offset"] for row in restored]
    assert all(one["last_offset"] + 1 == two["base_offset"] for one, two in pairwise(restored))


def checkpoint_cleaner(dump: Path, offset: int) -> None:
    (dump / "cleaner-offset-checkpoint").write_text(f"0\n1\naudit.trail 0 {offset}\n")


@pytest.mark.parametrize("is_other_cleaned", [True, False])
def test_damaged_log_start_is_repaired_only_from_a_copy_cleaned_as_far(
    tmp_path: Path, first: Path, second: Path, *, is_other_cleaned: bool
) -> None:
    damage_batch(logs(first / PARTITION)[0], 0)
    damage_batch(logs(second / PARTITION)[-1], -1)
    end = int(logs(first / PARTITION)[1].stem)
    checkpoint_cleaner(first, end)
    if is_other_cleaned:
        checkpoint_cleaner(second, end)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert [row["reason_code"] for row in run.lost] == ["bad_crc"] * (not is_other_cleaned)


def test_offsets_that_a_cleaner_may_have_removed_report_the_copy_with_them(
    tmp_path: Path,
) -> None:
    names = PARTITION, "__cluster_metadata-0"
    first, second = (copy_dump(tmp_path / each, *names) for each in ("first", "second"))
    for copy in (first, second):
        (copy / "cleaner-offset-checkpoint").unlink()
    drop_batch(logs(first / PARTITION)[1], 4)
    damage_batch(logs(second / PARTITION)[-1], -1)
    settings = {"log.cleanup.policy": "compact"}

    result = restore_dump([first, second], tmp_path / "out", config=settings, salvage="batches")

    (lost,) = [lost for partition in result.partitions for lost in partition.lost]
    assert f"in no segment, and the batches in {second / PARTITION} are not" in lost.reason


@pytest.mark.parametrize("number", [0, 2])
def test_damaged_log_start_is_repaired_if_the_log_has_gaps(
    tmp_path: Path, first: Path, second: Path, number: int
) -> None:
    complete_contents = contents(second / PARTITION)
    drop_batch(logs(first / PARTITION)[number], 4)
    damage_batch(logs(first / PARTITION)[0], 0)
    damage_batch(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == complete_contents


def test_different_corrupt_batches_of_two_copies_are_all_repaired(
    tmp_path: Path, first: Path, second: Path
) -> None:
    complete_contents = contents(second / PARTITION)
    damage_batch(logs(first / PARTITION)[1], 3)
    damage_batch(logs(second / PARTITION)[1], 9)

    both = [
        restore_both(*copies, tmp_path / name)
        for name, copies in (("out", (first, second)), ("turned", (second, first)))
    ]

    for run, name in zip(both, ("out", "turned"), strict=True):
        assert run.code == 0, run.done.stdout
        assert contents(tmp_path / name / PARTITION) == complete_contents


def test_log_end_of_a_damaged_replica_is_kept(tmp_path: Path, first: Path, second: Path) -> None:
    complete_contents = contents(first / PARTITION)
    damage_batch(logs(first / PARTITION)[-1], 2)
    last = logs(second / PARTITION)[-1]
    last.write_bytes(last.read_bytes()[:-20])

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == complete_contents


def test_copies_of_different_topics_are_rejected(tmp_path: Path, first: Path, second: Path) -> None:
    path = second / PARTITION / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw")

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 2
    assert "topic ID" in run.done.stderr

"""Several dumps of the same partitions: the base, what fills it, and what never does."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kafka_index.scan import read_batches
from tests.support.command_line import run_here
from tests.support.restoring import RestoreRun, contents, copy_dump, logs, restore

PARTITION = "audit.trail-0"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "first", PARTITION)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "second", PARTITION)


def positions(log: Path) -> list[tuple[int, int]]:
    return [
        (row["position_bytes"], row["size_bytes"])
        for table in read_batches(log)
        for row in table.to_pylist()
    ]


def damage(log: Path, number: int) -> None:
    position, size = positions(log)[number]
    data = bytearray(log.read_bytes())
    data[position + size - 2] ^= 1
    log.write_bytes(data)


def restore_both(first: Path, second: Path, output: Path, *more: str) -> RestoreRun:
    return restore(first, output, "--input", second, *more)


@pytest.mark.parametrize("number", [0, 5, -1])
def test_a_damaged_batch_is_filled_from_the_other_copy(
    tmp_path: Path, first: Path, second: Path, number: int
) -> None:
    whole = contents(second / PARTITION)
    damage(logs(first / PARTITION)[1], number)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == whole
    (row,) = run.rows
    assert "filled from" in (row["note"] or "") or row["path"] == str(second / PARTITION)


def test_a_missing_segment_is_filled_from_the_other_copy(
    tmp_path: Path, first: Path, second: Path
) -> None:
    whole = contents(second / PARTITION)
    damage(logs(second / PARTITION)[-1], -1)
    logs(first / PARTITION)[1].unlink()

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == whole


def checkpoint_log_start(dump: Path, offset: int) -> None:
    text = f"0\n1\naudit.trail 0 {offset}\n"
    (dump / "log-start-offset-checkpoint").write_text(text)


def test_a_first_segment_that_is_missing_is_filled_from_the_log_start_on(
    tmp_path: Path, first: Path, second: Path
) -> None:
    log = logs(first / PARTITION)[0]
    before = [row for table in read_batches(log) for row in table.to_pylist()]
    start = before[2]["base_offset"] + 1
    log.unlink()
    checkpoint_log_start(first, start)
    damage(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    made, second_log = logs(tmp_path / "out" / PARTITION)[:2]
    restored = [row for table in read_batches(made) for row in table.to_pylist()]
    assert [row["crc"] for row in restored] == [row["crc"] for row in before[2:]]
    assert int(made.stem) == before[2]["base_offset"]
    assert second_log.name == logs(first / PARTITION)[0].name
    starts = (tmp_path / "out/log-start-offset-checkpoint").read_text()
    assert starts == f"0\n1\naudit.trail 0 {start}\n"
    assert "filled from" in run.rows[0]["note"]
    assert run_here("predict", "--input", tmp_path / "out").stdout.startswith("safe")


def test_what_is_below_the_log_start_is_not_filled(
    tmp_path: Path, first: Path, second: Path
) -> None:
    logs(first / PARTITION)[0].unlink()
    checkpoint_log_start(first, int(logs(first / PARTITION)[0].stem))
    damage(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    names = [log.name for log in logs(tmp_path / "out" / PARTITION)]
    assert names == [log.name for log in logs(first / PARTITION)]


def test_a_damaged_first_batch_of_all_is_filled(tmp_path: Path, first: Path, second: Path) -> None:
    whole = contents(second / PARTITION)
    damage(logs(first / PARTITION)[0], 0)
    damage(logs(second / PARTITION)[-1], -1)

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert contents(tmp_path / "out" / PARTITION) == whole


def test_what_both_copies_lack_is_lost(tmp_path: Path, first: Path, second: Path) -> None:
    damage(logs(first / PARTITION)[1], 5)
    damage(logs(second / PARTITION)[1], 5)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert run.code == 1
    assert len(run.lost) == 1


def with_epoch(log: Path, number: int, epoch: int) -> None:
    """Give a batch another leader epoch, which no checksum covers."""
    position, _ = positions(log)[number]
    data = bytearray(log.read_bytes())
    struct.pack_into(">i", data, position + 12, epoch)
    log.write_bytes(data)


@pytest.mark.parametrize("beside", [4, 6])
def test_copies_that_differ_beside_the_range_are_not_joined(
    tmp_path: Path, first: Path, second: Path, beside: int
) -> None:
    damage(logs(first / PARTITION)[1], 5)
    with_epoch(logs(second / PARTITION)[1], beside, 7)

    run = restore_both(first, second, tmp_path / "out", "--salvage", "batches")

    assert run.code == 1
    (lost,) = run.lost
    assert lost["reason_code"] == "bad_crc"


def test_the_copy_with_the_highest_epoch_and_end_is_the_base(
    tmp_path: Path, first: Path, second: Path
) -> None:
    last = logs(first / PARTITION)[-1]
    position, _ = positions(last)[-1]
    last.write_bytes(last.read_bytes()[:position])

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    (row,) = run.rows
    assert row["path"] == str(second / PARTITION)


def test_copies_of_different_topics_are_refused(tmp_path: Path, first: Path, second: Path) -> None:
    path = second / PARTITION / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw")

    run = restore_both(first, second, tmp_path / "out")

    assert run.code == 2
    assert "topic id" in run.done.stderr

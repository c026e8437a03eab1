"""Restored partitions with missing transaction markers: no hanging reads, no aborted records."""

from __future__ import annotations

import shutil
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from kafka_index import Verdict, build_indexes, predict, restore_dump
from kafka_index.core.log.state.snapshots import decode_snapshot
from tests.support.damaged_histories import USERS, DamagedHistory
from tests.support.metadata import transaction_states
from tests.support.restoring import (
    Places,
    RestoreRun,
    batches,
    contents,
    damage_batch,
    logs,
    restore,
)
from tests.support.segments import batch, marker

if TYPE_CHECKING:
    from pathlib import Path

_UNKNOWN = "unknown_transaction_outcome"
_OPEN = "is open at the end of"


def read(directory: Path) -> tuple[set[int], set[int]]:
    """The base offsets of batches that read_committed consumers get, and of open transactions."""
    committed: set[int] = set()
    pending: dict[int, set[int]] = defaultdict(set)
    for row in (row for log in logs(directory) for row in batches(log)):
        if not row["attributes"] & 16:
            committed.add(row["base_offset"])
        elif row["control_type"] is None:
            pending[row["producer_id"]].add(row["base_offset"])
        elif row["control_type"] == 1:
            committed |= pending.pop(row["producer_id"], set())
        else:
            pending.pop(row["producer_id"], None)
    return committed, set().union(*pending.values())


def faults(damaged: DamagedHistory, run: RestoreRun, output: Path, salvage: str) -> list[str]:
    """Return what is wrong in an output; what the run says of it is right."""
    open_lines = [line for line in run.done.stdout.splitlines() if _OPEN in line]
    faults = []
    for partition in USERS:
        name = partition.directory_name
        left_out = [
            range(row["first_offset"], row["last_offset"] + 1)
            for row in run.lost
            if row["partition"] == partition.partition
            and (salvage == "prefix" or row["reason_code"] == _UNKNOWN)
        ]
        result = damaged.faults(partition, *read(output / name), left_out)
        if any(name in line for line in open_lines):
            result = [each for each in result if "stays open" not in each]
        faults += [f"{name}: {each}" for each in result]
    return faults


@pytest.mark.parametrize("salvage", ["batches", "prefix"])
@pytest.mark.parametrize("has_states", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_restored_damaged_histories_return_only_committed_records(
    tmp_path: Path, seed: int, *, has_states: bool, salvage: str
) -> None:
    damaged = DamagedHistory.make(tmp_path / "dump", seed, has_states=has_states)

    run = restore(tmp_path / "dump", tmp_path / "out", "--new-topic-ids", "--salvage", salvage)

    assert run.code in (0, 1), run.done.stderr
    assert faults(damaged, run, tmp_path / "out", salvage) == []


@pytest.mark.parametrize("has_states", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_replicas_are_restored_to_the_same_committed_records_in_either_order(
    tmp_path: Path, seed: int, *, has_states: bool
) -> None:
    dumps = [tmp_path / "one", tmp_path / "two"]
    damaged = DamagedHistory.make(dumps[0], seed, has_states=has_states)
    damaged.add_copy(dumps[1], seed + 100, has_states=has_states)
    served = []

    for first, second in (dumps, reversed(dumps)):
        output = tmp_path / f"out-{first.name}"
        options = ("--new-topic-ids", "--salvage", "batches", "--input", second)
        run = restore(first, output, *options)
        assert run.code in (0, 1), run.done.stderr
        assert faults(damaged, run, output, "batches") == []
        served.append([read(output / user.directory_name) for user in USERS])

    assert served[0] == served[1]


def data(offset: int, epoch: int = 0) -> bytes:
    return batch(
        offset, 2, producer_id=7, producer_epoch=epoch, base_sequence=0, transactional=True
    )


def write_partition(dump: Path, name: str, *entries: bytes) -> Path:
    log = dump / name / f"{0:020d}.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(entries))
    return log


def write_state(dump: Path, *states: tuple[int, int, list[str]]) -> None:
    write_partition(dump, "__transaction_state-0", transaction_states(7, *states))


_ABORTED = data(0), marker(2, 7, 1, commit=False), batch(3, 2)
_NEXT = data(0), marker(2, 7, 1, commit=False), data(3, 1), marker(5, 7, 2, commit=True)
_COMMITTED_ELSEWHERE = data(0), marker(2, 7, 1, commit=True)
#: Stands for the transaction index before the states.
_TXN_INDEX: list[tuple[int, int, list[str]]] = [(-1, 0, [])]
_ONGOING, _PREPARE_COMMIT, _COMPLETE_COMMIT, _COMPLETE_ABORT = 1, 2, 4, 5


@pytest.mark.parametrize(
    ("entries", "evidence", "committed", "reason"),
    [
        (_ABORTED, "txnindex", {3}, "aborted"),
        (_ABORTED, "", {3}, _UNKNOWN),
        (_ABORTED, "other copy", {3}, "aborted"),
        (_ABORTED, "other partition", {0, 3}, "committed"),
        (_ABORTED, [(_ONGOING, 0, ["t-0"]), (2, 1, ["t-0"]), (4, 1, [])], {0, 3}, "committed"),
        (_ABORTED, [(_COMPLETE_ABORT, 1, [])], {3}, "aborted"),
        # The sources contradict each other.
        (_ABORTED, [*_TXN_INDEX, (_COMPLETE_COMMIT, 1, [])], {3}, _UNKNOWN),
        # The marker of the producer's next transaction must not end this one.
        (_NEXT, "txnindex", {3}, "aborted"),
        (_NEXT, "", {3}, _UNKNOWN),
        (_NEXT, [(_COMPLETE_COMMIT, 1, [])], {0, 3}, "committed"),
        # The transaction is open, and its coordinator ends it.
        (_ABORTED, [(_ONGOING, 0, ["t-0"])], {3}, None),
        (_ABORTED, [(_PREPARE_COMMIT, 1, ["t-0"])], {3}, None),
    ],
)
def test_missing_marker_is_written_with_the_outcome_in_the_dump(
    tmp_path: Path,
    entries: tuple[bytes, ...],
    evidence: str | list[tuple[int, int, list[str]]],
    committed: set[int],
    reason: str | None,
) -> None:
    dump = tmp_path / "dump"
    log = write_partition(dump, "t-0", *entries)
    build_indexes(dump, in_place=True)
    other: list[Path | str] = []
    if isinstance(evidence, list):
        write_state(dump, *(each for each in evidence if each[0] >= 0))
    elif evidence == "other partition":
        write_partition(dump, "t-1", *_COMMITTED_ELSEWHERE)
    elif evidence == "other copy":
        shutil.copytree(log.parent, tmp_path / "copy" / "t-0")
        other = ["--input", tmp_path / "copy"]
        damage_batch(tmp_path / "copy" / "t-0" / log.name, 1)
    if evidence != "txnindex" and evidence[:1] != _TXN_INDEX:
        log.with_suffix(".txnindex").unlink(missing_ok=True)
    damage_batch(log, 1)

    run = restore(dump, tmp_path / "out", "--new-topic-ids", "--salvage", "batches", *other)

    assert run.code == 1, run.done.stderr
    found, opened = read(tmp_path / "out" / "t-0")
    assert found == committed
    assert opened == (set() if reason else {0})
    assert [row["reason_code"] for row in run.lost] == [
        "bad_crc",
        *[_UNKNOWN] * (reason == _UNKNOWN),
    ]
    notes = [row["note"] or "" for row in run.rows if row["status"] == "salvaged"]
    assert any(f"was {reason}" in note for note in notes) == (reason not in (_UNKNOWN, None))
    assert _OPEN not in run.done.stdout
    assert ("transactions with a missing marker" in run.done.stdout) == (reason is not None)


@pytest.mark.parametrize(
    ("states", "committed", "code", "is_open"),
    [
        ([(_COMPLETE_COMMIT, 1, [])], {0, 2}, 0, False),
        ([(_ONGOING, 0, ["t-0"])], {2}, 0, True),
        (None, {2}, 0, True),
    ],
)
def test_transaction_open_at_the_log_end_is_aborted_unless_a_coordinator_ends_it(
    tmp_path: Path,
    states: list[tuple[int, int, list[str]]] | None,
    committed: set[int],
    code: int,
    *,
    is_open: bool,
) -> None:
    dump = tmp_path / "dump"
    write_partition(dump, "t-0", data(0), batch(2, 2))
    if states is not None:
        write_state(dump, *states)

    run = restore(dump, tmp_path / "out", "--new-topic-ids")

    assert run.code == code
    found, opened = read(tmp_path / "out" / "t-0")
    assert (found, bool(opened)) == (committed, is_open)
    assert (_OPEN in run.done.stdout) == (states is None)


_PLAIN, _COMMIT = batch(2, 2), marker(4, 7, 1, commit=True)


@pytest.mark.parametrize(
    ("entries", "damaged", "has_other", "committed", "note"),
    [
        ((_PLAIN, _COMMIT, batch(5, 2)), 1, False, {2, 5}, "aborted the transaction"),
        ((_PLAIN, _COMMIT, batch(5, 2)), 1, True, {2, 5}, "was committed"),
        # A batch of the transaction is in the log, and is left out.
        ((data(2), _COMMIT, batch(5, 2)), 1, False, {5}, "aborted the transaction"),
        ((data(2), _COMMIT, batch(5, 2)), 1, True, {2, 5}, "was committed"),
        ((_PLAIN, _COMMIT), 1, False, {2}, "aborted the transaction"),
        # The next marker of the producer ends it.
        ((_PLAIN, _COMMIT, data(5, 1), marker(7, 7, 2, commit=True)), 1, False, {2, 5}, ""),
        ((_PLAIN,), None, False, {2}, "aborted the transaction"),
    ],
)
def test_transaction_of_a_snapshot_is_ended_if_its_marker_is_missing(
    tmp_path: Path,
    entries: tuple[bytes, ...],
    damaged: int | None,
    committed: set[int],
    note: str,
    *,
    has_other: bool,
) -> None:
    dump = tmp_path / "dump"
    first = write_partition(dump, "t-0", data(0))
    log = first.with_name(f"{2:020d}.log")
    log.write_bytes(b"".join(entries))
    build_indexes(dump, in_place=True)
    first.unlink()
    for index in log.parent.glob("*.txnindex"):
        index.unlink()
    if has_other:
        write_partition(dump, "t-1", *_COMMITTED_ELSEWHERE)
    if damaged is not None:
        damage_batch(log, damaged)

    run = restore(dump, tmp_path / "out", "--new-topic-ids", "--salvage", "batches")

    assert run.code in (0, 1), run.done.stderr
    opened = max((tmp_path / "out" / "t-0").glob("*.snapshot"))
    producers = decode_snapshot(opened.read_bytes())
    assert producers["current_txn_first_offset"].tolist() == [-1]
    assert read(tmp_path / "out" / "t-0") == (committed, set())
    assert _OPEN not in run.done.stdout
    notes = "".join(row["note"] or "" for row in run.rows)
    assert ("transaction" in notes, note in notes) == (bool(note), True)


_RAISED = data(0), marker(2, 7, 1, commit=True)
_SHARED = data(0), marker(2, 7, 0, commit=True)


@pytest.mark.parametrize(
    ("entries", "damaged", "committed", "dropped_offsets"),
    [
        # A commit before the loss raised the epoch: the next epoch is that of the same transaction.
        ((*_RAISED, data(3, 1), data(5, 1), marker(7, 7, 2, commit=True)), (3,), {0, 3}, []),
        # A restart may have raised it, after the abort of the transaction.
        ((*_SHARED, data(3), data(5), marker(7, 7, 1, commit=True)), (3,), {0}, [3]),
        ((data(3), data(5), marker(7, 7, 1, commit=True)), (1,), set(), [3]),
        # No older producer commits as the batch after the loss is committed.
        ((data(3), data(5), data(7), marker(9, 7, 1, commit=True)), (1,), {3, 7}, []),
        # The commit before the loss may itself be that of a later transaction.
        (
            (
                *(data(0), data(3), marker(5, 7, 1, commit=True)),
                *(data(6, 1), data(8, 1), marker(10, 7, 2, commit=True)),
            ),
            (4, 1),
            set(),
            [0, 6],
        ),
    ],
)
def test_commit_with_a_bumped_epoch_after_a_loss_ends_only_transactions_with_that_epoch(
    tmp_path: Path,
    entries: tuple[bytes, ...],
    damaged: tuple[int, ...],
    committed: set[int],
    dropped_offsets: list[int],
) -> None:
    log = write_partition(tmp_path / "dump", "t-0", *entries)
    for index in damaged:
        damage_batch(log, index)

    run = restore(tmp_path / "dump", tmp_path / "out", "--new-topic-ids", "--salvage", "batches")

    assert run.code == 1, run.done.stderr
    assert read(tmp_path / "out" / "t-0") == (committed, set())
    dropped = [row["first_offset"] for row in run.lost if row["reason_code"] == _UNKNOWN]
    assert dropped == dropped_offsets


def test_transaction_is_dropped_if_its_marker_is_missing_before_an_empty_last_log(
    tmp_path: Path,
) -> None:
    log = write_partition(tmp_path / "dump", "t-0", data(0))
    log.with_name(f"{3:020d}.log").touch()

    run = restore(tmp_path / "dump", tmp_path / "out", "--new-topic-ids")

    assert run.code == 1
    assert read(tmp_path / "out" / "t-0") == (set(), set())
    assert [row["reason_code"] for row in run.lost] == ["gap", _UNKNOWN]


def test_transaction_is_aborted_if_its_coordinator_is_not_restored(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    write_partition(dump, "t-0", data(0), batch(2, 2))
    write_state(dump, (_ONGOING, 0, ["t-0"]))

    run = restore(dump, tmp_path / "out", "--new-topic-ids", "--topics", "t")

    assert run.code == 0
    assert read(tmp_path / "out" / "t-0") == ({2}, set())


def test_transaction_with_unknown_outcome_is_aborted_in_a_seeded_cluster(tmp_path: Path) -> None:
    write_partition(tmp_path / "dump", "t-0", data(0), batch(2, 2))
    places = Places(tmp_path).make()

    run = restore(
        *(tmp_path / "dump", places.output, "--new-topic-ids", "--seed", tmp_path / "metadata")
    )

    assert run.code == 0
    assert read(places.output / "t-0") == ({2}, set())
    predicted = predict(places.output, metadata=tmp_path / "metadata")
    assert predicted.verdict is Verdict.SAFE


def test_killed_restore_of_missing_markers_is_completed_by_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "dump"
    log = write_partition(dump, "t-0", *_NEXT)
    write_partition(dump, "t-1", *_COMMITTED_ELSEWHERE)
    damage_batch(log, 1)
    options: dict[str, Any] = {"new_topic_ids": True, "salvage": "batches"}
    once = restore_dump(dump, tmp_path / "once", **options)
    assert [partition.is_edited for partition in once.partitions] == [True, False]
    with monkeypatch.context() as failing:
        failing.setattr("kafka_index.commands.restore.job.write_root", _fail)
        with pytest.raises(OSError, match="disk"):
            restore_dump(dump, tmp_path / "twice", **options)

    twice = restore_dump(dump, tmp_path / "twice", **options)

    assert [partition.lost for partition in twice.partitions] == [
        partition.lost for partition in once.partitions
    ]
    written = [
        {name: data for name, data in contents(root).items() if "metadata" not in name}
        for root in (tmp_path / "once", tmp_path / "twice")
    ]
    assert written[0] == written[1]


def _fail(*_: object) -> None:
    raise OSError("disk")

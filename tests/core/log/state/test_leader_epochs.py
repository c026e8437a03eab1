"""The leader epochs of a partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.core.errors import InputError, InvalidEpochError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.leader_epochs import LeaderEpochCache

DUMP = Path(__file__).resolve().parents[4] / "examples" / "dump"
CHECKPOINTS = sorted(DUMP.glob("*/leader-epoch-checkpoint"))


def cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache(EpochEntry(*entry) for entry in entries)


def pairs(epochs: LeaderEpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in epochs.entries]


# ------------------------------------------------------------------------------- assigning


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        # Above all others.
        ((3, 11), [(0, 0), (1, 5), (2, 10), (3, 11)]),
        # The latest epoch keeps its start, or starts earlier.
        ((2, 10), [(0, 0), (1, 5), (2, 10)]),
        ((2, 11), [(0, 0), (1, 5), (2, 10)]),
        ((2, 5), [(0, 0), (2, 5)]),
        # Entries that it contradicts are dropped.
        ((3, 10), [(0, 0), (1, 5), (3, 10)]),
        ((3, 0), [(3, 0)]),
        ((1, 30), [(0, 0), (1, 30)]),
        ((0, 30), [(0, 30)]),
        ((1, 3), [(0, 0), (1, 3)]),
    ],
)
def test_leader_epoch_is_assigned_after_lower_epochs(
    entry: tuple[int, int], left: list[tuple[int, int]]
) -> None:
    known = (0, 0), (1, 5), (2, 10)
    epochs = cache(*known)
    assert epochs.assign(*entry) == (left != list(known))
    assert pairs(epochs) == left


@pytest.mark.parametrize("entry", [(-1, 5), (3, -1)])
def test_negative_epochs_and_offsets_are_rejected(entry: tuple[int, int]) -> None:
    epochs = cache((0, 0))
    with pytest.raises(InvalidEpochError, match=f"epoch {entry[0]} from offset {entry[1]}"):
        epochs.assign(*entry)
    assert pairs(epochs) == [(0, 0)]


@pytest.mark.parametrize(
    ("known", "epoch", "left"),
    [
        ([], 0, [(0, 5)]),
        ([(0, 0), (2, 10)], -1, [(0, 0), (2, 10)]),
        ([(0, 0), (2, 10)], 1, [(0, 0), (2, 10)]),
        ([(0, 0), (2, 10)], 2, [(0, 0), (2, 10)]),
        ([(0, 0), (2, 10)], 3, [(0, 0), (3, 5)]),
    ],
)
def test_recovery_assigns_only_epochs_above_the_latest(
    known: list[tuple[int, int]], epoch: int, left: list[tuple[int, int]]
) -> None:
    epochs = cache(*known)
    assert epochs.assign_from_batch(epoch, 5) == (left != known)
    assert pairs(epochs) == left


# ------------------------------------------------------------------------------ truncating


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (-1, [(1, 5), (2, 10), (4, 20)]),
        (4, [(1, 5), (2, 10), (4, 20)]),
        (5, [(1, 5), (2, 10), (4, 20)]),
        (9, [(1, 9), (2, 10), (4, 20)]),
        (10, [(2, 10), (4, 20)]),
        (25, [(4, 25)]),
    ],
)
def test_truncation_from_the_start_moves_the_epoch_of_the_offset_there(
    offset: int, left: list[tuple[int, int]]
) -> None:
    epochs = cache((1, 5), (2, 10), (4, 20))
    epochs.truncate_from_start(offset)
    assert pairs(epochs) == left


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (-1, [(1, 5), (2, 10)]),
        (0, []),
        (5, []),
        (6, [(1, 5)]),
        (10, [(1, 5)]),
        (11, [(1, 5), (2, 10)]),
    ],
)
def test_truncation_from_the_end_drops_epochs_at_the_offset_or_above(
    offset: int, left: list[tuple[int, int]]
) -> None:
    epochs = cache((1, 5), (2, 10))
    epochs.truncate_from_end(offset)
    assert pairs(epochs) == left


# --------------------------------------------------------------------------------- queries


def test_epoch_is_unknown_without_entries() -> None:
    assert cache().latest_epoch is None
    assert cache().end_offset_for(0, 99) == (-1, -1)
    assert cache((1, 5), (4, 20)).latest_epoch == 4


@pytest.mark.parametrize(("offset", "epoch"), [(4, None), (5, 1), (9, 1), (10, 2), (99, 2)])
def test_leader_epoch_of_an_offset_is_the_last_one_started_at_or_before_it(
    offset: int, epoch: int | None
) -> None:
    assert cache((1, 5), (2, 10)).epoch_for_offset(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (0, (0, 5)), (1, (1, 10)), (3, (2, 20)), (4, (4, 99)), (5, (-1, -1))],
)
def test_leader_epoch_ends_at_the_start_of_the_next(epoch: int, answer: tuple[int, int]) -> None:
    assert cache((1, 5), (2, 10), (4, 20)).end_offset_for(epoch, 99) == answer


def test_copy_of_leader_epochs_is_independent() -> None:
    epochs = cache((1, 5))
    other = epochs.copy()
    other.assign(2, 10)
    assert (pairs(epochs), pairs(other)) == ([(1, 5)], [(1, 5), (2, 10)])


# ------------------------------------------------------------------------------------ text


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_checkpoints_of_a_broker_are_written_as_they_were_read(path: Path) -> None:
    text = path.read_text()
    assert LeaderEpochCache.from_text(text, path=path).text() == text


def test_entries_of_a_text_are_assigned_in_its_order() -> None:
    assert LeaderEpochCache.from_text("0\n3\n0 0\n2 9\n1 5\n").text() == "0\n2\n0 0\n1 5\n"


def test_malformed_text_is_rejected_with_its_line() -> None:
    with pytest.raises(InputError, match=r"/d/x: line 4 of the checkpoint is malformed"):
        LeaderEpochCache.from_text("0\n2\n0 0\n1 x\n", path="/d/x")


def test_negative_epoch_in_a_text_is_rejected_with_its_line() -> None:
    with pytest.raises(InvalidEpochError, match=r"/d/x: line 4 of a checkpoint: .* epoch -1"):
        LeaderEpochCache.from_text("0\n2\n0 0\n-1 5\n", path="/d/x")

"""The transaction index: appending, collecting, truncating, and its file."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kafka_index.core.errors import CorruptIndexError, InputError, InvalidOffsetError, PublishError
from kafka_index.core.format.records import ABORTED_TXN
from kafka_index.core.index.transaction_index import TransactionIndex, collect_aborted_txns
from kafka_index.core.kernels.search import NOT_FOUND
from tests.support.child_processes import allow_other_users, run_unprivileged

Txn = tuple[int, int, int, int]

DUMP = Path(__file__).resolve().parents[3] / "examples" / "dump"
BROKER_FILES = sorted(DUMP.glob("*/*.txnindex"))

#: Producer, first offset, last offset, last stable offset; two of them overlap.
TXNS: list[Txn] = [(1, 100, 120, 110), (2, 110, 140, 141), (3, 150, 160, 161)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000100.txnindex"


def opened(path: Path, *, writable: bool = True) -> TransactionIndex:
    return TransactionIndex(path, 100, writable=writable)


def filled(path: Path, txns: list[Txn] = TXNS) -> TransactionIndex:
    index = opened(path)
    for txn in txns:
        index.append(*txn)
    return index


def array(txns: list[Txn]) -> np.ndarray:
    return np.array([(0, *txn) for txn in txns], ABORTED_TXN)


def rows(entries: np.ndarray) -> list[Txn]:
    return [tuple(row)[1:] for row in entries.tolist()]


def packed(txns: list[Txn]) -> bytes:
    return b"".join(struct.pack(">hqqqq", 0, *txn) for txn in txns)


# -------------------------------------------------------------------------------- appending


def test_file_does_not_exist_before_the_first_entry(path: Path) -> None:
    with opened(path) as index:
        assert (index.is_empty, index.length, rows(index.entries)) == (True, 0, [])
        index.flush()
        index.reset()
        index.truncate_to(0)
        index.sanity_check()
        index.append_many(array([]))
    assert not path.exists()


def test_entries_are_in_the_file_as_soon_as_they_are_appended(path: Path) -> None:
    index = filled(path)
    assert path.read_bytes() == packed(TXNS)
    assert rows(index.entries) == TXNS
    assert not index.is_empty


@pytest.mark.parametrize("layout", [ABORTED_TXN, ABORTED_TXN.newbyteorder("=")])
def test_many_entries_are_appended_in_either_byte_order(
    path: Path, layout: np.dtype[np.void]
) -> None:
    index = opened(path)
    index.append_many(array(TXNS).astype(layout))
    assert path.read_bytes() == packed(TXNS)


@pytest.mark.parametrize("last_offset", [160, 159])
def test_last_offset_that_does_not_grow_is_rejected(path: Path, last_offset: int) -> None:
    index = filled(path)
    with pytest.raises(InvalidOffsetError, match=rf"expected above 160, found {last_offset}"):
        index.append(4, 155, last_offset, 170)
    assert path.read_bytes() == packed(TXNS)


def test_entries_before_a_rejected_one_are_appended(path: Path) -> None:
    index = opened(path)
    with pytest.raises(InvalidOffsetError, match="expected above 160, found 140"):
        index.append_many(array([TXNS[0], TXNS[2], TXNS[1]]))
    assert path.read_bytes() == packed([TXNS[0], TXNS[2]])


def test_existing_transaction_index_is_continued(path: Path) -> None:
    filled(path, TXNS[:1]).close()
    index = filled(path, TXNS[1:])
    assert rows(index.entries) == TXNS


def test_index_that_was_opened_again_does_not_know_its_last_offset(path: Path) -> None:
    filled(path).close()
    index = opened(path)
    index.append(9, 100, 101, 102)
    assert rows(index.entries) == [*TXNS, (9, 100, 101, 102)]


def test_append_after_a_partial_entry_is_rejected(path: Path) -> None:
    path.write_bytes(packed(TXNS)[:-1])
    index = opened(path)
    with pytest.raises(CorruptIndexError, match=r"at byte 68: .* a multiple of 34 bytes"):
        index.append(4, 170, 180, 181)
    index.truncate_to(140)
    index.append(4, 170, 180, 181)
    assert rows(index.entries) == [TXNS[0], (4, 170, 180, 181)]


# ------------------------------------------------------------------------------- collecting


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound_offset", "found", "is_complete"),
    [
        (0, 100, [], True),
        (0, 101, [0], True),
        (0, 110, [0], True),
        (0, 111, [0, 1], True),
        (120, 141, [0, 1], True),
        (121, 141, [1], True),
        (121, 142, [1], True),
        (141, 161, [2], True),
        (141, 162, [2], False),
        (161, 162, [], False),
        (0, 1000, [0, 1, 2], False),
    ],
)
def test_aborted_transactions_that_overlap_with_a_fetch_are_collected(
    path: Path,
    fetch_offset: int,
    upper_bound_offset: int,
    found: list[int],
    *,
    is_complete: bool,
) -> None:
    collected = filled(path).collect_aborted_txns(fetch_offset, upper_bound_offset)
    assert rows(collected.entries) == [TXNS[number] for number in found]
    assert collected.is_complete == is_complete


def test_aborted_transactions_are_collected_across_segments(tmp_path: Path) -> None:
    first = filled(tmp_path / "1", TXNS[:1])
    empty = opened(tmp_path / "2")
    last = filled(tmp_path / "3", TXNS[1:])
    never = filled(tmp_path / "4", [(9, 0, 999, 1000)])
    segments = [first, empty, last, never]
    assert rows(collect_aborted_txns(segments, 0, 110)) == TXNS[:1]
    assert rows(collect_aborted_txns(segments, 0, 161)) == TXNS
    assert rows(collect_aborted_txns(segments, 0, 162)) == [*TXNS, (9, 0, 999, 1000)]


def test_aborted_transactions_of_no_segments_are_empty() -> None:
    assert collect_aborted_txns([], 0, 10).tolist() == []


def test_slots_are_found_by_last_offset(path: Path) -> None:
    index = filled(path)
    targets = np.array([119, 120, 139, 140, 160, 161, 500], np.int64)
    assert index.floor_slots(targets).tolist() == [NOT_FOUND, 0, 0, 1, 2, 2, 2]
    assert index.ceiling_slots(targets).tolist() == [0, 0, 1, 1, 2, NOT_FOUND, NOT_FOUND]


# ------------------------------------------------------------------------------- truncating


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (120, 0), (121, 1), (160, 2), (161, 3)])
def test_truncation_drops_transactions_that_end_at_or_above_the_offset(
    path: Path, offset: int, left: int
) -> None:
    index = filled(path)
    index.truncate_to(offset)
    assert path.read_bytes() == packed(TXNS[:left])
    assert rows(index.entries) == TXNS[:left]


def test_append_after_truncation_is_checked_against_the_last_remaining_entry(path: Path) -> None:
    index = filled(path)
    index.truncate_to(130)
    with pytest.raises(InvalidOffsetError, match="above 120"):
        index.append(4, 100, 120, 121)
    index.truncate_to(0)
    index.append(4, 100, 105, 106)
    assert rows(index.entries) == [(4, 100, 105, 106)]


def test_reset_index_is_empty_and_accepts_any_entry(path: Path) -> None:
    index = filled(path)
    index.reset()
    assert path.read_bytes() == b""
    index.append(4, 100, 105, 106)
    assert path.read_bytes() == packed([(4, 100, 105, 106)])


# ---------------------------------------------------------------------------------- damage


def test_intact_index_passes_the_sanity_check(path: Path) -> None:
    filled(path).sanity_check()


def test_last_offset_below_the_segment_is_damage(path: Path) -> None:
    path.write_bytes(packed([TXNS[0], (2, 0, 99, 100), (3, 0, 98, 99)]))
    with pytest.raises(CorruptIndexError, match=r"at byte 34: .*expected 100 or more, found 99"):
        opened(path).sanity_check()


def test_partial_entry_is_ignored(path: Path) -> None:
    path.write_bytes(packed(TXNS) + b"\1" * 33)
    index = opened(path)
    index.sanity_check()
    assert (rows(index.entries), index.torn_bytes) == (TXNS, 33)


def test_entry_with_unknown_version_is_damage(path: Path) -> None:
    path.write_bytes(packed(TXNS[:1]) + b"\1" + packed(TXNS[1:])[1:])
    index = opened(path)
    assert rows(index.collect_aborted_txns(0, 110).entries) == TXNS[:1]
    index.truncate_to(120)
    path.write_bytes(b"\1" + packed(TXNS)[1:])
    index = opened(path)
    asks: list[Callable[[], object]] = [
        index.sanity_check,
        lambda: index.collect_aborted_txns(0, 100),
        lambda: index.truncate_to(1000),
    ]
    for ask in asks:
        with pytest.raises(CorruptIndexError, match=r"at byte 0: .*version.*expected 0, found 256"):
            ask()


@pytest.mark.parametrize("version", [b"\0\1", b"\x80\0", b"\xff\xff"])
def test_entry_version_is_one_signed_byte(path: Path, version: bytes) -> None:
    path.write_bytes(version + packed(TXNS[:1])[2:])
    opened(path).sanity_check()


# ----------------------------------------------------------------------------------- files


def test_missing_file_that_is_only_read_is_empty(path: Path) -> None:
    index = opened(path, writable=False)
    assert index.is_empty
    assert index.collect_aborted_txns(0, 10).entries.tolist() == []
    with pytest.raises(PublishError, match="for reading only"):
        index.append(*TXNS[0])
    assert not path.exists()


def test_index_that_is_only_read_cannot_be_changed(path: Path) -> None:
    filled(path).close()
    index = opened(path, writable=False)
    changes: list[Callable[[], None]] = [
        lambda: index.append(4, 170, 180, 181),
        lambda: index.truncate_to(0),
        index.reset,
    ]
    for change in changes:
        with pytest.raises(PublishError, match="for reading only"):
            change()
    index.flush()
    assert path.read_bytes() == packed(TXNS)


def test_file_without_write_permission_can_be_read_by_anyone(path: Path) -> None:
    filled(path).close()
    path.chmod(0o444)
    allow_other_users(path.parent)

    def check() -> None:
        opened(path, writable=False).sanity_check()

    assert run_unprivileged(check) == 0


def test_special_file_is_rejected(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        opened(path)


def test_folder_that_is_missing_cannot_be_written_to(path: Path) -> None:
    index = TransactionIndex(path.parent / "none" / path.name, 100)
    with pytest.raises(PublishError, match="cannot write the index"):
        index.append(*TXNS[0])


def test_file_truncated_while_open_is_an_error(path: Path) -> None:
    filled(path).close()
    index = opened(path)
    path.write_bytes(packed(TXNS[:1]))
    with pytest.raises(InputError, match=r"was truncated .*expected 102 bytes, found 34 bytes"):
        _ = index.entries


def test_append_on_a_full_disk_leaves_no_partial_entry(path: Path) -> None:
    index = filled(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (110, before[1]))
    try:
        with pytest.raises(PublishError, match="ulimit"):
            index.append(4, 170, 180, 181)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == packed(TXNS)
    index.append(4, 170, 180, 181)
    assert rows(index.entries)[-1] == (4, 170, 180, 181)


def test_closed_index_rejects_lookups_and_appends(path: Path) -> None:
    index = filled(path)
    index.close()
    index.close()
    uses: list[Callable[[], object]] = [
        lambda: index.entries,
        lambda: index.append(4, 170, 180, 181),
        lambda: index.truncate_to(0),
        index.reset,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("path", BROKER_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_a_broker_are_rewritten_to_the_same_bytes(path: Path, tmp_path: Path) -> None:
    index = TransactionIndex(path, int(path.stem), writable=False)
    index.sanity_check()
    copy = TransactionIndex(tmp_path / "copy", index.start_offset)
    copy.append_many(index.entries)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()

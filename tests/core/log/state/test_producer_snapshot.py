"""Snapshots of producers, and the order of Java's maps."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import CorruptSnapshotError
from kafka_index.core.format.records import PRODUCER_STATE_ENTRY
from kafka_index.core.log.state.snapshots import (
    JavaMapOrder,
    decode_snapshot,
    decode_stored_entries,
    encode_snapshot,
    order_of_computed,
    order_of_put,
)

DUMP = Path(__file__).resolve().parents[4] / "examples" / "dump"
BROKER_FILES = sorted(DUMP.glob("*/*.snapshot"))

NEW = (7, -1, -1, -1, 0, -1, -1, -1)
BUSY = (2**40, 3, 2**31 - 1, 2**41, 9, 1_700_000_000_000, 4, 2**41 - 9)


def entries(*rows: tuple[int, ...]) -> np.ndarray:
    return np.array(list(rows), PRODUCER_STATE_ENTRY)


def snapshot(*rows: tuple[int, ...], count: int | None = None, trailing: bytes = b"") -> bytes:
    """The bytes of a snapshot with a valid checksum."""
    body = struct.pack(">i", len(rows) if count is None else count)
    body += b"".join(struct.pack(">qhiqiqiq", *row) for row in rows) + trailing
    return struct.pack(">hI", 1, google_crc32c.value(body)) + body


# -------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("rows", [(), (NEW,), (BUSY, NEW)])
def test_snapshot_is_a_checked_header_and_the_entries_in_the_order_given(
    rows: tuple[tuple[int, ...], ...],
) -> None:
    assert encode_snapshot(entries(*rows)) == snapshot(*rows)


@pytest.mark.parametrize("rows", [(), (NEW,), (BUSY, NEW)])
def test_snapshot_is_decoded_as_it_was_encoded(rows: tuple[tuple[int, ...], ...]) -> None:
    assert decode_snapshot(encode_snapshot(entries(*rows))).tolist() == list(rows)


@pytest.mark.parametrize("path", BROKER_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_snapshots_of_a_broker_decode_and_encode_to_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    assert encode_snapshot(decode_snapshot(data, path=str(path))) == data


def test_snapshots_of_a_broker_are_in_the_order_of_a_map() -> None:
    checked = 0
    for path in BROKER_FILES:
        producers = decode_snapshot(path.read_bytes())["producer_id"].astype(np.int64)
        order, has_tree = order_of_put(producers)
        assert not has_tree
        assert order.tolist() == list(range(len(producers)))
        checked += len(producers) > 1
    assert checked >= 10


# -------------------------------------------------------------------------------- decoding


def test_entry_without_a_last_offset_has_no_sequence_either() -> None:
    stored = (7, 3, 5, -2, 6, 99, 1, -9)
    data = snapshot(stored)
    assert decode_snapshot(data).tolist() == [(7, 3, -1, -1, 0, 99, 1, -1)]
    assert decode_stored_entries(data).tolist() == [stored]


def test_bytes_after_the_entries_are_legal_when_the_checksum_covers_them() -> None:
    assert decode_snapshot(snapshot(BUSY, trailing=b"more")).tolist() == [BUSY]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"at byte 0: .*shorter than its header \(expected 10 bytes or more, found 0 bytes"),
        (b"\0\1" + bytes(7), r"at byte 9: .*shorter than its header"),
        (
            b"\0\2",
            r"at byte 0: .*version .* is not supported \(expected 1, found 2\)",
        ),
        (b"\xff\xff" + snapshot(BUSY)[2:], r"version .* is not supported .*found -1\)"),
        (b"\0\0" + snapshot(BUSY)[2:], r"version .* is not supported .*found 0\)"),
        (snapshot(BUSY, count=2), r"at byte 6: .*entry count .*expected 0\.\.1 .*56.*found 2\)"),
        (snapshot(BUSY, count=-1), r"at byte 6: .*entry count .*found -1\)"),
        (snapshot(BUSY)[:-1], r"at byte 6: .*entry count .*expected 0\.\.0 .*found 1\)"),
        (
            snapshot(BUSY) + b"\0",
            r"at byte 2: the checksum of the snapshot does not match .*expected 0x.* found 0x",
        ),
        (
            b"\0\1\0\0\0\1" + bytes(4),
            r"at byte 2: the checksum of the snapshot does not match .* found 0x00000001\)",
        ),
    ],
)
def test_snapshot_that_a_broker_removes_is_rejected_with_its_position(
    data: bytes, message: str
) -> None:
    with pytest.raises(CorruptSnapshotError, match=message) as caught:
        decode_snapshot(data, path="/d/t-0/00000000000000000007.snapshot")
    assert caught.value.path == "/d/t-0/00000000000000000007.snapshot"


@given(st.binary(max_size=120))
def test_random_snapshot_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        rows = decode_snapshot(data)
    except CorruptSnapshotError:
        return
    assert len(rows) <= len(data) // 46


# ---------------------------------------------------------------------------- order of a map

#: Orders of a Java 17 ``HashMap``; `tests/conformance/test_state_formats.py` compares with one.
JAVA_ORDERS: list[tuple[list[int], list[int]]] = [
    ([], []),
    ([33, 17, 1, 16, 2, 0], [16, 0, 33, 17, 1, 2]),
    (
        [-1, 2**32, 2**32 + 1, 2**63 - 1, -(2**63), 5],
        [-1, 2**32 + 1, 2**63 - 1, -(2**63), 2**32, 5],
    ),
    # A 9th key in a bucket doubles a table that is small...
    ([*range(0, 144, 16)], [0, 32, 64, 96, 128, 16, 48, 80, 112]),
    ([*range(0, 320, 32)], [0, 64, 128, 192, 256, 32, 96, 160, 224, 288]),
    # ...and so does the 13th of all.
    ([*range(192, 0, -16)], [192, 160, 128, 96, 64, 32, 176, 144, 112, 80, 48, 16]),
    (
        [*range(0, 128, 16), 1, 2, 3, 4, 5],
        [0, 32, 64, 96, 1, 2, 3, 4, 5, 16, 48, 80, 112],
    ),
    # Nine and ten of one bucket make a table of 64, no tree.
    ([*range(0, 640, 64)], [*range(0, 640, 64)]),
]


@pytest.mark.parametrize(("inserted", "iterated"), JAVA_ORDERS)
def test_producers_have_the_order_of_a_java_map(inserted: list[int], iterated: list[int]) -> None:
    ids = np.array(inserted, np.int64)
    order, has_tree = order_of_put(ids)
    assert ids[order].tolist() == iterated
    assert not has_tree


def clashing(keys: int) -> np.ndarray:
    """Distinct keys with one hash: both halves are the same."""
    halves = np.arange(keys, dtype=np.int64) + 2**20
    return halves << 32 | halves


@pytest.mark.parametrize("keys", [8, 9, 10])
def test_hash_bucket_of_ten_keys_is_not_a_tree(keys: int) -> None:
    order, has_tree = order_of_put(clashing(keys))
    assert not has_tree
    assert order.tolist() == list(range(keys))


@pytest.mark.parametrize("keys", [11, 500])
def test_hash_bucket_that_became_a_tree_is_reported(keys: int) -> None:
    order, has_tree = order_of_put(clashing(keys))
    assert has_tree
    assert sorted(order.tolist()) == list(range(keys))


def test_hash_bucket_tree_is_reported_even_if_split_later() -> None:
    ids = np.array([*range(0, 704, 64), *range(1, 48)], np.int64)
    assert order_of_put(ids)[1]


@pytest.mark.parametrize(("keys", "has_tree"), [(8, False), (9, True)])
def test_hash_bucket_of_nine_keys_is_a_tree_in_a_large_map(keys: int, *, has_tree: bool) -> None:
    others = np.arange(10_000, dtype=np.int64) + 1
    assert order_of_put(np.concatenate([others, clashing(keys)]))[1] == has_tree


IDS = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 40).map(lambda n: 16 * n), unique=True)


@given(ids=IDS)
def test_java_map_without_removals_has_the_order_of_a_new_map(ids: list[int]) -> None:
    order = JavaMapOrder()
    present: list[int] = []
    for producer_id in ids:
        order.put(producer_id, present)
        present.append(producer_id)
    expected, has_tree = order_of_put(np.array(ids, np.int64))
    if not has_tree:
        assert order.order_of(np.array(ids, np.int64)).tolist() == expected.tolist()


def test_emptied_java_map_keeps_its_capacity() -> None:
    order = JavaMapOrder()
    for producer_id in range(13):
        order.put(producer_id, range(producer_id))
    # Of 32 buckets: 16 comes after 1; in a new map both shared the first.
    ids = np.array([16, 0, 1])
    assert ids[order.order_of(ids)].tolist() == [0, 1, 16]
    assert ids[JavaMapOrder().order_of(ids)].tolist() == [16, 0, 1]


def test_computed_ids_precede_others_in_their_hash_bucket() -> None:
    assert order_of_computed([5, 37, 1]) == [1, 37, 5]


def test_java_map_of_computed_ids_grows_one_entry_later() -> None:
    # The thirteenth id, 16, still shares the first bucket; the next one doubles the table.
    assert order_of_computed([*range(12), 16])[:2] == [16, 0]
    assert order_of_computed([*range(13), 16])[-1] == 16

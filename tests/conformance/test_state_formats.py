"""Snapshots, transaction indexes and leader epochs against Kafka's own readers and writers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import (
    CorruptIndexError,
    CorruptSnapshotError,
    InvalidEpochError,
    InvalidOffsetError,
    KafkaIndexError,
)
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.records import ABORTED_TXN, PRODUCER_STATE_ENTRY
from kafka_index.core.index.transaction_index import TransactionIndex, compare_aborted_txns
from kafka_index.core.log.state.snapshots import decode_snapshot, encode_snapshot, order_of_put

from .campaign import random_cases
from .java_program import JavaProgram

Ask = Callable[..., str]

DUMP = Path(__file__).resolve().parents[2] / "examples" / "dump"


INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Ask]:
    """A function that asks `StateFormats.java`: words in, a line out."""
    with JavaProgram("StateFormats") as program:
        yield program.ask


# ------------------------------------------------------------------------------- snapshots


def in_map_order(entries: np.ndarray) -> np.ndarray:
    order, has_tree = order_of_put(entries["producer_id"].astype(np.int64))
    assert not has_tree
    return entries[order]


ENTRIES = st.lists(
    st.tuples(INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64),
    max_size=40,
    unique_by=lambda row: row[0],
).map(lambda rows: np.array(rows, PRODUCER_STATE_ENTRY))


@random_cases(share=0.075)
@given(ENTRIES)
def test_kafka_reads_our_snapshots_and_writes_the_same_bytes(
    kafka: Ask, scratch: Path, entries: np.ndarray
) -> None:
    ours, again = scratch / "ours.snapshot", scratch / "kafka.snapshot"
    again.unlink(missing_ok=True)
    ours.write_bytes(encode_snapshot(entries))
    assert kafka("rewrite-snapshot", ours, again) == f"ok {len(entries)}"
    expected = encode_snapshot(in_map_order(decode_snapshot(ours.read_bytes())))
    assert again.read_bytes() == expected


@pytest.mark.parametrize("path", sorted(DUMP.glob("*/*.snapshot")), ids=str)
def test_broker_snapshot_is_rewritten_to_the_same_bytes(
    kafka: Ask, scratch: Path, path: Path
) -> None:
    again = scratch / "kafka.snapshot"
    again.unlink(missing_ok=True)
    assert kafka("rewrite-snapshot", path, again).startswith("ok ")
    entries = decode_snapshot(path.read_bytes())
    assert encode_snapshot(in_map_order(entries)) == again.read_bytes() == path.read_bytes()


def checked(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, google_crc32c.value(body)) + body


#: Snapshots of any content, many with a right checksum, some cut or with bytes after them.
WILD_SNAPSHOTS = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda count, body, version: checked(struct.pack(">i", count) + body, version),
        st.one_of(st.integers(-2, 4), INT32),
        st.binary(max_size=150),
        st.sampled_from([1, 1, 1, 0, 2, -1, 256]),
    ),
    st.builds(
        lambda entries, count, trailing: checked(
            struct.pack(">i", count) + encode_snapshot(entries)[10:] + trailing
        ),
        ENTRIES,
        st.integers(0, 3),
        st.binary(max_size=4),
    ),
)


@random_cases(share=0.075)
@given(WILD_SNAPSHOTS)
def test_snapshots_rejected_by_kafka_are_rejected(kafka: Ask, scratch: Path, data: bytes) -> None:
    wild, again = scratch / "wild.snapshot", scratch / "kafka.snapshot"
    again.unlink(missing_ok=True)
    wild.write_bytes(data)
    answer = kafka("rewrite-snapshot", wild, again)
    try:
        entries = decode_snapshot(data)
    except CorruptSnapshotError:
        assert answer == "error CorruptSnapshotException"
        return
    # A producer that is named twice has its last entry, where it was put first.
    last = {int(entry["producer_id"]): row for row, entry in enumerate(entries)}
    assert answer == f"ok {len(last)}"
    rows = np.array(list(last.values()), np.intp)
    assert encode_snapshot(in_map_order(entries[rows])) == again.read_bytes()


# ---------------------------------------------------------------------------- order of maps


def kafka_order(kafka: Ask, scratch: Path, ids: np.ndarray) -> np.ndarray:
    inserted, iterated = scratch / "inserted", scratch / "iterated"
    inserted.write_bytes(ids.astype(">i8").tobytes())
    assert kafka("map-order", inserted, iterated) == f"ok {len(ids)}"
    return np.frombuffer(iterated.read_bytes(), ">i8")


@pytest.mark.parametrize("seed", range(4))
def test_producers_have_the_order_of_a_java_map(kafka: Ask, scratch: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    trees = 0
    for _ in range(200):
        count = int(random.choice([0, 1, 9, 10, 12, 13, 24, 25, 48, 49, 97, 500]))
        step = int(random.choice([1, 16, 32, 64, 1 << 40]))
        ids = random.permutation(3 * count + 1)[:count] * step
        ids = np.unique(np.concatenate([ids, random.permutation(count)]))
        random.shuffle(ids)
        order, has_tree = order_of_put(ids)
        if has_tree:
            trees += 1
        else:
            assert (ids[order] == kafka_order(kafka, scratch, ids)).all()
    assert 0 < trees < 150


def test_million_producers_have_the_order_of_a_java_map(kafka: Ask, scratch: Path) -> None:
    ids = np.unique(np.random.default_rng(0).integers(0, 2**40, 1_000_000))
    np.random.default_rng(1).shuffle(ids)
    order, has_tree = order_of_put(ids)
    assert not has_tree
    assert (ids[order] == kafka_order(kafka, scratch, ids)).all()


# ------------------------------------------------------------------------ transaction index

SMALL = st.integers(0, 60)
TXN_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), SMALL, SMALL, SMALL, SMALL),
        st.tuples(st.just("grow"), SMALL, SMALL, st.integers(1, 4), SMALL),
        st.tuples(st.just("collect"), SMALL, SMALL),
        st.tuples(st.just("truncate"), SMALL),
        st.tuples(st.just("reset")),
        st.tuples(st.just("check")),
        st.tuples(st.just("reopen"), SMALL),
        st.tuples(st.just("version"), st.integers(0, 3), st.sampled_from([0, 1, 127, 128, 255])),
    ),
    max_size=30,
)


def text(entries: np.ndarray) -> str:
    return ";".join(",".join(map(str, row[1:])) for row in entries.tolist())


class BothIndexes:
    """The same operations on Kafka's transaction index and on ours."""

    def __init__(self, kafka: Ask, folder: Path) -> None:
        self._kafka = kafka
        self._paths = folder / "kafka.txnindex", folder / "ours.txnindex"
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._last_offset = 0
        self._open(0)

    def step(self, kind: str, *numbers: int) -> None:
        getattr(self, f"_{kind}")(*numbers)
        expected, actual = (path.read_bytes() if path.exists() else None for path in self._paths)
        assert actual == expected
        assert str(self._index.is_empty).lower() == self._kafka("txn-empty")

    def _open(self, start_offset: int) -> None:
        assert self._kafka("txn-open", self._paths[0], start_offset) == "ok"
        self._index = TransactionIndex(self._paths[1], start_offset)

    def _reopen(self, start_offset: int) -> None:
        self._kafka("txn-close")
        self._index.close()
        self._open(start_offset)

    def _append(self, *txn: int) -> None:
        self._same(lambda: self._index.append(*txn), self._kafka("txn-append", *txn))
        self._last_offset = max(self._last_offset, txn[2])

    def _grow(self, producer_id: int, first: int, step: int, stable: int) -> None:
        self._append(producer_id, first, self._last_offset + step, stable)

    def _collect(self, fetch_offset: int, upper_bound_offset: int) -> None:
        answer = self._kafka("txn-collect", fetch_offset, upper_bound_offset)
        try:
            result = self._index.collect_aborted_txns(fetch_offset, upper_bound_offset)
        except CorruptIndexError:
            assert answer == "error KafkaException"
            return
        assert answer == f"{str(result.is_complete).lower()} {text(result.entries)}"

    def _truncate(self, offset: int) -> None:
        self._same(lambda: self._index.truncate_to(offset), self._kafka("txn-truncate", offset))

    def _reset(self) -> None:
        self._same(self._index.reset, self._kafka("txn-reset"))
        self._last_offset = 0

    def _check(self) -> None:
        self._same(self._index.sanity_check, self._kafka("txn-check"))

    def _version(self, slot: int, byte: int) -> None:
        """Overwrite the version of an entry, and open both again: ours has read its entries."""
        for path in self._paths:
            if path.exists() and path.stat().st_size > 34 * slot:
                with path.open("r+b") as file:
                    file.seek(34 * slot)
                    file.write(bytes([byte]))
        self._reopen(0)

    def _same(self, ours: Callable[[], None], answer: str) -> None:
        expected = {"ok"}
        try:
            ours()
        except InvalidOffsetError:
            expected = {"error IllegalArgumentException"}
        except CorruptIndexError:
            expected = {"error KafkaException", "error CorruptIndexException"}
        assert answer in expected


@random_cases(share=0.075)
@given(TXN_STEPS)
def test_transaction_index_operations_equal_kafkas(
    kafka: Ask, scratch: Path, steps: list[tuple[str, *tuple[int, ...]]]
) -> None:
    both = BothIndexes(kafka, scratch)
    for kind, *numbers in steps:
        both.step(kind, *numbers)


@pytest.mark.parametrize("path", sorted(DUMP.glob("*/*.txnindex")), ids=str)
def test_broker_transaction_index_is_read_as_by_kafka(
    kafka: Ask, scratch: Path, path: Path
) -> None:
    copy = scratch / "copy.txnindex"
    copy.write_bytes(path.read_bytes() + b"\0" * 33)
    kafka("txn-open", copy, int(path.stem))
    with TransactionIndex(copy, int(path.stem), writable=False) as index:
        index.sanity_check()
        assert kafka("txn-check") == "ok"
        assert kafka("txn-all") == f"all {text(index.entries)}"


TXN_CHANGES = st.one_of(
    st.tuples(st.just("swap"), SMALL, SMALL),
    st.tuples(st.just("reverse"), st.just(0), st.just(0)),
    st.tuples(st.just("drop"), SMALL, SMALL),
    st.tuples(st.just("repeat"), SMALL, SMALL),
    st.tuples(st.just("stable"), SMALL, SMALL),
    st.tuples(st.just("add"), SMALL, SMALL),
)


def aborted_in(events: list[tuple[int, bool]]) -> np.ndarray:
    """Return the aborted transactions of a log: an offset an event, a batch or an abort marker."""
    open_since: dict[int, int] = {}
    entries = []
    for offset, (producer, is_marker) in enumerate(events):
        if not is_marker:
            open_since.setdefault(producer, offset)
        elif (first := open_since.pop(producer, None)) is not None:
            stable = min(open_since.values(), default=offset + 1)
            entries.append((0, producer, first, offset, stable))
    return np.array(entries, ABORTED_TXN)


def changed_txns(entries: np.ndarray, change: tuple[str, int, int]) -> np.ndarray:
    kind, one, other = change
    slots = list(range(len(entries)))
    one %= max(len(slots), 1)
    if kind == "swap" and slots:
        other %= len(slots)
        slots[one], slots[other] = slots[other], slots[one]
    elif kind == "reverse":
        slots.reverse()
    elif kind == "drop":
        del slots[one : one + 1]
    elif kind == "repeat" and slots:
        slots.insert(other % (len(slots) + 1), one)
    result = entries[slots].copy()
    if kind == "stable" and slots:
        result["last_stable_offset"][one] = other
    elif kind == "add":
        added = np.array([(0, 9, one, one + 1, other)], ABORTED_TXN)
        # Joined arrays have the byte order of this machine.
        result = np.concatenate([result[:one], added, result[one:]]).astype(ABORTED_TXN)
    return result


def collected(kafka: Ask, path: Path, entries: np.ndarray, end: int) -> list[tuple[bool, set[str]]]:
    """Return what Kafka collects for every range: whether all, and producers with first offsets."""
    path.write_bytes(entries.tobytes())
    kafka("txn-open", path, 0)
    answers = []
    for upper in range(1, end + 2):
        for fetch in range(upper):
            is_complete, _, rows = kafka("txn-collect", fetch, upper).partition(" ")
            seen = {row.rsplit(",", 2)[0] for row in rows.split(";") if row}
            answers.append((is_complete == "true", seen))
    return answers


def collected_in(answers: list[list[tuple[bool, set[str]]]]) -> list[set[str]]:
    """Return what a fetch over each range collects in some segments, up to a complete one."""
    result = []
    for ranges in zip(*answers, strict=True):
        seen: set[str] = set()
        for is_complete, some in ranges:
            seen |= some
            if is_complete:
                break
        result.append(seen)
    return result


@random_cases(share=0.03)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=14),
    st.integers(0, 14),
    st.lists(TXN_CHANGES, min_size=1, max_size=2),
)
def test_transaction_index_is_harmful_exactly_if_kafka_collects_other_transactions(
    kafka: Ask,
    scratch: Path,
    events: list[tuple[int, bool]],
    segment_end: int,
    changes: list[tuple[str, int, int]],
) -> None:
    # At some time, open transactions may be aborted, and others after them.
    future = [*((producer, True) for producer in range(4)), (0, False), (0, True)]
    everything = aborted_in([*events, *future])
    is_first = everything["last_offset"] < min(segment_end, len(events))
    expected, later = everything[is_first], everything[~is_first]
    stored = expected
    for change in changes:
        stored = changed_txns(stored, change)
    end = max(60, len(events))
    path = scratch / "compared.txnindex"
    actual, theirs, after = (
        collected(kafka, path, each, end) for each in (stored, expected, later)
    )

    next_start = int(later["first_offset"].min())
    difference = compare_aborted_txns(stored, expected, next_start=next_start)

    collects_others = collected_in([actual, after]) != collected_in([theirs, after])
    assert (difference is not None) == collects_others, difference


@pytest.mark.parametrize("has_data", [True, False])
def test_earlier_first_offset_is_a_difference_only_if_the_log_has_its_data(
    *, has_data: bool
) -> None:
    expected = np.array([(0, 1, 10, 20, 21)], ABORTED_TXN)
    stored = np.array([(0, 1, 3, 20, 21)], ABORTED_TXN)

    difference = compare_aborted_txns(stored, expected, lambda *at: has_data or at != (1, 3, 9))

    assert (difference is not None) == has_data


# --------------------------------------------------------------------------- leader epochs

EPOCH_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(-1, 12), st.integers(-1, 60)),
        st.tuples(st.just("assign"), st.integers(0, 12), st.integers(0, 60)),
        st.tuples(st.just("from-start"), st.integers(-1, 60)),
        st.tuples(st.just("from-end"), st.integers(-1, 60)),
        st.tuples(st.just("end-offset"), st.integers(-1, 13), st.just(77)),
        st.tuples(st.just("for-offset"), st.integers(-1, 61)),
    ),
    max_size=30,
)


def epoch_step(epochs: LeaderEpochCache, kind: str, *numbers: int) -> str:
    """Do one operation; return what `StateFormats.java` would answer."""
    if kind == "assign":
        try:
            epochs.assign(*numbers)
        except InvalidEpochError:
            return "error IllegalArgumentException"
    elif kind == "from-start":
        epochs.truncate_from_start(*numbers)
    elif kind == "from-end":
        epochs.truncate_from_end(*numbers)
    elif kind == "end-offset":
        return " ".join(map(str, epochs.end_offset_for(*numbers)))
    else:
        epoch = epochs.epoch_for_offset(*numbers)
        return str(-1 if epoch is None else epoch)
    return entries_text(epochs)


def entries_text(epochs: LeaderEpochCache) -> str:
    return "epochs " + ";".join(f"{e.epoch},{e.start_offset}" for e in epochs.entries)


@random_cases(share=0.075)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 60)), max_size=6), EPOCH_STEPS)
def test_leader_epoch_operations_equal_kafkas(
    kafka: Ask,
    scratch: Path,
    lines: list[tuple[int, int]],
    steps: list[tuple[str, *tuple[int, ...]]],
) -> None:
    checkpoint = scratch / "epochs" / "leader-epoch-checkpoint"
    checkpoint.parent.mkdir(exist_ok=True)
    body = "".join(f"{epoch} {offset}\n" for epoch, offset in lines)
    checkpoint.write_text(f"0\n{len(lines)}\n{body}")
    epochs = LeaderEpochCache.from_text(checkpoint.read_text())
    assert kafka("epochs-open", checkpoint) == entries_text(epochs)
    written = False
    for kind, *numbers in steps:
        before = epochs.text()
        assert kafka(f"epochs-{kind}", *numbers) == epoch_step(epochs, kind, *numbers)
        written = written or epochs.text() != before
    if written:
        assert checkpoint.read_text() == epochs.text()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "0\n",
        "0\n1\n4  7\n",
        "0\n1\n4 7",
        "0\n2\n4 7\n",
        "1\n0\n",
        "0\n1\n4 7 1\n",
        "0\n1\n-1 7\n",
    ],
)
def test_checkpoints_rejected_by_kafka_are_rejected(
    kafka: Ask, scratch: Path, content: str
) -> None:
    checkpoint = scratch / "epochs" / "leader-epoch-checkpoint"
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_text(content)
    answer = kafka("epochs-open", checkpoint)
    try:
        epochs = LeaderEpochCache.from_text(content)
    except KafkaIndexError:
        assert answer.startswith("error ")
        return
    assert answer == entries_text(epochs)

"""Bulk lookups: every query gets the answer that its partition gives to it alone."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafka_index.core.query.lookups as lookups_module
from kafka_index.core.log.choices import By, Resolve, Status, UpperBound
from kafka_index.core.log.read.answers import UNREADABLE, Answers, SpecialTimestamp
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.lookups import (
    DividedLookups,
    Keys,
    Lookups,
    LookupSettings,
    PackedLookups,
    QueryBatch,
    SharedLookups,
)
from tests.commands.lookup.building import PARTITIONS, lookups_of, make_dump
from tests.support.command_line import DUMP

TOPICS = st.sampled_from(["orders", "pay.v1-x", "nowhere", None])
NUMBERS = st.one_of(st.sampled_from([0, 1, 7, None]), st.integers(-(2**63), 2**63 - 1))
KEYS = st.one_of(st.none(), st.integers(-5, 160), st.integers(990, 1160), st.just(2**63 - 1))

Query = tuple[str | None, int | None, int | None]
Row = tuple[object, ...]


def rows_of(answers: Answers) -> list[Row]:
    return [tuple(row.values()) for row in answers.to_arrow().to_pylist()]


def only_status(status: Status, resolve: Resolve) -> Row:
    return rows_of(Answers.empty(1, resolve, status))[0]


@cache
def single_answer(directory: Path, by: By, resolve: Resolve, key: int) -> Row:
    """The answer of one partition to one question."""
    with PartitionLog.open(directory) as log:
        asked = np.array([key])
        if by is By.OFFSET:
            return rows_of(log.answer_offsets(asked, resolve))[0]
        return rows_of(log.answer_timestamps(asked, resolve))[0]


def ask(
    dump: Path,
    by: By,
    queries: list[Query],
    resolve: Resolve = Resolve.BATCH,
    *,
    specials: bool = True,
) -> list[Row]:
    topics, partitions, keys = zip(*queries, strict=True) if queries else ((), (), ())
    numbers = Keys.from_column(pa.array(keys, pa.int64()), by)
    with lookups_of(dump, resolve, by) as lookups:
        answers = lookups.answer(
            QueryBatch(
                pa.array(topics, pa.string()),
                pa.array(partitions, pa.int64()),
                Keys(numbers.values, numbers.is_valid, specials),
            )
        )
    return rows_of(answers)


@settings(max_examples=60)
@given(
    by=st.sampled_from(By),
    resolve=st.sampled_from(Resolve),
    queries=st.lists(st.tuples(TOPICS, NUMBERS, KEYS), max_size=40),
)
def test_bulk_answers_equal_single_answers(
    dump: Path, by: By, resolve: Resolve, queries: list[Query]
) -> None:
    least = 0 if by is By.OFFSET else min(SpecialTimestamp)
    expected = []
    for topic, partition, key in queries:
        if topic is None or partition is None or key is None or key < least:
            expected.append(only_status(Status.INVALID_QUERY, resolve))
        elif f"{topic}-{partition}" not in PARTITIONS:
            expected.append(only_status(Status.UNKNOWN_PARTITION, resolve))
        else:
            expected.append(single_answer(dump / f"{topic}-{partition}", by, resolve, key))
    assert ask(dump, by, queries, resolve) == expected


def test_times_before_1970_in_a_timestamp_column_are_not_special(dump: Path) -> None:
    queries: list[Query] = [("orders", 0, key) for key in (-1, -2, -3, 1007)]
    result = [row[0] for row in ask(dump, By.TIMESTAMP, queries, Resolve.RECORD, specials=False)]
    assert result == ["invalid_query"] * 3 + ["found"]


def test_empty_query_table_has_no_answers(dump: Path) -> None:
    assert ask(dump, By.OFFSET, []) == []


@pytest.mark.parametrize(
    "topics",
    [
        pa.array(["orders", None, "nowhere"], pa.large_string()),
        pa.array([b"orders", None, b"\xff"], pa.binary()),
        pa.array(["orders", None, "nowhere"]).dictionary_encode(),
        pa.chunked_array([["orders"], [None, "nowhere"]]),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, 2]), pa.array([None, "orders", "nowhere"])),
    ],
)
def test_topic_columns_of_any_string_type_are_accepted(dump: Path, topics: pa.Array) -> None:
    with lookups_of(dump) as lookups:
        answers = lookups.answer(QueryBatch(topics, pa.array([0, 0, 0]), Keys(np.array([5, 5, 5]))))
    assert answers.status.tolist() == [Status.FOUND, Status.INVALID_QUERY, Status.UNKNOWN_PARTITION]


def test_answers_do_not_depend_on_the_number_of_open_partitions(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[Query] = [
        (topic, partition, key)
        for key in range(0, 160, 9)
        for topic, partition in (("orders", 0), ("pay.v1-x", 7), ("orders", 1))
    ]
    before = ask(dump, By.OFFSET, queries)
    monkeypatch.setattr(lookups_module, "_MAX_CACHED_SEGMENTS", 1)
    assert ask(dump, By.OFFSET, queries) == before


def test_unreadable_partition_does_not_affect_other_answers(tmp_path: Path) -> None:
    make_dump(tmp_path)
    with lookups_of(tmp_path) as lookups:
        for log in (tmp_path / "orders-1").iterdir():
            log.unlink()
        answers = lookups.answer(
            QueryBatch(
                pa.array(["orders"] * 4), pa.array([1, 0, 1, 0]), Keys(np.array([120, 5, 105, 50]))
            )
        )
        findings = lookups.drain_findings()
        damage = [finding for finding in findings if finding.kind == UNREADABLE]
        assert lookups.drain_findings() == []
    assert [Status(status).text for status in answers.status] == [
        "unreadable",
        "found",
        "unreadable",
        "log_end",
    ]
    assert {(one.topic, one.partition) for one in damage} == {("orders", 1)}
    assert sum(one.queries for one in damage) == 2


def test_findings_are_kept_after_their_partition_is_closed(tmp_path: Path) -> None:
    make_dump(tmp_path)
    with lookups_of(tmp_path) as lookups:
        lookups.answer(QueryBatch(pa.array(["orders"]), pa.array([0]), Keys(np.array([5]))))
    assert {finding.kind for finding in lookups.drain_findings()} == {"no_index"}


def test_log_ends_at_the_high_watermark_if_it_is_the_upper_bound(tmp_path: Path) -> None:
    make_dump(tmp_path)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 33\n")
    ends = {}
    for bound in UpperBound:
        with lookups_of(tmp_path, upper_bound=bound) as lookups:
            ends[bound] = [lookups.end_offset(code) for code in range(3)]
            assert [lookups.start_offset(code) for code in range(3)] == [0, 100, 0]
    assert ends == {
        UpperBound.LOG_END: [50, 150, 20],
        UpperBound.HIGH_WATERMARK: [33, 100, 0],
        UpperBound.LAST_STABLE_OFFSET: [33, 100, 0],
    }


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("by", list(By), ids=lambda by: by.value)
def test_answers_of_several_threads_equal_those_of_one(
    tmp_path: Path, by: By, threads: int
) -> None:
    inventory = collect_inventory([str(make_dump(tmp_path))])
    settings = LookupSettings(by, by.default_resolve)
    random = np.random.default_rng(threads)
    names = [name.rpartition("-") for name in (*PARTITIONS, "nowhere-0")]
    which = random.integers(0, len(names), 500)
    asked = (
        pa.array([names[number][0] for number in which], mask=random.random(500) < 0.02),
        pa.array([int(names[number][2]) for number in which]),
        Keys(random.integers(-5, 1160, 500), random.random(500) < 0.98),
    )
    with (
        Lookups(inventory, settings) as single_answer,
        DividedLookups(inventory, settings, threads) as divided,
    ):
        expected, found = (
            single_answer.answer(QueryBatch(*asked)),
            divided.answer(QueryBatch(*asked)),
        )
        assert found.to_arrow().equals(expected.to_arrow())
        for code in range(inventory.partitions.num_rows):
            assert divided.end_offset(code) == single_answer.end_offset(code)
        assert set(divided.drain_findings()) == set(single_answer.drain_findings())


SETTINGS = LookupSettings(By.OFFSET, Resolve.BATCH)


def shared() -> SharedLookups:
    return SharedLookups(collect_inventory([str(DUMP)]), SETTINGS)


def packed(lookups: SharedLookups) -> PackedLookups:
    document: PackedLookups = pickle.loads(pickle.dumps(lookups))  # noqa: S301, its own
    return document


def test_each_thread_has_its_own_lookups() -> None:
    with shared() as lookups, ThreadPoolExecutor(1) as pool:
        here = lookups.open()
        assert lookups.open() is here
        assert pool.submit(lookups.open).result() is not here


def test_open_lookups_of_a_process_are_closed_at_the_end_of_the_run() -> None:
    with shared() as lookups, shared() as others:
        opened = packed(lookups).open()
        assert packed(lookups).open() is opened
        assert packed(others).open() is not opened
        assert packed(lookups).open() is not opened

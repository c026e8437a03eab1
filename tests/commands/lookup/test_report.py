"""The report of a run."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.commands.lookup import lookup_job
from kafka_index.commands.lookup.lookup_job import StatusCounts
from kafka_index.commands.lookup.result import (
    LOOKUP_REPORT_SCHEMA,
    LookupTotals,
    SplitReport,
    StartingOffset,
)
from kafka_index.core.log.choices import Status
from kafka_index.core.log.read.answers import LookupFinding
from kafka_index.core.output.report_file import ReportFile
from kafka_index.core.query.inventory import Inventory, collect_inventory
from tests.commands.lookup.building import make_dump

FOUND, UNKNOWN = int(Status.FOUND), int(Status.UNKNOWN_PARTITION)
DAMAGE = LookupFinding("t", 0, 5, "/d/t-0/5.log", "unreadable", "bad crc", 77, queries=3)
REPORT = SplitReport(
    number=0,
    rows=5,
    counts=Counter({("t", 0, FOUND): 4, (None, None, UNKNOWN): 1}),
    findings=(DAMAGE,),
    further_findings=2,
)


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return collect_inventory([str(make_dump(tmp_path_factory.mktemp("dump")))])


def totals_of(*reports: SplitReport) -> LookupTotals:
    totals = LookupTotals()
    for report in reports:
        totals.add(report)
    return totals


def test_split_reports_are_summed_and_findings_reported_once() -> None:
    totals = totals_of(REPORT, replace(REPORT, number=1))
    assert totals.rows == 10
    assert totals.rows_of_split == {0: 5, 1: 5}
    assert totals.queries_of_status == dict.fromkeys(Status, 0) | {
        Status.FOUND: 8,
        Status.UNKNOWN_PARTITION: 2,
    }
    assert totals.findings == [replace(DAMAGE, queries=6)]
    assert totals.further_findings == 4


def test_lookup_report_lists_counts_before_findings() -> None:
    table = totals_of(REPORT).report_table()
    assert table.schema.equals(LOOKUP_REPORT_SCHEMA)
    nothing = dict.fromkeys(LOOKUP_REPORT_SCHEMA.names)
    assert table.to_pylist() == [
        nothing | {"status": "unknown_partition", "queries": 1},
        nothing | {"topic": "t", "partition": 0, "status": "found", "queries": 4},
        nothing
        | {
            "topic": "t",
            "partition": 0,
            "queries": 3,
            "reason_code": "unreadable",
            "segment_base_offset": 5,
            "path": "/d/t-0/5.log",
            "position_bytes": 77,
            "reason": "bad crc",
        },
    ]


def test_run_without_queries_writes_a_report(tmp_path: Path) -> None:
    assert totals_of().report_table().num_rows == 0
    with ReportFile(str(tmp_path / "report.json"), LOOKUP_REPORT_SCHEMA) as file:
        file.write_table(totals_of(REPORT).report_table())
    lines = (tmp_path / "report.json").read_text().splitlines()
    assert [json.loads(line)["queries"] for line in lines] == [1, 4, 3]


def test_findings_are_sorted_by_partition_segment_and_position() -> None:
    places = [("t", 1, 0, 5), ("t", 0, None, None), ("s", 9, 7, 1), ("t", 0, 3, 9), ("t", 0, 3, 2)]
    findings = tuple(LookupFinding(t, p, s, "", "tail", "", at) for t, p, s, at in places)
    result = totals_of(replace(REPORT, findings=findings)).findings
    assert [(finding.topic, finding.partition, finding.segment_base_offset, finding.position_bytes)
            for finding in result] == [places[i] for i in (2, 1, 4, 3, 0)]  # fmt: skip


def test_starting_offsets_have_the_order_of_the_splits() -> None:
    starts = [StartingOffset("t", number, FOUND, 0) for number in range(3)]
    reports = [
        replace(REPORT, number=2 - number, starting_offsets=(start,))
        for number, start in enumerate(starts)
    ]
    assert totals_of(*reports).starting_offsets == starts[::-1]


def test_counts_of_unknown_partitions_use_bounded_memory() -> None:
    reports = [
        replace(
            REPORT,
            number=number,
            counts=Counter((f"{number}-{n}", 0, UNKNOWN) for n in range(1_000)),
        )
        for number in range(12)
    ]
    table = totals_of(*reports).report_table()
    assert table.num_rows < 10_100
    assert sum(table["queries"].to_pylist()) == 12_000 + 12 * DAMAGE.queries


def test_split_report_is_equal_after_pickling() -> None:
    assert pickle.loads(pickle.dumps(REPORT)) == REPORT  # noqa: S301, our own


ASKED = st.tuples(
    st.sampled_from(["orders", "pay.v1-x", "x", None]),
    st.sampled_from([0, 1, 7, -5, None]),
    st.sampled_from(Status),
)


@given(batches=st.lists(st.lists(ASKED, max_size=30), max_size=3))
def test_queries_are_counted_by_partition_and_status(
    inventory: Inventory, batches: list[list[tuple[str | None, int | None, Status]]]
) -> None:
    counts = StatusCounts(inventory)
    for batch in batches:
        topics, partitions, statuses = zip(*batch, strict=True) if batch else ((), (), ())
        counts.add(
            pa.array(topics, pa.string()),
            pa.array(partitions, pa.int64()),
            np.array(statuses, np.int8),
        )
    assert counts.counts() == Counter(asked for batch in batches for asked in batch)


def test_only_the_most_frequent_unknown_partitions_are_counted_by_name(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_job, "_MAX_UNKNOWN", 2)
    counts = StatusCounts(inventory)
    names = ["a", "b", "b", "c", "c", "c", "d"]
    counts.add(pa.array(names), pa.array([0] * 7), np.full(7, UNKNOWN, np.int8))
    assert counts.counts() == {("c", 0, UNKNOWN): 3, ("b", 0, UNKNOWN): 2, (None, None, UNKNOWN): 2}


def test_partition_number_above_int64_is_counted_as_null(inventory: Inventory) -> None:
    counts = StatusCounts(inventory)
    partitions = pa.array([2**64 - 1, 3], pa.uint64())
    counts.add(pa.array(["x", "x"]), partitions, np.full(2, UNKNOWN, np.int8))
    result = counts.counts()
    assert result == {("x", None, UNKNOWN): 1, ("x", 3, UNKNOWN): 1}
    report = SplitReport(0, 2, result)
    assert totals_of(report).report_table()["queries"].to_pylist() == [1, 1]

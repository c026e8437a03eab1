"""Batches as rows, read in splits that divide offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.tables.bounds import BoundOptions
from kafka_index.tables.record_reader import BatchForm, BatchReader
from kafka_index.tables.records import list_partitions, plan_partitions
from kafka_index.tables.settings import ReadSettings
from tests.support.record_tables import write_partition
from tests.support.segments import batch


def base_offsets(dump: Path, max_records: int, start: int = 0) -> list[int]:
    settings = ReadSettings(columns=("offset",))
    plan = plan_partitions(
        list_partitions(dump).files,
        BoundOptions(starting_offsets={"topic": {0: start}}),
        settings,
        max_split_records=max_records,
    )
    assert len(plan.splits) > 1
    return [
        offset
        for split in plan.splits
        for rows in BatchReader(split, BatchForm.BATCHES, settings)
        for offset in rows.column("base_offset").to_pylist()
    ]


@pytest.mark.parametrize("max_records", [1, 2, 3, 7, 10])
def test_a_batch_is_one_row_wherever_offsets_are_divided(tmp_path: Path, max_records: int) -> None:
    counts = [3, 5, 1, 4, 2, 5]
    bases = [sum(counts[:number]) for number in range(len(counts))]
    log = [batch(base, count) for base, count in zip(bases, counts, strict=True)]
    write_partition(tmp_path, {0: b"".join(log[:3]), bases[3]: b"".join(log[3:])})
    assert base_offsets(tmp_path, max_records) == bases
    # The batch that holds the first offset asked for stays.
    assert base_offsets(tmp_path, max_records, start=5) == bases[1:]

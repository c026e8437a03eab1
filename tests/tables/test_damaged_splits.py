"""Splits of a segment that is damaged where it would be cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.errors import CorruptLogError
from kafka_index.tables import OnDamage, ReadPlan, ReadSettings, RecordReader, plan_read
from tests.support.record_tables import batch_of, write_partition

BATCHES = 60


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A segment with a batch whose length leads nowhere."""
    batches = [batch_of(at, [(1000, None, bytes(5000))]) for at in range(BATCHES)]
    folder = write_partition(tmp_path, {0: b"".join(batches)}, indexed=True)
    log = folder / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    size = len(batches[0])
    data[30 * size + 8 : 30 * size + 12] = (7).to_bytes(4, "big")
    log.write_bytes(data)
    return tmp_path


def offsets_of(plan: ReadPlan) -> list[int]:
    return [
        offset
        for split in plan.splits
        for rows in RecordReader(split, plan.settings)
        for offset in rows.column("offset").to_pylist()
    ]


def test_damage_makes_for_fewer_splits_where_it_is_passed_over(dump: Path) -> None:
    settings = ReadSettings(columns=("offset",), on_damage=OnDamage.DROP)
    plan = plan_read(dump, settings=settings, max_split_bytes=20_000)
    assert len(plan.splits) > 5
    found = offsets_of(plan)
    assert found == sorted(set(found))
    assert found[:30] == list(range(30))
    assert found[-1] == BATCHES - 1


def test_damage_ends_the_plan_where_it_ends_the_read(dump: Path) -> None:
    with pytest.raises(CorruptLogError):
        plan_read(dump, settings=ReadSettings(columns=("offset",)), max_split_bytes=20_000)

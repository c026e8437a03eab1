"""Lookups by several threads give what one gives: answers, ends and findings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.lookup import By, Keys, Lookups, LookupSettings, collect_inventory
from kafka_index.lookup.shared_lookups import DividedLookups
from tests.lookup.building import PARTITIONS, make_dump


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("by", list(By), ids=lambda by: by.value)
def test_several_threads_answer_as_one_does(tmp_path: Path, by: By, threads: int) -> None:
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
        Lookups(inventory, settings) as alone,
        DividedLookups(inventory, settings, threads) as divided,
    ):
        expected, found = alone.answer(*asked), divided.answer(*asked)
        assert found.to_arrow().equals(expected.to_arrow())
        for code in range(inventory.partitions.num_rows):
            assert divided.end_offset(code) == alone.end_offset(code)
        assert set(divided.drain_findings()) == set(alone.drain_findings())

"""Tiered storage in an object store: the same answers as from a local copy of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.lookup import By, Keys, Lookups, LookupSettings, collect_inventory
from kafka_index.reading.answers import Resolve
from kafka_index.tiered.options import TieredOptions
from tests.support.remote import upload
from tests.support.tiered import Setting, keys, setting

_TOPIC = "wallet_tx"


def _answers(at: Setting, remote: str, data: str) -> pa.RecordBatch:
    inventory = collect_inventory([data], tiered=TieredOptions((remote,)))
    timestamps = np.arange(1763900000000, 1772000000000, 50_000_000)
    with (
        keys(at.keys),
        Lookups(inventory, LookupSettings(By.TIMESTAMP, Resolve.RECORD)) as lookups,
    ):
        answers = lookups.answer(
            pa.array([_TOPIC] * len(timestamps)),
            pa.array([0] * len(timestamps)),
            Keys(timestamps),
        )
        assert lookups.drain_findings() == []
    return answers.to_arrow()


@pytest.mark.parametrize("name", ["local", "aiven-plain", "aiven-zstd-enc"])
def test_segments_in_s3_answer_as_local_ones(name: str, module_bucket: str) -> None:
    at = setting(name)
    remote = upload(Path(at.remote), f"{module_bucket}/{name}/remote")
    data = upload(Path(at.data), f"{module_bucket}/{name}/data")

    found = _answers(at, remote, data)

    assert found == _answers(at, at.remote, at.data)
    assert found.column("found_offset").null_count < len(found)

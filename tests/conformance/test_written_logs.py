"""Kafka loads what a rewrite and an import have written, and finds what was there before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kafka_index
from tests.support.command_line import DUMP, run_here

from .reference_log import LogState, Producer, load

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference

_DAYS_10000_MS = 10_000 * 86_400_000
_PARTITIONS = sorted(
    path.name for path in DUMP.iterdir() if path.is_dir() and not path.name.startswith("__")
)
_CONDITION = "offset < 300 OR offset BETWEEN 700 AND 720"


class Loaded(NamedTuple):
    """The state of a partition in Kafka."""

    state: LogState
    epochs: list[tuple[int, int]]
    producers: list[Producer]


def loaded(reference: KafkaReference, directory: Path, scratch: Path) -> Loaded:
    """Load a copy of a partition as after a clean shutdown."""
    copy = scratch / directory.name
    shutil.copytree(directory, copy)
    try:
        with load(reference, copy, now_ms=_DAYS_10000_MS, producer_expiration_ms=2**31 - 1) as log:
            return Loaded(log.state(), log.epochs(), log.producers())
    finally:
        shutil.rmtree(copy)


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("rewritten") / "out"
    arguments = ("--input", DUMP, "--output", output, "--drop-where", _CONDITION)
    result = run_here("rewrite", *arguments, "--allow-revive")
    assert result.returncode == 0, result.stderr
    return output


@pytest.mark.parametrize("name", _PARTITIONS)
def test_kafka_loads_a_rewritten_log_with_the_same_offsets_epochs_and_producers(
    reference: KafkaReference, scratch: Path, rewritten: Path, name: str
) -> None:
    before = loaded(reference, DUMP / name, scratch)
    after = loaded(reference, rewritten / name, scratch)

    assert after.state.log_end_offset == before.state.log_end_offset
    assert after.state.base_offsets == before.state.base_offsets
    assert after.state.last_stable_offset == before.state.last_stable_offset
    assert after.epochs == before.epochs
    assert [producer[:4] for producer in after.producers] == [
        producer[:4] for producer in before.producers
    ]
    assert [producer[5:] for producer in after.producers] == [
        producer[5:] for producer in before.producers
    ]


def test_kafka_loads_an_import(reference: KafkaReference, scratch: Path, tmp_path: Path) -> None:
    table = kafka_index.read_records(DUMP, topics="orders.*").read_all()
    pq.write_table(table, tmp_path / "records.parquet")
    arguments = ("--input", tmp_path / "records.parquet", "--output", tmp_path / "logs")
    result = run_here("import", *arguments, "--property", "segment.bytes=40000")
    assert result.returncode == 0, result.stderr

    directories = sorted((tmp_path / "logs").glob("orders*"))
    assert directories
    for directory in directories:
        partition = int(directory.name.rpartition("-")[2])
        rows = table.filter(pc.equal(table["partition"], partition))
        actual = loaded(reference, directory, scratch)
        assert actual.state.log_end_offset == rows["offset"][-1].as_py() + 1
        assert actual.state.base_offsets[0] == rows["offset"][0].as_py()
        assert len(actual.state.base_offsets) > 1
        assert actual.epochs == [(0, rows["offset"][0].as_py())]

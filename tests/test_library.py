"""What the package offers at its top, over the example dump of a real broker."""

from __future__ import annotations

import pydoc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kafka_index
from kafka_index import LogConfig
from tests.support.command_line import (
    DUMP,
    SETTINGS,
    broker_files,
    copy_partitions,
    index_files,
)

PARTITION = "payments-0"
#: Two screens of a terminal, and the packages inside.
MAX_LINES = 90
MIN_HELP_LINES = 10
PUBLIC_NAMES = [name for name in dir(kafka_index) if not name.startswith("_")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of one partition, without any other file."""
    return copy_partitions(tmp_path_factory.mktemp("library") / "data", PARTITION)


def build(data: Path, output: Path, *, force: bool = False) -> list[str]:
    report = kafka_index.build_indexes(
        data, output, config=LogConfig.load(SETTINGS), overwrite=force, threads=2
    )
    status: list[str] = report.to_arrow()["status"].to_pylist()
    return status


def test_build_indexes_writes_what_the_broker_wrote(data: Path, tmp_path: Path) -> None:
    assert set(build(data, tmp_path)) == {"built"}
    assert index_files(tmp_path) == broker_files(PARTITION)


def test_build_indexes_writes_beside_the_logs_only_when_that_is_asked_for(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path, PARTITION)
    before = sorted(data.rglob("*"))
    given: list[dict[str, Any]] = [
        {},
        {"output": None},
        {"output": ""},
        {"in_place": False},
        {"output": tmp_path / "out", "in_place": True},
        {"in_place": "yes"},
        {"in_place": 1},
        {"in_place": "False"},
    ]
    for options in given:
        with pytest.raises(kafka_index.KafkaIndexError, match="either an output or in_place"):
            kafka_index.build_indexes(data, **options)
    assert sorted(data.rglob("*")) == before
    kafka_index.build_indexes(data, in_place=True, config=LogConfig.load(SETTINGS))
    assert index_files(data) == broker_files(PARTITION)


def test_a_second_build_keeps_what_is_right_unless_forced(data: Path, tmp_path: Path) -> None:
    first = build(data, tmp_path)
    assert build(data, tmp_path) == ["unchanged"] * len(first)
    assert build(data, tmp_path, force=True) == first


def test_build_indexes_refuses_an_output_within_its_input(data: Path) -> None:
    with pytest.raises(kafka_index.KafkaIndexError):
        build(data, data / "out")


def test_build_indexes_refuses_to_write_beside_remote_logs() -> None:
    with pytest.raises(kafka_index.KafkaIndexError, match="on a local disk only"):
        kafka_index.build_indexes("s3://bucket/broker-1", in_place=True)


def test_verify_accepts_a_single_path() -> None:
    found = kafka_index.verify(DUMP / PARTITION, config=LogConfig.load(SETTINGS), threads=1)
    assert [one.partition for one in found.partitions] == [0]


def test_lookups_answer_tables_of_queries_as_the_partition_does(data: Path) -> None:
    offsets = pa.table({"topic": ["payments"] * 2, "partition": [0, 0], "offset": [1, 10**9]})
    times = offsets.set_column(2, "timestamp", pa.array([-2, -1]))
    by_offset = kafka_index.lookup_offsets(data, offsets).to_arrow()
    by_time = kafka_index.lookup_timestamps([data], times).to_arrow()
    assert by_offset.select(offsets.column_names) == offsets
    with kafka_index.PartitionLog.open(data / PARTITION) as log:
        expected = [
            log.lookup_offsets(np.array([1, 10**9])),
            log.lookup_timestamps(np.array([-2, -1])),
        ]
    assert [by_offset.to_pylist(), by_time.to_pylist()] == [
        [query | answer for query, answer in zip(rows.to_pylist(), found.to_pylist(), strict=True)]
        for rows, found in zip((offsets, times), expected, strict=True)
    ]
    assert by_offset["status"].to_pylist() == ["found", "after_log_end"]


def test_restore_dump_makes_a_directory_with_the_same_logs(data: Path, tmp_path: Path) -> None:
    result = kafka_index.restore_dump(data, tmp_path / "restored", new_topic_ids=True, threads=1)
    assert result.runbook is not None
    restored = {
        path.name: path.read_bytes() for path in (tmp_path / "restored" / PARTITION).glob("*.log")
    }
    assert restored == {path.name: path.read_bytes() for path in (data / PARTITION).glob("*.log")}


def test_a_name_that_is_not_there_is_an_error_to_type_checkers_too() -> None:
    with pytest.raises(AttributeError, match="no attribute 'verfy'"):
        kafka_index.verfy  # type: ignore[attr-defined]  # noqa: B018, because mypy is asked


def test_a_library_that_is_used_is_not_a_name_of_the_package() -> None:
    assert not hasattr(kafka_index, "importlib")


def test_help_lists_all_names_in_two_screens() -> None:
    text = pydoc.plain(pydoc.render_doc(kafka_index))
    assert len(text.splitlines()) <= MAX_LINES
    assert [name for name in PUBLIC_NAMES if name not in text] == []


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_can_be_imported_and_has_help_of_its_own(name: str) -> None:
    found = getattr(kafka_index, name)
    assert found.__name__ == name
    assert len(pydoc.plain(pydoc.render_doc(found)).splitlines()) > MIN_HELP_LINES

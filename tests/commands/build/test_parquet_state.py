"""Whole partitions from Parquet in this process: the files that the logs give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.commands.build.parquet_input import OPTIONAL_COLUMNS, open_parquet
from kafka_index.core.errors import InputError
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.logdir.listing import list_dump
from tests.support.dumps import (
    batch_table,
    built_parquet_rows,
    built_rows,
    leftovers,
    raw_batch_table,
    write_parquet,
)
from tests.support.segments import control_batch, message
from tests.support.transactional_logs import built_files, segments, write

_Form = Callable[[Path], pa.Table]
FORMS = pytest.mark.parametrize("form", [batch_table, raw_batch_table])
PARTITIONS = ("a.b-c-0", "a.b-c-1", "z-7")


def _data(root: Path) -> Path:
    for number, name in enumerate(PARTITIONS):
        write(root / name, segments(number + 3))
    return root


def _from_logs(data: Path, target: Path) -> list[SegmentReport]:
    listed = list_dump([str(data)], topics=None).segments
    return built_rows(listed, BuildSettings(target_root=str(target)))


def _from_parquet(table: pa.Table, tmp_path: Path) -> list[SegmentReport]:
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])
    return built_parquet_rows(source, BuildSettings(target_root=str(tmp_path / "out")))


def _public(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without records of builds, which name the log."""
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}


def _outcomes(rows: list[SegmentReport]) -> list[tuple[object, ...]]:
    return sorted(
        (
            *(row.topic, row.partition, row.segment_base_offset),
            *(row.counts, row.status, row.aborted_txns, row.producers, row.note),
        )
        for row in rows
    )


@FORMS
def test_parquet_build_writes_every_file_of_a_log_build(tmp_path: Path, form: _Form) -> None:
    data = _data(tmp_path / "logs")
    expected = _from_logs(data, tmp_path / "expected")

    rows = _from_parquet(form(data), tmp_path)

    files = _public(built_files(tmp_path / "out"))
    assert files == _public(built_files(tmp_path / "expected"))
    assert {Path(name).suffix for name in files} >= {".txnindex", ".snapshot", ".index"}
    assert _outcomes(rows) == _outcomes(expected)
    assert {row.log_path for row in rows} == {str(tmp_path / "in.parquet")}
    assert leftovers(tmp_path) == []


@FORMS
def test_segments_of_a_partition_are_found_in_any_file(tmp_path: Path, form: _Form) -> None:
    data = _data(tmp_path / "logs")
    _from_logs(data, tmp_path / "expected")
    table = form(data)

    _from_parquet(table.take(np.random.default_rng(3).permutation(table.num_rows)), tmp_path)

    assert _public(built_files(tmp_path / "out")) == _public(built_files(tmp_path / "expected"))


@FORMS
def test_empty_markers_and_old_messages_are_built_as_from_logs(tmp_path: Path, form: _Form) -> None:
    logs = segments(2)
    end = max(logs) + 200
    logs[end] = b"".join(
        (
            control_batch(end, 4001, 0, None, None, record_count=0, payload=b""),
            message(end + 1, 1, 1_700_000_000_000, b"value"),
        )
    )
    data = write(tmp_path / "logs" / "t-0", logs)
    expected = _from_logs(data, tmp_path / "expected")

    rows = _from_parquet(form(data), tmp_path)

    assert _public(built_files(tmp_path / "out")) == _public(built_files(tmp_path / "expected"))
    assert _outcomes(rows) == _outcomes(expected)


@FORMS
def test_segments_after_a_failed_segment_get_no_snapshots(tmp_path: Path, form: _Form) -> None:
    data = write(tmp_path / "logs" / "t-0", segments(3, producers=1))
    table = form(data)
    gap = table.slice(0, 40)
    gap = pa.concat_tables([gap, table.slice(41)])

    rows = _from_parquet(gap, tmp_path)

    by_base = {row.segment_base_offset: row for row in rows}
    first, second, third = sorted(by_base)
    assert [by_base[base].status for base in (first, second)] == ["built", "failed"]
    assert "position_gap" in (by_base[second].reason or "")
    assert by_base[third].reason_code in {"state_unknown", None}
    names = {Path(name).name for name in _public(built_files(tmp_path / "out"))}
    assert f"{third:020d}.snapshot" not in names


def test_checkpoints_next_to_parquet_input_are_ignored(tmp_path: Path) -> None:
    data = write(tmp_path / "both" / "t-0", segments(2))
    write_parquet(data / "in.parquet", raw_batch_table(data))
    (data / "t-0" / "leader-epoch-checkpoint").write_text("garbage")

    rows = built_parquet_rows(
        open_parquet([str(data)]), BuildSettings(target_root=str(tmp_path / "out")), threads=1
    )

    assert [row.status for row in rows] == ["built"] * 2


@pytest.mark.parametrize("missing", OPTIONAL_COLUMNS)
def test_missing_optional_column_allows_index_builds_only(tmp_path: Path, missing: str) -> None:
    table = batch_table(write(tmp_path / "logs" / "t-0", segments(1))).drop_columns([missing])

    with pytest.raises(InputError, match=f"columns {missing} in every file"):
        _from_parquet(table, tmp_path)

    assert built_files(tmp_path / "out") == {}

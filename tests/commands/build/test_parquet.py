"""Building from Parquet in this process: right bytes from any order, a row for what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.commands.build import parquet
from kafka_index.commands.build.parquet_input import ParquetForm, open_parquet
from kafka_index.commands.build.parquet_order import count_segments
from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.fs import local_work
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import INDEX_OUTPUTS
from kafka_index.core.log.recovery.settings import SegmentReport
from kafka_index.core.logdir.listing import list_dump
from tests.support.dumps import (
    Log,
    Segment,
    built_parquet_rows,
    built_rows,
    change,
    dump,
    index_files,
    leftovers,
    log,
    metadata_table,
    raw_table,
    settings,
    write_logs,
    write_parquet,
)

_Form = Callable[[dict[Segment, Log]], pa.Table]
FORMS = pytest.mark.parametrize("form", [metadata_table, raw_table])
ONE = {("t", 3, 30): dump()["orders", 0, 0][10:60]}


def _build(table: pa.Table, tmp_path: Path, *, fail_fast: bool = False) -> list[SegmentReport]:
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])
    target = settings(tmp_path / "out", outputs=INDEX_OUTPUTS)
    return built_parquet_rows(source, target, fail_fast=fail_fast)


def _from_logs(tmp_path: Path, segments: dict[Segment, Log]) -> dict[str, bytes]:
    logs = write_logs(tmp_path / "logs", segments)
    listed = list_dump([str(logs)], topics=None).segments
    built_rows(listed, settings(tmp_path / "expected"))
    return index_files(tmp_path / "expected")


def _shuffled(table: pa.Table) -> pa.Table:
    return table.take(pa.array(np.random.default_rng(3).permutation(table.num_rows)))


def _interleaved(table: pa.Table) -> pa.Table:
    """Sorted by position: segments mixed, each in order."""
    return table.sort_by("position_bytes")


@FORMS
@pytest.mark.parametrize("arrange", [pa.Table.combine_chunks, _interleaved, _shuffled])
def test_parquet_build_equals_log_build(
    tmp_path: Path, form: _Form, arrange: Callable[[pa.Table], pa.Table]
) -> None:
    rows = _build(arrange(form(dump())), tmp_path)

    assert [row.status for row in rows] == ["built"] * 4
    assert index_files(tmp_path / "out") == _from_logs(tmp_path, dump())
    assert leftovers(tmp_path) == []


def test_segment_with_rows_in_many_files_is_built(tmp_path: Path) -> None:
    table = raw_table(dump())
    folder = tmp_path / "in"
    folder.mkdir()
    write_parquet(folder / "part-0.parquet", table.slice(0, 333))
    write_parquet(folder / "part-1.parquet", table.slice(333))
    (folder / "_SUCCESS").touch()

    rows = built_parquet_rows(open_parquet([str(folder)]), settings(tmp_path / "out"), threads=1)

    assert {row.log_path for row in rows} == {str(folder)}
    assert index_files(tmp_path / "out") == _from_logs(tmp_path, dump())


def test_other_integer_widths_and_string_types_are_accepted(tmp_path: Path) -> None:
    narrow = pa.schema(
        [
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("partition", pa.int8()),
            ("segment_base_offset", pa.uint32()),
            ("position_bytes", pa.uint32()),
            ("batch", pa.large_binary()),
        ]
    )

    _build(raw_table(dump()).cast(narrow), tmp_path)

    assert index_files(tmp_path / "out") == _from_logs(tmp_path, dump())


@FORMS
@pytest.mark.parametrize(
    ("row", "value", "reason"),
    [
        pytest.param(0, 7, "at byte 0: position_gap", id="first-not-0"),
        pytest.param(0, -5, "at byte 0: overlapping_positions", id="negative"),
        pytest.param(49, 2**62, "position_gap", id="far-away"),
        pytest.param(20, None, "column position_bytes is null in row", id="null"),
    ],
)
def test_contradictory_row_positions_fail_their_segment(
    tmp_path: Path, form: _Form, row: int, value: int | None, reason: str
) -> None:
    (report,) = _build(change(form(ONE), row, "position_bytes", value), tmp_path)

    assert report.status == "failed"
    assert reason in (report.reason or "")
    assert index_files(tmp_path) == {}


@FORMS
def test_duplicate_parquet_row_is_reported_as_overlap(tmp_path: Path, form: _Form) -> None:
    table = form(ONE)
    doubled = pa.concat_tables([table.slice(0, 20), table.slice(19)])

    (report,) = _build(doubled, tmp_path)

    assert report.status == "failed"
    assert "overlapping_positions" in (report.reason or "")
    assert report.position_bytes == table["position_bytes"][19].as_py()


@FORMS
def test_missing_parquet_row_is_reported_as_gap(tmp_path: Path, form: _Form) -> None:
    table = form(ONE)

    (report,) = _build(pa.concat_tables([table.slice(0, 20), table.slice(21)]), tmp_path)

    assert report.status == "failed"
    assert "position_gap" in (report.reason or "")
    assert report.position_bytes == table["position_bytes"][20].as_py()


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("size_bytes", 0, "size_bytes is outside of 1..2147483647"),
        ("size_bytes", -1, "size_bytes is outside of"),
        ("size_bytes", 2**31, "size_bytes is outside of"),
        ("size_bytes", None, "column size_bytes is null in row 20 of the segment"),
        ("last_offset", -1, "last_offset is negative"),
        ("last_offset", None, "column last_offset is null"),
        ("last_offset", 29, "offset_overflow"),
        ("last_offset", 30 + 2**31, "offset_overflow"),
        ("max_timestamp_ms", None, "column max_timestamp_ms is null"),
    ],
)
def test_impossible_column_values_fail_their_segment(
    tmp_path: Path, column: str, value: int | None, reason: str
) -> None:
    table = metadata_table(ONE)
    (report,) = _build(change(table, 20, column, value), tmp_path)

    assert report.status == "failed"
    assert reason in (report.reason or "")
    assert report.log_size_bytes > 0
    assert index_files(tmp_path) == {}
    assert leftovers(tmp_path) == []


def test_damaged_raw_batch_truncates_as_in_a_log(tmp_path: Path) -> None:
    data = bytearray(ONE["t", 3, 30][20])
    data[-1] ^= 1
    segments = {("t", 3, 30): [*ONE["t", 3, 30][:20], bytes(data), *ONE["t", 3, 30][21:]]}

    (report,) = _build(raw_table(segments), tmp_path)

    assert report.status == "truncated"
    assert "bad_crc" in (report.reason or "")
    assert report.log_size_bytes == sum(map(len, ONE["t", 3, 30]))
    assert index_files(tmp_path / "out") == _from_logs(tmp_path, segments)


@pytest.mark.parametrize("topic", ["..", "../up", "a/b", "", "x" * 250])
def test_topic_that_is_not_a_folder_name_fails_without_output(tmp_path: Path, topic: str) -> None:
    table = metadata_table({(topic, 0, 0): ONE["t", 3, 30], **ONE})

    rows = _build(table, tmp_path)

    assert {(row.topic, row.status) for row in rows} == {(topic, "failed"), ("t", "built")}
    assert set(index_files(tmp_path)) == {
        f"out/t-3/{30:020d}.index",
        f"out/t-3/{30:020d}.timeindex",
    }


def test_fail_fast_starts_no_further_segment(tmp_path: Path) -> None:
    table = metadata_table({("..", 0, 0): ONE["t", 3, 30], **ONE})

    rows = _build(table, tmp_path, fail_fast=True)

    assert [row.status for row in rows] == ["failed"]


@pytest.mark.parametrize("column", ["topic", "partition", "segment_base_offset"])
def test_rows_without_a_segment_stop_the_run(tmp_path: Path, column: str) -> None:
    with pytest.raises(InputError, match=f"column {column} is null"):
        _build(change(metadata_table(ONE), 4, column, None), tmp_path)


def test_parquet_without_rows_is_an_empty_build(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        _build(metadata_table(ONE).slice(0, 0), tmp_path)


def test_all_column_errors_are_reported_at_once(tmp_path: Path) -> None:
    table = metadata_table(ONE).drop_columns(["size_bytes", "last_offset"])
    table = table.set_column(1, "partition", table["partition"].cast(pa.string()))

    with pytest.raises(InputError) as error:
        open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    for problem in (
        "partition is string, not an integer",
        "size_bytes is missing",
        "last_offset is missing",
    ):
        assert problem in str(error.value)


def test_raw_batches_override_metadata_columns(tmp_path: Path) -> None:
    table = metadata_table(ONE).append_column("batch", raw_table(ONE)["batch"])
    path = write_parquet(tmp_path / "in.parquet", table)

    source = open_parquet([path])

    assert source.form is ParquetForm.RAW
    assert open_parquet([path]).columns == ParquetForm.RAW.required_columns


@pytest.mark.parametrize("name", ["missing.parquet", "text.parquet", "folder", "*.nothing"])
def test_input_that_is_not_parquet_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.parquet").write_text("text")
    (tmp_path / "folder").mkdir()

    with pytest.raises(InputError):
        open_parquet([str(tmp_path / name)])


def test_parquet_is_not_built_in_place(tmp_path: Path) -> None:
    source = open_parquet([write_parquet(tmp_path / "in.parquet", metadata_table(ONE))])
    in_place = type(settings(tmp_path))()

    with pytest.raises(InputError, match="--output"):
        built_parquet_rows(source, in_place)


def test_parquet_file_damaged_in_the_middle_fails_its_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BINS_PER_WORKER", 1)
    path, table = tmp_path / "in.parquet", metadata_table(dump())
    # The first segment has rows of both halves.
    half = table.num_rows // 2
    pq.write_table(table, path, compression="zstd", use_dictionary=False, row_group_size=half)
    source = open_parquet([str(path)])
    column = pq.read_metadata(path).row_group(1).column(6)  # max_timestamp_ms, not read to count
    with path.open("r+b") as file:
        file.seek(column.data_page_offset)
        file.write(b"\xff" * column.total_compressed_size)

    rows = built_parquet_rows(source, settings(tmp_path / "out", outputs=INDEX_OUTPUTS), threads=1)

    assert [row.status for row in rows] == ["failed"] * 4
    assert all("cannot read the Parquet file" in (row.reason or "") for row in rows)
    assert index_files(tmp_path) == {}


def test_unsorted_table_above_the_memory_limit_is_an_environment_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "sort").write_text("")
    monkeypatch.setattr(local_work, "_MEMORY_LIMIT", "4MB")
    monkeypatch.setattr(local_work, "workspace", lambda: str(scratch))
    table = pa.concat_tables([metadata_table(ONE)] * 4000).combine_chunks()
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table, 20_000)])

    with pytest.raises(PublishError, match="cannot sort the batches of the input"):
        built_parquet_rows(source, settings(tmp_path / "out", outputs=INDEX_OUTPUTS))

    assert index_files(tmp_path) == {}


@pytest.mark.parametrize("row_group_size", [100, 10_000])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_all_segments_of_one_row_group_are_built(
    tmp_path: Path, *, is_shuffled: bool, row_group_size: int
) -> None:
    segments = {("orders", number % 7, number * 3): log(number * 3, 3) for number in range(400)}
    table = metadata_table(dict(sorted(segments.items())))
    if is_shuffled:
        table = table.take(np.random.default_rng(1).permutation(table.num_rows))
    path = tmp_path / "in.parquet"
    pq.write_table(table, path, row_group_size=row_group_size)

    rows = built_parquet_rows(
        open_parquet([str(path)]), settings(tmp_path / "out", outputs=INDEX_OUTPUTS)
    )

    assert [row.status for row in rows] == ["built"] * 400


def test_parquet_rows_sorted_across_row_groups_are_recognized_as_sorted(tmp_path: Path) -> None:
    segments = {("orders", 0, number * 3): log(number * 3, 3) for number in range(400)}
    path = tmp_path / "in.parquet"
    pq.write_table(metadata_table(segments), path, row_group_size=100)
    with ThreadEngine(1).start("build") as workers:
        counted = count_segments(open_parquet([str(path)]), workers)

    assert counted.is_sorted
    ends = accumulate(segment.row_count for segment in counted.segments)
    assert [segment.first_row for segment in counted.segments] == [0, *ends][:-1]

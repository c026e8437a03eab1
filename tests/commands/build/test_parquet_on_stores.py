"""Building from Parquet in S3 and HDFS: the bytes that local files give, in one version of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.commands.build.parquet_input import ParquetInput, open_parquet
from kafka_index.core.errors import InputError
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.choices import INDEX_OUTPUTS
from kafka_index.core.log.recovery.settings import SegmentReport
from tests.servers.hdfs import HdfsServer
from tests.support.command_line import build_here
from tests.support.dumps import (
    Log,
    Segment,
    built_parquet_rows,
    dump,
    index_files,
    metadata_table,
    raw_table,
    settings,
    write_parquet,
)
from tests.support.remote import download, upload

_Form = Callable[[dict[Segment, Log]], pa.Table]
FORMS = pytest.mark.parametrize("form", [metadata_table, raw_table])


def write_folder(folder: Path, form: _Form) -> Path:
    """Write shuffled rows into two files, beside what is no part of the table."""
    table = form(dump())
    table = table.take(np.random.default_rng(7).permutation(table.num_rows))
    (folder / "day=1").mkdir(parents=True)
    (folder / "_temporary").mkdir()
    write_parquet(folder / "b.parquet", table.slice(0, 300))
    write_parquet(folder / "day=1" / "a.parquet", table.slice(300))
    write_parquet(folder / "_temporary" / "c.parquet", table)
    write_parquet(folder / ".d.parquet", table)
    (folder / "_SUCCESS").touch()
    return folder


def build(source: ParquetInput, target: Path) -> list[SegmentReport]:
    return built_parquet_rows(source, settings(target, outputs=INDEX_OUTPUTS))


@FORMS
def test_parquet_build_from_a_bucket_equals_local_build(
    tmp_path: Path, bucket: str, form: _Form
) -> None:
    folder = write_folder(tmp_path / "in", form)
    uri = upload(folder, f"{bucket}/in")
    here, there = open_parquet([str(folder)]), open_parquet([uri])
    assert [file.path.replace(uri, str(folder)) for file in there.files] == [
        file.path for file in here.files
    ]

    rows = build(there, tmp_path / "there")

    assert {row.status for row in rows} == {"built"}
    assert {row.log_path for row in rows} == {uri}
    build(here, tmp_path / "here")
    assert index_files(tmp_path / "there") == index_files(tmp_path / "here")


def test_command_reads_files_and_globs_and_writes_to_a_bucket(tmp_path: Path, bucket: str) -> None:
    folder = write_folder(tmp_path / "in", raw_table)
    uri = upload(folder, f"{bucket}/in")
    assert build_here("--input", folder, "--output", tmp_path / "here").returncode == 0
    planned = build_here("--input", uri, "--dry-run")
    assert (planned.returncode, "would build 4 segments" in planned.stdout) == (0, True)

    inputs = ("--input", f"{uri}/*.parquet", f"{uri}/day=*")
    result = build_here(*inputs, "--output", f"{bucket}/out")

    assert result.returncode == 0, result.stderr
    kept = {name: data for name, data in download(f"{bucket}/out").items() if "/." not in name}
    assert kept.keys() > index_files(tmp_path / "here").keys()
    assert {name: kept[name] for name in index_files(tmp_path / "here")} == index_files(
        tmp_path / "here"
    )


def test_parquet_file_replaced_after_its_rows_were_counted_is_reported_by_path(
    tmp_path: Path, bucket: str
) -> None:
    local = write_parquet(tmp_path / "in.parquet", raw_table(dump()))
    store = store_of(bucket)
    path = f"{bucket}/in.parquet"
    store.put(path, Path(local).read_bytes())
    source = open_parquet([path])
    other = write_parquet(tmp_path / "in.parquet", raw_table(dump()), row_group_size=90)
    store.put(path, Path(other).read_bytes())

    with pytest.raises(InputError, match="changed while it was read"):
        build(source, tmp_path / "out")

    assert index_files(tmp_path / "out") == {}


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_object_that_is_not_parquet_is_rejected_with_its_path(bucket: str, name: str) -> None:
    store_of(bucket).put(f"{bucket}/{name}", b"topic,partition")
    result = build_here(
        *("--input", f"{bucket}/{name}", "--format", "parquet", "--output", f"{bucket}/out")
    )
    assert result.returncode == 2
    assert (f"{bucket}/{name}" in result.stderr, "not a Parquet file" in result.stderr) == (
        True,
        True,
    )


def test_input_on_hdfs_is_read(hdfs: HdfsServer, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", raw_table)
    uri = upload(folder, f"{hdfs.uri}/parquet/in")

    assert len(open_parquet([uri]).files) == 2
    build(open_parquet([f"{uri}/b.parquet", f"{uri}/day=1"]), tmp_path / "there")

    build(open_parquet([str(folder)]), tmp_path / "here")
    assert index_files(tmp_path / "there") == index_files(tmp_path / "here")

"""Builds whose input, output and report lie in stores give what local builds give."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index.stores import store_of
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, SETTINGS, kafka_index
from tests.support.remote import download, new_bucket, upload

SPARK = ("--engine", "spark", "--master", "local[2]")
RECORDS = (".kafka-index", ".kafka-index-state")


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> Iterator[str]:
    with new_bucket(s3) as uri:
        yield uri


@pytest.fixture(scope="module")
def dump(bucket: str) -> str:
    return upload(DUMP, f"{bucket}/dump")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a local build of the dump publishes."""
    output = tmp_path_factory.mktemp("local") / "out"
    done = kafka_index("build", "--input", DUMP, "--output", output, "--config", SETTINGS)
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(output)): path for path in output.rglob("*") if path.is_file()}
    return published({name: path.read_bytes() for name, path in files.items()})


def published(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(RECORDS)}


@pytest.mark.parametrize("engine", [(), SPARK], ids=["local", "spark"])
@pytest.mark.parametrize("is_stored", [True, False], ids=["from-store", "from-disk"])
def test_a_build_into_a_bucket_publishes_what_a_local_one_does(
    bucket: str, dump: str, expected: dict[str, bytes], engine: tuple[str, ...], *, is_stored: bool
) -> None:
    output = f"{bucket}/out-{len(engine)}-{is_stored}"
    arguments = ("--input", dump if is_stored else DUMP, "--output", output, "--config", SETTINGS)
    done = kafka_index("build", *arguments, *engine)
    assert done.returncode == 0, done.stderr
    found = download(output)
    assert published(found) == expected
    assert not [name for name in found if name.startswith(".kafka-index/")]


def test_a_build_from_a_bucket_to_a_disk_publishes_the_same(
    dump: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    done = kafka_index("build", "--input", dump, "--output", output, "--config", SETTINGS)
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(output)): path for path in output.rglob("*") if path.is_file()}
    assert published({name: path.read_bytes() for name, path in files.items()}) == expected


def test_a_rerun_finds_everything_unchanged_and_reports_to_the_bucket(
    bucket: str, dump: str
) -> None:
    arguments = ("--input", dump, "--output", f"{bucket}/again", "--config", SETTINGS)
    assert kafka_index("build", *arguments).returncode == 0
    report = f"{bucket}/reports/rerun.parquet"
    done = kafka_index("build", *arguments, "--report", report)
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(io.BytesIO(store_of(report).read(report)))
    assert set(rows["status"].to_pylist()) == {"unchanged"}
    assert all(path.startswith(dump) for path in rows["log_path"].to_pylist())


@pytest.mark.parametrize("engine", [(), SPARK], ids=["local", "spark"])
def test_index_files_alone_are_built_into_a_bucket(
    bucket: str, dump: str, expected: dict[str, bytes], engine: tuple[str, ...]
) -> None:
    output = f"{bucket}/indexes-{len(engine)}"
    arguments = ("--input", dump, "--output", output, "--config", SETTINGS)
    done = kafka_index("build", *arguments, "--what", "index,timeindex", *engine)
    assert done.returncode == 0, done.stderr
    wanted = {name: data for name, data in expected.items() if name.endswith("index")}
    wanted = {name: data for name, data in wanted.items() if not name.endswith("txnindex")}
    assert published(download(output)) == wanted


def test_building_in_place_in_a_bucket_is_wrong_usage(dump: str) -> None:
    done = kafka_index("build", "--input", dump, "--in-place")
    assert done.returncode == 2
    assert "on a local disk" in done.stderr
    assert dump in done.stderr


def test_a_damaged_object_is_a_row_that_names_it(bucket: str, tmp_path: Path) -> None:
    log = next(DUMP.glob("orders*/*.log"))
    damaged = bytearray(log.read_bytes())
    damaged[200] ^= 0xFF
    uri = f"{bucket}/damaged/{log.parent.name}/{log.name}"
    store_of(uri).put(uri, bytes(damaged))
    report = tmp_path / "report.json"
    arguments = ("--input", f"{bucket}/damaged", "--output", f"{bucket}/of-damaged")
    done = kafka_index("build", *arguments, "--report", report)
    assert done.returncode == 1, done.stderr
    (row,) = map(json.loads, report.read_text().splitlines())
    assert (row["log_path"], row["reason_code"]) == (uri, "bad_crc")


def test_a_build_of_hdfs_publishes_what_a_local_one_does(
    hdfs: HdfsServer, expected: dict[str, bytes], tmp_path: Path
) -> None:
    # Two partitions: closing a file of HDFS takes half a second.
    topic = "payments"
    for entry in DUMP.iterdir():
        if entry.is_file():
            shutil.copy(entry, tmp_path)
        elif entry.name.startswith(f"{topic}-"):
            shutil.copytree(entry, tmp_path / entry.name)
    dump = upload(tmp_path, f"{hdfs.uri.rstrip('/')}/dump")
    output = f"{hdfs.uri.rstrip('/')}/out"
    arguments = ("--input", dump, "--output", output, "--config", SETTINGS)
    for engine in ((), ("--force", *SPARK)):
        done = kafka_index("build", *arguments, *engine)
        assert done.returncode == 0, done.stderr
        found = download(output)
        assert published(found) == {
            name: data for name, data in expected.items() if name.startswith(f"{topic}-")
        }
        assert not [name for name in found if name.startswith(".kafka-index/")]

"""Builds whose input, output and report lie in stores give what local builds give."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index.core.fs.registry import store_of
from tests.servers.faults import fault_proxy
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, SETTINGS, build_here
from tests.support.remote import download, new_bucket, upload
from tests.support.restoring import contents, copy_dump

PARTITIONS = (
    *("audit.trail-0", "customer-profiles-0", "orders.eu-west-0", "orders.eu-west-1"),
    *("payments-0", "payments-1", "__consumer_offsets-0"),
)
INDEXES_ALONE = ("--what", "index,timeindex")
RECORDS = (".kafka-index", ".kafka-index-state")


@pytest.fixture(scope="module")
def local_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_dump(tmp_path_factory.mktemp("local_dump") / "dump", *PARTITIONS)


@pytest.fixture(scope="module")
def dump(module_bucket: str, local_dump: Path) -> str:
    return upload(local_dump, f"{module_bucket}/dump")


@pytest.fixture(scope="module")
def expected(local_dump: Path) -> dict[str, bytes]:
    """The files that a local build of the dump publishes."""
    output = local_dump.with_name("out")
    result = build_here("--input", local_dump, "--output", output, "--config", SETTINGS)
    assert result.returncode == 0, result.stderr
    return published(contents(output))


def published(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(RECORDS)}


@pytest.fixture(scope="module")
def output(module_bucket: str, dump: str) -> str:
    """The files that a build from the bucket has published into the bucket."""
    uri = f"{module_bucket}/out"
    result = build_here("--input", dump, "--output", uri, "--config", SETTINGS)
    assert result.returncode == 0, result.stderr
    return uri


def check_published(output: str, expected: dict[str, bytes]) -> None:
    downloaded = download(output)
    assert published(downloaded) == expected
    assert not [name for name in downloaded if name.startswith(".kafka-index/")]


def test_build_from_and_into_a_bucket_equals_a_local_build(
    output: str, expected: dict[str, bytes]
) -> None:
    check_published(output, expected)


def test_build_into_a_bucket_equals_a_local_build(
    local_dump: Path, module_bucket: str, expected: dict[str, bytes]
) -> None:
    uri = f"{module_bucket}/out-of-here"
    result = build_here("--input", local_dump, "--output", uri, "--config", SETTINGS)
    assert result.returncode == 0, result.stderr
    check_published(uri, expected)


def test_build_from_a_bucket_to_a_disk_equals_a_local_build(
    dump: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    result = build_here("--input", dump, "--output", output, "--config", SETTINGS)
    assert result.returncode == 0, result.stderr
    assert published(contents(output)) == expected


def test_rerun_finds_everything_unchanged_and_reports_to_the_bucket(
    module_bucket: str, dump: str, output: str
) -> None:
    arguments = ("--input", dump, "--output", output, "--config", SETTINGS)
    report = f"{module_bucket}/reports/rerun.parquet"
    result = build_here(*arguments, "--report", report)
    assert result.returncode == 0, result.stderr
    rows = pq.read_table(io.BytesIO(store_of(report).read(report)))
    assert set(rows["status"].to_pylist()) == {"unchanged"}
    assert all(path.startswith(dump) for path in rows["log_path"].to_pylist())


def test_only_index_files_are_built_into_a_bucket(
    module_bucket: str, dump: str, expected: dict[str, bytes]
) -> None:
    output = f"{module_bucket}/indexes"
    arguments = ("--input", dump, "--output", output, "--config", SETTINGS)
    result = build_here(*arguments, *INDEXES_ALONE)
    assert result.returncode == 0, result.stderr
    assert published(download(output)) == indexes_of(expected)


def indexes_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {n: data for n, data in files.items() if n.endswith((".index", ".timeindex"))}


def test_build_in_place_in_a_bucket_is_rejected(dump: str) -> None:
    result = build_here("--input", dump, "--in-place")
    assert result.returncode == 2
    assert "on a local disk" in result.stderr
    assert dump in result.stderr


def test_damaged_object_is_a_row_with_its_path(module_bucket: str, tmp_path: Path) -> None:
    log = next(DUMP.glob("orders*/*.log"))
    damaged = bytearray(log.read_bytes())
    damaged[200] ^= 0xFF
    uri = f"{module_bucket}/damaged/{log.parent.name}/{log.name}"
    store_of(uri).put(uri, bytes(damaged))
    report = tmp_path / "report.json"
    arguments = ("--input", f"{module_bucket}/damaged", "--output", f"{module_bucket}/of-damaged")
    result = build_here(*arguments, "--report", report)
    assert result.returncode == 1, result.stderr
    (row,) = map(json.loads, report.read_text().splitlines())
    assert (row["log_path"], row["reason_code"]) == (uri, "bad_crc")


def test_build_of_hdfs_equals_a_local_build(
    hdfs: HdfsServer, expected: dict[str, bytes], tmp_path: Path
) -> None:
    # One partition: closing a file of HDFS takes half a second.
    partition = "payments-0"
    data = copy_dump(tmp_path / "data", partition)
    root = hdfs.uri.rstrip("/")
    dump = upload(data, f"{root}/dump")
    wanted = {name: data for name, data in expected.items() if name.startswith(f"{partition}/")}
    output = f"{root}/out"
    result = build_here("--input", dump, "--output", output, "--config", SETTINGS)
    assert result.returncode == 0, result.stderr
    check_published(output, wanted)


# A log is read and four files are written; the others are those of partitions, and listings.
_MAX_REQUESTS_PER_SEGMENT = 6
# The four offset checkpoints.
_MAX_REQUESTS_PER_DATA_DIRECTORY = 4
# Whatever the number of partitions: the dump by folders and by pages, its metadata log, and three
# of the output.
_MAX_LISTINGS_OF_A_RUN = 6


def test_first_build_requests_no_missing_object(s3: S3Server, tmp_path: Path) -> None:
    segments = len(list(DUMP.rglob("*.log")))
    local = build_here("--input", DUMP, "--output", tmp_path / "out", "--config", SETTINGS)
    assert local.returncode == 0, local.stderr
    with fault_proxy(s3.endpoint) as proxy, new_bucket(s3.behind(proxy.endpoint)) as bucket:
        dump = upload(DUMP, f"{bucket}/dump")
        arguments = ("--input", dump, "--output", f"{bucket}/out", "--config", SETTINGS)
        proxy.clear()
        result = build_here(*arguments)
        requests = list(proxy.requests)
        assert result.returncode == 0, result.stderr
        assert _published(download(f"{bucket}/out")) == _published(
            {
                str(path.relative_to(tmp_path / "out")): path.read_bytes()
                for path in (tmp_path / "out").rglob("*")
                if path.is_file()
            }
        )
        proxy.clear()
        again = build_here(*arguments)
        assert "unchanged" in again.stdout
        assert "built" not in again.stdout
        # Nothing is written where nothing has changed, but for the marker of the run.
        assert [request.path for request in proxy.requests if request.method == "PUT"] == [
            f"/{bucket.removeprefix('s3://')}/out/.kafka-index/lock"
        ]

    kinds = Counter(request.method for request in requests)
    listings = [request for request in requests if "list-type=2" in request.query]
    assert [request.path for request in requests if request.status == 404] == []
    assert kinds["HEAD"] == 0
    assert kinds["POST"] + kinds["DELETE"] == 1
    assert len(listings) <= _MAX_LISTINGS_OF_A_RUN
    assert len(requests) <= _MAX_REQUESTS_PER_SEGMENT * segments + _MAX_REQUESTS_PER_DATA_DIRECTORY


def _published(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that brokers read."""
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}

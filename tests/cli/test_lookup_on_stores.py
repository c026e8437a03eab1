"""``lookup`` with URIs of S3 and HDFS: logs, queries and everything that is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kafka_index.core.fs.registry import store_of
from tests.servers.hdfs import HdfsServer
from tests.support.command_line import DUMP, copy_partitions, lookup
from tests.support.remote import download, upload

from .query_files import queries, write_queries

#: What an output was made of, beside it.
RECORD = ".out.kafka-index-lookup"
TOPIC = "orders.eu-west"
ROWS = [(TOPIC, partition % 2, offset) for partition, offset in enumerate(range(0, 3000, 17))]


@pytest.fixture
def remote(bucket: str) -> str:
    return upload(DUMP, f"{bucket}/dump")


def check_same(here: Path, there: str) -> None:
    """Check that a folder of a store has the files of a local one, records of runs apart."""
    local = {
        str(path.relative_to(here)): path.read_bytes()
        for path in here.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    stored = download(there)
    assert {name: data for name, data in stored.items() if not name.startswith(".")} == local


@pytest.mark.parametrize("key", [["--offset", 777], ["--timestamp", 0], ["--timestamp", -1]])
def test_single_lookup_in_a_store_equals_local_lookup(remote: str, key: list[str | int]) -> None:
    asked: list[str | int] = ["--topic", TOPIC, "--partition", 0, *key]
    asked += ["--json", "--resolve", "record"]
    here, there = (lookup("--logs", logs, *asked) for logs in (DUMP, remote))
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout.replace(remote, str(DUMP)) == here.stdout


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json", ".csv.gz", ""])
def test_answers_written_to_a_store_equal_local_bytes(
    tmp_path: Path, bucket: str, remote: str, suffix: str
) -> None:
    here = tmp_path / "here"
    (here / "queries").mkdir(parents=True)
    name, output = f"q{suffix or '.parquet'}", f"answers{suffix.removesuffix('.gz')}"
    plain = write_queries(here / "queries" / name.removesuffix(".gz"), queries("offset", ROWS))
    if suffix == ".csv.gz":
        (here / "queries" / name).write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    # Parts of two files are joined, or stay parts.
    write_queries(here / "queries" / f"r{plain.suffix}", queries("offset", ROWS[:50]))
    there = upload(here, f"{bucket}/work")
    common = ("--by", "offset", "--resolve", "record")
    for logs, root in ((DUMP, str(here)), (remote, there)):
        result = lookup(
            *("--logs", logs, *common, "--queries", f"{root}/queries"),
            *("--output", f"{root}/out/{output}", "--report", f"{root}/out.report.json"),
        )
        assert result.returncode == 0, result.stderr
    check_same(here / "out", f"{there}/out")
    report = (here / "out.report.json").read_text()
    assert store_of(there).read(f"{there}/out.report.json").decode() == report


def test_output_in_a_store_is_replaced_atomically_on_request(
    tmp_path: Path, bucket: str, remote: str
) -> None:
    queries_path = write_queries(tmp_path / "q.parquet", queries("offset", ROWS))
    common = (
        "--logs",
        remote,
        "--queries",
        queries_path,
        "--by",
        "offset",
        "--output",
        f"{bucket}/out",
    )
    assert lookup(*common).returncode == 0
    first = download(f"{bucket}/out")
    assert sorted(first) == ["_SUCCESS", "part-00000-q.parquet"]
    second_result = lookup(*common)
    assert (second_result.returncode, download(f"{bucket}/out")) == (0, first)
    refused = lookup(*common, "--resolve", "record")
    assert (refused.returncode, "exists already" in refused.stderr) == (2, True)

    # What a run leaves that was killed while it published, and an earlier killed one.
    store = store_of(bucket)
    store.delete([f"{bucket}/out/_SUCCESS"])
    store.put(f"{bucket}/out/part-00007-gone.parquet", b"?")
    store.put(f"{bucket}/.out.0123456789abcdef.tmp/part-00000-q.parquet", b"?")
    assert lookup(*common).returncode == 0
    assert download(f"{bucket}/out") == first
    assert [name for name in download(bucket) if name.startswith(".")] == [RECORD]

    page = f"{bucket}/report.html"
    assert lookup(*common, "--overwrite", "--report", page).returncode == 0
    assert download(f"{bucket}/out") == first
    assert f">{len(ROWS)} queries: " in store.read(page).decode()


def test_starting_offsets_are_written_to_a_store(tmp_path: Path, bucket: str, remote: str) -> None:
    queries_path = write_queries(tmp_path / "q.csv", queries("timestamp", [(TOPIC, 0, 0)]))
    result = lookup(
        *("--logs", remote, "--queries", queries_path, "--by", "timestamp", "--output"),
        *(f"{bucket}/a.csv", "--starting-offsets", f"{bucket}/starts.json"),
    )
    assert result.returncode == 0, result.stderr
    assert list(json.loads(store_of(bucket).read(f"{bucket}/starts.json"))) == [TOPIC]


def test_lookup_in_a_store_announces_segments_read_completely(tmp_path: Path, bucket: str) -> None:
    copy_partitions(tmp_path, f"{TOPIC}-0")
    remote = upload(tmp_path, f"{bucket}/bare")
    result = lookup("--logs", remote, "--topic", TOPIC, "--partition", 0, "--offset", 5)
    assert result.returncode == 0
    assert "each requested segment is read completely" in result.stderr


def test_answers_written_to_hdfs_equal_local_bytes(hdfs: HdfsServer, tmp_path: Path) -> None:
    root = f"{hdfs.uri}/lookups"
    asked, here = tmp_path / "queries", tmp_path / "out"
    asked.mkdir()
    for number in (1, 2):
        write_queries(asked / f"q{number}.csv", queries("offset", ROWS[:: number + 1]))
    there = upload(asked, f"{root}/queries")
    for partition in (0, 1):
        upload(DUMP / f"{TOPIC}-{partition}", f"{root}/dump/{TOPIC}-{partition}")
    common = ("--by", "offset", "--resolve", "record", "--overwrite", "--output")
    for output in ("answers", "answers.csv", "answers"):
        result = lookup("--logs", DUMP, "--queries", asked, *common, here / output)
        assert result.returncode == 0, result.stderr
        result = lookup(
            "--logs", f"{root}/dump", "--queries", there, *common, f"{root}/out/{output}"
        )
        assert result.returncode == 0, result.stderr
    check_same(here, f"{root}/out")
    names = [entry.path for entry in store_of(root).list_directory(f"{root}/out")]
    assert not any(".tmp" in name for name in names)

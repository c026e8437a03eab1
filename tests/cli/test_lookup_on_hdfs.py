"""``lookup`` over HDFS, from logs to answers."""

from __future__ import annotations

from pathlib import Path

from kafka_index.stores import store_of
from tests.servers.hdfs import HdfsServer
from tests.support.command_line import DUMP, lookup
from tests.support.remote import download, upload

from .query_files import queries, write_queries
from .test_lookup_on_s3 import ROWS, TOPIC


def test_answers_are_the_bytes_of_a_local_run(hdfs: HdfsServer, tmp_path: Path) -> None:
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
        done = lookup("--logs", DUMP, "--queries", asked, *common, here / output)
        assert done.returncode == 0, done.stderr
        done = lookup("--logs", f"{root}/dump", "--queries", there, *common, f"{root}/out/{output}")
        assert done.returncode == 0, done.stderr
    local = {
        str(path.relative_to(here)): path.read_bytes()
        for path in here.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    stored = download(f"{root}/out")
    assert {name: data for name, data in stored.items() if not name.startswith(".")} == local
    names = [entry.path for entry in store_of(root).list_directory(f"{root}/out")]
    assert not any(".tmp" in name for name in names)

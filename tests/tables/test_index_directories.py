"""Where reads of records look for index files that are not beside the logs."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_index
from kafka_index.errors import InputError
from kafka_index.tables.records import list_partitions
from tests.support.command_line import run_here
from tests.support.record_tables import write_partition
from tests.support.segments import batch


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    return tmp_path / "dump"


def test_the_folder_can_be_named_by_a_uri(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / "topic-0").mkdir()
    (files,) = list_partitions(dump, indexes=(tmp_path / "indexes").as_uri()).files
    assert files.index_directory == str(tmp_path / "indexes" / "topic-0")


def test_a_folder_that_does_not_exist_is_refused(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder of index files does not exist"):
        kafka_index.read_records(dump, indexes=tmp_path / "idnexes")


def test_a_mistyped_option_is_refused(dump: Path, tmp_path: Path) -> None:
    where = ("--input", dump, "--indexes", tmp_path / "idnexes")
    done = run_here("find", *where, "--key", "k")
    assert done.returncode == 2
    assert "the folder of index files does not exist" in done.stderr

"""Files that are written aside: whole or not at all, and by one run at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_index.errors import PublishError
from kafka_index.storage import AtomicFile


def test_a_file_appears_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(str(path)) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        file.commit()
        assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_is_not_committed_leaves_the_older_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(str(path)) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_second_writer_of_the_same_file_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "report.csv")
    with AtomicFile(path, what="report") as file:
        file.write(b"first")
        with pytest.raises(PublishError, match="another run is writing this report"):
            AtomicFile(path, what="report")
        file.commit()
    assert Path(path).read_bytes() == b"first"
    with AtomicFile(path) as file:
        file.write(b"2nd")
        file.commit()
    assert Path(path).read_bytes() == b"2nd"


def test_what_a_killed_run_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").write_bytes(b"longer than what comes now")
    with AtomicFile(str(tmp_path / "file")) as file:
        file.write(b"new")
        file.commit(durable=False)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_missing_is_found_out_at_once(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="cannot write the report"):
        AtomicFile(str(tmp_path / "gone" / "file"), what="report")


def test_a_final_path_that_cannot_be_replaced_leaves_no_scratch_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(PublishError, match="a directory stands"):  # noqa: SIM117
        with AtomicFile(str(tmp_path / "file")) as file:
            file.commit()
    assert os.listdir(tmp_path) == ["file"]

"""Targets: where files go, and targets that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_index.errors import InputError, PublishError
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import check_target, prepare_target_directory, target_directory
from tests.support.child_processes import as_nobody, open_to_all

PARTITION = TopicPartition("or-ders", 3)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "dump" / "or-ders-3").mkdir(parents=True)
    return tmp_path / "dump"


def test_the_target_mirrors_the_partition_folders(dump: Path) -> None:
    assert target_directory("/out", PARTITION, str(dump)) == "/out/or-ders-3"


def test_in_place_the_target_is_the_folder_of_the_log() -> None:
    assert prepare_target_directory(None, PARTITION, "/data/or-ders-3") == "/data/or-ders-3"


@pytest.mark.parametrize("topic", ["../../etc", "", "a/b", ".."])
def test_a_topic_of_a_table_does_not_lead_out_of_the_target(topic: str) -> None:
    with pytest.raises(InputError, match="not a legal topic name"):
        target_directory("/out", TopicPartition(topic, 0), "/data")


def test_a_target_folder_is_made_when_missing(tmp_path: Path, dump: Path) -> None:
    made = prepare_target_directory(str(tmp_path / "out"), PARTITION, str(dump / "or-ders-3"))
    assert made == prepare_target_directory(str(tmp_path / "out"), PARTITION, str(dump))
    assert os.path.isdir(made)


def test_a_file_in_place_of_a_target_folder_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "or-ders-3").touch()
    with pytest.raises(PublishError, match="a file stands where a directory is needed"):
        prepare_target_directory(str(tmp_path), PARTITION, str(dump))


def test_a_target_folder_that_leads_back_to_the_log_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "or-ders-3").symlink_to(dump / "or-ders-3")
    with pytest.raises(PublishError, match="is the folder of the log"):
        prepare_target_directory(str(tmp_path), PARTITION, str(dump / "or-ders-3"))


def test_the_output_is_made_and_nothing_is_left_in_it(tmp_path: Path, dump: Path) -> None:
    root = check_target(f"file://{tmp_path}/new/out", [str(dump)])
    assert root == str(tmp_path / "new" / "out")
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    ("output", "relation"),
    [
        ("dump", "is the input"),
        ("dump/or-ders-3/..", "is the input"),
        ("dump/or-ders-3", "lies inside the input"),
        ("dump/new/out", "lies inside the input"),
        ("link/out", "lies inside the input"),
        (".", "holds the input"),
    ],
)
def test_an_output_that_overlaps_the_input_is_refused(
    tmp_path: Path, dump: Path, output: str, relation: str
) -> None:
    (tmp_path / "link").symlink_to(dump)
    with pytest.raises(InputError, match=f"the output {relation}"):
        check_target(str(tmp_path / output), [f"{tmp_path}/du*"])
    assert os.listdir(dump) == ["or-ders-3"]


def test_an_output_whose_name_only_begins_like_the_input_is_fine(
    tmp_path: Path, dump: Path
) -> None:
    assert check_target(f"{dump}-indexes", [str(dump)]) == f"{tmp_path}/dump-indexes"


def test_a_file_as_output_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(PublishError, match="a file stands where a directory is needed"):
        check_target(str(tmp_path / "out"), [str(dump)])


def test_an_output_that_cannot_be_written_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "out").mkdir()
    open_to_all(tmp_path)
    (tmp_path / "out").chmod(0o555)

    def check() -> None:
        with pytest.raises(PublishError, match="no permission"):
            check_target(str(tmp_path / "out"), [str(dump)])

    assert as_nobody(check) == 0

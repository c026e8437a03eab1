"""The local disk behind the interface of stores, and files that are written aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.registry import store_of


def test_unknown_scheme_is_rejected() -> None:
    with pytest.raises(InputError, match="ftp:// is not supported"):
        store_of("ftp://host/path")


def test_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    path = str(tmp_path)

    with pytest.raises(InputError, match="cannot read the file: Is a directory") as raised:
        store_of(path).read(path)

    assert raised.value.path == path


def test_file_is_visible_only_after_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(str(path)) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        file.commit()
        assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_uncommitted_file_keeps_the_older_one_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(str(path)) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_second_writer_of_a_file_is_rejected_without_effect(tmp_path: Path) -> None:
    path = str(tmp_path / "report.csv")
    with AtomicFile(path, noun="report") as file:
        file.write(b"first")
        with pytest.raises(PublishError, match="another run is writing this report"):
            AtomicFile(path, noun="report")
        file.commit()
    assert Path(path).read_bytes() == b"first"
    with AtomicFile(path) as file:
        file.write(b"2nd")
        file.commit()
    assert Path(path).read_bytes() == b"2nd"


def test_leftover_of_a_killed_run_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").write_bytes(b"longer than what comes now")
    with AtomicFile(str(tmp_path / "file")) as file:
        file.write(b"new")
        file.commit(durable=False)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_file_deleted_during_a_listing_does_not_hide_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    scandir = os.scandir

    @contextmanager
    def removing(path: str) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as result:
            entries = list(result)
        (tmp_path / "b").unlink()
        yield entries

    monkeypatch.setattr(os, "scandir", removing)
    result = store_of(str(tmp_path)).list_directory(str(tmp_path))
    assert [entry.path for entry in result] == [str(tmp_path / "a")]


def test_hard_linked_leftover_of_a_killed_run_stays_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with AtomicFile(str(path)) as file:
        file.write(b"first")
        file.commit_if_absent()
        # As if it were killed now.
        (tmp_path / "kept").hardlink_to(tmp_path / ".file.tmp")
    (tmp_path / "kept").rename(tmp_path / ".file.tmp")
    with AtomicFile(str(path)) as file:
        file.write(b"2nd")
        assert path.read_bytes() == b"first"
        file.commit()
    assert path.read_bytes() == b"2nd"
    assert os.listdir(tmp_path) == ["file"]


def test_missing_folder_is_reported_before_writing(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="cannot write the report"):
        AtomicFile(str(tmp_path / "gone" / "file"), noun="report")


def test_final_path_that_cannot_be_replaced_leaves_no_scratch_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(PublishError, match="a directory has the path"):  # noqa: SIM117
        with AtomicFile(str(tmp_path / "file")) as file:
            file.commit()
    assert os.listdir(tmp_path) == ["file"]

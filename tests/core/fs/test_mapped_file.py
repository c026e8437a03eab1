"""Mapped files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import ByteSource


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "some.log"
    path.write_bytes(bytes(range(200)))
    return path


def test_mapped_file_shows_the_bytes_of_the_file(log: Path) -> None:
    with MappedFile(log) as mapped:
        assert mapped.array.dtype == np.uint8
        assert mapped.array.tobytes() == log.read_bytes()
        assert mapped.size_bytes == 200
        assert mapped.mtime_ns == log.stat().st_mtime_ns


def test_mapped_file_cannot_be_written_through(log: Path) -> None:
    with MappedFile(log) as mapped, pytest.raises(ValueError, match="read-only"):
        mapped.array[0] = 1


def test_read_past_the_end_is_shortened(log: Path) -> None:
    source: ByteSource = MappedFile(log)
    assert source.read_at(198, 10).tolist() == [198, 199]
    assert source.read_at(500, 10).size == 0
    with pytest.raises(ValueError, match="negative"):
        source.read_at(-1, 10)
    source.close()


def test_empty_file_is_an_empty_array(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with MappedFile(tmp_path / "empty") as mapped:
        mapped.advise_sequential()
        assert mapped.array.size == 0


def test_view_outlives_the_closing_of_its_file(log: Path) -> None:
    mapped = MappedFile(log)
    mapped.advise_random()
    view = mapped.read_at(10, 5)
    mapped.close()
    mapped.close()
    assert view.tolist() == [10, 11, 12, 13, 14]
    assert mapped.array.size == 0


def test_closing_unmaps_the_file(log: Path) -> None:
    mapped = MappedFile(log)
    assert str(log) in Path("/proc/self/maps").read_text()
    mapped.close()
    assert str(log) not in Path("/proc/self/maps").read_text()


def test_closed_mapped_files_leave_no_open_descriptor(log: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with MappedFile(log):
            pass
    # Fewer where connections of other tests were closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


def test_special_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="not a regular file"):
            MappedFile(path)


def test_missing_file_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file") as caught:
        MappedFile(tmp_path / "gone")
    assert caught.value.path == str(tmp_path / "gone")


def test_untouched_file_has_not_changed(log: Path) -> None:
    with MappedFile(log) as mapped:
        assert mapped.changed() is None


def test_grown_file_is_reported_as_changed(log: Path) -> None:
    with MappedFile(log) as mapped:
        with log.open("ab") as file:
            file.write(b"x")
        assert mapped.changed() == "grew from 200 to 201 bytes"


def test_truncated_file_is_reported_as_changed(log: Path) -> None:
    with MappedFile(log) as mapped:
        os.truncate(log, 7)
        assert mapped.changed() == "truncated from 200 to 7 bytes"


def test_replaced_file_is_reported_as_changed(log: Path) -> None:
    with MappedFile(log) as mapped:
        other_log = log.with_suffix(".new")
        other_log.write_bytes(log.read_bytes())
        other_log.replace(log)
        assert mapped.changed() == "replaced by another file"


def test_modified_file_is_reported_as_changed(log: Path) -> None:
    with MappedFile(log) as mapped:
        os.utime(log, ns=(1, 1))
        assert mapped.changed() == "modified"


def test_removed_file_is_reported_as_changed(log: Path) -> None:
    with MappedFile(log) as mapped:
        log.unlink()
        assert mapped.changed() == "removed"

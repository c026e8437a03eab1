"""The files of both indexes: opening, sizes, names, closing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.core.errors import (
    ConfigError,
    CorruptIndexError,
    IndexFullError,
    InputError,
    PublishError,
)
from tests.support.child_processes import allow_other_users, run_unprivileged
from tests.support.index_models import Kind


def written(kind: Kind, path: Path, entries: int) -> Path:
    """A closed file of so many entries."""
    with kind.open(path, 100 * kind.entry_size) as index:
        kind.add(index, entries)
    assert path.stat().st_size == entries * kind.entry_size
    return path


# ---------------------------------------------------------------------------------- opening


def test_new_file_has_the_largest_size_rounded_down_to_entries(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 1000)
    whole = 1000 // kind.entry_size
    assert (index.entries, index.max_entries) == (0, whole)
    assert Path(index.path).read_bytes() == bytes(whole * kind.entry_size)


def test_index_size_below_one_entry_is_rejected(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{kind.entry_size} bytes"):
        kind.open(tmp_path / "x", kind.entry_size - 1)
    assert not (tmp_path / "x").exists()


def test_existing_index_file_is_read_as_full(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(7 * kind.entry_size))
    index = kind.open(path, 100 * kind.entry_size)
    assert (index.entries, index.max_entries, index.length) == (7, 7, 7 * kind.entry_size)
    assert index.is_full


def test_reopened_index_has_its_entries(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(written(kind, tmp_path / "x", 5))
    assert [kind.found(index, number) for number in (0, 3, 4, 99)] == [0, 3, 4, 4]


def test_empty_file_has_no_entries(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    for writable in (True, False):
        index = kind.open(tmp_path / "x", writable=writable)
        assert (index.entries, index.length, index.is_full) == (0, 0, True)
        assert kind.found(index, 5) == 0
        index.sanity_check()
        index.flush()
        index.close()
    assert (tmp_path / "x").stat().st_size == 0


def test_size_that_is_not_a_multiple_fails_the_sanity_check_only(
    kind: Kind, tmp_path: Path
) -> None:
    path = written(kind, tmp_path / "x", 3)
    path.write_bytes(path.read_bytes() + b"\1")
    index = kind.open(path, writable=False)
    assert index.entries == 3
    assert kind.found(index, 9) == 2
    with pytest.raises(CorruptIndexError, match=f"a multiple of {kind.entry_size}"):
        index.sanity_check()


def test_rejected_append_does_not_trim_a_malformed_size(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 3)
    path.write_bytes(path.read_bytes() + b"\1")
    index = kind.open(path)
    with pytest.raises(Exception, match="full"):
        kind.add(index, 1)
    assert path.stat().st_size == 3 * kind.entry_size + 1


def test_intact_file_passes_the_sanity_check(kind: Kind, tmp_path: Path) -> None:
    kind.open(written(kind, tmp_path / "x", 3)).sanity_check()


def test_missing_file_cannot_be_opened_for_reading(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        kind.open(tmp_path / "x", 1000, writable=False)
    assert not (tmp_path / "x").exists()


def test_folder_that_is_missing_cannot_be_written_to(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="No such file"):
        kind.open(tmp_path / "none" / "x", 1000)


# ---------------------------------------------------------------------------------- reading


def test_file_without_write_permission_can_be_read_by_anyone(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 3)
    path.chmod(0o444)
    allow_other_users(tmp_path)

    def read() -> None:
        index = kind.open(path, writable=False)
        index.sanity_check()
        assert kind.found(index, 2) == 2
        index.close()

    assert run_unprivileged(read) == 0
    assert path.stat().st_size == 3 * kind.entry_size


def test_index_that_is_only_read_is_mapped_read_only(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 3)
    index = kind.open(path, writable=False)
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert [line.split()[1] for line in lines if line.endswith(str(path))] == ["r--s"]
    index.close()


def test_index_that_is_only_read_cannot_be_changed(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 3)
    content = path.read_bytes()
    index = kind.open(path, writable=False)
    with pytest.raises(PublishError, match="for reading only"):
        kind.add(index, 1)
    with pytest.raises(PublishError, match="for reading only"):
        index.resize(8 * kind.entry_size)
    index.truncate()
    with pytest.raises(PublishError, match="for reading only"):
        kind.add(index, 1)
    index.flush()
    index.close()
    assert path.read_bytes() == content


# ------------------------------------------------------------------------------------ sizes


def test_growing_index_allocates_only_its_entries(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 10 << 20, growing=True)
    assert (index.length, index.max_entries) == (0, (10 << 20) // kind.entry_size)
    kind.add(index, 1000)
    assert index.size_in_bytes <= index.length <= 4 * index.size_in_bytes
    index.close()
    assert (tmp_path / "x").stat().st_size == 1000 * kind.entry_size


def test_growing_index_equals_a_preallocated_one_after_close(kind: Kind, tmp_path: Path) -> None:
    for growing in (True, False):
        with kind.open(tmp_path / str(growing), 900 * kind.entry_size, growing=growing) as index:
            kind.add(index, 900)
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()


def test_growing_file_grows_to_the_largest_size_and_not_beyond(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 700 * kind.entry_size + 3, growing=True)
    kind.add(index, 700)
    with pytest.raises(Exception, match="full"):
        kind.add(index, 1)
    assert index.length == 700 * kind.entry_size


def test_growing_index_starts_empty_in_an_existing_file(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(written(kind, tmp_path / "x", 5), 1000, growing=True)
    assert (index.entries, index.length) == (0, 0)


def test_resizing_rounds_down_and_keeps_entries(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20 * kind.entry_size)
    kind.add(index, 5)
    assert index.resize(50 * kind.entry_size + 3)
    assert (index.entries, index.max_entries) == (5, 50)
    assert not index.resize(50 * kind.entry_size)
    kind.add(index, 20)
    assert [kind.found(index, number) for number in (4, 5, 24)] == [4, 5, 24]


def test_index_cannot_be_made_smaller_than_its_entries(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20 * kind.entry_size)
    kind.add(index, 5)
    with pytest.raises(IndexFullError, match=f"expected {5 * kind.entry_size} bytes or more"):
        index.resize(5 * kind.entry_size - 1)
    assert (index.entries, index.length) == (5, 20 * kind.entry_size)
    assert kind.found(index, 9) == 4


def test_trim_truncates_after_the_last_entry(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20 * kind.entry_size)
    kind.add(index, 5)
    index.trim_to_valid_size()
    assert (tmp_path / "x").stat().st_size == index.length == 5 * kind.entry_size
    assert kind.found(index, 9) == 4


def test_reset_empties_an_index_and_gives_it_its_largest_size(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(written(kind, tmp_path / "x", 5), 30 * kind.entry_size)
    index.reset()
    assert (index.entries, index.max_entries) == (0, 30)
    assert kind.found(index, 9) == 0
    kind.add(index, 30)
    assert kind.found(index, 29) == 29


def test_index_truncation_keeps_the_file_size(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(written(kind, tmp_path / "x", 5))
    index.truncate()
    assert (index.entries, index.length) == (0, 5 * kind.entry_size)
    kind.add(index, 1)
    assert kind.found(index, 9) == 0


# ---------------------------------------------------------------------- names and closing


def test_flushed_entries_are_in_the_file(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20 * kind.entry_size)
    kind.add(index, 3)
    index.flush()
    assert any((tmp_path / "x").read_bytes())


def test_closing_only_the_file_handle_does_not_trim(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20 * kind.entry_size)
    kind.add(index, 3)
    index.close_handler()
    assert (tmp_path / "x").stat().st_size == 20 * kind.entry_size


def test_second_close_has_no_effect(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 1000)
    index.close()
    index.close()


def test_closed_index_rejects_lookups_and_appends(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20 * kind.entry_size)
    kind.add(index, 3)
    index.close_handler()
    with pytest.raises(ValueError, match="closed"):
        kind.found(index, 1)
    with pytest.raises(ValueError, match="closed"):
        kind.add(index, 1)

"""An index that is opened when it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.index.sparse_indexes import IN_MEMORY, AbstractIndex, LazyIndex
from tests.support.index_models import OFFSET, Kind


def written(kind: Kind, path: Path, entries: int) -> Path:
    with kind.open(path, 100 * kind.entry_size) as index:
        kind.add(index, entries)
    return path


def maps_of(path: Path) -> int:
    """The number of maps of a file in this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(line.endswith(str(path)) for line in lines)


def test_lazy_index_is_not_opened_before_its_use(kind: Kind, tmp_path: Path) -> None:
    lazy = LazyIndex(lambda: kind.open(tmp_path / "missing", writable=False))
    assert not lazy.is_open
    lazy.close()


def test_lazy_index_is_mapped_from_first_use_to_close(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 5)
    lazy = LazyIndex(lambda: kind.open(path, writable=False))
    assert maps_of(path) == 0
    assert kind.found(lazy.get(), 3) == 3
    assert (maps_of(path), lazy.is_open) == (1, True)
    lazy.close()
    assert (maps_of(path), lazy.is_open) == (0, False)


def test_lazy_index_returns_the_same_object_while_open(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 5)
    lazy = LazyIndex(lambda: kind.open(path, writable=False))
    assert lazy.get() is lazy.get()
    assert maps_of(path) == 1
    lazy.close()


def test_lazy_index_reopens_its_file_after_close(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "x", 2)
    lazy: LazyIndex[AbstractIndex] = LazyIndex(lambda: kind.open(path, writable=False))
    assert lazy.get().entries == 2
    lazy.close()
    written(kind, tmp_path / "longer", 6).replace(path)
    assert lazy.get().entries == 6
    lazy.close()


def test_close_of_a_lazy_index_keeps_the_file_size(kind: Kind, tmp_path: Path) -> None:
    # LazyIndex is for readers too: it must not trim what it only looked at.
    lazy = LazyIndex(lambda: kind.open(tmp_path / "x", 20 * kind.entry_size))
    lazy.get()
    lazy.close()
    assert (tmp_path / "x").stat().st_size == 20 * kind.entry_size


def test_failed_open_of_a_lazy_index_is_retried(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "x"
    lazy: LazyIndex[AbstractIndex] = LazyIndex(lambda: kind.open(path, writable=False))
    with pytest.raises(InputError, match="No such file"):
        lazy.get()
    assert not lazy.is_open
    written(kind, path, 4)
    assert lazy.get().entries == 4
    lazy.close()


def test_released_index_rejects_lookups(kind: Kind) -> None:
    lazy = LazyIndex(lambda: kind.open(IN_MEMORY, 100))
    index = lazy.get()
    lazy.close()
    with pytest.raises(ValueError, match="closed"):
        kind.found(index, 0)


def test_second_close_has_no_effect() -> None:
    lazy = LazyIndex(lambda: OFFSET.open(IN_MEMORY, 100))
    lazy.get()
    lazy.close()
    lazy.close()
    assert not lazy.is_open

"""The local disk behind the interface of stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.errors import InputError
from kafka_index.stores import store_of


def test_a_tree_is_listed_in_the_order_of_an_object_store(tmp_path: Path) -> None:
    for name in ("a/2", "a/1", "a-b/3", "a.c", "z"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)

    listed = [
        row["path"]
        for page in store_of(str(tmp_path)).list_tree(str(tmp_path))
        for row in page.to_pylist()
    ]

    assert listed == sorted(["a/2", "a/1", "a-b/3", "a.c", "z"])


def test_put_if_absent_leaves_what_is_there(tmp_path: Path) -> None:
    store, path = store_of(str(tmp_path)), str(tmp_path / "file")
    assert store.put(path, b"first", if_absent=True)

    assert not store.put(path, b"second", if_absent=True)

    assert store.read(path) == b"first"


def test_ranges_are_those_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    source = store_of(str(path)).open(str(path))

    found = source.read_ranges([0, 50], [2, 53])

    assert [bytes(each) for each in found] == [b"\x00\x01", bytes([50, 51, 52])]
    source.close()


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InputError, match="ftp:// are not supported"):
        store_of("ftp://host/path")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = str(tmp_path)

    with pytest.raises(InputError, match="cannot read the file: Is a directory") as raised:
        store_of(path).read(path)

    assert raised.value.path == path

"""The rules of every store: the local disk, S3 and HDFS, each of them real."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import InputError, PublishError, ReadError
from kafka_index.core.fs.local_store import LocalStore
from kafka_index.core.fs.store import LISTING_SCHEMA, StorageOptions, Store
from tests.core.fs.stores import object_store

# Half of the tests ask for the server by its name.
pytestmark = pytest.mark.xdist_group("hdfs")


@dataclass(frozen=True)
class Place:
    """An empty directory of a store."""

    store: Store
    root: str

    def put(self, **files: bytes) -> None:
        for name, data in files.items():
            assert self.store.put(self.at(name), data)

    def at(self, name: str) -> str:
        return f"{self.root}/{name.replace('__', '/')}"

    def tree(self, below: str = "") -> pa.Table:
        path = self.at(below) if below else self.root
        pages = list(self.store.list_tree(path))
        return pa.Table.from_batches(pages, LISTING_SCHEMA)


@pytest.fixture(params=["local", "s3", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield Place(LocalStore(), str(tmp_path))
    elif request.param == "s3":
        server = request.getfixturevalue("s3")
        bucket = server.new_bucket()
        with object_store(server, bucket) as store:
            yield Place(store, f"s3://{bucket}")
    else:
        from kafka_index.core.fs.hdfs_store import HdfsStore  # noqa: PLC0415, needs the server

        root = request.getfixturevalue("hdfs").uri
        yield Place(HdfsStore(root, StorageOptions()), f"{root}/{tmp_path.name}")


def test_what_was_put_is_read(place: Place) -> None:
    place.put(a__b=b"bytes")

    assert place.store.read(place.at("a/b")) == b"bytes"
    assert place.store.read(place.at("a/b"), 3) == b"byt"
    assert place.store.info(place.at("a/b")).size_bytes == 5


def test_an_empty_file_is_a_file(place: Place) -> None:
    place.put(empty=b"")

    assert place.store.read(place.at("empty")) == b""
    assert place.store.read(place.at("empty"), 10) == b""
    assert list(place.store.open(place.at("empty")).stream()) == []


def test_a_put_replaces_and_a_put_if_absent_does_not(place: Place) -> None:
    place.put(a=b"1")
    place.put(a=b"22")
    assert not place.store.put(place.at("a"), b"333", if_absent=True)
    assert place.store.read(place.at("a")) == b"22"
    assert place.store.put(place.at("b"), b"333", if_absent=True)


def test_of_puts_if_absent_at_the_same_time_one_is_first(place: Place) -> None:
    puts = [f"{n}".encode() * 1000 for n in range(8)]
    with ThreadPoolExecutor(len(puts)) as pool:
        path = place.at("lock")
        won = list(pool.map(lambda data: _put_if_absent(place.store, path, data), puts))

    assert won.count(True) == 1
    assert place.store.read(place.at("lock")) == puts[won.index(True)]


def test_a_file_is_replaced_in_the_version_that_was_seen_and_in_no_other(place: Place) -> None:
    place.put(a=b"1")
    path = place.at("a")
    seen = place.store.info(path)

    assert place.store.replace(path, b"22", seen)
    assert not place.store.replace(path, b"333", seen)
    assert place.store.read(path) == b"22"
    assert not place.store.replace(place.at("none"), b"1", seen)
    assert place.tree()["path"].to_pylist() == ["a"]


def test_of_those_that_replace_a_file_at_the_same_time_one_succeeds(place: Place) -> None:
    place.put(a=b"1")
    path = place.at("a")
    seen = place.store.info(path)
    contents = [f"{n}".encode() * 1000 for n in range(8)]

    def replace(data: bytes) -> bool:
        try:
            return place.store.replace(path, data, seen)
        except PublishError:
            return False  # another one is at it

    with ThreadPoolExecutor(len(contents)) as pool:
        won = list(pool.map(replace, contents))

    assert won.count(True) == 1
    assert place.store.read(path) == contents[won.index(True)]


def _put_if_absent(store: Store, path: str, data: bytes) -> bool:
    try:
        return store.put(path, data, if_absent=True)
    except PublishError:
        return False  # another one is writing it


def test_what_does_not_exist(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.store.info(place.at("none"))
    with pytest.raises(FileNotFoundError):
        place.store.read(place.at("none"))
    with pytest.raises(InputError, match="none"):
        place.store.open(place.at("none"))
    assert place.store.list_directory(place.at("none")) == []
    assert place.tree("none").num_rows == 0


def test_a_directory_has_its_files_and_directories(place: Place) -> None:
    place.put(a__b=b"1", a__c__d=b"22", e=b"333")

    entries = place.store.list_directory(place.at("a"))

    found = [(entry.path, entry.is_directory, entry.size_bytes) for entry in entries]
    assert found == [(place.at("a/b"), False, 1), (place.at("a/c"), True, 0)]


def test_a_tree_is_in_the_order_of_the_paths(place: Place) -> None:
    names = ["a/b", "a-1/b", "a/c/d", "a.b", "b", "a/c-d"]
    for name in names:
        place.put(**{name: b"1"})

    assert place.tree()["path"].to_pylist() == sorted(names)
    assert place.tree("a")["path"].to_pylist() == ["b", "c-d", "c/d"]


def test_a_listed_file_is_the_one_that_is_found_by_name(place: Place) -> None:
    place.put(a__b=b"12345")

    listed = place.tree().to_pylist()[0]
    entry = place.store.list_directory(place.at("a"))[0]
    info = place.store.info(place.at("a/b"))

    identity = (info.size_bytes, info.mtime_ns, info.version)
    assert (listed["size_bytes"], listed["mtime_ns"], listed["version"]) == identity
    assert (entry.size_bytes, entry.mtime_ns, entry.version) == identity


def test_a_rename_replaces(place: Place) -> None:
    place.put(a=b"1", b=b"22")
    place.store.rename(place.at("a"), place.at("b"))

    assert place.tree()["path"].to_pylist() == ["b"]
    assert place.store.read(place.at("b")) == b"1"


def test_deleting_what_is_not_there_is_fine(place: Place) -> None:
    place.put(a=b"1", b=b"22")
    place.store.delete([place.at("none"), place.at("a"), place.at("none too")])

    assert place.tree()["path"].to_pylist() == ["b"]


def test_names_that_are_not_plain(place: Place) -> None:
    names = ["x=1/sp ace", "100%41", "année", "q?&#+[]"]
    for name in names:
        place.put(**{name: name.encode()})

    assert place.tree()["path"].to_pylist() == sorted(names)
    for name in names:
        assert place.store.read(place.at(name)) == name.encode()


def test_a_stream_has_every_byte_in_order(place: Place) -> None:
    data = os.urandom((40 << 20) + 12345)
    place.put(big=data)

    with_map = place.store.open(place.at("big"))
    assert b"".join(map(bytes, with_map.stream())) == data
    assert b"".join(map(bytes, with_map.stream(17 << 20))) == data[17 << 20 :]
    assert list(with_map.stream(len(data))) == []
    with_map.close()


def test_a_stream_may_be_left(place: Place) -> None:
    place.put(big=bytes(30 << 20))
    source = place.store.open(place.at("big"))

    pieces = source.stream()
    first = next(iter(pieces))

    assert not first.any()
    source.close()


@pytest.fixture(scope="module")
def data() -> bytes:
    return os.urandom(20 << 20)


@pytest.mark.parametrize("place", ["s3", "hdfs"], indirect=True)
def test_ranges_are_what_they_are_in_the_file(place: Place, data: bytes) -> None:
    place.put(data=data)
    source = place.store.open(place.at("data"))
    position = st.integers(0, len(data))

    @given(st.lists(st.tuples(position, st.integers(0, 9 << 20)), max_size=6))
    def check(drawn: list[tuple[int, int]]) -> None:
        ranges = sorted((start, min(start + size, len(data))) for start, size in drawn)
        starts = [start for start, _ in ranges]
        ends = [end for _, end in ranges]
        found = source.read_ranges(starts, ends)
        assert [bytes(each) for each in found] == [data[start:end] for start, end in ranges]

    check()


def test_a_read_beyond_the_end_is_shorter(place: Place) -> None:
    place.put(a=b"0123456789")
    source = place.store.open(place.at("a"))

    assert bytes(source.read_at(7, 100)) == b"789"
    assert bytes(source.read_at(10, 5)) == b""
    assert bytes(source.read_at(100, 5)) == b""
    with pytest.raises(ValueError, match="negative"):
        source.read_at(-1, 5)
    source.close()


def test_a_file_that_was_replaced_has_changed(place: Place) -> None:
    place.put(a=b"1" * 1000)
    source = place.store.open(place.at("a"))
    assert source.changed() is None

    place.put(a=b"2" * 2000)

    assert source.changed() is not None
    source.close()


def test_a_file_that_was_replaced_after_it_was_listed_is_not_read(place: Place) -> None:
    if isinstance(place.store, LocalStore):
        pytest.skip("whoever listed a local file compares it")
    place.put(a=b"1" * 1000)
    listed = place.store.info(place.at("a"))
    place.put(a=b"2" * 999)

    with pytest.raises(ReadError, match="changed"):
        place.store.open(place.at("a"), listed).read_at(0, 10)

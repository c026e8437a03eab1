"""The rules of every store: the local disk, S3, HDFS and a backup, each of them real."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import InputError, PublishError, ReadError
from kafka_index.core.fs.local_store import LocalStore, UnlinkedStore
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import LISTING_SCHEMA, StorageOptions, Store
from tests.commands.backup.repositories import make_backup
from tests.core.fs.stores import object_store
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP

# Half of the tests ask for the server by its name.
pytestmark = pytest.mark.xdist_group("hdfs")


@dataclass(frozen=True)
class StoreDirectory:
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


@dataclass(frozen=True)
class Directory:
    """A directory of a store with some files, by their paths."""

    store: Store
    root: str
    files: Mapping[str, bytes]


class ReadTests:
    """What every store can do: `files` are the files of a directory, by their paths below it."""

    @pytest.fixture
    def directory(self) -> Directory:
        raise NotImplementedError

    def test_read_returns_the_file_or_its_first_bytes(self, directory: Directory) -> None:
        for path, data in directory.files.items():
            assert directory.store.read(path) == data
            assert directory.store.read(path, 10) == data[:10]
            assert directory.store.info(path).size_bytes == len(data)

    def test_stream_from_any_position_returns_the_remaining_bytes(
        self, directory: Directory
    ) -> None:
        for path, data in directory.files.items():
            with closing(directory.store.open(path)) as source:
                for start in (0, len(data) // 3, len(data)):
                    assert b"".join(map(bytes, source.stream(start))) == data[start:]

    def test_read_beyond_the_end_is_shortened(self, directory: Directory) -> None:
        path, data = max(directory.files.items(), key=lambda item: len(item[1]))
        end = len(data)
        with closing(directory.store.open(path)) as source:
            assert bytes(source.read_at(end - 3, 100)) == data[-3:]
            assert bytes(source.read_at(end, 5)) == b""
            assert bytes(source.read_at(end + 90, 5)) == b""
            with pytest.raises(ValueError, match="negative"):
                source.read_at(-1, 5)

    def test_byte_ranges_equal_slices_of_the_file(self, directory: Directory) -> None:
        path, data = max(directory.files.items(), key=lambda item: len(item[1]))
        position = st.integers(0, len(data))
        with closing(directory.store.open(path)) as source:

            @given(st.lists(st.tuples(position, st.integers(0, 9 << 20)), max_size=6))
            def check(generated: list[tuple[int, int]]) -> None:
                ranges = sorted((start, min(start + size, len(data))) for start, size in generated)
                starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
                result = source.read_ranges(starts, ends)
                assert [bytes(block) for block in result] == [
                    data[start:end] for start, end in ranges
                ]

            check()

    def test_arrow_reads_a_file_at_any_position_and_as_a_stream(self, directory: Directory) -> None:
        path, data = max(directory.files.items(), key=lambda item: len(item[1]))
        with directory.store.input_stream(path) as stream:
            assert b"".join(iter(lambda: stream.read(1 << 20), b"")) == data
        opened = directory.store.readable(path)
        with pa.OSFile(opened) if isinstance(opened, str) else pa.PythonFile(opened) as file:
            file.seek(len(data) - 7)
            assert file.read(100) == data[-7:]

    def test_listings_have_the_files_with_their_versions(self, directory: Directory) -> None:
        store, root = directory.store, directory.root
        rows = {
            f"{root}/{row['path']}": row
            for page in store.list_tree(root)
            for row in page.to_pylist()
        }
        assert set(store.files_below(root)) == set(rows) >= set(directory.files)
        right_below = {path for path in directory.files if os.path.dirname(path) == root}
        entries = {entry.path: entry for entry in store.list_directory(root)}
        scanned = {entry.path: entry for entry in store.scan(root)}
        for path in directory.files:
            info = store.info(path)
            version = info.size_bytes, info.mtime_ns, info.version
            row = rows[path]
            assert (row["size_bytes"], row["mtime_ns"], row["version"]) == version
            if path in right_below:
                entry = entries[path]
                assert (entry.size_bytes, entry.mtime_ns, entry.version) == version
                assert scanned[path].info() == info
                assert scanned[path].file_error() is None
                assert scanned[path].linked_out() is None
                assert scanned[path].file_version()[0] == info.size_bytes

    def test_existing_and_missing_paths_are_distinguished(self, directory: Directory) -> None:
        store, none = directory.store, f"{directory.root}/none"
        assert store.is_directory(directory.root)
        assert not store.is_directory(none)
        assert all(map(store.is_file, directory.files))
        assert not store.is_file(none)
        assert not any(map(store.is_special, [directory.root, none, *directory.files]))

    def test_missing_file_raises_not_found(self, directory: Directory) -> None:
        store, none = directory.store, f"{directory.root}/none"
        with pytest.raises(FileNotFoundError):
            store.info(none)
        with pytest.raises(FileNotFoundError):
            store.read(none)
        with pytest.raises(InputError, match="none"):
            store.open(none)
        assert store.list_directory(none) == []
        assert list(store.list_tree(none)) == []

    def test_paths_of_one_directory_share_an_identity(self, directory: Directory) -> None:
        store, root = directory.store, directory.root
        assert store.identity(root) == store.identity(store.real_path(root))
        assert store.is_same_directory(root, root)
        assert not store.is_same_directory(root, f"{root}/none")


class StoreTests(ReadTests):
    """What every store that is written to can do, besides."""

    @pytest.fixture
    def place(self) -> StoreDirectory:
        raise NotImplementedError

    @pytest.fixture
    def directory(self, place: StoreDirectory) -> Directory:
        contents = {"big": os.urandom((40 << 20) + 12345), "a__b": b"bytes", "empty": b""}
        place.put(**contents)
        return Directory(
            place.store, place.root, {place.at(name): data for name, data in contents.items()}
        )

    def test_empty_file_exists_and_has_no_bytes(self, place: StoreDirectory) -> None:
        place.put(empty=b"")

        assert place.store.read(place.at("empty")) == b""
        assert place.store.read(place.at("empty"), 10) == b""
        assert list(place.store.open(place.at("empty")).stream()) == []

    def test_put_replaces_a_file_but_put_if_absent_does_not(self, place: StoreDirectory) -> None:
        place.put(a=b"1")
        place.put(a=b"22")
        assert not place.store.put(place.at("a"), b"333", if_absent=True)
        assert place.store.read(place.at("a")) == b"22"
        assert place.store.put(place.at("b"), b"333", if_absent=True)

    def test_one_of_concurrent_puts_if_absent_succeeds(self, place: StoreDirectory) -> None:
        puts = [f"{n}".encode() * 1000 for n in range(8)]
        with ThreadPoolExecutor(len(puts)) as pool:
            path = place.at("lock")
            won = list(pool.map(lambda data: _put_if_absent(place.store, path, data), puts))

        assert won.count(True) == 1
        assert place.store.read(place.at("lock")) == puts[won.index(True)]

    def test_file_is_replaced_only_in_the_expected_version(self, place: StoreDirectory) -> None:
        place.put(a=b"1")
        path = place.at("a")
        info = place.store.info(path)

        assert place.store.replace(path, b"22", info)
        assert not place.store.replace(path, b"333", info)
        assert place.store.read(path) == b"22"
        assert not place.store.replace(place.at("none"), b"1", info)
        assert place.tree()["path"].to_pylist() == ["a"]

    def test_one_of_concurrent_replacements_succeeds(self, place: StoreDirectory) -> None:
        place.put(a=b"1")
        path = place.at("a")
        info = place.store.info(path)
        contents = [f"{n}".encode() * 1000 for n in range(8)]

        def replace(data: bytes) -> bool:
            try:
                return place.store.replace(path, data, info)
            except PublishError:
                return False  # another one is at it

        with ThreadPoolExecutor(len(contents)) as pool:
            won = list(pool.map(replace, contents))

        assert won.count(True) == 1
        assert place.store.read(path) == contents[won.index(True)]

    def test_directory_listing_has_its_files_and_directories(self, place: StoreDirectory) -> None:
        place.put(a__b=b"1", a__c__d=b"22", e=b"333")

        entries = place.store.list_directory(place.at("a"))

        result = [(entry.path, entry.is_directory, entry.size_bytes) for entry in entries]
        assert result == [(place.at("a/b"), False, 1), (place.at("a/c"), True, 0)]

    def test_recursive_listing_is_sorted_by_path(self, place: StoreDirectory) -> None:
        names = ["a/b", "a-1/b", "a/c/d", "a.b", "b", "a/c-d"]
        for name in names:
            place.put(**{name: b"1"})

        assert place.tree()["path"].to_pylist() == sorted(names)
        assert place.tree("a")["path"].to_pylist() == ["b", "c-d", "c/d"]

    def test_rename_replaces_the_target(self, place: StoreDirectory) -> None:
        place.put(a=b"1", b=b"22")
        place.store.rename(place.at("a"), place.at("b"))

        assert place.tree()["path"].to_pylist() == ["b"]
        assert place.store.read(place.at("b")) == b"1"

    def test_deletion_of_a_missing_file_succeeds(self, place: StoreDirectory) -> None:
        place.put(a=b"1", b=b"22")
        place.store.delete([place.at("none"), place.at("a"), place.at("none too")])

        assert place.tree()["path"].to_pylist() == ["b"]

    def test_names_with_special_characters_are_supported(self, place: StoreDirectory) -> None:
        names = ["x=1/sp ace", "100%41", "année", "q?&#+[]"]
        for name in names:
            place.put(**{name: name.encode()})

        assert place.tree()["path"].to_pylist() == sorted(names)
        for name in names:
            assert place.store.read(place.at(name)) == name.encode()

    def test_unfinished_stream_can_be_closed(self, place: StoreDirectory) -> None:
        place.put(big=bytes(30 << 20))
        source = place.store.open(place.at("big"))

        pieces = source.stream()
        first = next(iter(pieces))

        assert not first.any()
        source.close()

    def test_replaced_file_has_another_version(self, place: StoreDirectory) -> None:
        place.put(a=b"1" * 1000)
        source = place.store.open(place.at("a"))
        assert source.changed() is None

        place.put(a=b"2" * 2000)

        assert source.changed() is not None
        source.close()

    def test_created_directory_accepts_files(self, place: StoreDirectory) -> None:
        place.store.make_directory(place.at("a/b"))
        place.store.make_writable_directory(place.at("a/b"))
        place.put(a__b__c=b"1")
        place.store.make_durable([place.at("a/b")], "make it durable")
        assert place.tree()["path"].to_pylist() == ["a/b/c"]

    def test_delete_tree_removes_only_its_files(self, place: StoreDirectory) -> None:
        place.put(a__b=b"1", a__c__d=b"22", a2=b"333")
        place.store.delete_tree(place.at("a"))
        place.store.delete_tree(place.at("none"))
        assert [entry.path for entry in place.store.list_directory(place.root)] == [place.at("a2")]

    def test_created_file_is_visible_after_its_commit(self, place: StoreDirectory) -> None:
        place.put(a=b"old")
        path = place.at("a")
        with place.store.create(path, noun="file") as file:
            file.write(b"new")
            assert place.store.read(path) == b"old"
            file.commit()
            assert place.store.read(path) == b"new"
        with place.store.create(path, noun="file") as file:
            file.write(b"newer")
        assert place.store.read(path) == b"new"
        assert place.tree()["path"].to_pylist() == ["a"]

    def test_compressed_file_is_decompressed_while_it_is_read(self, place: StoreDirectory) -> None:
        place.put(**{"a.gz": gzip.compress(b"1" * 100_000)})
        with place.store.input_stream(place.at("a.gz")) as stream:
            assert stream.read() == b"1" * 100_000


def _put_if_absent(store: Store, path: str, data: bytes) -> bool:
    try:
        return store.put(path, data, if_absent=True)
    except PublishError:
        return False  # another one is writing it


class VersionedTests:
    """What stores whose listings name a version can do, besides."""

    def test_file_that_was_replaced_after_it_was_listed_is_not_read(
        self, place: StoreDirectory
    ) -> None:
        place.put(a=b"1" * 1000)
        listed_info = place.store.info(place.at("a"))
        place.put(a=b"2" * 999)

        with pytest.raises(ReadError, match="changed"):
            place.store.open(place.at("a"), listed_info).read_at(0, 10)


class TestLocalStore(StoreTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreDirectory:
        return StoreDirectory(LocalStore(), str(tmp_path))


class TestUnlinkedStore(StoreTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreDirectory:
        return StoreDirectory(UnlinkedStore(str(tmp_path)), str(tmp_path))


class TestObjectStore(StoreTests, VersionedTests):
    @pytest.fixture
    def place(self, s3: S3Server) -> Iterator[StoreDirectory]:
        bucket = s3.new_bucket()
        with object_store(s3, bucket) as store:
            yield StoreDirectory(store, f"s3://{bucket}")


class TestHdfsStore(StoreTests, VersionedTests):
    @pytest.fixture
    def place(self, hdfs: HdfsServer, tmp_path: Path) -> StoreDirectory:
        from kafka_index.core.fs.hdfs_store import HdfsStore  # noqa: PLC0415, needs the server

        return StoreDirectory(HdfsStore(hdfs.uri, StorageOptions()), f"{hdfs.uri}/{tmp_path.name}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("backup"))
    make_backup(root, DUMP, time_ms=1_763_000_000_000)
    return root


class TestBackupStore(ReadTests):
    """A backup of the example, whose logs are joined from small objects."""

    @pytest.fixture
    def directory(self, repository: str) -> Directory:
        root = f"{absolute_path(f'backup:{repository}')}/payments-0"
        logs = {
            f"{root}/{log.name}": log.read_bytes() for log in (DUMP / "payments-0").glob("*.log")
        }
        return Directory(store_of(root), root, logs)

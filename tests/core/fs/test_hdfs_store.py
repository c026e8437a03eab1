"""HDFS, a real one: what goes wrong, and what a writer leaves."""

from __future__ import annotations

import os
from pathlib import Path

import hdfs_native
import pytest

from kafka_index.core.errors import InputError, PublishError, ReadError, is_retriable
from kafka_index.core.fs.hdfs_store import HdfsStore
from kafka_index.core.fs.store import StorageOptions, parse_storage_options
from kafka_index.core.output.publish import is_scratch
from tests.servers.hdfs import HdfsServer

#: One attempt: what a test waits for is not the library's patience.
HASTY = StorageOptions((("dfs.client.failover.max.attempts", "1"),))


@pytest.fixture
def root(hdfs: HdfsServer, tmp_path: Path) -> str:
    return f"{hdfs.uri}/{tmp_path.name}"


@pytest.fixture
def store(hdfs: HdfsServer) -> HdfsStore:
    return HdfsStore(hdfs.uri, StorageOptions())


def test_missing_read_permission_is_reported(
    hdfs: HdfsServer, store: HdfsStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{root}/a", b"1")
    hdfs_native.Client(hdfs.uri).set_permission("/" + root.rpartition("/")[2], 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    stranger = HdfsStore(hdfs.uri, StorageOptions())

    with pytest.raises(ReadError, match="Permission denied: user=stranger") as caught:
        stranger.list_directory(root)
    with pytest.raises(PublishError, match="Permission denied: user=stranger"):
        stranger.put(f"{root}/b", b"1")

    assert is_retriable(caught.value)
    assert "HADOOP_USER_NAME" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "org.apache" not in str(caught.value)


def test_unreachable_name_node_is_retriable() -> None:
    with pytest.raises(ReadError, match="Connection refused") as caught:
        HdfsStore("hdfs://127.0.0.1:1", HASTY).list_directory("hdfs://127.0.0.1:1/a")

    assert is_retriable(caught.value)


def test_undefined_name_service_is_rejected() -> None:
    with pytest.raises(InputError, match="HADOOP_CONF_DIR"):
        HdfsStore("hdfs://nameservice", StorageOptions())


def test_default_file_system_is_read_from_the_hadoop_configuration(
    hdfs: HdfsServer, store: HdfsStore, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{root}/a", b"1")
    _write_site(tmp_path / "core-site.xml", {"fs.defaultFS": hdfs.uri})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    path = f"hdfs:///{tmp_path.name}"

    default = HdfsStore("hdfs://", StorageOptions())

    assert [entry.path for entry in default.list_directory(path)] == [f"{path}/a"]
    assert default.read(f"{path}/a") == b"1"


def test_name_service_with_a_dead_first_name_node_is_reached(
    hdfs: HdfsServer, store: HdfsStore, root: str, tmp_path: Path
) -> None:
    store.put(f"{root}/a", b"1")
    settings = [
        "dfs.nameservices=ours",
        "dfs.ha.namenodes.ours=first,second",
        "dfs.namenode.rpc-address.ours.first=127.0.0.1:1",
        f"dfs.namenode.rpc-address.ours.second={hdfs.uri.removeprefix('hdfs://')}",
    ]

    named_store = HdfsStore("hdfs://ours", parse_storage_options(settings))

    assert named_store.read(f"hdfs://ours/{tmp_path.name}/a") == b"1"


def _write_site(path: Path, properties: dict[str, str]) -> None:
    rows = [
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    ]
    path.write_text(f"<configuration>{''.join(rows)}</configuration>")


def test_grown_file_differs_from_the_listed_one(
    hdfs: HdfsServer, store: HdfsStore, root: str
) -> None:
    store.put(f"{root}/a", b"12345")
    listed_info = store.info(f"{root}/a")
    with hdfs_native.Client(hdfs.uri).append(
        "/" + "/".join(listed_info.path.split("/")[3:])
    ) as file:
        file.write(b"6")

    with pytest.raises(ReadError, match="changed after it was listed"):
        store.open(f"{root}/a", listed_info)


def test_temporary_name_of_a_file_is_recognized_for_cleanup(
    store: HdfsStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that dies before its rename leaves a scratch file, and not the file."""

    class Dies(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Dies

    monkeypatch.setattr(store._client, "rename", die)
    with pytest.raises(Dies):
        store.put(f"{root}/00000000000000000000.index", b"1")

    names = [os.path.basename(entry.path) for entry in store.list_directory(root)]
    assert len(names) == 1
    assert is_scratch(names[0])


def test_put_over_a_directory_leaves_no_temporary_file(store: HdfsStore, root: str) -> None:
    store.put(f"{root}/a/b", b"1")
    with pytest.raises(PublishError):
        store.put(f"{root}/a", b"2")

    assert [entry.path for entry in store.list_directory(root)] == [f"{root}/a"]

"""Empty objects ``key/`` that consoles, Hadoop and Arrow put for directories."""

from __future__ import annotations

from tests.servers.s3 import S3Server
from tests.stores.stores import object_store


def test_they_are_directories_and_not_files_of_themselves(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    for directory in ("dump", "dump/orders-0", "dump/empty-0"):
        s3.filesystem().create_dir(f"{bucket}/{directory}")
    root = f"s3://{bucket}/dump"
    with object_store(s3, bucket) as store:
        store.put(f"{root}/orders-0/a.log", b"1")

        entries = [(entry.path, entry.is_directory) for entry in store.list_directory(root)]
        assert entries == [(f"{root}/empty-0", True), (f"{root}/orders-0", True)]
        inner = store.list_directory(f"{root}/orders-0")
        assert [entry.path for entry in inner] == [f"{root}/orders-0/a.log"]
        assert store.list_directory(f"{root}/empty-0") == []

        names = [name for page in store.list_tree(root) for name in page["path"].to_pylist()]
        assert "" not in names
        assert "orders-0/a.log" in names

"""Many directories of an object store, scanned together."""

from __future__ import annotations

from pathlib import Path

from kafka_index.storage.paged_listing import scan_directories
from tests.servers.faults import fault_proxy
from tests.servers.s3 import S3Server
from tests.support.remote import new_bucket, upload

COUNT = 30


def entries(directories: list[str]) -> dict[str, list[tuple[str, bool]]]:
    return {
        directory: sorted((entry.path, entry.is_directory()) for entry in found)
        for directory, found in scan_directories(directories)
    }


def test_directories_of_a_bucket_share_requests(s3: S3Server, tmp_path: Path) -> None:
    for number in range(COUNT):
        folder = tmp_path / f"topic-{number}" / "inner"
        folder.mkdir(parents=True)
        (folder.parent / "a.index").touch()
        (folder / "b").touch()
    with fault_proxy(s3.endpoint) as proxy, new_bucket(s3.through(proxy.endpoint)) as bucket:
        root = upload(tmp_path, f"{bucket}/dump")
        directories = [f"{root}/topic-{number}" for number in range(COUNT)]
        proxy.clear()

        most = entries(directories)
        assert len(proxy.requests) <= 4
        few = entries(directories[:3])

    assert few == {each: most[each] for each in directories[:3]}
    assert most == {
        each: [(f"{each}/a.index", False), (f"{each}/inner", True)] for each in directories
    }


def test_a_directory_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a-0").mkdir()

    assert entries([str(tmp_path / "a-0"), str(tmp_path / "b-0")]) == {str(tmp_path / "a-0"): []}

"""The requests of a build from a bucket to a bucket, counted between us and the store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.servers.faults import fault_proxy
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, SETTINGS, build_here
from tests.support.remote import download, new_bucket, upload

# A log is read and four files are written; the others are those of partitions, and listings.
_MAX_REQUESTS_PER_SEGMENT = 6
# Whatever the number of partitions: the dump by folders and by pages, its metadata log, and three
# of the output.
_MAX_LISTINGS_OF_A_RUN = 6


def test_a_first_build_asks_for_nothing_that_is_not_there(s3: S3Server, tmp_path: Path) -> None:
    segments = len(list(DUMP.rglob("*.log")))
    local = build_here("--input", DUMP, "--output", tmp_path / "out", "--config", SETTINGS)
    assert local.returncode == 0, local.stderr
    with fault_proxy(s3.endpoint) as proxy, new_bucket(s3.through(proxy.endpoint)) as bucket:
        dump = upload(DUMP, f"{bucket}/dump")
        arguments = ("--input", dump, "--output", f"{bucket}/out", "--config", SETTINGS)
        proxy.clear()
        done = build_here(*arguments)
        requests = list(proxy.requests)
        assert done.returncode == 0, done.stderr
        assert _published(download(f"{bucket}/out")) == _published(
            {
                str(path.relative_to(tmp_path / "out")): path.read_bytes()
                for path in (tmp_path / "out").rglob("*")
                if path.is_file()
            }
        )
        proxy.clear()
        again = build_here(*arguments)
        assert "unchanged" in again.stdout
        assert "built" not in again.stdout
        # Nothing is written where nothing has changed, but for the marker of the run.
        assert [each.path for each in proxy.requests if each.method == "PUT"] == [
            f"/{bucket.removeprefix('s3://')}/out/.kafka-index/lock"
        ]

    kinds = Counter(each.method for each in requests)
    listings = [each for each in requests if "list-type=2" in each.query]
    assert [each.path for each in requests if each.status == 404] == []
    assert kinds["HEAD"] == 0
    assert kinds["POST"] + kinds["DELETE"] == 1
    assert len(listings) <= _MAX_LISTINGS_OF_A_RUN
    assert len(requests) <= _MAX_REQUESTS_PER_SEGMENT * segments


def _published(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that brokers read."""
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}

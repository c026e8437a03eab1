"""Builds from bucket to bucket that are killed on Spark, or whose input is replaced.

A proxy stands between them and the server, and acts at a request: at the same step of a build
however fast the machine is.
"""

from __future__ import annotations

import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_index.core.fs import remote_file
from tests.servers.faults import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.builds import build_with_report, finish, kill, start
from tests.support.command_line import SETTINGS, Argument, copy_partitions
from tests.support.remote import download, new_bucket, upload
from tests.support.segments import batch
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for, wait_until

PARTITIONS = ("audit.trail-0", "orders.eu-west-0", "orders.eu-west-1", "payments-0", "payments-1")
RECORDS = (".kafka-index", ".kafka-index-state")
RUNS = ".kafka-index/"
LOG, OTHER_LOG = f"{0:020d}.log", f"{700_000:020d}.log"
ENVIRONMENT = 3
_Files = dict[str, bytes]


class _Stand:
    """A dump in a bucket, and a proxy on the way to it."""

    def __init__(self, proxy: FaultProxy, bucket: str, folder: Path) -> None:
        self.proxy = proxy
        self.bucket = bucket
        self.dump = f"{bucket}/dump"
        self._folder = folder
        self._passed = 0

    def start(
        self, output: str, *more: Argument, dump: str | None = None, threads: int | None = 2
    ) -> subprocess.Popen[str]:
        """Start a build, with a folder of its own for temporary files."""
        places = ("--input", dump or self.dump, "--output", f"{self.bucket}/{output}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(self.temporary(output)))
            options = ("--config", SETTINGS, "--quiet", *more)
            if threads is not None:
                options = (*options, "--threads", threads)
            return start(*places, *options)

    def build(
        self, output: str, *more: Argument, dump: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return finish(self.start(output, *more, dump=dump))

    def temporary(self, output: str) -> Path:
        folder = self._folder / f"tmp-{output}"
        folder.mkdir(exist_ok=True)
        return folder

    def at(self, is_it: Callable[[str, str], bool], count: int, act: Callable[[], None]) -> None:
        """Act before a request is passed on: the n-th of its kind."""
        lock, left = threading.Lock(), count
        self._passed = len(self.proxy.requests)

        def before(method: str, path: str) -> None:
            nonlocal left
            with lock:
                self._passed += 1
                if is_it(method, path):
                    left -= 1
                    if left == 0:
                        act()

        self.proxy.before = before

    def settle(self) -> None:
        """Wait until the server has answered what a killed process has sent."""
        wait_for(lambda: len(self.proxy.requests) == self._passed, 10, "requests are answered")
        self.proxy.before = lambda _method, _path: None
        self.proxy.clear()


@pytest.fixture(scope="module")
def remote_setting(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Stand]:
    folder = tmp_path_factory.mktemp("remote-kill")
    with fault_proxy(s3.endpoint) as proxy, new_bucket(s3.behind(proxy.endpoint)) as bucket:
        upload(copy_partitions(folder / "data", *PARTITIONS), f"{bucket}/dump")
        yield _Stand(proxy, bucket, folder)


@pytest.fixture(scope="module")
def undisturbed(remote_setting: _Stand) -> _Files:
    """The files of an undisturbed build."""
    result = remote_setting.build("undisturbed")
    assert result.returncode == 0, result.stderr
    return published(download(f"{remote_setting.bucket}/undisturbed"))


def published(files: _Files) -> _Files:
    return {
        name: data
        for name, data in files.items()
        if not name.endswith(RECORDS) and not name.startswith(RUNS)
    }


@pytest.mark.usefixtures("quick_java")
def test_files_staged_by_a_killed_spark_build_are_removed_by_the_next(
    remote_setting: _Stand, undisturbed: _Files
) -> None:
    is_reached, is_killed = threading.Event(), threading.Event()

    def wait() -> None:
        is_reached.set()
        assert is_killed.wait(TIMEOUT_SECONDS)

    def is_staged(method: str, path: str) -> bool:
        return method == "PUT" and path.endswith(".tmp")

    remote_setting.at(is_staged, 10, wait)
    engine = ("--engine", "spark", "--master", "local[2]")
    process = remote_setting.start("spark", *engine, threads=None)
    try:
        # False: it has ended.
        assert wait_until(process, is_reached.is_set, every=0.05)
    finally:
        kill(process)
        is_killed.set()
    remote_setting.settle()

    left = download(f"{remote_setting.bucket}/spark")
    assert len([name for name in left if name.startswith(RUNS) and name.endswith(".tmp")]) >= 9
    assert published(left) == {}

    result = remote_setting.build("spark")

    assert result.returncode == 0, result.stderr
    downloaded = download(f"{remote_setting.bucket}/spark")
    assert published(downloaded) == undisturbed
    assert not [name for name in downloaded if name.startswith(RUNS)]
    assert not list(remote_setting.temporary("spark").glob("kafka-index-work-*"))


def _long_log(base_offset: int, batches: int) -> bytes:
    # The checksum does not cover the base offset: all batches but for that are the same bytes.
    one = batch(0, 1, 60_000)[8:]
    offsets = range(base_offset, base_offset + batches)
    return b"".join(struct.pack(">q", offset) + one for offset in offsets)


@pytest.mark.parametrize(
    ("request_number", "is_removed", "how"),
    [
        (1, False, "replaced"),
        # Three pieces are requested at once, and the fourth when the first has been scanned.
        (remote_file.STREAM_BLOCKS, False, "replaced"),
        (remote_file.STREAM_BLOCKS, True, "removed"),
    ],
    ids=["replaced-before-it-is-read", "replaced-midway", "removed-midway"],
)
def test_object_replaced_during_its_read_fails_only_its_segment(
    remote_setting: _Stand,
    s3: S3Server,
    tmp_path: Path,
    request_number: int,
    how: str,
    *,
    is_removed: bool,
) -> None:
    batches = 3 * remote_file.BLOCK_BYTES // 60_000 + 10
    data = copy_partitions(tmp_path / "data", "orders.eu-west-0")
    folder = data / "long-0"
    folder.mkdir()
    (folder / LOG).write_bytes(_long_log(0, batches))
    (folder / OTHER_LOG).write_bytes(_long_log(700_000, 3))
    name = f"replaced-{request_number}-{is_removed}"
    dump = upload(data, f"{remote_setting.bucket}/{name}-dump")
    bucket, key = f"{dump}/long-0/{LOG}".removeprefix("s3://").split("/", 1)

    def replace() -> None:
        if is_removed:
            s3.filesystem().delete_file(f"{bucket}/{key}")
        else:
            # Sound, and of the same size: nothing but the version of the object tells.
            s3.put(bucket, key, _long_log(1, batches))

    def build(*more: Argument) -> subprocess.CompletedProcess[str]:
        return remote_setting.build(name, *more, dump=dump)

    path = f"/{bucket}/{key}"
    remote_setting.at(lambda *it: it == ("GET", path), request_number, replace)
    done, rows = build_with_report(build, tmp_path)
    remote_setting.settle()

    assert done.returncode == ENVIRONMENT, done.stderr
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["log_path"] for row in failed] == [f"{dump}/long-0/{LOG}"]
    assert f"the object changed while it was read: {how}" in failed[0]["reason"]
    assert {row["status"] for row in rows if row not in failed} == {"built"}
    result = published(download(f"{remote_setting.bucket}/{name}"))
    stem = Path(OTHER_LOG).stem
    of_long = {each for each in result if each.startswith("long-0/")}
    assert of_long == {f"long-0/{stem}.index", f"long-0/{stem}.timeindex"}
    orders = {f"orders.eu-west-0/{log.stem}.index" for log in data.glob("orders.eu-west-0/*.log")}
    assert orders <= set(result)
    assert len(rows) == len(orders) + 2

    done, rows = build_with_report(build, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "failed" not in {row["status"] for row in rows}
    result = published(download(f"{remote_setting.bucket}/{name}"))
    assert (f"long-0/{Path(LOG).stem}.index" in result) is not is_removed

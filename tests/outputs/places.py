"""Where outputs are: a local folder or a bucket; and runs that fail at the n-th call there."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from kafka_index.core.fs.registry import store_of
from tests.servers.faults import FaultProxy
from tests.support.killed_runs import SIGNALS, EndedRun, Failure, KilledRuns
from tests.support.remote import download, upload
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for

#: A step that no run reaches.
NEVER = 1_000_000
_CHANGES = {"PUT", "POST", "DELETE"}
Files = dict[str, bytes]


class CommandWorkspace(Protocol):
    """The place of the inputs and outputs of a command, and a process that runs it there.

    `data` is a local folder with the inputs. `source` is where a run reads them, `out` where it
    writes.
    """

    data: Path
    runs: KilledRuns
    source: str
    out: str
    failures: tuple[Failure, ...]

    def save(self, name: str) -> None:
        """Remember the outputs under a name."""

    def clear(self) -> None:
        """Remove the outputs."""

    def lay_out(self, name: str) -> None:
        """Replace the outputs by those of a name."""

    def files(self) -> Files:
        """Return all files of the outputs; a folder without files ends in a slash."""

    def versions(self) -> dict[str, object]:
        """Return what changes when a file of the inputs or outputs is written again."""

    def publish_inputs(self) -> None:
        """Copy the inputs to where runs read them."""

    def run(self, step: int, failure: Failure, *arguments: str) -> EndedRun:
        """Run a command with a failure at a step."""

    def stopped(self, step: int, *arguments: str) -> AbstractContextManager[list[EndedRun]]:
        """Run a command that stops at a step until the block ends; the list then has its end."""


class LocalPlace:
    """A folder. The calls that fail are file system calls of the process."""

    failures: tuple[Failure, ...] = (Failure.DISK, Failure.FULL, Failure.DENIED, Failure.FILES)

    def __init__(self, root: Path, runs: KilledRuns) -> None:
        self.root, self.data, self.runs = root, root / "data", runs
        self.source, self.out = str(self.data), str(root / "out")
        self.data.mkdir()
        Path(self.out).mkdir()

    def save(self, name: str) -> None:
        shutil.copytree(self.out, self.root / f"saved-{name}", symlinks=True)

    def clear(self) -> None:
        shutil.rmtree(self.out)
        Path(self.out).mkdir()

    def lay_out(self, name: str) -> None:
        shutil.rmtree(self.out)
        shutil.copytree(self.root / f"saved-{name}", self.out, symlinks=True)

    def files(self) -> Files:
        return local_files(Path(self.out))

    def versions(self) -> dict[str, object]:
        paths = [*self.data.rglob("*"), *Path(self.out).rglob("*")]
        stats = {str(path): path.lstat() for path in paths if not path.is_dir()}
        return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}

    def publish_inputs(self) -> None:
        """Do nothing: runs read the inputs where they are."""

    def run(self, step: int, failure: Failure, *arguments: str) -> EndedRun:
        return self.runs.failing(self.root, step, failure, *arguments)

    def stopped(self, step: int, *arguments: str) -> AbstractContextManager[list[EndedRun]]:
        return self.runs.stopped(self.root, step, *arguments)


def local_files(root: Path) -> Files:
    """Return all files below a folder; a folder without files ends in a slash."""
    result: Files = {}
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        if not folders and not names:
            result[f"{relative}/"] = b""
        for name in names:
            path = Path(folder, name)
            result[str(path.relative_to(root))] = path.read_bytes()
    return result


class BucketPlace:
    """A bucket. The calls that fail are requests that change it; a proxy sees them.

    A killed process is killed when such a request arrives, which the server does not see. Where the
    disk fails, the server has no time for this request, however often it is repeated.
    """

    failures: tuple[Failure, ...] = (Failure.DISK, Failure.DENIED)

    def __init__(self, root: Path, runs: KilledRuns, proxy: FaultProxy, bucket: str) -> None:
        self.data, self.runs, self.proxy, self._bucket = root / "data", runs, proxy, bucket
        self.source, self.out = f"{bucket}/data", f"{bucket}/out"
        self.data.mkdir()
        self._saved: dict[str, Files] = {}

    def save(self, name: str) -> None:
        self._saved[name] = self.files()

    def clear(self) -> None:
        store_of(self.out).delete_tree(self.out)

    def lay_out(self, name: str) -> None:
        self.clear()
        for path, content in self._saved[name].items():
            store_of(self.out).put(f"{self.out}/{path}", content)

    def files(self) -> Files:
        return download(self.out)

    def versions(self) -> dict[str, object]:
        rows = (
            row
            for page in store_of(self._bucket).list_tree(self._bucket)
            for row in page.to_pylist()
        )
        return {f"{self._bucket}/{row['path']}": row for row in rows}

    def publish_inputs(self) -> None:
        store_of(self.source).delete_tree(self.source)
        upload(self.data, self.source)

    def run(self, step: int, failure: Failure, *arguments: str) -> EndedRun:
        def fail(calls: list[str]) -> int | None:
            if failure is Failure.DISK and calls[-1] in calls[step - 1 : step]:
                return 503
            if len(calls) != step:
                return None
            if failure in SIGNALS:
                self.runs.send_signal(SIGNALS[failure])
            return {Failure.KILL: 503, Failure.DENIED: 403}.get(failure)

        with self._counting(fail) as calls:
            ended = self.runs.failing(self.data, NEVER, Failure.KILL, *arguments)
        place = calls[step - 1] if len(calls) >= step else ""
        return EndedRun(ended.code, ended.stdout, ended.stderr, place, len(calls))

    @contextmanager
    def stopped(self, step: int, *arguments: str) -> Iterator[list[EndedRun]]:
        reached, opened, ended = threading.Event(), threading.Event(), []

        def wait(calls: list[str]) -> None:
            if len(calls) == step and not opened.is_set():
                reached.set()
                opened.wait(TIMEOUT_SECONDS)

        def run() -> None:
            ended.append(self.runs.failing(self.data, NEVER, Failure.KILL, *arguments))
            reached.set()

        with self._counting(wait):
            thread = threading.Thread(target=run)
            thread.start()
            reached.wait(TIMEOUT_SECONDS)
            try:
                yield ended
            finally:
                opened.set()
                thread.join()

    @contextmanager
    def _counting(self, at: Callable[[list[str]], int | None]) -> Iterator[list[str]]:
        """Call something with the requests so far that change the bucket, at each of them."""
        calls: list[str] = []
        lock, seen = threading.Lock(), 0
        self.proxy.clear()

        def before(method: str, path: str) -> int | None:
            nonlocal seen
            with lock:
                seen += 1
                if method not in _CHANGES:
                    return None
                calls.append(f"s3:/{path}")
                so_far = calls[:]
            return at(so_far)

        self.proxy.before = before
        try:
            yield calls
            wait_for(lambda: len(self.proxy.requests) >= seen, 10, "requests are answered")
        finally:
            self.proxy.before = lambda _method, _path: None

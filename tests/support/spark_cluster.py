"""A standalone Spark cluster out of the installed PySpark: a master and workers, real processes.

Executors run an interpreter of their own that has the dependencies of the package and not the
package, as the nodes of a cluster do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.command_line import ROOT
from tests.support.java import spark_environment
from tests.support.timeouts import scaled, wait_for

_START_SECONDS = 60
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_MASTER_UI = re.compile(r"MasterWebUI to \S+, and started at (http://\S+)")
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    `master`: its ``spark://`` address. `ui`: the address of the master's web UI. `folder`: logs of
    the master and the workers; ``work-N`` of a worker's executors. `workers`: the processes of the
    workers. `add_worker` starts another one.
    """

    master: str
    ui: str
    folder: Path
    workers: list[int]
    add_worker: Callable[[], None]

    def executors(self) -> list[int]:
        """Return the processes of all executors that run now."""
        return [
            pid
            for pid in _pids()
            if _parent(pid) in self.workers and "CoarseGrainedExecutorBackend" in _command(pid)
        ]

    def running_workers(self) -> list[int]:
        """Return the processes of the workers that have not been killed."""
        return [pid for pid in self.workers if "deploy.worker.Worker" in _command(pid)]

    def wait_for_workers(self, count: int) -> None:
        """Wait until the master knows so many workers as alive."""
        wait_for(lambda: _alive_workers(self.ui) == count, _START_SECONDS, f"{count} workers")

    def executor_logs(self) -> set[Path]:
        """Return the files in which all executors until now have their stderr."""
        return set(self.folder.glob("work-*/*/*/stderr"))


@contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 2, wrapper: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Start a master and workers with a core each; kill them at the end.

    `folder`: for logs and working folders. `workers`: how many workers. `wrapper`: command that
    starts the workers, such as ``unshare``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        address = ["--host", "127.0.0.1"]
        log = folder / "master.log"
        stack.enter_context(
            _daemon(log, ["Master", *address, "--port", "0", "--webui-port", "0"], ())
        )
        wait_for(lambda: _find(_MASTER_UI, log), _START_SECONDS, f"a master, see {log}")
        master, ui = (str(_find(pattern, log)) for pattern in (_MASTER_URL, _MASTER_UI))
        started: list[int] = []

        def add_worker() -> None:
            number = len(started)
            resources = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
            where = ["--work-dir", str(folder / f"work-{number}")]
            arguments = ["Worker", *address, *resources, *where, master]
            log = folder / f"worker-{number}.log"
            started.append(stack.enter_context(_daemon(log, arguments, wrapper)))

        for _ in range(workers):
            add_worker()
        cluster = Cluster(master, ui, folder, started, add_worker)
        cluster.wait_for_workers(workers)
        yield cluster


def executor_python(folder: Path, *, without: Sequence[str] = ()) -> Path:
    """Make an interpreter that has what this one has installed, but not the package.

    `folder`: a new folder. `without`: modules that it does not find either.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # Only their folders: what .pth files in there add, such as this checkout, is not followed.
    result = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (site_packages / "dependencies.pth").write_text("\n".join(result) + "\n")
    for name in without:
        hidden = site_packages / "hidden" / name
        hidden.mkdir(parents=True)
        (hidden / "__init__.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{name}'\", name={name!r})\n"
        )
        (site_packages / "hidden.pth").write_text(
            f"import sys; sys.path.insert(0, {str(site_packages / 'hidden')!r})\n"
        )
    return folder / "bin" / "python"


def driver_environment(python: Path) -> dict[str, str]:
    """Return the environment of a driver whose executors use an interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **spark_environment(),
    }


@contextmanager
def _daemon(log: Path, arguments: Sequence[str], wrapper: Sequence[str]) -> Iterator[int]:
    name, *options = arguments
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name.lower()}.{name}", *options]
    # Nothing of this checkout reaches an executor but through Spark.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "SPARK_HOME": str(SPARK_CLASS.parents[1]),
        "SPARK_PUBLIC_DNS": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        **spark_environment(),
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [*wrapper, *command],
            env=environment,
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=scaled(10))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _find(pattern: re.Pattern[str], log: Path) -> str | None:
    match = pattern.search(log.read_text())
    return None if match is None else match[1]


def _alive_workers(ui: str) -> int:
    with urllib.request.urlopen(f"{ui}/json/", timeout=scaled(5)) as answer:  # noqa: S310, ours
        return int(json.load(answer)["aliveworkers"])


def processes_of(python: Path) -> list[int]:
    """Return the processes that run an interpreter."""
    return [pid for pid in _pids() if _command(pid).startswith(f"{python} ")]


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [each for each in _pids() if _parent(each) == pid]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def package_zip(path: Path) -> Path:
    """Make what ``--py-files`` takes."""
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((ROOT / "kafka_index").rglob("*")):
            if source.suffix in {".py", ".properties", ".typed"}:
                archive.write(source, source.relative_to(ROOT))
    return path

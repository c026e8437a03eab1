"""Real builds: started, watched, stopped, killed; and what they leave in a folder."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import COMMAND, DUMP, Argument, environment
from tests.support.gates import Gate, StopInScan
from tests.support.timeouts import TIMEOUT_SECONDS

# A process of root without root's right to read and write everything (CAP_DAC_OVERRIDE,
# CAP_DAC_READ_SEARCH, dropped from what a program started here can have).
_WITHOUT_PRIVILEGES = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start(
    *arguments: Argument,
    command_name: str = "build",
    privileged: bool = True,
    gate: Gate | StopInScan | None = None,
) -> subprocess.Popen[str]:
    """Start the command line, in a session of its own; it may stop at a gate."""
    command = [*COMMAND, command_name, *map(str, arguments)]
    if not privileged:
        command = [sys.executable, "-c", _WITHOUT_PRIVILEGES, *command[1:]]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() if gate is None else gate.on_the_way_of(environment()),
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def build(*arguments: Argument, privileged: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return finish(start(*arguments, privileged=privileged))


def build_with_report(
    build: Callable[..., subprocess.CompletedProcess[str]], folder: Path, *arguments: Argument
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Build, and return the rows of the report too, by path and offset."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    result = build(*arguments, "--report", report)
    if not report.exists():
        return result, []
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    return result, sorted(rows, key=lambda row: (row["log_path"], row["segment_base_offset"]))


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and every other one of its session, and wait until all of them are gone."""
    while others := session(process.pid):
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.poll()
        time.sleep(0.001)
    process.communicate()


def session(leader: int) -> list[int]:
    """Return the processes of the session of a process that we started, zombies left out."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == leader and state != "Z":
                result.append(int(entry.name))
    return result


def workers_of(leader: int) -> list[int]:
    """Return the workers that the daemon of a session's executors has forked."""
    parents = {pid: _status(pid) for pid in session(leader)}
    daemons = {
        pid for pid, (_, command) in parents.items() if "kafka_index.spark.daemon" in command
    }
    return [pid for pid, (parent, _) in parents.items() if parent in daemons]


def _status(pid: int) -> tuple[int, str]:
    """Return the parent of a process and its command line."""
    folder = Path("/proc", str(pid))
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        return parent, (folder / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return 0, ""


# ----------------------------------------------------------------------------------- folders


def names(root: Path) -> Iterator[str]:
    """Names of all files below a folder, with their way there; quick, for watching."""
    try:
        with os.scandir(root) as entries:
            folders = [entry.path for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return
    for folder in folders:
        for name in os.listdir(folder):
            yield f"{os.path.basename(folder)}/{name}"


def published(root: Path) -> set[str]:
    return {name for name in names(root) if name.endswith(".index")}


def leftover_files(root: Path) -> list[str]:
    """The files that no finished run may leave."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.name.endswith((".tmp", ".lock", ".probe", ".shared"))
    )


def state(root: Path) -> dict[str, tuple[int, int, int, int, int]]:
    """Everything below a folder: what it is, its size, when it was written, and by which file."""
    result = {}
    for path in (root, *sorted(root.rglob("*"))):
        at = path.lstat()
        result[str(path.relative_to(root))] = (
            at.st_mode,
            at.st_uid,
            at.st_size if path.is_file() else 0,
            at.st_mtime_ns,
            at.st_ino,
        )
    return result


def state_files(folder: Path) -> dict[str, bytes]:
    """The files of a partition's folder about producers, transactions and leader epochs."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in (".txnindex", ".snapshot") or path.name == "leader-epoch-checkpoint"
    }


def copy_dump(target: Path, *, copies: int = 1) -> Path:
    """Copy the example dump without its indexes, each partition several times."""
    for folder in sorted(path for path in DUMP.iterdir() if path.is_dir()):
        topic, _, partition = folder.name.rpartition("-")
        for number in range(copies):
            copy = target / f"{topic}-{int(partition) + 10 * number}"
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.index", "*.timeindex"))
    return target


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system with so much room."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        if "CI" in os.environ:
            pytest.fail("cannot mount a tmpfs here, and these tests must not be skipped in CI")
        pytest.skip("CANNOT MOUNT a tmpfs: what a build does on a full disk is NOT tested")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def xfs_disk(folder: Path) -> Iterator[Path]:
    """A file system that shares blocks between files, 80 MB of it free.

    The image is what ``mkfs.xfs --unsupported -m reflink=1`` of xfsprogs 6.1 makes of 96 MiB.
    """
    image = folder.with_suffix(".img")
    with lzma.open(Path(__file__).with_name("xfs.img.xz")) as packed, image.open("wb") as file:
        shutil.copyfileobj(packed, file)
    folder.mkdir()
    command = ["mount", "-o", "loop,nouuid", str(image), str(folder)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(f"CANNOT MOUNT XFS: clones of logs are NOT tested: {result.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

"""Files that cannot be read although others tell much of them: the run fails, and names them.

What a command would conclude without them is a wrong answer, and a permission is no damage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_index.cli.exit_status import ExitCode
from tests.support.child_processes import enforce_permissions
from tests.support.command_line import Argument, run_here
from tests.support.restoring import copy_dump
from tests.support.tiered import Setting, setting

PARTITION = "payments-0"
QUESTION = ("--topic", "payments", "--partition", 0, "--offset", 5)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "data", PARTITION)


def lost_log(data: Path) -> Path:
    """Remove a log in the middle, and return its index."""
    log = sorted((data / PARTITION).glob("*.log"))[1]
    log.unlink()
    return log.with_suffix(".index")


def epochs(data: Path) -> Path:
    return data / PARTITION / "leader-epoch-checkpoint"


def swapped_log(data: Path) -> Path:
    log = sorted((data / PARTITION).glob("*.log"))[1]
    return log.rename(f"{log}.swap")


def moved_partition(data: Path) -> Path:
    """Put a link in the place of a partition; return the folder that it leads to."""
    place = data / "elsewhere"
    place.mkdir()
    shutil.move(data / PARTITION, place / PARTITION)
    (data / PARTITION).symlink_to(place / PARTITION)
    return place


def last_log(data: Path) -> Path:
    return max((data / PARTITION).glob("*.log"))


LATE = ("--from", "2099-01-01")


@pytest.mark.parametrize(
    ("made", "command", "arguments"),
    [
        (last_log, "find", ("--input", "DATA", "--key", "x", *LATE)),
        (last_log, "cat", ("payments", "--input", "DATA", "--tail")),
        (last_log, "export", ("--input", "DATA", "--output", "OUT", *LATE)),
        (lost_log, "verify", ("--input", "DATA")),
        (lost_log, "predict", ("--input", "DATA")),
        (lost_log, "restore", ("--input", "DATA", "--output", "OUT", "--new-topic-ids")),
        (epochs, "lookup", ("--logs", "DATA", *QUESTION)),
        (swapped_log, "verify", ("--input", "DATA")),
        (moved_partition, "verify", ("--input", "DATA")),
        (moved_partition, "build", ("--input", "DATA", "--output", "OUT")),
    ],
)
def test_unreadable_file_is_reported_as_retriable(
    data: Path,
    tmp_path: Path,
    made: Callable[[Path], Path],
    command: str,
    arguments: tuple[Argument, ...],
) -> None:
    unread = made(data)
    names = {"DATA": data, "OUT": tmp_path / "out"}
    options = [names.get(str(argument), argument) for argument in arguments]
    is_directory = unread.is_dir()
    unread.chmod(0)
    try:
        with enforce_permissions():
            result = run_here(command, *options)
    finally:
        unread.chmod(0o755)

    assert result.returncode == ExitCode.ENVIRONMENT, result.stdout + result.stderr
    name = PARTITION if is_directory else unread.name
    assert name in result.stdout + result.stderr


def test_unreadable_remote_manifests_are_an_environment_error(tmp_path: Path) -> None:
    at = Setting(tmp_path / "aiven-plain")
    shutil.copytree(setting("aiven-plain").path, at.path)
    (first, *_) = manifests = sorted(Path(at.remote).rglob("*.rsm-manifest"))
    for path in manifests:
        path.chmod(0)

    with enforce_permissions():
        result = run_here("find", "--tiered", at.remote, "--value-contains", "a", "--limit", 1)

    assert result.returncode == ExitCode.ENVIRONMENT, result.stdout + result.stderr
    assert first.suffix in result.stderr


def test_damaged_remote_manifest_skips_its_topic(tmp_path: Path) -> None:
    at = Setting(tmp_path / "aiven-plain")
    shutil.copytree(setting("aiven-plain").path, at.path)
    for path in Path(at.remote).rglob("*.rsm-manifest"):
        if "log_gz" in path.parent.parent.name:
            path.write_text("{")

    result = run_here("verify", "--tiered", at.remote, "--verbose")

    assert "no manifest of this topic ID can be read" in result.stdout + result.stderr
    assert result.returncode != ExitCode.ENVIRONMENT

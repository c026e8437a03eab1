"""No room for an index is an error that says so, never a signal."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_index.core.errors import PublishError
from tests.support.index_models import Kind

ROOM = 256 * 1024


@contextmanager
def small_file_system(path: Path) -> Iterator[None]:
    """A file system of 256 KiB, where we may mount one."""
    result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if result.returncode:
        pytest.skip("only root can mount a file system; the limit of a process is tested")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def small_files(_: Path) -> Iterator[None]:
    """Files of at most 256 KiB, by a limit of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(params=[small_file_system, small_files], ids=["disk", "limit"])
def size_limited_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder that takes no file of more than 256 KiB."""
    folder = tmp_path / "size_limited_folder"
    folder.mkdir()
    with request.param(folder):
        yield folder


def test_index_that_does_not_fit_cannot_be_created(kind: Kind, size_limited_folder: Path) -> None:
    with pytest.raises(PublishError, match="allocate space"):
        kind.open(size_limited_folder / "x", 1 << 20)


def test_growth_that_does_not_fit_is_an_error(kind: Kind, size_limited_folder: Path) -> None:
    index = kind.open(size_limited_folder / "x", 1 << 20, growing=True)
    with pytest.raises(PublishError, match="allocate space"):
        kind.add(index, 60_000)
    with pytest.raises(ValueError, match="closed"):
        kind.found(index, 1)
    index.close()


def test_index_that_fits_is_filled_to_the_last_entry(kind: Kind, size_limited_folder: Path) -> None:
    index = kind.open(size_limited_folder / "x", ROOM // 2, growing=True)
    kind.add(index, index.max_entries)
    assert kind.found(index, 10**6) == index.entries - 1
    index.close()

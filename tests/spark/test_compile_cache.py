"""Compiled kernels are cached by content, wherever the package is and whoever writes at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.support.spark_cluster import package_zip
from tests.support.timeouts import TIMEOUT_SECONDS

#: Compiles one kernel and prints how often it came from the cache; the packages are in no prefix.
PROBE = """
import sys
sys.prefix = sys.argv[1]
import numpy as np
from kafka_index.core.kernels.search import is_ascending
nothing = np.empty(0, np.int64)
is_ascending(nothing)
print(sum(is_ascending.stats.cache_hits.values()), is_ascending.stats.cache_path)
"""


#: Keeps a kernel for all users of an installation, then finds it as a user who cannot write.
SHARED = """
import os, sys, tempfile
sys.prefix, tempfile.tempdir = sys.argv[1], os.environ["TMPDIR"]
from kafka_index.core.kernels import compile_cache
if sys.argv[2] == "keep":
    compile_cache.keep_in_shared_folder()
else:
    assert compile_cache.cache_folders().writable is None
"""


def _start(
    package: Path, cache: Path, program: str = PROBE, arguments: tuple[str, ...] = ("/nonexistent",)
) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {
        "PYTHONPATH": str(package),
        "XDG_CACHE_HOME": str(cache),
        "TMPDIR": str(cache),
        "NUMBA_DISABLE_JIT": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-P", "-c", program, *arguments],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _probe(package: Path, cache: Path) -> list[str]:
    process = _start(package, cache)
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, errors) == (0, "")
    return output.split()


@pytest.fixture(scope="module")
def compiled_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package, and beside it a cache with the kernel that was compiled."""
    folder = tmp_path_factory.mktemp("compiled_package")
    assert _probe(package_zip(folder / "a.zip"), folder / "cache")[0] == "0"
    return folder


def _nowhere(folder: Path) -> Path:
    """A place in which nobody can make a folder, not even root."""
    file = folder / "file"
    file.touch()
    return file / "below"


def test_next_zip_of_the_same_content_compiles_nothing(
    compiled_package: Path, tmp_path: Path
) -> None:
    assert _probe(package_zip(tmp_path / "b.zip"), compiled_package / "cache")[0] == "1"


def test_concurrent_processes_leave_a_valid_kernel_cache(tmp_path: Path) -> None:
    package, cache = package_zip(tmp_path / "a.zip"), tmp_path / "cache"

    for process in [_start(package, cache) for _ in range(3)]:
        process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0

    assert _probe(package, cache)[0] == "1"
    assert list(cache.rglob("*.tmp")) == []


@pytest.mark.parametrize("spoil", [b"", b"\0" * 100], ids=["empty", "zeros"])
def test_damaged_cache_file_is_compiled_again(
    compiled_package: Path, tmp_path: Path, spoil: bytes
) -> None:
    package, cache = (
        compiled_package / "a.zip",
        shutil.copytree(compiled_package / "cache", tmp_path / "cache"),
    )
    for path in cache.rglob("*.bin"):
        path.write_bytes(spoil)

    assert _probe(package, cache)[0] == "0"
    assert _probe(package, cache)[0] == "1"


@pytest.mark.parametrize(
    ("changed", "hits"),
    [
        ("core/kernels/search.py", "0"),
        ("core/kernels/memory.py", "0"),
        ("core/kernels/scan.py", "1"),
    ],
)
def test_kernel_is_compiled_again_when_a_module_that_it_imports_changes(
    compiled_package: Path, tmp_path: Path, changed: str, hits: str
) -> None:
    package, cache = (
        tmp_path / "package",
        shutil.copytree(compiled_package / "cache", tmp_path / "cache"),
    )
    shutil.copytree(ROOT / "kafka_index", package / "kafka_index")
    with (package / "kafka_index" / changed).open("a") as source:
        source.write("# changed\n")

    assert _probe(package, cache)[0] == hits


def test_cache_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    package = package_zip(tmp_path / "a.zip")
    program = "import os, tempfile; tempfile.tempdir = os.environ['TMPDIR']" + PROBE
    process = _start(package, _nowhere(tmp_path), program)
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output.split()[0]) == (0, "0")
    assert errors.count("\n") == 1
    assert "NUMBA_CACHE_DIR" in errors


def test_packaged_kernels_are_used_if_the_cache_is_unwritable(
    tmp_path: Path,
) -> None:
    package, prefix = package_zip(tmp_path / "a.zip"), tmp_path / "prefix"

    def hits(step: str, cache: Path) -> tuple[str, str]:
        process = _start(package, cache, SHARED + PROBE, (str(prefix), step))
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, errors
        return output.split()[0], errors

    assert hits("keep", tmp_path / "cache") == ("0", "")
    assert hits("find", _nowhere(tmp_path)) == ("1", "")
    assert not (tmp_path / "cache").exists()
    for folder in prefix.rglob("kernels-*"):
        folder.chmod(0o777)
    assert hits("find", tmp_path / "file" / "below")[0] == "0"

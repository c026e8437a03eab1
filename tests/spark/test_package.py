"""The zip that is sent to executors: the same bytes for the same sources, and all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kafka_index.spark.session import package_file
from tests.support.command_line import ROOT
from tests.support.timeouts import scaled

PRINT_PACKAGE = """
import shutil, sys
from kafka_index.spark.session import package_file
print(package_file().name)
shutil.copy(package_file(), sys.argv[1])
"""


def _packed_by(path: str, copy: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", PRINT_PACKAGE, copy],
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(10),
    ).stdout.strip()


def test_package_zip_contains_every_module() -> None:
    with zipfile.ZipFile(package_file()) as archive:
        names = set(archive.namelist())
    modules = (ROOT / "kafka_index").rglob("*.py")
    assert {str(path.relative_to(ROOT)) for path in modules} <= names
    assert "kafka_index/spark/log4j2.properties" in names


def test_package_zip_is_reproducible_from_source_and_zip(tmp_path: Path) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    name = _packed_by(str(ROOT), first)
    assert name == package_file().name
    assert first.read_bytes() == package_file().read_bytes()
    assert _packed_by(str(first), second) == name
    assert second.read_bytes() == first.read_bytes()


def test_zip_is_removed_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    _packed_by(str(ROOT), tmp_path / "copy.zip")
    assert list(temporary.iterdir()) == []

"""``make versions`` installs both ends of the accepted ranges."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tools.versions import environment
from tools.versions.environment import DEBIAN, make, python_versions, requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = (ROOT / "tools/versions/lowest.txt").read_text()
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", LINES, re.MULTILINE))


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_lowest_version_of_a_dependency_is_pinned(requirement: str) -> None:
    result = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?", requirement)
    assert result is not None
    name, lowest = result.groups()
    assert f"{PINS[name]}.".startswith(f"{lowest}.")


def test_every_version_of_python_that_is_accepted_is_a_classifier() -> None:
    lowest, newest = (int(version.removeprefix("3.")) for version in python_versions())
    prefix = "Programming Language :: Python :: 3."
    named = [int(line[len(prefix) :]) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert named == list(range(lowest, newest + 1))


def test_lowest_and_newest_python_can_be_downloaded() -> None:
    assert set(python_versions()) <= set(DEBIAN)


def test_newest_and_lowest_requirements_have_the_same_packages() -> None:
    asked = requirements("newest")
    assert not [line for line in asked if "==" in line]
    assert set(PROJECT["dependencies"]) < set(asked)
    assert {re.split(r"[<>\[]", line)[0] for line in asked} >= set(PINS)


class Downloads:
    """In place of Debian's mirror, and of pip: the version that is wanted exists only there."""

    def __init__(self, folder: Path) -> None:
        self.are_down = True
        self.installed: list[list[str]] = []
        self._python = folder / "python3.99"
        self._python.write_text("#!/bin/sh\necho 3.99\n")
        self._python.chmod(0o755)

    def debian_python(self, version: str, folder: Path) -> Path:
        assert version == folder.name.removeprefix("python") == "3.99"
        if self.are_down:
            raise OSError("the mirror is down")
        return self._python

    def install(self, folder: Path, python: Path, asked: list[str]) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(python)
        self.installed.append(asked)


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    double = Downloads(tmp_path)
    monkeypatch.setattr(environment, "python_versions", lambda: ("3.99", "3.99"))
    monkeypatch.setattr(environment, "_debian_python", double.debian_python)
    monkeypatch.setattr(environment, "_install", double.install)
    return double


def test_environment_of_another_python_is_reported_in_each_run(
    downloads: Downloads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _run in range(2):
        make("newest", tmp_path / "newest")
        line = capsys.readouterr().err
        assert line.startswith("WARNING: Python 3.99 is not on this machine")
        assert "the mirror is down" in line
    assert len(downloads.installed) == 1


def test_environment_of_another_python_is_replaced_once_the_required_python_is_available(
    downloads: Downloads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("newest", tmp_path / "newest")
    capsys.readouterr()
    downloads.are_down = False
    for _run in range(2):
        make("newest", tmp_path / "newest")
        assert capsys.readouterr().err == ""
    assert (tmp_path / "newest" / "bin" / "python").readlink().name == "python3.99"
    assert len(downloads.installed) == 2


def test_environment_with_a_broken_python_is_recreated(
    downloads: Downloads, tmp_path: Path
) -> None:
    downloads.are_down = False
    make("newest", tmp_path / "newest")
    python = tmp_path / "newest" / "bin" / "python"
    python.unlink()
    make("newest", tmp_path / "newest")
    assert python.exists()


def test_lowest_libraries_are_requested_on_the_lowest_python_only(
    downloads: Downloads, tmp_path: Path
) -> None:
    make("lowest", tmp_path / "lowest")
    downloads.are_down = False
    make("lowest", tmp_path / "lowest")
    assert downloads.installed == [requirements("newest"), requirements("lowest")]

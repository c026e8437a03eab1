"""What ``make versions`` installs is both ends of what the package accepts."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.command_line import ROOT
from tools.versions.environment import DEBIAN, python_versions, requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = (ROOT / "tools/versions/lowest.txt").read_text()
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", LINES, re.MULTILINE))


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_the_lowest_version_of_a_dependency_is_pinned(requirement: str) -> None:
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?", requirement)
    assert found is not None
    name, lowest = found.groups()
    assert f"{PINS[name]}.".startswith(f"{lowest}.")


def test_every_version_of_python_that_is_accepted_is_a_classifier() -> None:
    lowest, newest = (int(version.removeprefix("3.")) for version in python_versions())
    prefix = "Programming Language :: Python :: 3."
    named = [int(line[len(prefix) :]) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert named == list(range(lowest, newest + 1))


def test_python_of_both_ends_can_be_fetched() -> None:
    assert set(python_versions()) <= set(DEBIAN)


def test_the_newest_end_has_the_packages_of_the_lowest_within_what_is_accepted() -> None:
    asked = requirements("newest")
    assert not [line for line in asked if "==" in line]
    assert set(PROJECT["dependencies"]) < set(asked)
    assert {re.split(r"[<>\[]", line)[0] for line in asked} >= set(PINS)

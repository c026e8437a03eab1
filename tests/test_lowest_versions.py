"""What ``make versions`` installs is the low end of what the package accepts."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.command_line import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = (ROOT / "tools/versions/lowest.txt").read_text()
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", LINES, re.MULTILINE))


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_the_lowest_version_of_a_dependency_is_pinned(requirement: str) -> None:
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?", requirement)
    assert found is not None
    name, lowest = found.groups()
    assert f"{PINS[name]}.".startswith(f"{lowest}.")

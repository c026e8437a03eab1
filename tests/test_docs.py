"""Pages of the documentation against the code that they describe."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import kafka_index

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROWS = re.findall(
    r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)


@cache
def texts() -> str:
    """All texts in the code, formatted ones in their parts, each after a line feed."""
    return "\n".join(
        node.value
        for path in sorted((ROOT / "kafka_index").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize("message", ROWS)
def test_a_message_to_look_up_is_one_of_the_code(message: str) -> None:
    parts = [part for part in message.split("…") if part.strip(" :()/")]
    assert [part for part in parts if part not in texts()] == []


def test_the_versions_are_those_that_pip_accepts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "versions.md").read_text(encoding="utf-8")
    accepted = [project["requires-python"], *project["dependencies"]]
    ranges = re.findall(r"`([a-z]*>=[^`]*)`", page)
    assert ranges
    assert [each for each in ranges if each not in accepted] == []


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: kafka_index\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == [name for name in dir(kafka_index) if not name.startswith("_")]


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r": ([a-z]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.name for path in DOCS.glob("*.md")} | {"changelog.md"}
    assert sorted(navigation) == sorted(pages)

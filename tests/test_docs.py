"""Pages of the documentation against the code that they describe."""

from __future__ import annotations

import ast
import doctest
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import kafka_index
from tools.docs import api_page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROWS = re.findall(
    r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)
PUBLIC_NAMES = [name for name in dir(kafka_index) if not name.startswith("_")]
#: The functions of commands, each with an example.
FUNCTIONS = (
    "build_indexes",
    "export_records",
    "find_records",
    "import_records",
    "list_partitions",
    "lookup_offsets",
    "lookup_timestamps",
    "predict",
    "read_metadata",
    "restore_dump",
    "rewrite_dump",
    "verify",
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


def test_the_reference_is_written_from_the_docstrings() -> None:
    assert (DOCS / "api.md").read_text(encoding="utf-8") == api_page.page()


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^### kafka_index\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == PUBLIC_NAMES


@pytest.mark.parametrize("name", [name for name in PUBLIC_NAMES if name in FUNCTIONS])
def test_the_example_of_a_function_runs_on_the_example_dump(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    function = getattr(kafka_index, name)
    names = {"kafka_index": kafka_index}
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=names)
    assert example.examples
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=printed.append).failed == 0, "".join(printed)


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r": ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.name for path in DOCS.glob("*.md")} | {"changelog.md"}
    assert sorted(navigation) == sorted(pages)


def test_a_page_is_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in DOCS.glob("*.md")}
    # The first is written from docstrings.
    exceptions = {"api.md", "architecture.md"}
    assert {name for name, lines in lengths.items() if lines > 200} <= exceptions


def test_a_message_names_pages_that_are_there() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "kafka_index").rglob("*.py"))
    named = re.findall(r"help_page\(['\"](\w+)['\"]\)", code)
    assert len(named) >= 9
    assert [name for name in named if not (DOCS / f"{name}.md").is_file()] == []
    # An installation has no folder of pages beside it.
    assert "docs/" not in texts()

"""The page on the architecture names rooms and modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "kafka_index"
MODULES = sorted(set(re.findall(r"`([a-z0-9_/]+\.py|[a-z0-9_]+/)`", PAGE)) - {"jobs/"})
DOTTED = sorted(
    name for name in set(re.findall(r"`([a-z]+\.[a-z0-9_]+)`", PAGE)) if not name.endswith(".py")
)


@pytest.mark.parametrize("name", MODULES)
def test_a_home_in_the_table_of_rules_exists(name: str) -> None:
    assert (PACKAGE / name).exists()


@pytest.mark.parametrize("name", DOTTED)
def test_a_module_in_the_text_exists(name: str) -> None:
    module, _, member = name.partition(".")
    folder = PACKAGE / module
    if folder.is_dir():
        assert (folder / f"{member}.py").is_file()
    else:
        assert f"def {member}(" in (PACKAGE / f"{module}.py").read_text(encoding="utf-8")


def test_every_room_has_a_row() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    rows = set(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE))
    assert rooms <= rows

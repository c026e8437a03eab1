"""The page on the architecture names rooms and modules that exist, and packages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_index.core.format import names

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "kafka_index"
MODULES = sorted(set(re.findall(r"`([a-z0-9_/]+\.py|[a-z0-9_]+/)`", PAGE)) - {"jobs/"})
FILES = {names.META_PROPERTIES, names.PARTITION_METADATA}
DOTTED = sorted(
    name
    for name in set(re.findall(r"`((?:api|cli|commands|core|spark)\.[a-z0-9_.]+)`", PAGE)) - FILES
    if not name.endswith(".py")
)


@pytest.mark.parametrize("name", MODULES)
def test_module_in_the_rules_table_of_the_architecture_page_exists(name: str) -> None:
    assert (PACKAGE / name).exists()


@pytest.mark.parametrize("name", DOTTED)
def test_module_in_the_text_of_the_architecture_page_exists(name: str) -> None:
    path = PACKAGE.joinpath(*name.split("."))
    member = path.name
    assert (
        path.with_suffix(".py").is_file()
        or path.is_dir()
        or re.search(rf"\b{member}\b", path.parent.with_suffix(".py").read_text(encoding="utf-8"))
    )


def test_every_package_has_a_row_on_the_architecture_page() -> None:
    packages = {
        ".".join(path.parent.relative_to(PACKAGE).parts)
        for top in ("*", "core/*")
        for path in PACKAGE.glob(f"{top}/__init__.py")
    } - {"core"}
    rows = set(re.findall(r"^\| \d+ \| (.*) \|.*\|$", PAGE, re.MULTILINE))
    named = {name for row in rows for name in re.findall(r"`([a-z._]+)`", row)}
    assert packages <= named


@pytest.mark.parametrize(
    ("literal", "home"),
    [
        (names.LEADER_EPOCH_CHECKPOINT, "core/format/names.py"),
        (names.RECOVERY_POINT_CHECKPOINT, "core/format/names.py"),
        (names.REPLICATION_CHECKPOINT, "core/format/names.py"),
        (names.LOG_START_CHECKPOINT, "core/format/names.py"),
        (names.CLEANER_CHECKPOINT, "core/format/names.py"),
        (names.META_PROPERTIES, "core/format/names.py"),
        (names.PARTITION_METADATA, "core/format/names.py"),
        ("hex:", "core/format/strings.py"),
        ("base64:", "core/format/strings.py"),
    ],
)
def test_format_name_is_defined_in_one_module_only(literal: str, home: str) -> None:
    result = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if f'"{literal}"' in path.read_text(encoding="utf-8")
    ]
    assert result == [home]

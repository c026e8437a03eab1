"""The page on the architecture names rooms and modules that exist, and docstrings name things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_index.core.format import names
from tools import docstrings
from tools.docs import room_picture

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "kafka_index"
MODULES = sorted(set(re.findall(r"`([a-z0-9_/]+\.py|[a-z0-9_]+/)`", PAGE)) - {"jobs/"})
FILES = {names.META_PROPERTIES, names.PARTITION_METADATA}
DOTTED = sorted(
    name
    for name in set(re.findall(r"`([a-z]+\.[a-z0-9_]+)`", PAGE)) - FILES
    if not name.endswith(".py")
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


def test_the_picture_has_the_imports_of_the_rooms_and_all_its_arrows_go_down() -> None:
    text = room_picture.PICTURE.read_text(encoding="utf-8")
    drawn = re.findall(r'd="M\d+ (\d+)L\d+ (\d+)".*?<title>(\w+) imports from (\w+)</title>', text)
    assert {(source, target) for *_, source, target in drawn} == room_picture.arrows(), (
        "python -m tools.docs.room_picture draws them anew"
    )
    assert all(int(top) < int(bottom) for top, bottom, *_ in drawn)
    rooms = {room for layer in room_picture.layers() for room in layer}
    assert set(re.findall(r"<text [^>]*>(\w+)</text>", text)) == rooms


@pytest.mark.parametrize(
    ("literal", "home"),
    [
        (names.LEADER_EPOCH_CHECKPOINT, "layout/names.py"),
        (names.RECOVERY_POINT_CHECKPOINT, "layout/names.py"),
        (names.REPLICATION_CHECKPOINT, "layout/names.py"),
        (names.LOG_START_CHECKPOINT, "layout/names.py"),
        (names.CLEANER_CHECKPOINT, "layout/names.py"),
        (names.META_PROPERTIES, "layout/names.py"),
        (names.PARTITION_METADATA, "layout/names.py"),
        ("hex:", "layout/texts.py"),
        ("base64:", "layout/texts.py"),
    ],
)
def test_a_name_of_a_format_is_written_in_its_home_alone(literal: str, home: str) -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if f'"{literal}"' in path.read_text(encoding="utf-8")
    ]
    assert found == [home]


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        ("What a batch says.", True),
        ("Return those that overlap.", True),
        ("The end. Of a damaged log, the last batch counts.", True),
        ("The largest of those that overlap.", True),
        ("A log as one that was cut.", True),
        ("Return what there is to publish.", True),
        ("Whatever a read that finds what a log that was cut has.", True),
        ("Whether the log is whole.", False),
        ('The messages ``those that`` and "one that".', False),
        ("The end of a log; of two that overlap, the later one.", False),
    ],
)
def test_a_docstring_names_the_thing_first(text: str, is_fault: bool) -> None:  # noqa: FBT001
    assert bool(list(docstrings.faults(text))) == is_fault


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'def ends() -> int:\n    """Return whether it ends."""\n'),
        ("a.py", "END = 1\n# Of a log, the end.\n"),
        ("a.py", "# The log that\n# comes after those that\n# are cut.\n"),
        ("a.py", 'option(help="The logs, without those " "that are cut.")\n'),
        ("a.md", "# Ends\n\n| the end | of those\nthat are cut |\n"),
    ],
)
def test_comments_help_and_pages_are_checked_too(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    assert len(list(docstrings.check(tmp_path / name))) == 1


def test_code_in_a_page_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("A command:\n\n```\nthose that\n```\n\n    those that\n")
    assert list(docstrings.check(tmp_path / "a.md")) == []


def test_all_texts_name_the_thing_first() -> None:
    assert docstrings.check_all() == []

"""``help`` prints the pages of the documentation."""

from __future__ import annotations

import pytest

from tests.support.command_line import ROOT, run_here

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("name", ["lookup", "lookup-tables"])
def test_a_page_is_printed_as_it_is(name: str) -> None:
    done = run_here("help", name)
    assert (done.returncode, done.stdout) == (0, PAGES[name])


def test_without_a_page_each_is_listed_with_its_title() -> None:
    lines = run_here("help").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(PAGES)
    assert next(line for line in lines if line.startswith("dump ")).endswith("  Look into files")


def test_a_page_that_is_not_there_is_wrong_usage_and_the_error_names_those_that_are() -> None:
    done = run_here("help", "look")
    assert done.returncode == 2
    assert "lookup, " in done.stderr

"""The common parts of the pages of all commands: see `pages.page`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kafka_index.cli.run_summary import run_summary
from kafka_index.pages import Page, PageWriter
from kafka_index.pages.page import Explained, Severity
from kafka_index.storage.report_file import PageMaker

GOOD, NOTABLE, BAD = Severity.GOOD, Severity.NOTABLE, Severity.BAD
#: The command that shows more about a file.
DUMP = "kafka-index dump {path}"


def explain(
    texts: Mapping[str, str], severities: Mapping[str, Severity], commands: Mapping[str, str]
) -> dict[str, Explained]:
    """Return what a page explains: of each value its text, its severity, and a command."""
    return {
        str(name): Explained(severities[str(name)], text, commands.get(str(name)))
        for name, text in texts.items()
    }


def page_maker(page: Page) -> PageMaker:
    """Return the maker of a page of this run."""
    return partial(PageWriter, page, run_summary().about())

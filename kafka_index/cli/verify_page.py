"""The page of ``verify --report FILE.html``."""

from __future__ import annotations

import re

from kafka_index.cli.report_page import BAD, DUMP, GOOD, NOTABLE, explain, page_maker
from kafka_index.cli.text import plural
from kafka_index.cli.verify_summary import EXPLAINED
from kafka_index.pages.page import Page, Totals, Verdict
from kafka_index.storage.report_file import PageMaker
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.verification import FileClass, FileKind


def verify_page(segments: SegmentTable, topics: re.Pattern[str] | None) -> PageMaker:
    """Return the maker of the page of ``verify`` for these segments of these topics."""
    where = "" if topics is None else f" in the topics that match {topics.pattern!r}"
    good = (FileClass.IDENTICAL, FileClass.SOUND, FileClass.VALID, FileClass.PREFIX)
    severities = dict.fromkeys(map(str, EXPLAINED), NOTABLE)
    severities |= dict.fromkeys(map(str, good), GOOD)
    # A file that is not there cannot be dumped.
    dumped = [name for name in severities if name != FileClass.MISSING]
    explained = explain(EXPLAINED, severities, dict.fromkeys(dumped, DUMP))

    def verdict(totals: Totals) -> Verdict:
        if totals.bad or totals.bad_others:
            return Verdict(
                BAD,
                f"{plural(totals.bad, 'harmful file')}, "
                f"{plural(totals.bad_others, 'partition')} with harm",
            )
        if unread := totals.found[FileClass.UNREADABLE]:
            return Verdict(NOTABLE, f"{plural(unread, 'file')} could not be read")
        return Verdict(GOOD, f"nothing harmful was found{where}")

    kinds = tuple(kind.value for kind in FileKind if kind is not FileKind.PARTITION)
    page = Page(
        "verify",
        "files",
        ("class",),
        explained,
        verdict,
        units="kind",
        unit_values=kinds,
        worst_where="harmful",
        segments=lambda: (each.rows() for each in segments.partitions),
    )
    return page_maker(page)

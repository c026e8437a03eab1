"""The page of ``build --report FILE.html``."""

from __future__ import annotations

from kafka_index.build.report import BUILT, FAILED, TRUNCATED, UNCHANGED
from kafka_index.build.report_writer import SEGMENT, SKIPPED
from kafka_index.cli.build_summary import EXPLAINED
from kafka_index.cli.report_page import BAD, GOOD, NOTABLE, explain, page_maker
from kafka_index.cli.text import plural
from kafka_index.pages.page import Explained, Page, Totals, Verdict
from kafka_index.storage.report_file import PageMaker


def build_page() -> PageMaker:
    """Return the maker of the page of ``build``, whose rows are the segments."""
    severities = {BUILT: GOOD, UNCHANGED: GOOD, TRUNCATED: BAD, FAILED: BAD}
    explained = explain(
        EXPLAINED, severities, dict.fromkeys(severities, "kafka-index dump {log_path}")
    )
    explained[SKIPPED] = Explained(NOTABLE, "not a live log, passed over")

    def verdict(totals: Totals) -> Verdict:
        if totals.bad:
            return Verdict(BAD, f"{plural(totals.bad, 'segment')} of {totals.units:,} damaged")
        return Verdict(GOOD, f"{plural(totals.units, 'segment')} built, no damage found")

    page = Page(
        "build", "segments", ("status",), explained, verdict, units="kind", unit_values=(SEGMENT,)
    )
    return page_maker(page)

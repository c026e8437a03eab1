"""The page of ``lookup --report FILE.html``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kafka_index.cli.lookup_summary import EXPLAINED
from kafka_index.cli.report_page import BAD, DUMP, GOOD, NOTABLE, explain, page_maker
from kafka_index.cli.text import plural
from kafka_index.lookup import Inventory
from kafka_index.pages.page import Page, SegmentBatches, Totals, Verdict
from kafka_index.reading.answers import INDEX_REFUSED, NO_INDEX, TAIL, UNREADABLE, Status
from kafka_index.storage.report_file import PageMaker
from kafka_index.storage.segment_table import PartitionSegments


def lookup_page(inventory: Inventory) -> PageMaker:
    """Return the maker of the page of ``lookup`` over the logs of an inventory."""
    texts = {
        **{status.text: text for status, text in EXPLAINED.items()},
        NO_INDEX: "a segment without index files: built in memory",
        INDEX_REFUSED: "an index file that does not fit its log: built in memory instead",
        TAIL: "a log that ends before the end of its file",
    }
    severities = dict.fromkeys(texts, NOTABLE)
    severities |= {Status.FOUND.text: GOOD, NO_INDEX: GOOD, UNREADABLE: BAD}
    severities |= {Status.INVALID_QUERY.text: BAD, Status.LOG_END.text: GOOD}
    explained = explain(texts, severities, dict.fromkeys((INDEX_REFUSED, TAIL, UNREADABLE), DUMP))

    def verdict(totals: Totals) -> Verdict:
        queries = plural(totals.units, "query", "queries")
        if totals.bad:
            return Verdict(BAD, f"{totals.bad:,} of {queries} unreadable or malformed")
        answered = totals.found[Status.FOUND.text]
        return Verdict(GOOD, f"{queries} read, {answered:,} found")

    page = Page(
        "lookup",
        "queries",
        ("status", "finding"),
        explained,
        verdict,
        units="status",
        weight="queries",
        segments=_segments_of(inventory),
    )
    return page_maker(page)


def _segments_of(inventory: Inventory) -> SegmentBatches:
    def batches() -> Iterator[pa.RecordBatch]:
        for code in range(inventory.partitions.num_rows):
            segments = inventory.files_of(code).segments
            if segments:
                yield PartitionSegments.of(segments).rows()

    return batches

"""The page of ``restore --report FILE.html``."""

from __future__ import annotations

from kafka_index.cli.report_page import BAD, DUMP, GOOD, NOTABLE, explain, page_maker
from kafka_index.cli.restore_summary import EXPLAINED
from kafka_index.cli.text import plural
from kafka_index.pages.page import Explained, Page, Totals, Verdict
from kafka_index.restore.plan import RestorePlan
from kafka_index.restore.report import LEFT_OUT, LOST, RESTORED, SALVAGED
from kafka_index.storage.report_file import PageMaker
from kafka_index.storage.segment_table import PartitionSegments


def restore_page(plan: RestorePlan) -> PageMaker:
    """Return the maker of the page of ``restore``.

    Parameters
    ----------
    plan : RestorePlan
        What is restored.
    """
    texts = {**EXPLAINED, LOST: "a range of offsets that no log has any more"}
    severities = {RESTORED: GOOD, SALVAGED: NOTABLE, LOST: BAD, LEFT_OUT: BAD}
    explained = explain(
        texts, severities, dict.fromkeys(severities, "kafka-index verify --input {path}")
    )
    explained[LOST] = Explained(BAD, texts[LOST], DUMP)

    def verdict(totals: Totals) -> Verdict:
        partitions = plural(totals.units, "partition")
        if totals.found[LEFT_OUT] or totals.bad_others:
            lost = plural(totals.bad_others, "range")
            return Verdict(BAD, f"{lost} lost, {totals.found[LEFT_OUT]:,} of {partitions} left out")
        return Verdict(GOOD, f"{partitions} restored, nothing lost")

    page = Page(
        "restore",
        "partitions",
        ("status",),
        explained,
        verdict,
        units="status",
        unit_values=(RESTORED, SALVAGED, LEFT_OUT),
        segments=lambda: (PartitionSegments.of(each.segments()).rows() for each in plan.partitions),
    )
    return page_maker(page)

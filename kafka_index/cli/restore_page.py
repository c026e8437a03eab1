"""The page of ``restore --report FILE.html``."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.cli.report_page import BAD, DUMP, GOOD, NOTABLE, explain, page_maker
from kafka_index.cli.restore_summary import EXPLAINED, lost_texts
from kafka_index.cli.text import plural
from kafka_index.pages.page import Explained, Page, Totals, Verdict
from kafka_index.restore.job import RestoreJob
from kafka_index.restore.report import LEFT_OUT, LOST, RESTORED, SALVAGED
from kafka_index.restore.restored_partition import BEYOND_END, CLAMPED, LostRange
from kafka_index.storage.report_file import PageMaker
from kafka_index.storage.segment_table import PartitionSegments

_LOST = "a range of offsets that no log has any more"
_CLAMPED = "an offset of a group after the end of its log, set to that end"
_BEYOND_END = "an offset of a group after the end of its log, which stays"


def restore_page(job: RestoreJob, lost_ranges: Sequence[LostRange]) -> PageMaker:
    """Return the maker of the page of ``restore``; the lost ranges are there with its rows."""
    severities = {RESTORED: GOOD, SALVAGED: NOTABLE, LEFT_OUT: BAD}
    explained = explain(
        EXPLAINED, severities, dict.fromkeys(severities, "kafka-index verify --input {path}")
    )
    explained[LOST] = Explained(BAD, _LOST, DUMP)
    explained[CLAMPED] = Explained(NOTABLE, _CLAMPED)
    explained[BEYOND_END] = Explained(BAD if job.request.clamp_groups else NOTABLE, _BEYOND_END)

    until = job.request.until
    chosen = " up to --until" if until.is_given else ""
    if job.request.topics is not None:
        chosen += f" of topics that match {job.request.topics.pattern!r}"

    def verdict(totals: Totals) -> Verdict:
        partitions = plural(totals.units, "partition")
        lost, left_out = totals.others[LOST], totals.found[LEFT_OUT]
        text = f"{partitions} restored, nothing lost{chosen}"
        if lost or left_out:
            ranges = lost_texts(lost_ranges) or ([f"{plural(lost, 'range')} lost"] if lost else [])
            text = ", ".join([*ranges, f"{left_out:,} of {partitions} left out"])
        clamped, beyond = totals.others[CLAMPED], totals.others[BEYOND_END]
        if clamped:
            text += f", {plural(clamped, 'committed offset')} clamped"
        if beyond:
            text += f", {plural(beyond, 'committed offset')} after the end of a log"
        if left_out or totals.bad_others:
            return Verdict(BAD, text)
        return Verdict(NOTABLE if clamped or beyond else GOOD, text)

    page = Page(
        "restore",
        "partitions",
        ("status",),
        explained,
        verdict,
        units="status",
        unit_values=(RESTORED, SALVAGED, LEFT_OUT),
        segments=lambda: (
            PartitionSegments.of(each.segments()).rows() for each in job.plan.partitions
        ),
    )
    return page_maker(page)

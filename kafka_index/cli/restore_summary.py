"""The partitions of a restore as they are settled: progress, the summary, the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.html.page import (
    BAD,
    DUMP,
    GOOD,
    NOTABLE,
    Conclusion,
    Meaning,
    Page,
    Totals,
    explain,
)
from kafka_index.cli.html.page_writer import PageWriter
from kafka_index.cli.progress import Outcome, key_lines, skipped_lines
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import Table, first_lines, status_table
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.plan import RestorePlan, RestoreRequest
from kafka_index.commands.restore.restored_partition import (
    BEYOND_END,
    CLAMPED,
    NOT_RENAMED,
    LostRange,
    RestoredPartition,
)
from kafka_index.commands.restore.result import (
    LEFT_OUT,
    LOST,
    RESTORED,
    SALVAGED,
    RestoreResult,
    dropped_text,
    status_of,
)
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count
from kafka_index.core.format.times import time_text
from kafka_index.core.fs.inputs import BROKEN_LINK, NOT_A_FILE
from kafka_index.core.log.filter.condition import key_counts, records_by_line
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.output.report_file import PageMaker

EXPLAINED = {
    RESTORED: "all that the dump has",
    SALVAGED: "without what is damaged or missing in the dump",
    LEFT_OUT: "not in the output",
}


def _has_unread(plan: RestorePlan) -> bool:
    """Return whether entries were passed over that have the name of a log, and are no file."""
    return any(each.reason in (BROKEN_LINK, NOT_A_FILE) for each in plan.dump.skipped)


def _explained(plan: RestorePlan) -> dict[str, str]:
    """Return the meaning of each status, with what was not read."""
    whole = "all that was read of the dump" if _has_unread(plan) else EXPLAINED[RESTORED]
    return {**EXPLAINED, RESTORED: whole}


def _chosen(request: RestoreRequest) -> str:
    """Return the choices that leave out records."""
    until = " up to --until" if request.until.is_given else ""
    return f"{until} without --drop-keys" if request.drop_keys else until


class RestoreOutcome(Outcome):
    """The progress, summary and exit code of a restore; a context manager around its run."""

    def __init__(self, plan: RestorePlan, detail: Detail) -> None:
        self._plan = plan
        self._sizes = {
            each.partition: int(each.base.segments.sizes_bytes.sum()) for each in plan.partitions
        }
        super().__init__(
            len(plan.partitions),
            sum(self._sizes.values()),
            detail,
            nouns=("partition", "partitions"),
        )

    def on_restored(self, restored: RestoredPartition) -> None:
        """Count a partition that is settled; called by one thread at a time."""
        self._progress.advance(1, self._sizes.get(restored.partition, 0))

    def print_summary(self, result: RestoreResult) -> ExitCode:
        """Print the summary and the runbook, and return the exit code."""
        partitions, output, runbook = result.partitions, result.output, result.runbook
        run_summary().add_result(result)
        lines: list[str | Table] = [self._table(partitions), *self._choice_lines(partitions)]
        damage = [*self._damage_lines(partitions), *self._offset_lines(result)]
        if result.lacks_metadata:
            text = "the metadata log is damaged: a controller cuts it there, and loses what follows"
            damage += ["", text]
        if runbook is None:
            damage += ["", self._paint.bad(f"{output} is not complete: run again to continue")]
            rest = []
        else:
            # The losses come first: the runbook is long.
            rest = ["", *runbook.rstrip().splitlines()]
        if self._detail is Detail.QUIET:
            self._print([], damage)
        else:
            self._print([*lines, *damage, *rest], [])
        return ExitCode(result.outcome.exit_code)

    def _table(self, partitions: Sequence[RestoredPartition]) -> Table:
        rows = []
        for status in EXPLAINED:
            found = [each for each in partitions if status_of(each) == status]
            if found:
                size_bytes = sum(each.size_bytes for each in found)
                rows.append((status, format_count(len(found)), format_bytes(size_bytes)))
        colours = {RESTORED: self._paint.good, LEFT_OUT: self._paint.bad}
        explained = _explained(self._plan)
        explained[RESTORED] += _chosen(self._plan.request)
        return status_table(
            ("status", "partitions", "log bytes"), rows, explained, colours, self._paint
        )

    def _choice_lines(self, partitions: Sequence[RestoredPartition]) -> list[str]:
        """Return lines on the parts of the dump that the choices leave out."""
        lines = []
        until = self._plan.request.until
        if until.is_given:
            cut = sum(each.is_limited for each in partitions)
            empty = sum(each.is_limited and not each.size_bytes for each in partitions)
            place = "the offsets of --until"
            if until.time_ms is not None:
                place = f"--until {time_text(until.time_ms)}"
            lines.append(
                f"{plural(cut, 'log')} of {format_count(len(partitions))} cut at {place}"
                + (f", {format_count(empty)} of them with nothing before it" if empty else "")
            )
            run_summary().add_count("partitions_cut", cut)
        if self._plan.request.drop_keys:
            lines.append(dropped_text(partitions))
            kept = [each.dropped_by_key for each in partitions if not each.is_left_out]
            by_line = records_by_line(self._plan.request.drop_keys, kept)
            run_summary().add_counts(key_counts(by_line))
            lines += key_lines(by_line, self._paint)
        return ["", *lines] * bool(lines) + skipped_lines(
            self._plan.dump.skipped, self._paint, self._detail
        )

    def _damage_lines(self, partitions: Sequence[RestoredPartition]) -> list[str]:
        lost = [one for each in partitions for one in each.lost if not each.is_left_out]
        left_out = [each for each in partitions if each.is_left_out]
        lines = []
        for text in lost_texts(lost):
            lines += ["", self._paint.bad(text)]
        reasons = [f"{each.partition.directory_name}: {each.reason}" for each in left_out]
        title = self._paint.bad(f"{plural(len(left_out), 'partition')} left out:")
        return lines + first_lines(title, reasons, noun="partition")

    def _offset_lines(self, result: RestoreResult) -> list[str]:
        """Return the committed offsets after the ends of logs that were not clamped as asked."""
        beyond = [one for one in result.beyond_end if one.status == BEYOND_END]
        if not result.has_unclamped:
            return []
        title = self._paint.bad(f"{plural(len(beyond), 'committed offset')} not clamped:")
        return first_lines(title, [*map(str, beyond)], noun="committed offset")


def lost_texts(lost: Sequence[LostRange]) -> list[str]:
    """Return how much is lost, and how much is missing and perhaps lost; nothing for no range."""
    known = [one for one in lost if one.is_known]
    unknown = [one for one in lost if not one.is_known]
    texts = []
    if known:
        texts.append(f"{_amount(known)} lost in {plural(len(known), 'range')}")
    if unknown:
        texts.append(
            f"{_amount(unknown)} missing in {plural(len(unknown), 'range')}: whether they are lost "
            "cannot be known"
        )
    return texts


def _amount(lost: Sequence[LostRange]) -> str:
    """Return the records of ranges where the dump shows how many, and the offsets of the others."""
    records = sum(one.records or 0 for one in lost)
    rest = [one for one in lost if one.records is None]
    sized = [
        one.last_offset - one.first_offset + 1
        for one in rest
        if one.first_offset is not None and one.last_offset is not None
    ]
    amounts = []
    if records or not rest:
        amounts.append(plural(records, "record"))
    if sized:
        amounts.append(plural(sum(sized), "offset"))
    if len(sized) == len(rest):
        return " and ".join(amounts)
    return f"at least {' and '.join(amounts)}" if amounts else "an unknown number of records"


def restore_page(job: RestoreJob, lost_ranges: Sequence[LostRange]) -> PageMaker:
    """Return the maker of the page of ``restore``; the lost ranges are there with its rows."""
    severities = {RESTORED: GOOD, SALVAGED: NOTABLE, LEFT_OUT: BAD}
    has_unread = _has_unread(job.plan)
    command = "kafka-index verify --input {path}"
    explained = explain(_explained(job.plan), severities, dict.fromkeys(severities, command)) | {
        LOST: Meaning(BAD, "a range of offsets that no log has any more", DUMP),
        CLAMPED: Meaning(NOTABLE, "an offset of a group after the end of its log, set to that end"),
        BEYOND_END: Meaning(
            BAD if job.request.clamp_groups else NOTABLE,
            "an offset of a group after the end of its log, which stays",
        ),
        NOT_RENAMED: Meaning(
            NOTABLE, "an offset of a group under the old name of a topic, where it stays"
        ),
    }
    chosen = _chosen(job.request)
    if job.request.topics is not None:
        chosen += f" of topics that match {job.request.topics.pattern!r}"

    def verdict(totals: Totals) -> Conclusion:
        partitions = plural(totals.units, "partition")
        lost, left_out = totals.others[LOST], totals.found[LEFT_OUT]
        of_read = " of what was read of the dump" if has_unread else ""
        text = f"{partitions} restored, nothing lost{of_read}{chosen}"
        if lost or left_out:
            ranges = lost_texts(lost_ranges) or ([f"{plural(lost, 'range')} lost"] if lost else [])
            text = ", ".join([*ranges, f"{left_out:,} of {partitions} left out"])
        clamped, beyond = totals.others[CLAMPED], totals.others[BEYOND_END]
        if clamped:
            text += f", {plural(clamped, 'committed offset')} clamped"
        if beyond:
            text += f", {plural(beyond, 'committed offset')} after the end of a log"
        if renamed := totals.others[NOT_RENAMED]:
            text += f", {plural(renamed, 'committed offset')} under the old name of a topic"
        if left_out or totals.bad_others:
            return Conclusion(BAD, text)
        return Conclusion(NOTABLE if clamped or beyond or renamed or has_unread else GOOD, text)

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
    return partial(PageWriter, page, run_summary().about())

"""The report of a lookup: its summary, findings, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from kafka_index.cli.exit_status import ExitCode
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import Paint, first_lines, print_log
from kafka_index.commands.lookup.report import InvalidQuery, behind_gaps, outcome_of
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, shown_path
from kafka_index.core.log.read.answers import (
    GAP,
    INDEX_REFUSED,
    NO_INDEX,
    TAIL,
    UNREADABLE,
    Finding,
    Status,
)
from kafka_index.core.query.inventory import Inventory, find_unindexed
from kafka_index.core.query.keys import By

_SHOWN_REFUSED = 5
EXPLAINED: Mapping[Status, str] = {
    Status.FOUND: "answered",
    Status.BEFORE_LOG_START: "below the first offset that is retained",
    Status.LOG_END: "the next offset to be written: an empty read",
    Status.AFTER_LOG_END: "above the end of the log: out of range",
    Status.NO_RECORD_AT_OR_AFTER: "no record is that late, or remains at or after the offset",
    Status.UNKNOWN_PARTITION: "no segments of that partition in what was read",
    Status.INVALID_QUERY: "malformed, null, negative, or not possible at this level",
    Status.UNREADABLE: "damage, or a read that failed, prevents the answer",
}


def exit_code(findings: Iterable[Finding], *, unanswered: bool) -> ExitCode:
    """Return the exit code for findings of all kinds; `unanswered`: some query is unreadable."""
    return ExitCode(outcome_of(findings, unanswered=unanswered).exit_code)


def warn_of_unindexed(inventory: Inventory, by: By, detail: Detail) -> pa.Table:
    """Print, before anything is read, which remote logs are read whole; return them."""
    unindexed = find_unindexed(inventory, by)
    if unindexed.num_rows and detail is not Detail.QUIET:
        what = plural(unindexed.num_rows, "remote segment")
        size_bytes = sum(unindexed["size_bytes"].to_pylist())
        print_log(
            f"{what} ({format_bytes(size_bytes)}) without index files: those that are "
            "asked are read whole, once each; build --output makes index files"
        )
    return unindexed


def warn_of_starts(inventory: Inventory, detail: Detail) -> None:
    """Print that log starts are lower bounds, where no log directory has them."""
    partitions = inventory.uncertain_starts
    if partitions and detail is not Detail.QUIET:
        what = plural(partitions, "partition")
        print_log(
            f"{what} without a log directory: the log starts are lower bounds, those of the first "
            "remote segments; --input adds what a broker knows"
        )


def invalid_lines(first: Sequence[InvalidQuery], total: int, paint: Paint) -> list[str]:
    """Return the first malformed queries, with their rows, and how many more there are."""
    title = paint.notable(f"{plural(total, 'malformed query', 'malformed queries')}:")
    lines = [f"{shown_path(query.path)}, row {query.row}: {query.reason}" for query in first]
    return first_lines(title, lines, total=total)


def note_lines(findings: Iterable[Finding], paint: Paint, detail: Detail) -> list[str]:
    """Return the findings that prevent no answer, by kind; in VERBOSE detail all."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    every = detail is Detail.VERBOSE
    lines, most = [], None if every else _SHOWN_REFUSED
    if missing := kinds.get(NO_INDEX):
        segments = {
            (finding.topic, finding.partition, finding.segment_base_offset) for finding in missing
        }
        title = f"{plural(len(segments), 'segment')} without index files: built in memory"
        lines += ["", title, *(f"  {finding_line(each)}" for each in missing if every)]
    if refused := kinds.get(INDEX_REFUSED):
        files = "index file that does not fit its log", "index files that do not fit their logs"
        title = paint.notable(f"{plural(len(refused), *files)}, built in memory instead:")
        lines += first_lines(title, [*map(finding_line, refused)], most=most)
    if gaps := kinds.get(GAP):
        queries = plural(behind_gaps(gaps), "query", "queries")
        title = paint.notable(f"{queries} for missing offsets, answered with the next batch:")
        lines += first_lines(title, [*map(finding_line, gaps)], most=most)
    if tails := kinds.get(TAIL):
        logs = "log ends", "logs end"
        title = paint.notable(f"{plural(len(tails), *logs)} before the end of the file:")
        lines += first_lines(title, [*map(finding_line, tails)], most=most)
    return lines


def damage_lines(
    findings: Iterable[Finding], queries: int, left_out: int, paint: Paint
) -> list[str]:
    """Return the damage that prevents answers, if any.

    The findings are of all kinds, `queries` counts those without an answer because of damage, and
    `left_out` findings are not listed.
    """
    damage = [finding for finding in findings if finding.kind == UNREADABLE]
    if not (damage or queries):
        return []
    cause = "what could not be read" if any(each.retriable for each in damage) else "damage"
    title = f"{plural(queries, 'query', 'queries')} not answered because of {cause}:"
    title = paint.bad(title)
    lines = first_lines(title, [*map(finding_line, damage)]) or ["", title]
    return [*lines, *([f"  and up to {format_count(left_out)} more"] if left_out else [])]


def finding_line(finding: Finding) -> str:
    """Return a finding as one line: place and reason."""
    place = "" if finding.position_bytes is None else f" at byte {finding.position_bytes}"
    return f"{shown_path(finding.path)}{place}: {finding.reason}"


def print_findings(findings: Iterable[Finding], detail: Detail) -> None:
    """Print the findings about the log of a question; quietly only the damage."""
    for finding in findings:
        if finding.kind == UNREADABLE or detail is not Detail.QUIET:
            print_log(f"{finding.kind}: {finding_line(finding)}")

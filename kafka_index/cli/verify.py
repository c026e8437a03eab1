"""Runs a verification, from options to an exit code: verify, report and its page, print."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.html.page import BAD, DUMP, GOOD, NOTABLE, Conclusion, Page, Totals, explain
from kafka_index.cli.html.page_writer import PageWriter
from kafka_index.cli.options import request_of
from kafka_index.cli.progress import Outcome, skipped_lines
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import SHOWN, Table, first_lines, status_table
from kafka_index.commands.verify.findings import (
    VERIFY_SCHEMA,
    FileClass,
    FileKind,
    Finding,
    LostRange,
    PartitionFindings,
    findings_table,
)
from kafka_index.commands.verify.verify_job import VerifyJob, VerifyRequest, VerifyTally
from kafka_index.core.cluster.metadata.directory import FoundCluster
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, shown_path
from kafka_index.core.fs.inputs import Skipped, list_unread
from kafka_index.core.job.result import RunOutcome
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.report_file import PageMaker, ReportFile, open_report

if TYPE_CHECKING:
    from kafka_index.cli.verify_command import VerifyOptions

EXPLAINED: Mapping[str, str] = {each: each.explained for each in FileClass}
#: For two copies, whose rows are of partitions.
_EXPLAINED_COPIES = {
    **EXPLAINED,
    FileClass.IDENTICAL: "identical bytes in the offset range that both copies have",
    FileClass.VALID: "identical, except for batches that the log cleaner removed or wrote again",
    FileClass.BAD_CRC: "different bytes with the same checksum",
}
_COLUMNS = (
    "path",
    "kind",
    "class",
    "harmful",
    "position_bytes",
    "entry",
    "expected",
    "found",
    "effect",
)


@dataclass(slots=True)
class LostOffsets:
    """The offsets in the lost ranges of partitions; there are more where damage hides an end."""

    offsets: int = 0
    has_more: bool = False

    def add(self, lost: Sequence[LostRange]) -> None:
        """Add the ranges of a partition, each offset once."""
        counted_to = 0
        # A gap that begins where a damaged log ends has the end that the damage hides.
        for one in sorted(lost, key=lambda one: (one.first_offset, one.end_offset is None)):
            if one.end_offset is None:
                self.has_more |= one.first_offset >= counted_to
            elif one.end_offset > counted_to:
                self.offsets += one.end_offset - max(one.first_offset, counted_to)
                counted_to = one.end_offset

    def __str__(self) -> str:
        if not self.offsets:
            return ""
        least = "at least " if self.has_more else ""
        return f"; {least}{plural(self.offsets, 'offset')} missing, or in a log after its damage"


class VerifyOutcome(Outcome):
    """The listener of an engine that verifies; a context manager around its run."""

    def __init__(
        self,
        writer: ReportFile | None,
        total_segments: int,
        total_bytes: int,
        detail: Detail,
        lost: LostOffsets,
        tally: VerifyTally,
    ) -> None:
        super().__init__(total_segments, total_bytes, detail)
        self._writer = writer
        self._lost = lost
        self._total_bytes = total_bytes
        self._tally = tally
        self._logs_only = 0
        self._shown: list[dict[str, object]] = []
        self._unread: list[dict[str, object]] = []
        self._thinned: list[dict[str, object]] = []
        # By topic, the segments with timestamps in the future, and their bytes.
        self._future: dict[str, tuple[int, int]] = {}

    def on_findings(self, findings: Sequence[Finding]) -> None:
        """Add rows of the report; called by one thread at a time, as the others."""
        self._add(findings_table(findings))

    def on_partition(self, found: PartitionFindings) -> None:
        """Add what was found in a partition."""
        self.on_findings(found.findings)
        self._lost.add(found.lost)
        if found.future_segments:
            segments, size_bytes = self._future.get(found.topic, (0, 0))
            self._future[found.topic] = (
                segments + found.future_segments,
                size_bytes + found.future_bytes,
            )
        logs = sum(row.kind is FileKind.LOG for row in found.findings)
        self._progress.advance(logs, found.log_bytes)

    def _add(self, rows: pa.Table) -> None:
        if self._writer is not None:
            self._writer.write_table(rows)
        files = self._tally.add(rows)
        is_logs_only = pc.equal(files["found"], "logs only")
        self._logs_only += pc.sum(is_logs_only).as_py() or 0
        wanted = rows.filter(rows["harmful"]).select(_COLUMNS)
        self._shown += wanted.slice(0, SHOWN - len(self._shown)).to_pylist()
        thinned = rows.filter(pc.equal(rows["class"], FileClass.THINNED.value))
        thinned = thinned.filter(pc.invert(thinned["harmful"])).select(_COLUMNS)
        self._thinned += thinned.slice(0, SHOWN - len(self._thinned)).to_pylist()
        unread = files.filter(files["retriable"])
        if not unread.num_rows:
            unread = rows.filter(rows["retriable"])
        unread = unread.select(_COLUMNS)
        self._unread += unread.slice(0, SHOWN - len(self._unread)).to_pylist()

    def print_summary(
        self,
        skipped: Sequence[Skipped],
        cluster: FoundCluster,
        *,
        fast: bool,
        where: str,
        next_command: str,
    ) -> ExitCode:
        """Print the summary and return the exit code.

        `fast`: checksums were not verified. `where` names the topics that were verified, where not
        all of them were.
        """
        paint, tally = self._paint, self._tally
        run_summary().add_counts(tally.counts)
        run_summary().add_bytes("logs", self._total_bytes)
        rows = [
            (name, format_count(tally.files[name]), format_count(tally.harmful[name]))
            for name in EXPLAINED
            if tally.files[name]
        ]
        good = map(str, (FileClass.IDENTICAL, FileClass.SOUND, FileClass.VALID))
        size, partitions = self._total_bytes, plural(tally.partitions, "partition")
        found = f"{partitions}, {tally.harmful_partitions} with harmful files"
        if tally.is_comparison:
            harmful = tally.harmful_partitions
            found = f"{partitions} compared, {harmful} with harmful differences"
        lines: list[str | Table] = [
            status_table(
                ("class", self._noun(2), "harmful"),
                rows,
                _EXPLAINED_COPIES if tally.is_comparison else EXPLAINED,
                dict.fromkeys(good, paint.good),
                paint,
            ),
            "",
            f"{found}, {format_bytes(size)} of log in {self._timed(size, format_bytes)}",
            *self._startup_lines(),
        ]
        if self._logs_only:
            lines.append(
                f"{plural(self._logs_only, 'partition has', 'partitions have')} logs only: a "
                "broker rebuilds the rest, reading everything"
            )
        if cluster.fault is not None:
            lines.append(
                "the metadata log of the dump is damaged, so that it is not known which topics are "
                f"compacted: {cluster.fault}"
            )
        if tally.is_comparison:
            lines.append(
                "checksums were not verified: damage that is the same in both copies is not "
                "detected (run verify on each copy)"
            )
        elif fast:
            lines.append(
                "--fast reads headers only: a wrong checksum, and a change inside records, is not "
                "seen"
            )
        title = paint.notable("timestamps in the future delay retention by time:")
        future = [
            f"{topic}: {plural(segments, 'segment')}, {format_bytes(size_bytes)}"
            for topic, (segments, size_bytes) in sorted(self._future.items())
        ]
        lines += first_lines(title, future)
        title = paint.notable("records are missing inside batches:")
        lines += first_lines(title, [*map(_row_line, self._thinned)])
        lines += skipped_lines(skipped, paint, self._detail)
        unread = list_unread()
        outcome = tally.outcome(unread)
        if not tally.is_harmful:
            is_done = outcome is RunOutcome.DONE
            verdict = f"{tally.headline(unread)}{where}"
            lines += ["", paint.good(verdict) if is_done else paint.notable(verdict)]
        not_read = first_lines(paint.bad("could not be read:"), [*map(_row_line, self._unread)])
        next_lines = ["", f"next: {next_command}"] if tally.is_harmful else []
        self._print(lines, [*self._damage_lines(), *not_read, *next_lines])
        return ExitCode(outcome.exit_code)

    def _noun(self, count: int) -> str:
        """Return what the rows that are counted are of."""
        noun = "partition" if self._tally.is_comparison else "file"
        return noun if count == 1 else f"{noun}s"

    def _damage_lines(self) -> list[str]:
        harmful = count = self._tally.harmful.total()
        what = f"{format_count(count)} {self._noun(count)} with harmful differences"
        if not self._tally.is_comparison:
            harmful += self._tally.harmful_partitions
            what = f"{format_count(count)} harmful {self._noun(count)}"
            if partitions := self._tally.harmful_partitions:
                what += f", {plural(partitions, 'partition')}"
        title, lines = self._paint.bad(f"{what}:"), [*map(_row_line, self._shown)]
        return first_lines(title, lines, total=harmful, after=" rows in the report")


def _row_line(row: Mapping[str, object]) -> str:
    place = "" if row["position_bytes"] is None else f" at byte {row['position_bytes']}"
    what = f"{row['kind']}: {row['class']}{place}"
    found = "" if row["found"] is None else f": {_found_text(row)}"
    effect = "" if row["effect"] is None else f". {row['effect']}"
    return f"{shown_path(str(row['path']))}: {what}{found}{effect}"


def _found_text(row: Mapping[str, object]) -> str:
    """Return what was found, after what was expected where that is known.

    What is found of gaps and partitions says all by itself.
    """
    says_all = row["class"] == FileClass.GAP or row["kind"] == FileKind.PARTITION
    if row["expected"] is None or says_all:
        return str(row["found"])
    return f"expected {row['expected']}, found {row['found']}"


def verify_page(
    segments: SegmentTable, where: str, lost: LostOffsets, tally: VerifyTally
) -> PageMaker:
    """Return the maker of the page of ``verify``.

    The lost offsets and the tally are there with its rows. `where` names the topics that were
    verified, where not all of them were.
    """
    good = (FileClass.IDENTICAL, FileClass.SOUND, FileClass.VALID, FileClass.PREFIX)
    severities = dict.fromkeys(map(str, EXPLAINED), NOTABLE)
    severities |= dict.fromkeys(map(str, good), GOOD)
    # A file that is not there cannot be dumped.
    dumped = [name for name in severities if name != FileClass.MISSING]
    explained = explain(EXPLAINED, severities, dict.fromkeys(dumped, DUMP))

    def verdict(_: Totals) -> Conclusion:
        unread = list_unread()
        outcome = tally.outcome(unread)
        severity = {RunOutcome.DONE: GOOD, RunOutcome.ENVIRONMENT: NOTABLE}.get(outcome, BAD)
        text = f"{tally.headline(unread)}{where}{lost}"
        return Conclusion(BAD if tally.is_harmful else severity, text)

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
    return partial(PageWriter, page, run_summary().about())


def run_verify(options: VerifyOptions) -> ExitCode:
    """Verify a dump, print a summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    config, properties = options.settings
    request = request_of(VerifyRequest, options, config=config, properties=properties)
    topics = options.topics
    where = "" if topics is None else f" of the topics that match {topics.pattern!r}"
    lost, tally = LostOffsets(), VerifyTally()
    job = VerifyJob.prepare(request)
    segments = job.segments
    page = verify_page(segments, where, lost, tally)
    with open_report(options.report, VERIFY_SCHEMA, page) as writer:
        outcome = VerifyOutcome(
            writer, len(segments), segments.total_bytes, options.detail, lost, tally
        )
        with outcome:
            job.run(options.engine, outcome)
        # Printed first: where the report cannot be finished, the answer is not lost.
        return outcome.print_summary(
            job.skipped,
            job.cluster,
            fast=options.fast,
            where=where,
            next_command=_next_command(options),
        )


def _next_command(options: VerifyOptions) -> str:
    """Return the next command to run if a file is harmful."""
    inputs = ["--input", *options.inputs]
    if options.against:
        return f"kafka-index verify {shlex.join(inputs)}, then verify the other copy"
    command = shlex.join(["kafka-index", "restore", *inputs, "--output", "NEW_DIRECTORY"])
    return f"{command} --salvage batches"

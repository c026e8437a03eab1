"""What a build says about itself at the end, and what a dry run says it would do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafka_index.build.report import (
    BUILT,
    FAILED,
    STATUSES,
    TRUNCATED,
    UNCHANGED,
    SegmentReport,
)
from kafka_index.cli.text import (
    Paint,
    format_bytes,
    format_count,
    format_seconds,
    plural,
    shown_path,
    table_lines,
)
from kafka_index.storage import Skipped

_SHOWN = 20
_EXPLAINED = {
    BUILT: "index files written",
    UNCHANGED: "right already, not read again",
    TRUNCATED: "valid up to a point, nothing behind it is indexed",
    FAILED: "no index files written",
}


@dataclass
class BuildSummary:
    """Report rows, folded into what fits on a screen.

    Parameters
    ----------
    segments, sizes_bytes : dict of str to int
        Per status: how many, and the bytes of their logs.
    offset_entries, time_entries : int
        Entries in the index files of all segments.
    damaged : int
        Segments that failed or lost a tail to damage.
    retriable : int
        Those of them that failed because of permission, disk or memory.
    examples : list of SegmentReport
        The first few of those.
    preallocated : int
        Segments whose only fault is a tail of preallocated zeros.
    noted : int
        Segments with a note.
    note : SegmentReport, optional
        The first of those.
    """

    segments: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    sizes_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    offset_entries: int = 0
    time_entries: int = 0
    damaged: int = 0
    retriable: int = 0
    examples: list[SegmentReport] = field(default_factory=list)
    preallocated: int = 0
    noted: int = 0
    note: SegmentReport | None = None

    def add(self, row: SegmentReport) -> None:
        """Count one segment."""
        self.segments[row.status] += 1
        self.sizes_bytes[row.status] += row.log_size_bytes
        if row.counts is not None:
            self.offset_entries += row.counts.offset_entries
            self.time_entries += row.counts.time_entries
        if row.is_damage:
            self.damaged += 1
            self.retriable += row.retriable
            if len(self.examples) < _SHOWN:
                self.examples.append(row)
        elif row.is_preallocated_tail:
            self.preallocated += 1
        if row.note is not None:
            self.noted += 1
            self.note = self.note or row

    @property
    def total_segments(self) -> int:
        """Segments of any status."""
        return sum(self.segments.values())

    def lines(
        self, *, seconds: float, startup_seconds: float, target: str, paint: Paint
    ) -> list[str]:
        """Return the table of a finished run.

        Parameters
        ----------
        seconds : float
            What the work took.
        startup_seconds : float
            What the engine took to start, before.
        target : str
            Where the index files are, for people.
        paint : Paint
            Colours.
        """
        colours = {BUILT: paint.good, TRUNCATED: paint.notable, FAILED: paint.bad}
        rows = [
            (status, format_count(count), format_bytes(self.sizes_bytes[status]))
            for status, count in self.segments.items()
            if count
        ]
        table = table_lines(("status", "segments", "log bytes"), rows)
        lines = [paint.strong(table[0])]
        for (status, *_), line in zip(rows, table[1:], strict=True):
            colour = colours.get(status, paint.faint)
            padded = line[: len(status)]
            lines.append(colour(padded) + line[len(status) :] + "   " + _EXPLAINED[status])
        read = sum(self.sizes_bytes.values()) - self.sizes_bytes[UNCHANGED]
        rate = f" ({format_bytes(read / seconds)}/s)" if read and seconds > 0 else ""
        lines += [
            "",
            (
                f"{format_bytes(read)} of log in {format_seconds(seconds)}{rate}, "
                f"{format_count(self.offset_entries)} offset entries, "
                f"{format_count(self.time_entries)} time entries, {target}"
            ),
        ]
        if startup_seconds >= 1:
            lines.append(paint.faint(f"starting the engine took {format_seconds(startup_seconds)}"))
        if self.preallocated:
            lines.append(
                f"{plural(self.preallocated, 'log ends', 'logs end')} in preallocated zeros, "
                "as an active segment does: no damage"
            )
        if self.note is not None:
            lines.append(
                f"{plural(self.noted, 'segment has a note', 'segments have notes')} in the report, "
                f"such as {shown_path(self.note.log_path)}: {self.note.note}"
            )
        return lines

    def damage_lines(self, paint: Paint) -> list[str]:
        """Return the segments to look at, none when there are none."""
        if not self.damaged:
            return []
        lines = ["", paint.bad(f"{plural(self.damaged, 'segment')} damaged or failed:")]
        for row in self.examples:
            place = "" if row.position_bytes is None else f" at byte {row.position_bytes}"
            lines.append(
                f"  {row.log_path}: {row.status}{place}: {row.reason or 'no reason given'}"
            )
        if self.damaged > len(self.examples):
            lines.append(f"  and {format_count(self.damaged - len(self.examples))} more")
        return lines


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment that a dry run would build."""

    topic: str
    partition: int
    log_size_bytes: int


def plan_lines(segments: Iterable[PlannedSegment], paint: Paint) -> list[str]:
    """Return what a dry run would do: a row per partition, and the sums."""
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for one in segments:
        count, size_bytes = sums.get((one.topic, one.partition), (0, 0))
        sums[one.topic, one.partition] = count + 1, size_bytes + one.log_size_bytes
    rows = [
        (f"{topic}-{partition}", format_count(count), format_bytes(size_bytes))
        for (topic, partition), (count, size_bytes) in sorted(sums.items())
    ]
    header, *lines = table_lines(("partition", "segments", "log bytes"), rows)
    total_segments = sum(count for count, _ in sums.values())
    total_bytes = sum(size_bytes for _, size_bytes in sums.values())
    return [
        paint.strong(header),
        *lines,
        "",
        (
            f"would build {plural(total_segments, 'segment')} of {plural(len(sums), 'partition')}, "
            f"{format_bytes(total_bytes)} of log"
        ),
    ]


def skipped_lines(skipped: Sequence[Skipped], paint: Paint, *, every: bool) -> list[str]:
    """Return what was passed over, by reason; `every` entry by name when asked for."""
    if not skipped:
        return []
    reasons: dict[str, list[str]] = {}
    for one in skipped:
        reasons.setdefault(one.reason, []).append(one.path)
    entries = plural(len(skipped), "entry", "entries")
    lines = ["", paint.notable(f"passed over {entries}:")]
    for reason, paths in sorted(reasons.items(), key=lambda item: -len(item[1])):
        if every:
            lines += [f"  {path}: {reason}" for path in paths]
        else:
            more = "" if len(paths) == 1 else f" and {plural(len(paths) - 1, 'other', 'others')}"
            lines.append(f"  {shown_path(paths[0])}{more}: {reason}")
    return lines

"""The number of dropped records by line of a file of keys, for results."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_count
from kafka_index.core.job.result import GOOD, Section


def key_sections(by_line: Mapping[int, int]) -> list[Section]:
    """Return the numbers of records by line of the file of keys, and the lines without records.

    Keys are not shown: they may name people.
    """
    counts = [f"line {line}: {format_count(count)}" for line, count in by_line.items() if count]
    unmatched = [f"line {line}" for line, count in by_line.items() if not count]
    what = plural(len(unmatched), "line")
    return [
        Section("records dropped by line of the keys:", counts, GOOD, noun="line"),
        Section(f"no record has the key of {what}:", unmatched, noun="line"),
    ]

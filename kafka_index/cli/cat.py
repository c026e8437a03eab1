"""Prints the records of a topic, from options to an exit code: list, plan, read, print."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.find import print_found
from kafka_index.cli.progress import skipped_lines
from kafka_index.cli.record_template import BYTES_AS_TEXT, RecordTemplate, ends_lines
from kafka_index.cli.record_text import FOUND_COLUMNS, TEXT, FoundText
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import Paint, print_error, print_text
from kafka_index.errors import InputError, plural
from kafka_index.execution import ThreadEngine
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.times import empty_range_text
from kafka_index.tables import Isolation, OnDamage, ReadSettings
from kafka_index.tables.bounds import EARLIEST, LATEST, Bound, ReadBounds, time_span
from kafka_index.tables.matches import SplitMatches, after, limited, run_search
from kafka_index.tables.records import ListedPartitions, list_partitions
from kafka_index.tables.settings import RecordFilter
from kafka_index.tables.topic_records import PartitionRecords, matches_by_time, plan_records

if TYPE_CHECKING:
    from kafka_index.cli.cat_command import CatOptions


def run_cat(options: CatOptions) -> ExitCode:
    """Print the records of a topic, and on stderr how many.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    text = _printer(options)
    listed = _listed(options)
    times = options.times
    settings = ReadSettings(
        columns=FOUND_COLUMNS,
        isolation=Isolation(options.isolation),
        on_damage=OnDamage.DROP,
        max_decompressed_bytes=options.max_decompressed_bytes,
        record_filter=None if times == (None, None) else RecordFilter(*times),
    )
    first, end = options.offsets
    bounds = ReadBounds(
        Bound(EARLIEST if first is None else first), Bound(LATEST if end is None else end)
    )
    planned = [plan_records(files, bounds, settings, last=options.last) for files in listed.files]
    errors = [one.error for one in planned if one.error is not None]
    for error in errors:
        print_error(str(error))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Records may contain characters that the terminal's encoding lacks.
        if options.template is None:
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors=BYTES_AS_TEXT)
    with closing(_matches(options, planned, settings)) as found:
        count, places, codes = print_found(text, found)
    damage = len(errors) + places
    summary = run_summary()
    summary.add_count("records", count)
    summary.add_count("partitions", len(listed.files))
    summary.add_count("damage", damage)
    summary.add_count("skipped", len(listed.skipped))
    if options.detail is not Detail.QUIET:
        print_text(sys.stderr, _read_lines(options, listed, settings, count, damage))
    return ExitCode.first([ExitCode.of_faults(errors), *codes])


def _printer(options: CatOptions) -> FoundText | RecordTemplate:
    if options.template is None:
        return FoundText(as_json=options.as_json, values=TEXT)
    return RecordTemplate(
        options.template, names_null=options.names_null, is_shown=sys.stdout.isatty()
    )


def _listed(options: CatOptions) -> ListedPartitions:
    """List the partitions that are read."""
    listed = list_partitions(
        options.inputs,
        # The full stop is the only character of names that patterns read otherwise.
        topics=re.compile(options.topic.replace(".", r"\.")),
        tiered=options.tiered,
        indexes=options.indexes,
    )
    wanted = sorted(set(options.partitions))
    numbers = [files.partition for files in listed.files]
    missing = [number for number in wanted if number not in numbers]
    if missing:
        raise InputError(
            f"no partition {TopicPartition(options.topic, missing[0]).directory_name} here",
            path=", ".join(options.inputs),
            found=f"the partitions {', '.join(map(str, numbers))}",
        )
    if wanted:
        listed = replace(listed, files=[one for one in listed.files if one.partition in wanted])
    return listed


def _matches(
    options: CatOptions, planned: Sequence[PartitionRecords], settings: ReadSettings
) -> Generator[SplitMatches, None, None]:
    """Yield the records in the order that was asked for; closing the generator ends the read."""
    last = options.last
    limit = options.count if last is None else None
    if options.by_time:
        found = matches_by_time([one.splits for one in planned], settings)
        if last is not None:
            more = sum(one.records or 0 for one in planned) - last
            found = after(found, max(more, 0))
        yield from limited(found, limit)
        return
    splits = [split for one in planned for split in one.splits]
    yield from run_search(ThreadEngine(os.cpu_count() or 1), "cat", splits, settings, limit=limit)


def _read_lines(
    options: CatOptions,
    listed: ListedPartitions,
    settings: ReadSettings,
    count: int,
    damage: int,
) -> list[str]:
    """Return how many records were printed, of what, and what was not read."""
    paint = Paint(sys.stderr)
    records = plural(count, "record") if count else "no record"
    line = f"{records} of {plural(len(listed.files), 'partition')} of {options.topic}"
    if options.last is None and options.count == count:
        line += " (-n): the rest was not read"
    lines = [line]
    if damage:
        lines.append(
            paint.bad(f"{plural(damage, 'place')} of damage, or of a read that failed, passed over")
        )
    if options.template is not None and not ends_lines(options.template):
        lines.append(r"the format ends no line: add \n to it")
    if not count and not damage and options.times[0] is not None:
        lines.append(empty_range_text(*options.times, time_span(listed.files, settings)))
    return [*lines, *skipped_lines(listed.skipped, paint, options.detail)]

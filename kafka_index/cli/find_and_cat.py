"""Runs `find` and `cat`, from options to an exit code: list, plan, read or match, print."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.progress import Outcome, missing_lines, skipped_lines
from kafka_index.cli.record_template import BYTES_AS_TEXT, RecordTemplate, ends_lines
from kafka_index.cli.record_text import FOUND_COLUMNS, TEXT, FoundText
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import Paint, escape_on_stdout, print_error, print_text
from kafka_index.core.errors import InputError, plural
from kafka_index.core.format.human import format_bytes, format_count
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.strings import parse_bytes
from kafka_index.core.format.times import empty_range_text
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.job.threads import ThreadEngine
from kafka_index.core.query.bounds import EARLIEST, LATEST, Bound, ReadBounds, time_span
from kafka_index.core.query.choices import Isolation, OnDamage
from kafka_index.core.query.matches import Search, SplitMatches, limited, run_search
from kafka_index.core.query.missing_records import MissingInRead
from kafka_index.core.query.records import ListedPartitions, list_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.core.query.topic_records import PartitionRecords, matches_by_time, plan_records

if TYPE_CHECKING:
    from kafka_index.cli.cat_command import CatOptions
    from kafka_index.cli.find_command import FindOptions
    from kafka_index.core.query.read_plan import RecordSplit

_FEW = ("no", "1")


def run_find(options: FindOptions) -> ExitCode:
    """Print the records that meet the conditions, and the searched range on stderr.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    search = Search.prepare(
        options.inputs,
        RecordFilter(
            *options.times,
            None if options.key is None else parse_bytes(options.key),
            options.key_regex,
            None if options.value_contains is None else parse_bytes(options.value_contains),
        ),
        columns=FOUND_COLUMNS,
        isolation=Isolation(options.isolation),
        max_decompressed_bytes=options.max_decompressed_bytes,
        topics=options.topics,
        tiered=options.tiered,
        indexes=options.indexes,
    )
    escape_on_stdout()
    text = FoundText(as_json=options.as_json, values=options.values)
    outcome = _FindOutcome(search.plan.splits, options.detail)
    with (
        outcome,
        closing(search.run(options.engine, limit=options.limit, listener=outcome)) as found,
    ):
        seen = search.missing()
        count, damage, codes = print_found(text, outcome.following(found), seen, outcome.paused)
    missing = seen.find(is_complete=options.limit is None or count < options.limit)
    _record(search.listed, damage, missing, matches=count, records_found=count)
    if options.detail is not Detail.QUIET:
        print_text(sys.stderr, _searched_lines(options, search, count, damage, missing))
    code = ExitCode.first([*codes, *_codes(missing)])
    if not count and options.fail_if_none and code is ExitCode.DONE:
        run_summary().outcome = "no_match"
        return ExitCode.DAMAGE
    return code


def _codes(missing: MissingOffsets) -> list[ExitCode]:
    return [ExitCode.DAMAGE] * bool(missing.lost)


def _record(listed: ListedPartitions, damage: int, missing: MissingOffsets, **records: int) -> None:
    """Add what was read, and the numbers of records, to the summary of the run."""
    run_summary().add_missing_offsets(missing)
    counts = {"partitions": len(listed.files), "damage": damage, "skipped": len(listed.skipped)}
    run_summary().add_counts(records | counts)


class _FindOutcome(Outcome):
    """The listener of an engine that searches splits; a context manager around its run."""

    def __init__(self, splits: Sequence[RecordSplit], detail: Detail) -> None:
        self._sizes_bytes = [split.size_bytes for split in splits]
        super().__init__(len(splits), sum(self._sizes_bytes), detail, nouns=("split", "splits"))

    def following(self, found: Iterable[SplitMatches]) -> Iterator[SplitMatches]:
        """Yield the matches of splits in order, and show which splits are done."""
        sizes_bytes = iter(self._sizes_bytes)
        for matches in found:
            yield matches
            if matches.rest is None:
                self._progress.advance(1, next(sizes_bytes))


def print_found(
    text: FoundText | RecordTemplate,
    found: Iterable[SplitMatches],
    missing: MissingInRead,
    printing: Callable[[TextIO], AbstractContextManager[object]] = nullcontext,
) -> tuple[int, int, list[ExitCode]]:
    """Print records as they come; return how many, the places of damage, and exit codes.

    What goes to a stream is printed in its context of `printing`; what was read is added to
    `missing`.
    """
    count, damage, codes = 0, 0, []
    for matches in found:
        missing.add(matches.seen, matches.batches)
        if matches.batches:
            with printing(sys.stdout):
                for batch in matches.batches:
                    sys.stdout.writelines(text.found_lines(batch))
                    count += len(batch)
                sys.stdout.flush()
        if matches.errors:
            with printing(sys.stderr):
                for error in matches.errors:
                    print_error(str(error))
        damage += len(matches.errors) + matches.errors_left_out
        codes.append(ExitCode.of_faults(matches.errors))
    return count, damage, codes


def _searched_lines(
    options: FindOptions, search: Search, count: int, damage: int, missing: MissingOffsets
) -> list[str]:
    """Return how many records match, of what, and what was not searched."""
    listed, plan, paint = search.listed, search.plan, Paint(sys.stderr)
    where = plural(len(listed.files), "partition")
    if options.topics is not None:
        where += f" of the topics that match {options.topics.pattern!r}"
    found = f"{format_count(count)} records match" if count > 1 else f"{_FEW[count]} record matches"
    if options.limit is not None and count >= options.limit:
        rest = f"{found} (--limit): the rest of {where} was not searched"
        return [rest, *missing_lines(missing, paint)]
    lines = [f"{found} in {format_bytes(plan.size_bytes)} of {where}"]
    if damage:
        lines[0] = f"{found} in what can be read of {format_bytes(plan.size_bytes)} of {where}"
        lines.append(
            paint.bad(
                f"{plural(damage, 'place')} of damage, or of a read that failed, passed over: not "
                "searched"
            )
        )
    if Isolation(options.isolation) is Isolation.READ_COMMITTED:
        lines.append("records of aborted and open transactions were not searched (--isolation)")
    deleted = sum(one.log_start_offset > one.segments[0].base_offset for one in listed.files)
    if deleted:
        lines.append(
            f"records before the log start of {plural(deleted, 'partition')} were not searched: "
            "they are deleted, and may still be in the files"
        )
    if not count and options.times[0] is not None:
        lines.append(empty_range_text(*options.times, time_span(listed.files, plan.settings)))
    lines += missing_lines(missing, paint)
    return [*lines, *skipped_lines(listed.skipped, paint, options.detail)]


def run_cat(options: CatOptions) -> ExitCode:
    """Print the records of a topic, and on stderr how many.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    text: FoundText | RecordTemplate
    if options.template is None:
        escape_on_stdout()
        text = FoundText(as_json=options.as_json, values=TEXT)
    else:
        text = RecordTemplate(
            options.template, names_null=options.names_null, is_shown=sys.stdout.isatty()
        )
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors=BYTES_AS_TEXT)
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
    read = [one.read for one in planned if one.read is not None]
    seen = MissingInRead(read, listed.gap_finder(options.max_decompressed_bytes))
    with closing(_matches(options, planned, settings)) as found:
        count, places, codes = print_found(text, found, seen)
    is_complete = options.last is not None or options.count is None or count < options.count
    missing = seen.find(is_complete=is_complete)
    damage = len(errors) + places
    _record(listed, damage, missing, records=count)
    if options.detail is not Detail.QUIET:
        print_text(sys.stderr, _read_lines(options, listed, settings, count, damage, missing))
    return ExitCode.first([ExitCode.of_faults(errors), *codes, *_codes(missing)])


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
        more = 0 if last is None else sum(one.records or 0 for one in planned) - last
        yield from limited(found, limit, skip=max(more, 0))
        return
    splits = [split for one in planned for split in one.splits]
    yield from run_search(ThreadEngine(), "cat", splits, settings, limit=limit)


def _read_lines(
    options: CatOptions,
    listed: ListedPartitions,
    settings: ReadSettings,
    count: int,
    damage: int,
    missing: MissingOffsets,
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
    lines += missing_lines(missing, paint)
    return [*lines, *skipped_lines(listed.skipped, paint, options.detail)]

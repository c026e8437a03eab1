"""Runs a search, from options to an exit code: list, plan, match, print."""

from __future__ import annotations

import io
import sys
from contextlib import closing
from dataclasses import dataclass

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.found_text import FOUND_COLUMNS, FoundText
from kafka_index.cli.options import Detail
from kafka_index.cli.progress import Outcome
from kafka_index.cli.record_options import InputOptions
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import print_error
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.engines import Engine, find_engines
from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.byte_text import parse_bytes
from kafka_index.tables import Isolation, OnDamage, ReadSettings, plan_read
from kafka_index.tables.record_filter import RecordFilter

_SPLIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FindOptions:
    """The options of ``find``, as given."""

    key: str | None
    key_regex: str | None
    value_contains: str | None
    from_ms: int | None
    to_ms: int | None
    limit: int | None
    isolation: str
    values: str
    as_json: bool
    max_decompressed_bytes: int | None
    engine: Engine
    detail: Detail


def run_find(options: FindOptions, read: InputOptions) -> ExitCode:
    """Print the records that meet the conditions.

    Raises
    ------
    KafkaIndexError
        The run as a whole cannot start or continue, or there is no such record.
    """
    plan = plan_read(
        read.paths,
        topics=read.topics,
        settings=_settings(options),
        tiered=read.tiered,
        indexes=read.indexes,
        max_split_bytes=_SPLIT_BYTES,
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Records may contain characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    text = FoundText(as_json=options.as_json, values=options.values)
    count, codes = 0, []
    # Progress would mix with the records on a terminal.
    is_live = sys.stdout.isatty()
    detail = Detail.QUIET if is_live else options.detail
    outcome = Outcome(len(plan.splits), None, detail, nouns=("split", "splits"))
    with (
        outcome,
        closing(find_engines.run_find(options.engine, plan, outcome, limit=options.limit)) as found,
    ):
        for matches in found:
            for batch in matches.batches:
                sys.stdout.writelines(text.found_lines(batch))
                count += len(batch)
            sys.stdout.flush()
            for error in matches.errors:
                print_error(str(error))
                codes.append(ExitCode.of_part(retriable=is_retriable(error)))
    run_summary().add_count("records_found", count)
    if not count and not codes:
        raise InputError("no record meets the conditions", path=", ".join(read.folders))
    return ExitCode.first(codes)


def _settings(options: FindOptions) -> ReadSettings:
    return ReadSettings(
        columns=FOUND_COLUMNS,
        isolation=Isolation(options.isolation),
        on_damage=OnDamage.DROP,
        max_decompressed_bytes=options.max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES,
        record_filter=RecordFilter(
            options.from_ms,
            options.to_ms,
            None if options.key is None else parse_bytes(options.key),
            options.key_regex,
            None if options.value_contains is None else parse_bytes(options.value_contains),
        ),
    )

"""``find``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re

import click

from kafka_index.cli.numbers import Whole
from kafka_index.cli.options import SUBMITTED, Detail, command, run_options
from kafka_index.cli.record_options import (
    input_options,
    isolation_option,
    make_input,
    time_options,
    time_range,
)
from kafka_index.execution import Engine
from kafka_index.tiered.options import TieredOptions

_HELP = """Find records by key, value and time in the logs below PATH.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; with `--tiered URI`, or with that alone, remote segments are read too. Several
    conditions have to hold together. Records are printed by topic, partition and offset, as a
    table or, with --json, as the lines of `dump --records --json` with topic and partition. What
    was searched, and what was not, is said on stderr. Logs are only read.

    Exit code 0: all was searched, with or without a match. 1: damage was passed over, lines on
    stderr say where; or no record was found, with --fail-if-none. 2: wrong usage, or there is
    nothing to search. 3: permission, disk, memory, network or cluster, worth a retry.

    \b
    Examples:
    """
_CONSOLE_EXAMPLES = """\
  kafka-index find --input /dump/broker-1 --topics orders --key order-4711
      kafka-index find --input /dump/* --key-regex '^user-(7|9)$' --from 2024-05-01 --to 2024-05-02
      kafka-index find --input s3://dumps/broker-1 --value-contains 4111-1111 --limit 10 --json
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/find.py --input s3://dumps/broker-1 --key order-4711 --json
"""
_BYTES_HELP = "Text, or bytes as hex:00ff or base64:AP8=."


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``find`` command, or as a job for ``spark-submit``: on Spark."""

    def find(
        inputs: tuple[str, ...],
        tiered: TieredOptions | None,
        indexes: str | None,
        topics: re.Pattern[str] | None,
        max_decompressed_bytes: int | None,
        key: str | None,
        key_regex: str | None,
        value_contains: str | None,
        from_ms: int | None,
        to_ms: int | None,
        limit: int | None,
        fail_if_none: bool,  # noqa: FBT001, because click passes options by name
        isolation: str,
        values: str,
        as_json: bool,  # noqa: FBT001, because click passes options by name
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        read = make_input(inputs, tiered, indexes, topics)
        from_ms, to_ms = time_range(from_ms, to_ms)
        if key is not None and key_regex is not None:
            raise click.UsageError("--key and --key-regex are mutually exclusive")
        if key is None and key_regex is None and value_contains is None:
            raise click.UsageError("no condition: give --key, --key-regex or --value-contains")
        from kafka_index.cli.find import FindOptions, run_find  # noqa: PLC0415, slow to import

        return run_find(
            FindOptions(
                key=key,
                key_regex=key_regex,
                value_contains=value_contains,
                from_ms=from_ms,
                to_ms=to_ms,
                limit=limit,
                fail_if_none=fail_if_none,
                isolation=isolation,
                values=values,
                as_json=as_json,
                max_decompressed_bytes=max_decompressed_bytes,
                engine=engine,
                detail=detail,
            ),
            read,
        )

    return command(
        find,
        [
            *input_options(),
            click.option("--key", metavar="KEY", help=f"What the key is. {_BYTES_HELP}"),
            click.option(
                "--key-regex",
                metavar="REGEX",
                help="What some part of the key matches (RE2; ^ and $ are its ends).",
            ),
            click.option(
                "--value-contains", metavar="TEXT", help=f"What the value contains. {_BYTES_HELP}"
            ),
            *time_options(),
            click.option("--limit", type=Whole(min=1), metavar="N", help="Stop after N records."),
            click.option("--fail-if-none", is_flag=True, help="Exit with 1 if no record is found."),
            isolation_option(),
            click.option(
                "--values",
                type=click.Choice(["text", "hex", "none"]),
                default="text",
                show_default=True,
                help="How values and headers are printed.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON lines."),
            *run_options(as_job=as_job),
        ],
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage="--input PATH... (--key KEY | --key-regex REGEX | --value-contains TEXT) [OPTIONS]",
    )

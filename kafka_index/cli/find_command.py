"""``find``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.options import Whole, command, flag, function_of, option
from kafka_index.cli.shared_options import (
    Detail,
    RecordOptions,
    Times,
    detail_options,
    engine_options,
    isolation_option,
    times_options,
)
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group

_HELP = """Find records by key, value and time in the logs below PATH.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; with `--tiered URI`, or with that alone, remote segments are read too. Several
    conditions have to hold together. Records are printed by topic, partition and offset, as a
    table or, with --json, as the lines of `dump --records --json` with topic and partition. What
    was searched, and what was not, is said on stderr. Logs are only read.

    Exit code 0: all was searched, with or without a match. 1: damage was passed over, lines on
    stderr say where; or no record was found, with --fail-if-none. 2: wrong usage, or there is
    nothing to search. 3: permission, disk, memory, network or cluster, worth a retry.
    """
_EXAMPLES = """\
kafka-index find --input /dump/broker-1 --topics orders --key order-4711
kafka-index find --input /dump/* --key-regex '^user-(7|9)$' --from 2024-05-01 --to 2024-05-02
kafka-index find --input s3://dumps/broker-1 --value-contains 4111-1111 --limit 10 --json
"""
_JOB_EXAMPLES = """\
spark-submit jobs/find.py --input s3://dumps/broker-1 --key order-4711 --json
"""
_BYTES_HELP = "Text, or bytes as hex:00ff or base64:AP8=."


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOptions(RecordOptions):
    """The options of ``find``."""

    key: str | None = option(
        "--key", group=Group.SELECTION, metavar="KEY", help=f"What the key is. {_BYTES_HELP}"
    )
    key_regex: str | None = option(
        "--key-regex",
        group=Group.SELECTION,
        metavar="REGEX",
        help="What some part of the key matches (RE2; ^ and $ are its ends).",
    )
    value_contains: str | None = option(
        "--value-contains",
        group=Group.SELECTION,
        metavar="TEXT",
        help=f"What the value contains. {_BYTES_HELP}",
    )
    times: Times = times_options()
    limit: int | None = option(
        "--limit",
        group=Group.SELECTION,
        type=Whole(min=1),
        metavar="N",
        help="Stop after N records.",
    )
    fail_if_none: bool = flag(
        "--fail-if-none", group=Group.BEHAVIOUR, help="Exit with 1 if no record is found."
    )
    isolation: str = isolation_option()
    values: str = option(
        "--values",
        group=Group.OUTPUT,
        type=click.Choice(["text", "hex", "none"]),
        default="text",
        help="How values and headers are printed.",
    )
    as_json: bool = flag("--json", group=Group.OUTPUT, help="Print JSON lines.")
    engine: Engine = engine_options()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        RecordOptions.__post_init__(self)
        if self.key is not None and self.key_regex is not None:
            raise click.UsageError("--key and --key-regex are mutually exclusive")
        if self.key is None and self.key_regex is None and self.value_contains is None:
            raise click.UsageError(
                "no condition: give --key, --key-regex or --value-contains; kafka-index cat prints "
                "all records of a topic"
            )


make_command = partial(
    command,
    "find",
    FindOptions,
    function_of("find_and_cat", "run_find"),
    help_text=_HELP,
    usage="--input PATH... (--key KEY | --key-regex REGEX | --value-contains TEXT) [OPTIONS]",
    examples=_EXAMPLES,
    job_examples=_JOB_EXAMPLES,
)

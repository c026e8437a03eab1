"""``cat``: its options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.completion import complete_topic
from kafka_index.cli.options import Whole, command, flag, function_of, option, option_group
from kafka_index.cli.shared_options import (
    Detail,
    Times,
    detail_options,
    indexes_option,
    input_option,
    isolation_option,
    max_decompressed_option,
    refuse_no_logs,
    tiered_options,
    times_options,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.names import is_legal_topic
from kafka_index.core.job.request import Group

_HELP = """Print the records of a TOPIC in the logs below PATH.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; with `--tiered URI`, or with that alone, remote segments are read too. Records
    come by partition and offset, or with --by-time by timestamp. Ends of ranges are exclusive. How
    many records were printed is said on stderr. Logs are only read.

    \b
    The tokens of a format are those of kcat's -f:
      %t %p %o  topic, partition, offset
      %k %s     key, value (also %v); nothing for null, or NULL with -Z
      %K %S %R  length of the key, of the value, and that as 4 bytes (big-endian); -1 for null
      %T %h %%  timestamp (ms since 1970, -1 for none), headers (name=value,...), a percent sign
      \\n \\t \\r  line end, tab, carriage return; \\xHH a byte, \\\\ a backslash
    Nothing is added to it: a line ends with \\n.

    Exit code 0: all was read, whether there is a record or not. 1: damage was passed over, lines on
    stderr say where. 2: wrong usage, or no such topic. 3: permission, disk, memory or network,
    worth a retry.
    """
_EXAMPLES = r"""
kafka-index cat orders --input /dump/broker-1 -n 10
kafka-index cat orders --input /dump/* --tail -n 10 --by-time
kafka-index cat orders --input /dump/broker-1 -p 0 -o 100..200 --format json
kafka-index cat orders --input s3://dumps/broker-1 --from -1h --format '%o %k %s\n'
"""
_TEXT, _JSON = "text", "json"
_RANGE = re.compile(r"(\d*)(\.\.)?(\d*)", re.ASCII)
_DEFAULT_TAIL = 10
#: First offset and end; None for those of the log.
Range = tuple[int | None, int | None]


def _offsets(value: str | None) -> Range:
    """Return the offsets of ``A..B``, ``A..``, ``..B`` or ``A``, which is ``A..``."""
    if value is None:
        return None, None
    found = _RANGE.fullmatch(value)
    if found is None or not (found[1] or found[3]):
        raise click.BadParameter(
            f"{value!r} is not a range of offsets such as 100..200, 100.. or ..200"
        )
    first, end = (int(text) if text else None for text in (found[1], found[3]))
    if max(first or 0, end or 0) > INT64_MAX:
        raise click.BadParameter(f"{value!r} is beyond the largest offset, {INT64_MAX}")
    if first is not None and end is not None and first >= end:
        raise click.BadParameter(f"no offset is in {value}: the end is exclusive")
    return first, end


def _form(value: str) -> str:
    if value not in (_TEXT, _JSON) and "%" not in value:
        raise click.BadParameter(
            rf"{value!r} is not text, json, or a format with tokens such as '%o %k %s\n'"
        )
    return value


class _Topic(click.Argument):
    """The first word that is not an option's; the usage names it before the options."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, because click passes it
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class CatOptions:
    """The options of ``cat``."""

    topic: str = option_group(
        _Topic(["topic"], metavar="TOPIC", shell_complete=complete_topic), make=lambda topic: topic
    )
    inputs: tuple[str, ...] = input_option(
        "The logs; may be given several times and take several paths. The topic comes before."
    )
    partitions: tuple[int, ...] = option(
        "-p",
        "--partition",
        group=Group.SELECTION,
        type=Whole(0, INT32_MAX),
        multiple=True,
        metavar="N",
        help="A partition; may be repeated.  [default: all]",
    )
    offsets: Range = option(
        "-o",
        "--offsets",
        group=Group.SELECTION,
        parse=_offsets,
        metavar="A..B",
        help="Only the offsets from A to before B; A.. and ..B have one end.",
    )
    times: Times = times_options()
    count: int | None = option(
        "-n",
        "--limit",
        group=Group.SELECTION,
        type=Whole(min=1),
        metavar="N",
        help="The first N records; with --tail the last ones.",
    )
    is_tail: bool = flag(
        "--tail",
        group=Group.SELECTION,
        help="The last records of each partition; of all together with --by-time.  "
        f"[default of -n: {_DEFAULT_TAIL}]",
    )
    by_time: bool = flag(
        "--by-time",
        group=Group.OUTPUT,
        help="Records of all partitions by timestamp; within a partition, offsets stay in order.",
    )
    form: str = option(
        "-f",
        "--format",
        group=Group.OUTPUT,
        parse=_form,
        default=_TEXT,
        metavar="text|json|FORMAT",
        help="A table, JSON lines, or a format of kcat's tokens.",
    )
    names_null: bool = flag(
        "-Z", "--null", group=Group.OUTPUT, help="Print null as NULL in a format."
    )
    isolation: str = isolation_option()
    tiered: TieredOptions | None = tiered_options()
    indexes: str | None = indexes_option()
    max_decompressed_bytes: int = max_decompressed_option()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        refuse_no_logs(self.inputs, self.tiered)
        if not is_legal_topic(self.topic):
            raise click.UsageError(
                f"{self.topic!r} is not a legal topic: the topic comes before --input"
            )
        if self.names_null and self.template is None:
            raise click.UsageError("-Z goes with a --format of tokens: text and json have null")

    @property
    def last(self) -> int | None:
        """The number of records if the last ones are wanted, None for the first ones or all."""
        return (self.count or _DEFAULT_TAIL) if self.is_tail else None

    @property
    def as_json(self) -> bool:
        """Whether records are printed as JSON lines."""
        return self.form == _JSON

    @property
    def template(self) -> str | None:
        """The format of tokens; None for another one."""
        return None if self.form in (_TEXT, _JSON) else self.form


make_command = partial(
    command,
    "cat",
    CatOptions,
    function_of("find_and_cat", "run_cat"),
    help_text=_HELP,
    usage="TOPIC --input PATH... [OPTIONS]",
    examples=_EXAMPLES,
)

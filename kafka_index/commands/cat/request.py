"""The request of ``cat``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kafka_index.core.errors import ConfigError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.names import is_legal_topic
from kafka_index.core.job.request import (
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Kind,
    ManyKind,
    Moment,
    TextKind,
    parameter,
)
from kafka_index.core.parameters import (
    LogRequest,
    from_parameter,
    indexes_parameter,
    max_decompressed_parameter,
    time_range_ms,
    to_parameter,
)
from kafka_index.core.query.choices import Isolation, isolation_parameter

_RANGE = re.compile(r"(\d*)(\.\.)?(\d*)", re.ASCII)
_DEFAULT_TAIL = 10


class TopicKind(TextKind):
    """The name of a topic."""

    completes = "topic"

    def convert(self, value: Any, name: str, now: int) -> str:
        """Return the name; refuse what cannot be one, such as a path."""
        text = super().convert(value, name, now)
        if not is_legal_topic(text):
            raise ConfigError(
                f"{name} is not a legal topic name",
                found=text,
                hint="give the topic before --input",
            )
        return text


class OffsetRangeKind(Kind):
    """Offsets as ``A..B``, ``A..``, ``..B``, or ``A``, which is ``A..``; the end is exclusive."""

    metavar = "A..B"

    def convert(self, value: Any, name: str, now: int) -> tuple[int | None, int | None]:  # noqa: ARG002
        """Return the first offset and the end; None for those of the log."""
        match = _RANGE.fullmatch(value)
        if match is None or not (match[1] or match[3]):
            raise ConfigError(
                f"{name} is not a range of offsets",
                expected="100..200, 100.. or ..200",
                found=value,
            )
        first, end = (int(text) if text else None for text in (match[1], match[3]))
        if max(first or 0, end or 0) > INT64_MAX:
            raise ConfigError(
                f"{name} is beyond the largest offset", expected=f"at most {INT64_MAX}", found=value
            )
        if first is not None and end is not None and first >= end:
            raise ConfigError(f"{name} has no offset: the end is exclusive", found=value)
        return first, end


@dataclass(frozen=True, slots=True, kw_only=True)
class CatRequest(LogRequest):
    """Parameters of a read of a topic."""

    topic: str = parameter(TopicKind("TOPIC"), Group.INPUT, "A topic.", is_argument=True)
    partitions: tuple[int, ...] = parameter(
        ManyKind(IntegerKind(0, INT32_MAX)),
        Group.SELECTION,
        "A partition; may be repeated.  [default: all]",
        "--partition",
        "-p",
        default=(),
    )
    offsets: tuple[int | None, int | None] = parameter(
        OffsetRangeKind(),
        Group.SELECTION,
        "Only the offsets from A to before B; A.. and ..B have one end.",
        "--offsets",
        "-o",
        default=(None, None),
    )
    from_time: Moment | None = from_parameter()
    to_time: Moment | None = to_parameter()
    limit: int | None = parameter(
        IntegerKind(1),
        Group.SELECTION,
        "The first N records; with --tail the last ones.",
        "--limit",
        "-n",
        default=None,
    )
    is_tail: bool = parameter(
        FlagKind(),
        Group.SELECTION,
        "The last records of each partition; of all together with --by-time.  "
        f"[default of -n: {_DEFAULT_TAIL}]",
        "--tail",
        default=False,
    )
    isolation: Isolation = isolation_parameter()
    by_time: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Records of all partitions by timestamp; within a partition, offsets stay in order.",
        default=False,
    )
    indexes: str | None = indexes_parameter()
    max_decompressed_bytes: int = max_decompressed_parameter()

    def __post_init__(self) -> None:
        super(CatRequest, self).__post_init__()
        time_range_ms(self.from_time, self.to_time)

    @property
    def last(self) -> int | None:
        """The number of records if the last ones are read, None for the first ones or all."""
        return (self.limit or _DEFAULT_TAIL) if self.is_tail else None

    @property
    def first(self) -> int | None:
        """The number of records if the first ones are read, None for the last ones or all."""
        return None if self.is_tail else self.limit


CAT = CommandSpec(
    "cat",
    CatRequest,
    work="commands.cat.result:read_topic",
    help="""Print the records of a TOPIC in the logs below PATH.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; `--tiered` adds remote segments, or reads only those if --input is omitted.
    Records are printed by partition and offset, or with --by-time by timestamp. Ends of ranges are
    exclusive. The last line, on stderr, has the number of records. Logs are only read.

    \b
    The tokens of a format are those of kcat's -f:
      %t %p %o  topic, partition, offset
      %k %s     key, value (also %v); nothing for null, or NULL with -Z
      %K %S %R  length of the key, of the value, and that as 4 bytes (big-endian); -1 for null
      %T %h %%  timestamp (ms since 1970, -1 for none), headers (name=value,...), a percent sign
      \\n \\t \\r  line end, tab, carriage return; \\xHH a byte, \\\\ a backslash
    Nothing is added to it: a line ends with \\n.

    Exit code 0: everything was read, with or without a record. 1: corrupt ranges were skipped,
    stderr lists them. 2: wrong usage, or no such topic. 3: permission, disk, memory or network:
    retriable.
    """,
    usage="TOPIC --input PATH... [OPTIONS]",
    examples=r"""
kafka-index cat orders --input /dump/broker-1 -n 10
kafka-index cat orders --input /dump/* --tail -n 10 --by-time
kafka-index cat orders --input /dump/broker-1 -p 0 -o 100..200 --format json
kafka-index cat orders --input s3://dumps/broker-1 --from -1h --format '%o %k %s\n'
""",
    has_engine=False,
)

"""The request of ``cat``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kafka_index.core.errors import ConfigError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.job.request import (
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Kind,
    ManyKind,
    Moment,
    TopicKind,
    parameter,
)
from kafka_index.core.log.choices import Isolation
from kafka_index.core.parameters import (
    DecodeFields,
    LogRequest,
    from_parameter,
    indexes_parameter,
    isolation_parameter,
    max_decompressed_parameter,
    time_range_ms,
    to_parameter,
)

_RANGE = re.compile(r"(\d*)(\.\.)?(\d*)", re.ASCII)
_DEFAULT_TAIL = 10


class OffsetRangeKind(Kind):
    """Offsets as ``A..B``, ``A..``, ``..B``, or ``A`` (the same as ``A..``); end exclusive."""

    metavar = "A..B"

    def convert(self, value: Any, name: str, now: int) -> tuple[int | None, int | None]:  # noqa: ARG002
        """Return the first offset and the exclusive end; None for an open end of the range."""
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
                f"{name} exceeds the largest offset", expected=f"at most {INT64_MAX}", found=value
            )
        if first is not None and end is not None and first >= end:
            raise ConfigError(
                f"{name} contains no offset, because the end is exclusive", found=value
            )
        return first, end


@dataclass(frozen=True, slots=True, kw_only=True)
class CatRequest(DecodeFields, LogRequest):
    """Parameters of a read of a topic."""

    topic: str = parameter(
        TopicKind("TOPIC", "give the topic before --input"),
        Group.INPUT,
        "A topic.",
        is_argument=True,
    )
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
        "Only offsets from A, and before B. A.. and ..B are open ranges.",
        "--offsets",
        "-o",
        default=(None, None),
    )
    from_time: Moment | None = from_parameter()
    to_time: Moment | None = to_parameter()
    limit: int | None = parameter(
        IntegerKind(1),
        Group.SELECTION,
        "Print the first N records, or with --tail the last N.",
        "--limit",
        "-n",
        default=None,
    )
    is_tail: bool = parameter(
        FlagKind(),
        Group.SELECTION,
        "Print the last records of each partition, or with --by-time of all partitions together.  "
        f"[default of -n: {_DEFAULT_TAIL}]",
        "--tail",
        default=False,
    )
    isolation: Isolation = isolation_parameter()
    by_time: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Sort the records of all partitions by timestamp. Within a partition, offsets stay in "
        "order.",
        default=False,
    )
    indexes: str | None = indexes_parameter()
    max_decompressed_bytes: int = max_decompressed_parameter()

    def __post_init__(self) -> None:
        super(CatRequest, self).__post_init__()
        time_range_ms(self.from_time, self.to_time)

    @property
    def last(self) -> int | None:
        """The limit if the last records are requested, otherwise None."""
        return (self.limit or _DEFAULT_TAIL) if self.is_tail else None

    @property
    def first(self) -> int | None:
        """The limit if the first records are requested, otherwise None."""
        return None if self.is_tail else self.limit


CAT = CommandSpec(
    "cat",
    CatRequest,
    work="commands.cat.result:read_topic",
    help="""Print the records of a TOPIC in the logs at PATH.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. `--tiered` adds remote segments, or reads only those if --input is omitted. Logs are
    opened read-only.

    Records are sorted by partition and offset, or by timestamp with --by-time. The end of a range
    is exclusive. With --decode, keys or values are printed as JSON. The last line, on stderr,
    reports the number of records.

    \b
    A format has the tokens of kcat's -f:
      %t %p %o  topic, partition, offset
      %k %s %v  key, value, value; empty for null, or NULL with -Z
      %K %S %R  key length, value length, value length as 4 bytes (big-endian);
                -1 for null
      %T %h %%  timestamp (ms since 1970, or -1), headers (name=value,...), %
      \\n \\t \\r  line end, tab, carriage return
      \\xHH \\\\   a byte, a backslash
    No line end is added to a format: end it with \\n.

    \b
    Exit codes:
      0   Everything was read, even if no record matched.
      1   Corrupt ranges were skipped. They are listed on stderr. Or keys or
          values did not decode.
      2   Wrong usage, or the topic does not exist.
      3   Retriable failure: permission, disk, memory or network.
      70  Internal error.
    """,
    usage="TOPIC --input PATH... [OPTIONS]",
    examples=r"""
kafka-index cat orders --input /dump/broker-1 -n 10
kafka-index cat orders --input /dump/* --tail -n 10 --by-time
kafka-index cat orders --input /dump/broker-1 -p 0 -o 100..200 --format json
kafka-index cat orders --input /dump/broker-1 --decode value -n 10
kafka-index cat orders --input s3://dumps/broker-1 --from -1h --format '%o %k %s\n'
""",
    has_engine=False,
)

"""The request of ``find``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka_index.core.job.request import (
    BytesKind,
    CommandSpec,
    Group,
    IntegerKind,
    Moment,
    TextKind,
    parameter,
    parameters,
)
from kafka_index.core.log.choices import Isolation
from kafka_index.core.parameters import (
    DecodeRequest,
    from_parameter,
    isolation_parameter,
    time_range_ms,
    to_parameter,
)

_BYTES_HELP = "Text, or bytes such as hex:00ff or base64:AP8=."
# Fields with a condition: a search needs at least one.
_CONDITIONS = ("key", "key_regex", "value_contains", "where")


class RegexKind(TextKind):
    """A regular expression of RE2."""

    def convert(self, value: Any, name: str, now: int) -> str:
        from kafka_index.core.query.settings import RecordFilter  # noqa: PLC0415, slow to import

        text = super().convert(value, name, now)
        RecordFilter(key_regex=text)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest(DecodeRequest):
    """Parameters of a search. `columns` are columns of the records; by default Spark's."""

    key: bytes | None = parameter(
        BytesKind("KEY"), Group.SELECTION, f"Key of the record. {_BYTES_HELP}", default=None
    )
    key_regex: str | None = parameter(
        RegexKind("REGEX"),
        Group.SELECTION,
        "Regular expression (RE2) that matches part of the key. ^ and $ match its ends.",
        default=None,
    )
    value_contains: bytes | None = parameter(
        BytesKind(), Group.SELECTION, f"Part of the value. {_BYTES_HELP}", default=None
    )
    where: str | None = parameter(
        TextKind("EXPR"),
        Group.SELECTION,
        "Condition over topic, partition, offset, timestamp, key and header('NAME'). With "
        "--decode, also over members such as value.customer.id.",
        default=None,
    )
    from_time: Moment | None = from_parameter()
    to_time: Moment | None = to_parameter()
    limit: int | None = parameter(
        IntegerKind(1), Group.SELECTION, "Stop after N records.", default=None
    )
    isolation: Isolation = isolation_parameter()
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super(FindRequest, self).__post_init__()
        time_range_ms(self.from_time, self.to_time)
        if self.key is not None and self.key_regex is not None:
            self.refuse("{key} and {key_regex} are mutually exclusive")
        if all(getattr(self, name) is None for name in _CONDITIONS):
            *names, last = (f"{{{name}}}" for name in _CONDITIONS)
            self.refuse(
                f"a condition is required: give {', '.join(names)} or {last}; kafka-index cat "
                "prints all records of a topic"
            )


def _conditions_usage() -> str:
    options = parameters(FindRequest)
    return " | ".join(
        f"--{name.replace('_', '-')} {options[name].kind.metavar}" for name in _CONDITIONS
    )


FIND = CommandSpec(
    "find",
    FindRequest,
    work="commands.find.result:find",
    help="""Find records by key, value and time in the logs at PATH.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. `--tiered` adds remote segments, or reads only those if --input is omitted. Logs are
    opened read-only.

    A record must meet all conditions. Records are printed as a table, by topic, partition and
    offset. With --json, each line is as of `dump --records --json`, plus topic and partition. The
    last lines, on stderr, report how much data was searched, and which data was not.

    \b
    Exit codes:
      0   Everything was searched, even if no record matched.
      1   Corrupt ranges were skipped (they are listed on stderr), or no
          record matched with --fail-if-none. Or keys or values did not decode.
      2   Wrong usage, or there is nothing to search.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage=f"--input PATH... ({_conditions_usage()}) [OPTIONS]",
    examples="""\
kafka-index find --input /dump/broker-1 --topics orders --key order-4711
kafka-index find --input /dump/* --key-regex '^user-(7|9)$' --from 2024-05-01 --to 2024-05-02
kafka-index find --input /dump/broker-1 --topics orders --decode value \\
    --where "value.customer.id = 'c-17' AND value.total > 100"
kafka-index find --input s3://dumps/broker-1 --value-contains 4111-1111 --limit 10 --json
""",
    job_examples="""\
spark-submit jobs/find.py --input s3://dumps/broker-1 --key order-4711 --json
""",
)

"""The request of ``find``."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.core.job.request import (
    BytesKind,
    CommandSpec,
    Group,
    IntegerKind,
    Moment,
    TextKind,
    parameter,
)
from kafka_index.core.parameters import (
    RecordRequest,
    from_parameter,
    time_range_ms,
    to_parameter,
)
from kafka_index.core.query.choices import Isolation, isolation_parameter

_BYTES_HELP = "Text, or bytes as hex:00ff or base64:AP8=."


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest(RecordRequest):
    """Parameters of a search. `columns` are those of the records; by default Spark's."""

    key: bytes | None = parameter(
        BytesKind("KEY"), Group.SELECTION, f"The key. {_BYTES_HELP}", default=None
    )
    key_regex: str | None = parameter(
        TextKind("REGEX"),
        Group.SELECTION,
        "A regular expression that matches a part of the key (RE2; ^ and $ are its ends).",
        default=None,
    )
    value_contains: bytes | None = parameter(
        BytesKind(), Group.SELECTION, f"A part of the value. {_BYTES_HELP}", default=None
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
            self.refuse("{key} and {key_regex} exclude each other")
        if self.key is None and self.key_regex is None and self.value_contains is None:
            self.refuse(
                "no condition: give {key}, {key_regex} or {value_contains}; kafka-index cat prints "
                "all records of a topic"
            )


FIND = CommandSpec(
    "find",
    FindRequest,
    work="commands.find.result:find",
    help="""Find records by key, value and time in the logs below PATH.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; `--tiered` adds remote segments, or reads only those if --input is omitted. A
    record must meet all conditions. Records are printed by topic, partition and offset, as a table
    or, with --json, as the lines of `dump --records --json` with topic and partition. The last
    lines, on stderr, report what was searched, and what was not. Logs are only read.

    Exit code 0: everything was searched, with or without a match. 1: corrupt ranges were skipped,
    stderr lists them; or no record was found, with --fail-if-none. 2: wrong usage, or there is
    nothing to search. 3: permission, disk, memory, network or cluster: retriable.
    """,
    usage="--input PATH... (--key KEY | --key-regex REGEX | --value-contains TEXT) [OPTIONS]",
    examples="""\
kafka-index find --input /dump/broker-1 --topics orders --key order-4711
kafka-index find --input /dump/* --key-regex '^user-(7|9)$' --from 2024-05-01 --to 2024-05-02
kafka-index find --input s3://dumps/broker-1 --value-contains 4111-1111 --limit 10 --json
""",
    job_examples="""\
spark-submit jobs/find.py --input s3://dumps/broker-1 --key order-4711 --json
""",
)

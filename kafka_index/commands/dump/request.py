"""The request of ``dump``."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.job.request import (
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Moment,
    OffKind,
    PathsKind,
    Request,
    TimeKind,
    parameter,
)
from kafka_index.core.parameters import (
    follow_links_parameter,
    from_parameter,
    max_decompressed_parameter,
    time_range_ms,
    to_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest(Request):
    """Parameters of a dump."""

    files: tuple[str, ...] = parameter(
        PathsKind("FILE"), Group.INPUT, "Files, or directories.", is_argument=True
    )
    offset: int | None = parameter(
        IntegerKind(0, INT64_MAX),
        Group.SELECTION,
        "Only the batch, the record or the transactions that contain offset N, or the index entry "
        "from which a search for it starts.",
        default=None,
    )
    from_time: Moment | None = from_parameter()
    to_time: Moment | None = to_parameter()
    at_time: Moment | None = parameter(
        TimeKind(),
        Group.SELECTION,
        "Only the first batch, record or entry that reaches TIME.",
        "--at",
        "--time",
        default=None,
    )
    limit: int | None = parameter(
        IntegerKind(1), Group.SELECTION, "At most N rows of each file.", default=None
    )
    verify_crc: bool = parameter(
        OffKind(),
        Group.BEHAVIOUR,
        "Do not verify the checksums of a .log.",
        "--no-verify-crc",
        default=True,
    )
    records: bool = parameter(
        FlagKind(), Group.OUTPUT, "Print a line per record of a .log.", default=False
    )
    max_decompressed_bytes: int = max_decompressed_parameter()
    follow_links: bool = follow_links_parameter()

    def __post_init__(self) -> None:
        times = time_range_ms(self.from_time, self.to_time)
        if self.at_time is not None and (times != (None, None) or self.limit is not None):
            self.refuse("{at_time} excludes {from_time}, {to_time} and {limit}")


DUMP = CommandSpec(
    "dump",
    DumpRequest,
    work="commands.dump.dump_files:dump_files",
    help="""Print the contents of each FILE: a row per record batch of a .log, or per record with
    --records; per entry of an .index, .timeindex or .txnindex; per producer of a .snapshot; per
    epoch of a leader-epoch-checkpoint. Offsets are absolute; the base offset is taken from the file
    name, which may also end in .swap, .cleaned or .deleted. Files are opened read-only. A FILE may
    be a URI (s3://, gs://, abfs://, hdfs://), or a glob of URIs in quotes. Checkpoints of offsets,
    meta.properties and partition.metadata are printed unchanged. For a directory, a line per
    segment is printed: offsets, times, bytes, batches, codecs and damage.

    Times are printed as such, in JSON in milliseconds. On a terminal, a table has the columns that
    fit, and lines of records are cut; --wide prints all.

    A log is read as far as a broker's recovery would keep it, and the last line reports why it ends
    there. Zeros after the entries of a preallocated index are counted, not printed.

    Keys and values of records are printed as text if they are UTF-8, in quotes and with escapes,
    otherwise as hex digits: 0x00ff, or {"hex": "00ff"} in JSON. Records of Kafka's own topics, such
    as __consumer_offsets, are printed decoded, unless --keys or --values are given; in JSON, next
    to the bytes. Credentials and configurations that may be secret are not printed.

    Exit codes: 0, the files are intact; 1, a file is corrupt: its valid part is printed, and stderr
    reports the corruption; 2, wrong usage, or an unknown kind of file; 3, a file cannot be read
    because of permission, disk or memory; 70, an internal error.
    """,
    usage="[OPTIONS] FILE...",
    examples="""\
kafka-index dump /dump/orders-0/00000000000000000000.log
kafka-index dump --records --values none /dump/orders-0/00000000000000000000.log
kafka-index dump /dump/orders-0
kafka-index dump --records --offset 1234 /dump/orders-0/00000000000000000000.log
kafka-index dump --json /dump/orders-0/*.timeindex | head
kafka-index dump 's3://backup/broker-1/orders-0/*.index'
""",
    has_engine=False,
)

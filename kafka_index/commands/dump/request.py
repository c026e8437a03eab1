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
    TimeKind,
    parameter,
)
from kafka_index.core.parameters import (
    DecodeFields,
    follow_links_parameter,
    from_parameter,
    max_decompressed_parameter,
    time_range_ms,
    to_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest(DecodeFields):
    """Parameters of a dump."""

    files: tuple[str, ...] = parameter(
        PathsKind("FILE"), Group.INPUT, "Files, or directories.", is_argument=True
    )
    offset: int | None = parameter(
        IntegerKind(0, INT64_MAX),
        Group.SELECTION,
        "Only the batch, record or transactions that contain offset N, or the index entry at "
        "which a lookup of N starts.",
        default=None,
    )
    from_time: Moment | None = from_parameter()
    to_time: Moment | None = to_parameter()
    at_time: Moment | None = parameter(
        TimeKind(),
        Group.SELECTION,
        "Only the first batch, record or entry at or after TIME.",
        "--at",
        "--time",
        default=None,
    )
    limit: int | None = parameter(
        IntegerKind(1), Group.SELECTION, "Print at most N rows of each file.", default=None
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
        super(DumpRequest, self).__post_init__()
        if self.decode is not None and not self.records:
            self.refuse("{decode} requires {records}")
        times = time_range_ms(self.from_time, self.to_time)
        if self.at_time is not None and (times != (None, None) or self.limit is not None):
            self.refuse("{at_time} excludes {from_time}, {to_time} and {limit}")


DUMP = CommandSpec(
    "dump",
    DumpRequest,
    work="commands.dump.dump_files:dump_files",
    help="""Print the contents of each FILE, or the segments of a directory.

    \b
    Each kind of file has its own rows:
      .log                           a batch; with --records a record
      .index, .timeindex, .txnindex  an entry
      .snapshot                      a producer
      leader-epoch-checkpoint        a leader epoch
      a directory                    a segment: offsets, times, bytes, batches,
                                     codecs and damage

    Offset checkpoints, meta.properties and partition.metadata are printed unchanged. A FILE may be
    a URI (s3://, gs://, abfs://, hdfs://), or a glob of URIs in quotes. Files are opened read-only.

    Offsets are absolute. The base offset is taken from the file name, which may also end in .swap,
    .cleaned or .deleted. JSON contains times in milliseconds. On a terminal, columns that do not
    fit are omitted, and long lines are truncated. --wide prints them in full.

    A log is read up to the byte at which log recovery would truncate it. The last line reports the
    reason. Zeros after the entries of a preallocated index are counted, but not printed.

    Keys and values are printed as quoted text if they are UTF-8, otherwise as hex digits (0x00ff,
    in JSON {"hex": "00ff"}). Records of internal topics, such as __consumer_offsets, are printed
    decoded unless --keys or --values is given. JSON contains the decoded fields and the bytes.
    Credentials and sensitive configurations are not printed.

    --records --decode prints decoded keys or values. By default, the schemas are read from the
    topic _schemas next to the folder of the partition.

    \b
    Exit codes:
      0   The files are intact.
      1   A file is corrupt. Its valid part is printed, and stderr reports
          the corruption. Or keys or values did not decode.
      2   Wrong usage, or an unknown kind of file.
      3   Retriable failure: permission, disk or memory.
      70  Internal error.
    """,
    usage="[OPTIONS] FILE...",
    examples="""\
kafka-index dump /dump/orders-0/00000000000000000000.log
kafka-index dump --records --values none /dump/orders-0/00000000000000000000.log
kafka-index dump --records --decode value /dump/orders-0/00000000000000000000.log
kafka-index dump /dump/orders-0
kafka-index dump --records --offset 1234 /dump/orders-0/00000000000000000000.log
kafka-index dump --json /dump/orders-0/*.timeindex | head
kafka-index dump 's3://backup/broker-1/orders-0/*.index'
""",
    has_engine=False,
)

"""The result of an import: a row per partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from kafka_index.commands.import_.import_manifest import ImportCounts
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.job.result import GOOD, Result, RunOutcome, Section

_INTEGERS = ("records", "first_offset", "end_offset", "segments", "size_bytes", "cut_bytes")
IMPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _INTEGERS),
    ]
)


@dataclass(frozen=True, slots=True)
class ImportedLog:
    """The log of a partition after an import: a row of `ImportResult`.

    Parameters
    ----------
    topic, partition : str, int
        The partition.
    records, first_offset : int
        The number of imported records, and the offset of the first.
    end_offset, segments, size_bytes : int
        The log end offset, number of segments and size of the complete log.
    cut_bytes : int
        Bytes of an incomplete last batch that was truncated before the import appended to the log.
    """

    topic: str
    partition: int
    records: int
    first_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    cut_bytes: int = 0

    @classmethod
    def of(cls, partition: TopicPartition, counts: ImportCounts) -> ImportedLog:
        """Return the row of a partition."""
        return cls(partition.topic, partition.partition, **asdict(counts))


@dataclass(frozen=True, repr=False)
class ImportResult(Result):
    """The result of `import_records`: a row per partition, as ``import --verbose`` prints them.

    Parameters
    ----------
    partitions : list of ImportedLog
        The imported partitions.
    output : str
        The data directory.
    is_new : bool
        Whether this call wrote them; False if an earlier call of the same import has finished.
    notices : list of str
        The contents that files of a layout lack, and the values written instead.
    """

    partitions: list[ImportedLog]
    output: str
    is_new: bool = True
    notices: list[str] = field(default_factory=list)

    command = "import"
    outcome = RunOutcome.DONE

    @property
    def headline(self) -> str:
        """The number of records and partitions, and whether an earlier call has written them."""
        counts = self.counts
        partitions = plural(counts["partitions"], "partition")
        earlier = "" if self.is_new else ", imported by an earlier run"
        size = format_bytes(self.sizes_bytes["logs"])
        records = plural(counts["records"], "record")
        return f"{records} in {partitions} ({size}) in {self.output}{earlier}"

    @property
    def facts(self) -> list[str]:
        """The notices."""
        return self.notices

    @property
    def sections(self) -> list[Section]:
        """The truncated logs, and all partitions as details."""
        truncated_logs = [row for row in self.partitions if row.cut_bytes]
        return [
            Section(
                "an incomplete last batch was truncated, as a broker does in log recovery, in "
                f"{plural(len(truncated_logs), 'partition')}:",
                [
                    f"{row.topic}-{row.partition}: {format_bytes(row.cut_bytes)}"
                    for row in truncated_logs
                ],
                noun="partition",
            ),
            Section(
                "imported:",
                list(map(_partition_line, self.partitions)),
                GOOD,
                noun="partition",
                is_detail=True,
            ),
        ]

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions, and imported records."""
        return {
            "partitions": len(self.partitions),
            "records": sum(row.records for row in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the logs, and bytes that were truncated from them."""
        truncated_bytes = sum(row.cut_bytes for row in self.partitions)
        logs = sum(row.size_bytes for row in self.partitions)
        return {"logs": logs, "cut": truncated_bytes} if truncated_bytes else {"logs": logs}

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_pylist([asdict(row) for row in self.partitions], IMPORT_SCHEMA)


def _partition_line(row: ImportedLog) -> str:
    return (
        f"{row.topic}-{row.partition}: {plural(row.records, 'record')} from offset "
        f"{row.first_offset}, log end {row.end_offset}, {plural(row.segments, 'segment')}"
    )

"""Partitions with offsets that are missing, and what each command says of them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index import find_records, read_records, verify
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES
from tests.support.command_line import run_here
from tests.support.golden_segments import GOLDEN

TABLE = GOLDEN / "cleaned.parquet"
#: Logs of a partition, batches of a log, and offsets of a batch.
LOGS, BATCHES, SPAN = 4, 6, 4

_LOGS = pa.map_(pa.int64(), pa.binary())
_SCHEMA = pa.schema(
    [
        pa.field("magic", pa.int8(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("cleaned_to", pa.int64(), nullable=False),
        pa.field("before", _LOGS, nullable=False),
        pa.field("after", _LOGS, nullable=False),
    ]
)


@dataclass(frozen=True)
class CleanedLogs:
    """A partition, its logs by base offset.

    `cleaned_to`: the first offset that the cleaner has not cleaned. `before`, `after`: the logs as
    they were written, and as the cleaner left them.
    """

    magic: int
    codec: str
    cleaned_to: int
    before: dict[int, bytes]
    after: dict[int, bytes]


def write_cleaned_logs(found: list[CleanedLogs]) -> None:
    """Write the table."""
    rows = [
        {**vars(one), "before": list(one.before.items()), "after": list(one.after.items())}
        for one in found
    ]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    pq.write_table(table, TABLE, compression="zstd", compression_level=19)


def read_cleaned_logs() -> list[CleanedLogs]:
    """Read the table."""
    return [
        CleanedLogs(**{**row, "before": dict(row["before"]), "after": dict(row["after"])})
        for row in pq.read_table(TABLE).to_pylist()
    ]


NAME = "orders-0"
END = LOGS * BATCHES * SPAN

#: The first and the last offset of each missing range.
Offsets = list[tuple[int, int]]
Removal = Callable[[Path], Offsets]


def write_partition(root: Path, logs: Mapping[int, bytes], cleaned_to: int | None = None) -> Path:
    """A data directory with a partition, perhaps with a checkpoint of the cleaner."""
    directory = root / NAME
    directory.mkdir(parents=True)
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw")
    (root / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    for base_offset, data in logs.items():
        (directory / f"{base_offset:020d}.log").write_bytes(data)
    if cleaned_to is not None:
        checkpoint(root, "cleaner-offset-checkpoint", cleaned_to)
    return root


def checkpoint(root: Path, name: str, offset: int) -> None:
    """Write a checkpoint with an entry for the partition."""
    (root / name).write_text(f"0\n1\norders 0 {offset}\n")


def log_at(root: Path, base_offset: int) -> Path:
    return root / NAME / f"{base_offset:020d}.log"


def remove_offsets(log: Path, first: int, last: int) -> None:
    """Take the entries out of a log whose offset in the header is in a range."""
    data, kept, at = log.read_bytes(), b"", 0
    while at < len(data):
        end = at + LOG_OVERHEAD_BYTES + int.from_bytes(data[at + 8 : at + LOG_OVERHEAD_BYTES])
        if not first <= int.from_bytes(data[at : at + 8]) <= last:
            kept += data[at:end]
        at = end
    log.write_bytes(kept)


def remove_batches_of_a_segment(root: Path) -> Offsets:
    remove_offsets(log_at(root, 72), 80, 83)
    return [(80, 83)]


def remove_segment_log(root: Path) -> Offsets:
    log_at(root, 48).unlink()
    return [(48, 71)]


def remove_segment_log_and_next_batches(root: Path) -> Offsets:
    log_at(root, 48).unlink()
    remove_offsets(log_at(root, 72), 72, 75)
    return [(48, 75)]


def remove_batches_of_two_segments(root: Path) -> Offsets:
    remove_offsets(log_at(root, 48), 60, 63)
    remove_offsets(log_at(root, 48), 68, 71)
    remove_offsets(log_at(root, 72), 76, 79)
    return [(60, 63), (68, 71), (76, 79)]


def remove_log_start(root: Path) -> Offsets:
    log_at(root, 0).unlink()
    checkpoint(root, "log-start-offset-checkpoint", 7)
    return [(7, 23)]


def remove_log_end(root: Path) -> Offsets:
    remove_offsets(log_at(root, 72), END - SPAN, END - 1)
    checkpoint(root, "replication-offset-checkpoint", END)
    return [(END - SPAN, END - 1)]


def time_index_at(root: Path, base_offset: int) -> Path:
    """Write the time index of a segment of `SPAN` offsets a batch, with room for more entries."""
    path = log_at(root, base_offset).with_suffix(".timeindex")
    path.write_bytes(struct.pack(">qi", 1, BATCHES * SPAN - 1) + bytes(24))
    return path


#: What a cleaner cannot have made that has been below offset 48.
REMOVALS: tuple[Removal, ...] = (
    remove_batches_of_a_segment,
    remove_segment_log,
    remove_segment_log_and_next_batches,
    remove_batches_of_two_segments,
    remove_log_start,
    remove_log_end,
)


def verified(root: Path) -> tuple[int, Offsets]:
    """The exit code of verify, and the offsets that it names as missing."""
    result = run_here("verify", "--input", root)
    (found,) = verify([root], threads=1).partitions
    lost = [(each.first_offset, (each.end_offset or 0) - 1) for each in found.lost]
    assert all(f"{first} to {last}" in result.stdout for first, last in lost)
    return result.returncode, sorted(lost)


def read(root: Path) -> Offsets:
    """The offsets that readers name as missing: not ok if any is lost."""
    records = read_records([root], on_damage="drop")
    actual = find_records([root], value_contains="no such value")
    for result in (records, actual):
        result.to_arrow()
        assert result.ok is not bool(result.missing_offsets.lost)
    gaps = [(gap.first_offset, gap.end_offset - 1) for gap in records.missing_offsets.ranges]
    assert actual.missing_offsets == records.missing_offsets
    return sorted(gaps)


def predicted(root: Path) -> tuple[int, Offsets]:
    """The exit code of predict, and the offsets that it names as missing."""
    result = run_here("predict", "--input", root, "--json")
    (found,) = json.loads(result.stdout)["partitions"]
    missing = [(each["first_offset"], each["last_offset"]) for each in found["missing"]]
    return result.returncode, sorted(missing)


def restored(*roots: Path) -> tuple[int, Offsets]:
    """The exit code of restore, and the offsets that it names as lost."""
    output = roots[0].parent / "out"
    report = output.with_suffix(".json")
    inputs = [part for root in roots for part in ("--input", root)]
    result = run_here("restore", *inputs, "--output", output, "--report", report)
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    shutil.rmtree(output)
    actual = [(row["first_offset"], row["last_offset"]) for row in rows if row["status"] == "lost"]
    assert all(f"{first} to {last}" in result.stdout for first, last in actual)
    assert ("nothing lost" in result.stdout) is (not actual)
    return result.returncode, sorted(actual)

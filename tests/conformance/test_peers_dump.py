"""``kafka-index dump`` and Kafka's own ``kafka-dump-log`` print the same of the same files.

Each row of ours is printed again in the words of Kafka's, field by field. Records are in
``test_dumped_records.py``.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kafka_index.cli.dump_command import make_command
from kafka_index.layout.records import COMPRESSION_MASK, COMPRESSION_NAMES
from tests.support.segments import (
    CONTROL,
    DELETE_HORIZON,
    INT32_MAX,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batch,
)

from .judged_files import write_batches
from .kafka_dump_log import kafka_dump
from .written_segments import FORMATS, NAMED, drawn_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from .judge import Judge

DUMP = Path(__file__).resolve().parents[2] / "examples" / "dump"
DRAWN = 300

Row = dict[str, Any]


def files_of_dump(suffix: str) -> list[Path]:
    """The files of a broker's topics; its own metadata log is not a topic."""
    found = sorted(path for path in DUMP.glob(f"*/*{suffix}") if path.stat().st_size)
    return [path for path in found if path.parent.name != "__cluster_metadata-0"]


def our_rows(path: Path) -> list[Row]:
    done = CliRunner().invoke(make_command(as_job=False), ["--json", str(path)])
    assert not done.exception, (path, done.output)
    return [json.loads(line) for line in done.stdout.splitlines() if '"remark"' not in line]


def assert_dumped_alike(files: list[Path], as_kafka_prints: Callable[[Row], str]) -> int:
    """The number of lines."""
    theirs = kafka_dump(files)
    for path in files:
        assert [as_kafka_prints(row) for row in our_rows(path)] == theirs[path], path
    return sum(map(len, theirs.values()))


# ---------------------------------------------------------------------------------- batches


def printed_batch(row: Row) -> str:
    bits = row["attributes"]
    if row["magic"] >= 2:
        line = f"baseOffset: {row['base_offset']} lastOffset: {row['last_offset']}"
        line += f" count: {row['record_count']}"
        line += f" baseSequence: {row['base_sequence']} lastSequence: {last_sequence(row)}"
        line += f" producerId: {row['producer_id']} producerEpoch: {row['producer_epoch']}"
        line += f" partitionLeaderEpoch: {row['leader_epoch']}"
        line += f" isTransactional: {flag(bits & TRANSACTIONAL)} isControl: {flag(bits & CONTROL)}"
        horizon = row["base_timestamp_ms"] if bits & DELETE_HORIZON else None
        line += f" deleteHorizonMs: {optional(horizon)}"
    else:
        line = f"offset: {row['last_offset']}"
    kind = "LogAppendTime" if bits & LOG_APPEND_TIME else "CreateTime"
    line += f" position: {row['position_bytes']}"
    line += f" {kind if row['magic'] else 'NoTimestampType'}: {row['max_timestamp_ms']}"
    line += f" size: {row['size_bytes']} magic: {row['magic']}"
    line += f" compresscodec: {COMPRESSION_NAMES[bits & COMPRESSION_MASK]}"
    return f"{line} crc: {row['crc']} isvalid: true"


def last_sequence(row: Row) -> int:
    """After the largest sequence comes 0."""
    first = row["base_sequence"]
    if first == -1:
        return -1
    return int((first + row["last_offset"] - row["base_offset"]) % (INT32_MAX + 1))


def flag(bits: int) -> str:
    return "true" if bits else "false"


def optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def test_batches_of_a_brokers_logs_are_those_that_kafka_prints() -> None:
    assert assert_dumped_alike(files_of_dump(".log"), printed_batch) > 5000


def test_batches_of_every_format_are_those_that_kafka_prints(judge: Judge, tmp_path: Path) -> None:
    rng = random.Random(20240229)
    segments = [*FORMATS, *NAMED, *(drawn_segment(rng) for _ in range(DRAWN))]
    logs = []
    for number, segment in enumerate(segments):
        log = tmp_path / f"t-{number}" / f"{segment.base_offset:020d}.log"
        log.parent.mkdir()
        write_batches(judge, log, segment.batches)
        logs.append(log)
    assert assert_dumped_alike(logs, printed_batch) > 5 * DRAWN


def test_sequences_that_restart_are_those_that_kafka_prints(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020d}.log"
    sequences = (0, INT32_MAX - 2, INT32_MAX - 1, INT32_MAX)
    log.write_bytes(
        b"".join(
            batch(3 * i, producer_id=5, producer_epoch=2**15 - 1, base_sequence=sequence)
            for i, sequence in enumerate(sequences)
        )
    )
    assert assert_dumped_alike([log], printed_batch) == len(sequences)


# ------------------------------------------------------------------------ the files beside it


def printed_offset_entry(row: Row) -> str:
    return f"offset: {row['offset']} position: {row['position_bytes']}"


def printed_time_entry(row: Row) -> str:
    return f"timestamp: {row['timestamp_ms']} offset: {row['offset']}"


def printed_aborted_transaction(row: Row) -> str:
    return (
        f"version: {row['version']} producerId: {row['producer_id']}"
        f" firstOffset: {row['first_offset']} lastOffset: {row['last_offset']}"
        f" lastStableOffset: {row['last_stable_offset']}"
    )


def printed_producer(row: Row) -> str:
    first = row["current_txn_first_offset"]
    line = f"producerId: {row['producer_id']} producerEpoch: {row['producer_epoch']}"
    line += f" coordinatorEpoch: {row['coordinator_epoch']}"
    line += f" currentTxnFirstOffset: {optional(None if first == -1 else first)}"
    line += f" lastTimestamp: {row['timestamp_ms']}"
    if row["last_offset"] == -1:
        return line
    last = row["last_sequence"]
    line += f" firstSequence: {(last - row['offset_delta']) % (INT32_MAX + 1)}"
    line += f" lastSequence: {last} lastOffset: {row['last_offset']}"
    return f"{line} offsetDelta: {row['offset_delta']} timestamp: {row['timestamp_ms']}"


def test_versions_of_aborted_transactions_are_those_that_kafka_prints(tmp_path: Path) -> None:
    index = tmp_path / f"{0:020d}.txnindex"
    versions = (0, 1, 2, 255, -1)
    index.write_bytes(
        b"".join(
            struct.pack(">hqqqq", version, 5, 10 * i, 10 * i + 1, 10 * i + 2)
            for i, version in enumerate(versions)
        )
    )
    printed = assert_dumped_alike([index], printed_aborted_transaction)
    assert printed == len(versions)


@pytest.mark.parametrize(
    ("suffix", "as_kafka_prints", "least"),
    [
        (".index", printed_offset_entry, 500),
        (".timeindex", printed_time_entry, 500),
        (".txnindex", printed_aborted_transaction, 20),
        (".snapshot", printed_producer, 20),
    ],
)
def test_files_of_a_broker_hold_what_kafka_prints(
    suffix: str, as_kafka_prints: Callable[[Row], str], least: int
) -> None:
    assert assert_dumped_alike(files_of_dump(suffix), as_kafka_prints) > least


@pytest.mark.parametrize(
    ("suffix", "as_kafka_prints", "entry_bytes"),
    [(".index", printed_offset_entry, 8), (".timeindex", printed_time_entry, 12)],
)
def test_zeros_after_the_entries_of_an_open_index_are_printed_by_neither(
    tmp_path: Path, suffix: str, as_kafka_prints: Callable[[Row], str], entry_bytes: int
) -> None:
    (tmp_path / "t-0").mkdir()
    filled = max(files_of_dump(suffix), key=lambda path: path.stat().st_size)
    copies = {end: tmp_path / "t-0" / f"{filled.stem}{end}" for end in (".log", ".index", suffix)}
    for end, copy in copies.items():
        copy.write_bytes(filled.with_suffix(end).read_bytes())
    entries = filled.stat().st_size // entry_bytes
    copies[suffix].write_bytes(filled.read_bytes() + bytes(1000 * entry_bytes))
    assert assert_dumped_alike([copies[suffix]], as_kafka_prints) == entries

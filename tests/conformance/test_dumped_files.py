"""``kafka-index dump`` and Kafka's own ``kafka-dump-log`` print the same of the same files.

Each row of ours is printed again in the words of Kafka's, field by field: of batches, of the
entries of the files beside them, and of records.
"""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import COMPRESSION_MASK
from tests.support.command_line import DUMP, json_rows
from tests.support.segments import (
    CONTROL,
    DELETE_HORIZON,
    INT32_MAX,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batch,
    control_batch,
    control_key,
    marker,
    message,
    packed,
    record,
)

from .kafka_jars import VERSIONS, class_path, needing_kafka, tool
from .reference_files import write_batches
from .written_segments import FORMATS, NAMED, random_segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .kafka_reference import KafkaReference

TOOL = "org.apache.kafka.tools.DumpLogSegments"
RANDOM_CASES = 300
#: Lines about a file as a whole.
REMARKS = ("Log starting offset: ", "Snapshot end offset: ")

Row = dict[str, Any]
Print = Callable[[Row], str]


def kafka_dump(
    files: Iterable[Path], *options: str, version: str = VERSIONS[0]
) -> dict[Path, list[str]]:
    """The lines of each file, without those about the file as a whole.

    It skips the test where Kafka cannot run, and fails it where Kafka has to.
    """
    by_name = {str(path): path for path in files}
    with needing_kafka():
        command = [tool("java"), "-cp", class_path(version), "-Dlog4j2.level=OFF"]
        command += [TOOL if version == VERSIONS[0] else "kafka.tools.DumpLogSegments"]
    result = subprocess.run(
        [*command, *options, "--files", ",".join(by_name)],
        capture_output=True,
        check=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-Dfile.encoding=UTF-8"},
    )
    actual: dict[Path, list[str]] = {}
    # A record may hold other line ends than Kafka's.
    for line in result.stdout.decode().removesuffix("\n").split("\n"):
        if line.startswith("Dumping "):
            actual[by_name[line.removeprefix("Dumping ")]] = []
        elif line.startswith(REMARKS) or line == f"{next(reversed(actual), None)} is empty.":
            continue
        else:
            actual[next(reversed(actual))].append(line)
    assert set(actual) == set(by_name.values())
    return actual


def files_of_dump(suffix: str) -> list[Path]:
    """The files of a broker's topics; its own metadata log is not a topic."""
    result = sorted(path for path in DUMP.glob(f"*/*{suffix}") if path.stat().st_size)
    return [path for path in result if path.parent.name != "__cluster_metadata-0"]


def assert_dumped_alike(files: list[Path], as_kafka_prints: Print) -> int:
    """The number of lines."""
    expected = kafka_dump(files)
    for path in files:
        actual = [as_kafka_prints(row) for row in json_rows(path) if "remark" not in row]
        assert actual == expected[path], path
    return sum(map(len, expected.values()))


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


def test_batches_of_broker_logs_equal_kafkas_dump() -> None:
    assert assert_dumped_alike(files_of_dump(".log"), printed_batch) > 5000


def test_batches_of_every_format_equal_kafkas_dump(
    reference: KafkaReference, tmp_path: Path
) -> None:
    rng = random.Random(20240229)
    segments = [*FORMATS, *NAMED, *(random_segment(rng) for _ in range(RANDOM_CASES))]
    logs = []
    for number, segment in enumerate(segments):
        log = tmp_path / f"t-{number}" / f"{segment.base_offset:020d}.log"
        log.parent.mkdir()
        write_batches(reference, log, segment.batches)
        logs.append(log)
    assert assert_dumped_alike(logs, printed_batch) > 5 * RANDOM_CASES


def test_restarted_sequences_equal_kafkas_dump(tmp_path: Path) -> None:
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


def test_versions_of_aborted_transactions_equal_kafkas_dump(tmp_path: Path) -> None:
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
def test_dump_of_broker_files_equals_kafkas_output(
    suffix: str, as_kafka_prints: Print, least: int
) -> None:
    assert assert_dumped_alike(files_of_dump(suffix), as_kafka_prints) > least


@pytest.mark.parametrize(
    ("suffix", "as_kafka_prints", "entry_bytes"),
    [(".index", printed_offset_entry, 8), (".timeindex", printed_time_entry, 12)],
)
def test_zeros_after_the_entries_of_an_open_index_are_not_printed(
    tmp_path: Path, suffix: str, as_kafka_prints: Print, entry_bytes: int
) -> None:
    (tmp_path / "t-0").mkdir()
    filled = max(files_of_dump(suffix), key=lambda path: path.stat().st_size)
    copies = {end: tmp_path / "t-0" / f"{filled.stem}{end}" for end in (".log", ".index", suffix)}
    for end, copy in copies.items():
        copy.write_bytes(filled.with_suffix(end).read_bytes())
    entries = filled.stat().st_size // entry_bytes
    copies[suffix].write_bytes(filled.read_bytes() + bytes(1000 * entry_bytes))
    assert assert_dumped_alike([copies[suffix]], as_kafka_prints) == entries


@pytest.mark.parametrize("version", VERSIONS)
def test_kafkas_tool_accepts_built_index_files(tmp_path: Path, version: str) -> None:
    files = []
    for log in files_of_dump(".log")[:9]:
        target = tmp_path / log.parent.name / log.stem
        target.mkdir(parents=True)
        assert build_segment_files(log, target).status == "built"
        (target / log.name).write_bytes(log.read_bytes())
        files += [target / f"{log.stem}{suffix}" for suffix in (".index", ".timeindex")]
    for lines in kafka_dump(files, "--verify-index-only", version=version).values():
        assert lines == []


# ---------------------------------------------------------------------------------- records

#: What only Kafka prints of a record: the kind of its timestamp, and the checksum of a message.
ONLY_KAFKAS = re.compile(r"(?<= )(CreateTime|LogAppendTime|NoTimestampType)(?=: )")
CHECKSUM = re.compile(r" isValid: true crc: \d+")
#: Control records of a cluster's metadata, which Kafka prints with their values.
DETAILS = re.compile(r" (LeaderChange|SnapshotHeader|SnapshotFooter|KRaftVersion|KRaftVoters):? .*")


def records_by_kafka(logs: list[Path]) -> dict[Path, list[str]]:
    """The lines of the records of logs."""
    dumped = kafka_dump(logs, "--print-data-log", "--deep-iteration")
    return {path: list(map(_without_details, _records(lines))) for path, lines in dumped.items()}


def _records(lines: list[str]) -> list[str]:
    """The lines of records, each up to the next line that Kafka began."""
    result: list[str] = []
    is_record = False
    for line in lines:
        if line.startswith("| "):
            is_record = True
            result.append(line)
        elif line.startswith(("baseOffset: ", "offset: ")):
            is_record = False
        elif is_record:
            result[-1] += f"\n{line}"
    return result


def _without_details(line: str) -> str:
    alike = ONLY_KAFKAS.sub("timestamp", CHECKSUM.sub("", line.removesuffix("\n")))
    return DETAILS.sub(_control_name, alike)


def _control_name(found: re.Match[str]) -> str:
    return f" control: {found[1].replace('KR', 'Kr')}"


def our_records(log: Path) -> list[str]:
    """The same lines, made of what we print."""
    magics = magic_by_position(log)
    options = ("--records", "--keys", "text", "--values", "text")
    rows = json_rows(*options, log)
    return [printed_record(row, magics[row["position_bytes"]]) for row in rows]


def magic_by_position(log: Path) -> dict[int, int]:
    data = log.read_bytes()
    result = {}
    position = 0
    while position < len(data):
        result[position] = data[position + 16]
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return result


def printed_record(row: Row, magic: int) -> str:
    sizes = [-1 if size is None else size for size in (row["key_bytes"], row["value_bytes"])]
    line = f"| offset: {row['offset']} timestamp: {row['timestamp_ms']}"
    line += f" keySize: {sizes[0]} valueSize: {sizes[1]}"
    if magic >= 2:
        names = ",".join(printed(header["key"]) for header in row["headers"])
        line += f" sequence: {row['sequence']} headerKeys: [{names}]"
    if row["control_type"] in ("abort", "commit"):
        line += f" endTxnMarker: {row['control_type'].upper()}"
        return f"{line} coordinatorEpoch: {row['coordinator_epoch']}"
    if row["control_type"] is not None:
        words = row["control_type"].split("_")
        return f"{line} control: {''.join(word.capitalize() for word in words)}"
    line += "" if row["key"] is None else f" key: {printed(row['key'])}"
    return line + ("" if row["value"] is None else f" payload: {printed(row['value'])}")


def printed(value: str | dict[str, str]) -> str:
    """Bytes as Java's String prints them."""
    return value if isinstance(value, str) else bytes.fromhex(value["hex"]).decode(errors="replace")


class RandomLog:
    """Batches of every magic and codec, generated."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._offset = int(self._random.integers(0, 2**40))

    def log(self) -> bytes:
        return b"".join(
            self._batch() if self._random.random() < 0.6 else self._message()
            for _ in range(int(self._random.integers(1, 30)))
        )

    def _batch(self) -> bytes:
        count = self._below(6)
        start = self._offset
        self._offset += 10
        if self._random.random() < 0.2:
            commit = bool(self._below(2))
            return marker(start, 7, 2, commit=commit, coordinator_epoch=self._below(99))
        records = [
            record(2 * row, self._below(9) - 4, self._bytes(), self._bytes(), self._headers())
            for row in range(count)
        ]
        codec = self._below(5)
        return batch(
            start,
            payload=packed(b"".join(records), codec),
            record_count=count,
            last_offset_delta=9,
            attributes=codec | (LOG_APPEND_TIME if self._below(2) else 0),
            base_timestamp=5000,
            max_timestamp=5009,
            producer_id=7 if self._below(2) else -1,
            base_sequence=[-1, 0, INT32_MAX - 3][self._below(3)],
        )

    def _message(self) -> bytes:
        magic, codec = self._below(2), self._below(4)
        count = 1 + self._below(4) if codec else 1
        first = self._offset
        self._offset += count
        inner = [
            message(row if magic else first + row, magic, 1000 + row, self._bytes(), self._bytes())
            for row in range(count)
        ]
        if codec == 0:
            return message(first, magic, 1000, self._bytes(), self._bytes())
        bits = LOG_APPEND_TIME if magic and self._below(2) else 0
        value = packed(b"".join(inner), codec)
        return message(first + count - 1, magic, 5000, value, attributes=codec | bits)

    def _headers(self) -> list[tuple[bytes, bytes | None]]:
        return [(f"h{row}".encode(), self._bytes()) for row in range(self._below(3))]

    def _bytes(self) -> bytes | None:
        kind = self._below(5)
        if kind == 0:
            return None
        size = [0, 3, 70, 300][self._below(4)]
        if kind == 1:
            return self._random.integers(0x80, 0xC0, size, np.uint8).tobytes()
        letters = np.array(list('abc xyz "\\äß€😀'))
        return "".join(self._random.choice(letters, size)).encode()

    def _below(self, limit: int) -> int:
        return int(self._random.integers(limit))


def test_records_of_every_magic_and_codec_equal_kafkas_dump(tmp_path: Path) -> None:
    logs = []
    for seed in range(120):
        path = tmp_path / f"t-{seed}" / f"{0:020d}.log"
        path.parent.mkdir()
        generated = RandomLog(seed)
        path = path.with_name(f"{generated._offset:020d}.log")
        path.write_bytes(generated.log())
        logs.append(path)
    theirs = records_by_kafka(logs)
    assert sum(map(len, theirs.values())) > 1000
    for log in logs:
        assert our_records(log) == theirs[log]


@pytest.mark.parametrize(
    ("number", "name", "value"),
    [
        (2, "LeaderChange", bytes((0, 0, 0, 0, 0, 1, 1, 1, 0))),
        (3, "SnapshotHeader", bytes(11)),
        (4, "SnapshotFooter", bytes(3)),
        (5, "KraftVersion", bytes(5)),
    ],
)
def test_control_records_have_kafkas_types(
    tmp_path: Path, number: int, name: str, value: bytes
) -> None:
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(control_batch(0, -1, -1, control_key(number), value, 1000))
    assert our_records(log) == records_by_kafka([log])[log]
    assert our_records(log)[0].endswith(f"control: {name}")


def test_records_of_broker_logs_equal_kafkas_dump() -> None:
    logs = sorted(path for path in DUMP.glob("*/*.log") if path.stat().st_size)
    theirs = records_by_kafka(logs)
    assert len(theirs) > 40
    for log in logs:
        assert our_records(log) == theirs[log]

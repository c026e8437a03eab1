"""The records that ``dump`` prints against those of Kafka's own ``DumpLogSegments``."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kafka_index.cli.dump_command import DumpedFile
from kafka_index.cli.dump_logs import dump_records
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.record_text import TEXT, RecordText
from kafka_index.layout.names import LOG_SUFFIX
from kafka_index.records.decompression import DecompressionBudget
from tests.support.segments import (
    LOG_APPEND_TIME,
    batch,
    control_batch,
    control_key,
    marker,
    message,
    packed,
    record,
)

from .kafka_jars import class_path, needing_kafka, tool

DUMP = Path(__file__).resolve().parents[2] / "examples" / "dump"
TOOL = "org.apache.kafka.tools.DumpLogSegments"
INT32_MAX = 2**31 - 1

#: What only Kafka prints of a record: the kind of its timestamp, and the checksum of a message.
ONLY_KAFKAS = re.compile(r"(?<= )(CreateTime|LogAppendTime|NoTimestampType)(?=: )")
CHECKSUM = re.compile(r" isValid: true crc: \d+")
#: Control records of a cluster's metadata, which Kafka prints with their values.
DETAILS = re.compile(r" (LeaderChange|SnapshotHeader|SnapshotFooter|KRaftVersion|KRaftVoters):? .*")


def kafka_dump(logs: list[Path]) -> dict[str, list[str]]:
    """The lines of the records of logs, by path."""
    with needing_kafka():
        command = [tool("java"), "-cp", class_path(), TOOL, "--print-data-log", "--deep-iteration"]
    done = subprocess.run(
        [*command, "--files", ",".join(map(str, logs))],
        capture_output=True,
        check=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-Dfile.encoding=UTF-8"},
    )
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    open_line = False
    # A record may hold line ends; it then continues up to the next line that Kafka began.
    for line in done.stdout.decode().split("\n"):
        if line.startswith("Dumping "):
            lines = found.setdefault(line.removeprefix("Dumping "), [])
        if line.startswith("| "):
            lines.append(line)
            open_line = True
        elif line.startswith(("Dumping ", "baseOffset: ", "offset: ")):
            open_line = False
        elif open_line:
            lines[-1] += f"\n{line}"
    return {path: [_without_details(line) for line in lines] for path, lines in found.items()}


def _without_details(line: str) -> str:
    alike = ONLY_KAFKAS.sub("timestamp", CHECKSUM.sub("", line.removesuffix("\n")))
    return DETAILS.sub(_control_name, alike)


def _control_name(found: re.Match[str]) -> str:
    return f" control: {found[1].replace('KR', 'Kr')}"


def our_dump(log: Path) -> list[str]:
    """The same lines, made of what we print."""
    output = io.StringIO()
    text = RecordText(as_json=True, keys=TEXT, values=TEXT)
    fault = dump_records(
        DumpedFile(str(log), int(log.stem), LOG_SUFFIX),
        DumpOutput(output, as_json=True),
        text,
        verify_crc=True,
        budget=DecompressionBudget(1 << 26),
    )
    assert fault is None
    magics = magic_by_position(log)
    rows = [json.loads(line) for line in output.getvalue().splitlines()]
    return [as_kafka_prints(row, magics[row["position_bytes"]]) for row in rows]


def magic_by_position(log: Path) -> dict[int, int]:
    data = log.read_bytes()
    found = {}
    position = 0
    while position < len(data):
        found[position] = data[position + 16]
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


def as_kafka_prints(row: dict[str, Any], magic: int) -> str:
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


# ----------------------------------------------------------------------------- drawn logs


class Drawn:
    """Batches of every magic and codec, drawn."""

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


def test_records_of_every_magic_and_codec_are_those_that_kafka_prints(tmp_path: Path) -> None:
    logs = []
    for seed in range(120):
        path = tmp_path / f"t-{seed}" / f"{0:020d}.log"
        path.parent.mkdir()
        drawn = Drawn(seed)
        path = path.with_name(f"{drawn._offset:020d}.log")
        path.write_bytes(drawn.log())
        logs.append(path)
    theirs = kafka_dump(logs)
    assert sum(map(len, theirs.values())) > 1000
    for log in logs:
        assert our_dump(log) == theirs[str(log)]


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
    assert our_dump(log) == kafka_dump([log])[str(log)]
    assert our_dump(log)[0].endswith(f"control: {name}")


def test_records_of_a_brokers_logs_are_those_that_kafka_prints() -> None:
    logs = sorted(path for path in DUMP.glob("*/*.log") if path.stat().st_size)
    theirs = kafka_dump(logs)
    assert len(theirs) > 40
    for log in logs:
        assert our_dump(log) == theirs[str(log)]

"""The rows of ``kafka-log`` against those of Spark's Kafka source from a broker on these logs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import kafka_index
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.command_line import ROOT, environment

from .broker import Broker
from .topics import TRIMMED, TRIMMED_TO

if TYPE_CHECKING:
    from .conftest import Written

_KAFKA, _LOGS = "kafka", "kafka-log"
_TIMEOUT_SECONDS = 1800
#: A producer gave this one timestamps that Spark cannot represent.
_WILD = "history.wild"
#: Plain, compressed, compacted, transactional, and by append time.
_SOME = ("orders.eu-west_1", "zstd__", "profiles.compacted", "payments", "log.append-time")
#: What both refuse, and what ours says.
_BOTH_FAIL = {
    "wild": "Spark cannot represent a value",
    "start that is trimmed": "the log does not have the starting offset",
    "end after the log": "the log does not have the ending offset",
    "partition left out": "partitions have no bounds",
    "no such topic": "does not exist in the logs",
    "no record as late": "no record is at or after the starting timestamp",
    "start after an end in time": "starts after its end",
    "start after the log, without fail": "starts after its end",
}
_SAME_ROWS = (
    "everything",
    "committed",
    "between offsets",
    "between offsets, committed",
    "between times",
    "between times by partition",
    "no record as late, from the end",
    "trimmed and beyond, without fail",
)


@dataclass(frozen=True)
class Read:
    """The rows of both sources for every read."""

    output: Path
    errors: dict[str, dict[str, str]]

    def rows(self, name: str, source: str) -> pa.Table:
        table = ds.dataset(self.output / name / source, format="parquet").to_table()
        order = [(column, "ascending") for column in ("topic", "partition", "offset")]
        return table.sort_by(order)


def _ends(data: Path, topics: tuple[str, ...]) -> dict[str, dict[str, tuple[int, int]]]:
    ends: dict[str, dict[str, tuple[int, int]]] = {}
    for topic in topics:
        for folder in sorted(data.glob(f"{topic}-[0-9]")):
            with PartitionLog.open(folder) as log:
                result = (log.log_start_offset, log.log_end_offset)
            ends.setdefault(topic, {})[folder.name.rpartition("-")[2]] = result
    return ends


def _each(ends: dict[str, dict[str, tuple[int, int]]], numerator: int, denominator: int) -> str:
    """Offsets within each partition, as Spark takes them."""
    return json.dumps(
        {
            topic: {
                number: start + (end - start) * numerator // denominator
                for number, (start, end) in numbers.items()
            }
            for topic, numbers in ends.items()
        }
    )


def _questions(data: Path) -> dict[str, dict[str, str]]:
    ends = _ends(data, _SOME)
    some = {"subscribe": ",".join(_SOME)}
    middle = {"startingOffsets": _each(ends, 1, 3), "endingOffsets": _each(ends, 2, 3)}
    committed = {"kafka.isolation.level": "read_committed"}
    everything = {"subscribePattern": rf"^(?!{_WILD})"}
    trimmed = {"subscribe": TRIMMED.name}
    zero = json.dumps({TRIMMED.name: {"0": 0}})
    (_, end) = _ends(data, (TRIMMED.name,))[TRIMMED.name]["0"]
    beyond = json.dumps({TRIMMED.name: {"0": end + 9}})
    first, last = _times(data)

    def by_partition(time_ms: int) -> str:
        return json.dumps({topic: dict.fromkeys(ends[topic], time_ms) for topic in ends})

    late = {"subscribe": "zstd__", "startingTimestamp": str(2**62)}
    return {
        "everything": everything,
        "committed": everything | committed,
        "between offsets": some | middle,
        "between offsets, committed": some | middle | committed | {"maxRecordsPerPartition": "97"},
        "between times": {
            "subscribe": "orders.eu-west_1,zstd__,payments",
            "startingTimestamp": str(first),
            "endingTimestamp": str(last),
        },
        "between times by partition": {
            "assign": json.dumps({topic: [int(each) for each in ends[topic]] for topic in ends}),
            "startingOffsetsByTimestamp": by_partition(first),
            "endingOffsetsByTimestamp": by_partition(last),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        "no record as late, from the end": late | {"startingOffsetsByTimestampStrategy": "latest"},
        "trimmed and beyond, without fail": trimmed
        | {"startingOffsets": zero, "endingOffsets": beyond, "failOnDataLoss": "false"},
        "wild": {"subscribe": _WILD},
        "start that is trimmed": trimmed | {"startingOffsets": zero},
        "end after the log": trimmed | {"endingOffsets": beyond},
        "partition left out": {
            "subscribe": "orders.eu-west_1",
            "startingOffsets": json.dumps({"orders.eu-west_1": {"0": 5}}),
        },
        "no such topic": {"subscribe": "zstd__,no-such-topic"},
        "no record as late": late,
        "start after an end in time": some
        | {"startingOffsets": _each(ends, 1, 1), "endingTimestamp": str(first)},
        "start after the log, without fail": trimmed
        | {"startingOffsets": beyond, "failOnDataLoss": "false"},
    }


def _times(data: Path) -> tuple[int, int]:
    """Two times in the middle of most topics, whose records rise from one start in equal steps."""
    table = kafka_index.read_records(data / "zstd__-0", columns=("timestamp",)).read_all()
    times = sorted(table["timestamp"].cast("int64").to_pylist())
    return times[len(times) // 3], times[len(times) // 2]


@pytest.fixture(scope="module")
def read(written: Written, broker_root: Path) -> Read:
    """All reads, in one session of Spark, from one broker."""
    data = written.leader.data
    output = broker_root / "spark-rows"
    output.mkdir()
    home = written.leader.copy_to(broker_root / "serving-spark")
    with Broker(home) as broker:
        asked: dict[str, Any] = {
            "sources": {
                _KAFKA: {
                    "kafka.bootstrap.servers": broker.bootstrap,
                    "kafkaConsumer.pollTimeoutMs": "20000",
                },
                _LOGS: {"path": str(data)},
            },
            "reads": _questions(data),
        }
        questions = output / "questions.json"
        questions.write_text(json.dumps(asked), encoding="utf-8")
        program = "tests.conformance.broker.spark_rows"
        result = subprocess.run(
            [sys.executable, "-m", program, str(questions), str(output)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    assert result.returncode == 0, result.stderr
    return Read(output, json.loads((output / "errors.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", _SAME_ROWS)
def test_rows_equal_those_of_sparks_kafka_source(read: Read, name: str) -> None:
    assert name not in read.errors
    found, expected = read.rows(name, _LOGS), read.rows(name, _KAFKA)
    assert found.schema.equals(expected.schema)
    for column in expected.column_names:
        assert found[column].equals(expected[column]), column


def test_reads_cover_every_kind_of_row(read: Read) -> None:
    whole, committed = (read.rows(name, _KAFKA) for name in ("everything", "committed"))
    assert 0 < committed.num_rows < whole.num_rows
    assert set(whole["timestampType"].to_pylist()) == {0, 1}
    for column in ("key", "value", "headers"):
        assert 0 < whole[column].null_count < whole.num_rows
    assert (
        min(read.rows("trimmed and beyond, without fail", _KAFKA)["offset"].to_pylist())
        == TRIMMED_TO
    )
    for name in ("between offsets", "between times", "between times by partition"):
        assert 0 < read.rows(name, _KAFKA).num_rows < whole.num_rows


@pytest.mark.parametrize("name", _BOTH_FAIL)
def test_options_rejected_by_sparks_kafka_source_are_rejected(read: Read, name: str) -> None:
    errors = read.errors.get(name, {})
    assert set(errors) == {_KAFKA, _LOGS}
    assert _BOTH_FAIL[name] in errors[_LOGS]

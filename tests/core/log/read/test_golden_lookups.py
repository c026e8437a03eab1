"""Answers about a real broker's dump are Kafka's (``golden_lookups/README.md``)."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.index_files import DAMAGES, damage, index_files

GOLDEN = Path(__file__).parent / "golden_lookups"
DUMP = Path(__file__).parents[4] / "examples" / "dump"
PARTITIONS = sorted(path.name for path in DUMP.iterdir() if path.is_dir())
# Timestamps of every kind, gaps, many entries.
SOME_PARTITIONS = (
    "imported-history-0",
    "imported-history-1",
    "inventory.levels-0",
    "orders.eu-west-0",
    "trace-spans.fine-0",
)
ENTRY_COLUMNS = ("entry_offset", "entry_position_bytes", "entry_timestamp_ms")
ALL_COLUMNS = tuple(ANSWER_SCHEMA.names)
WITHOUT_ENTRIES = tuple(name for name in ALL_COLUMNS if name not in ENTRY_COLUMNS)

Asked = dict[tuple[str, Resolve], pa.Table]


@pytest.fixture(scope="module")
def golden() -> pa.Table:
    return pq.read_table(GOLDEN / "answers.parquet")


def of_partition(golden: pa.Table, partition: str) -> Asked:
    """Kafka's answers about one partition, by kind of question and level."""
    topic, _, number = partition.rpartition("-")
    asked = golden.filter((pc.field("topic") == topic) & (pc.field("partition") == int(number)))
    return {
        (by, resolve): asked.filter((pc.field("by") == by) & (pc.field("resolve") == resolve.value))
        for by in ("offset", "timestamp")
        for resolve in Resolve
    }


def assert_golden(asked: Asked, log: PartitionLog, columns: Sequence[str] = ALL_COLUMNS) -> None:
    """All that Kafka was asked about a partition is answered as Kafka did."""
    for (by, resolve), kafka in asked.items():
        assert kafka.num_rows
        lookup = log.lookup_offsets if by == "offset" else log.lookup_timestamps
        ours = pa.Table.from_batches([lookup(kafka["target"].to_numpy(), resolve=resolve)])
        ours, theirs = ours.select(columns), kafka.select(columns)
        if not ours.equals(theirs.cast(ours.schema)):
            rows = zip(
                kafka["target"].to_pylist(), ours.to_pylist(), theirs.to_pylist(), strict=True
            )
            pytest.fail(f"{by}, {resolve}: {[row for row in rows if row[1] != row[2]][:3]}")


def config_of(partition: str) -> IndexConfig:
    """The settings that the broker's index files were made with."""
    return LogConfig.load(DUMP.with_suffix(".properties")).for_topic(partition.rpartition("-")[0])


def copy_of(partition: str, directory: Path, *left_out: str) -> Path:
    """A copy of a partition and of the checkpoint that has its log start."""
    shutil.copy(DUMP / "log-start-offset-checkpoint", directory)
    ignore = shutil.ignore_patterns(*left_out)
    return Path(shutil.copytree(DUMP / partition, directory / partition, ignore=ignore))


def test_golden_answers_belong_to_the_golden_dump() -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))
    written_data = (GOLDEN / "answers.parquet").read_bytes()
    dump = DUMP.with_suffix(".sha256").read_bytes()
    assert manifest["sha256"] == hashlib.sha256(written_data).hexdigest()
    assert manifest["dump.sha256"] == hashlib.sha256(dump).hexdigest()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_lookups_with_broker_indexes_equal_golden_answers(golden: pa.Table, partition: str) -> None:
    with PartitionLog.open(DUMP / partition) as log:
        assert_golden(of_partition(golden, partition), log)
        assert not log.take_findings()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_lookups_without_indexes_equal_kafkas(
    golden: pa.Table, partition: str, tmp_path: Path
) -> None:
    copy = copy_of(partition, tmp_path, "*.index", "*.timeindex")
    with PartitionLog.open(copy, config=config_of(partition)) as log:
        assert_golden(of_partition(golden, partition), log)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("partition", SOME_PARTITIONS)
def test_lookups_with_damaged_indexes_equal_kafkas(
    golden: pa.Table, partition: str, how: str, tmp_path: Path
) -> None:
    copy = copy_of(partition, tmp_path)
    other = (DUMP / "orders.eu-west-1" / "00000000000000000000.index").read_bytes()
    for path in index_files(copy):
        damage(path, how, 4 * path.stat().st_size, b"\x01\x02\x03" * 7, other)
    with PartitionLog.open(copy, config=config_of(partition)) as log:
        # An index that lost entries is right: the floor entry is an earlier one.
        assert_golden(of_partition(golden, partition), log, WITHOUT_ENTRIES)


@pytest.mark.parametrize("by", ["offset", "timestamp"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_lookups_with_a_flipped_index_bit_equal_golden_answers(
    golden: pa.Table, suffix: str, by: str, tmp_path: Path
) -> None:
    partition = "imported-history-0"
    copy = copy_of(partition, tmp_path)
    path = (copy / f"{862:020d}").with_suffix(suffix)
    sound = path.read_bytes()
    kind = (by, Resolve.RECORD)
    asked = {kind: of_partition(golden, partition)[kind]}
    for bit in range(0, 8 * len(sound), 3):
        damage(path, "flip", bit, b"", b"")
        # A log of its own each time: what one answer shows about an index helps the next.
        with PartitionLog.open(copy, config=config_of(partition)) as log:
            assert_golden(asked, log, WITHOUT_ENTRIES)
        path.write_bytes(sound)

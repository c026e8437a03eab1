"""Bounds of a read: the rows between them, and no more bytes than hold them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kafka_index
from kafka_index.core.errors import InputError
from kafka_index.core.index.sparse_indexes import OffsetIndex
from kafka_index.core.query.bounds import BoundOptions
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import plan_read
from kafka_index.core.query.settings import ReadSettings
from tests.support.record_tables import CODECS, batch_of, rows_of, write_partition
from tests.support.segments import batch, message

INTERVAL = 4096
PAIRS = 1000
MAY = 1_714_521_600_000


class RandomPartition:
    """A partition of batches of any codec with gaps, generated, in several segments."""

    def __init__(self, seed: int, segments: int = 4, batches: int = 250) -> None:
        random = np.random.default_rng(seed)
        self.logs: dict[int, bytes] = {}
        self.largest_batch = 0
        offset = int(random.integers(0, 1000))
        for _ in range(segments):
            base, log = offset, b""
            for _ in range(batches):
                records = [
                    (1000 + offset + number, b"k", random.bytes(int(random.integers(0, 200))))
                    for number in range(int(random.integers(1, 12)))
                ]
                if random.random() < 0.1:
                    data = message(offset, 1, 1000 + offset, b"v")
                    records = records[:1]
                else:
                    data = batch_of(offset, records, int(random.choice(CODECS)))
                log += data
                self.largest_batch = max(self.largest_batch, len(data))
                offset += len(records) + int(random.integers(0, 3))
            self.logs[base] = log
        self.end = offset


@pytest.fixture(scope="module", params=[True, False], ids=["indexed", "logs alone"])
def generated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    partition = RandomPartition(7)
    root = tmp_path_factory.mktemp("random")
    return Folder(
        partition, write_partition(root, partition.logs, indexed=request.param), request.param
    )


class Folder:
    """A random partition and where it is."""

    def __init__(self, partition: RandomPartition, path: Path, is_indexed: bool) -> None:  # noqa: FBT001
        self.partition = partition
        self.path = path
        self.is_indexed = is_indexed
        self.rows = rows_of(kafka_index.read_records(path).read_all(), "offset", "value")

    def entry_span(self, start: int, end: int) -> int:
        """The bytes between the index entries that bound a range of offsets."""
        total = 0
        bases = sorted(self.partition.logs)
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            if end <= base or (following is not None and start >= following):
                continue
            size = len(self.partition.logs[base])
            with OffsetIndex(self.path / f"{base:020d}.index", base, writable=False) as index:
                first = index.lookup(start).position if start > base else 0
                slot = int(index.ceiling_slots(np.array([end - 1 - base], np.int64))[0])
                last = index.entry(slot).position if slot >= 0 else size
            total += last - first
        return total


def plan_of(path: Path, start: int, end: int) -> ReadPlan:
    return plan_read(path, bounds=BoundOptions(start, end))


def read(plan: ReadPlan) -> tuple[pa.Table, int]:
    readers = [RecordReader(split, plan.settings) for split in plan.splits]
    batches = [one for reader in readers for one in reader]
    table = pa.Table.from_batches(batches, plan.settings.schema)
    return table, sum(reader.bytes_read for reader in readers)


def test_bounded_read_equals_a_slice_of_the_full_read_and_reads_few_bytes(
    generated: Folder,
) -> None:
    random = np.random.default_rng(1)
    first, end = generated.rows[0][0] - 3, generated.partition.end + 3
    # Without index files each of them builds the indexes that it needs.
    for _ in range(PAIRS if generated.is_indexed else PAIRS // 20):
        start, stop = sorted(random.integers(first, end, 2).tolist())
        table, bytes_read = read(plan_of(generated.path, max(start, 0), stop))
        expected = [row for row in generated.rows if start <= row[0] < stop]
        assert rows_of(table, "offset", "value") == expected
        if generated.is_indexed and expected:
            allowed = INTERVAL + 2 * generated.partition.largest_batch
            assert bytes_read <= generated.entry_span(start, stop) + allowed


def test_range_within_one_batch_reads_only_that_batch(tmp_path: Path) -> None:
    entries = [batch(10 * number, 10, last_offset_delta=9) for number in range(2000)]
    folder = write_partition(tmp_path, {0: b"".join(entries)}, indexed=True)
    table, bytes_read = read(plan_of(folder, 10_003, 10_007))
    assert table["offset"].to_pylist() == [10_003, 10_004, 10_005, 10_006]
    assert bytes_read == len(entries[1000])


def test_time_bound_starts_at_the_first_record_at_or_after_it(tmp_path: Path) -> None:
    times = [MAY + late for late in (1000, 1010, 1005, 1020, 1030, 1015, 1040)]
    log = b"".join(batch_of(number, [(time, None, b"v")]) for number, time in enumerate(times))
    folder = write_partition(tmp_path, {0: log})

    def offsets(start: int | datetime | None, end: int | datetime | None) -> list[int]:
        reader = kafka_index.read_records(folder, starting_timestamp=start, ending_timestamp=end)
        result: list[int] = reader.read_all()["offset"].to_pylist()
        return result

    assert offsets(MAY + 1006, None) == [1, 2, 3, 4, 5, 6]
    assert offsets(MAY + 1011, MAY + 1031) == [3, 4, 5]
    assert offsets(None, MAY + 5000) == [0, 1, 2, 3, 4, 5, 6]
    assert offsets(MAY + 5000, None) == []
    first = datetime(2024, 5, 1, tzinfo=UTC)
    # A time between two milliseconds is after the first of them.
    assert offsets(first + timedelta(microseconds=1020_001), None) == [4, 5, 6]
    with pytest.raises(InputError, match="has no time zone"):
        offsets(datetime(2020, 1, 1), None)  # noqa: DTZ001, because that is refused


def test_bounds_are_given_by_partition(tmp_path: Path) -> None:
    for number in range(3):
        write_partition(tmp_path, {0: batch(0, 5)}, f"t-{number}")
    table = kafka_index.read_records(
        tmp_path, starting_offsets={"t": {0: 3, 1: -1}}, ending_offsets={"t": {2: 1}}
    ).read_all()
    assert rows_of(table, "partition", "offset") == [(0, 3), (0, 4), (2, 0)]


def test_earliest_and_latest_are_offsets(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, {0: batch(0, 5)})
    assert kafka_index.read_records(folder, starting_offsets=-1).read_all().num_rows == 0
    assert kafka_index.read_records(folder, starting_offsets=-2).read_all().num_rows == 5
    with pytest.raises(InputError, match="not an offset"):
        kafka_index.read_records(folder, starting_offsets=-3)


def test_contradictory_bounds_are_rejected(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, {0: batch(0, 5)})
    with pytest.raises(InputError, match="either starting offsets or a starting timestamp"):
        kafka_index.read_records(folder, starting_offsets=1, starting_timestamp=MAY)


def test_read_begins_at_the_log_start(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 5)})
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 3\n")
    assert kafka_index.read_records(tmp_path).read_all()["offset"].to_pylist() == [3, 4]


def test_read_ends_at_the_high_watermark_if_that_is_the_bound(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 5)})
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\ntopic 0 2\n")
    table = kafka_index.read_records(tmp_path, upper_bound="high-watermark").read_all()
    assert table["offset"].to_pylist() == [0, 1]


@pytest.mark.parametrize("max_bytes", [1, 5000, 40_000, 10**9])
def test_union_of_splits_equals_a_full_read(generated: Folder, max_bytes: int) -> None:
    planned = plan_read(generated.path, max_split_bytes=max_bytes)
    plan = pickle.loads(pickle.dumps(planned))  # noqa: S301, because it was made here
    table, _ = read(plan)
    assert rows_of(table, "offset", "value") == generated.rows
    whole = sum(map(len, generated.partition.logs.values()))
    assert plan.size_bytes == whole
    if max_bytes >= 40_000:
        limit = max_bytes + 2 * (INTERVAL + generated.partition.largest_batch)
        assert all(split.size_bytes <= limit for split in plan.splits)
        assert len(plan.splits) >= whole // limit


def test_plan_without_bounds_reads_no_log(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, {0: b"not a log, " * 9, 3: batch(3)})
    plan = plan_read(folder, settings=ReadSettings())
    assert [len(split.ranges) for split in plan.splits] == [2]


LATEST = -1


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Offsets 0 to 29 at times 1000 to 1029."""
    log = b"".join(
        batch_of(first, [(1000 + at, None, b"v") for at in range(first, first + 10)])
        for first in (0, 10, 20)
    )
    write_partition(tmp_path, {0: log})
    return tmp_path


@pytest.mark.parametrize(
    "bounds",
    [
        {"starting_offsets": 20, "ending_offsets": 10},
        {"starting_offsets": 20, "ending_timestamp": 1005},
        {"starting_timestamp": 1025, "ending_offsets": 5},
        {"starting_timestamp": 9999, "ending_offsets": 5},
        {"starting_offsets": 40},
        {"starting_offsets": 40, "ending_offsets": LATEST},
    ],
)
def test_start_after_the_end_is_rejected(dump: Path, bounds: dict[str, int]) -> None:
    assert not plan_read(dump, bounds=BoundOptions(**bounds)).splits  # type: ignore[arg-type]
    with pytest.raises(InputError, match="topic-0 starts after its end"):
        plan_read(dump, bounds=BoundOptions(**bounds, needs_order=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"starting_offsets": 10, "ending_offsets": 10},
        {"starting_offsets": 30},
        {"starting_offsets": 20, "ending_timestamp": 9999},
        {"starting_timestamp": 9999},
    ],
)
def test_start_at_the_end_reads_nothing(dump: Path, bounds: dict[str, int]) -> None:
    plan_read(dump, bounds=BoundOptions(**bounds, needs_order=True))  # type: ignore[arg-type]

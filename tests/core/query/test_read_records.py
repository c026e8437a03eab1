"""`read_records`: rows, columns, and what becomes of damage."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kafka_index
from kafka_index.core.errors import (
    ConfigError,
    CorruptLogError,
    DamageError,
    InputError,
    TooLargeError,
)
from kafka_index.core.query.bounds import BoundOptions
from kafka_index.core.query.record_reader import BatchForm, BatchReader, RecordReader
from kafka_index.core.query.records import list_partitions, plan_partitions, plan_read
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.record_table import CORRUPT_RECORD, DEFAULT_COLUMNS, RECORD_SCHEMA
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, copy_partitions, run_here
from tests.support.record_tables import CODECS, batch_of, rows_of, write_partition
from tests.support.remote import new_bucket, upload
from tests.support.segments import (
    GZIP,
    LOG_APPEND_TIME,
    PACKERS,
    ZSTD,
    batch,
    control_batch,
    control_key,
    message,
    packed,
    record,
    segment,
)

LONG = bytes(range(256)) * 40
ALL_CODECS = pytest.mark.parametrize("codec", CODECS)


def read(path: Path, **options: object) -> pa.Table:
    return kafka_index.read_records(path, **options).read_all()  # type: ignore[arg-type]


def partition_of(tmp_path: Path, *entries: bytes) -> Path:
    return write_partition(tmp_path, {0: b"".join(entries)})


# ------------------------------------------------------------------------------- columns


def test_default_columns_equal_those_of_sparks_kafka_source(tmp_path: Path) -> None:
    table = read(partition_of(tmp_path, batch(0)))
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[ms, tz=UTC]"),
        ("timestampType", "int32"),
        ("headers", "list<element: struct<key: string, value: binary> not null>"),
    ]


@ALL_CODECS
def test_keys_values_and_headers_equal_those_of_the_records(tmp_path: Path, codec: int) -> None:
    headers = ((b"a", b"1"), (b"", None), (b"a", b""))
    payload = b"".join(
        (
            record(0, 0, b"key", LONG, headers),
            record(1, -7, None, None),
            record(5, 2**40, b"", b"", ((b"x", LONG),)),
        )
    )
    entry = batch(
        10,
        payload=packed(payload, codec),
        record_count=3,
        last_offset_delta=9,
        attributes=codec,
        base_timestamp=1000,
    )
    table = read(partition_of(tmp_path, entry, batch(20, 1)))
    assert rows_of(table, *DEFAULT_COLUMNS)[:3] == [
        (
            b"key",
            LONG,
            "topic",
            0,
            10,
            1000,
            0,
            [{"key": "a", "value": b"1"}, {"key": "", "value": None}, {"key": "a", "value": b""}],
        ),
        (None, None, "topic", 0, 11, 993, 0, None),
        (b"", b"", "topic", 0, 15, 1000 + 2**40, 0, [{"key": "x", "value": LONG}]),
    ]
    assert table["offset"].to_pylist()[3:] == [20]


def test_timestamp_type_equals_that_of_the_batch(tmp_path: Path) -> None:
    inner = message(0, 1, 7, b"in") + message(1, 1, 8, b"in")
    log = (
        batch(0, 1),
        batch(1, 1, attributes=LOG_APPEND_TIME, max_timestamp=5000),
        message(2, 0, value=b"v"),
        message(3, 1, 77, b"v"),
        message(5, 1, 99, packed(inner, GZIP), attributes=GZIP | LOG_APPEND_TIME),
        message(6, 0, value=packed(message(6, 0, value=b"in"), GZIP), attributes=GZIP),
    )
    rows = rows_of(read(partition_of(tmp_path, *log)), "offset", "timestamp", "timestampType")
    assert rows[1:] == [(1, 5000, 1), (2, -1, -1), (3, 77, 0), (4, 99, 1), (5, 99, 1), (6, -1, -1)]


def test_header_name_that_is_not_utf8_is_replaced_as_by_kafka(tmp_path: Path) -> None:
    payload = record(0, 0, None, None, ((b"a\xffb", b"\xff"),))
    table = read(partition_of(tmp_path, batch(0, payload=payload, record_count=1)))
    assert table["headers"].to_pylist() == [[{"key": "a�b", "value": b"\xff"}]]


def test_optional_columns_have_the_batch_fields(tmp_path: Path) -> None:
    first = batch(0, 1)
    second = batch(
        100,
        3,
        producer_id=9,
        producer_epoch=4,
        base_sequence=2**31 - 2,
        leader_epoch=6,
        transactional=True,
    )
    columns = RECORD_SCHEMA.names[8:]
    table = read(partition_of(tmp_path, first, second), columns=("offset", *columns))
    place = (100, len(first), False, False)
    assert rows_of(table, "offset", *columns) == [
        (0, 0, -1, -1, -1, 0, 0, False, False),
        (100, 6, 9, 4, 2**31 - 2, *place),
        (101, 6, 9, 4, 2**31 - 1, *place),
        (102, 6, 9, 4, 0, *place),
    ]


def test_sequence_below_the_base_sequence_wraps_around_as_in_java(tmp_path: Path) -> None:
    payload = record(-1, 0, None, b"v") + record(0, 0, None, b"v")
    entry = batch(100, producer_id=9, base_sequence=0, payload=payload, record_count=2)
    table = read(partition_of(tmp_path, entry), columns=("offset", "sequence"))
    # What incrementSequence makes of 0 and -1.
    assert rows_of(table, "offset", "sequence") == [(99, 2**31 - 1), (100, 0)]


def test_base_offset_of_a_compressed_message_is_its_first_inner_offset(tmp_path: Path) -> None:
    inner = b"".join(message(number, 1, 7, b"v") for number in range(3))
    entry = message(12, 1, 7, packed(inner, GZIP), attributes=GZIP)
    columns = ("offset", "batch_base_offset")
    table = read(partition_of(tmp_path, batch(0, 1), entry), columns=columns)
    assert rows_of(table, *columns) == [(0, 0), (10, 10), (11, 10), (12, 10)]


def test_read_of_offsets_and_timestamps_does_not_read_values(tmp_path: Path) -> None:
    cut = message(1, 0, body=b"\xff\xff\xff\xff\0\0\0\5abcd")
    folder = partition_of(tmp_path, batch(0, 1), cut)
    columns = ("timestamp", "offset")
    assert [offset for _, offset in rows_of(read(folder, columns=columns), *columns)] == [0, 1]
    with pytest.raises(CorruptLogError, match="ends inside the key or the value"):
        read(folder, columns=("offset", "value"))


def test_column_that_does_not_exist_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="columns: ofset is not one of the choices"):
        read(partition_of(tmp_path, batch(0)), columns=("ofset",))


def test_control_records_are_rows_on_request(tmp_path: Path) -> None:
    marker = control_batch(1, 5, 0, control_key(2), b"value")
    folder = partition_of(tmp_path, batch(0, 1), marker, batch(2, 1))
    assert read(folder)["offset"].to_pylist() == [0, 2]
    columns = ("offset", "is_control", "value")
    table = read(folder, columns=columns, include_control=True)
    assert rows_of(table, *columns)[1] == (1, True, b"value")


# ------------------------------------------------------------------------------ selection


def test_rows_are_sorted_by_topic_partition_and_offset(tmp_path: Path) -> None:
    for name in ("b-0", "a-10", "a-2"):
        write_partition(tmp_path, {0: batch(0, 2), 2: batch(2, 1)}, name)
    table = read(tmp_path)
    rows = rows_of(table, "topic", "partition", "offset")
    assert rows == [
        (topic, number, offset)
        for topic, number in (("a", 2), ("a", 10), ("b", 0))
        for offset in range(3)
    ]


def test_topics_and_partitions_are_selected(tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1", "orders2-0"):
        write_partition(tmp_path, {0: batch(0, 1)}, name)
    assert set(read(tmp_path, topics="orders")["topic"].to_pylist()) == {"orders"}
    table = read(tmp_path, partitions={"orders": [1], "orders2": [0, 5]})
    assert rows_of(table, "topic", "partition") == [("orders", 1), ("orders2", 0)]
    with pytest.raises(InputError, match="none of the partitions"):
        read(tmp_path, partitions={"orders": [7]})


# --------------------------------------------------------------------------------- damage


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A wrong checksum, records that cannot be read, plain and compressed; sound ones between."""
    bad = record(0, 0, None, b"sound") + b"\x09" * 9
    return partition_of(
        tmp_path,
        batch(0, 1),
        batch(1, 1, crc=7),
        batch(2, 1),
        batch(3, payload=bad, record_count=2, last_offset_delta=1),
        batch(5, 1),
        batch(6, payload=packed(bad, ZSTD), record_count=2, last_offset_delta=1, attributes=ZSTD),
        batch(8, 1),
    )


def test_damaged_batch_ends_the_read(damaged: Path) -> None:
    reader = kafka_index.read_records(damaged)
    with pytest.raises(CorruptLogError, match=r"at byte \d+: bad_crc") as caught:
        reader.read_all()
    assert caught.value.position_bytes == len(batch(0, 1))
    assert caught.value.path == str(damaged / f"{0:020d}.log")


def test_damaged_batches_are_skipped(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        table = read(damaged, on_damage="drop")
    # The records of a plain batch before the damage are read, as Kafka returns them.
    assert table["offset"].to_pylist() == [0, 2, 3, 5, 8]
    assert len(caplog.records) == 3


def test_damage_is_returned_as_a_row_on_request(damaged: Path) -> None:
    table = read(damaged, on_damage="permissive", columns=("offset", "topic", "position_bytes"))
    result = rows_of(table, "offset", CORRUPT_RECORD)
    assert [offset for offset, reason in result if reason is None] == [0, 2, 3, 5, 8]
    reasons = [reason for _, reason in result if reason is not None]
    assert [offset for offset, _ in result] == [0, None, 2, 3, None, 5, None, 8]
    assert ["bad_crc" in reason for reason in reasons] == [True, False, False]
    assert all(f"{0:020d}.log: at byte " in reason for reason in reasons)
    rows = rows_of(table, "topic", "position_bytes")
    assert rows[1] == ("topic", len(batch(0, 1)))


def test_unverified_read_ignores_a_wrong_checksum(tmp_path: Path) -> None:
    folder = partition_of(tmp_path, batch(0, 1), batch(1, 1, crc=7), batch(2, 1))
    assert read(folder, verify_crc=False)["offset"].to_pylist() == [0, 1, 2]


def test_torn_tail_is_not_damage(tmp_path: Path) -> None:
    torn = write_partition(tmp_path, {0: batch(0) + batch(3)[:-1]}, "torn-0")
    zeros = write_partition(tmp_path, {0: batch(0) + bytes(5000)}, "zeros-0")
    for folder in (torn, zeros):
        assert read(folder)["offset"].to_pylist() == [0, 1, 2]


def test_torn_batch_before_the_last_segment_is_damage(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, {0: batch(0) + batch(3)[:-1], 6: batch(6)})
    with pytest.raises(CorruptLogError, match="torn_batch"):
        read(folder)
    assert read(folder, on_damage="drop")["offset"].to_pylist() == [0, 1, 2, 6, 7, 8]


def test_batch_that_needs_too_much_memory_is_damage(tmp_path: Path) -> None:
    large = batch_of(1, [(1000, None, bytes(100_000))], GZIP)
    folder = partition_of(tmp_path, batch(0, 1), large, batch(2, 1))
    assert len(read(folder, max_decompressed_bytes=200_000)) == 3
    with pytest.raises(TooLargeError, match="max-decompressed-bytes"):
        read(folder, max_decompressed_bytes=50_000)
    table = read(folder, max_decompressed_bytes=50_000, on_damage="drop")
    assert table["offset"].to_pylist() == [0, 2]


def test_memory_limit_argument_overrides_the_settings(tmp_path: Path) -> None:
    folder = partition_of(tmp_path, batch_of(1, [(1000, None, bytes(100_000))], GZIP))
    config = {"max.decompressed.bytes": "50000", "log.index.interval.bytes": "0"}
    with pytest.raises(TooLargeError, match="max-decompressed-bytes"):
        read(folder, config=config)
    assert len(read(folder, config=config, max_decompressed_bytes=200_000)) == 1
    with pytest.raises(ConfigError, match=r"log\.index\.interval\.bytes"):
        read(folder, config={"log.index.interval.bytes": "x"})


def test_log_that_changed_since_it_was_listed_is_an_error(tmp_path: Path) -> None:
    folder = partition_of(tmp_path, batch(0))
    reader = kafka_index.read_records(folder)
    with (folder / f"{0:020d}.log").open("ab") as log:
        log.write(batch(3))
    with pytest.raises(InputError, match="changed while it was read"):
        reader.read_all()


# --------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("codec", PACKERS)
def test_batch_larger_than_a_window_and_than_the_arena_is_read(tmp_path: Path, codec: int) -> None:
    values = [bytes([number]) * 2_500_000 for number in range(3)]
    large = batch_of(1, [(1000, None, value) for value in values], codec)
    folder = partition_of(tmp_path, batch(0, 1), large, batch(4, 1))
    table = read(folder)
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["value"].to_pylist()[1:4] == values


def test_two_reads_in_one_thread_do_not_deadlock(tmp_path: Path) -> None:
    entries = [batch_of(number, [(1000, None, bytes(90_000))], ZSTD) for number in range(30)]
    folder = partition_of(tmp_path, *entries)
    readers = [
        iter(kafka_index.read_records(folder, max_decompressed_bytes=100_000)) for _ in range(2)
    ]
    rows = 0
    for pair in zip(*readers, strict=True):
        rows += sum(map(len, pair))
    assert rows == 60


def test_arrow_record_batches_have_a_few_mib(tmp_path: Path) -> None:
    small = [batch_of(number, [(1000, None, bytes(50_000))]) for number in range(300)]
    segments = dict(enumerate(small))
    folder = write_partition(tmp_path, segments)
    sizes = [one.nbytes for one in kafka_index.read_records(folder)]
    assert sum(sizes) > 300 * 50_000
    assert all(1 << 20 <= size <= 8 << 20 for size in sizes[:-1])


def test_empty_segment_has_no_rows(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, {0: b"", 5: segment(batch(5)).log})
    assert read(folder)["offset"].to_pylist() == [5, 6, 7]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    return tmp_path / "dump"


def test_folder_can_be_named_by_a_uri(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / "topic-0").mkdir()
    (files,) = list_partitions(dump, indexes=(tmp_path / "indexes").as_uri()).files
    assert files.index_directory == str(tmp_path / "indexes" / "topic-0")


def test_folder_that_does_not_exist_is_rejected(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder of index files does not exist"):
        kafka_index.read_records(dump, indexes=tmp_path / "idnexes")


def test_mistyped_option_is_rejected(dump: Path, tmp_path: Path) -> None:
    where = ("--input", dump, "--indexes", tmp_path / "idnexes")
    result = run_here("find", *where, "--key", "k")
    assert result.returncode == 2
    assert "the folder of index files does not exist" in result.stderr


COLUMNS = ("offset", "value", "timestamp")


@pytest.fixture
def places(s3: S3Server, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Partitions of a broker with their indexes, on the disk and in a bucket."""
    data = copy_partitions(tmp_path / "data", "payments-0", "orders.eu-west-0")
    assert run_here("build", "--input", data, "--in-place").returncode == 0
    with new_bucket(s3) as bucket:
        yield data, upload(data, f"{bucket}/data")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_records_in_a_store_equal_those_of_local_files(
    places: tuple[Path, str], isolation: str
) -> None:
    found, expected = (
        kafka_index.read_records(place, columns=COLUMNS, isolation=isolation).read_all()
        for place in places
    )
    assert rows_of(found, *COLUMNS) == rows_of(expected, *COLUMNS)
    assert len(found)


def test_bounds_read_few_bytes_of_an_object(places: tuple[Path, str]) -> None:
    local, remote = (
        plan_read(f"{place}/payments-0", bounds=BoundOptions(700, 710)) for place in places
    )
    assert remote.size_bytes == local.size_bytes < 20_000
    (split,) = remote.splits
    reader = RecordReader(split, remote.settings)
    offsets = [offset for batch in reader for offset in batch["offset"].to_pylist()]
    assert set(offsets) <= set(range(700, 710))
    assert offsets
    assert reader.bytes_read == local.size_bytes


@pytest.fixture
def values_by_topic() -> dict[str, int]:
    """The number of values by topic, counted by Arrow."""
    table = kafka_index.read_records(DUMP, topics="orders.*|payments").read_all()
    counted = table.group_by("topic").aggregate([("value", "count")])
    counts: dict[str, int] = dict(
        zip(counted["topic"].to_pylist(), counted["value_count"].to_pylist(), strict=True)
    )
    assert len(counts) == 2
    return counts


def test_duckdb_queries_records(values_by_topic: dict[str, int]) -> None:
    duckdb = pytest.importorskip("duckdb")
    records = kafka_index.read_records(DUMP, topics="orders.*|payments")
    with duckdb.connect() as connection:
        connection.register("records", records)
        rows = connection.execute(
            "SELECT topic, count(value) FROM records WHERE timestamp > '2000-01-01' GROUP BY topic"
        ).fetchall()
    assert dict(rows) == values_by_topic


def test_duckdb_reads_headers(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    records = kafka_index.read_records(DUMP, topics="orders.*", columns=("offset", "headers"))
    with duckdb.connect(tmp_path / "any.db") as connection:
        connection.register("records", records)
        (count,) = connection.execute(
            "SELECT count(*) FROM (SELECT unnest(headers) FROM records)"
        ).fetchone()
    table = kafka_index.read_records(DUMP, topics="orders.*", columns=("headers",)).read_all()
    assert count == sum(len(headers or ()) for headers in table["headers"].to_pylist())


def test_polars_queries_records(values_by_topic: dict[str, int]) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(kafka_index.read_records(DUMP, topics="orders.*|payments"))
    counted = frame.group_by("topic").agg(polars.col("value").count())
    assert dict(counted.iter_rows()) == values_by_topic


def test_pandas_queries_records(values_by_topic: dict[str, int]) -> None:
    frame = kafka_index.read_records(DUMP, topics="orders.*|payments").read_pandas()
    assert frame.groupby("topic")["value"].count().to_dict() == values_by_topic


def base_offsets(dump: Path, max_records: int, start: int = 0) -> list[int]:
    settings = ReadSettings(columns=("offset",))
    plan = plan_partitions(
        list_partitions(dump).files,
        BoundOptions(starting_offsets={"topic": {0: start}}),
        settings,
        max_split_records=max_records,
    )
    assert len(plan.splits) > 1
    return [
        offset
        for split in plan.splits
        for rows in BatchReader(split, BatchForm.BATCHES, settings)
        for offset in rows.column("base_offset").to_pylist()
    ]


@pytest.mark.parametrize("max_records", [1, 2, 3, 7, 10])
def test_batch_is_one_row_regardless_of_splits(tmp_path: Path, max_records: int) -> None:
    counts = [3, 5, 1, 4, 2, 5]
    bases = [sum(counts[:number]) for number in range(len(counts))]
    log = [batch(base, count) for base, count in zip(bases, counts, strict=True)]
    write_partition(tmp_path, {0: b"".join(log[:3]), bases[3]: b"".join(log[3:])})
    assert base_offsets(tmp_path, max_records) == bases
    # The batch that holds the first offset asked for stays.
    assert base_offsets(tmp_path, max_records, start=5) == bases[1:]


# -------------------------------------------------------------------------- the result


def test_each_iteration_reads_from_the_beginning() -> None:
    records = kafka_index.read_records(DUMP, topics="payments")
    count = records.read_all().num_rows
    assert [records.to_arrow().num_rows, sum(map(len, records))] == [count, count]
    assert [pa.table(records).num_rows, len(records.to_pandas())] == [count, count]
    assert records.reader().read_all().num_rows == count
    first = records.read_next_batch()
    assert first.schema == records.schema
    assert len(first) + sum(map(len, iter(records.read_next_batch, None))) == count
    assert records.head(3) == records.to_arrow().slice(0, 3)


def test_repr_of_records_reads_no_file(tmp_path: Path) -> None:
    folder = partition_of(tmp_path, batch(0), batch(3))
    records = kafka_index.read_records(folder)
    (folder / f"{0:020d}.log").unlink()
    assert "not read yet" in repr(records)
    assert "not read yet" in records._repr_html_()
    with pytest.raises(InputError, match="the records were not read to the end yet"):
        records.raise_for_damage()


@pytest.mark.parametrize(("on_damage", "places"), [("drop", 3), ("permissive", 3)])
def test_result_with_skipped_damage_is_not_ok(damaged: Path, on_damage: str, places: int) -> None:
    records = kafka_index.read_records(damaged, on_damage=on_damage)
    records.head(1)
    table = records.to_arrow()
    assert not records.ok
    assert records.counts == {"records": 5, "partitions": 1, "damage": places}
    assert table.num_rows == 5 + (places if on_damage == "permissive" else 0)
    assert len(records.damage) == (places if on_damage == "drop" else 0)
    with pytest.raises(DamageError, match="3 corrupt or unreadable ranges skipped"):
        records.raise_for_damage()


@pytest.mark.parametrize("number", [0, "0", np.int64(0)], ids=repr)
def test_partition_of_a_bound_accepts_any_integer_type(tmp_path: Path, number: Any) -> None:
    folder = partition_of(tmp_path, batch(0), batch(3))
    name = folder.name.rpartition("-")[0]
    start: Any = {name: {number: np.int64(4)}}
    records = kafka_index.read_records(folder, starting_offsets=start)
    assert records.to_arrow()["offset"].to_pylist() == [4, 5]

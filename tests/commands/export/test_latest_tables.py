"""``export --history latest``: tables with the newest record of each key, against a dictionary."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import StringType

from kafka_index.commands.export.replaced_rows import _BATCH_BYTES, _read_rows
from tests.support.campaign import sample_size
from tests.support.command_line import DUMP, Argument, run_here
from tests.support.lake_tables import (
    FORMATS,
    DeltaTables,
    ExportedLake,
    as_records,
    duckdb_rows,
    newest_records,
    polars_rows,
    records_of,
)
from tests.support.random_avro import encode
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import schema_record, write_topic
from tests.support.typed_dump import framed

from .test_data_loss import write

DAY_MS = 24 * 3600 * 1000


class Record(NamedTuple):
    offset: int
    time: int
    key: bytes | None
    value: bytes | None


class Newest:
    """The rows of a table of several partitions: the reference."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bytes | int], tuple[int, bytes | None]] = {}

    def add(self, partition: int, records: Iterable[Record]) -> None:
        for record in records:
            place = partition, record.offset if record.key is None else record.key
            self._rows.pop(place, None)
            if record.key is None or record.value is not None:
                self._rows[place] = record.offset, record.value

    def replace(self, partition: int, records: Iterable[Record]) -> None:
        self._rows = {place: row for place, row in self._rows.items() if place[0] != partition}
        self.add(partition, records)

    @property
    def values(self) -> list[tuple[int, bytes | None]]:
        """Offset and value of each row, by partition and offset."""
        rows = ((place[0], *row) for place, row in self._rows.items())
        return [(offset, value) for _, offset, value in sorted(rows, key=lambda row: row[:2])]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ExportedLake:
    return FORMATS[request.param](tmp_path / "lakes", "latest")


def export(code: int, dump: Path, lake: ExportedLake, *more: Argument) -> str:
    result = run_here("export", "--input", dump, *lake.options, *more)
    assert result.returncode == code, (result.stdout, result.stderr)
    return result.stdout + result.stderr


def random_records(draw: random.Random, first: int, count: int | None = None) -> list[Record]:
    def record(offset: int) -> Record:
        key = None if draw.random() < 0.05 else b"k%d" % draw.randrange(30)
        value = None if draw.random() < 0.25 else b"v%d" % draw.randrange(1 << 30)
        return Record(offset, draw.randrange(3 * DAY_MS), key, value)

    return [record(first + number) for number in range(count or draw.randrange(1, 60))]


def log_of(records: list[Record], size: int = 7) -> list[bytes]:
    """The batches of consecutive records."""
    return [
        batch_of(records[at].offset, [record[1:] for record in records[at : at + size]])
        for at in range(0, len(records), size)
    ]


@pytest.mark.parametrize("number", range(sample_size(30)))
def test_random_histories_in_runs_give_the_rows_of_a_dictionary(
    tmp_path: Path, lake: ExportedLake, number: int
) -> None:
    """Between runs, retention and compaction remove records that were exported."""
    draw = random.Random(f"latest {number}")
    options = ("--by-date",) if number % 3 == 2 else ()
    newest, dump = Newest(), tmp_path / "in"
    logs: list[dict[int, list[bytes]]] = [{}, {}, {}]
    ends = [0, 0, 0]
    for _ in range(5):
        for partition, segments in enumerate(logs):
            if segments and draw.random() < 0.3:
                continue
            for batches in list(segments.values())[:-1]:
                batches[:] = [batch for batch in batches if draw.random() < 0.7]
            if segments and draw.random() < 0.3:
                del segments[next(iter(segments))]
            records = random_records(draw, ends[partition])
            segments[ends[partition]] = log_of(records)
            ends[partition] = records[-1].offset + 1
            newest.add(partition, records)
        for partition, segments in enumerate(logs):
            write_segments(dump, partition, segments)
        export(0, dump, lake, *options)
        assert lake.values("topic") == newest.values
        # pyiceberg needs another package to write files of days.
        if draw.random() < 0.3 and not options:
            lake.compact("topic")
    version = lake.version("topic")
    assert "committed" not in export(0, dump, lake, *options)
    assert lake.version("topic") == version


def write_segments(dump: Path, partition: int, segments: dict[int, list[bytes]]) -> None:
    folder = dump / f"topic-{partition}"
    for path in folder.glob("*"):
        path.unlink()
    logs = {base: b"".join(batches) for base, batches in segments.items()}
    write_partition(dump, logs, folder.name)


def test_run_with_only_tombstones_is_committed(tmp_path: Path, lake: ExportedLake) -> None:
    dump, batches = tmp_path / "in", []
    for number, value in enumerate([None, b"v", None, b"w"]):
        batches += log_of([Record(number, 0, b"k", value)])
        write(dump, {0: b"".join(batches)})
        assert "to 1 table" in export(0, dump, lake)
        assert lake.values("topic") == ([] if value is None else [(number, value)])
        assert "committed" not in export(0, dump, lake)


@pytest.mark.parametrize("by_date", [(), ("--by-date",)], ids=["whole", "by date"])
def test_tables_of_a_dump_have_its_newest_records_in_every_reader(
    lake: ExportedLake, monkeypatch: pytest.MonkeyPatch, by_date: tuple[str, ...]
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    topics = ("imported-history", "customer-profiles", "payments", "__transaction_state")
    export(0, DUMP, lake, "--topics", "|".join(topics), *by_date)
    for topic in topics:
        expected = newest_records(records_of(DUMP, topics=[topic]))
        assert as_records(lake.read(topic)).equals(expected), topic
        assert as_records(polars_rows(lake, topic)).equals(expected), topic
        assert as_records(duckdb_rows(lake.files(topic))).equals(expected), topic


OLD = random_records(random.Random("old"), 0, 70)
NEW = random_records(random.Random("new"), 0, 91)


@pytest.mark.parametrize("choice", ["continue", "restart"])
@pytest.mark.parametrize("agreed", [0, 28], ids=["made anew", "cut and grown"])
def test_latest_rows_of_a_diverged_log_are_replaced_by_the_newest_earlier_values(
    tmp_path: Path, lake: ExportedLake, choice: str, agreed: int
) -> None:
    dump, newest = tmp_path / "in", Newest()
    for end in (28, 49, len(OLD)):
        write(dump, {0: b"".join(log_of(OLD[:end]))})
        export(0, dump, lake)
    new = OLD[:agreed] + NEW[agreed:]
    write(dump, {0: b"".join(log_of(new))})
    before = lake.values("topic")
    export(1, dump, lake)
    assert lake.values("topic") == before
    export(0, dump, lake, "--on-data-loss", choice)
    newest.replace(0, new)
    assert lake.values("topic") == newest.values
    later = random_records(random.Random("later"), new[-1].offset + 1)
    write(dump, {0: b"".join(log_of(new) + log_of(later))})
    export(0, dump, lake)
    newest.add(0, later)
    assert lake.values("topic") == newest.values


def test_offsets_deleted_before_their_export_delete_no_rows(
    tmp_path: Path, lake: ExportedLake
) -> None:
    dump, newest = tmp_path / "in", Newest()
    write(dump, {0: b"".join(log_of(OLD))})
    export(0, dump, lake)
    later = random_records(random.Random("later"), 1000)
    write(dump, {1000: b"".join(log_of(later))})
    export(0, dump, lake, "--on-data-loss", "continue")
    newest.add(0, OLD + later)
    assert lake.values("topic") == newest.values


@pytest.mark.parametrize("damaged", range(sample_size(40)))
def test_repaired_old_batch_restores_no_deleted_key_and_overwrites_no_newer_row(
    tmp_path: Path, lake: ExportedLake, damaged: int
) -> None:
    dump, newest = tmp_path / "in", Newest()
    batches = log_of(OLD)
    number = damaged % (len(batches) - 1)
    bad = bytearray(batches[number])
    bad[-1] ^= 1
    write(dump, {0: b"".join([*batches[:number], bytes(bad), *batches[number + 1 :]])})
    export(1, dump, lake)
    left_out = range(number * 7, number * 7 + 7)
    newest.add(0, [one for one in OLD if one.offset not in left_out])
    assert lake.values("topic") == newest.values
    later = [one._replace(offset=len(OLD) + one.offset) for one in NEW]
    write(dump, {0: b"".join([*batches, *log_of(later)])})
    export(0, dump, lake)
    newest.replace(0, [*OLD, *later])
    assert lake.values("topic") == newest.values
    assert "committed" not in export(0, dump, lake)


@pytest.mark.parametrize("first", ["full", "latest"])
def test_table_of_a_diverged_log_is_rejected_before_a_file_is_written(
    tmp_path: Path, lake: ExportedLake, first: str
) -> None:
    dump = tmp_path / "in"
    write(dump, {0: b"".join(log_of(OLD[:28]))})
    lake.history = first
    export(0, dump, lake)
    version, paths = lake.version("topic"), set(lake.output.rglob("*"))
    lake.history = "full" if first == "latest" else "latest"
    for names in (["topic-0"], ["another-0", "topic-1"]):
        for name in names:
            write_partition(tmp_path / names[0], {0: b"".join(log_of(OLD))}, name)
        text = export(2, tmp_path / names[0], lake)
        assert f"give --history {first} to continue" in text
        assert lake.version("topic") == version
        assert set(lake.output.rglob("*")) == paths


def test_missing_history_file_ends_a_run_that_requires_it(
    tmp_path: Path, lake: ExportedLake
) -> None:
    dump = tmp_path / "in"
    for end in (28, len(OLD)):
        write(dump, {0: b"".join(log_of(OLD[:end]))})
        export(0, dump, lake)
    before = lake.values("topic")
    if isinstance(lake, DeltaTables):
        unused = lake.table("topic").vacuum(0, dry_run=True, enforce_retention_duration=False)
        assert [Path(path).parts[0] for path in unused] == ["data"]
    min(lake.folder_of(0).glob("*.parquet")).unlink()
    write(dump, {0: b"".join(log_of(OLD[:28] + NEW[28:]))})
    text = export(2, dump, lake, "--on-data-loss", "continue")
    assert "(expected 3 data files from offset 0 on, found 2)" in text
    assert lake.values("topic") == before


KEY_SCHEMA: dict[str, object] = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "int"}],
}


def value_schema(names: Iterable[str]) -> dict[str, object]:
    fields = [{"name": name, "type": "int"} for name in names]
    lines = {"type": "array", "items": {"type": "record", "name": "Line", "fields": fields}}
    return {"type": "record", "name": "Order", "fields": [*fields, {"name": "n", "type": lines}]}


@pytest.mark.parametrize("columns", [(), ("--columns", "offset,key.id,value,value_schema_id")])
def test_decoded_rows_are_merged_by_the_bytes_of_their_keys(
    tmp_path: Path, lake: ExportedLake, columns: tuple[str, ...]
) -> None:
    first, second = value_schema(["a", "b"]), value_schema(["c", "b", "a"])
    line = {"a": 3, "b": 4}
    old = {"a": 1, "b": 2, "n": [line]}
    new = {"c": 9, "a": 5, "b": 6, "n": [{"c": 9, "a": 7, "b": 8}]}
    keys = [framed(schema_id, encode(KEY_SCHEMA, [{"id": 1}])[0]) for schema_id in (4, 5)]
    old_bytes, new_bytes = framed(2, encode(first, [old])[0]), framed(3, encode(second, [new])[0])
    runs: list[list[tuple[bytes | None, bytes | None]]] = [
        [(keys[0], old_bytes), (keys[1], old_bytes), (b"bad", b"\0"), (None, old_bytes)],
        [(keys[0], new_bytes)],
        [(keys[1], None), (b"bad", new_bytes)],
    ]
    schemas: list[tuple[str, int, int, dict[str, object]]] = [
        ("topic-key", 1, 4, KEY_SCHEMA),
        ("topic-key", 2, 5, {**KEY_SCHEMA, "doc": "same fields"}),
        ("topic-value", 1, 2, first),
        ("topic-value", 2, 3, second),
    ]
    dump, log, offset = tmp_path / "in", b"", 0
    for number, run in enumerate(runs):
        log += batch_of(offset, [(offset, key, value) for key, value in run])
        offset += len(run)
        write(dump, {0: log})
        known = [schema for schema in schemas if number or schema[2] != 3]
        records = [schema_record(*one[:3], json.dumps(one[3])) for one in known]
        write_topic(dump, "_schemas", records)
        options = ("--topics", "topic", "--decode", "both", *columns)
        export(1 if number != 1 else 0, dump, lake, *options)
    names = ("offset", "key", "key_raw", "value", "value_raw")
    result = [tuple(row[name] for name in names) for row in lake.rows("topic")]
    merged = {"c": None, **old, "n": [{"c": None, **line}]}
    assert result == [
        (3, None, None, merged, None),
        (4, {"id": 1}, keys[0], new, None),
        (6, None, b"bad", new, None),
    ]


def add_feature(feature: TableFeatures) -> Callable[[DeltaTable], None]:
    def add(table: DeltaTable) -> None:
        table.alter.add_feature(feature, allow_protocol_versions_increase=True)

    return add


def map_columns(table: DeltaTable) -> None:
    """Let readers find the columns by other names, in files of readers and writers before 3, 7."""
    log = Path(table.table_uri.removeprefix("file://"), "_delta_log")
    for path in log.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        actions = [json.loads(line) for line in text.splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
        path.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def rename(table: IcebergTable) -> None:
    with table.update_schema() as schema:
        schema.rename_column("value", "body")


def drop_and_add(table: IcebergTable) -> None:
    with table.update_schema() as schema:
        schema.add_column("note", StringType())
    with table.update_schema() as schema:
        schema.delete_column("note")
    with table.update_schema() as schema:
        schema.add_column("note", StringType())


def drop(table: IcebergTable) -> None:
    with table.update_schema() as schema:
        schema.delete_column("headers")


RULES = {"c": "offset < 100"}
#: The change of a table by another tool, the tables that are rejected then, and their error.
CHANGES: list[tuple[str, tuple[str, ...], Callable[[Any], None], str]] = [
    ("iceberg", ("latest",), rename, "expected column value with ID 2, found column body"),
    ("iceberg", ("latest",), drop_and_add, "column note with ID 13"),
    ("iceberg", ("latest",), drop, "column headers"),
    ("delta", ("latest",), add_feature(TableFeatures.DeletionVectors), "deletionVectors"),
    (
        *("delta", ("latest",)),
        lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
        "found delta.appendOnly",
    ),
    (
        *("delta", ("full", "latest")),
        lambda table: table.alter.add_constraint(RULES),
        "found delta.constraints.c",
    ),
    ("delta", ("full", "latest"), add_feature(TableFeatures.RowTracking), "found rowTracking"),
    ("delta", ("full", "latest"), map_columns, "found delta.columnMapping.mode"),
]


@pytest.mark.parametrize(
    ("form", "history", "change", "expected"),
    [(form, each, *more) for form, histories, *more in CHANGES for each in histories],
)
def test_table_that_another_tool_changed_is_rejected_before_a_file_is_written(
    tmp_path: Path, form: str, history: str, change: Callable[[Any], None], expected: str
) -> None:
    dump, lake = tmp_path / "in", FORMATS[form](tmp_path / "lakes", history)
    write(dump, {0: b"".join(log_of(OLD[:28]))})
    export(0, dump, lake)
    change(lake.table("topic"))
    write(dump, {0: b"".join(log_of(OLD))})
    files = set(lake.folder_of(0).iterdir())
    assert expected in export(2, dump, lake)
    assert set(lake.folder_of(0).iterdir()) == files


def test_row_group_of_another_tool_is_read_in_batches_of_few_bytes(tmp_path: Path) -> None:
    values = pa.array([bytes([number % 250]) * 100_000 for number in range(2000)])
    rows = pa.table({"offset": pa.array(range(2000)), "value": values})
    path = str(tmp_path / "rows.parquet")
    pq.write_table(rows, path, row_group_size=2000, use_dictionary=False)
    batches = [batch for _, batch in _read_rows(0, path, rows.schema)]
    assert pa.Table.from_batches(batches).equals(rows)
    assert max(batch.nbytes for batch in batches) <= _BATCH_BYTES

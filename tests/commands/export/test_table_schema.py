"""The columns of tables: types in both formats, columns that are added, and what is rejected."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.commands.export.delta import DeltaLake
from kafka_index.commands.export.iceberg import IcebergLake
from kafka_index.commands.export.replaced_rows import RowRange, replace_rows
from kafka_index.commands.export.request import ExportFormat
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import LakeTable, TableChange
from kafka_index.commands.export.table_schema import table_batch, table_schema
from kafka_index.core.errors import InputError
from tests.support.lake_tables import FORMATS, NAMESPACE, ExportedLake, IcebergTables

NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=dt.UTC)
NO_ZONE = NOON.replace(tzinfo=None, microsecond=123000)
NANOSECONDS = 1_767_355_200_123_456_789

#: Arrow type and value of a decoded column; the value and the types that tables have.
TYPES: list[tuple[pa.DataType, Any, Any, str, str]] = [
    (pa.bool_(), True, True, "boolean", "boolean"),
    (pa.int8(), -1, -1, "long", "long"),
    (pa.int32(), -(2**31), -(2**31), "long", "long"),
    (pa.int64(), 2**63 - 1, 2**63 - 1, "long", "long"),
    (pa.uint32(), 2**32 - 1, 2**32 - 1, "long", "long"),
    (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1), "decimal(20, 0)", "decimal(20,0)"),
    (pa.float32(), 0.5, 0.5, "double", "double"),
    (pa.float64(), 0.1, 0.1, "double", "double"),
    (pa.string(), "é", "é", "string", "string"),
    (pa.large_string(), "é", "é", "string", "string"),
    (pa.dictionary(pa.int32(), pa.string()), "RED", "RED", "string", "string"),
    (pa.null(), None, None, "string", "string"),
    (pa.binary(), b"\xff", b"\xff", "binary", "binary"),
    (pa.binary(2), b"\x00\xff", b"\x00\xff", "fixed[2]", "binary"),
    (pa.decimal128(38, 6), Decimal("1.5"), Decimal("1.500000"), "decimal(38, 6)", "decimal(38,6)"),
    (pa.date32(), NOON.date(), NOON.date(), "date", "date"),
    (pa.timestamp("us", "UTC"), NOON, NOON, "timestamptz", "timestamp"),
    (
        pa.timestamp("ms"),
        NO_ZONE,
        NO_ZONE,
        "timestamp",
        "timestamp_ntz",
    ),
    (pa.timestamp("ns"), NANOSECONDS, NANOSECONDS, "long", "long"),
]


@dataclass(frozen=True, slots=True)
class DecodedSettings(ExportSettings):
    """Settings of files with another schema than that of records."""

    schema: pa.Schema | None = None

    @property
    def row_schema(self) -> pa.Schema:
        return table_schema(self.schema, self.format)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ExportedLake:
    return FORMATS[request.param](tmp_path / "lakes")


def open_table(lake: ExportedLake, schema: pa.Schema) -> tuple[LakeTable, DecodedSettings]:
    form = ExportFormat.ICEBERG if isinstance(lake, IcebergTables) else ExportFormat.DELTA
    settings = DecodedSettings(str(lake.output), form, schema=schema)
    lakes = IcebergLake(lake.uri, NAMESPACE) if isinstance(lake, IcebergTables) else DeltaLake()
    return lakes.open("topic", str(lake.output / "topic"), settings), settings


def commit(lake: ExportedLake, rows: pa.Table, version: int) -> None:
    """Write rows to a file, and commit it."""
    table, settings = open_table(lake, rows.schema)
    path = lake.output / "topic" / "partition-0" / f"{version:020d}-{version:020d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    (batch,) = rows.combine_chunks().to_batches()
    converted = pa.Table.from_batches([table_batch(batch, settings.file_schema)])
    pq.write_table(converted, path)
    table.commit(TableChange((), (str(path),), {"kafka-index:test:topic-0": version}))


def exact_rows(lake: ExportedLake) -> list[dict[str, Any]]:
    """Return the rows of a table from its files: pyiceberg reads null lists as empty ones."""
    with duckdb.connect() as connection:
        query = 'SELECT * FROM read_parquet($files, union_by_name = true) ORDER BY "offset"'
        rows = connection.sql(query, params={"files": lake.files("topic")})
        result: list[dict[str, Any]] = rows.to_arrow_table().to_pylist()
        return result


def remove(lake: ExportedLake, schema: pa.Schema, *offsets: int) -> None:
    """Remove rows, and so rewrite their files."""
    table, settings = open_table(lake, schema)
    removed, added = replace_rows(
        table.list_files([0]),
        [RowRange(0, offset, offset + 1) for offset in offsets],
        (),
        table.rewritten_schema(),
        settings,
        str(lake.output / "topic"),
    )
    table.commit(TableChange(tuple(removed), tuple(added), {}))


def rows_of(offset: int, **columns: pa.Array) -> pa.Table:
    length = len(next(iter(columns.values())))
    own = {
        "partition": pa.array([0] * length, pa.int32()),
        "offset": pa.array(range(offset, offset + length), pa.int64()),
    }
    return pa.table({**own, **columns})


def nested(kind: pa.DataType, value: Any, depth: str) -> pa.Array:
    """Return a column with a value and a null, on its own or within other types."""
    wrapped = pa.array([value, None], kind)
    match depth:
        case "struct":
            return pa.StructArray.from_arrays([wrapped], fields=[pa.field("x", kind)])
        case "list":
            return pa.ListArray.from_arrays([0, 1, 2], wrapped)
        case "map":
            return pa.MapArray.from_arrays([0, 1, 2], ["k", "l"], wrapped)
    return wrapped


@pytest.mark.parametrize("depth", ["column", "struct", "list", "map"])
def test_every_column_type_is_read_back_in_both_table_formats(
    lake: ExportedLake, depth: str
) -> None:
    columns = {f"c{number}": nested(one[0], one[1], depth) for number, one in enumerate(TYPES)}
    rows = rows_of(0, **columns)
    commit(lake, pa.concat_tables([rows, rows_of(2, **columns)]), 2)
    for repeats in (2, 1):
        if repeats == 1:
            remove(lake, rows.schema, 2, 3)
        actual = lake.read("topic")
        for number, (_, _, value, *_) in enumerate(TYPES):
            expected = nested(found_type(value), value, depth).to_pylist() * repeats
            assert actual[f"c{number}"].to_pylist() == expected, TYPES[number]


def found_type(value: Any) -> pa.DataType:
    return pa.string() if value is None else pa.scalar(value).type


def test_column_types_equal_those_documented(lake: ExportedLake) -> None:
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    for number, (kind, *_) in enumerate(TYPES):
        schema = schema.append(pa.field(f"c{number}", kind))
    open_table(lake, schema)
    table = lake.table("topic")
    if isinstance(lake, IcebergTables):
        result = {field_.name: str(field_.field_type) for field_ in table.schema().fields}
        own, place = "int", 3
    else:
        result = {field_.name: field_.type.type for field_ in table.schema().fields}
        own, place = "integer", 4
    assert result == {
        "partition": own,
        "offset": "long",
        **{f"c{number}": one[place] for number, one in enumerate(TYPES)},
    }


def test_new_columns_are_added_at_every_depth(lake: ExportedLake) -> None:
    first: dict[str, list[Any]] = {"value": [{"a": 1, "items": [{"n": 1}]}]}
    new = {"a": 2, "b": "x", "items": [{"n": 2, "m": 3}]}
    second: dict[str, list[Any]] = {
        "value": [{"a": 2, "b": "x", "items": [{"n": 2, "m": 3}]}],
        "value_type": ["T"],
    }
    narrower: dict[str, list[Any]] = {"value": [{"a": 4}]}
    for version, columns in enumerate((first, second, narrower, first)):
        rows = {name: pa.array(values) for name, values in columns.items()}
        commit(lake, rows_of(version, **rows), version + 1)
    result = lake.rows("topic")
    item = {"n": 1, "m": None}
    assert [row["value_type"] for row in result] == [None, "T", None, None]
    values = [row["value"] for row in result]
    assert values[0] == {"a": 1, "b": None, "items": [item]}
    assert values[1] == new
    assert values[2]["a"] == 4
    assert values[3] == values[0]


def test_rewritten_files_of_earlier_columns_keep_their_rows(lake: ExportedLake) -> None:
    """Members of the second file have another order, and some are new."""
    old = pa.struct([("n", pa.int64()), ("o", pa.string())])
    new = pa.struct([("m", pa.int64()), ("o", pa.string()), ("n", pa.int64())])
    for number, (kind, value) in enumerate(
        [(old, {"n": 1, "o": "x"}), (new, {"m": 2, "o": "y", "n": 3}), (old, {"n": 4, "o": None})]
    ):
        values = {
            "struct": pa.array([None, value, value], kind),
            "list": pa.array([[value, None], None, []], pa.list_(kind)),
            "map": pa.array([[("k", value)], [], None], pa.map_(pa.string(), kind)),
        }
        rows = rows_of(3 * number, **values)
        commit(lake, rows, number + 1)
    before = exact_rows(lake)
    remove(lake, rows.schema, 1, 3, 8)
    assert exact_rows(lake) == [row for row in before if row["offset"] not in (1, 3, 8)]


@pytest.mark.parametrize(
    ("kind", "column", "types"),
    [
        (pa.struct([("a", pa.string())]), "value.a", ("int64", "string")),
        (pa.struct([("a", pa.list_(pa.int64()))]), "value.a", ("int64", "list<")),
        (pa.struct([("n", pa.list_(pa.string()))]), "value.n.element", ("double", "string")),
        (pa.string(), "value", ("struct<", "string")),
    ],
)
def test_changed_type_is_rejected_with_the_column_and_both_types(
    lake: ExportedLake, kind: pa.DataType, column: str, types: tuple[str, str]
) -> None:
    own = [("partition", pa.int32()), ("offset", pa.int64())]
    known = pa.struct([("a", pa.int64()), ("n", pa.list_(pa.float64()))])
    open_table(lake, pa.schema([*own, ("value", known)]))
    with pytest.raises(InputError) as caught:
        open_table(lake, pa.schema([*own, ("value", kind)]))
    assert f"the column {column} (expected {types[0]}" in str(caught.value)
    assert f"found {types[1]}" in str(caught.value)


@pytest.mark.parametrize("form", [ExportFormat.ICEBERG, ExportFormat.DELTA])
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"value": pa.decimal256(40, 1)}, "no type for the column value"),
        ({"value": pa.struct([("d", pa.duration("s"))])}, "no type for the column value.d"),
        ({"value": pa.struct([])}, "no type for the column value"),
        ({"value": pa.map_(pa.string(), pa.month_day_nano_interval())}, "column value.value"),
        ({"select": pa.int64(), "Select": pa.int64()}, "differ only in case"),
        ({"value": pa.struct([("x", pa.int64()), ("X", pa.int64())])}, "value.x and value.X"),
    ],
)
def test_unknown_columns_of_a_table_are_rejected(
    form: ExportFormat, schema: dict[str, pa.DataType], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        table_schema(pa.schema(list(schema.items())), form)


def test_only_iceberg_tables_widen_column_types(lake: ExportedLake) -> None:
    own = [("partition", pa.int32()), ("offset", pa.int64())]
    lake.create("topic", pa.schema([*own, ("a", pa.int32()), ("b", pa.float32())]))
    wide = pa.schema([*own, ("a", pa.int64()), ("b", pa.float64())])
    if isinstance(lake, IcebergTables):
        commit(lake, rows_of(0, a=pa.array([2**40]), b=pa.array([0.1])), 1)
        assert lake.read("topic").select(["a", "b"]).to_pylist() == [{"a": 2**40, "b": 0.1}]
    else:
        with pytest.raises(InputError, match=r"the column a \(expected int32, found int64\)"):
            open_table(lake, wide)

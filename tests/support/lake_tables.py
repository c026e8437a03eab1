"""Tables that exports commit to, in both formats, and their rows as other libraries read them."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

import kafka_index
from kafka_index.commands.export.table_schema import is_outside_calendar
from kafka_index.core.records.record_table import DEFAULT_COLUMNS, RECORD_SCHEMA
from tests.support.command_line import Argument

NAMESPACE = "kafka"
KEYS = ("topic", "partition", "offset")


class ExportedLake(ABC):
    """The tables of an export below a folder."""

    def __init__(self, folder: Path, history: str = "full") -> None:
        self.folder = folder
        self.history = history
        self.output = folder / "lake"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def options(self) -> tuple[Argument, ...]:
        """The options of an export."""
        return (*self._options, *(("--history", "latest") if self.history == "latest" else ()))

    @property
    @abstractmethod
    def _options(self) -> tuple[Argument, ...]: ...

    def folder_of(self, partition: int, topic: str = "topic") -> Path:
        """Return the folder of the files that an export writes."""
        history = "_history" if self.history == "latest" else ""
        return self.output / topic / history / f"partition-{partition}"

    @abstractmethod
    def table(self, topic: str) -> Any:
        """Return a table, loaded by the library of its format."""

    @abstractmethod
    def read(self, topic: str) -> pa.Table:
        """Return the rows of a table, as the library of its format reads them."""

    @abstractmethod
    def files(self, topic: str) -> list[str]:
        """Return the paths of the data files in a table."""

    @abstractmethod
    def version(self, topic: str) -> int:
        """Return the number of commits to a table."""

    @abstractmethod
    def create(self, topic: str, schema: pa.Schema) -> None:
        """Create the table of a topic, as another tool would."""

    @abstractmethod
    def append(self, topic: str, rows: pa.Table) -> None:
        """Add rows to a table, as another tool would."""

    @abstractmethod
    def compact(self, topic: str) -> None:
        """Rewrite all files of a table to one file, as another tool would."""

    @property
    def topics(self) -> list[str]:
        """The topics with a table."""
        return sorted(path.name for path in self.output.iterdir() if path.is_dir())

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return the rows of a partition, in the order of their offsets."""
        rows: list[dict[str, Any]] = self.read(topic).sort_by("offset").to_pylist()
        return rows

    def values(self, topic: str) -> list[tuple[int, bytes]]:
        """Return offset and value of each row."""
        table = self.read(topic).sort_by([("partition", "ascending"), ("offset", "ascending")])
        return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))

    def rows_if_any(self, topic: str) -> list[tuple[int, bytes]]:
        """Return the rows of a table that may not exist, or have no rows."""
        try:
            return self.values(topic)
        except (NoSuchTableError, TableNotFoundError):
            return []

    def copy_from(self, template: Path) -> None:
        """Replace the tables by a copy that was made of them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(template, self.folder)


class IcebergTables(ExportedLake):
    """Tables in a SQL catalog in SQLite."""

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/catalog.db"

    @property
    def _options(self) -> tuple[Argument, ...]:
        where = ("--catalog", self.uri, "--namespace", self.namespace, "--output", self.output)
        return ("--format", "iceberg", *where)

    @property
    def namespace(self) -> str:
        return NAMESPACE

    @property
    def catalog(self) -> Catalog:
        return load_catalog("default", type="sql", uri=self.uri)

    def create(self, topic: str, schema: pa.Schema) -> None:
        self.catalog.create_namespace_if_not_exists(self.namespace)
        location = f"file://{self.output}/{topic}"
        self.catalog.create_table((self.namespace, topic), schema, location=location)

    def table(self, topic: str) -> Table:
        catalog = self.catalog
        try:
            return catalog.load_table((self.namespace, topic))
        finally:
            catalog.close()

    def append(self, topic: str, rows: pa.Table) -> None:
        self.table(topic).append(rows)

    def compact(self, topic: str) -> None:
        table = self.table(topic)
        table.overwrite(table.scan().to_arrow())

    def read(self, topic: str) -> pa.Table:
        return self.table(topic).scan().to_arrow()

    def files(self, topic: str) -> list[str]:
        tasks = self.table(topic).scan().plan_files()
        return sorted(task.file.file_path.removeprefix("file://") for task in tasks)

    def version(self, topic: str) -> int:
        return len(self.table(topic).snapshots())


class DeltaTables(ExportedLake):
    """Tables in the folders of topics."""

    @property
    def _options(self) -> tuple[Argument, ...]:
        return ("--format", "delta", "--output", self.output)

    def create(self, topic: str, schema: pa.Schema) -> None:
        DeltaTable.create(str(self.output / topic), schema)

    def table(self, topic: str) -> DeltaTable:
        return DeltaTable(str(self.output / topic))

    def append(self, topic: str, rows: pa.Table) -> None:
        write_deltalake(self.table(topic), rows, mode="append")

    def compact(self, topic: str) -> None:
        self.table(topic).optimize.compact()

    def read(self, topic: str) -> pa.Table:
        return self.table(topic).to_pyarrow_table()

    def rows(self, topic: str) -> list[dict[str, Any]]:
        # Not by Arrow: 20 does not read structs whose members have another order in a file.
        table = pa.RecordBatchReader.from_stream(self.table(topic).scan()).read_all()
        return sorted(table.to_pylist(), key=lambda row: row["offset"])

    def files(self, topic: str) -> list[str]:
        return sorted(self.table(topic).file_uris())

    def version(self, topic: str) -> int:
        return self.table(topic).version()


FORMATS: dict[str, Callable[..., ExportedLake]] = {"iceberg": IcebergTables, "delta": DeltaTables}


def duckdb_rows(files: list[str]) -> pa.Table:
    """Return the rows of data files, as DuckDB reads them."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        query = "SELECT * FROM read_parquet($files, hive_partitioning = false)"
        return connection.sql(query, params={"files": files}).to_arrow_table()


def polars_rows(lake: ExportedLake, topic: str) -> pa.Table:
    """Return the rows of a table, as polars reads them."""
    polars = pytest.importorskip("polars")
    scan = polars.scan_delta if isinstance(lake, DeltaTables) else polars.scan_iceberg
    return scan(lake.table(topic)).collect().to_arrow()


def records_of(dump: Path, **options: Any) -> pa.Table:
    """Return the records of a dump as a table has them: no time outside of the calendar."""
    table = kafka_index.read_records(dump, **options).read_all()
    times = table["timestamp"]
    outside = is_outside_calendar(times.cast(pa.int64()))
    number = table.schema.get_field_index("timestamp")
    table = table.set_column(
        number, "timestamp", pc.if_else(outside, pa.scalar(None, times.type), times)
    )
    return as_records(table)


def newest_records(records: pa.Table) -> pa.Table:
    """Return the newest of the records with each key, without deleted keys, from `records_of`."""
    rows: dict[object, int] = {}
    for number, row in enumerate(records.select(["partition", "key", "value"]).to_pylist()):
        place = row["partition"], number if row["key"] is None else row["key"]
        rows.pop(place, None)
        if row["key"] is None or row["value"] is not None:
            rows[place] = number
    return as_records(records.take(pa.array(sorted(rows.values()), pa.int64())))


def as_records(table: pa.Table) -> pa.Table:
    """Return the default columns of a table with the types of `read_records`, in order.

    Null and empty headers are one: pyiceberg 0.12 reads a null list of structs as empty.
    """
    columns = {name: table[name].cast(_SCHEMA.field(name).type) for name in _SCHEMA.names}
    headers = columns["headers"].combine_chunks()
    columns["headers"] = pc.if_else(
        pc.greater(pc.list_value_length(headers), 0), headers, pa.scalar(None, headers.type)
    )
    sorted_table = pa.table(columns).sort_by([(name, "ascending") for name in KEYS])
    return sorted_table.combine_chunks()


_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_SCHEMA = pa.schema(
    pa.field(each.name, _HEADERS if each.name == "headers" else each.type)
    for each in map(RECORD_SCHEMA.field, DEFAULT_COLUMNS)
)

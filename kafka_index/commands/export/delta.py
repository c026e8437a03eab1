"""Delta tables of an export, written with the library deltalake."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from kafka_index.commands.export.replaced_rows import TableFile, has_rows_of
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import (
    Lake,
    LakeTable,
    TableChange,
    table_errors,
)
from kafka_index.commands.export.table_schema import refuse_changed_types
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.fs.registry import readable, storage_options, store_of
from kafka_index.core.fs.uris import OBJECT_SCHEMES, scheme_of

try:
    from deltalake import DeltaTable, Schema, TableFeatures
    from deltalake.exceptions import CommitFailedError, DeltaProtocolError, SchemaMismatchError
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
except ImportError as error:
    raise InputError(
        f"the library for Delta tables is not installed ({error.name})",
        hint="pip install 'kafka-index[delta]'",
    ) from error

_DATE = "date"
#: The columns that identify a record of a topic.
_RECORD_ID_COLUMNS = ("partition", "offset")
_DATE_FOLDER = f"{_DATE}="
#: A Delta table with this reader version may have column mapping, but no other reader feature.
_MAPPED_VERSION = 2
#: Writer features of Delta that exports support. `_refuse_rules` also checks constraints and column
#: rules.
_SUPPORTED_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
_CONSTRAINT, _MAPPING = "delta.constraints.", "delta.columnMapping.mode"
_COLUMN_RULES = ("delta.invariants", "delta.generationExpression")
#: The maximum length of a string in the statistics of a file.
_MAX_BOUND_LENGTH = 32
_deltalake_errors = partial(
    table_errors,
    conflicts=(CommitFailedError,),
    permanent=(DeltaProtocolError, SchemaMismatchError),
)


class DeltaLake(Lake):
    """The output folder, in which each topic has a subfolder with its Delta table."""

    def open(self, topic: str, folder: str, settings: ExportSettings) -> LakeTable:  # noqa: ARG002
        """Create the table of a topic in its folder unless it exists; return the loaded table."""
        table = _DeltaTable(folder, settings)
        table.create()
        table.load()
        table.check()
        return table


class _DeltaTable(LakeTable):
    def __init__(self, folder: str, settings: ExportSettings) -> None:
        self.name = folder
        self._schema = settings.row_schema
        self._is_latest = settings.is_latest
        self._partition_by = [_DATE] if settings.by_date else []
        self._table: DeltaTable | None = None

    @property
    def _loaded(self) -> DeltaTable:
        assert self._table is not None  # noqa: S101, because mypy needs it
        return self._table

    def create(self) -> None:
        """Create the table unless it exists."""
        with _deltalake_errors("create the table", self.name):
            options = _storage_options(self.name)
            if DeltaTable.is_deltatable(self.name, options):
                return
            # Timestamps without a time zone require a table feature. `check` adds their columns
            # together with the feature.
            schema = pa.schema([field for field in self._schema if not _has_local_times(field)])
            if self._partition_by:
                schema = schema.append(pa.field(_DATE, pa.date32()))
            DeltaTable.create(
                self.name,
                schema,
                mode="ignore",
                partition_by=self._partition_by,
                storage_options=options,
            )

    def load(self) -> None:
        with _deltalake_errors("load the table", self.name):
            self._table = DeltaTable(self.name, storage_options=_storage_options(self.name))

    def check(self) -> None:
        """Add missing columns; raises `InputError` if the table cannot take the data files."""
        table_columns = pa.schema(self._loaded.schema().to_arrow())
        # Spark fails to read a data file whose type is wider or narrower than the type of the
        # table's column.
        refuse_changed_types(self._schema, table_columns, self.name, lambda _table, _own: False)
        partition_columns = self._loaded.metadata().partition_columns
        if partition_columns != self._partition_by:
            raise InputError(
                "the table and the data files are partitioned by different columns",
                path=self.name,
                expected=", ".join(self._partition_by) or "none",
                found=", ".join(partition_columns) or "none",
                hint="give or omit --by-date, or export to another table",
            )
        self._refuse_rules()
        if self._is_latest:
            self._refuse_unreplaceable_rows()
        with _deltalake_errors("add columns to the table", self.name):
            file_schema = Schema.from_arrow(self._schema)
            columns = {field.name: field for field in self._loaded.schema().fields}
            missing_fields = [
                field for field in file_schema.fields if columns.get(field.name) != field
            ]
            if missing_fields and any(map(_has_local_times, self._schema)):
                feature = TableFeatures.TimestampWithoutTimezone
                self._loaded.alter.add_feature(feature, allow_protocol_versions_increase=True)
            if missing_fields:
                self._loaded.alter.add_columns(missing_fields)
                self.load()

    def _refuse_rules(self) -> None:
        """Raise `InputError` for column mapping, and features or rules that are not supported."""
        configuration = self._loaded.metadata().configuration
        unsupported_rules = set(self._loaded.protocol().writer_features or ()) - _SUPPORTED_FEATURES
        unsupported_rules |= {name for name in configuration if name.startswith(_CONSTRAINT)}
        if configuration.get(_MAPPING, "none") != "none":
            unsupported_rules.add(_MAPPING)
        for column in self._loaded.schema().fields:
            # The date column may be generated from the timestamps: the date folders have the same
            # days.
            if column.name != _DATE and any(rule in column.metadata for rule in _COLUMN_RULES):
                unsupported_rules.add(f"a rule of the column {column.name}")
        if unsupported_rules:
            raise InputError(
                "the table has a feature or rule that `export` does not support",
                path=self.name,
                found=", ".join(sorted(unsupported_rules)),
                hint="drop the feature or rule from the table, or export to another table",
            )

    def _refuse_unreplaceable_rows(self) -> None:
        """Raise `InputError` if a feature of the table prevents the replacement of rows."""
        protocol = self._loaded.protocol()
        features = set(protocol.reader_features or ())
        if protocol.min_reader_version == _MAPPED_VERSION:
            features.add("columnMapping")
        unsupported_features = features & {"columnMapping", "deletionVectors"}
        if self._loaded.metadata().configuration.get("delta.appendOnly") == "true":
            unsupported_features.add("delta.appendOnly")
        if unsupported_features:
            raise InputError(
                "the table has a feature that prevents the replacement of rows",
                path=self.name,
                found=", ".join(sorted(unsupported_features)),
                hint="drop the feature from the table, or export to another table",
            )

    def version(self, key: str) -> int | None:
        with _deltalake_errors("read the table", self.name):
            return self._loaded.transaction_version(key)

    def has_rows(self, partitions: Collection[int]) -> bool:
        if not partitions:
            return False
        with _deltalake_errors("read the table", self.name):
            return any(
                has_rows_of(file, partitions) for file in self._list_overlapping_files(partitions)
            )

    def rewritten_schema(self) -> pa.Schema:
        columns = pa.schema(self._loaded.schema().to_arrow())
        return pa.schema([field for field in columns if field.name not in self._partition_by])

    def list_files(self, partitions: Collection[int]) -> list[TableFile]:
        self._refuse_unreplaceable_rows()
        return self._list_overlapping_files(partitions)

    def _list_overlapping_files(self, partitions: Collection[int]) -> list[TableFile]:
        """Return the files of the loaded table that may have rows of partitions."""
        files = [
            TableFile(
                self._absolute_path(file),
                _bounds(file, "partition"),
                _bounds(file, "offset"),
                has_nulls=any(file.get(f"null_count.{name}") != 0 for name in _RECORD_ID_COLUMNS),
            )
            for file in self._list_add_actions()
        ]
        files.sort(key=lambda file: (file.partitions, file.offsets, file.path))
        return [
            file
            for file in files
            if any(
                file.partitions[0] <= partition <= file.partitions[1] for partition in partitions
            )
        ]

    def commit(self, change: TableChange) -> None:
        with _deltalake_errors("commit to the table", self.name):
            files = (
                {self._absolute_path(file): file for file in self._list_add_actions()}
                if change.removed
                else {}
            )
            self._loaded.create_write_transaction(
                [
                    *(self._remove_action(files[path]) for path in change.removed),
                    *map(self._add_action, change.added),
                ],
                "append",
                self._loaded.schema(),
                self._partition_by,
                commit_properties=CommitProperties(
                    # If another tool has compacted the removed files, deltalake would retry the
                    # commit. The table would contain the rows of these files twice.
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(key, version) for key, version in change.versions.items()
                    ],
                ),
            )

    def _add_action(self, path: str) -> AddAction:
        info = store_of(path).info(path)
        metadata = pq.read_metadata(readable(path, info))
        folder = os.path.basename(os.path.dirname(path))
        day = folder.removeprefix(_DATE_FOLDER)
        values = {_DATE: None if day.startswith("__") else day} if self._partition_by else {}
        return AddAction(
            os.path.relpath(path, self.name),
            info.size_bytes,
            values,
            info.mtime_ns // 1_000_000,
            data_change=True,
            stats=msgspec.json.encode(_statistics(metadata)).decode(),
        )

    def _remove_action(self, file: Mapping[str, Any]) -> RemoveAction:
        values = {_DATE: _format_date(file[f"partition.{_DATE}"])} if self._partition_by else {}
        now_ms = time.time_ns() // 1_000_000
        return RemoveAction(file["path"], True, now_ms, file["size_bytes"], values)  # noqa: FBT003

    def _absolute_path(self, file: Mapping[str, Any]) -> str:
        return os.path.join(self.name, file["path"])

    def _list_add_actions(self) -> list[dict[str, Any]]:
        """Return the ``add`` actions of the files in the loaded table, with their statistics."""
        with _deltalake_errors("read the table", self.name):
            files: list[dict[str, Any]] = pa.table(
                self._loaded.get_add_actions(flatten=True)
            ).to_pylist()
            return files


def _has_local_times(column: pa.Field) -> bool:
    """Return whether a column has timestamps without a time zone, at any depth."""
    return "timestamp[us]" in str(column.type)


def _bounds(file: Mapping[str, Any], column: str) -> tuple[int, int]:
    """Return the minimum and maximum of a column; the full range if the file has no statistics."""
    min_value, max_value = file.get(f"min.{column}"), file.get(f"max.{column}")
    return (-1, INT64_MAX) if min_value is None or max_value is None else (min_value, max_value)


def _format_date(value: date | None) -> str | None:
    return None if value is None else value.isoformat()


def _statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Merge the statistics of a Parquet file's row groups into Delta's statistics of the file."""
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_counts: dict[str, Any] = {}
    for column_number, path in enumerate(_leaf_paths(metadata.schema.to_arrow_schema())):
        if path is None:
            continue
        row_groups = range(metadata.num_row_groups)
        column_statistics = [
            metadata.row_group(group).column(column_number).statistics for group in row_groups
        ]
        if any(
            statistics is None or statistics.null_count is None for statistics in column_statistics
        ):
            continue
        _set_nested(
            null_counts, path, sum(statistics.null_count for statistics in column_statistics)
        )
        statistics_with_bounds = [
            statistics for statistics in column_statistics if statistics.has_min_max
        ]
        # In a row group, a column with only nulls has no minimum and maximum.
        has_all_bounds = all(
            statistics.has_min_max or not statistics.num_values for statistics in column_statistics
        )
        if statistics_with_bounds and has_all_bounds:
            min_value, max_value = (
                min(statistics.min for statistics in statistics_with_bounds),
                max(statistics.max for statistics in statistics_with_bounds),
            )
            json_bounds = _json_bound(min_value), _json_bound(max_value)
            if None not in json_bounds:
                _set_nested(min_values, path, json_bounds[0])
                _set_nested(max_values, path, json_bounds[1])
    return {
        "numRecords": metadata.num_rows,
        "minValues": min_values,
        "maxValues": max_values,
        "nullCount": null_counts,
    }


def _leaf_paths(schema: pa.Schema) -> list[tuple[str, ...] | None]:
    """Return the path of each leaf column of a Parquet file; None for leaves in lists and maps."""

    def visit(
        path: tuple[str, ...] | None, data_type: pa.DataType
    ) -> Iterator[tuple[str, ...] | None]:
        if not data_type.num_fields:
            yield path
        for child_number in range(data_type.num_fields):
            child = data_type.field(child_number)
            child_path = (
                None if path is None or not pt.is_struct(data_type) else (*path, child.name)
            )
            yield from visit(child_path, child.type)

    return [leaf for field in schema for leaf in visit((field.name,), field.type)]


def _json_bound(value: object) -> object:
    """Convert a bound to a JSON value; return None if Delta has no statistics for the value."""
    if isinstance(value, datetime):
        iso_time = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return iso_time if value.tzinfo is None else f"{iso_time}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _MAX_BOUND_LENGTH else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _set_nested(tree: dict[str, Any], path: Sequence[str], value: object) -> None:
    *parents, name_of_value = path
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[name_of_value] = value


def _storage_options(path: str) -> dict[str, str] | None:
    """Return the options and credentials of a path's store, in the form that deltalake accepts."""
    if scheme_of(path) not in OBJECT_SCHEMES:
        return None
    from kafka_index.core.fs.object_store import ObjectConfig  # noqa: PLC0415, an extra

    return ObjectConfig.load(path, storage_options()).settings_with_credentials()

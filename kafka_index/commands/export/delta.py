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
#: The columns that locate a record.
_PLACE = ("partition", "offset")
_DATE_FOLDER = f"{_DATE}="
#: The version of readers that only column mapping needs.
_MAPPED_VERSION = 2
#: The features of writers whose rules data files keep. Constraints and columns are checked besides.
_KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
_CONSTRAINT, _MAPPING = "delta.constraints.", "delta.columnMapping.mode"
_COLUMN_RULES = ("delta.invariants", "delta.generationExpression")
#: Longer strings are not in the statistics of a file.
_MAX_TEXT = 32
_deltalake_errors = partial(
    table_errors,
    conflicts=(CommitFailedError,),
    permanent=(DeltaProtocolError, SchemaMismatchError),
)


class DeltaLake(Lake):
    """The folders of topics below an output: each is a table."""

    def open(self, topic: str, folder: str, settings: ExportSettings) -> LakeTable:  # noqa: ARG002
        """Create the table of a topic in its folder unless it exists; return it, loaded."""
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
            # Columns that need a table feature are added together with the feature.
            schema = pa.schema([each for each in self._schema if not _has_local_times(each)])
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
        known = pa.schema(self._loaded.schema().to_arrow())
        # Spark fails on a file whose type is wider or narrower than the column.
        refuse_changed_types(self._schema, known, self.name, lambda _table, _own: False)
        found = self._loaded.metadata().partition_columns
        if found != self._partition_by:
            raise InputError(
                "the table has other partitions than the data files",
                path=self.name,
                expected=", ".join(self._partition_by) or "none",
                found=", ".join(found) or "none",
                hint="give or omit --by-date, or export to another table",
            )
        self._refuse_rules()
        if self._is_latest:
            self._refuse_fixed_rows()
        with _deltalake_errors("add columns to the table", self.name):
            wanted = Schema.from_arrow(self._schema)
            columns = {each.name: each for each in self._loaded.schema().fields}
            new = [each for each in wanted.fields if columns.get(each.name) != each]
            if new and any(map(_has_local_times, self._schema)):
                feature = TableFeatures.TimestampWithoutTimezone
                self._loaded.alter.add_feature(feature, allow_protocol_versions_increase=True)
            if new:
                self._loaded.alter.add_columns(new)
                self.load()

    def _refuse_rules(self) -> None:
        """Raise `InputError` if data files may break a rule of the table, or are read as nulls."""
        configuration = self._loaded.metadata().configuration
        found = set(self._loaded.protocol().writer_features or ()) - _KNOWN_FEATURES
        found |= {name for name in configuration if name.startswith(_CONSTRAINT)}
        if configuration.get(_MAPPING, "none") != "none":
            found.add(_MAPPING)
        for column in self._loaded.schema().fields:
            # The folders of dates are the days of the timestamps.
            if column.name != _DATE and any(rule in column.metadata for rule in _COLUMN_RULES):
                found.add(f"the rule of column {column.name}")
        if found:
            raise InputError(
                "the table has a feature or rule that exports do not support",
                path=self.name,
                found=", ".join(sorted(found)),
                hint="drop it from the table, or export to another table",
            )

    def _refuse_fixed_rows(self) -> None:
        """Raise `InputError` if rows cannot be replaced, or differ from the rows of their files."""
        protocol = self._loaded.protocol()
        features = set(protocol.reader_features or ())
        if protocol.min_reader_version == _MAPPED_VERSION:
            features.add("columnMapping")
        found = features & {"columnMapping", "deletionVectors"}
        if self._loaded.metadata().configuration.get("delta.appendOnly") == "true":
            found.add("delta.appendOnly")
        if found:
            raise InputError(
                "the rows of a table with this feature cannot be replaced",
                path=self.name,
                found=", ".join(sorted(found)),
                hint="drop the feature from the table, or export to another table",
            )

    def version(self, key: str) -> int | None:
        with _deltalake_errors("read the table", self.name):
            return self._loaded.transaction_version(key)

    def has_rows(self, partitions: Collection[int]) -> bool:
        if not partitions:
            return False
        with _deltalake_errors("read the table", self.name):
            return any(has_rows_of(file, partitions) for file in self._files_near(partitions))

    def rewritten_schema(self) -> pa.Schema:
        columns = pa.schema(self._loaded.schema().to_arrow())
        return pa.schema([each for each in columns if each.name not in self._partition_by])

    def files_with(self, partitions: Collection[int]) -> list[TableFile]:
        self._refuse_fixed_rows()
        return self._files_near(partitions)

    def _files_near(self, partitions: Collection[int]) -> list[TableFile]:
        """Return the files of the loaded table that may have rows of partitions."""
        files = [
            TableFile(
                self._path(file),
                _bounds(file, "partition"),
                _bounds(file, "offset"),
                has_nulls=any(file.get(f"null_count.{name}") != 0 for name in _PLACE),
            )
            for file in self._files()
        ]
        files.sort(key=lambda file: (file.partitions, file.offsets, file.path))
        return [
            file
            for file in files
            if any(file.partitions[0] <= one <= file.partitions[1] for one in partitions)
        ]

    def commit(self, change: TableChange) -> None:
        with _deltalake_errors("commit to the table", self.name):
            files = {self._path(file): file for file in self._files()} if change.removed else {}
            self._loaded.create_write_transaction(
                [
                    *(self._removal(files[path]) for path in change.removed),
                    *map(self._addition, change.added),
                ],
                "append",
                self._loaded.schema(),
                self._partition_by,
                commit_properties=CommitProperties(
                    # If another tool compacts the removed files, deltalake would repeat the
                    # commit, and the table would have their rows twice.
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(key, version) for key, version in change.versions.items()
                    ],
                ),
            )

    def _addition(self, path: str) -> AddAction:
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

    def _removal(self, file: Mapping[str, Any]) -> RemoveAction:
        values = {_DATE: _text(file[f"partition.{_DATE}"])} if self._partition_by else {}
        now_ms = time.time_ns() // 1_000_000
        return RemoveAction(file["path"], True, now_ms, file["size_bytes"], values)  # noqa: FBT003

    def _path(self, file: Mapping[str, Any]) -> str:
        return os.path.join(self.name, file["path"])

    def _files(self) -> list[dict[str, Any]]:
        """Return the files of the loaded table, with their statistics."""
        with _deltalake_errors("read the table", self.name):
            files: list[dict[str, Any]] = pa.table(
                self._loaded.get_add_actions(flatten=True)
            ).to_pylist()
            return files


def _has_local_times(column: pa.Field) -> bool:
    """Return whether a column has timestamps without a zone, at any depth."""
    return "timestamp[us]" in str(column.type)


def _bounds(file: Mapping[str, Any], column: str) -> tuple[int, int]:
    """Return the bounds of a column in a file; all numbers if it has no statistics."""
    low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
    return (-1, INT64_MAX) if low is None or high is None else (low, high)


def _text(value: date | None) -> str | None:
    return None if value is None else value.isoformat()


def _statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file, merged from its row groups."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for number, path in enumerate(_leaves(metadata.schema.to_arrow_schema())):
        if path is None:
            continue
        groups = range(metadata.num_row_groups)
        found = [metadata.row_group(group).column(number).statistics for group in groups]
        if any(one is None or one.null_count is None for one in found):
            continue
        _set(nulls, path, sum(one.null_count for one in found))
        bounded = [one for one in found if one.has_min_max]
        # A row group that only has nulls has no bounds.
        known = all(one.has_min_max or not one.num_values for one in found)
        if bounded and known:
            low, high = min(one.min for one in bounded), max(one.max for one in bounded)
            texts = _bound(low), _bound(high)
            if None not in texts:
                _set(lows, path, texts[0])
                _set(highs, path, texts[1])
    return {
        "numRecords": metadata.num_rows,
        "minValues": lows,
        "maxValues": highs,
        "nullCount": nulls,
    }


def _leaves(schema: pa.Schema) -> list[tuple[str, ...] | None]:
    """Return the path of each leaf column of a Parquet file; None below lists and maps."""

    def below(path: tuple[str, ...] | None, kind: pa.DataType) -> Iterator[tuple[str, ...] | None]:
        if not kind.num_fields:
            yield path
        for number in range(kind.num_fields):
            each = kind.field(number)
            own = None if path is None or not pt.is_struct(kind) else (*path, each.name)
            yield from below(own, each.type)

    return [leaf for each in schema for leaf in below((each.name,), each.type)]


def _bound(value: object) -> object:
    """Return a bound as JSON; None if the type or value has none."""
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _set(tree: dict[str, Any], path: Sequence[str], value: object) -> None:
    *parents, last = path
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _storage_options(path: str) -> dict[str, str] | None:
    """Return the options and credentials of the store of a path, as deltalake takes them."""
    if scheme_of(path) not in OBJECT_SCHEMES:
        return None
    from kafka_index.core.fs.object_store import ObjectConfig  # noqa: PLC0415, an extra

    return ObjectConfig.load(path, storage_options()).settings_with_credentials()

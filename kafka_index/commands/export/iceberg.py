"""Iceberg tables of an export, in any catalog that pyiceberg supports, such as SQL and REST."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.types as pt

from kafka_index.commands.export.replaced_rows import TableFile, has_rows_of
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import (
    Lake,
    LakeTable,
    TableChange,
    table_errors,
)
from kafka_index.commands.export.table_schema import refuse_changed_types, small_type
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.fs.registry import storage_options, store_of

try:
    from pyiceberg.catalog import Catalog, infer_catalog_type, load_catalog
    from pyiceberg.exceptions import (
        BadRequestError,
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchNamespaceError,
        NotInstalledError,
        ResolveError,
        ValidationError,
        ValidationException,
    )
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import index_by_id
    from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
    from pyiceberg.transforms import DayTransform
except ImportError as error:
    raise InputError(
        f"the library for Iceberg tables is not installed ({error.name})",
        hint="pip install 'kafka-index[iceberg]'",
    ) from error

#: The name of a catalog that is given as a URI: pyiceberg's default name.
_CATALOG = "default"
_DAY_FIELD = "timestamp_day"
#: pyiceberg's properties for the S3 options of kafka-index, keyed by the option without its prefix.
_S3_PROPERTIES = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
#: pyiceberg raises `ValidationException` if another writer removed files that a commit replaces.
_CONFLICTS = (CommitFailedException, CommitStateUnknownException, ValidationException)
_PERMANENT = (BadRequestError, ResolveError, ValidationError)


@contextmanager
def _pyiceberg_errors(action: str, name: str) -> Iterator[None]:
    """Convert pyiceberg's errors, and hide its warnings about files of other writers."""
    logger = logging.getLogger("pyiceberg")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            table_errors(action, name, conflicts=_CONFLICTS, permanent=_PERMANENT),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class IcebergLake(Lake):
    """A namespace of an Iceberg catalog, with a table for each topic.

    Parameters
    ----------
    catalog : str
        The name of a catalog in pyiceberg's configuration, or the URI of a catalog.
    namespace : str
        The namespace of the tables, with its levels separated by dots.
    """

    def __init__(self, catalog: str, namespace: str) -> None:
        self._catalog_name = catalog
        self._namespace = tuple(namespace.split("."))
        self._catalog = self._load()

    def _load(self) -> Catalog:
        options = storage_options().resolve().items()
        properties = {
            _S3_PROPERTIES[name]: value
            for key, value in options
            if (name := key.removeprefix("aws_")) in _S3_PROPERTIES
        }
        with _pyiceberg_errors("open the catalog", self._catalog_name):
            try:
                if ":/" not in self._catalog_name:
                    return load_catalog(self._catalog_name, **properties)
                catalog_type = infer_catalog_type(_CATALOG, {"uri": self._catalog_name})
                uri_properties = {
                    "uri": self._catalog_name,
                    "type": "" if catalog_type is None else catalog_type.value,
                }
                return load_catalog(
                    _CATALOG, **{**_s3_endpoint_properties(), **uri_properties, **properties}
                )
            except (ValueError, NotInstalledError) as error:
                raise InputError(
                    f"pyiceberg cannot load the catalog: {error}",
                    path=self._catalog_name,
                    hint="configure the catalog in .pyiceberg.yaml, or give its URI",
                ) from error

    def default_output(self) -> str:
        """Return the location of the namespace, or its folder in the warehouse."""
        with _pyiceberg_errors("read the namespace", self._catalog_name):
            try:
                location = self._catalog.load_namespace_properties(self._namespace).get("location")
            except NoSuchNamespaceError:
                location = None
        warehouse = self._catalog.properties.get("warehouse", "")
        if location is None and (":/" in warehouse or warehouse.startswith("/")):
            location = "/".join([warehouse.rstrip("/"), *self._namespace])
        if location is None:
            raise InputError(
                "the catalog has no warehouse in a file system",
                path=self._catalog_name,
                hint="give --output",
            )
        return str(location)

    def open(self, topic: str, folder: str, settings: ExportSettings) -> LakeTable:
        """Create the table of a topic in a folder unless it exists; return the loaded table."""
        identifier = (*self._namespace, topic)
        table = _IcebergTable(self._catalog, identifier, settings)
        with _pyiceberg_errors("create the table", table.name):
            if not self._catalog.table_exists(identifier):
                self._catalog.create_namespace_if_not_exists(self._namespace)
                self._catalog.create_table_if_not_exists(
                    identifier, settings.row_schema, location=_uri(folder)
                )
        table.load()
        table.check()
        return table


class _IcebergTable(LakeTable):
    def __init__(
        self, catalog: Catalog, identifier: tuple[str, ...], settings: ExportSettings
    ) -> None:
        self.name = ".".join(identifier)
        self._catalog = catalog
        self._identifier = identifier
        self._schema = settings.row_schema
        self._by_date = settings.by_date
        self._is_latest = settings.is_latest
        self._table: Table | None = None
        self._planned_files: dict[str, DataFile] = {}

    @property
    def _loaded(self) -> Table:
        assert self._table is not None  # noqa: S101, because mypy needs it
        return self._table

    def load(self) -> None:
        with _pyiceberg_errors("load the table", self.name):
            table = self._catalog.load_table(self._identifier)
            # By default, pyiceberg retries a commit after a conflict, and could add the same files
            # twice.
            retries = {TableProperties.COMMIT_NUM_RETRIES: "0"}
            properties = {**table.metadata.properties, **retries}
            table.metadata = table.metadata.model_copy(update={"properties": properties})
            self._table = table

    def check(self) -> None:
        """Partition a new table; raise `InputError` if a table cannot take the data files."""
        table = self._loaded
        refuse_changed_types(self._schema, table.schema().as_arrow(), self.name, _widens)
        if self._is_latest:
            self._refuse_renamed_columns()
        is_new = not table.spec().fields and table.current_snapshot() is None
        if self._by_date and is_new and "timestamp" in table.schema().column_names:
            # pyiceberg cannot create a partitioned table from an Arrow schema.
            with _pyiceberg_errors("partition the table", self.name), table.update_spec() as spec:
                spec.add_field("timestamp", DayTransform(), _DAY_FIELD)
            self.load()
            table = self._loaded
        column_name = table.schema().find_column_name
        partition_transforms = [
            f"{field.transform}({column_name(field.source_id)})" for field in table.spec().fields
        ]
        expected_transforms = ["day(timestamp)"] if self._by_date else []
        if partition_transforms != expected_transforms:
            raise InputError(
                "the table and the data files are partitioned by different columns",
                path=self.name,
                expected=", ".join(expected_transforms) or "none",
                found=", ".join(partition_transforms) or "none",
                hint="give or omit --by-date, or export to another table",
            )

    def version(self, key: str) -> int | None:
        value = self._loaded.properties.get(key)
        return int(value) if value is not None and value.isdecimal() else None

    def has_rows(self, partitions: Collection[int]) -> bool:
        if not partitions:
            return False
        with _pyiceberg_errors("read the table", self.name):
            files = (self._table_file(task.file) for task in self._tasks(partitions))
            return any(has_rows_of(file, partitions) for file in files)

    def _tasks(self, partitions: Collection[int]) -> list[FileScanTask]:
        """Return the files of the loaded table that may have rows of partitions."""
        table = self._loaded
        is_known = "partition" in table.schema().column_names
        rows = f"partition in ({', '.join(map(str, partitions))})" if is_known else AlwaysTrue()
        with _pyiceberg_errors("read the table", self.name):
            return list(table.scan(row_filter=rows).plan_files())

    def rewritten_schema(self) -> pa.Schema:
        with _pyiceberg_errors("read the columns of the table", self.name):
            schema = self._transaction().table_metadata.schema()
            columns = schema_to_pyarrow(schema, include_field_ids=False)
        return pa.schema([pa.field(field.name, small_type(field.type)) for field in columns])

    def list_files(self, partitions: Collection[int]) -> list[TableFile]:
        self._refuse_renamed_columns()
        tasks = self._tasks(partitions)
        for task in tasks:
            if task.delete_files:
                raise InputError(
                    "rows cannot be replaced, because the table has delete files",
                    path=task.file.file_path,
                    hint="rewrite the data files of the table, or export to another table",
                )
        self._planned_files = {_path(task.file.file_path): task.file for task in tasks}
        return [self._table_file(file) for _, file in sorted(self._planned_files.items())]

    def _table_file(self, file: DataFile) -> TableFile:
        columns = self._loaded.schema().as_struct().fields
        ids = {column.name: column.field_id for column in columns}
        field_ids = [ids.get(name, -1) for name in ("partition", "offset")]
        nulls = file.null_value_counts or {}
        has_nulls = any(nulls.get(field_id) != 0 for field_id in field_ids)
        partitions, offsets = (_bounds(file, field_id) for field_id in field_ids)
        return TableFile(_path(file.file_path), partitions, offsets, has_nulls)

    def _refuse_renamed_columns(self) -> None:
        """Raise `InputError` if a column was renamed, or was dropped and added again.

        `replace_rows` reads data files by column name, and older data files have the older names.
        """
        names: dict[int, str] = {}
        ids: dict[str, int] = {}
        with _pyiceberg_errors("read the columns of the table", self.name):
            new_schema = self._transaction().table_metadata.schema()
        for schema in (*self._loaded.metadata.schemas, new_schema):
            for field_id in index_by_id(schema):
                name = schema.find_column_name(field_id) or ""
                first_name = names.setdefault(field_id, name)
                first_id = ids.setdefault(name, field_id)
                if (first_name, first_id) != (name, field_id):
                    raise InputError(
                        "rows cannot be replaced, because a column of the table was renamed, or "
                        "was dropped and added again",
                        path=self.name,
                        expected=f"column {first_name} with ID {first_id}",
                        found=f"column {name} with ID {field_id}",
                        hint="export to another table",
                    )

    def _transaction(self) -> Transaction:
        """Begin a transaction that adds missing columns."""
        transaction = self._loaded.transaction()
        with transaction.update_schema() as schema:
            schema.union_by_name(self._schema)
        return transaction

    def commit(self, change: TableChange) -> None:
        with _pyiceberg_errors("commit to the table", self.name):
            transaction = self._transaction()
            paths = [_uri(path) for path in change.added]
            if change.removed:
                removed_files = [self._planned_files[path] for path in change.removed]
                _replace_files(transaction, self._loaded.io, removed_files, paths)
            elif paths:
                transaction.add_files(paths, check_duplicate_files=False)
            else:
                # Without a snapshot, this commit would not conflict with a concurrent commit of
                # another writer.
                _add_snapshot(transaction)
            versions = {key: str(version) for key, version in change.versions.items()}
            transaction.set_properties(versions)
            transaction.commit_transaction()


def _s3_endpoint_properties() -> dict[str, str]:
    """Return the S3 endpoint from environment variables that Arrow's S3 client ignores."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next(filter(None, map(os.environ.get, names)), None)
    return {} if endpoint is None else {"s3.endpoint": endpoint}


def _add_snapshot(transaction: Transaction) -> None:
    with transaction.update_snapshot().fast_append():
        pass


def _replace_files(
    transaction: Transaction,
    io: FileIO,
    removed_files: Sequence[DataFile],
    added_paths: Sequence[str],
) -> None:
    """Replace files in one snapshot; pyiceberg has no public function for this."""
    if transaction.table_metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    metadata = transaction.table_metadata
    with transaction.update_snapshot().overwrite() as snapshot:
        for file in removed_files:
            snapshot.delete_data_file(file)
        for path in added_paths:
            snapshot.append_data_file(parquet_file_to_data_file(io, metadata, path))


def _bounds(file: DataFile, field_id: int) -> tuple[int, int]:
    """Return the minimum and maximum of a column; the full range if the file has no statistics."""
    min_bytes, max_bytes = (
        (bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    if min_bytes is None or max_bytes is None:
        return -1, INT64_MAX
    return int.from_bytes(min_bytes, "little", signed=True), int.from_bytes(
        max_bytes, "little", signed=True
    )


def _widens(table_type: pa.DataType, file_type: pa.DataType) -> bool:
    """Return whether Iceberg can promote one of the two types to the other."""
    types = {str(table_type), str(file_type)}
    if pt.is_decimal(table_type) and pt.is_decimal(file_type):
        return bool(table_type.scale == file_type.scale)
    return types in ({"int32", "int64"}, {"float", "double"})


def _path(uri: str) -> str:
    """Convert the URI of a local file to its path; Hadoop writes such URIs with one slash."""
    return f"/{uri.removeprefix('file:').lstrip('/')}" if uri.startswith("file:") else uri


def _uri(path: str) -> str:
    """Convert a local path to a URI, because Hadoop would resolve the path in HDFS."""
    return path if store_of(path).needs_requests else f"file://{os.path.abspath(path)}"

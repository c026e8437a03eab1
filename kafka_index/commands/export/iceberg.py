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

#: The name of a catalog that is given by its URI: pyiceberg's own default.
_CATALOG = "default"
_DAY_FIELD = "timestamp_day"
#: Options of our stores, without their prefix, as properties of pyiceberg.
_S3_PROPERTIES = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
#: The last one is raised if files that a commit replaces were removed concurrently.
_CONFLICTS = (CommitFailedException, CommitStateUnknownException, ValidationException)
_PERMANENT = (BadRequestError, ResolveError, ValidationError)


@contextmanager
def _calls(action: str, name: str) -> Iterator[None]:
    """Convert the errors of pyiceberg, and hide its warnings about files of other writers."""
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
    """A namespace of a catalog.

    Parameters
    ----------
    catalog : str
        The name of a catalog in pyiceberg's configuration, or the URI of a catalog.
    namespace : str
        Its levels are separated by dots.
    """

    def __init__(self, catalog: str, namespace: str) -> None:
        self._given = catalog
        self._namespace = tuple(namespace.split("."))
        self._catalog = self._load()

    def _load(self) -> Catalog:
        options = storage_options().resolve().items()
        properties = {
            _S3_PROPERTIES[name]: value
            for key, value in options
            if (name := key.removeprefix("aws_")) in _S3_PROPERTIES
        }
        with _calls("open the catalog", self._given):
            try:
                if ":/" not in self._given:
                    return load_catalog(self._given, **properties)
                kind = infer_catalog_type(_CATALOG, {"uri": self._given})
                own = {"uri": self._given, "type": "" if kind is None else kind.value}
                return load_catalog(_CATALOG, **{**_s3_environment(), **own, **properties})
            except (ValueError, NotInstalledError) as error:
                raise InputError(
                    f"not a catalog of pyiceberg: {error}",
                    path=self._given,
                    hint="configure it in .pyiceberg.yaml, or give its URI",
                ) from error

    def default_output(self) -> str:
        """Return the location of the namespace, or its folder in the warehouse."""
        with _calls("read the namespace", self._given):
            try:
                own = self._catalog.load_namespace_properties(self._namespace).get("location")
            except NoSuchNamespaceError:
                own = None
        warehouse = self._catalog.properties.get("warehouse", "")
        if own is None and (":/" in warehouse or warehouse.startswith("/")):
            own = "/".join([warehouse.rstrip("/"), *self._namespace])
        if own is None:
            raise InputError(
                "the catalog has no warehouse in a file system",
                path=self._given,
                hint="give an --output for the tables",
            )
        return str(own)

    def open(self, topic: str, folder: str, settings: ExportSettings) -> LakeTable:
        """Create the table of a topic in a folder unless it exists; return it, loaded."""
        identifier = (*self._namespace, topic)
        table = _IcebergTable(self._catalog, identifier, settings)
        with _calls("create the table", table.name):
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
        self._planned: dict[str, DataFile] = {}

    @property
    def _loaded(self) -> Table:
        assert self._table is not None  # noqa: S101, because mypy needs it
        return self._table

    def load(self) -> None:
        with _calls("load the table", self.name):
            table = self._catalog.load_table(self._identifier)
            # pyiceberg would repeat the commit after another writer's commit, with the same files.
            retries = {TableProperties.COMMIT_NUM_RETRIES: "0"}
            properties = {**table.metadata.properties, **retries}
            table.metadata = table.metadata.model_copy(update={"properties": properties})
            self._table = table

    def check(self) -> None:
        """Partition a new table; raise `InputError` if a table cannot take the data files."""
        table = self._loaded
        refuse_changed_types(self._schema, table.schema().as_arrow(), self.name, _widens)
        if self._is_latest:
            self._refuse_other_columns()
        is_new = not table.spec().fields and table.current_snapshot() is None
        if self._by_date and is_new and "timestamp" in table.schema().column_names:
            # pyiceberg cannot create a partitioned table from an Arrow schema.
            with _calls("partition the table", self.name), table.update_spec() as spec:
                spec.add_field("timestamp", DayTransform(), _DAY_FIELD)
            self.load()
            table = self._loaded
        name_of = table.schema().find_column_name
        found = [f"{one.transform}({name_of(one.source_id)})" for one in table.spec().fields]
        expected = ["day(timestamp)"] if self._by_date else []
        if found != expected:
            raise InputError(
                "the table has other partitions than the data files",
                path=self.name,
                expected=", ".join(expected) or "none",
                found=", ".join(found) or "none",
                hint="give or omit --by-date, or export to another table",
            )

    def version(self, key: str) -> int | None:
        found = self._loaded.properties.get(key)
        return int(found) if found is not None and found.isdecimal() else None

    def has_rows(self, partitions: Collection[int]) -> bool:
        if not partitions:
            return False
        with _calls("read the table", self.name):
            files = (self._table_file(task.file) for task in self._tasks(partitions))
            return any(has_rows_of(file, partitions) for file in files)

    def _tasks(self, partitions: Collection[int]) -> list[FileScanTask]:
        """Return the files of the loaded table that may have rows of partitions."""
        table = self._loaded
        is_known = "partition" in table.schema().column_names
        rows = f"partition in ({', '.join(map(str, partitions))})" if is_known else AlwaysTrue()
        with _calls("read the table", self.name):
            return list(table.scan(row_filter=rows).plan_files())

    def rewritten_schema(self) -> pa.Schema:
        with _calls("read the columns of the table", self.name):
            schema = self._transaction().table_metadata.schema()
            columns = schema_to_pyarrow(schema, include_field_ids=False)
        return pa.schema([pa.field(each.name, small_type(each.type)) for each in columns])

    def files_with(self, partitions: Collection[int]) -> list[TableFile]:
        self._refuse_other_columns()
        tasks = self._tasks(partitions)
        for task in tasks:
            if task.delete_files:
                raise InputError(
                    "the rows of a table with delete files cannot be replaced",
                    path=task.file.file_path,
                    hint="rewrite the data files of the table, or export to another table",
                )
        self._planned = {_path(task.file.file_path): task.file for task in tasks}
        return [self._table_file(file) for _, file in sorted(self._planned.items())]

    def _table_file(self, file: DataFile) -> TableFile:
        columns = self._loaded.schema().as_struct().fields
        ids = {column.name: column.field_id for column in columns}
        place = [ids.get(name, -1) for name in ("partition", "offset")]
        nulls = file.null_value_counts or {}
        has_nulls = any(nulls.get(field_id) != 0 for field_id in place)
        partitions, offsets = (_bounds(file, field_id) for field_id in place)
        return TableFile(_path(file.file_path), partitions, offsets, has_nulls)

    def _refuse_other_columns(self) -> None:
        """Raise `InputError` if a column may have another name, or a name another column, in files.

        Files are read by the names of columns.
        """
        names: dict[int, str] = {}
        ids: dict[str, int] = {}
        with _calls("read the columns of the table", self.name):
            new = self._transaction().table_metadata.schema()
        for schema in (*self._loaded.metadata.schemas, new):
            for field_id in index_by_id(schema):
                name = schema.find_column_name(field_id) or ""
                known = names.setdefault(field_id, name), ids.setdefault(name, field_id)
                if known != (name, field_id):
                    raise InputError(
                        "the rows of a table with renamed columns, or with columns that were "
                        "dropped and added again, cannot be replaced",
                        path=self.name,
                        expected=f"column {known[0]} with ID {known[1]}",
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
        with _calls("commit to the table", self.name):
            transaction = self._transaction()
            paths = [_uri(path) for path in change.added]
            if change.removed:
                removed = [self._planned[path] for path in change.removed]
                _replace_files(transaction, self._loaded.io, removed, paths)
            elif paths:
                transaction.add_files(paths, check_duplicate_files=False)
            else:
                # Without a snapshot, the commit would not conflict with another writer's commit.
                _add_snapshot(transaction)
            versions = {key: str(version) for key, version in change.versions.items()}
            transaction.set_properties(versions)
            transaction.commit_transaction()


def _s3_environment() -> dict[str, str]:
    """Return the S3 endpoint from the environment, which Arrow's client does not read."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    found = next(filter(None, map(os.environ.get, names)), None)
    return {} if found is None else {"s3.endpoint": found}


def _add_snapshot(transaction: Transaction) -> None:
    with transaction.update_snapshot().fast_append():
        pass


def _replace_files(
    transaction: Transaction, io: FileIO, removed: Sequence[DataFile], added: Sequence[str]
) -> None:
    """Replace files in one snapshot, which pyiceberg has no public call for."""
    if transaction.table_metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    metadata = transaction.table_metadata
    with transaction.update_snapshot().overwrite() as snapshot:
        for file in removed:
            snapshot.delete_data_file(file)
        for path in added:
            snapshot.append_data_file(parquet_file_to_data_file(io, metadata, path))


def _bounds(file: DataFile, field_id: int) -> tuple[int, int]:
    """Return the bounds of an integer column; all numbers if it has no statistics."""
    low, high = ((one or {}).get(field_id) for one in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None:
        return -1, INT64_MAX
    return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)


def _widens(table: pa.DataType, own: pa.DataType) -> bool:
    """Return whether Iceberg promotes one of two types to the other."""
    types = {str(table), str(own)}
    if pt.is_decimal(table) and pt.is_decimal(own):
        return bool(table.scale == own.scale)
    return types in ({"int32", "int64"}, {"float", "double"})


def _path(uri: str) -> str:
    """Return the path of a local file: Hadoop writes its URI with one slash."""
    return f"/{uri.removeprefix('file:').lstrip('/')}" if uri.startswith("file:") else uri


def _uri(path: str) -> str:
    """Return a local path as a URI, because Hadoop would resolve a path in HDFS."""
    return path if store_of(path).needs_requests else f"file://{os.path.abspath(path)}"

"""The output of a run, which is published atomically: a file or a folder of parts; its manifest.

The manifest is ``.NAME.kafka-index-lookup`` next to the output. If the inputs and the output are
unchanged since an earlier run, a run does nothing. A pipeline can therefore repeat a run.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from kafka_index.commands.lookup.queries import (
    LINE,
    Queries,
    QueryFormat,
    QuerySplit,
    read_footer,
    written_schema,
)
from kafka_index.core.errors import InputError, KafkaIndexError, PublishError, is_retriable
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kafka_index.core.format.state_files import Offset, Size
from kafka_index.core.fs.json_lines import extended_lines
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import atomic_file, input_stream, scan_directory, store_of
from kafka_index.core.fs.store import COMPRESSIONS, Entry
from kafka_index.core.fs.uris import split_uri
from kafka_index.core.job.result import RunOutcome
from kafka_index.core.log.choices import UpperBound
from kafka_index.core.log.read.answers import ANSWER_SCHEMA, Answers
from kafka_index.core.log.read.segment_indexes import IndexFolder
from kafka_index.core.logdir.paged_listing import scan_directories
from kafka_index.core.output.output import SUCCESS, Announce, Output, RunState, StateFile
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.lookups import PARTITION, LookupSettings, QueryBatch

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Names of files in an output folder, including files that Spark writes. A folder that contains
#: other files is never replaced.
REPLACEABLE = re.compile(r"_SUCCESS|part-[^/]*|\..*\.crc")
_PART = "part-{number:0{digits}}-{stem}{ending}"
_MIN_DIGITS = 5
_MAX_STEM_BYTES = 100
# If a name is truncated within a UTF-8 character, its first bytes decode to these characters.
_TRUNCATED_CHARACTER = "".join(map(chr, range(0xDC80, 0xDD00)))
_JOINED_NAME = "joined"
#: The file name extension of a part that will be joined with other parts into one Parquet file.
ARROW_ENDING = ".arrow"
_MANIFEST_VERSION = 3
_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
# Suffixes of the files that determine the last stable offset.
_TRANSACTION_SUFFIXES = (TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class AnswerTarget:
    """The output of a run.

    The output is a single file if the path has the extension ``.parquet``, or an extension for the
    format of the queries (``.csv``; ``.json``, ``.jsonl``, ``.ndjson``). Otherwise, it is a folder
    with a part for each split. Raises `InputError` if the path has the extension of another format,
    overlaps with an input, or exists without `overwrite`. Also raises `InputError` if two columns
    of Parquet answers have the same name.

    This is a context manager for the driver. Entering raises `PublishError` if the output cannot be
    written, or another run is writing it. Leaving without `publish` removes the written files.
    """

    def __init__(
        self,
        path: str,
        queries: Queries,
        *,
        inputs: Iterable[str] = (),
        overwrite: bool = False,
    ) -> None:
        self._requested_path = path
        self.path = absolute_path(path)
        self.format = resolve_answer_format(path, queries)
        self.is_file = os.path.splitext(path)[1].lower() in self.format.endings
        self._queries = queries
        self._overwrite = overwrite
        self._output = Output.for_path(self.path, path, [queries.path, *queries.files, *inputs])
        self._stack = ExitStack()
        self._refuse_existing()

    def __enter__(self) -> Self:
        """Lock the output, remove files of killed runs, and create the staging folder for parts."""
        with ExitStack() as stack:
            stack.enter_context(self._output)
            # Check again, because cleaning up after a killed run may have restored an earlier
            # output.
            self._refuse_existing()
            self._output.make_staging()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove files that were not published, and unlock the output."""
        self._stack.close()

    def part_path(self, split: QuerySplit) -> str:
        """Return the path of the part with the answers to a split."""
        name = os.path.basename(split.path)
        while os.path.splitext(name)[1].lower() in (*COMPRESSIONS, *split.format.endings):
            name = os.path.splitext(name)[0]
        part = _PART.format(
            number=split.number,
            digits=max(_MIN_DIGITS, len(str(len(self._queries.splits)))),
            stem=os.fsdecode(os.fsencode(name)[:_MAX_STEM_BYTES]).rstrip(_TRUNCATED_CHARACTER),
            ending=ARROW_ENDING if self._joins_parquet else self.format.endings[0],
        )
        return os.path.join(self._output.staging, part)

    @property
    def index_folder(self) -> IndexFolder:
        """The folder in which workers share built indexes; it is removed after the run."""
        return IndexFolder(self._output.staging)

    @property
    def _joins_parquet(self) -> bool:
        is_joined = self.is_file and len(self._queries.splits) > 1
        return is_joined and self.format is QueryFormat.PARQUET

    def publish(
        self, rows_of_split: Mapping[int, int], announce: Announce = lambda _: None
    ) -> None:
        """Check that every query has an answer, and put the output in place.

        `rows_of_split` counts the answers written for each split, keyed by split number. For
        `announce`, see `Output.publish_file`. Raises `PublishError` if a part is missing or has a
        different number of answers, or the output cannot be put in place. In this case, an existing
        output stays unchanged.
        """
        self._check_counts(rows_of_split)
        parts = self._check_parts()
        if self.is_file and len(parts) > 1:
            self._join(parts, announce)
            return
        # Another program may have created the output since the first check.
        self._refuse_existing()
        if self.is_file:
            self._output.publish_file(parts[0], announce)
        else:
            self._output.publish_folder(list(map(os.path.basename, parts)), announce)

    def _join(self, parts: Sequence[str], announce: Announce) -> None:
        """Publish the answers of all parts as one file."""
        scratch = os.path.join(self._output.staging, _JOINED_NAME)
        with atomic_file(self.path, scratch_path=scratch, noun="answers") as file:
            with file.writing():
                join_parts(parts, file.scratch_path, self.format, self._queries.splits[0])
            self._refuse_existing()
            announce({self.path: os.stat(file.scratch_path).st_size})
            file.commit()
        store_of(self.path).make_durable([os.path.dirname(self.path)], "make the output durable")

    def _check_parts(self) -> list[str]:
        """Return the paths of all parts; raise `PublishError` if a part is missing."""
        names = _list_names(self._output.staging)
        parts = [self.part_path(split) for split in self._queries.splits]
        for part in parts:
            if os.path.basename(part) not in names:
                raise PublishError("a part of the answers is missing", path=part, hint="run again")
        return parts

    def _check_counts(self, rows_of_split: Mapping[int, int]) -> None:
        for split in self._queries.splits:
            rows = rows_of_split.get(split.number)
            if rows is None or (split.rows is not None and rows != split.rows):
                raise PublishError(
                    "the number of answers differs from the number of queries",
                    path=split.path,
                    expected=split.rows,
                    found=rows or 0,
                    hint="the output was not changed; run again",
                )

    def _refuse_existing(self) -> None:
        """Reject an existing output, unless it can be replaced."""
        has_file, folder_names = _inspect_path(self.path, self._requested_path)
        if has_file and self._overwrite and not self.is_file:
            raise InputError(
                "the output would replace a file with a folder",
                path=self._requested_path,
                hint="choose another path",
            )
        names = folder_names or set()
        foreign_names = sorted(name for name in names if not REPLACEABLE.fullmatch(name))
        if folder_names is not None and self._overwrite and (self.is_file or foreign_names):
            raise InputError(
                "the output would replace a folder"
                + (" with other files" if foreign_names else " with a file"),
                path=self._requested_path,
                found=foreign_names[0] if foreign_names else None,
                hint="choose another path",
            )
        # A local folder is always complete, because a rename publishes it. In an object store, a
        # killed run may have left an incomplete folder.
        is_finished = bool(names) and (SUCCESS in names or store_of(self.path).stages_locally)
        is_taken = folder_names is not None and (self.is_file or bool(foreign_names) or is_finished)
        if not self._overwrite and (has_file or is_taken):
            raise InputError(
                "the output exists already",
                path=self._requested_path,
                hint="choose another --output, or give --overwrite",
            )


def _inspect_path(path: str, requested_path: str) -> tuple[bool, set[str] | None]:
    """Return whether a path is a file, and the names in it, None if it is no folder."""
    if store_of(path).stages_locally:
        if os.path.isdir(path) and not os.path.islink(path):
            return False, _list_names(path)
        return os.path.lexists(path), None
    if not split_uri(path)[1]:
        raise InputError(
            "the output is a bucket", path=requested_path, hint="give a folder in the bucket"
        )
    folder, name = os.path.split(path)
    entries = [entry for entry in scan_directory(folder) if entry.name == name]
    is_folder = any(entry.is_directory() for entry in entries)
    names = _list_names(path) if is_folder else set()
    return any(not entry.is_directory() for entry in entries), names or None


def _list_names(folder: str) -> set[str]:
    return {entry.name for entry in scan_directory(folder) if entry.path != folder}


def resolve_answer_format(path: str, queries: Queries) -> QueryFormat:
    """Return the format of an output by its extension: Parquet, or the format of the queries.

    Raises `InputError` if the path has the extension of another format, or two columns of Parquet
    answers have the same name.
    """
    ending = os.path.splitext(path)[1].lower()
    path_format, query_format = QueryFormat.from_path(path), queries.format
    if ending in COMPRESSIONS or path_format not in (None, query_format, QueryFormat.PARQUET):
        endings = dict.fromkeys((*query_format.endings, *QueryFormat.PARQUET.endings))
        raise InputError(
            f"answers are written in the format of the queries, {query_format.text}, or in Parquet",
            path=path,
            expected=f"{' or '.join(endings)}, or a folder",
            found=ending,
        )
    names = queries.splits[0].columns
    repeated = sorted({name for name in names if names.count(name) > 1})
    if path_format is not None and path_format is not query_format and repeated:
        raise InputError(
            "Parquet requires unique column names, but the queries have more than one column "
            + ", ".join(repeated),
            path=path,
            hint=f"rename the columns, or write {query_format.text}",
        )
    return path_format or query_format


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupManifest(RunState):
    """The manifest of a lookup run.

    Before the output is published, a manifest with `is_finished` False is written. If the run is
    then killed, a repeated run can replace its output.

    Attributes
    ----------
    files : tuple of (str, int, str)
        Path, size, and modification time or ETag of each written file.
    queries : tuple of (str, int)
        Numbers of queries by status.
    outcome : RunOutcome
        The outcome of the run, which is also the outcome of a repeated run.
    """

    files: tuple[tuple[str, Size, str], ...]
    queries: tuple[tuple[str, Offset], ...] = ()
    outcome: RunOutcome = RunOutcome.ENVIRONMENT

    def matches(self, inputs: str, output: str, side_files: Sequence[str]) -> bool:
        """Return whether the existing files were written by a run with the same inputs.

        `inputs` is the digest of the inputs. `side_files` are files that a run writes in addition
        to the output.
        """
        try:
            files = list_output_files(output, side_files)
        except (OSError, KafkaIndexError) as error:
            if is_retriable(error):
                raise
            return False
        if inputs != self.inputs:
            return False
        if any(not version for _, _, version in self.files):
            files = tuple((path, size, "") for path, size, _ in files if path not in side_files)
        return set(self.files) == set(files)


def manifest_file(output: str) -> StateFile[LookupManifest]:
    folder, name = os.path.split(output)
    path = os.path.join(folder, f".{name}.kafka-index-lookup")
    return StateFile(path, LookupManifest, _MANIFEST_VERSION, "manifest of the run")


def list_output_files(output: str, side_files: Iterable[str]) -> tuple[tuple[str, int, str], ...]:
    """Return path, size and version of each file of an output, and of each side file.

    Raises `OSError` or `KafkaIndexError` if a file is missing.
    """
    files = [_file_state(path) for path in side_files]
    folder, name = os.path.split(output)
    entry = next((entry for entry in scan_directory(folder) if entry.name == name), None)
    if entry is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), output)
    entries = scan_directory(output) if entry.is_directory() else [entry]
    return tuple(sorted([*files, *map(_entry_state, entries)]))


def inputs_digest(
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    *,
    output_format: QueryFormat,
    upper_bound: UpperBound,
) -> str:
    """Return a digest of the queries, logs, indexes and settings that determine the answers."""
    digest = hashlib.sha256()
    for path in queries.files:
        digest.update(repr(_file_state(path)).encode())
    for table in (inventory.partitions, inventory.segments):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, table.schema) as stream:
            stream.write_table(table)
        digest.update(content.getvalue())
    is_stable = upper_bound is UpperBound.LAST_STABLE_OFFSET
    suffixes = (*_INDEX_SUFFIXES, *_TRANSACTION_SUFFIXES) if is_stable else _INDEX_SUFFIXES
    directories: dict[str, None] = {}
    for row in inventory.partitions.select(["directory", "index_directory"]).to_pylist():
        directories[row["index_directory"] or row["directory"]] = None
        if is_stable:
            # Producer snapshots are always next to the logs.
            directories[row["directory"]] = None
    states = {
        directory: sorted(_entry_state(entry) for entry in entries if entry.name.endswith(suffixes))
        for directory, entries in scan_directories(filter(None, directories))
    }
    for directory in directories:
        digest.update(repr((directory, states.get(directory, []))).encode())
    digest.update(repr((settings, queries.by, output_format, upper_bound)).encode())
    return digest.hexdigest()


def _entry_state(entry: Entry) -> tuple[str, int, str]:
    info = entry.info()
    return info.path, info.size_bytes, info.version or str(info.mtime_ns)


def _file_state(path: str) -> tuple[str, int, str]:
    info = store_of(path).info(path)
    return path, info.size_bytes, info.version or str(info.mtime_ns)


# --------------------------------------------------------------------- the content of answer files

_COMPRESSION = "snappy"
# Answer columns with few distinct values, which are dictionary-encoded. The values of other answer
# columns are nearly unique, and change little from row to row.
_DICTIONARY_COLUMNS = ("status", "segment_base_offset", "found_leader_epoch")
_DELTA_COLUMNS = tuple(name for name in ANSWER_SCHEMA.names if name not in _DICTIONARY_COLUMNS)
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Key of file metadata that Spark uses as schema instead of the Parquet columns.
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}
_COPY_BYTES = 1 << 20


#: Writes queries and their answers. The arguments are the queries before and after conversion, and
#: the answers.
Write = Callable[[pa.RecordBatch, QueryBatch, Answers], None]


@contextmanager
def open_answers(
    path: str, form: QueryFormat, split: QuerySplit, *, to_join: bool = False
) -> Iterator[Write]:
    """Create a file of answers; yield a function that writes queries with their answers.

    The file has the format `form`: the format of the queries, or Parquet. With `to_join`, it is
    written for `join_parts`. On exit, the file is closed but not durable. Raises `OSError` if the
    file cannot be written, and `InputError` if the queries cannot be read.
    """
    if form is QueryFormat.JSON:
        with open(path, "wb", buffering=0) as file:
            yield partial(_write_json_lines, file)
        return
    if form is QueryFormat.CSV:
        schema = _csv_schema(split)
        writer = pa_csv.CSVWriter(path, schema)
    else:
        queries = written_schema(split)
        schema = pa.schema([*queries, *ANSWER_SCHEMA], _answer_metadata(queries))
        # Parts to join are Arrow streams, so that Parquet is encoded only once, when the parts are
        # joined. An Arrow stream, unlike an Arrow file, may have different dictionaries in each
        # batch.
        writer = (
            pa.ipc.new_stream(path, schema) if to_join else _parquet_writer(path, schema, split)
        )
    with writer:
        yield partial(_write_rows, writer, schema)


def _write_rows(
    writer: Any, schema: pa.Schema, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers
) -> None:
    """Write queries and their answers; in Parquet, they become a row group."""
    if rows.schema.names != schema.names[: rows.num_columns]:
        rows = rows.select(schema.names[: rows.num_columns])
    columns = [
        column if column.type == field.type else _cast_query_column(column, field, queries)
        for column, field in zip(rows.columns, schema, strict=False)
    ]
    table = pa.Table.from_arrays([*columns, *answers.to_arrow().columns], schema=schema)
    writer.write_table(table, max(len(answers), 1))


def _cast_query_column(column: pa.Array, field: pa.Field, queries: QueryBatch) -> pa.Array:
    """Convert a column of the queries to its type in the output, such as strings to integers."""
    if not pa.types.is_string(column.type):
        return column.cast(field.type)
    if field.name != PARTITION:
        return queries.keys.to_arrow()
    partitions = queries.partitions
    fits = pc.and_(
        pc.greater_equal(partitions, -INT32_MAX - 1), pc.less_equal(partitions, INT32_MAX)
    )
    return pc.if_else(fits, partitions, None).cast(field.type)


def _write_json_lines(
    file: io.FileIO, rows: pa.RecordBatch, _queries: QueryBatch, answers: Answers
) -> None:
    """Write the JSON object of each query, with the members of its answer added."""
    lines = extended_lines(rows.column(LINE), answers.to_arrow())
    offsets = lines.buffers()[1]
    assert lines.offset == 0 and offsets is not None  # noqa: S101, PT018, fresh from Arrow
    end_position = memoryview(offsets).cast("q")[len(lines)]
    unwritten = memoryview(lines.buffers()[2])[:end_position]
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]


def _csv_schema(split: QuerySplit) -> pa.Schema:
    """Return the schema of a CSV file of answers; the columns of the queries are strings."""
    return pa.schema([*(pa.field(name, pa.string()) for name in split.columns), *ANSWER_SCHEMA])


def _parquet_writer(path: str, schema: pa.Schema, split: QuerySplit) -> pq.ParquetWriter:
    """Open a Parquet file of answers.

    Columns of the queries are dictionary-encoded as in a Parquet file of queries. All columns of
    CSV or JSON queries are dictionary-encoded.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    is_parquet = split.format is QueryFormat.PARQUET
    names = schema.names[: -len(ANSWER_SCHEMA)]
    return pq.ParquetWriter(
        path,
        schema,
        compression=_COMPRESSION,
        use_dictionary=[
            *(_dictionary_columns(read_footer(split.path), names) if is_parquet else names),
            *_DICTIONARY_COLUMNS,
        ],
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
    )


def join_parts(parts: Sequence[str], path: str, form: QueryFormat, split: QuerySplit) -> None:
    """Write the answers of all parts to one file.

    The parts were written with `to_join`, and are in the order of the splits. `split` is the first
    split.
    """
    if form is QueryFormat.PARQUET:
        _join_parquet(parts, path, split)
        return
    header = io.BytesIO()
    if form is QueryFormat.CSV:
        pa_csv.CSVWriter(header, _csv_schema(split)).close()
    with open(path, "wb") as joined:
        for number, part in enumerate(parts):
            with input_stream(part) as file:
                file.read(header.tell() if number else 0)
                shutil.copyfileobj(file, joined, _COPY_BYTES)


def _join_parquet(parts: Sequence[str], path: str, split: QuerySplit) -> None:
    with _open_part(parts[0]) as file:
        schema = pa.ipc.open_stream(file).schema
    with _parquet_writer(path, schema, split) as writer:
        for part in parts:
            with _open_part(part) as file:
                for batch in pa.ipc.open_stream(file):
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    writer.write_table(rows, row_group_size=max(len(batch), 1))


def _open_part(path: str) -> pa.NativeFile:
    return input_stream(path) if store_of(path).needs_requests else pa.memory_map(path)


def _dictionary_columns(footer: pq.FileMetaData, names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the query columns that are dictionary-encoded in a Parquet file."""
    if footer.num_row_groups:
        group = footer.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            is_query = column.path_in_schema.partition(".")[0] in names
            if is_query and _DICTIONARY_ENCODINGS & set(column.encodings):
                yield column.path_in_schema


def _answer_metadata(queries: pa.Schema) -> dict[bytes, bytes] | None:
    """Return the metadata of a file of queries, with the answer columns added to Spark's schema."""
    if not queries.metadata or _SPARK_SCHEMA not in queries.metadata:
        return queries.metadata  # type: ignore[no-any-return]
    metadata: dict[bytes, bytes] = dict(queries.metadata)
    try:
        spark: dict[str, Any] = json.loads(metadata[_SPARK_SCHEMA])
        spark["fields"] += [
            {
                "name": field.name,
                "type": _SPARK_TYPES[field.type],
                "nullable": True,
                "metadata": {},
            }
            for field in ANSWER_SCHEMA
        ]
        metadata[_SPARK_SCHEMA] = json.dumps(spark, separators=(",", ":")).encode()
    except (ValueError, TypeError, KeyError):
        # Without this metadata, Spark derives its schema from the Parquet columns.
        del metadata[_SPARK_SCHEMA]
    return metadata

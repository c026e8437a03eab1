"""The output of a run: a file, or a folder of parts, published atomically; and its manifest.

The manifest is ``.NAME.kafka-index-lookup`` next to the output. A run over the same inputs whose
output is unchanged has nothing to do, so that a pipeline may run a step twice.
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
from kafka_index.core.query.keys import PARTITION, QueryBatch
from kafka_index.core.query.lookups import LookupSettings

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Names of parts, also of Spark's. A folder with other files is never replaced.
REPLACEABLE = re.compile(r"_SUCCESS|part-[^/]*|\..*\.crc")
_PART = "part-{number:0{digits}}-{stem}{ending}"
_MIN_DIGITS = 5
_MAX_STEM_BYTES = 100
# Characters to which the first bytes of a truncated character decode.
_CUT_CHARACTER = "".join(map(chr, range(0xDC80, 0xDD00)))
_WHOLE = "whole"
#: The ending of a part that will be joined with others into one Parquet file.
ARROW_ENDING = ".arrow"
_MANIFEST_VERSION = 3
_INDEXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
# Files from which the last stable offset is determined.
_TRANSACTIONS = (TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class AnswerTarget:
    """The output of a run.

    The path is one file if it ends in ``.parquet`` or like the format of the queries (``.csv``;
    ``.json``, ``.jsonl``, ``.ndjson``), otherwise a folder with a part for each split. Raises
    `InputError` if the path has the ending of another format, overlaps an input, or exists without
    `overwrite`, or if columns of answers in Parquet have the same name. A context manager for the
    driver: entering it raises `PublishError` if the output cannot be written, or another run writes
    it. Leaving it without `publish` removes the written files.
    """

    def __init__(
        self,
        path: str,
        queries: Queries,
        *,
        inputs: Iterable[str] = (),
        overwrite: bool = False,
    ) -> None:
        self._given = path
        self.path = absolute_path(path)
        self.format = format_of_answers(path, queries)
        self.is_file = os.path.splitext(path)[1].lower() in self.format.endings
        self._queries = queries
        self._overwrite = overwrite
        self._output = Output.for_path(self.path, path, [queries.path, *queries.files, *inputs])
        self._stack = ExitStack()
        self._refuse_existing()

    def __enter__(self) -> Self:
        """Lock the output, remove files of killed runs, and create the folder of the parts."""
        with ExitStack() as stack:
            stack.enter_context(self._output)
            # A killed run may have moved it away.
            self._refuse_existing()
            self._output.make_staging()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove files that were not published, and release the lock."""
        self._stack.close()

    def part_path(self, split: QuerySplit) -> str:
        """Return the path of the part with the answers to a split."""
        name = os.path.basename(split.path)
        while os.path.splitext(name)[1].lower() in (*COMPRESSIONS, *split.format.endings):
            name = os.path.splitext(name)[0]
        part = _PART.format(
            number=split.number,
            digits=max(_MIN_DIGITS, len(str(len(self._queries.splits)))),
            stem=os.fsdecode(os.fsencode(name)[:_MAX_STEM_BYTES]).rstrip(_CUT_CHARACTER),
            ending=ARROW_ENDING if self._joins_parquet else self.format.endings[0],
        )
        return os.path.join(self._output.staging, part)

    @property
    def index_folder(self) -> IndexFolder:
        """The folder in which the workers of the run share built indexes; removed at its end."""
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
        `announce`, see `Output.publish_file`. Raises `PublishError` if a part is missing or has
        another number of answers, or the output cannot be put in place; an old output is unchanged.
        """
        self._check_counts(rows_of_split)
        parts = self._parts()
        if self.is_file and len(parts) > 1:
            self._join(parts, announce)
            return
        # Checked again: another program may have created it since.
        self._refuse_existing()
        if self.is_file:
            self._output.publish_file(parts[0], announce)
        else:
            self._output.publish_folder(list(map(os.path.basename, parts)), announce)

    def _join(self, parts: Sequence[str], announce: Announce) -> None:
        """Publish the answers of all parts as one file."""
        scratch = os.path.join(self._output.staging, _WHOLE)
        with atomic_file(self.path, scratch_path=scratch, what="answers") as file:
            with file.writing():
                join_parts(parts, file.scratch_path, self.format, self._queries.splits[0])
            self._refuse_existing()
            announce({self.path: os.stat(file.scratch_path).st_size})
            file.commit()
        store_of(self.path).make_durable([os.path.dirname(self.path)], "make the output durable")

    def _parts(self) -> list[str]:
        there = _names(self._output.staging)
        parts = [self.part_path(split) for split in self._queries.splits]
        for part in parts:
            if os.path.basename(part) not in there:
                raise PublishError("a part of the answers is missing", path=part, hint="run again")
        return parts

    def _check_counts(self, rows_of_split: Mapping[int, int]) -> None:
        for split in self._queries.splits:
            rows = rows_of_split.get(split.number)
            if rows is None or (split.rows is not None and rows != split.rows):
                raise PublishError(
                    "not every query has one answer",
                    path=split.path,
                    expected="some" if split.rows is None else split.rows,
                    found="none" if rows is None else rows,
                    hint="nothing was written: run again",
                )

    def _refuse_existing(self) -> None:
        """Reject an existing output, unless it can be replaced."""
        has_file, names = _existing(self.path, self._given)
        if has_file and self._overwrite and not self.is_file:
            raise InputError(
                "a folder does not replace a file", path=self._given, hint="choose another path"
            )
        there = names or set()
        others = sorted(name for name in there if not REPLACEABLE.fullmatch(name))
        if names is not None and self._overwrite and (self.is_file or others):
            raise InputError(
                "a folder with other files is not replaced",
                path=self._given,
                found=others[0] if others else "a folder",
                hint="choose another path",
            )
        # A rename publishes a local folder; in a store it may be of a killed run.
        is_finished = bool(there) and (SUCCESS in there or store_of(self.path).stages_locally)
        is_taken = names is not None and (self.is_file or bool(others) or is_finished)
        if not self._overwrite and (has_file or is_taken):
            raise InputError(
                "the output exists already",
                path=self._given,
                hint="choose another --output, or give --overwrite",
            )


def _existing(path: str, given: str) -> tuple[bool, set[str] | None]:
    """Return whether the path is a file, and the names in the folder; None for no folder."""
    if store_of(path).stages_locally:
        if os.path.isdir(path) and not os.path.islink(path):
            return False, _names(path)
        return os.path.lexists(path), None
    if not split_uri(path)[1]:
        raise InputError("the output is not below a bucket", path=given, hint="name a folder in it")
    folder, name = os.path.split(path)
    entries = [entry for entry in scan_directory(folder) if entry.name == name]
    is_folder = any(entry.is_directory() for entry in entries)
    names = _names(path) if is_folder else set()
    return any(not entry.is_directory() for entry in entries), names or None


def _names(folder: str) -> set[str]:
    return {entry.name for entry in scan_directory(folder) if entry.path != folder}


def format_of_answers(path: str, queries: Queries) -> QueryFormat:
    """Return the format of an output: Parquet if its ending is that, or the queries' format.

    Raises `InputError` if it has the ending of another format, or columns of answers in Parquet
    share a name.
    """
    ending = os.path.splitext(path)[1].lower()
    form, own = QueryFormat.of(path), queries.format
    if ending in COMPRESSIONS or form not in (None, own, QueryFormat.PARQUET):
        endings = dict.fromkeys((*own.endings, *QueryFormat.PARQUET.endings))
        raise InputError(
            f"answers are written in the format of the queries, {own.text}, or in Parquet",
            path=path,
            expected=f"{' or '.join(endings)}, or a folder",
            found=ending,
        )
    names = queries.splits[0].columns
    repeated = sorted({name for name in names if names.count(name) > 1})
    if form is not None and form is not own and repeated:
        raise InputError(
            "answers in Parquet need columns of different names, and there is more than one "
            + ", ".join(repeated),
            path=path,
            hint=f"rename them, or write {own.text}",
        )
    return form or own


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupManifest(RunState):
    """The manifest of a run.

    `files` has path, size, and time of modification or ETag of each file, and `queries` the number
    of queries by status. `outcome` is the one that a rerun would have. An unfinished manifest is
    written before the output is published: the same run then replaces the output.
    """

    files: tuple[tuple[str, Size, str], ...]
    queries: tuple[tuple[str, Offset], ...] = ()
    outcome: RunOutcome = RunOutcome.ENVIRONMENT

    def is_of(self, inputs: str, output: str, others: Sequence[str]) -> bool:
        """Return whether a run with this digest of inputs wrote the existing files.

        `others` are files that the run writes in addition to the output.
        """
        try:
            found = written(output, others)
        except (OSError, KafkaIndexError) as error:
            if is_retriable(error):
                raise
            return False
        if inputs != self.inputs:
            return False
        if any(not change for _, _, change in self.files):
            found = tuple((path, size, "") for path, size, _ in found if path not in others)
        return set(self.files) == set(found)


def manifest_of(output: str) -> StateFile[LookupManifest]:
    folder, name = os.path.split(output)
    path = os.path.join(folder, f".{name}.kafka-index-lookup")
    return StateFile(path, LookupManifest, _MANIFEST_VERSION, "manifest of the run")


def written(output: str, others: Iterable[str]) -> tuple[tuple[str, int, str], ...]:
    """Return the current files of an output, and other files of a run.

    Raises `OSError` or `KafkaIndexError` if a file is missing.
    """
    files = [_file_state(path) for path in others]
    folder, name = os.path.split(output)
    entry = next((each for each in scan_directory(folder) if each.name == name), None)
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
    """Return the digest of everything that determines the answers."""
    digest = hashlib.sha256()
    for path in queries.files:
        digest.update(repr(_file_state(path)).encode())
    for table in (inventory.partitions, inventory.segments):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, table.schema) as stream:
            stream.write_table(table)
        digest.update(content.getvalue())
    is_stable = upper_bound is UpperBound.LAST_STABLE_OFFSET
    suffixes = (*_INDEXES, *_TRANSACTIONS) if is_stable else _INDEXES
    directories: dict[str, None] = {}
    for row in inventory.partitions.select(["directory", "index_directory"]).to_pylist():
        directories[row["index_directory"] or row["directory"]] = None
        if is_stable:
            # Snapshots are next to the logs, wherever the indexes are.
            directories[row["directory"]] = None
    states = {
        directory: sorted(_entry_state(each) for each in entries if each.name.endswith(suffixes))
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
# Columns with few distinct values. The others are numbers that are nearly unique and change little
# from row to row.
_REPEATED = ("status", "segment_base_offset", "found_leader_epoch")
_CLOSE = tuple(name for name in ANSWER_SCHEMA.names if name not in _REPEATED)
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Metadata that takes precedence over the columns in Spark.
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}
_COPY_BYTES = 1 << 20


#: Writes queries as they were read, and their answers.
Write = Callable[[pa.RecordBatch, QueryBatch, Answers], None]


@contextmanager
def open_answers(
    path: str, form: QueryFormat, split: QuerySplit, *, to_join: bool = False
) -> Iterator[Write]:
    """Create a file of answers; yield the function that writes queries of a split with answers.

    The output has the format of the queries, or is Parquet. A file `to_join` is an input of
    `join_parts`. The file is closed at the end, and not durable. Raises `OSError` if it cannot be
    written, and `InputError` if the queries cannot be read.
    """
    if form is QueryFormat.JSON:
        with open(path, "wb", buffering=0) as file:
            yield partial(_write_lines, file)
        return
    if form is QueryFormat.CSV:
        schema = _csv_schema(split)
        writer = pa_csv.CSVWriter(path, schema)
    else:
        queries = written_schema(split)
        schema = pa.schema([*queries, *ANSWER_SCHEMA], _metadata(queries))
        # Parquet is encoded once, when the parts are joined. A stream, other than a file, may have
        # different dictionaries in each batch.
        writer = (
            pa.ipc.new_stream(path, schema) if to_join else _parquet_writer(path, schema, split)
        )
    with writer:
        yield partial(_write_rows, writer, schema)


def _write_rows(
    writer: Any, schema: pa.Schema, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers
) -> None:
    """Write queries and their answers; in Parquet, they are a row group."""
    if rows.schema.names != schema.names[: rows.num_columns]:
        rows = rows.select(schema.names[: rows.num_columns])
    columns = [
        column if column.type == field.type else _cast(column, field, queries)
        for column, field in zip(rows.columns, schema, strict=False)
    ]
    table = pa.Table.from_arrays([*columns, *answers.to_arrow().columns], schema=schema)
    writer.write_table(table, max(len(answers), 1))


def _cast(column: pa.Array, field: pa.Field, queries: QueryBatch) -> pa.Array:
    """Convert a column of queries to the type that is written: numbers instead of text."""
    if not pa.types.is_string(column.type):
        return column.cast(field.type)
    if field.name != PARTITION:
        return queries.keys.to_arrow()
    partitions = queries.partitions
    fits = pc.and_(
        pc.greater_equal(partitions, -INT32_MAX - 1), pc.less_equal(partitions, INT32_MAX)
    )
    return pc.if_else(fits, partitions, None).cast(field.type)


def _write_lines(
    file: io.FileIO, rows: pa.RecordBatch, _queries: QueryBatch, answers: Answers
) -> None:
    """Write the JSON object of each query with the members of its answer."""
    lines = extended_lines(rows.column(LINE), answers.to_arrow())
    offsets = lines.buffers()[1]
    assert lines.offset == 0 and offsets is not None  # noqa: S101, PT018, fresh from Arrow
    end = memoryview(offsets).cast("q")[len(lines)]
    view = memoryview(lines.buffers()[2])[:end]
    while view:
        view = view[file.write(view) :]


def _csv_schema(split: QuerySplit) -> pa.Schema:
    """Return the columns of CSV; columns of the queries are strings."""
    return pa.schema([*(pa.field(name, pa.string()) for name in split.columns), *ANSWER_SCHEMA])


def _parquet_writer(path: str, schema: pa.Schema, split: QuerySplit) -> pq.ParquetWriter:
    """Open a Parquet file of answers.

    Columns of the queries are dictionary-encoded as in the file of queries, or if they are text.
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
            *_REPEATED,
        ],
        column_encoding=dict.fromkeys(_CLOSE, "DELTA_BINARY_PACKED"),
    )


def join_parts(parts: Sequence[str], path: str, form: QueryFormat, split: QuerySplit) -> None:
    """Write the answers of all parts to one file.

    The parts were opened with `to_join` and are in the order of the splits; `split` is the first.
    """
    if form is QueryFormat.PARQUET:
        _join_parquet(parts, path, split)
        return
    header = io.BytesIO()
    if form is QueryFormat.CSV:
        pa_csv.CSVWriter(header, _csv_schema(split)).close()
    with open(path, "wb") as whole:
        for number, part in enumerate(parts):
            with input_stream(part) as file:
                file.read(header.tell() if number else 0)
                shutil.copyfileobj(file, whole, _COPY_BYTES)


def _join_parquet(parts: Sequence[str], path: str, split: QuerySplit) -> None:
    with _mapped(parts[0]) as file:
        schema = pa.ipc.open_stream(file).schema
    with _parquet_writer(path, schema, split) as writer:
        for part in parts:
            with _mapped(part) as file:
                for batch in pa.ipc.open_stream(file):
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    writer.write_table(rows, row_group_size=max(len(batch), 1))


def _mapped(part: str) -> pa.NativeFile:
    return input_stream(part) if store_of(part).needs_requests else pa.memory_map(part)


def _dictionary_columns(footer: pq.FileMetaData, names: Sequence[str]) -> Iterator[str]:
    """Return the columns of the queries that are dictionary-encoded."""
    if footer.num_row_groups:
        group = footer.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            is_query = column.path_in_schema.partition(".")[0] in names
            if is_query and _DICTIONARY_ENCODINGS & set(column.encodings):
                yield column.path_in_schema


def _metadata(queries: pa.Schema) -> dict[bytes, bytes] | None:
    """Return the metadata of a file of queries, with the columns of answers added for Spark."""
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

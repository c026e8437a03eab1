"""Answering: splits of queries, each into a part of the output; and the record of a finished run.

The record is ``.NAME.kafka-index-lookup`` beside the output. A run over the same inputs whose
output is still as it was written has nothing to do, so that a pipeline may run a step twice.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Self

import pyarrow as pa
from msgspec import Meta

from kafka_index.commands.lookup.answer_files import open_answers
from kafka_index.commands.lookup.output import ARROW_ENDING, AnswerTarget
from kafka_index.commands.lookup.queries import (
    READ_ROWS,
    SPLIT_ROWS,
    Queries,
    QueryFormat,
    QuerySplit,
    read_split,
)
from kafka_index.commands.lookup.query_stats import SplitTally
from kafka_index.commands.lookup.report import SplitReport
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.names import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kafka_index.core.format.state_files import Offset, Size, decode_state
from kafka_index.core.fs.directories import Entry, scan_directory
from kafka_index.core.fs.registry import store_of, whole_file
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Workers
from kafka_index.core.log.read.choices import UpperBound
from kafka_index.core.logdir.paged_listing import scan_directories
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.keys import QueryBatch
from kafka_index.core.query.lookups import Lookups, LookupSettings, SharedLookups

_VERSION = 1
# `ExitCode.ENVIRONMENT`: another try is worth it.
_ENVIRONMENT = 3
_INDEXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
# What the last stable offset is found with besides.
_TRANSACTIONS = (TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


def answer_split(
    split: QuerySplit,
    lookups: Lookups,
    part_path: str,
    *,
    attempt_id: str,
    starting_offsets: bool = False,
) -> SplitReport:
    """Answer the queries of a split into one file, which appears whole and durable.

    The lookups are those of this thread or worker; findings that they have gathered before are
    reported, too. The ending of the path, from `AnswerTarget.part_path`, determines the format of
    the answers; with any other ending it is that of the queries. Attempts at one split that may
    overlap differ in their attempt id, of letters, digits and underscores. Raises `InputError` if
    the queries cannot be read, or cannot be written in the format of the answers, and
    `PublishError` if the part cannot be written.
    """
    to_join = part_path.endswith(ARROW_ENDING)
    form = QueryFormat.PARQUET if to_join else QueryFormat.of(part_path) or split.format
    tally = SplitTally(split, lookups, starting_offsets=starting_offsets)
    folder, name = os.path.split(part_path)
    scratch = os.path.join(folder, f".{name}.{attempt_id}.tmp")
    # Each batch visits all segments again: where not all can stay open, few and large ones.
    many = lookups.inventory.segment_count > lookups.settings.max_open_segments
    batches = read_split(
        split,
        as_parquet=form is QueryFormat.PARQUET,
        max_rows=SPLIT_ROWS if many else READ_ROWS,
    )
    with whole_file(part_path, scratch_path=scratch, what="answers") as file:
        try:
            with (
                file.writing(),
                open_answers(file.scratch_path, form, split, to_join=to_join) as write,
            ):
                for rows in batches:
                    queries = QueryBatch.of(rows, split.by)
                    answers = lookups.answer(queries)
                    write(rows, queries, answers)
                    tally.add(rows, queries, answers)
        except pa.ArrowException as error:
            raise InputError(
                f"the queries cannot be written as {form.text}: {error}", path=split.path
            ) from error
        file.commit(durable=not to_join)
    return tally.report()


@dataclass(frozen=True, slots=True)
class SplitWork:
    """A split of the queries, and where its answers go."""

    split: QuerySplit
    part_path: str


#: Called before queries are answered, with what answers them and all splits.
Prepare = Callable[[SharedLookups, Sequence[SplitWork]], None]


def answer_queries(
    workers: Workers,
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    starting_offsets: bool = False,
    prepare: Prepare | None = None,
) -> Generator[SplitReport, None, None]:
    """Answer all queries into the target, without publishing it.

    The target has been entered. Each thread has a `Lookups` of its own, a split at a time, and
    holds one batch. For remote logs, threads without a split answer for some partitions of
    another's. `prepare` is called before anything is answered. Raises `InputError` if queries
    cannot be read, and `PublishError` if answers cannot be written.
    """
    works = [SplitWork(each, target.part_path(each)) for each in queries.splits]
    helpers = workers.count // max(len(works), 1) if inventory.is_remote else 1
    with SharedLookups(inventory, settings, target.index_folder, helpers=helpers) as lookups:
        if prepare is not None:
            prepare(lookups, works)
        done = workers.run(
            works,
            partial(_answer, lookups=lookups, starting_offsets=starting_offsets),
            sizes=[each.split.size_bytes for each in works],
            what="answer {:,} splits of queries",
        )
        with closing(done):
            for report in done:
                if isinstance(report, InputError):
                    raise report
                yield report


def _answer(
    work: SplitWork, attempt_id: str, *, lookups: SharedLookups, starting_offsets: bool
) -> SplitReport | InputError:
    """Answer a split, or return why its queries cannot be read: another attempt cannot either."""
    try:
        return answer_split(
            work.split,
            lookups.open(),
            work.part_path,
            attempt_id=attempt_id,
            starting_offsets=starting_offsets,
        )
    except InputError as error:
        return error


@dataclass(frozen=True, slots=True)
class LookupManifest:
    """The record of a finished run.

    `inputs` is the digest of its inputs and settings: `inputs_digest`. `files` has path, size, and
    time of modification or ETag of each file, and `queries` the number of queries of each status.
    """

    inputs: str
    files: tuple[tuple[str, Size, str], ...]
    queries: tuple[tuple[str, Offset], ...]
    exit_code: Annotated[int, Meta(ge=0, le=_ENVIRONMENT)]

    @classmethod
    def read(cls, output: str) -> Self | None:
        """Return the record beside an output; None where there is none of this version."""
        path = _record_path(output)
        try:
            return decode_state(store_of(path).read(path), cls, _VERSION)
        except (OSError, KafkaIndexError) as error:
            if is_retriable(error):
                raise
            return None

    def write(self, output: str) -> None:
        """Write the record beside an output, whole and durable.

        Raises `PublishError` if that fails.
        """
        with whole_file(_record_path(output), what="record of the run") as file:
            file.write(json.dumps({"version": _VERSION, **asdict(self)}).encode())
            file.commit()

    def is_of(self, inputs: str, output: str, others: Sequence[str]) -> bool:
        """Return whether a run over inputs of this digest would write the files that exist already.

        `others` are files that it is to write besides the output.
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

    @classmethod
    def of_unfinished(cls, inputs: str, sizes: Mapping[str, int]) -> Self:
        """Return the record of a run that is about to put its output in place.

        Whatever ends it then, the same run replaces the output that it finds.
        """
        files = tuple((path, size, "") for path, size in sizes.items())
        return cls(inputs, files, (), _ENVIRONMENT)


def written(output: str, others: Iterable[str]) -> tuple[tuple[str, int, str], ...]:
    """Return the files of an output, and other files that a run wrote, as they are now.

    Raises `OSError` or `KafkaIndexError` if one is missing.
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
    """Return the digest of all that determines the answers."""
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
    # In the order of the partitions, each once.
    directories: dict[str, None] = {}
    for row in inventory.partitions.select(["directory", "index_directory"]).to_pylist():
        directories[row["index_directory"] or row["directory"]] = None
        if is_stable:
            # Snapshots are beside the logs, wherever the indexes are.
            directories[row["directory"]] = None
    states = {
        directory: sorted(_entry_state(each) for each in entries if each.name.endswith(suffixes))
        for directory, entries in scan_directories(filter(None, directories))
    }
    for directory in directories:
        digest.update(repr((directory, states.get(directory, []))).encode())
    digest.update(repr((settings, queries.by, output_format, upper_bound)).encode())
    return digest.hexdigest()


def _record_path(output: str) -> str:
    folder, name = os.path.split(output)
    return os.path.join(folder, f".{name}.kafka-index-lookup")


def _entry_state(entry: Entry) -> tuple[str, int, str]:
    info = entry.info()
    return info.path, info.size_bytes, info.version or str(info.mtime_ns)


def _file_state(path: str) -> tuple[str, int, str]:
    if is_remote(path):
        info = store_of(path).info(path)
        return path, info.size_bytes, info.version or str(info.mtime_ns)
    found = os.stat(path)
    return path, found.st_size, str(found.st_mtime_ns)

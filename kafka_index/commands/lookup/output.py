"""The output of a run: a file, or a folder of parts, published atomically; and its manifest.

A local output is written to a staging folder next to it, ``.NAME.<run id>.tmp``, and renamed at the
end. A killed run leaves the old output unchanged. The next run removes the staging folder.

In an object store or HDFS, the parts are put below ``.NAME.<run id>.tmp/``, and renamed at the end.
If the store has no rename, it copies them on the server. ``_SUCCESS`` is written last: a folder of
parts without it is from a killed run that had begun to publish, and the next run replaces it.
There is no lock: a run removes the parts of another run with the same output.

The manifest is ``.NAME.kafka-index-lookup`` next to the output. A run over the same inputs whose
output is unchanged has nothing to do, so that a pipeline may run a step twice.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Self

import pyarrow as pa

from kafka_index.commands.lookup.answer_files import join_parts
from kafka_index.commands.lookup.queries import Queries, QueryFormat, QuerySplit
from kafka_index.core.errors import InputError, KafkaIndexError, PublishError, is_retriable
from kafka_index.core.format.names import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kafka_index.core.format.state_files import Offset, Size, decode_state
from kafka_index.core.fs.directories import scan_directory
from kafka_index.core.fs.durable_files import (
    exchange,
    publishing,
    sync,
)
from kafka_index.core.fs.paths import absolute_path, refuse_overlap
from kafka_index.core.fs.registry import store_of, whole_file
from kafka_index.core.fs.store import Entry
from kafka_index.core.fs.stored_files import COMPRESSIONS
from kafka_index.core.fs.uris import split_uri
from kafka_index.core.job.result import RunOutcome
from kafka_index.core.log.read.choices import UpperBound
from kafka_index.core.log.read.fetched_indexes import IndexFolder
from kafka_index.core.logdir.paged_listing import scan_directories
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.lookups import LookupSettings

#: As Spark marks a complete folder.
SUCCESS = "_SUCCESS"
#: Our parts and Spark's: only a folder of nothing else is ever replaced.
REPLACEABLE = re.compile(r"_SUCCESS|part-[^/]*|\..*\.crc")
_PART = "part-{number:0{digits}}-{stem}{ending}"
_MIN_DIGITS = 5
_MAX_STEM_BYTES = 100
# What the first bytes of a character that was cut decode to.
_CUT_CHARACTER = "".join(map(chr, range(0xDC80, 0xDD00)))
_WHOLE = "whole"
#: The ending of a part that will be joined with others into one Parquet file.
ARROW_ENDING = ".arrow"
# The end of the name of an old output that is about to be replaced.
_ASIDE = ".old"
_MANIFEST_VERSION = 2
_INDEXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
# The files by which the last stable offset is found besides.
_TRANSACTIONS = (TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class AnswerTarget:
    """The output of a run.

    The path is one file when it ends in ``.parquet`` or like the format of the queries (``.csv``;
    ``.json``, ``.jsonl``, ``.ndjson``), otherwise a folder with a part for each split. It must not
    overlap other inputs. Raises `InputError` if the path has the ending of another format, overlaps
    an input, or exists and is not to be overwritten, or columns of answers in Parquet share a name.
    A context manager, for the driver; entering it raises PublishError when the output cannot be
    written or another run is writing it. Leaving it without `publish` removes all that was written.
    """

    # Whether a folder of parts without `SUCCESS` was left by a killed run.
    _parts_are_unfinished = False

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
        folder, name = os.path.split(self.path)
        self._run_id = os.urandom(8).hex()
        self._staging = os.path.join(folder, f".{name}.{self._run_id}.tmp")
        self._leftover = re.compile(
            rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp(?P<aside>{re.escape(_ASIDE)})?"
        )
        self._stack = ExitStack()
        refuse_overlap(self.path, path, [queries.path, *queries.files, *inputs])
        self._refuse_existing()

    def __enter__(self) -> Self:
        """Lock the output, remove what killed runs left, and create the folder of the parts."""
        folder, name = os.path.split(self.path)
        with publishing(self.path, "write the output"), ExitStack() as stack:
            os.makedirs(folder, exist_ok=True)
            stack.enter_context(DirectoryLock([folder], file_name=f".{name}.kafka-index.lock"))
            self._sweep()
            os.mkdir(self._staging)
            stack.callback(shutil.rmtree, self._staging, ignore_errors=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was not published, and release the lock."""
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
        return os.path.join(self._staging, part)

    @property
    def index_folder(self) -> IndexFolder:
        """The folder in which the workers of the run share built indexes; removed at its end."""
        return IndexFolder(self._staging)

    @property
    def _joins_parquet(self) -> bool:
        is_joined = self.is_file and len(self._queries.splits) > 1
        return is_joined and self.format is QueryFormat.PARQUET

    def publish(
        self,
        rows_of_split: Mapping[int, int],
        announce: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        """Check that every query has its answer, and put the output in place.

        `rows_of_split` counts the answers written for each split, by its number. `announce` is
        called with the sizes of the files of the output, by path, when all is ready and nothing is
        in place. Raises `PublishError` if a part is missing or has another number of answers, or
        the output cannot be put in place; an old output is unchanged.
        """
        self._check_counts(rows_of_split)
        with publishing(self.path, "put the output in place"):
            if self.is_file:
                self._publish_file(announce)
            else:
                self._publish_folder(announce)

    def _sweep(self) -> None:
        """Remove the folders of killed runs, and restore an output that one of them had renamed."""
        folder = os.path.dirname(self.path)
        for name in os.listdir(folder):
            found = self._leftover.fullmatch(name)
            if found is None or not os.path.isdir(os.path.join(folder, name)):
                continue
            if found["aside"] and not os.path.lexists(self.path):
                os.rename(os.path.join(folder, name), self.path)
                self._refuse_existing()
            else:
                shutil.rmtree(os.path.join(folder, name))

    def _publish_file(self, announce: Callable[[Mapping[str, int]], None]) -> None:
        whole, *more = parts = self._parts()
        if more:
            whole = os.path.join(self._staging, _WHOLE)
            join_parts(parts, whole, self.format, self._queries.splits[0])
        sync([whole], "make the output durable")
        # Checked again: another program may have created it since.
        self._refuse_existing()
        announce({self.path: os.stat(whole).st_size})
        os.replace(whole, self.path)
        sync([os.path.dirname(self.path)], "make the output durable")

    def _publish_folder(self, announce: Callable[[Mapping[str, int]], None]) -> None:
        # Other files are from attempts that were abandoned.
        for name in self._names(self._staging).difference(map(os.path.basename, self._parts())):
            os.unlink(os.path.join(self._staging, name))
        with open(os.path.join(self._staging, SUCCESS), "xb"):
            pass
        sync([self._staging], "make the output durable")
        self._refuse_existing()
        with os.scandir(self._staging) as entries:
            announce({os.path.join(self.path, one.name): one.stat().st_size for one in entries})
        if not os.path.isdir(self.path):
            os.rename(self._staging, self.path)
        else:
            _exchange(self._staging, self.path)
        sync([os.path.dirname(self.path)], "make the output durable")

    def _parts(self) -> list[str]:
        there = self._names(self._staging)
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
        """Refuse an existing output, unless it is to be replaced and is one."""
        has_file, names = self._existing()
        if has_file and self._overwrite and not self.is_file:
            raise InputError(
                "a file is not replaced by a folder", path=self._given, hint="choose another place"
            )
        there = names or set()
        others = sorted(name for name in there if not REPLACEABLE.fullmatch(name))
        if names is not None and self._overwrite and (self.is_file or others):
            raise InputError(
                "a folder of other files is not replaced",
                path=self._given,
                found=others[0] if others else "a folder",
                hint="choose another place",
            )
        is_finished = bool(there) and (SUCCESS in there or not self._parts_are_unfinished)
        is_taken = names is not None and (self.is_file or bool(others) or is_finished)
        if not self._overwrite and (has_file or is_taken):
            raise InputError(
                "the output exists already",
                path=self._given,
                hint="choose another --output, or give --overwrite",
            )

    def _existing(self) -> tuple[bool, set[str] | None]:
        """Return whether a file has the path, and the names in a folder there; None for none."""
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            return False, self._names(self.path)
        return os.path.lexists(self.path), None

    @staticmethod
    def _names(folder: str) -> set[str]:
        return set(os.listdir(folder)) if os.path.isdir(folder) else set()


def _exchange(new: str, old: str) -> None:
    """Exchange the names of two folders of one file system, atomically if the system can.

    Otherwise there is a moment in which `old` does not exist; a run that is killed then leaves the
    old folder under the name of the new one and ``.old``. Raises `OSError` if they were not
    exchanged: `old` is unchanged.
    """
    if exchange(new, old):
        return
    aside = new + _ASIDE
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise
    os.rename(aside, new)


def format_of_answers(path: str, queries: Queries) -> QueryFormat:
    """Return the format of an output: Parquet if its name ends so, or that of the queries.

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


def answer_target(
    path: str,
    queries: Queries,
    *,
    inputs: Iterable[str] = (),
    overwrite: bool = False,
) -> AnswerTarget:
    """Return the output of a run, wherever it is; parameters are those of `AnswerTarget`."""
    kind = AnswerTarget if store_of(path).stages_beside else StoredTarget
    return kind(path, queries, inputs=inputs, overwrite=overwrite)


class StoredTarget(AnswerTarget):
    """The output of a run in another store than the local disk; see `AnswerTarget`."""

    _parts_are_unfinished = True

    def __enter__(self) -> Self:
        """Remove what killed runs left."""
        store = store_of(self.path)
        for entry in scan_directory(os.path.dirname(self.path)):
            if entry.is_directory() and self._leftover.fullmatch(entry.name):
                store.delete_tree(entry.path)
        self._stack.callback(store.delete_tree, self._staging)
        return self

    def _publish_file(self, announce: Callable[[Mapping[str, int]], None]) -> None:
        whole, *more = parts = self._parts()
        self._refuse_existing()
        if not more:
            announce({self.path: store_of(whole).info(whole).size_bytes})
            store_of(self.path).rename(whole, self.path)
            return
        with whole_file(self.path, what="answers") as file:
            with file.writing():
                join_parts(parts, file.scratch_path, self.format, self._queries.splits[0])
            announce({self.path: os.stat(file.scratch_path).st_size})
            file.commit()

    def _publish_folder(self, announce: Callable[[Mapping[str, int]], None]) -> None:
        parts = self._parts()
        self._refuse_existing()
        ready = {one.name: one for one in scan_directory(self._staging)}
        names = map(os.path.basename, parts)
        sizes = {f"{self.path}/{name}": ready[name].info().size_bytes for name in names}
        announce({**sizes, f"{self.path}/{SUCCESS}": 0})
        store = store_of(self.path)
        old = self._names(self.path)
        # From here on the folder is known to be incomplete.
        store.delete([f"{self.path}/{SUCCESS}"] if SUCCESS in old else [])
        if store.has_rename:
            others = self._names(self._staging).difference(map(os.path.basename, parts))
            store.delete([f"{self._staging}/{name}" for name in others])
            store.delete([f"{self.path}/{name}" for name in old - {SUCCESS}])
            store.put(f"{self._staging}/{SUCCESS}", b"")
            store.rename(self._staging, self.path)
            return
        for part in parts:
            name = os.path.basename(part)
            store.rename(part, f"{self.path}/{name}")
            old.discard(name)
        store.delete([f"{self.path}/{name}" for name in old - {SUCCESS}])
        store.put(f"{self.path}/{SUCCESS}", b"")

    def _existing(self) -> tuple[bool, set[str] | None]:
        if not split_uri(self.path)[1]:
            raise InputError(
                "the output is not below a bucket", path=self._given, hint="name a folder in it"
            )
        folder, name = os.path.split(self.path)
        entries = [entry for entry in scan_directory(folder) if entry.name == name]
        is_folder = any(entry.is_directory() for entry in entries)
        names = self._names(self.path) if is_folder else set()
        return any(not entry.is_directory() for entry in entries), names or None

    @staticmethod
    def _names(folder: str) -> set[str]:
        return {entry.name for entry in scan_directory(folder) if entry.path != folder}


@dataclass(frozen=True, slots=True)
class LookupManifest:
    """The manifest of a finished run.

    `inputs` is the digest of its inputs and settings: `inputs_digest`. `files` has path, size, and
    time of modification or ETag of each file, and `queries` the number of queries of each status.
    """

    inputs: str
    files: tuple[tuple[str, Size, str], ...]
    queries: tuple[tuple[str, Offset], ...]
    outcome: RunOutcome

    @classmethod
    def read(cls, output: str) -> Self | None:
        """Return the manifest of an output; None if there is none of this version."""
        path = _manifest_path(output)
        try:
            return decode_state(store_of(path).read(path), cls, _MANIFEST_VERSION)
        except (OSError, KafkaIndexError) as error:
            if is_retriable(error):
                raise
            return None

    def write(self, output: str) -> None:
        """Write the manifest of an output, atomically and durably.

        Raises `PublishError` if that fails.
        """
        with whole_file(_manifest_path(output), what="manifest of the run") as file:
            file.write(json.dumps({"version": _MANIFEST_VERSION, **asdict(self)}).encode())
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
        """Return the manifest of a run that is about to put its output in place.

        Whatever ends it then, the same run replaces the output that it finds.
        """
        files = tuple((path, size, "") for path, size in sizes.items())
        return cls(inputs, files, (), RunOutcome.ENVIRONMENT)


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


def _manifest_path(output: str) -> str:
    folder, name = os.path.split(output)
    return os.path.join(folder, f".{name}.kafka-index-lookup")


def _entry_state(entry: Entry) -> tuple[str, int, str]:
    info = entry.info()
    return info.path, info.size_bytes, info.version or str(info.mtime_ns)


def _file_state(path: str) -> tuple[str, int, str]:
    info = store_of(path).info(path)
    return path, info.size_bytes, info.version or str(info.mtime_ns)

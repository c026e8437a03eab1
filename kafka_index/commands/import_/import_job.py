"""An import as a whole, and on threads: a partition is a task, fed by the thread that reads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from kafka_index.commands.import_.import_columns import partitions_of
from kafka_index.commands.import_.import_manifest import (
    ImportCounts,
    digest_of_import,
    finished_import,
    running_import,
)
from kafka_index.commands.import_.import_settings import ImportSettings
from kafka_index.commands.import_.layouts import list_layout_files
from kafka_index.commands.import_.partition_import import (
    ImportedPartition,
    ImportTarget,
    PartitionImport,
)
from kafka_index.commands.import_.request import ImportRequest
from kafka_index.commands.import_.result import ImportedLog, ImportResult
from kafka_index.commands.import_.table_files import TableFile, sorted_records
from kafka_index.core.errors import InputError, plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import reading_inputs
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.output.output import Output

#: Hint for an import that has failed.
AFTER_FAILURE = "run again to continue"

#: The partitions of an import, and whether this run wrote them: a finished import is not repeated.
Imported = tuple[Mapping[TopicPartition, ImportCounts], bool]

#: About the most bytes of records that wait for the threads, for each of them.
_WAITING_BYTES = 32 * 1024 * 1024


def import_tables(
    request: ImportRequest,
    engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> ImportResult:
    """Import the tables of a request on threads.

    Raises `InputError` if a record cannot be written, or the output overlaps the input.
    """
    return run_import(request, partial(_import_on_threads, engine))


def run_import(
    request: ImportRequest,
    write: Callable[[Sequence[TableFile], Output, ImportSettings], Imported],
) -> ImportResult:
    """Import the tables of a request by a function that writes files into an output."""
    with reading_inputs(follow_links=True):
        output = Output.of_data_directory(request.output, request.inputs)
        files, notices = list_layout_files(
            request.inputs, request.layout, request.layout_properties or {}
        )
        partitions, is_new = write(files, output, request.settings())
    rows = [ImportedLog.of(partition, counts) for partition, counts in partitions.items()]
    return ImportResult(rows, output.root, is_new, notices)


def _import_on_threads(
    engine: Engine, files: Sequence[TableFile], output: Output, settings: ImportSettings
) -> Imported:
    digest = digest_of_import(files, settings)
    published: dict[TopicPartition, ImportCounts] = {}

    def add(imported: ImportedPartition) -> None:
        published[imported.staged.partition] = imported.counts

    with (
        engine.start("import", after_failure=AFTER_FAILURE) as workers,
        output,
    ):
        if finished := finished_import(output.root, digest, settings.mode):
            return finished, False
        target = ImportTarget(output, settings.mode)
        output.make_staging()
        try:
            with running_import(output.root, digest, settings) as continued:
                batches = sorted_records(files, continued, threads=workers.count)
                import_sorted(batches, target, continued, add, threads=workers.count)
                # A finished import leaves nothing else.
                output.remove_staging()
        except InputError as error:
            if published:
                error.add_note(f"{plural(len(published), 'partition')} are written")
            raise
    return published, True


def import_sorted(
    batches: Iterable[pa.RecordBatch],
    target: ImportTarget,
    settings: ImportSettings,
    on_partition: Callable[[ImportedPartition], None],
    *,
    threads: int = 1,
) -> None:
    """Import records that come partition by partition; each is published once it is complete.

    The batches are sorted by topic, partition and offset; the callback gets the partitions in their
    order once they are published. So many partitions as threads are written at a time. A partition
    that is larger than the queue is written while it is read, and no other meanwhile; its batches
    are compressed by as many threads. Raises `InputError` if a record cannot be read or written, or
    there is none: the partitions before its own are published. A record that cannot be read counts
    as the next of the last partition that was read.
    """
    room = _Room(threads * _WAITING_BYTES)
    under_way: deque[Future[ImportedPartition]] = deque()
    source = _Source(batches)
    current: _Feed | None = None

    def publish(*, all_of_them: bool) -> None:
        while under_way and (all_of_them or under_way[0].done()):
            imported = under_way.popleft().result()
            target.publish(imported)
            on_partition(imported)

    with (
        ThreadPoolExecutor(threads, thread_name_prefix="compress") as compressors,
        ThreadPoolExecutor(threads, thread_name_prefix="import") as pool,
    ):
        write = partial(
            _write,
            target=target,
            settings=settings,
            compressors=compressors if threads > 1 else None,
        )
        try:
            for partition, rows in source:
                if current is None or current.partition != partition:
                    if current is not None:
                        current.end()
                    publish(all_of_them=False)
                    current = _Feed(partition, room)
                    under_way.append(pool.submit(write, current))
                if not current.put(rows):
                    # It has failed, and those before it may have as well.
                    publish(all_of_them=True)
            if current is not None:
                # Whether the partition has more records is not known where reading has failed: its
                # task fails likewise, once those before it are published.
                current.end(source.error)
            publish(all_of_them=True)
        except BaseException:
            room.stop()
            raise
    if current is None:
        raise source.error or InputError("the input has no records")
    target.remove_others()


def _write(
    feed: _Feed, *, target: ImportTarget, settings: ImportSettings, compressors: Executor | None
) -> ImportedPartition:
    """Write a partition to the staging directory."""
    try:
        partition = PartitionImport(
            target.output.root, target.output.staging, feed.partition, settings, compressors
        )
        try:
            for rows in feed:
                partition.append(rows)
            return partition.finish()
        finally:
            partition.abort()
    finally:
        feed.close()


class _Source:
    """The records of each partition in batches, up to an error of the input, which is kept."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: InputError | None = None

    def __iter__(self) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        try:
            for batch in self._batches:
                yield from partitions_of(batch)
        except InputError as error:
            self.error = error


class _Room:
    """The room for waiting records, shared by all feeds."""

    def __init__(self, max_bytes: int) -> None:
        self.free_bytes = max_bytes
        self.changed = threading.Condition()
        self.is_stopped = False

    def stop(self) -> None:
        """Have every task end that waits for records, or will."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


class _Feed:
    """The records of one partition on their way to the task that writes it."""

    def __init__(self, partition: TopicPartition, room: _Room) -> None:
        self.partition = partition
        self._room = room
        self._waiting: deque[pa.RecordBatch] = deque()
        self._is_complete = False
        self._error: InputError | None = None
        self._is_closed = False

    def put(self, rows: pa.RecordBatch) -> bool:
        """Add records once there is room; return False where the task has ended already."""
        room = self._room
        with room.changed:
            # A batch larger than the whole room is accepted while some of it is free.
            while room.free_bytes <= 0 and not self._is_closed:
                room.changed.wait()
            if self._is_closed:
                return False
            room.free_bytes -= rows.nbytes
            self._waiting.append(rows)
            room.changed.notify_all()
        return True

    def end(self, error: InputError | None = None) -> None:
        """Add no more; with an error, which the task raises after the last record."""
        with self._room.changed:
            self._is_complete, self._error = True, error
            self._room.changed.notify_all()

    def close(self) -> None:
        """Accept no more, and release the room of waiting records."""
        with self._room.changed:
            self._is_closed = True
            self._room.free_bytes += sum(rows.nbytes for rows in self._waiting)
            self._waiting.clear()
            self._room.changed.notify_all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as they come; their room is free once they have been written."""
        room = self._room
        while True:
            with room.changed:
                while not (self._waiting or self._is_complete or room.is_stopped):
                    room.changed.wait()
                if room.is_stopped:
                    raise InputError("the import has been stopped")
                if not self._waiting:
                    if self._error is not None:
                        raise self._error
                    return
                rows = self._waiting.popleft()
            try:
                yield rows
            finally:
                with room.changed:
                    room.free_bytes += rows.nbytes
                    room.changed.notify_all()

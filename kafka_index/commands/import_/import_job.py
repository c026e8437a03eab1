"""Import on threads: one thread reads the records, and a task per partition writes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from kafka_index.commands.import_.import_columns import split_by_partition
from kafka_index.commands.import_.import_manifest import (
    ImportCounts,
    digest_of_import,
    finished_import,
    running_import,
)
from kafka_index.commands.import_.layouts import list_layout_files
from kafka_index.commands.import_.partition_import import (
    ImportedPartition,
    ImportTarget,
    PartitionImport,
)
from kafka_index.commands.import_.request import ImportRequest, ImportSettings
from kafka_index.commands.import_.result import ImportedLog, ImportResult
from kafka_index.commands.import_.table_files import TableFile, sorted_records
from kafka_index.core.contexts import lock_and_condition
from kafka_index.core.errors import InputError, plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import reading_inputs
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.output.output import Output

#: Hint after a failure.
AFTER_FAILURE = "run again to continue"

#: The counts of each imported partition; and True if this run, not an earlier one, imported them.
Imported = tuple[Mapping[TopicPartition, ImportCounts], bool]

#: Approximate maximum size of the queued records, per thread.
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
    """Import the tables of a request; `write` imports the listed files into the output."""
    with reading_inputs(follow_links=True):
        output = Output.for_data_directory(request.output, request.inputs)
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
    published_counts: dict[TopicPartition, ImportCounts] = {}

    def add(imported: ImportedPartition) -> None:
        published_counts[imported.staged.partition] = imported.counts

    with (
        engine.start("import", after_failure=AFTER_FAILURE) as workers,
        output,
    ):
        if earlier_counts := finished_import(output.root, digest, settings.mode):
            return earlier_counts, False
        target = ImportTarget(output, settings.mode)
        output.make_staging()
        try:
            with running_import(output.root, digest, settings) as run_settings:
                batches = sorted_records(files, run_settings, threads=workers.count)
                import_sorted(batches, target, run_settings, add, threads=workers.count)
                output.remove_staging()
        except InputError as error:
            if published_counts:
                error.add_note(f"{plural(len(published_counts), 'partition')} already imported")
            raise
    return published_counts, True


def import_sorted(
    batches: Iterable[pa.RecordBatch],
    target: ImportTarget,
    settings: ImportSettings,
    on_partition: Callable[[ImportedPartition], None],
    *,
    threads: int = 1,
) -> None:
    """Import records partition by partition; publish each partition when it is complete.

    The batches are sorted by topic, partition and offset. The callback receives each partition, in
    this order, after its publication. At most `threads` partitions are written concurrently, and
    at most `threads` further threads compress their batches. The memory for queued records is
    limited, so a large partition is written while it is read.

    Raises `InputError` if a record cannot be read or written, or if the input has no records. The
    partitions before that record are published. After an unreadable record, the last partition
    that was read is not published, because it may be incomplete.
    """
    space = _QueueSpace(threads * _WAITING_BYTES)
    running: deque[Future[ImportedPartition]] = deque()
    source = _Source(batches)
    current: _PartitionQueue | None = None

    def publish(*, wait: bool) -> None:
        while running and (wait or running[0].done()):
            imported = running.popleft().result()
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
                    publish(wait=False)
                    current = _PartitionQueue(partition, space)
                    running.append(pool.submit(write, current))
                if not current.put(rows):
                    # The task has failed: `publish` raises its error.
                    publish(wait=True)
            if current is not None:
                # If reading has failed, the partition may be incomplete, so its task fails too.
                current.end(source.error)
            publish(wait=True)
        except BaseException:
            space.stop()
            raise
    if current is None:
        raise source.error or InputError("the input has no records")
    target.remove_other_partitions()


def _write(
    queue: _PartitionQueue,
    *,
    target: ImportTarget,
    settings: ImportSettings,
    compressors: Executor | None,
) -> ImportedPartition:
    """Write a partition to the staging directory."""
    try:
        partition = PartitionImport(
            target.output.root, target.output.staging, queue.partition, settings, compressors
        )
        try:
            for rows in queue:
                partition.append(rows)
            return partition.finish()
        finally:
            partition.abort()
    finally:
        queue.close()


class _Source:
    """The batches of the input, split by partition; an `InputError` ends them (`error`)."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: InputError | None = None

    def __iter__(self) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        try:
            for batch in self._batches:
                yield from split_by_partition(batch)
        except InputError as error:
            self.error = error


class _QueueSpace:
    """The memory for waiting records, shared by all queues."""

    def __init__(self, max_bytes: int) -> None:
        self.free_bytes = max_bytes
        self.lock, self.changed = lock_and_condition()
        self.is_stopped = False

    def stop(self) -> None:
        """Stop all tasks at their next request for records."""
        with self.lock:
            self.is_stopped = True
            self.changed.notify_all()


class _PartitionQueue:
    """The records of one partition that wait for the task that writes them."""

    def __init__(self, partition: TopicPartition, space: _QueueSpace) -> None:
        self.partition = partition
        self._space = space
        self._waiting: deque[pa.RecordBatch] = deque()
        self._is_complete = False
        self._error: InputError | None = None
        self._is_closed = False

    def put(self, rows: pa.RecordBatch) -> bool:
        """Wait for free space and add records; return False if the task has already ended."""
        space = self._space
        with space.lock:
            # A batch may exceed the free space, so that any batch can be added.
            while space.free_bytes <= 0 and not self._is_closed:
                space.changed.wait()
            if self._is_closed:
                return False
            space.free_bytes -= rows.nbytes
            self._waiting.append(rows)
            space.changed.notify_all()
        return True

    def end(self, error: InputError | None = None) -> None:
        """Mark the end of the records; if `error` is given, the task raises it there."""
        with self._space.lock:
            self._is_complete, self._error = True, error
            self._space.changed.notify_all()

    def close(self) -> None:
        """Reject further records, and release the space of queued records."""
        with self._space.lock:
            self._is_closed = True
            self._space.free_bytes += sum(rows.nbytes for rows in self._waiting)
            self._waiting.clear()
            self._space.changed.notify_all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the records; release their space after they have been written."""
        space = self._space
        while True:
            with space.lock:
                while not (self._waiting or self._is_complete or space.is_stopped):
                    space.changed.wait()
                if space.is_stopped:
                    raise InputError("the import was stopped")
                if not self._waiting:
                    if self._error is not None:
                        raise self._error
                    return
                rows = self._waiting.popleft()
            try:
                yield rows
            finally:
                with space.lock:
                    space.free_bytes += rows.nbytes
                    space.changed.notify_all()

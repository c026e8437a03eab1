"""Exporting: a split into data files, and all splits on threads.

Both engines run `export_split`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kafka_index.errors import CorruptLogError, KafkaIndexError, PublishError, is_retriable
from kafka_index.export.data_files import SplitFiles, remove_data_files
from kafka_index.export.planning import SplitWork
from kafka_index.export.settings import ExportSettings
from kafka_index.export.split_result import LeftOut, SplitResult
from kafka_index.tables import RecordReader

_MAX_LEFT_OUT = 20


def export_split(work: SplitWork, settings: ExportSettings, *, attempt: str) -> SplitResult:
    """Export a split into data files, each of which appears whole and durable.

    Parameters
    ----------
    work : SplitWork
        What to export.
    settings : ExportSettings
        What is written.
    attempt : str
        Letters, digits and underscores. Attempts that may overlap differ in it.

    Raises
    ------
    PublishError
        A data file cannot be written.
    """
    left_out: list[LeftOut] = []
    count = 0

    def leave_out(error: CorruptLogError) -> None:
        nonlocal count
        count += 1
        if len(left_out) < _MAX_LEFT_OUT:
            left_out.append(LeftOut.of(error))

    with SplitFiles(work.folder, settings, f"{attempt}_{work.number}") as files:
        try:
            for batch in RecordReader(work.split, settings.read_settings, on_left_out=leave_out):
                files.write(batch)
        except PublishError:
            raise
        except KafkaIndexError as error:
            return SplitResult(
                work.number, failure=LeftOut.of(error), is_retriable=is_retriable(error)
            )
        files.finish()
        if work.is_repeated:
            # What is in place from before holds less: it ends where the damage was.
            remove_data_files(work.folder, work.first_offset, work.end_offset, keep=files.paths)
        return SplitResult(
            work.number,
            files.records,
            len(files.paths),
            files.size_bytes,
            tuple(left_out),
            count,
        )


def export_local(
    works: Sequence[SplitWork],
    settings: ExportSettings,
    *,
    threads: int,
    on_split: Callable[[SplitResult], None],
) -> None:
    """Export splits on threads of this process.

    Parameters
    ----------
    works : sequence of SplitWork
        The splits.
    settings : ExportSettings
        What is written.
    threads : int
        Splits at a time.
    on_split : callable
        Called with each result, by one thread at a time.

    Raises
    ------
    PublishError
        The output cannot be written.
    """
    left = iter(works)
    lock = threading.Lock()
    stopped = threading.Event()

    def next_work() -> SplitWork | None:
        with lock:
            return None if stopped.is_set() else next(left, None)

    def run() -> None:
        try:
            while (work := next_work()) is not None:
                result = export_split(work, settings, attempt="local")
                with lock:
                    on_split(result)
        except BaseException:
            stopped.set()
            raise

    count = max(min(threads, len(works)), 1)
    with ThreadPoolExecutor(count, thread_name_prefix="export") as pool:
        try:
            for future in [pool.submit(run) for _ in range(count)]:
                future.result()
        finally:
            # After an interrupt the other threads need not continue.
            stopped.set()

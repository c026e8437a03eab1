"""Answering: a split of queries into a part of the output, and all splits on threads.

`answer_split` is what both engines run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.lookup.answer_files import open_answers
from kafka_index.lookup.divided_lookups import DividedLookups
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.lookups import Lookups, LookupSettings
from kafka_index.lookup.output import ARROW_ENDING, AnswerTarget
from kafka_index.lookup.parquet_queries import READ_ROWS, SPLIT_ROWS
from kafka_index.lookup.queries import Queries, read_split
from kafka_index.lookup.query_files import QueryFormat
from kafka_index.lookup.report import SplitReport
from kafka_index.lookup.splits import QuerySplit
from kafka_index.lookup.tally import SplitTally
from kafka_index.stores.staged_file import whole_file

# With fewer, a thread answers alone.
_MIN_HELPERS = 2


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
            writer = open_answers(file.scratch_path, form, split, to_join=to_join)
            try:
                for batch in batches:
                    answers = lookups.answer(batch.topics, batch.partitions, batch.keys)
                    writer.write(batch, answers)
                    tally.add(batch, answers)
            finally:
                writer.close()
        except OSError as error:
            raise file.error(error) from error
        except pa.ArrowException as error:
            raise InputError(
                f"the queries cannot be written as {form.text}: {error}", path=split.path
            ) from error
        file.commit(durable=not to_join)
    return tally.report()


def run_local(
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    threads: int,
    on_split: Callable[[SplitReport], None],
    starting_offsets: bool = False,
) -> None:
    """Answer all queries into the target on threads of this process, without publishing it.

    The target has been entered. Each thread has a `Lookups` of its own, a split at a time, and
    holds one batch. For remote logs, threads without a split answer for some partitions of
    another's. The callback gets the report of each split, from one thread at a time. Raises
    `InputError` if queries cannot be read, and `PublishError` if answers cannot be written.
    """
    splits = iter(queries.splits)
    lock = threading.Lock()
    stopped = threading.Event()

    def next_split() -> QuerySplit | None:
        with lock:
            return None if stopped.is_set() else next(splits, None)

    # Threads that would have no split help those that do.
    helpers = threads // max(len(queries.splits), 1) if inventory.is_remote else 1

    def open_lookups() -> Lookups:
        if helpers < _MIN_HELPERS:
            return Lookups(inventory, settings)
        return DividedLookups(inventory, settings, helpers)

    def run() -> None:
        try:
            with open_lookups() as lookups:
                while (split := next_split()) is not None:
                    report = answer_split(
                        split,
                        lookups,
                        target.part_path(split),
                        attempt_id="local",
                        starting_offsets=starting_offsets,
                    )
                    with lock:
                        on_split(report)
        except BaseException:
            stopped.set()
            raise

    threads = max(min(threads, len(queries.splits)), 1)
    inventory.fetched_indexes.share(target.index_folder)
    with ThreadPoolExecutor(threads, thread_name_prefix="lookup") as pool:
        try:
            for future in [pool.submit(run) for _ in range(threads)]:
                future.result()
        finally:
            # After an interrupt the other threads need not continue.
            stopped.set()
            inventory.fetched_indexes.share(None)

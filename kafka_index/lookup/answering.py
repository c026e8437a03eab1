"""Answering: all splits of queries, each into a part of the output."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.execution import Workers
from kafka_index.lookup.answer_files import open_answers
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.lookups import Lookups, LookupSettings, SharedLookups
from kafka_index.lookup.output import ARROW_ENDING, AnswerTarget
from kafka_index.lookup.queries import READ_ROWS, SPLIT_ROWS, Queries, read_split
from kafka_index.lookup.query_files import QueryFormat, QuerySplit
from kafka_index.lookup.report import SplitReport
from kafka_index.lookup.tally import SplitTally
from kafka_index.stores.registry import whole_file


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

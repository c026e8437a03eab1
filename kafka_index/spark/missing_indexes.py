"""Indexes of remote segments that have none, built once for all tasks of a run of lookups.

One job reads the queries and keeps a query for each segment that they ask, or for each partition
where they ask for times: which segments these reach is known only as their indexes are built. The
other answers those queries, each segment or partition by one task, which leaves the indexes in the
folder of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.errors import InputError
from kafka_index.execution import Workers
from kafka_index.layout.integers import Longs
from kafka_index.lookup import By, Inventory, Keys, Lookups, QueryBatch, read_split
from kafka_index.lookup.answering import SplitWork
from kafka_index.lookup.keys import integers, plain_array
from kafka_index.lookup.partition_codes import NO_PARTITION
from kafka_index.lookup.shared_lookups import SharedLookups
from kafka_index.lookup.unindexed import Unindexed
from kafka_index.reading.answers import Resolve
from kafka_index.spark.tasks import spark_schema, task
from kafka_index.spark.workers import read_works, spark_workers

_CODE, _SEGMENT, _KEY = "code", "segment", "key"
# Instead of a segment's number: the latest time asked for. A special timestamp, which is negative,
# stands for itself.
_BY_TIME = 0
#: What to ask so that the indexes are built: the partition's number, the segment's, and the key.
NEED_SCHEMA = pa.schema(
    [
        pa.field(_CODE, pa.int32(), nullable=False),
        pa.field(_SEGMENT, pa.int32(), nullable=False),
        pa.field(_KEY, pa.int64(), nullable=False),
    ]
)


def build_missing_indexes(
    workers: Workers,
    unindexed: Unindexed,
    lookups: SharedLookups,
    works: Sequence[SplitWork],
) -> None:
    """Build the indexes that splits of queries need, into the folder of the run.

    There is at least one segment without index files, and the lookups have a folder.
    """
    by_time = lookups.settings.by is By.TIMESTAMP
    spark = spark_workers(workers)
    bare = spark.session.createDataFrame(unindexed.rows)
    splits = spark.frame(works, [each.split.size_bytes for each in works])
    place = [_CODE] if by_time else [_CODE, _SEGMENT]
    with spark.jobs.job("find the segments without index files that are asked"):
        needs = (
            splits.mapInArrow(task(partial(find_needs, lookups=lookups)), spark_schema(NEED_SCHEMA))
            .groupBy(_CODE, _SEGMENT)
            .agg(F.max(_KEY).alias(_KEY))
            .join(bare.groupBy(place).agg(F.sum("size_bytes").alias("size_bytes")), place)
            .select(_CODE, _SEGMENT, _KEY, "size_bytes")
            .toArrow()
            .sort_by([(_CODE, "ascending"), (_SEGMENT, "ascending")])
        )
    if not needs.num_rows:
        return
    # All that is asked of a partition by time is asked by one task.
    owners = needs[_CODE].to_numpy() if by_time else np.arange(needs.num_rows)
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    asked = list(zip(*(needs[name].to_pylist() for name in NEED_SCHEMA.names), strict=True))
    ends = [*firsts[1:].tolist(), len(asked)]
    built = workers.run(
        [asked[first:end] for first, end in zip(firsts.tolist(), ends, strict=True)],
        partial(build_needed, lookups=lookups),
        sizes=needs["size_bytes"].to_numpy()[firsts].tolist(),
        what=f"build indexes for {{:,}} {'partitions' if by_time else 'segments'}",
    )
    for _ in built:
        pass


def find_needs(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups
) -> Iterator[pa.RecordBatch]:
    """Reduce the queries of splits to those whose answers need all the same indexes."""
    inventory = lookups.open().inventory
    largest: dict[tuple[int, int], int] = {}
    for work in read_works(batches):
        # The task that answers the split meets the same error, and reports it.
        with suppress(InputError):
            for batch in read_split(work.split):
                for code, keys in _asked(batch, inventory):
                    for segment, key in _needs(inventory, lookups, code, keys):
                        place = code, segment
                        largest[place] = max(key, largest.get(place, key))
    rows = [(code, segment, key) for (code, segment), key in largest.items()]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(NEED_SCHEMA)
    yield pa.record_batch([list(column) for column in columns], schema=NEED_SCHEMA)


def _asked(batch: QueryBatch, inventory: Inventory) -> Iterator[tuple[int, Longs]]:
    """Yield each partition with the ascending keys that are asked of it."""
    numbers, present = integers(plain_array(batch.partitions))
    codes = inventory.codes(batch.topics, numbers)
    valid = codes != NO_PARTITION
    for flags in (present, batch.keys.valid):
        if flags is not None:
            valid &= flags
    if not batch.keys.specials:
        valid &= batch.keys.values >= 0
    if not valid.any():
        return
    codes, keys = codes[valid], batch.keys.values[valid]
    order = np.lexsort((keys, codes))
    codes, keys = codes[order], keys[order]
    asked, firsts = np.unique(codes, return_index=True)
    yield from zip(asked.tolist(), np.split(keys, firsts[1:]), strict=True)


def _needs(
    inventory: Inventory, lookups: SharedLookups, code: int, keys: Longs
) -> Iterator[tuple[int, int]]:
    """Yield segments, each with the largest key asked of it, or times as segments."""
    if lookups.settings.by is By.TIMESTAMP:
        for special in np.unique(keys[keys < 0]).tolist():
            yield special, special
        if keys[-1] >= 0:
            yield _BY_TIME, int(keys[-1])
        return
    bases = inventory.base_offsets(code)
    # What is below the start is answered without an index.
    first = max(inventory.partitions["log_start_offset"][code].as_py(), 0)
    keys = keys[np.searchsorted(keys, first) :]
    if len(keys):
        places = np.clip(np.searchsorted(bases, keys, "right") - 1, 0, None)
        segments, firsts = np.unique(places, return_index=True)
        lasts = np.append(firsts[1:], len(keys)) - 1
        yield from zip(segments.tolist(), keys[lasts].tolist(), strict=True)
    if lookups.settings.resolve is not Resolve.INDEX:
        # For the end of the partition.
        yield len(bases) - 1, int(bases[-1])


def build_needed(
    needs: Sequence[tuple[int, int, int]], _attempt_id: str, *, lookups: SharedLookups
) -> None:
    """Ask what `find_needs` found, so that the indexes are built and shared."""
    opened = lookups.open()
    inventory, settings = opened.inventory, opened.settings
    by_time = settings.by is By.TIMESTAMP
    needs_end = not by_time and settings.resolve is not Resolve.INDEX
    if not by_time:
        # The index of a segment is looked up, and no other segment read.
        settings = replace(settings, resolve=Resolve.INDEX)
    # What is wrong with a segment is found again, and reported, by the lookups themselves.
    with Lookups(inventory, settings) as own:
        for code, segment, asked in needs:
            topic, partition = inventory.name_of(code)
            if needs_end and segment == len(inventory.base_offsets(code)) - 1:
                own.end_offset(code)
            key = Keys.of(pa.array([asked], pa.int64()), settings.by)
            own.answer(pa.array([topic]), pa.array([partition], pa.int32()), key)

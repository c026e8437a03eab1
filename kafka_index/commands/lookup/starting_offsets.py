"""The logs of a lookup, and its files of starting offsets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from kafka_index.commands.lookup.request import LookupRequest
from kafka_index.commands.lookup.result import StartingOffset
from kafka_index.core.errors import InputError, ReadError
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.paths import absolute_path, real_path, refuse_overlap
from kafka_index.core.fs.registry import atomic_file, store_of
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    FOUND_OFFSET,
    Answers,
    LookupFinding,
    SpecialTimestamp,
)
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.keys import NO_PARTITION, QueryBatch, integers, plain_array
from kafka_index.core.query.lookups import Lookups

# Statuses for which reading starts at the log end, and statuses without a starting offset.
_AT_END = (Status.LOG_END, Status.NO_RECORD_AT_OR_AFTER, Status.AFTER_LOG_END)
_NOWHERE = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY, Status.UNREADABLE)

_Render = Callable[[Sequence[StartingOffset]], str]


def inventory_of(
    request: LookupRequest,
    paths: Sequence[str] | None = None,
    topics: re.Pattern[str] | None = None,
) -> Inventory:
    """List the logs of a request, or only the logs of some of its inputs (`paths`) and `topics`."""
    return collect_inventory(
        request.inputs if paths is None else paths,
        tiered=request.tiered,
        indexes=request.indexes,
        upper_bound=request.upper_bound,
        topics=topics or request.topics,
    )


@contextmanager
def offsets_files(
    request: LookupRequest, target: str | None = None
) -> Iterator[list[tuple[AtomicFile, _Render]]]:
    """Open the requested files of offsets; yield each with the function that formats it.

    Raises `InputError` if a path is an input, is in the output, or is used twice.
    """
    refuse_side_files(request, target)
    with ExitStack() as stack:
        yield [
            (stack.enter_context(atomic_file(absolute_path(path))), _RENDERS[name])
            for path, name in request.offsets_files
        ]


def write_offsets(
    files: Sequence[tuple[AtomicFile, _Render]],
    starts: Sequence[StartingOffset],
    findings: Sequence[LookupFinding],
) -> None:
    """Write files of offsets; raise `ReadError` if a partition could not be read."""
    unread = next((each for each in findings if each.retriable and each.queries), None)
    if files and unread is not None:
        raise ReadError(
            f"no starting offsets: {unread.reason}",
            path=unread.path,
            hint="make the log readable and run again",
        )
    for file, render in files:
        file.write(render(starts).encode())


def refuse_side_files(
    request: LookupRequest, target: str | None, report: str | None = None
) -> None:
    """Reject files that overlap an input, the output, or each other."""
    taken = [] if target is None else [real_path(target)]
    queries = [request.queries] if request.queries else []
    inputs = [*request.folders, *queries]
    texts = [path for path, _ in request.offsets_files]
    for path in (*texts, *([] if report is None else [report])):
        real = real_path(path)
        if os.path.isdir(real):
            raise InputError("a folder, not a file", path=path, hint="give a file in the folder")
        if store_of(real).is_special(real):
            raise InputError("not a regular file", path=path, hint="give another file")
        refuse_overlap(real, path, inputs)
        if any(
            f"{real}/".startswith(f"{other}/") or f"{other}/".startswith(f"{real}/")
            for other in taken
        ):
            raise InputError(
                "the path equals, contains or is inside another output of this run",
                path=path,
                hint="give another path",
            )
        taken.append(real)


def starting_offsets_of(
    lookups: Lookups, queries: QueryBatch, answers: Answers, count: int
) -> list[StartingOffset]:
    """Return the starting offsets for the first `count` queries.

    The starting offset is the found one: of the record, the requested offset, or the base offset of
    the batch with the timestamp. Otherwise it is the log end, or the log start for a lower offset.
    """
    topics = plain_array(queries.topics.slice(0, count)).cast(pa.large_binary()).to_pylist()
    partitions = plain_array(queries.partitions.slice(0, count))
    numbers, _ = integers(partitions)
    codes = lookups.inventory.codes(queries.topics.slice(0, count), numbers).tolist()
    places = _found_places(lookups, queries, answers, count)
    starts = []
    for row, (topic, partition, code) in enumerate(
        zip(topics, partitions.to_pylist(), codes, strict=True)
    ):
        status = Status(int(answers.status[row]))
        offset: int | None = None
        if code != NO_PARTITION and status not in _NOWHERE:
            log_start = lookups.start_offset(code)
            special = _special(lookups, queries, row)
            if special is SpecialTimestamp.EARLIEST or status is Status.BEFORE_LOG_START:
                offset = log_start
            elif special is SpecialTimestamp.LATEST or status in _AT_END:
                offset = lookups.end_offset(code)
            else:
                # A batch may begin with records that have been deleted.
                offset = max(int(places[row]), log_start)
            if offset is None:
                status = Status.UNREADABLE
        name = None if topic is None else topic.decode(errors="replace")
        starts.append(StartingOffset(name, partition, status, offset))
    return starts


def _found_places(lookups: Lookups, queries: QueryBatch, answers: Answers, count: int) -> Longs:
    places: Longs = queries.keys.values
    if lookups.settings.resolve is Resolve.RECORD:
        places = answers.values[FOUND_OFFSET]
    elif lookups.settings.by is By.TIMESTAMP:
        places = answers.values[BATCH_BASE_OFFSET]
    return places[:count]


def _special(lookups: Lookups, queries: QueryBatch, row: int) -> SpecialTimestamp | None:
    key = int(queries.keys.values[row])
    if lookups.settings.by is By.OFFSET or not queries.keys.specials or key >= 0:
        return None
    return SpecialTimestamp(key)


def check_starting_offsets(starts: Sequence[StartingOffset]) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition, sorted.

    Raises `InputError` if two queries have the same partition, or a query has no offset.
    """
    offsets: dict[str, dict[int, int]] = {}
    for start in starts:
        name = f"{start.topic}-{start.partition}"
        if start.topic is None or start.partition is None or start.offset is None:
            raise InputError(
                f"no starting offset for {name}: {Status(start.status).text}",
                hint="each query needs an answer for starting offsets",
            )
        of_topic = offsets.setdefault(start.topic, {})
        if start.partition in of_topic:
            raise InputError(
                f"two queries are about {name}",
                hint="give one query for each partition",
            )
        of_topic[start.partition] = start.offset
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


def starting_offsets_json(starts: Sequence[StartingOffset]) -> str:
    """Return Spark's ``startingOffsets`` (or ``endingOffsets``): one line of JSON.

    Spark requires every partition of the topics that it subscribes to. Raises the errors of
    `check_starting_offsets`.
    """
    return json.dumps(check_starting_offsets(starts), separators=(",", ":")) + "\n"


def reset_offsets_csv(starts: Sequence[StartingOffset]) -> str:
    """Return the input of ``kafka-consumer-groups --reset-offsets --from-file``, for one group.

    Lines of topic, partition and offset without a header (CsvUtils.CsvRecordNoGroup). No legal
    topic needs quotes. Raises the errors of `check_starting_offsets`.
    """
    return "".join(
        f"{topic},{partition},{offset}\n"
        for topic, offsets in check_starting_offsets(starts).items()
        for partition, offset in offsets.items()
    )


_RENDERS: Mapping[str, _Render] = {
    "starting_offsets": starting_offsets_json,
    "reset_offsets": reset_offsets_csv,
}

"""A read of a topic, and its result: records that are read during iteration."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import replace

from kafka_index.commands.cat.request import CatRequest
from kafka_index.commands.cat.topic_records import PartitionRecords, matches_by_time, plan_records
from kafka_index.core.errors import InputError, plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.job.threads import ThreadEngine
from kafka_index.core.parameters import time_range_ms
from kafka_index.core.query.bounds import EARLIEST, LATEST, Bound, ReadBounds
from kafka_index.core.query.choices import OnDamage
from kafka_index.core.query.matches import SplitMatches, limited, run_search
from kafka_index.core.query.printed_records import PRINTED_COLUMNS
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.record_stream import SearchedRecords
from kafka_index.core.query.records import ListedPartitions, list_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter


class TopicRecords(SearchedRecords):
    """The records of a topic, in the requested order."""

    command = "cat"

    def __init__(
        self,
        request: CatRequest,
        listed: ListedPartitions,
        settings: ReadSettings,
        planned: Sequence[PartitionRecords],
        unread: Sequence[str],
    ) -> None:
        plan = ReadPlan(
            tuple(split for one in planned for split in one.splits),
            settings,
            tuple(one.read for one in planned if one.read is not None),
            listed.gap_finder(settings.max_decompressed_bytes),
        )
        faults = [one.error for one in planned if one.error is not None]
        super().__init__(listed, plan, request.first, unread, faults)
        self._request, self._planned = request, planned

    def _matches(self) -> Generator[SplitMatches, None, None]:
        plan, last = self._plan, self._request.last
        if not self._request.by_time:
            yield from run_search(
                ThreadEngine(), "cat", plan.splits, plan.settings, limit=self._limit
            )
            return
        found = matches_by_time([one.splits for one in self._planned], plan.settings)
        more = 0 if last is None else sum(one.records or 0 for one in self._planned) - last
        yield from limited(found, self._limit, skip=max(more, 0))

    def _records_text(self, records: int, where: str) -> str:  # noqa: ARG002, of other reads
        text = plural(records, "record") if records else "no record"
        text += f" of {self._request.topic} in {plural(self._partitions, 'partition')}"
        return f"{text}; the rest was not read (limit)" if self._is_limited else text


def read_topic(
    request: CatRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> TopicRecords:
    """Plan a read of a topic; its records are read while the caller iterates over the result.

    Raises `InputError` if the topic or a partition is not in the input.
    """
    times = time_range_ms(request.from_time, request.to_time)
    settings = ReadSettings(
        columns=PRINTED_COLUMNS,
        isolation=request.isolation,
        on_damage=OnDamage.DROP,
        max_decompressed_bytes=request.max_decompressed_bytes,
        record_filter=None if times == (None, None) else RecordFilter(*times),
    )
    first, end = request.offsets
    bounds = ReadBounds(
        Bound(EARLIEST if first is None else first), Bound(LATEST if end is None else end)
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        listed = _listed(request)
        planned = [
            plan_records(files, bounds, settings, last=request.last) for files in listed.files
        ]
    return TopicRecords(request, listed, settings, planned, unread_texts(unread))


def _listed(request: CatRequest) -> ListedPartitions:
    listed = list_partitions(
        request.inputs,
        # In topic names, the full stop is the only special character of regular expressions.
        topics=re.compile(request.topic.replace(".", r"\.")),
        tiered=request.tiered,
        indexes=request.indexes,
    )
    numbers = [files.partition for files in listed.files]
    missing = [number for number in sorted(request.partitions) if number not in numbers]
    if missing:
        partition = TopicPartition(request.topic, missing[0])
        raise InputError(
            f"the input has no partition {partition.directory_name}",
            path=", ".join(request.inputs),
            found=f"the partitions {', '.join(map(str, numbers))}",
        )
    if request.partitions:
        files = [one for one in listed.files if one.partition in request.partitions]
        listed = replace(listed, files=files)
    return listed

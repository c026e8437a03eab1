"""A search for records, and its result: records that are searched during iteration."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from kafka_index.commands.find.request import FindRequest
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_count
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.choices import Isolation, OnDamage
from kafka_index.core.parameters import format_topics, time_range_ms
from kafka_index.core.query.matches import SEARCHED_SPLIT_BYTES, SplitMatches, run_search
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.record_stream import SearchedRecords
from kafka_index.core.query.records import ListedPartitions, list_partitions, plan_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.core.records.record_table import DEFAULT_COLUMNS


class FoundRecords(SearchedRecords):
    """The result of `find_records`: the matching records.

    Iteration yields record batches of a few MiB, in order of topic, partition and offset; each
    iteration searches the dump again. `ok`, `counts` and `damage` describe the last completed
    search.

    Parameters
    ----------
    engine : object
        The engine that runs the search.
    listener : object
        Receives the progress of the search.
    listed : object
        The partitions of the input.
    plan : object
        The parts of the logs to search.
    request : object
        The limit and the topics.
    unread : tuple of str
        Input entries that were not read, with reasons.
    """

    command = "find"
    _verb = "searched"

    def __init__(
        self,
        engine: Engine,
        listener: Listener,
        partition_listing: ListedPartitions,
        plan: ReadPlan,
        request: FindRequest,
        unread: Sequence[str] = (),
    ) -> None:
        super().__init__(partition_listing, plan, request.limit, unread)
        self._engine, self._listener, self._topics = engine, listener, request.topics

    def _matches(self) -> Generator[SplitMatches, None, None]:
        plan = self._plan
        return run_search(
            self._engine,
            "find",
            plan.splits,
            plan.settings,
            limit=self._limit,
            listener=self._listener,
        )

    def _records_text(self, records: int, searched_data: str) -> str:
        few_matches = f"{records or 'no'} record matches"
        matches = f"{format_count(records)} records match" if records > 1 else few_matches
        searched_data += format_topics(self._topics)
        if self._is_limited:
            return (
                f"{matches}; the search stopped at the limit, and the rest of {searched_data} was "
                "not searched"
            )
        exception = ", except unreadable ranges" if self._faults.total else ""
        return f"{matches}; searched {searched_data}{exception}"

    @property
    def facts(self) -> Sequence[str]:
        """The records that were not searched, and the time range of the logs."""
        if self._is_limited:
            return ()
        facts = []
        if self._plan.settings.isolation is Isolation.READ_COMMITTED:
            facts.append("records of aborted and open transactions were not searched")
        partitions_with_deleted = sum(
            partition.log_start_offset > partition.segments[0].base_offset
            for partition in self._partition_list.files
        )
        if partitions_with_deleted:
            facts.append(
                "deleted records before the log start offset of "
                f"{plural(partitions_with_deleted, 'partition')} were not searched, although files "
                "may still contain them"
            )
        return (*facts, *super().facts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of found records, partitions, skipped corrupt ranges, and skipped entries."""
        counts = dict(super().counts)
        matches = counts.pop("records")
        return {"matches": matches, "records_found": matches, **counts}


def find(
    request: FindRequest,
    engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> FoundRecords:
    """Plan a search; the records are searched while the caller iterates over the result.

    Raises `InputError` if nothing is found, or the regular expression is malformed.
    """
    from_ms, to_ms = time_range_ms(request.from_time, request.to_time)
    settings = ReadSettings(
        columns=request.columns or DEFAULT_COLUMNS,
        isolation=request.isolation,
        on_damage=OnDamage.DROP,
        max_decompressed_bytes=request.max_decompressed_bytes,
        record_filter=RecordFilter(
            from_ms=from_ms,
            to_ms=to_ms,
            key=request.key,
            key_regex=request.key_regex,
            value_contains=request.value_contains,
        ),
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        partition_listing = list_partitions(
            request.inputs, topics=request.topics, tiered=request.tiered, indexes=request.indexes
        )
        plan = plan_partitions(
            partition_listing.files,
            settings=settings,
            max_split_bytes=SEARCHED_SPLIT_BYTES,
            finder=partition_listing.gap_finder(request.max_decompressed_bytes),
        )
        # A printed record has the bytes in addition to the decoded value.
        is_printed = request.columns is not None
        if request.decode is not None or request.where is not None:
            # Schemas and their decoders are slow to import.
            from kafka_index.core.query import typed_records  # noqa: PLC0415

            plan = typed_records.with_types(
                plan,
                request,
                settings.columns,
                keeps_raw=is_printed,
                # The first records need not satisfy the condition.
                limit=request.limit if request.where is None else None,
                threads=engine.threads,
            )
            if request.where is not None:
                plan = typed_records.with_condition(plan, request.decode, request.where)
    return FoundRecords(
        engine, listener or SILENT, partition_listing, plan, request, unread_texts(unread)
    )

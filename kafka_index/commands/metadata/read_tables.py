"""Read the tables and the overview of Kafka's internal topics, and the list of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kafka_index.commands.metadata.request import MetadataRequest, PartitionsRequest
from kafka_index.commands.metadata.result import Metadata, PartitionList
from kafka_index.core.cluster.metadata.directory import ClusterMetadata
from kafka_index.core.cluster.metadata.tables import LAG_TABLES, METADATA_TABLES, read_for_table
from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink, RunOutcome
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.retention import future_segments
from kafka_index.core.logdir.listing import list_any
from kafka_index.core.query.records import list_partitions as list_files

_OVERVIEW = pa.schema([("table", pa.string()), ("rows", pa.int64())])
#: The columns of `list_partitions`.
PARTITIONS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("path", pa.string()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("segments", pa.int64()),
        ("size_bytes", pa.int64()),
        ("is_tiered", pa.bool_()),
        ("reason", pa.string()),
    ]
)


def read_tables(
    request: MetadataRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> Metadata:
    """Read a table, or the overview.

    Raises `InputError` if a path cannot be read, or none of the topics is in the input.
    """
    paths, what, most = list(request.inputs), request.what, request.max_decompressed_bytes
    overview: dict[str, Any] = {}
    with reading_inputs(follow_links=request.follow_links) as unread:
        if what in LAG_TABLES:
            from kafka_index.core.query.lag import read_lag  # noqa: PLC0415, slow to import

            rows, faults = read_lag(paths, what, max_decompressed_bytes=most)
        else:
            found = read_for_table(paths, what, max_decompressed_bytes=most)
            faults = found.faults
            if what is None:
                rows, overview = _row_counts(found), _overview(found, paths)
            else:
                rows = METADATA_TABLES[what].of(found)
    ended = RunOutcome.of_faults(faults.retriable)
    errors = tuple(faults.first), faults.total
    return Metadata(rows, ended, unread_texts(unread), what, *errors, overview)


def _row_counts(found: ClusterMetadata) -> pa.Table:
    counts = [
        {"table": name, "rows": len(table.rows(found))}
        for name, table in METADATA_TABLES.items()
        if table.is_known(found)
    ]
    return pa.Table.from_pylist(counts, schema=_OVERVIEW)


def _overview(found: ClusterMetadata, paths: Sequence[str]) -> dict[str, Any]:
    """Return the members of the overview; None for topics that are not in the input."""
    cluster = found.cluster
    of_cluster: dict[str, object] = dict.fromkeys(
        ("topics", "partitions", "brokers", "features", "next_producer_id")
    )
    if cluster is not None:
        block = cluster.producer_ids
        of_cluster = {
            "topics": len(cluster.topics),
            "partitions": sum(len(topic.partitions) for topic in cluster.topics.values()),
            "brokers": len(cluster.brokers),
            "features": cluster.features,
            "next_producer_id": None if block is None else block.next_producer_id,
        }
    groups, transactions, segments = found.groups, found.transactions, found.remote_segments
    return {
        "sources": [source._asdict() for source in found.sources],
        **of_cluster,
        "groups": None if groups is None else Counter(one.kind for one in groups),
        "committed_offsets": None if found.offsets is None else len(found.offsets),
        "transactions": None
        if transactions is None
        else Counter(one.state for one in transactions),
        "remote_segments": None
        if segments is None
        else Counter(one.state.name for one in segments),
        "records": _records(found, is_known=True),
        "unknown_records": _records(found, is_known=False),
        "future_timestamps": {
            topic: {"segments": count, "size_bytes": size_bytes}
            for topic, (count, size_bytes) in sorted(
                future_segments(list_any(paths, topics=None).segments, now_ms()).items()
            )
        },
        "faults": found.faults.total,
    }


def _records(found: ClusterMetadata, *, is_known: bool) -> dict[str, dict[str, int]]:
    """Return the numbers of records of each topic by type, for known or for unknown types."""
    return {
        topic: {
            name.name: count for name, count in sorted(counts.items()) if name.is_known == is_known
        }
        for topic, counts in found.counts.items()
    }


def find_partitions(request: PartitionsRequest) -> PartitionList:
    """List the partitions of a request, sorted by topic and number.

    Raises `InputError` if nothing is found, or a path cannot be listed.
    """
    with reading_inputs(follow_links=request.follow_links) as unread:
        listed = list_files(request.inputs, topics=request.topics, tiered=request.tiered)
        ends = [_end_of(files) for files in listed.files]
    rows = [
        {
            "topic": files.topic,
            "partition": files.partition,
            "path": files.segments[-1].partition_directory,
            "log_start_offset": files.log_start_offset,
            "log_end_offset": end_offset,
            "segments": len(files.segments),
            "size_bytes": sum(each.log_size_bytes for each in files.segments),
            "is_tiered": files.is_tiered,
            "reason": None if fault is None else str(fault),
        }
        for files, (end_offset, fault) in zip(listed.files, ends, strict=True)
    ]
    ended = RunOutcome.of_faults(is_retriable(fault) for _, fault in ends if fault is not None)
    return PartitionList(
        pa.Table.from_pylist(rows, schema=PARTITIONS_SCHEMA), ended, unread_texts(unread)
    )


def _end_of(files: PartitionFiles) -> tuple[int | None, KafkaIndexError | None]:
    """Return the log end offset, or why it cannot be read."""
    try:
        with PartitionLog(files, config=IndexConfig()) as log:
            return log.log_end_offset, None
    except KafkaIndexError as error:
        return None, error

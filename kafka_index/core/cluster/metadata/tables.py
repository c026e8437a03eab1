"""The content of Kafka's internal topics, as Arrow tables with declared schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kafka_index.core.cluster.metadata.cluster_image import (
    PRODUCER_ID_BLOCK,
    ClusterImage,
    TopicImage,
)
from kafka_index.core.cluster.metadata.directory import (
    METADATA_TOPICS,
    ClusterMetadata,
    read_metadata,
)
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafka_index.core.records.decompression import shared_budget

Row = dict[str, object]

_RECOVERY = ("recovered", "recovering")

#: The attribute of `ClusterMetadata` with the content of each topic; its value is None if the topic
#: was not found.
_CONTENT = {
    CLUSTER_METADATA_TOPIC: "cluster",
    CONSUMER_OFFSETS_TOPIC: "groups",
    TRANSACTION_STATE_TOPIC: "transactions",
    REMOTE_LOG_METADATA_TOPIC: "remote_segments",
}
_NAME_LIST = pa.list_(pa.string())
#: Names of list types in schemas.
_LIST_TYPES = {"ids": pa.list_(pa.int32()), "names": _NAME_LIST}


def _field_values(row: Any) -> Row:
    """Return the fields of a slotted dataclass, keyed by field name, which is the column name."""
    return {name: getattr(row, name) for name in row.__slots__}


def _assignment_rows(pairs: Iterable[tuple[str, int]]) -> list[Row]:
    return [{"topic": topic, "partition": partition} for topic, partition in pairs]


def _sorted_topics(metadata: ClusterMetadata) -> list[TopicImage]:
    topics = (metadata.cluster or ClusterImage()).topics.values()
    return sorted(topics, key=lambda topic: topic.name)


def _topic_rows(metadata: ClusterMetadata) -> list[Row]:
    cluster = metadata.cluster or ClusterImage()
    return [
        {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": max(
                (len(partition.replicas) for partition in topic.partitions.values()), default=0
            ),
            "configs": sorted(cluster.topic_configs(topic.name).items()),
        }
        for topic in _sorted_topics(metadata)
    ]


def _partition_rows(metadata: ClusterMetadata) -> list[Row]:
    return [
        {
            **_field_values(partition),
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partition": number,
            "leader": None if partition.leader < 0 else partition.leader,
            "leader_recovery_state": _RECOVERY[partition.leader_recovery_state == 1],
        }
        for topic in _sorted_topics(metadata)
        for number, partition in sorted(topic.partitions.items())
    ]


def _broker_rows(metadata: ClusterMetadata) -> list[Row]:
    brokers = (metadata.cluster or ClusterImage()).brokers
    return [_field_values(broker) for _, broker in sorted(brokers.items())]


def _group_rows(metadata: ClusterMetadata) -> list[Row]:
    committed = Counter(offset.group for offset in metadata.offsets or ())
    return [
        {
            **_field_values(group),
            "group": group.name,
            "type": group.kind,
            "committed_offsets": committed[group.name],
            "members": [
                {**_field_values(member), "assignment": _assignment_rows(member.assignment)}
                for _, member in sorted(group.members.items())
            ],
        }
        for group in metadata.groups or ()
    ]


def _offset_rows(metadata: ClusterMetadata) -> list[Row]:
    return [_field_values(offset) for offset in metadata.offsets or ()]


def _transaction_rows(metadata: ClusterMetadata) -> list[Row]:
    return [
        {**_field_values(transaction), "partitions": _assignment_rows(transaction.partitions)}
        for transaction in metadata.transactions or ()
    ]


def _producer_rows(metadata: ClusterMetadata) -> list[Row]:
    """Return rows for transactional producers and the last allocated block of producer IDs."""
    unknown: Row = dict.fromkeys(_PRODUCERS.names)
    rows: list[Row] = [
        {
            **unknown,
            "kind": "transactional",
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "transactional_id": transaction.transactional_id,
        }
        for transaction in metadata.transactions or ()
    ]
    block = None if metadata.cluster is None else metadata.cluster.producer_ids
    if block is not None:
        first_producer_id = max(block.next_producer_id - PRODUCER_ID_BLOCK, 0)
        rows.append(
            {**unknown, **_field_values(block), "kind": "block", "producer_id": first_producer_id}
        )
    return rows


def _remote_segment_rows(metadata: ClusterMetadata) -> list[Row]:
    return [
        {
            **_field_values(segment),
            "topic_id": segment.id.topic_id,
            "partition": segment.id.partition,
            "segment_id": segment.id.segment_id,
            "state": segment.state.name,
            "leader_epochs": [
                {"leader_epoch": entry.epoch, "start_offset": entry.start_offset}
                for entry in segment.epochs
            ],
        }
        for segment in metadata.remote_segments or ()
    ]


def _parse_schema(columns: str, **types: pa.DataType) -> pa.Schema:
    """Parse columns ``name:type``; for a column without a type, `types` has the type."""
    types_by_name = _LIST_TYPES | types
    fields = []
    for declaration in columns.split():
        name, _, type_name = declaration.partition(":")
        type_ = types_by_name.get(type_name or name)
        fields.append(pa.field(name, pa.type_for_alias(type_name) if type_ is None else type_))
    return pa.schema(fields)


_ASSIGNED = pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32())]))
_MEMBER = pa.struct(
    [
        ("member_id", pa.string()),
        ("instance_id", pa.string()),
        ("client_id", pa.string()),
        ("client_host", pa.string()),
        ("epoch", pa.int32()),
        ("topics", _NAME_LIST),
        ("assignment", _ASSIGNED),
    ]
)


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A table that ``--what`` selects, and the internal topics from which it is built."""

    name: str
    topics: tuple[str, ...]
    schema: pa.Schema
    make_rows: Callable[[ClusterMetadata], list[Row]]

    def has_content(self, metadata: ClusterMetadata) -> bool:
        return any(getattr(metadata, _CONTENT[topic]) is not None for topic in self.topics)

    def build(self, metadata: ClusterMetadata) -> pa.Table:
        """Return the table; raise `InputError` if the input has none of the topics."""
        if not self.has_content(metadata):
            topics = " or ".join(self.topics)
            raise InputError(
                f"the input has no partition of {topics}, which the table {self.name} requires",
                hint="give the metadata log directory or the brokers' data directories",
            )
        rows = self.make_rows(metadata)
        columns = [
            pa.array([row[column.name] for row in rows], column.type) for column in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


_PRODUCERS = _parse_schema(
    "kind:string producer_id:int64 producer_epoch:int16 transactional_id:string "
    "next_producer_id:int64 broker_id:int32 broker_epoch:int64"
)

_TABLES: Final = (
    MetadataTable(
        "topics",
        (CLUSTER_METADATA_TOPIC,),
        _parse_schema(
            "topic:string topic_id:string partitions:int32 replication_factor:int32 configs",
            configs=pa.map_(pa.string(), pa.string()),
        ),
        _topic_rows,
    ),
    MetadataTable(
        "partitions",
        (CLUSTER_METADATA_TOPIC,),
        _parse_schema(
            "topic:string topic_id:string partition:int32 leader:int32 leader_epoch:int32 "
            "partition_epoch:int32 replicas:ids isr:ids adding_replicas:ids removing_replicas:ids "
            "eligible_leader_replicas:ids last_known_elr:ids directories:names "
            "leader_recovery_state:string"
        ),
        _partition_rows,
    ),
    MetadataTable(
        "brokers",
        (CLUSTER_METADATA_TOPIC,),
        _parse_schema(
            "broker_id:int32 broker_epoch:int64 incarnation_id:string endpoints:names rack:string "
            "is_fenced:bool in_controlled_shutdown:bool directories:names"
        ),
        _broker_rows,
    ),
    MetadataTable(
        "groups",
        (CONSUMER_OFFSETS_TOPIC,),
        _parse_schema(
            "group:string type:string epoch:int32 assignment_epoch:int32 protocol_type:string "
            "protocol:string leader:string state_timestamp_ms:int64 committed_offsets:int64 "
            "members",
            members=pa.list_(_MEMBER),
        ),
        _group_rows,
    ),
    MetadataTable(
        "offsets",
        (CONSUMER_OFFSETS_TOPIC,),
        _parse_schema(
            "group:string topic:string topic_id:string partition:int32 offset:int64 "
            "leader_epoch:int32 metadata:string commit_timestamp_ms:int64 "
            "expire_timestamp_ms:int64"
        ),
        _offset_rows,
    ),
    MetadataTable(
        "transactions",
        (TRANSACTION_STATE_TOPIC,),
        _parse_schema(
            "transactional_id:string state:string producer_id:int64 producer_epoch:int16 "
            "previous_producer_id:int64 next_producer_id:int64 timeout_ms:int32 "
            "start_timestamp_ms:int64 last_update_timestamp_ms:int64 partitions",
            partitions=_ASSIGNED,
        ),
        _transaction_rows,
    ),
    MetadataTable(
        "producers",
        (TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC),
        _PRODUCERS,
        _producer_rows,
    ),
    MetadataTable(
        "remote-segments",
        (REMOTE_LOG_METADATA_TOPIC,),
        _parse_schema(
            "topic:string topic_id:string partition:int32 segment_id:string state:string "
            "start_offset:int64 end_offset:int64 size_bytes:int32 max_timestamp_ms:int64 "
            "broker_id:int32 event_timestamp_ms:int64 leader_epochs custom_metadata:binary "
            "is_txn_index_empty:bool",
            leader_epochs=pa.list_(
                pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64())])
            ),
        ),
        _remote_segment_rows,
    ),
)

#: The tables by name, in display order.
METADATA_TABLES: Final = {table.name: table for table in _TABLES}

_LAG = (
    "group:string topic:string partition:int32 committed_offset:int64 log_end_offset:int64 "
    "lag_records:int64 lag_ms:int64 commit_timestamp_ms:int64 record_timestamp_ms:int64 "
)
#: Schemas of consumer lag at the log ends, and at the time of each commit. Both tables also require
#: the logs of the consumed topics.
LAG_TABLES: Final = {
    "lag": _parse_schema(_LAG + "max_timestamp_ms:int64 reason:string"),
    "lag-history": _parse_schema(_LAG + "reason:string"),
}


def read_for_table(
    paths: Sequence[str], table_name: str | None, *, max_decompressed_bytes: int
) -> ClusterMetadata:
    """Read the topics that a table needs, or all topics if `table_name` is None.

    Raises the errors of `read_metadata`.
    """
    topics = METADATA_TOPICS if table_name is None else METADATA_TABLES[table_name].topics
    return read_metadata(paths, budget=shared_budget(max_decompressed_bytes), topics=topics)

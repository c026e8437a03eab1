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

#: Attribute with the content of a topic; None if the topic was not found.
_CONTENT = {
    CLUSTER_METADATA_TOPIC: "cluster",
    CONSUMER_OFFSETS_TOPIC: "groups",
    TRANSACTION_STATE_TOPIC: "transactions",
    REMOTE_LOG_METADATA_TOPIC: "remote_segments",
}
_NAMES = pa.list_(pa.string())
#: Names of list types in schemas.
_LISTS = {"ids": pa.list_(pa.int32()), "names": _NAMES}


def _fields(one: Any) -> Row:
    """Return the fields of a slotted dataclass, keyed by name; they are the columns of tables."""
    return {name: getattr(one, name) for name in one.__slots__}


def _assigned(pairs: Iterable[tuple[str, int]]) -> list[Row]:
    return [{"topic": topic, "partition": partition} for topic, partition in pairs]


def _sorted_topics(metadata: ClusterMetadata) -> list[TopicImage]:
    topics = (metadata.cluster or ClusterImage()).topics.values()
    return sorted(topics, key=lambda topic: topic.name)


def _topics(metadata: ClusterMetadata) -> list[Row]:
    cluster = metadata.cluster or ClusterImage()
    return [
        {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": max(
                (len(one.replicas) for one in topic.partitions.values()), default=0
            ),
            "configs": sorted(cluster.topic_configs(topic.name).items()),
        }
        for topic in _sorted_topics(metadata)
    ]


def _partitions(metadata: ClusterMetadata) -> list[Row]:
    return [
        {
            **_fields(one),
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partition": number,
            "leader": None if one.leader < 0 else one.leader,
            "leader_recovery_state": _RECOVERY[one.leader_recovery_state == 1],
        }
        for topic in _sorted_topics(metadata)
        for number, one in sorted(topic.partitions.items())
    ]


def _brokers(metadata: ClusterMetadata) -> list[Row]:
    brokers = (metadata.cluster or ClusterImage()).brokers
    return [_fields(one) for _, one in sorted(brokers.items())]


def _groups(metadata: ClusterMetadata) -> list[Row]:
    committed = Counter(offset.group for offset in metadata.offsets or ())
    return [
        {
            **_fields(group),
            "group": group.name,
            "type": group.kind,
            "committed_offsets": committed[group.name],
            "members": [
                {**_fields(member), "assignment": _assigned(member.assignment)}
                for _, member in sorted(group.members.items())
            ],
        }
        for group in metadata.groups or ()
    ]


def _offsets(metadata: ClusterMetadata) -> list[Row]:
    return [_fields(one) for one in metadata.offsets or ()]


def _transactions(metadata: ClusterMetadata) -> list[Row]:
    return [
        {**_fields(one), "partitions": _assigned(one.partitions)}
        for one in metadata.transactions or ()
    ]


def _producers(metadata: ClusterMetadata) -> list[Row]:
    """Return producers of transactions, and the last allocated block of producer IDs."""
    unknown: Row = dict.fromkeys(_PRODUCERS.names)
    rows: list[Row] = [
        {
            **unknown,
            "kind": "transactional",
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "transactional_id": one.transactional_id,
        }
        for one in metadata.transactions or ()
    ]
    block = None if metadata.cluster is None else metadata.cluster.producer_ids
    if block is not None:
        first = max(block.next_producer_id - PRODUCER_ID_BLOCK, 0)
        rows.append({**unknown, **_fields(block), "kind": "block", "producer_id": first})
    return rows


def _remote_segments(metadata: ClusterMetadata) -> list[Row]:
    return [
        {
            **_fields(one),
            "topic_id": one.id.topic_id,
            "partition": one.id.partition,
            "segment_id": one.id.segment_id,
            "state": one.state.name,
            "leader_epochs": [
                {"leader_epoch": entry.epoch, "start_offset": entry.start_offset}
                for entry in one.epochs
            ],
        }
        for one in metadata.remote_segments or ()
    ]


def _schema(columns: str, **types: pa.DataType) -> pa.Schema:
    """Parse a schema of ``name:type`` words; a bare name has a type in `types`."""
    known = _LISTS | types
    fields = []
    for word in columns.split():
        name, _, kind = word.partition(":")
        own = known.get(kind or name)
        fields.append(pa.field(name, pa.type_for_alias(kind) if own is None else own))
    return pa.schema(fields)


_ASSIGNED = pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32())]))
_MEMBER = pa.struct(
    [
        ("member_id", pa.string()),
        ("instance_id", pa.string()),
        ("client_id", pa.string()),
        ("client_host", pa.string()),
        ("epoch", pa.int32()),
        ("topics", _NAMES),
        ("assignment", _ASSIGNED),
    ]
)


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A table of ``--what``, and the topics that it needs."""

    name: str
    topics: tuple[str, ...]
    schema: pa.Schema
    rows: Callable[[ClusterMetadata], list[Row]]

    def is_known(self, metadata: ClusterMetadata) -> bool:
        return any(getattr(metadata, _CONTENT[topic]) is not None for topic in self.topics)

    def of(self, metadata: ClusterMetadata) -> pa.Table:
        """Return the table; raises `InputError` if none of its topics was found."""
        if not self.is_known(metadata):
            topics = " or ".join(self.topics)
            raise InputError(
                f"the input has no partition of {topics}, which the table {self.name} requires",
                hint="give the metadata log directory or the data directories that contain it",
            )
        rows = self.rows(metadata)
        columns = [
            pa.array([row[column.name] for row in rows], column.type) for column in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


_PRODUCERS = _schema(
    "kind:string producer_id:int64 producer_epoch:int16 transactional_id:string "
    "next_producer_id:int64 broker_id:int32 broker_epoch:int64"
)

_ALL: Final = (
    MetadataTable(
        "topics",
        (CLUSTER_METADATA_TOPIC,),
        _schema(
            "topic:string topic_id:string partitions:int32 replication_factor:int32 configs",
            configs=pa.map_(pa.string(), pa.string()),
        ),
        _topics,
    ),
    MetadataTable(
        "partitions",
        (CLUSTER_METADATA_TOPIC,),
        _schema(
            "topic:string topic_id:string partition:int32 leader:int32 leader_epoch:int32 "
            "partition_epoch:int32 replicas:ids isr:ids adding_replicas:ids removing_replicas:ids "
            "eligible_leader_replicas:ids last_known_elr:ids directories:names "
            "leader_recovery_state:string"
        ),
        _partitions,
    ),
    MetadataTable(
        "brokers",
        (CLUSTER_METADATA_TOPIC,),
        _schema(
            "broker_id:int32 broker_epoch:int64 incarnation_id:string endpoints:names rack:string "
            "is_fenced:bool in_controlled_shutdown:bool directories:names"
        ),
        _brokers,
    ),
    MetadataTable(
        "groups",
        (CONSUMER_OFFSETS_TOPIC,),
        _schema(
            "group:string type:string epoch:int32 assignment_epoch:int32 protocol_type:string "
            "protocol:string leader:string state_timestamp_ms:int64 committed_offsets:int64 "
            "members",
            members=pa.list_(_MEMBER),
        ),
        _groups,
    ),
    MetadataTable(
        "offsets",
        (CONSUMER_OFFSETS_TOPIC,),
        _schema(
            "group:string topic:string topic_id:string partition:int32 offset:int64 "
            "leader_epoch:int32 metadata:string commit_timestamp_ms:int64 "
            "expire_timestamp_ms:int64"
        ),
        _offsets,
    ),
    MetadataTable(
        "transactions",
        (TRANSACTION_STATE_TOPIC,),
        _schema(
            "transactional_id:string state:string producer_id:int64 producer_epoch:int16 "
            "previous_producer_id:int64 next_producer_id:int64 timeout_ms:int32 "
            "start_timestamp_ms:int64 last_update_timestamp_ms:int64 partitions",
            partitions=_ASSIGNED,
        ),
        _transactions,
    ),
    MetadataTable(
        "producers",
        (TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC),
        _PRODUCERS,
        _producers,
    ),
    MetadataTable(
        "remote-segments",
        (REMOTE_LOG_METADATA_TOPIC,),
        _schema(
            "topic:string topic_id:string partition:int32 segment_id:string state:string "
            "start_offset:int64 end_offset:int64 size_bytes:int32 max_timestamp_ms:int64 "
            "broker_id:int32 event_timestamp_ms:int64 leader_epochs custom_metadata:binary "
            "is_txn_index_empty:bool",
            leader_epochs=pa.list_(
                pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64())])
            ),
        ),
        _remote_segments,
    ),
)

#: The tables by name, in display order.
METADATA_TABLES: Final = {table.name: table for table in _ALL}

_LAG = (
    "group:string topic:string partition:int32 committed_offset:int64 log_end_offset:int64 "
    "lag_records:int64 lag_ms:int64 commit_timestamp_ms:int64 record_timestamp_ms:int64 "
)
#: Schemas of consumer lag at the log ends, and at each commit; they also need the logs of the
#: topics.
LAG_TABLES: Final = {
    "lag": _schema(_LAG + "max_timestamp_ms:int64 reason:string"),
    "lag-history": _schema(_LAG + "reason:string"),
}


def read_for_table(
    paths: Sequence[str], what: str | None, *, max_decompressed_bytes: int
) -> ClusterMetadata:
    """Read the topics that a table needs, or all topics if `what` is None.

    Raises the errors of `read_metadata`.
    """
    topics = METADATA_TOPICS if what is None else METADATA_TABLES[what].topics
    return read_metadata(paths, budget=shared_budget(max_decompressed_bytes), topics=topics)

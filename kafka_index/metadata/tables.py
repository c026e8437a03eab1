"""The content of Kafka's own topics, as Arrow tables with declared schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.layout.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafka_index.metadata.cluster_image import PRODUCER_ID_BLOCK
from kafka_index.metadata.directory import METADATA_TOPICS, ClusterMetadata, read_metadata
from kafka_index.records.decompression import shared_budget

Row = dict[str, object]

_RECOVERY = ("recovered", "recovering")

_NAMES = pa.list_(pa.string())
#: What columns of lists are called in schemas.
_LISTS = {"ids": pa.list_(pa.int32()), "names": _NAMES}


def _fields(one: Any) -> Row:
    """Return the fields of a dataclass with slots by name: a table takes its columns from them."""
    return {name: getattr(one, name) for name in one.__slots__}


def topics_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per topic; None where it is not known."""
    if found.cluster is None:
        return None
    return [
        {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": max(
                (len(one.replicas) for one in topic.partitions.values()), default=0
            ),
            "configs": sorted(found.cluster.topic_configs(topic.name).items()),
        }
        for topic in sorted(found.cluster.topics.values(), key=lambda topic: topic.name)
    ]


def partitions_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per partition; None where it is not known."""
    if found.cluster is None:
        return None
    return [
        {
            **_fields(one),
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partition": number,
            "leader": None if one.leader < 0 else one.leader,
            "leader_recovery_state": _RECOVERY[one.leader_recovery_state == 1],
        }
        for topic in sorted(found.cluster.topics.values(), key=lambda topic: topic.name)
        for number, one in sorted(topic.partitions.items())
    ]


def brokers_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per registered broker; None where it is not known."""
    if found.cluster is None:
        return None
    return [_fields(one) for _, one in sorted(found.cluster.brokers.items())]


def groups_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per group; None where it is not known."""
    if found.groups is None:
        return None
    committed: dict[str, int] = {}
    for offset in found.offsets or []:
        committed[offset.group] = committed.get(offset.group, 0) + 1
    return [
        {
            **_fields(group),
            "group": group.name,
            "type": group.kind,
            "committed_offsets": committed.get(group.name, 0),
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "epoch": member.epoch,
                    "topics": member.topics,
                    "assignment": [
                        {"topic": topic, "partition": partition}
                        for topic, partition in member.assignment
                    ],
                }
                for _, member in sorted(group.members.items())
            ],
        }
        for group in found.groups
    ]


def offsets_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per committed offset; None where it is not known."""
    if found.offsets is None:
        return None
    return [_fields(one) for one in found.offsets]


def transactions_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per transactional id; None where it is not known."""
    if found.transactions is None:
        return None
    return [
        {
            **_fields(one),
            "partitions": [
                {"topic": topic, "partition": partition} for topic, partition in one.partitions
            ],
        }
        for one in found.transactions
    ]


def producers_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return producers of transactions, and the last block of ids that a broker was given."""
    if found.transactions is None and found.cluster is None:
        return None
    unknown: Row = dict.fromkeys(_PRODUCERS.names)
    rows: list[Row] = [
        {
            **unknown,
            "kind": "transactional",
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "transactional_id": one.transactional_id,
        }
        for one in found.transactions or []
    ]
    block = None if found.cluster is None else found.cluster.producer_ids
    if block is not None:
        rows.append(
            {
                **unknown,
                "kind": "block",
                "producer_id": max(block.next_producer_id - PRODUCER_ID_BLOCK, 0),
                "next_producer_id": block.next_producer_id,
                "broker_id": block.broker_id,
                "broker_epoch": block.broker_epoch,
            }
        )
    return rows


def remote_segments_rows(found: ClusterMetadata) -> list[Row] | None:
    """Return a row per remote segment; None where it is not known."""
    if found.remote_segments is None:
        return None
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
        for one in found.remote_segments
    ]


def _schema(columns: str, **types: pa.DataType) -> pa.Schema:
    """Return a schema: ``name:type`` words; a name alone has a type among `types`."""
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
    """A table under its name in ``--what``, and the topics that have to be read for it."""

    name: str
    topics: tuple[str, ...]
    schema: pa.Schema
    rows: Callable[[ClusterMetadata], list[Row] | None]

    def of(self, found: ClusterMetadata) -> pa.Table:
        """Return the table; raises `InputError` if none of its topics was there."""
        rows = self.rows(found)
        if rows is None:
            topics = " or ".join(self.topics)
            raise InputError(
                f"no partition of {topics} in the input, and so no {self.name}",
                hint="give the metadata log directory or the data directories that hold it",
            )
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
        topics_rows,
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
        partitions_rows,
    ),
    MetadataTable(
        "brokers",
        (CLUSTER_METADATA_TOPIC,),
        _schema(
            "broker_id:int32 broker_epoch:int64 incarnation_id:string endpoints:names rack:string "
            "is_fenced:bool in_controlled_shutdown:bool directories:names"
        ),
        brokers_rows,
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
        groups_rows,
    ),
    MetadataTable(
        "offsets",
        (CONSUMER_OFFSETS_TOPIC,),
        _schema(
            "group:string topic:string topic_id:string partition:int32 offset:int64 "
            "leader_epoch:int32 metadata:string commit_timestamp_ms:int64 "
            "expire_timestamp_ms:int64"
        ),
        offsets_rows,
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
        transactions_rows,
    ),
    MetadataTable(
        "producers",
        (TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC),
        _PRODUCERS,
        producers_rows,
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
        remote_segments_rows,
    ),
)

#: The tables by name, in the order in which they are listed.
METADATA_TABLES: Final = {table.name: table for table in _ALL}


def read_for_table(
    paths: Sequence[str], what: str | None, *, max_decompressed_bytes: int
) -> ClusterMetadata:
    """Read the topics that a table needs, by its name, or all of them for None.

    Raises the errors of `read_metadata`.
    """
    topics = METADATA_TOPICS if what is None else METADATA_TABLES[what].topics
    return read_metadata(paths, budget=shared_budget(max_decompressed_bytes), topics=topics)

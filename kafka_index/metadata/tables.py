"""The content of Kafka's own topics, as Arrow tables with declared schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.layout.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafka_index.metadata.cluster_metadata import ClusterMetadata
from kafka_index.metadata.table_rows import (
    Row,
    brokers_rows,
    groups_rows,
    offsets_rows,
    partitions_rows,
    producers_rows,
    remote_segments_rows,
    topics_rows,
    transactions_rows,
)

_IDS = pa.list_(pa.int32())
_NAMES = pa.list_(pa.string())


def _schema(columns: str, **types: pa.DataType) -> pa.Schema:
    """Return a schema: ``name:type`` words; a name alone has a type among `types`."""
    fields = []
    for word in columns.split():
        name, _, kind = word.partition(":")
        fields.append(pa.field(name, pa.type_for_alias(kind) if kind else types[name]))
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
        return pa.Table.from_pylist(rows, schema=self.schema)


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
            "partition_epoch:int32 replicas isr adding_replicas removing_replicas "
            "eligible_leader_replicas last_known_elr directories leader_recovery_state:string",
            replicas=_IDS,
            isr=_IDS,
            adding_replicas=_IDS,
            removing_replicas=_IDS,
            eligible_leader_replicas=_IDS,
            last_known_elr=_IDS,
            directories=_NAMES,
        ),
        partitions_rows,
    ),
    MetadataTable(
        "brokers",
        (CLUSTER_METADATA_TOPIC,),
        _schema(
            "broker_id:int32 broker_epoch:int64 incarnation_id:string endpoints rack:string "
            "is_fenced:bool in_controlled_shutdown:bool directories",
            endpoints=_NAMES,
            directories=_NAMES,
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
        _schema(
            "kind:string producer_id:int64 producer_epoch:int16 transactional_id:string "
            "next_producer_id:int64 broker_id:int32 broker_epoch:int64"
        ),
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

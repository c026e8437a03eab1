"""Control batches: the markers that end a transaction, and the change of a leader.

Sources: Kafka's ``MemoryRecords.withEndTransactionMarker`` and ``withLeaderChangeMessage``,
``EndTransactionMarker``, ``ControlRecordType`` and ``LeaderChangeMessage.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafka_index.errors import InputError
from kafka_index.layout.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
)
from kafka_index.records.record_batch import BatchFields, write_record_batch
from kafka_index.records.record_encoding import Record, unsigned_varint

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_KEY_VERSION = 0
_MARKER_VERSION = 0
_LEADER_CHANGE = 2
_LEADER_CHANGE_VERSION = 0
_INT32 = struct.Struct(">i")
_NO_TAGGED_FIELDS = b"\0"


def write_end_transaction_marker(
    base_offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    *,
    is_commit: bool,
    coordinator_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Write the batch of a marker that commits or aborts a producer's transaction.

    The offset is absolute and the marker's own; `coordinator_epoch` is that of the coordinator that
    decided.
    """
    kind = CONTROL_COMMIT if is_commit else CONTROL_ABORT
    fields = BatchFields(
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        is_transactional=True,
        is_control=True,
    )
    record = Record(
        timestamp_ms,
        _KEY.pack(_KEY_VERSION, kind),
        _MARKER.pack(_MARKER_VERSION, coordinator_epoch),
    )
    return write_record_batch([record], base_offset, fields)


def write_leader_change(
    base_offset: int,
    timestamp_ms: int,
    leader_epoch: int,
    leader_id: int,
    voters: Sequence[int] = (),
    granting_voters: Sequence[int] = (),
) -> bytes:
    """Write the batch that names the leader of a Raft quorum from this offset on.

    The leader epoch is 0 or more; voters and granting voters are node ids.
    """
    if leader_epoch < 0:
        raise InputError(
            "a leader change needs a leader epoch", expected="0 or more", found=leader_epoch
        )
    value = (
        struct.pack(">hi", _LEADER_CHANGE_VERSION, leader_id)
        + _compact_array(voters)
        + _compact_array(granting_voters)
        + _NO_TAGGED_FIELDS
    )
    fields = BatchFields(leader_epoch=leader_epoch, is_control=True)
    record = Record(timestamp_ms, _KEY.pack(_KEY_VERSION, _LEADER_CHANGE), value)
    return write_record_batch([record], base_offset, fields)


def _compact_array(node_ids: Sequence[int]) -> bytes:
    parts = [unsigned_varint(len(node_ids) + 1)]
    for node_id in node_ids:
        parts += (_INT32.pack(node_id), _NO_TAGGED_FIELDS)
    return b"".join(parts)

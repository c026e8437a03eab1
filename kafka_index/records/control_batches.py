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

    Parameters
    ----------
    base_offset : int
        Absolute; a leader gives the marker its own.
    timestamp_ms : int
        Of the marker.
    producer_id, producer_epoch : int
        Whose transaction ends.
    is_commit : bool
        Whether it is committed; aborted otherwise.
    coordinator_epoch : int
        Of the coordinator that decided.
    leader_epoch : int
        -1 for none.
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
    """Write the batch that says who leads a Raft quorum from here on.

    Parameters
    ----------
    base_offset, timestamp_ms, leader_epoch : int
        Of the batch; the epoch is 0 or more.
    leader_id : int
        Node id of the leader.
    voters, granting_voters : sequence of int
        Node ids of the voters, and of those that voted for it.
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

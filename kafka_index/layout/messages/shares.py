"""Records of ``__share_group_state`` (``share-coordinator/src/main/resources``).

Key and value are framed as those of ``__consumer_offsets``.
"""

from __future__ import annotations

from kafka_index.layout.message_schemas import parse_schemas

#: Keys and values, in pairs of the same record type.
SHARE_RECORDS = parse_schemas(
    """
ShareSnapshotKey 0 versions=0 flexible=none
    groupId string
    topicId uuid
    partition int32
ShareSnapshotValue 0 versions=0 flexible=0+
    snapshotEpoch int32
    stateEpoch int32
    leaderEpoch int32
    startOffset int64
    deliveryCompleteCount int32 tag=0 default=-1
    createTimestamp int64
    writeTimestamp int64
    stateBatches []
        firstOffset int64
        lastOffset int64
        deliveryState int8
        deliveryCount int16
ShareUpdateKey 1 versions=0 flexible=none
    groupId string
    topicId uuid
    partition int32
ShareUpdateValue 1 versions=0 flexible=0+
    snapshotEpoch int32
    leaderEpoch int32
    startOffset int64
    deliveryCompleteCount int32 tag=0 default=-1
    stateBatches []
        firstOffset int64
        lastOffset int64
        deliveryState int8
        deliveryCount int16
"""
)

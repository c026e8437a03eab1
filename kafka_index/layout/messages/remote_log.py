"""Records of ``__remote_log_metadata`` (``storage/src/main/resources/message``).

The value of a record is a frame version, the API key and the version of the message, all unsigned
varints, then the message (``RemoteLogMetadataSerde``).
"""

from __future__ import annotations

from kafka_index.layout.message_schemas import parse_schemas

#: By API key.
REMOTE_LOG_METADATA = parse_schemas(
    """
RemoteLogSegmentMetadataRecord 0 versions=0 flexible=0+
    remoteLogSegmentId {}
        topicIdPartition {}
            name string
            id uuid
            partition int32
        id uuid
    startOffset int64
    endOffset int64
    brokerId int32
    maxTimestampMs int64
    eventTimestampMs int64
    segmentLeaderEpochs []
        leaderEpoch int32
        offset int64
    segmentSizeInBytes int32
    customMetadata bytes nullable default=null
    remoteLogSegmentState int8
    txnIndexEmpty bool tag=0
RemoteLogSegmentMetadataUpdateRecord 1 versions=0 flexible=0+
    remoteLogSegmentId {}
        topicIdPartition {}
            name string
            id uuid
            partition int32
        id uuid
    brokerId int32
    eventTimestampMs int64
    customMetadata bytes nullable default=null
    remoteLogSegmentState int8
RemotePartitionDeleteMetadataRecord 2 versions=0 flexible=0+
    topicIdPartition {}
        name string
        id uuid
        partition int32
    brokerId int32
    eventTimestampMs int64
    remotePartitionDeleteState int8
RemoteLogSegmentMetadataSnapshotRecord 3 versions=0 flexible=0+
    segmentId uuid
    startOffset int64
    endOffset int64
    brokerId int32
    maxTimestampMs int64
    eventTimestampMs int64
    segmentLeaderEpochs []
        leaderEpoch int32
        offset int64
    segmentSizeInBytes int32
    customMetadata bytes nullable default=null
    remoteLogSegmentState int8
    txnIndexEmpty bool tag=0
"""
)

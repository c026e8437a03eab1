"""Records of KRaft's control batches (``clients/src/main/resources/common/message``).

The type of such a record is in its key; the value is the version of the message as an int16, which
is also its first field, then the message.
"""

from __future__ import annotations

from kafka_index.layout.message_schemas import parse_schemas

#: What a control record of the metadata log or of a snapshot holds.
KRAFT_CONTROL = parse_schemas(
    """
KRaftVersionRecord - versions=0 flexible=0+
    version int16
    kRaftVersion int16
LeaderChangeMessage - versions=0-1 flexible=0+
    version int16
    leaderId int32
    voters []
        voterId int32
        voterDirectoryId uuid 1+
    grantingVoters []
        voterId int32
        voterDirectoryId uuid 1+
SnapshotFooterRecord - versions=0 flexible=0+
    version int16
SnapshotHeaderRecord - versions=0 flexible=0+
    version int16
    lastContainedLogTimestamp int64
VotersRecord - versions=0 flexible=0+
    version int16
    voters []
        voterId int32
        voterDirectoryId uuid
        endpoints []
            name string
            host string
            port uint16
        kRaftVersionFeature {}
            minSupportedVersion int16
            maxSupportedVersion int16
"""
)

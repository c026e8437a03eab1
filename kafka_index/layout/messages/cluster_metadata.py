"""Records of ``__cluster_metadata`` and of ``__remote_log_metadata``, and control records of KRaft.

Their values are the version of a frame, the API key and the version of the message as unsigned
varints, then the message (``MetadataRecordSerde``, ``RemoteLogMetadataSerde``). There are no keys
in the metadata log. The type of a control record of KRaft is in its key; its value is the version
of the message as an int16, which is also its first field, then the message. Kafka has them in
``metadata/src/main/resources``, ``storage/src/main/resources/message`` and
``clients/src/main/resources/common/message``.
"""

from __future__ import annotations

from kafka_index.layout.message_schemas import parse_schemas

#: By API key.
CLUSTER_METADATA = parse_schemas(
    """
RegisterBrokerRecord 0 versions=0-4 flexible=0+
    brokerId int32
    isMigratingZkBroker bool 2+
    incarnationId uuid
    brokerEpoch int64
    endPoints []
        name string
        host string
        port uint16
        securityProtocol int16
    features []
        name string
        minSupportedVersion int16
        maxSupportedVersion int16
    rack string nullable
    fenced bool default=true
    inControlledShutdown bool 1+
    logDirs []uuid 3+ tag=0
    cordonedLogDirs []uuid 4+ nullable tag=1 default=null
UnregisterBrokerRecord 1 versions=0 flexible=0+
    brokerId int32
    brokerEpoch int64
TopicRecord 2 versions=0 flexible=0+
    name string
    topicId uuid
PartitionRecord 3 versions=0-2 flexible=0+
    partitionId int32 default=-1
    topicId uuid
    replicas []int32
    isr []int32
    removingReplicas []int32
    addingReplicas []int32
    leader int32 default=-1
    leaderRecoveryState int8 tag=0
    leaderEpoch int32 default=-1
    partitionEpoch int32 default=-1
    directories []uuid 1+
    eligibleLeaderReplicas []int32 2+ nullable tag=1 default=null
    lastKnownElr []int32 2+ nullable tag=2 default=null
ConfigRecord 4 versions=0 flexible=0+
    resourceType int8
    resourceName string
    name string
    value string nullable
PartitionChangeRecord 5 versions=0-2 flexible=0+
    partitionId int32 default=-1
    topicId uuid
    isr []int32 nullable tag=0 default=null
    leader int32 tag=1 default=-2
    replicas []int32 nullable tag=2 default=null
    removingReplicas []int32 nullable tag=3 default=null
    addingReplicas []int32 nullable tag=4 default=null
    leaderRecoveryState int8 tag=5 default=-1
    directories []uuid 1+ nullable tag=8 default=null
    eligibleLeaderReplicas []int32 2+ nullable tag=6 default=null
    lastKnownElr []int32 2+ nullable tag=7 default=null
FenceBrokerRecord 7 versions=0 flexible=0+
    id int32
    epoch int64
UnfenceBrokerRecord 8 versions=0 flexible=0+
    id int32
    epoch int64
RemoveTopicRecord 9 versions=0 flexible=0+
    topicId uuid
DelegationTokenRecord 10 versions=0 flexible=0+
    owner string
    requester string
    renewers []string
    issueTimestamp int64
    maxTimestamp int64
    expirationTimestamp int64
    tokenId string
UserScramCredentialRecord 11 versions=0 flexible=0+
    name string
    mechanism int8
    salt bytes
    storedKey bytes
    serverKey bytes
    iterations int32
FeatureLevelRecord 12 versions=0 flexible=0+
    name string
    featureLevel int16
ClientQuotaRecord 14 versions=0 flexible=0+
    entity []
        entityType string
        entityName string nullable
    key string
    value float64
    remove bool
ProducerIdsRecord 15 versions=0 flexible=0+
    brokerId int32
    brokerEpoch int64 default=-1
    nextProducerId int64
BrokerRegistrationChangeRecord 17 versions=0-3 flexible=0+
    brokerId int32
    brokerEpoch int64
    fenced int8 tag=0
    inControlledShutdown int8 1+ tag=1
    logDirs []uuid 2+ tag=2
    cordonedLogDirs []uuid 3+ nullable tag=3 default=null
AccessControlEntryRecord 18 versions=0 flexible=0+
    id uuid
    resourceType int8
    resourceName string
    patternType int8
    principal string
    host string
    operation int8
    permissionType int8
RemoveAccessControlEntryRecord 19 versions=0 flexible=0+
    id uuid
NoOpRecord 20 versions=0 flexible=0+
ZkMigrationStateRecord 21 versions=0 flexible=0+
    zkMigrationState int8
RemoveUserScramCredentialRecord 22 versions=0 flexible=0+
    name string
    mechanism int8
BeginTransactionRecord 23 versions=0 flexible=0+
    name string nullable tag=0 default=null
EndTransactionRecord 24 versions=0 flexible=0+
AbortTransactionRecord 25 versions=0 flexible=0+
    reason string nullable tag=0 default=null
RemoveDelegationTokenRecord 26 versions=0 flexible=0+
    tokenId string
RegisterControllerRecord 27 versions=0 flexible=0+
    controllerId int32
    incarnationId uuid
    zkMigrationReady bool
    endPoints []
        name string
        host string
        port uint16
        securityProtocol int16
    features []
        name string
        minSupportedVersion int16
        maxSupportedVersion int16
ClearElrRecord 28 versions=0 flexible=0+
    topicName string
"""
)


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

"""Schemas of the records of Kafka's internal topics, release 4.3.1.

Values in ``__cluster_metadata`` and ``__remote_log_metadata`` consist of a frame version, an API
key and a message version, all unsigned varints, and the message (``MetadataRecordSerde``,
``RemoteLogMetadataSerde``). Records of the metadata log have no keys. The key of a KRaft control
record contains its type. Its value is the message version as an int16, which is also its first
field, and the message.

The key of a coordinator record (groups, share state, transactions) is its type as an int16, and the
key message in version 0. The value is its version as an int16, and the value message
(``CoordinatorRecordSerde``). A null value is a tombstone.

Source: ``src/main/resources`` of ``metadata``, ``storage``, ``group-coordinator``,
``share-coordinator`` and ``transaction-coordinator``; of ``clients`` the control records, and
``ConsumerProtocol`` for members of classic groups.
"""

from __future__ import annotations

from kafka_index.core.format.message_schemas import parse_schemas

#: Records of the metadata log, in the order of their API keys.
CLUSTER_METADATA = parse_schemas(
    """
BrokerEndpoint {}
    name string, host string, port uint16, securityProtocol int16
BrokerFeature {}
    name string, minSupportedVersion int16, maxSupportedVersion int16
RegisterBrokerRecord 0 versions=0-4 flexible=0+
    brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch int64,
    endPoints []BrokerEndpoint, features []BrokerFeature, rack string nullable,
    fenced bool default=true, inControlledShutdown bool 1+, logDirs []uuid 3+ tag=0,
    cordonedLogDirs []uuid 4+ nullable tag=1 default=null
UnregisterBrokerRecord 1 versions=0 flexible=0+
    brokerId int32, brokerEpoch int64
TopicRecord 2 versions=0 flexible=0+
    name string, topicId uuid
PartitionRecord 3 versions=0-2 flexible=0+
    partitionId int32 default=-1, topicId uuid, replicas []int32, isr []int32,
    removingReplicas []int32, addingReplicas []int32, leader int32 default=-1,
    leaderRecoveryState int8 tag=0, leaderEpoch int32 default=-1, partitionEpoch int32 default=-1,
    directories []uuid 1+, eligibleLeaderReplicas []int32 2+ nullable tag=1 default=null,
    lastKnownElr []int32 2+ nullable tag=2 default=null
ConfigRecord 4 versions=0 flexible=0+
    resourceType int8, resourceName string, name string, value string nullable
PartitionChangeRecord 5 versions=0-2 flexible=0+
    partitionId int32 default=-1, topicId uuid, isr []int32 nullable tag=0 default=null,
    leader int32 tag=1 default=-2, replicas []int32 nullable tag=2 default=null,
    removingReplicas []int32 nullable tag=3 default=null,
    addingReplicas []int32 nullable tag=4 default=null, leaderRecoveryState int8 tag=5 default=-1,
    directories []uuid 1+ nullable tag=8 default=null,
    eligibleLeaderReplicas []int32 2+ nullable tag=6 default=null,
    lastKnownElr []int32 2+ nullable tag=7 default=null
FenceBrokerRecord 7 versions=0 flexible=0+
    id int32, epoch int64
UnfenceBrokerRecord 8 versions=0 flexible=0+
    id int32, epoch int64
RemoveTopicRecord 9 versions=0 flexible=0+
    topicId uuid
DelegationTokenRecord 10 versions=0 flexible=0+
    owner string, requester string, renewers []string, issueTimestamp int64, maxTimestamp int64,
    expirationTimestamp int64, tokenId string
UserScramCredentialRecord 11 versions=0 flexible=0+
    name string, mechanism int8, salt bytes, storedKey bytes, serverKey bytes, iterations int32
FeatureLevelRecord 12 versions=0 flexible=0+
    name string, featureLevel int16
ClientQuotaRecord 14 versions=0 flexible=0+
    entity []
        entityType string, entityName string nullable
    key string, value float64, remove bool
ProducerIdsRecord 15 versions=0 flexible=0+
    brokerId int32, brokerEpoch int64 default=-1, nextProducerId int64
BrokerRegistrationChangeRecord 17 versions=0-3 flexible=0+
    brokerId int32, brokerEpoch int64, fenced int8 tag=0, inControlledShutdown int8 1+ tag=1,
    logDirs []uuid 2+ tag=2, cordonedLogDirs []uuid 3+ nullable tag=3 default=null
AccessControlEntryRecord 18 versions=0 flexible=0+
    id uuid, resourceType int8, resourceName string, patternType int8, principal string,
    host string, operation int8, permissionType int8
RemoveAccessControlEntryRecord 19 versions=0 flexible=0+
    id uuid
NoOpRecord 20 versions=0 flexible=0+
ZkMigrationStateRecord 21 versions=0 flexible=0+
    zkMigrationState int8
RemoveUserScramCredentialRecord 22 versions=0 flexible=0+
    name string, mechanism int8
BeginTransactionRecord 23 versions=0 flexible=0+
    name string nullable tag=0 default=null
EndTransactionRecord 24 versions=0 flexible=0+
AbortTransactionRecord 25 versions=0 flexible=0+
    reason string nullable tag=0 default=null
RemoveDelegationTokenRecord 26 versions=0 flexible=0+
    tokenId string
RegisterControllerRecord 27 versions=0 flexible=0+
    controllerId int32, incarnationId uuid, zkMigrationReady bool, endPoints []BrokerEndpoint,
    features []BrokerFeature
ClearElrRecord 28 versions=0 flexible=0+
    topicName string
"""
)


#: Control records of the metadata log and of snapshots.
KRAFT_CONTROL = parse_schemas(
    """
Voter {}
    voterId int32, voterDirectoryId uuid 1+
KRaftVersionRecord - versions=0 flexible=0+
    version int16, kRaftVersion int16
LeaderChangeMessage - versions=0-1 flexible=0+
    version int16, leaderId int32, voters []Voter, grantingVoters []Voter
SnapshotFooterRecord - versions=0 flexible=0+
    version int16
SnapshotHeaderRecord - versions=0 flexible=0+
    version int16, lastContainedLogTimestamp int64
VotersRecord - versions=0 flexible=0+
    version int16, voters []
        voterId int32, voterDirectoryId uuid, endpoints []
            name string, host string, port uint16
        kRaftVersionFeature {}
            minSupportedVersion int16, maxSupportedVersion int16
"""
)


#: Remote log metadata events, in the order of their API keys.
REMOTE_LOG_METADATA = parse_schemas(
    """
TopicIdPartitionEntry {}
    name string, id uuid, partition int32
RemoteLogSegmentIdEntry {}
    topicIdPartition TopicIdPartitionEntry, id uuid
SegmentLeaderEpochEntry {}
    leaderEpoch int32, offset int64
RemoteLogSegmentMetadataRecord 0 versions=0 flexible=0+
    remoteLogSegmentId RemoteLogSegmentIdEntry, startOffset int64, endOffset int64, brokerId int32,
    maxTimestampMs int64, eventTimestampMs int64, segmentLeaderEpochs []SegmentLeaderEpochEntry,
    segmentSizeInBytes int32, customMetadata bytes nullable default=null, remoteLogSegmentState int8
    txnIndexEmpty bool tag=0
RemoteLogSegmentMetadataUpdateRecord 1 versions=0 flexible=0+
    remoteLogSegmentId RemoteLogSegmentIdEntry, brokerId int32, eventTimestampMs int64,
    customMetadata bytes nullable default=null, remoteLogSegmentState int8
RemotePartitionDeleteMetadataRecord 2 versions=0 flexible=0+
    topicIdPartition TopicIdPartitionEntry, brokerId int32, eventTimestampMs int64,
    remotePartitionDeleteState int8
RemoteLogSegmentMetadataSnapshotRecord 3 versions=0 flexible=0+
    segmentId uuid, startOffset int64, endOffset int64, brokerId int32, maxTimestampMs int64,
    eventTimestampMs int64, segmentLeaderEpochs []SegmentLeaderEpochEntry, segmentSizeInBytes int32,
    customMetadata bytes nullable default=null, remoteLogSegmentState int8, txnIndexEmpty bool tag=0
"""
)


#: Records of ``__consumer_offsets``: for each record type, the schemas of key and value.
GROUP_RECORDS = parse_schemas(
    """
TopicPartitions {}
    topicId uuid, partitions []int32
AssignedPartitions {}
    topicId uuid, partitions []int32, assignmentEpochs []int32 nullable tag=0
TopicPartitionsInfo {}
    topicId uuid, topicName string, partitions []int32
TaskIds {}
    subtopologyId string, partitions []int32
AssignedTasks {}
    subtopologyId string, partitions []int32, assignmentEpochs []int32 nullable tag=0
KeyValue {}
    key string, value string
TopicInfo {}
    name string, partitions int32, replicationFactor int16, topicConfigs []KeyValue
LegacyOffsetCommitKey 0 versions=0 flexible=none
    group string, topic string, partition int32
LegacyOffsetCommitValue 0 versions=0 flexible=none
    offset int64, metadata string, commitTimestamp int64
OffsetCommitKey 1 versions=0 flexible=none
    group string, topic string, partition int32
OffsetCommitValue 1 versions=0-4 flexible=4+
    offset int64, leaderEpoch int32 3+ default=-1, metadata string, commitTimestamp int64,
    expireTimestamp int64 1 default=-1, topicId uuid 4+ tag=0
GroupMetadataKey 2 versions=0 flexible=none
    group string
GroupMetadataValue 2 versions=0-4 flexible=4+
    protocolType string, generation int32, protocol string nullable, leader string nullable,
    currentStateTimestamp int64 2+ default=-1, members []
        memberId string, groupInstanceId string 3+ nullable default=null, clientId string,
        clientHost string, rebalanceTimeout int32 1+ default=-1, sessionTimeout int32,
        subscription bytes, assignment bytes
ConsumerGroupMetadataKey 3 versions=0 flexible=none
    groupId string
ConsumerGroupMetadataValue 3 versions=0 flexible=0+
    epoch int32, metadataHash int64 tag=0
ConsumerGroupPartitionMetadataKey 4 versions=0 flexible=none
    groupId string
ConsumerGroupPartitionMetadataValue 4 versions=0 flexible=0+
    topics []
        topicId uuid, topicName string, numPartitions int32, partitionMetadata []
            partition int32, racks []string
ConsumerGroupMemberMetadataKey 5 versions=0 flexible=none
    groupId string, memberId string
ConsumerGroupMemberMetadataValue 5 versions=0 flexible=0+
    instanceId string nullable, rackId string nullable, clientId string, clientHost string,
    subscribedTopicNames []string, subscribedTopicRegex string nullable,
    rebalanceTimeoutMs int32 default=-1, serverAssignor string nullable,
    classicMemberMetadata {} nullable tag=0
        sessionTimeoutMs int32, supportedProtocols []
            name string, metadata bytes
ConsumerGroupTargetAssignmentMetadataKey 6 versions=0 flexible=none
    groupId string
ConsumerGroupTargetAssignmentMetadataValue 6 versions=0 flexible=0+
    assignmentEpoch int32, assignmentTimestamp int64 tag=0
ConsumerGroupTargetAssignmentMemberKey 7 versions=0 flexible=none
    groupId string, memberId string
ConsumerGroupTargetAssignmentMemberValue 7 versions=0 flexible=0+
    topicPartitions []TopicPartitions
ConsumerGroupCurrentMemberAssignmentKey 8 versions=0 flexible=none
    groupId string, memberId string
ConsumerGroupCurrentMemberAssignmentValue 8 versions=0 flexible=0+
    memberEpoch int32, previousMemberEpoch int32, state int8,
    assignedPartitions []AssignedPartitions, partitionsPendingRevocation []AssignedPartitions
ShareGroupMemberMetadataKey 10 versions=0 flexible=none
    groupId string, memberId string
ShareGroupMemberMetadataValue 10 versions=0 flexible=0+
    rackId string nullable, clientId string, clientHost string, subscribedTopicNames []string
ShareGroupMetadataKey 11 versions=0 flexible=none
    groupId string
ShareGroupMetadataValue 11 versions=0 flexible=0+
    epoch int32, metadataHash int64
ShareGroupTargetAssignmentMetadataKey 12 versions=0 flexible=none
    groupId string
ShareGroupTargetAssignmentMetadataValue 12 versions=0 flexible=0+
    assignmentEpoch int32, assignmentTimestamp int64 tag=0
ShareGroupTargetAssignmentMemberKey 13 versions=0 flexible=none
    groupId string, memberId string
ShareGroupTargetAssignmentMemberValue 13 versions=0 flexible=0+
    topicPartitions []TopicPartitions
ShareGroupCurrentMemberAssignmentKey 14 versions=0 flexible=none
    groupId string, memberId string
ShareGroupCurrentMemberAssignmentValue 14 versions=0 flexible=0+
    memberEpoch int32, previousMemberEpoch int32, state int8, assignedPartitions []TopicPartitions
ShareGroupStatePartitionMetadataKey 15 versions=0 flexible=none
    groupId string
ShareGroupStatePartitionMetadataValue 15 versions=0 flexible=0+
    initializingTopics []TopicPartitionsInfo, initializedTopics []TopicPartitionsInfo,
    deletingTopics []
        topicId uuid, topicName string
ConsumerGroupRegularExpressionKey 16 versions=0 flexible=none
    groupId string, regularExpression string
ConsumerGroupRegularExpressionValue 16 versions=0 flexible=0+
    topics []string, version int64, timestamp int64
StreamsGroupMetadataKey 17 versions=0 flexible=none
    groupId string
StreamsGroupMetadataValue 17 versions=0 flexible=0+
    epoch int32, metadataHash int64, validatedTopologyEpoch int32 tag=0 default=-1,
    lastAssignmentConfigs []KeyValue nullable tag=1
StreamsGroupMemberMetadataKey 19 versions=0 flexible=none
    groupId string, memberId string
StreamsGroupMemberMetadataValue 19 versions=0 flexible=0+
    instanceId string nullable, rackId string nullable, clientId string, clientHost string,
    rebalanceTimeoutMs int32 default=-1, topologyEpoch int32, processId string,
    userEndpoint {} nullable default=null
        host string, port uint16
    clientTags []KeyValue
StreamsGroupTargetAssignmentMetadataKey 20 versions=0 flexible=none
    groupId string
StreamsGroupTargetAssignmentMetadataValue 20 versions=0 flexible=0+
    assignmentEpoch int32, assignmentTimestamp int64 tag=0
StreamsGroupTargetAssignmentMemberKey 21 versions=0 flexible=none
    groupId string, memberId string
StreamsGroupTargetAssignmentMemberValue 21 versions=0 flexible=0+
    activeTasks []TaskIds, standbyTasks []TaskIds, warmupTasks []TaskIds
StreamsGroupCurrentMemberAssignmentKey 22 versions=0 flexible=none
    groupId string, memberId string
StreamsGroupCurrentMemberAssignmentValue 22 versions=0 flexible=0+
    memberEpoch int32, previousMemberEpoch int32, state int8, activeTasks []AssignedTasks,
    standbyTasks []AssignedTasks, warmupTasks []AssignedTasks,
    activeTasksPendingRevocation []AssignedTasks, standbyTasksPendingRevocation []AssignedTasks,
    warmupTasksPendingRevocation []AssignedTasks
StreamsGroupTopologyKey 23 versions=0 flexible=none
    groupId string
StreamsGroupTopologyValue 23 versions=0 flexible=0+
    epoch int32, subtopologies []
        subtopologyId string, sourceTopics []string, sourceTopicRegex []string,
        stateChangelogTopics []TopicInfo, repartitionSinkTopics []string,
        repartitionSourceTopics []TopicInfo, copartitionGroups []
            sourceTopics []int16, sourceTopicRegex []int16, repartitionSourceTopics []int16
"""
)

#: Subscription and assignment of a member of a classic group: an int16 version, the message.
CONSUMER_PROTOCOL = parse_schemas(
    """
ConsumerProtocolAssignment - versions=0-3 flexible=none
    assignedPartitions []
        topic string, partitions []int32
    userData bytes nullable default=null
ConsumerProtocolSubscription - versions=0-3 flexible=none
    topics []string, userData bytes nullable default=null, ownedPartitions [] 1+
        topic string 1+, partitions []int32 1+
    generationId int32 2+ default=-1, rackId string 3+ nullable default=null
"""
)


#: Records of ``__share_group_state``: for each record type, the schemas of key and value.
SHARE_RECORDS = parse_schemas(
    """
StateBatch {}
    firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16
ShareSnapshotKey 0 versions=0 flexible=none
    groupId string, topicId uuid, partition int32
ShareSnapshotValue 0 versions=0 flexible=0+
    snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64,
    deliveryCompleteCount int32 tag=0 default=-1, createTimestamp int64, writeTimestamp int64,
    stateBatches []StateBatch
ShareUpdateKey 1 versions=0 flexible=none
    groupId string, topicId uuid, partition int32
ShareUpdateValue 1 versions=0 flexible=0+
    snapshotEpoch int32, leaderEpoch int32, startOffset int64,
    deliveryCompleteCount int32 tag=0 default=-1, stateBatches []StateBatch
"""
)


#: Records of ``__transaction_state``: the schemas of key and value of its only record type.
TRANSACTION_RECORDS = parse_schemas(
    """
TransactionLogKey 0 versions=0 flexible=none
    transactionalId string
TransactionLogValue 0 versions=0-1 flexible=1+
    producerId int64, previousProducerId int64 1+ tag=0 default=-1,
    nextProducerId int64 1+ tag=1 default=-1, producerEpoch int16,
    nextProducerEpoch int16 1+ tag=3 default=-1, transactionTimeoutMs int32, transactionStatus int8,
    transactionPartitions [] nullable
        topic string, partitionIds []int32
    transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64,
    clientTransactionVersion int16 1+ tag=2
"""
)

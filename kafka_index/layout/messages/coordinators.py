"""Records of coordinators: groups of any kind, share state and transactions.

The key of a record is the record type as an int16, then the key message in version 0; the value is
its version as an int16, then the value message (``CoordinatorRecordSerde``). A null value deletes.
Source: ``src/main/resources`` of ``group-coordinator``, ``share-coordinator`` and
``transaction-coordinator``, and for the members of classic groups ``ConsumerProtocol`` in
``clients``.
"""

from __future__ import annotations

from kafka_index.layout.message_schemas import parse_schemas

#: Keys and values, in pairs of the same record type.
GROUP_RECORDS = parse_schemas(
    """
LegacyOffsetCommitKey 0 versions=0 flexible=none
    group string
    topic string
    partition int32
LegacyOffsetCommitValue 0 versions=0 flexible=none
    offset int64
    metadata string
    commitTimestamp int64
OffsetCommitKey 1 versions=0 flexible=none
    group string
    topic string
    partition int32
OffsetCommitValue 1 versions=0-4 flexible=4+
    offset int64
    leaderEpoch int32 3+ default=-1
    metadata string
    commitTimestamp int64
    expireTimestamp int64 1 default=-1
    topicId uuid 4+ tag=0
GroupMetadataKey 2 versions=0 flexible=none
    group string
GroupMetadataValue 2 versions=0-4 flexible=4+
    protocolType string
    generation int32
    protocol string nullable
    leader string nullable
    currentStateTimestamp int64 2+ default=-1
    members []
        memberId string
        groupInstanceId string 3+ nullable default=null
        clientId string
        clientHost string
        rebalanceTimeout int32 1+ default=-1
        sessionTimeout int32
        subscription bytes
        assignment bytes
ConsumerGroupMetadataKey 3 versions=0 flexible=none
    groupId string
ConsumerGroupMetadataValue 3 versions=0 flexible=0+
    epoch int32
    metadataHash int64 tag=0
ConsumerGroupPartitionMetadataKey 4 versions=0 flexible=none
    groupId string
ConsumerGroupPartitionMetadataValue 4 versions=0 flexible=0+
    topics []
        topicId uuid
        topicName string
        numPartitions int32
        partitionMetadata []
            partition int32
            racks []string
ConsumerGroupMemberMetadataKey 5 versions=0 flexible=none
    groupId string
    memberId string
ConsumerGroupMemberMetadataValue 5 versions=0 flexible=0+
    instanceId string nullable
    rackId string nullable
    clientId string
    clientHost string
    subscribedTopicNames []string
    subscribedTopicRegex string nullable
    rebalanceTimeoutMs int32 default=-1
    serverAssignor string nullable
    classicMemberMetadata {} nullable tag=0
        sessionTimeoutMs int32
        supportedProtocols []
            name string
            metadata bytes
ConsumerGroupTargetAssignmentMetadataKey 6 versions=0 flexible=none
    groupId string
ConsumerGroupTargetAssignmentMetadataValue 6 versions=0 flexible=0+
    assignmentEpoch int32
    assignmentTimestamp int64 tag=0
ConsumerGroupTargetAssignmentMemberKey 7 versions=0 flexible=none
    groupId string
    memberId string
ConsumerGroupTargetAssignmentMemberValue 7 versions=0 flexible=0+
    topicPartitions []
        topicId uuid
        partitions []int32
ConsumerGroupCurrentMemberAssignmentKey 8 versions=0 flexible=none
    groupId string
    memberId string
ConsumerGroupCurrentMemberAssignmentValue 8 versions=0 flexible=0+
    memberEpoch int32
    previousMemberEpoch int32
    state int8
    assignedPartitions []
        topicId uuid
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
    partitionsPendingRevocation []
        topicId uuid
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
ShareGroupMemberMetadataKey 10 versions=0 flexible=none
    groupId string
    memberId string
ShareGroupMemberMetadataValue 10 versions=0 flexible=0+
    rackId string nullable
    clientId string
    clientHost string
    subscribedTopicNames []string
ShareGroupMetadataKey 11 versions=0 flexible=none
    groupId string
ShareGroupMetadataValue 11 versions=0 flexible=0+
    epoch int32
    metadataHash int64
ShareGroupTargetAssignmentMetadataKey 12 versions=0 flexible=none
    groupId string
ShareGroupTargetAssignmentMetadataValue 12 versions=0 flexible=0+
    assignmentEpoch int32
    assignmentTimestamp int64 tag=0
ShareGroupTargetAssignmentMemberKey 13 versions=0 flexible=none
    groupId string
    memberId string
ShareGroupTargetAssignmentMemberValue 13 versions=0 flexible=0+
    topicPartitions []
        topicId uuid
        partitions []int32
ShareGroupCurrentMemberAssignmentKey 14 versions=0 flexible=none
    groupId string
    memberId string
ShareGroupCurrentMemberAssignmentValue 14 versions=0 flexible=0+
    memberEpoch int32
    previousMemberEpoch int32
    state int8
    assignedPartitions []
        topicId uuid
        partitions []int32
ShareGroupStatePartitionMetadataKey 15 versions=0 flexible=none
    groupId string
ShareGroupStatePartitionMetadataValue 15 versions=0 flexible=0+
    initializingTopics []
        topicId uuid
        topicName string
        partitions []int32
    initializedTopics []
        topicId uuid
        topicName string
        partitions []int32
    deletingTopics []
        topicId uuid
        topicName string
ConsumerGroupRegularExpressionKey 16 versions=0 flexible=none
    groupId string
    regularExpression string
ConsumerGroupRegularExpressionValue 16 versions=0 flexible=0+
    topics []string
    version int64
    timestamp int64
StreamsGroupMetadataKey 17 versions=0 flexible=none
    groupId string
StreamsGroupMetadataValue 17 versions=0 flexible=0+
    epoch int32
    metadataHash int64
    validatedTopologyEpoch int32 tag=0 default=-1
    lastAssignmentConfigs [] nullable tag=1
        key string
        value string
StreamsGroupMemberMetadataKey 19 versions=0 flexible=none
    groupId string
    memberId string
StreamsGroupMemberMetadataValue 19 versions=0 flexible=0+
    instanceId string nullable
    rackId string nullable
    clientId string
    clientHost string
    rebalanceTimeoutMs int32 default=-1
    topologyEpoch int32
    processId string
    userEndpoint {} nullable default=null
        host string
        port uint16
    clientTags []
        key string
        value string
StreamsGroupTargetAssignmentMetadataKey 20 versions=0 flexible=none
    groupId string
StreamsGroupTargetAssignmentMetadataValue 20 versions=0 flexible=0+
    assignmentEpoch int32
    assignmentTimestamp int64 tag=0
StreamsGroupTargetAssignmentMemberKey 21 versions=0 flexible=none
    groupId string
    memberId string
StreamsGroupTargetAssignmentMemberValue 21 versions=0 flexible=0+
    activeTasks []
        subtopologyId string
        partitions []int32
    standbyTasks []
        subtopologyId string
        partitions []int32
    warmupTasks []
        subtopologyId string
        partitions []int32
StreamsGroupCurrentMemberAssignmentKey 22 versions=0 flexible=none
    groupId string
    memberId string
StreamsGroupCurrentMemberAssignmentValue 22 versions=0 flexible=0+
    memberEpoch int32
    previousMemberEpoch int32
    state int8
    activeTasks []
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
    standbyTasks []
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
    warmupTasks []
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
    activeTasksPendingRevocation []
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
    standbyTasksPendingRevocation []
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
    warmupTasksPendingRevocation []
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32 nullable tag=0
StreamsGroupTopologyKey 23 versions=0 flexible=none
    groupId string
StreamsGroupTopologyValue 23 versions=0 flexible=0+
    epoch int32
    subtopologies []
        subtopologyId string
        sourceTopics []string
        sourceTopicRegex []string
        stateChangelogTopics []
            name string
            partitions int32
            replicationFactor int16
            topicConfigs []
                key string
                value string
        repartitionSinkTopics []string
        repartitionSourceTopics []
            name string
            partitions int32
            replicationFactor int16
            topicConfigs []
                key string
                value string
        copartitionGroups []
            sourceTopics []int16
            sourceTopicRegex []int16
            repartitionSourceTopics []int16
"""
)

#: Subscription and assignment of a member of a classic group: an int16 version, the message.
CONSUMER_PROTOCOL = parse_schemas(
    """
ConsumerProtocolAssignment - versions=0-3 flexible=none
    assignedPartitions []
        topic string
        partitions []int32
    userData bytes nullable default=null
ConsumerProtocolSubscription - versions=0-3 flexible=none
    topics []string
    userData bytes nullable default=null
    ownedPartitions [] 1+
        topic string 1+
        partitions []int32 1+
    generationId int32 2+ default=-1
    rackId string 3+ nullable default=null
"""
)


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


#: Key and value of the only record type.
TRANSACTION_RECORDS = parse_schemas(
    """
TransactionLogKey 0 versions=0 flexible=none
    transactionalId string
TransactionLogValue 0 versions=0-1 flexible=1+
    producerId int64
    previousProducerId int64 1+ tag=0 default=-1
    nextProducerId int64 1+ tag=1 default=-1
    producerEpoch int16
    nextProducerEpoch int16 1+ tag=3 default=-1
    transactionTimeoutMs int32
    transactionStatus int8
    transactionPartitions [] nullable
        topic string
        partitionIds []int32
    transactionLastUpdateTimestampMs int64
    transactionStartTimestampMs int64
    clientTransactionVersion int16 1+ tag=2
"""
)

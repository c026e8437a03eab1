"""Records of ``__transaction_state`` (``transaction-coordinator/src/main/resources``).

Key and value are framed as those of ``__consumer_offsets``.
"""

from __future__ import annotations

from kafka_index.layout.message_schemas import parse_schemas

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

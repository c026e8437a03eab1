"""Transactions, from the records of ``__transaction_state``.

Source: Kafka's ``TransactionStateManager.loadTransactionMetadata`` and ``TransactionLog``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafka_index.errors import CorruptRecordError
from kafka_index.layout.message_fields import Struct
from kafka_index.metadata.decoding import TRANSACTION_CODEC
from kafka_index.metadata.topic_log import LogRecord, TopicState

#: The states of a transaction by their numbers (``TransactionState``).
TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The last state of a transactional id; ids, epochs and times that are not there are None."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    previous_producer_id: int | None
    next_producer_id: int | None
    timeout_ms: int
    start_timestamp_ms: int | None
    last_update_timestamp_ms: int
    partitions: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, key: Struct, value: Struct) -> Transaction:
        """Return the transaction of a record."""
        state = value.integer("transactionStatus")
        known = 0 <= state < len(TRANSACTION_STATES)
        return cls(
            key.text("transactionalId"),
            TRANSACTION_STATES[state] if known else str(state),
            value.integer("producerId"),
            value.integer("producerEpoch"),
            _known(value.integer("previousProducerId")),
            _known(value.integer("nextProducerId")),
            value.integer("transactionTimeoutMs"),
            _known(value.integer("transactionStartTimestampMs")),
            value.integer("transactionLastUpdateTimestampMs"),
            tuple(
                (topic.text("topic"), partition)
                for topic in value.structs("transactionPartitions")
                for partition in topic.integers("partitionIds")
            ),
        )


class TransactionLogState(TopicState):
    """Collects the records of ``__transaction_state``."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[bytes, bytes] = {}

    def add(self, record: LogRecord) -> None:
        """Apply a record; raises `CorruptRecordError` if its key cannot be read."""
        if record.is_control:
            return
        if record.key is None:
            raise CorruptRecordError("the record has no key")
        record_type = TRANSACTION_CODEC.record_type(record.key)
        if not self._is_known(lambda: TRANSACTION_CODEC.name_of(record_type)):
            return
        if record.value is None:
            self._kept.pop(record.key, None)
        else:
            self._kept[record.key] = record.value

    def transactions(self, faults: list[CorruptRecordError]) -> list[Transaction]:
        """Return the transactions, sorted by id; records that cannot be read become `faults`."""
        found = []
        for key, value in self._kept.items():
            try:
                decoded = TRANSACTION_CODEC.decode(key, value)
                if decoded.key is not None and decoded.value is not None:
                    found.append(Transaction.of(decoded.key, decoded.value))
            except CorruptRecordError as error:
                faults.append(error)
        return sorted(found, key=lambda one: one.transactional_id)


def _known(value: int) -> int | None:
    return None if value < 0 else value

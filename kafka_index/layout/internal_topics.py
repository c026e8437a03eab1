"""The topics that Kafka keeps its own state in."""

from __future__ import annotations

from typing import Final

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"

#: All of them: ``Topic.INTERNAL_TOPICS``, and those of metadata.
INTERNAL_TOPICS: Final = frozenset(
    {
        CLUSTER_METADATA_TOPIC,
        CONSUMER_OFFSETS_TOPIC,
        REMOTE_LOG_METADATA_TOPIC,
        SHARE_GROUP_STATE_TOPIC,
        TRANSACTION_STATE_TOPIC,
    }
)

#: Those that the broker creates with ``cleanup.policy=compact``
#: (``GroupCoordinatorService.groupMetadataTopicConfigs``,
#: ``TransactionStateManager.transactionTopicConfigs``); the others are created with ``delete``.
COMPACTED_INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})

#: What the names of all of them begin with, and those of some topics of users.
INTERNAL_PREFIX: Final = "__"

#: The directory of the metadata log.
METADATA_LOG: Final = f"{CLUSTER_METADATA_TOPIC}-0"

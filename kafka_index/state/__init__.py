"""State across the segments of a partition: producers, transactions, leader epochs, snapshots."""

from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.producer_append import AppendOrigin

__all__ = ["AppendOrigin", "LeaderEpochCache"]

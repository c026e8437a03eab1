"""Tiered partitions: the union of remote segments, their states, and what is still local."""

from kafka_index.tiered.dump import list_tiered_dump
from kafka_index.tiered.remote_objects import TieredOptions

__all__ = ["TieredOptions", "list_tiered_dump"]

"""Restoring dumps: data directories that a broker mounts at once, from logs that are only read."""

from kafka_index.restore.output_files import Link
from kafka_index.restore.restored_partition import LostRange, Salvage
from kafka_index.restore.result import RestoreResult

__all__ = [
    "Link",
    "LostRange",
    "RestoreResult",
    "Salvage",
]

"""Restoring dumps: data directories that a broker mounts at once, from logs that are only read."""

from kafka_index.restore.output_files import Link
from kafka_index.restore.report import RestoreResult
from kafka_index.restore.restored_partition import LostRange, Salvage

__all__ = [
    "Link",
    "LostRange",
    "RestoreResult",
    "Salvage",
]

"""Restoring dumps: data directories that a broker mounts at once, from logs that are only read."""

from kafka_index.restore.job import RestoreResult
from kafka_index.restore.library import restore_dump
from kafka_index.restore.log_files import Link
from kafka_index.restore.lost_ranges import LostRange, Salvage
from kafka_index.restore.plan import RestoreChoices, RestorePlan, plan_restore
from kafka_index.restore.restored_partition import RestoredPartition

__all__ = [
    "Link",
    "LostRange",
    "RestoreChoices",
    "RestorePlan",
    "RestoreResult",
    "RestoredPartition",
    "Salvage",
    "plan_restore",
    "restore_dump",
]

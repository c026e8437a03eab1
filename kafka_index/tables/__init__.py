"""The records of dumps as tables: the plan of a read, and the reading of its splits."""

from kafka_index.tables.read_plan import ReadPlan, RecordSplit
from kafka_index.tables.record_reader import RecordReader
from kafka_index.tables.records import plan_read
from kafka_index.tables.settings import Isolation, OnDamage, ReadSettings

__all__ = [
    "Isolation",
    "OnDamage",
    "ReadPlan",
    "ReadSettings",
    "RecordReader",
    "RecordSplit",
    "plan_read",
]

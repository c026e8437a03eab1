"""Bulk lookups: queries in, answers out, over the logs and indexes of a dump.

A run lists the dump (`inventory`), divides the queries into splits (`queries`), reads, answers and
writes each split (`answering`), reports (`report`), and puts the output in place (`output`).
"""

from kafka_index.lookup.answering import answer_queries, answer_split
from kafka_index.lookup.inventory import Inventory, collect_inventory
from kafka_index.lookup.keys import By, Keys
from kafka_index.lookup.lookups import Lookups, LookupSettings
from kafka_index.lookup.output import AnswerTarget, answer_target
from kafka_index.lookup.queries import Queries, open_queries, read_split
from kafka_index.lookup.query_files import QueryBatch, QueryFormat
from kafka_index.lookup.report import (
    LOOKUP_REPORT_SCHEMA,
    LookupTotals,
    SplitReport,
    StartingOffset,
)
from kafka_index.lookup.tally import reset_offsets_csv, starting_offsets_json

__all__ = [
    "LOOKUP_REPORT_SCHEMA",
    "AnswerTarget",
    "By",
    "Inventory",
    "Keys",
    "LookupSettings",
    "LookupTotals",
    "Lookups",
    "Queries",
    "QueryBatch",
    "QueryFormat",
    "SplitReport",
    "StartingOffset",
    "answer_queries",
    "answer_split",
    "answer_target",
    "collect_inventory",
    "open_queries",
    "read_split",
    "reset_offsets_csv",
    "starting_offsets_json",
]

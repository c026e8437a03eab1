"""Bulk lookups: queries in, answers out, over the logs and indexes of a dump."""

from kafka_index.lookup.answers.output import AnswerTarget
from kafka_index.lookup.inventory.taking import Inventory, take_inventory
from kafka_index.lookup.keys import Keys
from kafka_index.lookup.local import run_local
from kafka_index.lookup.lookups import Lookups
from kafka_index.lookup.piece import answer_batch, answer_batches, answer_piece
from kafka_index.lookup.queries.columns import check_columns
from kafka_index.lookup.queries.opening import Queries, QueryFormat, QueryPiece, open_queries
from kafka_index.lookup.queries.reading import QueryBatch, read_piece
from kafka_index.lookup.reports.piece_report import PartitionCount, PieceReport, StartingOffset
from kafka_index.lookup.reports.report import LOOKUP_REPORT_SCHEMA, LookupTotals
from kafka_index.lookup.reports.starting_offsets import reset_offsets_csv, starting_offsets_json
from kafka_index.lookup.reports.tally import PieceTally
from kafka_index.lookup.settings import By, LookupSettings

__all__ = [
    "LOOKUP_REPORT_SCHEMA",
    "AnswerTarget",
    "By",
    "Inventory",
    "Keys",
    "LookupSettings",
    "LookupTotals",
    "Lookups",
    "PartitionCount",
    "PieceReport",
    "PieceTally",
    "Queries",
    "QueryBatch",
    "QueryFormat",
    "QueryPiece",
    "StartingOffset",
    "answer_batch",
    "answer_batches",
    "answer_piece",
    "check_columns",
    "open_queries",
    "read_piece",
    "reset_offsets_csv",
    "run_local",
    "starting_offsets_json",
    "take_inventory",
]

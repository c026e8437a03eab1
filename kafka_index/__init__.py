"""Rebuild the index files of Kafka logs as a broker would write them, and read logs at rest.

    >>> import kafka_index
    >>> built = kafka_index.build_indexes("/dump/broker-1", "/tmp/indexes")
    >>> kafka_index.verify("/dump/broker-1").ok
    >>> records = kafka_index.read_records("/dump/broker-1", topics="orders").to_arrow()

Dumps: data directories, partition directories, or globs of either; local paths or URIs.
    build_indexes        write .index, .timeindex and other files that a broker keeps next to logs
    verify               compare every file with the file that a broker would write
    predict              predict how a broker changes its log directories when it starts
    list_partitions      list partitions, with their offsets and sizes
    read_stats           count records and bytes by topic, partition, day or hour; sizes and keys
    read_metadata        read topics, groups, offsets, transactions and producers of the cluster
    read_schemas         list schemas of typed records, and the topics that use them
    find_records         find records by key, value and time
    export_records       export records to Parquet, JSON lines or tables, incrementally
    lookup_offsets       find the batches and positions of offsets, for a table of queries
    lookup_timestamps    find the first records at or after timestamps, for a table of queries
    read_records         read records for pandas, polars, DuckDB and Arrow
    restore_dump         make a data directory that a broker starts on
    import_records       write tables of records as logs that a broker loads
    rewrite_dump         copy a dump without some of its records
    backup_broker        back up a running broker into a repository
    open_backup          open a repository of backups, which these functions read as dumps

Results: a verdict, counts, and rows for Arrow, pandas, polars and DuckDB.
    Result               the base class of results: ok, summary, to_arrow, raise_for_damage
    Verification, VerifiedPartition, Finding, FindingCounts
    Prediction, Verdict, PartitionPrediction, Refusal
    BuildResult, LookupResult, LookupFinding, InvalidQuery, PartitionList, Metadata
    Records, FoundRecords, LogStats, StatsBy, RunOutcome
    ExportResult, PartitionReport, ExportStatus, RestoreResult, RestoredPartition, GroupOffset
    ImportResult, ImportedLog, RewriteResult, RewrittenPartition, RewriteStatus
    SchemaList, SchemaUse, UseStatus
    BackupRepository, BackupResult, BackedUpPartition, BackupStatus

Partitions and files, read-only:
    PartitionLog         one partition: its bounds, and lookups of offsets and timestamps
    LogSegment           one segment of it
    OffsetIndex, TimeIndex, TransactionIndex, LazyIndex, LeaderEpochCache
    read_batches         the batches of a log, as the rows of the batch table
    build_segment_files  the index files of one log

Writing logs as a broker does:
    PartitionLogWriter, LogSegmentWriter, LogSettings
    write_record_batch   encode records as a batch, from Record and BatchFields

Settings and errors:
    LogConfig, IndexConfig, TieredOptions, SegmentReport, ArrowStream, ImportLayout, InputFormat
    Resolve, UpperBound, Isolation, OnDamage, Salvage, Link, ClusterMode, ExportFormat, OnDataLoss
    History, Decode, DecodeErrors
    KafkaIndexError      every error: path, byte position, expected, found, hint

`help(kafka_index.build_indexes)` and so on has the details. Names are loaded at their first use.
"""

from __future__ import annotations

import importlib as _importlib

# Type checkers take this as True. `typing` is not imported, because that is slow.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from kafka_index.commands.backup import backup_broker as backup_broker
    from kafka_index.commands.backup import open_backup as open_backup
    from kafka_index.commands.backup.result import BackedUpPartition as BackedUpPartition
    from kafka_index.commands.backup.result import BackupRepository as BackupRepository
    from kafka_index.commands.backup.result import BackupResult as BackupResult
    from kafka_index.commands.backup.result import BackupStatus as BackupStatus
    from kafka_index.commands.build import build_indexes as build_indexes
    from kafka_index.commands.build.log_build import build_segment_files as build_segment_files
    from kafka_index.commands.build.request import InputFormat as InputFormat
    from kafka_index.commands.build.result import BuildResult as BuildResult
    from kafka_index.commands.export import export_records as export_records
    from kafka_index.commands.export.request import ExportFormat as ExportFormat
    from kafka_index.commands.export.request import History as History
    from kafka_index.commands.export.request import OnDataLoss as OnDataLoss
    from kafka_index.commands.export.result import ExportResult as ExportResult
    from kafka_index.commands.export.result import ExportStatus as ExportStatus
    from kafka_index.commands.export.result import PartitionReport as PartitionReport
    from kafka_index.commands.find import find_records as find_records
    from kafka_index.commands.find.result import FoundRecords as FoundRecords
    from kafka_index.commands.import_ import import_records as import_records
    from kafka_index.commands.import_.request import ImportLayout as ImportLayout
    from kafka_index.commands.import_.result import ImportedLog as ImportedLog
    from kafka_index.commands.import_.result import ImportResult as ImportResult
    from kafka_index.commands.lookup import lookup_offsets as lookup_offsets
    from kafka_index.commands.lookup import lookup_timestamps as lookup_timestamps
    from kafka_index.commands.lookup.result import InvalidQuery as InvalidQuery
    from kafka_index.commands.lookup.result import LookupResult as LookupResult
    from kafka_index.commands.metadata import list_partitions as list_partitions
    from kafka_index.commands.metadata import read_metadata as read_metadata
    from kafka_index.commands.metadata.read_tables import Metadata as Metadata
    from kafka_index.commands.metadata.read_tables import PartitionList as PartitionList
    from kafka_index.commands.predict import predict as predict
    from kafka_index.commands.predict.predict_job import Prediction as Prediction
    from kafka_index.commands.restore import restore_dump as restore_dump
    from kafka_index.commands.restore.request import ClusterMode as ClusterMode
    from kafka_index.commands.restore.request import Link as Link
    from kafka_index.commands.restore.request import Salvage as Salvage
    from kafka_index.commands.restore.result import GroupOffset as GroupOffset
    from kafka_index.commands.restore.result import RestoredPartition as RestoredPartition
    from kafka_index.commands.restore.result import RestoreResult as RestoreResult
    from kafka_index.commands.rewrite import rewrite_dump as rewrite_dump
    from kafka_index.commands.rewrite.result import RewriteResult as RewriteResult
    from kafka_index.commands.rewrite.result import RewriteStatus as RewriteStatus
    from kafka_index.commands.rewrite.result import RewrittenPartition as RewrittenPartition
    from kafka_index.commands.schemas import read_schemas as read_schemas
    from kafka_index.commands.schemas.result import SchemaList as SchemaList
    from kafka_index.commands.schemas.result import SchemaUse as SchemaUse
    from kafka_index.commands.schemas.result import UseStatus as UseStatus
    from kafka_index.commands.stats import read_stats as read_stats
    from kafka_index.commands.stats.request import StatsBy as StatsBy
    from kafka_index.commands.stats.result import LogStats as LogStats
    from kafka_index.commands.verify import verify as verify
    from kafka_index.commands.verify.result import Finding as Finding
    from kafka_index.commands.verify.result import FindingCounts as FindingCounts
    from kafka_index.commands.verify.result import Verification as Verification
    from kafka_index.commands.verify.result import VerifiedPartition as VerifiedPartition
    from kafka_index.core.errors import KafkaIndexError as KafkaIndexError
    from kafka_index.core.format.config import IndexConfig as IndexConfig
    from kafka_index.core.format.config import LogConfig as LogConfig
    from kafka_index.core.format.leader_epochs import LeaderEpochCache as LeaderEpochCache
    from kafka_index.core.fs.uris import TieredOptions as TieredOptions
    from kafka_index.core.index.sparse_indexes import LazyIndex as LazyIndex
    from kafka_index.core.index.sparse_indexes import OffsetIndex as OffsetIndex
    from kafka_index.core.index.sparse_indexes import TimeIndex as TimeIndex
    from kafka_index.core.index.transaction_index import TransactionIndex as TransactionIndex
    from kafka_index.core.job.result import Result as Result
    from kafka_index.core.job.result import RunOutcome as RunOutcome
    from kafka_index.core.log.append.log_segment_writer import LogSegmentWriter as LogSegmentWriter
    from kafka_index.core.log.append.partition_log_writer import (
        PartitionLogWriter as PartitionLogWriter,
    )
    from kafka_index.core.log.append.settings import LogSettings as LogSettings
    from kafka_index.core.log.choices import Decode as Decode
    from kafka_index.core.log.choices import DecodeErrors as DecodeErrors
    from kafka_index.core.log.choices import Isolation as Isolation
    from kafka_index.core.log.choices import OnDamage as OnDamage
    from kafka_index.core.log.choices import Resolve as Resolve
    from kafka_index.core.log.choices import UpperBound as UpperBound
    from kafka_index.core.log.read.answers import LookupFinding as LookupFinding
    from kafka_index.core.log.read.log_segment import LogSegment as LogSegment
    from kafka_index.core.log.read.partition_log import PartitionLog as PartitionLog
    from kafka_index.core.log.recovery.settings import SegmentReport as SegmentReport
    from kafka_index.core.log.scan.segment_scan import read_batches as read_batches
    from kafka_index.core.parameters import ArrowStream as ArrowStream
    from kafka_index.core.records.record_batch import BatchFields as BatchFields
    from kafka_index.core.records.record_batch import Record as Record
    from kafka_index.core.records.record_batch import write_record_batch as write_record_batch
    from kafka_index.core.startup.prediction import PartitionPrediction as PartitionPrediction
    from kafka_index.core.startup.prediction import Refusal as Refusal
    from kafka_index.core.startup.prediction import Verdict as Verdict
    from kafka_index.records import Records as Records
    from kafka_index.records import read_records as read_records

__version__ = "0.1.0"

#: The public names, by the module of this package that defines them.
_NAMES = {
    "commands.backup": "backup_broker open_backup",
    "commands.backup.result": "BackedUpPartition BackupRepository BackupResult BackupStatus",
    "commands.build": "build_indexes",
    "commands.build.log_build": "build_segment_files",
    "commands.build.request": "InputFormat",
    "commands.build.result": "BuildResult",
    "commands.export": "export_records",
    "commands.export.request": "ExportFormat History OnDataLoss",
    "commands.export.result": "ExportResult ExportStatus PartitionReport",
    "commands.find": "find_records",
    "commands.find.result": "FoundRecords",
    "commands.import_": "import_records",
    "commands.import_.request": "ImportLayout",
    "commands.import_.result": "ImportResult ImportedLog",
    "commands.lookup": "lookup_offsets lookup_timestamps",
    "commands.lookup.result": "InvalidQuery LookupResult",
    "commands.metadata": "list_partitions read_metadata",
    "commands.metadata.read_tables": "Metadata PartitionList",
    "commands.predict": "predict",
    "commands.predict.predict_job": "Prediction",
    "commands.restore": "restore_dump",
    "commands.restore.request": "ClusterMode Link Salvage",
    "commands.restore.result": "GroupOffset RestoreResult RestoredPartition",
    "commands.rewrite": "rewrite_dump",
    "commands.rewrite.result": "RewriteResult RewriteStatus RewrittenPartition",
    "commands.schemas": "read_schemas",
    "commands.schemas.result": "SchemaList SchemaUse UseStatus",
    "commands.stats": "read_stats",
    "commands.stats.request": "StatsBy",
    "commands.stats.result": "LogStats",
    "commands.verify": "verify",
    "commands.verify.result": "Finding FindingCounts Verification VerifiedPartition",
    "core.errors": "KafkaIndexError",
    "core.format.config": "IndexConfig LogConfig",
    "core.format.leader_epochs": "LeaderEpochCache",
    "core.fs.uris": "TieredOptions",
    "core.index.sparse_indexes": "LazyIndex OffsetIndex TimeIndex",
    "core.index.transaction_index": "TransactionIndex",
    "core.job.result": "Result RunOutcome",
    "core.log.append.log_segment_writer": "LogSegmentWriter",
    "core.log.append.partition_log_writer": "PartitionLogWriter",
    "core.log.append.settings": "LogSettings",
    "core.log.choices": "Decode DecodeErrors Isolation OnDamage Resolve UpperBound",
    "core.log.read.answers": "LookupFinding",
    "core.log.read.log_segment": "LogSegment",
    "core.log.read.partition_log": "PartitionLog",
    "core.log.recovery.settings": "SegmentReport",
    "core.log.scan.segment_scan": "read_batches",
    "core.parameters": "ArrowStream",
    "core.records.record_batch": "BatchFields Record write_record_batch",
    "core.startup.prediction": "PartitionPrediction Refusal Verdict",
    "records": "Records read_records",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

# There is no `__all__`: `help` would otherwise print all classes, thousands of lines. `dir` lists
# the names that others may import.


# Hidden from type checkers: they would accept any name as a public name of the package.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted([*_HOMES, "__doc__", "__file__", "__name__", "__path__", "__version__"])

"""Records exported to Parquet or JSON lines, in folders by topic and partition; incremental."""

from kafka_index.export.export_record import with_first_times
from kafka_index.export.exporting import export_splits
from kafka_index.export.planning import ExportPlan, plan_export
from kafka_index.export.report import (
    EXPORT_REPORT_SCHEMA,
    ExportStatus,
    PartitionReport,
    SplitResult,
)
from kafka_index.export.settings import ExportFormat, ExportSettings, OnDataLoss

__all__ = [
    "EXPORT_REPORT_SCHEMA",
    "ExportFormat",
    "ExportPlan",
    "ExportSettings",
    "ExportStatus",
    "OnDataLoss",
    "PartitionReport",
    "SplitResult",
    "export_splits",
    "plan_export",
    "with_first_times",
]

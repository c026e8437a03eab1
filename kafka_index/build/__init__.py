"""Building indexes: plan, scan, fold, publish, report."""

from kafka_index.build.building import build_logs, build_segment_files
from kafka_index.build.publish import publish_partitions
from kafka_index.build.report import SegmentReport
from kafka_index.build.settings import ALL_OUTPUTS, INDEX_OUTPUTS, BuildSettings, Output

__all__ = [
    "ALL_OUTPUTS",
    "INDEX_OUTPUTS",
    "BuildSettings",
    "Output",
    "SegmentReport",
    "build_logs",
    "build_segment_files",
    "publish_partitions",
]

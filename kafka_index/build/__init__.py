"""Building indexes: plan, scan, fold, publish, report; and the engine of local threads."""

from kafka_index.build.library import build_indexes
from kafka_index.build.local import run_local
from kafka_index.build.plan import WORK_SCHEMA, plan_build, read_plan
from kafka_index.build.publish import publish_partitions
from kafka_index.build.report import REPORT_SCHEMA, SegmentReport
from kafka_index.build.segment import build_segment_files, build_segments
from kafka_index.build.settings import ALL_OUTPUTS, INDEX_OUTPUTS, BuildSettings, Output

__all__ = [
    "ALL_OUTPUTS",
    "INDEX_OUTPUTS",
    "REPORT_SCHEMA",
    "WORK_SCHEMA",
    "BuildSettings",
    "Output",
    "SegmentReport",
    "build_indexes",
    "build_segment_files",
    "build_segments",
    "plan_build",
    "publish_partitions",
    "read_plan",
    "run_local",
]

"""Building indexes: plan, compute, publish, report; and the engine of local threads."""

from kafka_index.build.local import run_local
from kafka_index.build.outputs import ALL_OUTPUTS, INDEX_OUTPUTS, Output
from kafka_index.build.partition import publish_partition
from kafka_index.build.plan import WORK_SCHEMA, plan_build, plan_waves, read_plan
from kafka_index.build.report import REPORT_SCHEMA, SegmentReport
from kafka_index.build.segment import build_from_sources, build_segment_files, build_segments
from kafka_index.build.settings import BuildSettings

__all__ = [
    "ALL_OUTPUTS",
    "INDEX_OUTPUTS",
    "REPORT_SCHEMA",
    "WORK_SCHEMA",
    "BuildSettings",
    "Output",
    "SegmentReport",
    "build_from_sources",
    "build_segment_files",
    "build_segments",
    "plan_build",
    "plan_waves",
    "publish_partition",
    "read_plan",
    "run_local",
]

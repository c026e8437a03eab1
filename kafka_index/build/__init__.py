"""Building indexes: plan, compute, publish, report; and the engine of local threads."""

from kafka_index.build.local import run_local
from kafka_index.build.plan import WORK_SCHEMA, plan_build, read_plan
from kafka_index.build.report import REPORT_SCHEMA, SegmentReport
from kafka_index.build.segment import build_from_sources, build_segment_files, build_segments
from kafka_index.build.settings import BuildSettings, new_run_id

__all__ = [
    "REPORT_SCHEMA",
    "WORK_SCHEMA",
    "BuildSettings",
    "SegmentReport",
    "build_from_sources",
    "build_segment_files",
    "build_segments",
    "new_run_id",
    "plan_build",
    "read_plan",
    "run_local",
]

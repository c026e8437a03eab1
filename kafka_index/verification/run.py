"""Verifying partitions: threads share the segments of one, a task of Spark scans them in turn."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from functools import partial

from kafka_index.dump.data_directory import DataDirectories
from kafka_index.execution import Parts, Waves, Workers
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable
from kafka_index.verification.findings import PartitionFindings
from kafka_index.verification.partition import PartitionVerification
from kafka_index.verification.settings import VerifySettings

# What a segment costs besides its bytes.
_SEGMENT_COST_BYTES = 4 << 20


def verify_partitions(
    workers: Workers, segments: SegmentTable, settings: VerifySettings
) -> Generator[PartitionFindings, None, None]:
    """Verify partitions, the largest first; yield what was found in each.

    Parameters
    ----------
    workers : Workers
        What verifies.
    segments : SegmentTable
        Every segment of each partition.
    settings : VerifySettings
        How to verify.
    """
    partitions = sorted(segments.partitions, key=lambda each: -each.size_bytes)
    try:
        yield from workers.run_parts(
            partitions,
            partial(_divide, settings=settings, roots=DataDirectories(tolerated=True)),
            sizes=[each.size_bytes + len(each) * _SEGMENT_COST_BYTES for each in partitions],
            what="verify {:,} partitions",
            waves=Waves.KEPT,
        )
    finally:
        shutil.rmtree(settings.scratch_root(), ignore_errors=True)


def _divide(
    segments: PartitionSegments, *, settings: VerifySettings, roots: DataDirectories
) -> Parts[PartitionFindings]:
    files = segments.files()
    root = roots.of(files[-1].partition_directory)
    verification = PartitionVerification(files, settings, root)
    return Parts([partial(verification.check, each) for each in files], verification.finish)

"""The local engine: bins on threads of this process, whose kernels let go of the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.build.plan import read_plan
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.build.segment import build_segments
from kafka_index.build.settings import BuildSettings


def run_local(
    plan: pa.Table,
    settings: BuildSettings,
    *,
    threads: int,
    on_report: Callable[[SegmentReport], None],
    fail_fast: bool = False,
) -> None:
    """Build all bins of a plan.

    Parameters
    ----------
    plan : pa.Table
        `kafka_index.build.WORK_SCHEMA`.
    settings : BuildSettings
        How and where to.
    threads : int
        Bins at a time.
    on_report : callable
        Called with each segment's row, by one thread at a time.
    fail_fast : bool
        Begin no further segment once one has failed; those not begun have no row.
    """
    lock = threading.Lock()
    stopped = threading.Event()

    def build_bin(number: int) -> None:
        rows = plan.filter(pc.field("bin") == number)
        segments = (one for one in read_plan(rows) if not stopped.is_set())
        for row in build_segments(segments, settings, attempt_id=f"bin{number}"):
            with lock:
                on_report(row)
            if fail_fast and row.status == FAILED:
                stopped.set()

    numbers = pc.unique(plan.column("bin")).to_pylist()
    with ThreadPoolExecutor(threads, thread_name_prefix="build") as pool:
        try:
            for future in [pool.submit(build_bin, number) for number in numbers]:
                future.result()
        finally:
            # After an interrupt or an error of our own the other bins need not go on.
            stopped.set()

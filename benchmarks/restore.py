"""A restore, compared with a build of the same dump, and with a copy before the build.

One thread, warm page cache, batches of 1 KB. Rolled segments are linked or copied, and the active
segment is always copied, so the dump has many small segments. Processor seconds, including ``cp``,
measured in turn.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.dumps import build
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.partition import engine_runner
from kafka_index.commands.restore.request import Link, RestoreRequest
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch

_SEGMENTS = 32
_SEGMENT_BYTES = 32 << 20
_ROUNDS = 5
_GOAL = 1.2
_OFFSET_BYTES = 8


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    with TemporaryDirectory(dir=scratch) as folder:
        dump, output = Path(folder, "dump"), Path(folder, "output")
        _write_dump(dump / "topic-0")
        tasks: list[Callable[[], None]] = [
            partial(_build, dump, output),
            partial(_restore, dump, output, Link.HARD),
            partial(_copy, dump, output),
            partial(_restore, dump, output, Link.COPY),
        ]
        seconds = [statistics.median(times) for times in _in_turn(tasks, output)]
    built, linked, copied, restored = seconds
    print("Restore, one thread, seconds of the processor (median of rounds, in turn)")
    print("  build     links   x build    cp, sync   copies   x cp, sync and build    goals")
    reached = linked <= _GOAL * built and restored <= _GOAL * (copied + built)
    print(
        f"{built:7.2f} {linked:9.2f} {linked / built:9.2f} {copied:11.2f} {restored:8.2f} "
        f"{restored / (copied + built):22.2f}    {'reached' if reached else 'MISSED'}"
    )
    return reached


def _in_turn(tasks: list[Callable[[], None]], output: Path) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in tasks]
    for number in range(_ROUNDS + 1):
        for task, found in zip(tasks, times, strict=True):
            started = sum(os.times()[:4])
            task()
            if number:
                found.append(sum(os.times()[:4]) - started)
            shutil.rmtree(output)
    return times


def _build(dump: Path, output: Path) -> None:
    output.mkdir()
    build(list_dump([str(dump)], topics=None).segments, BuildSettings(target_root=str(output)))


def _restore(dump: Path, output: Path, link: Link) -> None:
    job = RestoreJob.prepare(RestoreRequest(inputs=(str(dump),), output=str(output), link=link))
    result = job.run(engine_runner(ThreadEngine(1)))
    if any(each.is_skipped or each.lost for each in result.partitions):
        raise RuntimeError(f"{dump} was not restored")


def _copy(dump: Path, output: Path) -> None:
    subprocess.run(["cp", "-r", str(dump), str(output)], check=True)
    os.sync()


def _write_dump(directory: Path) -> None:
    """Write segments of batches of about 1 KB that differ only in their offsets."""
    directory.mkdir(parents=True)
    record = Record(1_700_000_000_000, b"key", os.urandom(900))
    batch = write_record_batch([record], 0, BatchFields(leader_epoch=1))
    count = _SEGMENT_BYTES // len(batch)
    batches = np.frombuffer(batch * count, np.uint8).reshape(count, len(batch)).copy()
    for number in range(_SEGMENTS):
        first = number * count
        offsets = np.arange(first, first + count, dtype=">i8")
        batches[:, :_OFFSET_BYTES] = offsets.view(np.uint8).reshape(count, _OFFSET_BYTES)
        (directory / f"{first:020d}.log").write_bytes(batches.tobytes())
    topic_id = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"
    (directory / "partition.metadata").write_text(topic_id)

"""Random partitions with random damage, restored: Kafka's own loader takes the result as it is.

It finds the start, end and producers that the restore has reported, cuts and deletes nothing, and
would find the same if it recovered every segment. Every sound batch is in the result, or in a range
that is reported as lost.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.partition import engine_runner
from kafka_index.commands.restore.request import RestoreRequest, Salvage
from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.scan.segment_scan import read_batches
from kafka_index.core.parameters import KafkaSettings
from tests.support.golden_segments import PARTITION

from .campaign import random_cases
from .kafka_loading import PartitionFiles, partition_files
from .test_predicted_partitions import Case, apply, cases

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_index.commands.restore.result import RestoredPartition

    from .kafka_reference import KafkaReference


class Batch(NamedTuple):
    """A batch of a log."""

    base_offset: int
    last_offset: int
    crc: int


def batches(directory: Path) -> list[Batch]:
    """The batches of all logs that a scan from their starts finds."""
    return [
        Batch(row["base_offset"], row["last_offset"], row["crc"])
        for log in sorted(directory.glob("*.log"))
        for table in read_batches(log)
        for row in table.to_pylist()
    ]


def logs(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


def restored(root: Path, output: Path, case: Case, salvage: Salvage) -> RestoredPartition:
    if case.log_start_offset:
        topic, _, number = PARTITION.rpartition("-")
        text = f"0\n1\n{topic} {number} {case.log_start_offset}\n"
        (root / "log-start-offset-checkpoint").write_text(text)
    request = RestoreRequest(
        inputs=(str(root),),
        output=str(output),
        new_topic_ids=True,
        salvage=salvage,
        config=KafkaSettings(LogConfig(IndexConfig(index_interval_bytes=case.interval))),
    )
    result = RestoreJob.prepare(request).run(engine_runner(ThreadEngine(1)))
    (found,) = result.partitions
    return found


@given(cases(), st.sampled_from([Salvage.PREFIX, Salvage.BATCHES]))
@random_cases(0.02)
def test_restored_partition_is_loaded_without_changes(
    reference: KafkaReference, scratch: Path, case: Case, salvage: Salvage
) -> None:
    files = partition_files(reference, scratch, case.logs)
    files.load(settings=case.settings()).close()
    for fault in case.faults:
        apply(fault, files, list(case.logs))
    if not any(files.directory.glob("*.log")):
        return
    output = scratch / "restored"
    shutil.rmtree(output, ignore_errors=True)
    before = files.contents()

    result = restored(files.directory.parent, output, case, salvage)

    assert files.contents() == before
    directory = output / PARTITION
    if result.is_skipped:
        assert not directory.exists()
        return
    assert_loaded_as_reported(PartitionFiles(reference, directory), case, result)
    kept = set(batches(directory))
    for batch in batches(files.directory):
        is_lost = any(
            (each.first_offset or 0) <= batch.base_offset
            and (each.last_offset is None or batch.last_offset <= each.last_offset)
            for each in result.lost
        )
        assert batch in kept or is_lost, batch


def assert_loaded_as_reported(files: PartitionFiles, case: Case, found: RestoredPartition) -> None:
    """Load a restored partition after a clean stop, and again as if nothing were known of it."""
    written_logs = logs(files.directory)
    loaded = []
    for is_clean, recovery_point in ((True, found.log_end_offset), (False, 0)):
        with files.load(
            clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=found.log_start_offset,
            settings=case.settings(),
        ) as log:
            state = log.loaded
            loaded.append((log.epochs(), sorted(log.producers())))
        assert (state.log_start_offset, state.log_end_offset) == (
            found.log_start_offset,
            found.log_end_offset,
        )
        assert {f"{base:020d}.log" for base in state.base_offsets} == set(written_logs)
        assert logs(files.directory) == written_logs
    # Loading lets go of an epoch that begins at the end of the log, without a record; and of the
    # snapshot at the log start, without which a recovery does not know the producers before that.
    if found.log_start_offset < found.log_end_offset and found.base_offset == 0:
        assert loaded[0] == loaded[1]

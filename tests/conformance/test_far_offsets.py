"""Offsets 2^31 or more apart in one segment (KAFKA-6264), as consumers of a broker get them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from kafka_index import (
    lookup_offsets,
    lookup_timestamps,
    predict,
    read_records,
    restore_dump,
    verify,
)
from kafka_index.core.startup.prediction import Outcome, PartitionPrediction
from tests.commands.backup.repositories import make_backup
from tests.support.segments import GZIP, batch, marker, message, wrapper

from .kafka_loading import PartitionFiles, partition_files
from .test_predicted_partitions import Case, predicted

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference

LIMIT = 2**31
TOPIC, PARTITION = "topic", 0


def _three(offset: int) -> list[bytes]:
    return [
        batch(offset + 3 * number, 3, timestamps=[offset // 10**6 + number] * 3)
        for number in range(3)
    ]


LOGS = {
    "last offset fits": {0: [*_three(0), batch(LIMIT - 3)]},
    "last offset is 2^31": {0: [*_three(0), batch(LIMIT - 2)]},
    "far": {0: [*_three(0), *_three(LIMIT + 5)]},
    "batch over the limit": {0: [*_three(0), batch(LIMIT - 2, 4), batch(LIMIT + 9)]},
    "several limits": {0: [*_three(0), *_three(LIMIT + 5), *_three(5 * LIMIT)]},
    "all far": {0: _three(LIMIT + 5)},
    "base offset is not 0": {7: [*_three(7), batch(LIMIT + 7), batch(LIMIT + 10)]},
    "before another segment": {
        0: [*_three(0), *_three(LIMIT + 5)],
        LIMIT + 99: [batch(LIMIT + 99)],
    },
    "messages of magic 1": {0: [message(0, 1, 50), message(LIMIT + 5, 1, 60)]},
    "compressed messages": {
        0: [
            wrapper(2, 1, [(0, 50), (1, 50), (2, 50)], GZIP),
            wrapper(LIMIT + 7, 1, [(0, 60), (1, 60), (2, 60)], GZIP),
        ]
    },
    "messages of magic 0": {0: [message(0, 0), message(LIMIT + 5, 0), message(LIMIT + 6, 0)]},
}


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("name", LOGS)
def test_far_offsets_are_read_and_looked_up_as_by_a_broker(
    reference: KafkaReference, scratch: Path, name: str, *, with_index: bool
) -> None:
    files = partition_files(reference, scratch, LOGS[name])
    for base_offset in LOGS[name] if with_index else ():
        # No entry: the broker neither recovers the segment nor splits it.
        files.write(base_offset, ".index")
        files.write(base_offset, ".timeindex")
    root = files.directory.parent
    records = read_records(root, columns=["offset", "timestamp"]).read_all()
    offsets = np.array(records["offset"].to_pylist())
    queries = pa.table(
        {
            "topic": [TOPIC] * len(offsets),
            "partition": [PARTITION] * len(offsets),
            "offset": offsets,
        }
    )
    answers = lookup_offsets(root, queries, resolve="record").to_arrow()
    times = [each.value // 10**6 if each is not None else -1 for each in records["timestamp"]]
    with_times = [time for time in times if time >= 0]
    timed = lookup_timestamps(
        root,
        pa.table(
            {
                "topic": pa.array([TOPIC] * len(with_times), pa.string()),
                "partition": pa.array([PARTITION] * len(with_times), pa.int32()),
                "timestamp": pa.array(with_times, pa.int64()),
            }
        ),
        resolve="record",
    ).to_arrow()

    with files.load(clean=with_index) as log:
        consumed = log.consume(log.loaded.log_start_offset, committed=False).records
    assert offsets.tolist() == [each.offset for each in consumed]
    assert answers["found_offset"].to_pylist() == offsets.tolist()
    first_at = [
        next((each.offset for each in consumed if each.timestamp_ms >= time), None)
        for time in with_times
    ]
    assert timed["found_offset"].to_pylist() == first_at


@pytest.mark.parametrize("salvage", ["prefix", "batches"])
@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("name", LOGS)
def test_restored_segments_are_split_as_by_a_broker(
    reference: KafkaReference, scratch: Path, name: str, *, is_damaged: bool, salvage: str
) -> None:
    files = partition_files(reference, scratch, LOGS[name])
    root, output = files.directory.parent, scratch.parent / "restored"
    if is_damaged:
        path = min(files.directory.glob("*.log"))
        path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    shutil.rmtree(output, ignore_errors=True)

    result = restore_dump(root, output, new_topic_ids=True, salvage=salvage)

    (partition,) = result.partitions
    paths = {each.path for each in partition.lost}
    assert paths <= {str(path) for path in files.directory.glob("*.log")}
    with files.load(clean=False) as log:
        base_offsets = log.loaded.base_offsets
        consumed = log.consume(log.loaded.log_start_offset, committed=False).records
    restored = PartitionFiles(reference, output / files.directory.name)
    with restored.load(clean=True) as log:
        kept = log.consume(log.loaded.log_start_offset, committed=False).records
        if not is_damaged:
            assert log.loaded.base_offsets == base_offsets
            assert kept == consumed
    with restored.load(clean=False) as log:
        again = log.consume(log.loaded.log_start_offset, committed=False).records
    assert again == kept
    # A broker deletes what follows damage.
    assert {each.offset for each in consumed} <= {each.offset for each in kept}


@pytest.mark.parametrize("shutdown", ["clean", "clean, no index", "unclean"])
@pytest.mark.parametrize("name", LOGS)
def test_start_on_far_offsets_is_predicted(
    reference: KafkaReference, scratch: Path, name: str, shutdown: str
) -> None:
    files = partition_files(reference, scratch, LOGS[name])
    for base_offset in LOGS[name] if shutdown != "clean, no index" else ():
        files.write(base_offset, ".index")
        files.write(base_offset, ".timeindex")
    case = Case(LOGS[name], [], shutdown != "unclean", 0, 0, 0)
    before = files.contents()
    with predicted(files, case) as loaded:
        log = loaded.log
    prediction = predict_partition(files.directory.parent, is_clean=case.is_clean)
    assert files.contents() == before

    with files.load(clean=case.is_clean) as theirs:
        state = theirs.loaded
        consumed = theirs.consume(state.log_start_offset, committed=False).records

    assert log.base_offsets == state.base_offsets
    assert log.log_start_offset == state.log_start_offset
    assert log.log_end_offset == state.log_end_offset
    assert prediction.outcome is Outcome.LOADED
    assert prediction.lost.records == 0
    assert consumed[-1].offset == log.log_end_offset - 1


def test_aborted_records_exposed_by_a_split_are_predicted(
    reference: KafkaReference, scratch: Path
) -> None:
    far = LIMIT + 5
    aborted = batch(far, 3, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    logs = {0: [*_three(0), aborted, marker(far + 3, 9, 0, commit=False)]}
    files = partition_files(reference, scratch, logs)
    root = files.directory.parent
    shutil.rmtree(scratch.parent / "exposed", ignore_errors=True)
    restored = restore_dump(root, scratch.parent / "exposed", new_topic_ids=True)
    prediction = predict_partition(root, is_clean=True)

    with files.load(clean=True) as log:
        served = [record.offset for record in log.consume(0, committed=True).records]

    assert served == [*range(9), far, far + 1, far + 2]
    assert "has no .txnindex" in (prediction.unserved or "")
    right = PartitionFiles(reference, Path(restored.output) / files.directory.name)
    with right.load(clean=True) as log:
        assert [record.offset for record in log.consume(0, committed=True).records] == [*range(9)]


@pytest.mark.parametrize("is_cleaned", [False, True])
@pytest.mark.parametrize("name", LOGS)
def test_far_offsets_are_backed_up_and_restored(
    tmp_path: Path, name: str, *, is_cleaned: bool
) -> None:
    data = tmp_path / "data"
    directory = data / f"{TOPIC}-{PARTITION}"
    directory.mkdir(parents=True)
    for base_offset, batches in LOGS[name].items():
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    identity = "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n"
    (data / "meta.properties").write_text(identity)
    (data / ".kafka_cleanshutdown").touch()
    if is_cleaned:
        checkpoint = f"0\n1\n{TOPIC} {PARTITION} {10 * LIMIT}\n"
        (data / "cleaner-offset-checkpoint").write_text(checkpoint)

    make_backup(tmp_path / "repository", data, time_ms=1_700_000_000_000)
    restored = restore_dump(f"backup:{tmp_path / 'repository'}", tmp_path / "out")

    assert restored.partitions[0].code is None
    columns = ["offset", "timestamp", "value"]
    before = read_records(data, columns=columns).read_all()
    assert read_records(tmp_path / "out", columns=columns).read_all() == before


@pytest.mark.parametrize("name", LOGS)
def test_log_with_far_offsets_of_a_compacted_topic_is_intact(tmp_path: Path, name: str) -> None:
    directory = tmp_path / f"{TOPIC}-{PARTITION}"
    directory.mkdir()
    for base_offset, batches in LOGS[name].items():
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    checkpoint = f"0\n1\n{TOPIC} {PARTITION} {10 * LIMIT}\n"
    (tmp_path / "cleaner-offset-checkpoint").write_text(checkpoint)

    result = verify(tmp_path)

    logs = [row for row in result.findings if row.kind == "log"]
    assert [(row.file_class, row.harmful) for row in logs] == [("intact", False)] * len(logs)
    effects = [row.effect or "" for row in logs]
    assert any("splits the segment" in effect for effect in effects) == (name != "last offset fits")


def predict_partition(root: Path, *, is_clean: bool) -> PartitionPrediction:
    """Predict the start on a data directory with one partition."""
    (root / f"{TOPIC}-{PARTITION}" / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n"
    )
    (root / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    (root / ".kafka_cleanshutdown").touch() if is_clean else None
    (found,) = predict(root).partitions
    for path in (root / "meta.properties", root / ".kafka_cleanshutdown"):
        path.unlink(missing_ok=True)
    (root / f"{TOPIC}-{PARTITION}" / "partition.metadata").unlink()
    return found

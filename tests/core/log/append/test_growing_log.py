"""A partition that grows: offsets, rolls, epochs, producers, truncation, reads, reopening."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kafka_index import PartitionLog
from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.log.append.incoming_batches import AppendOrigin, Isolation
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.append.settings import LogSettings, TimestampType
from kafka_index.core.log.read.log_segment import LogSegment
from kafka_index.core.log.state.snapshots import decode_snapshot
from tests.support.growing import NOW_MS, SMALL, Clock, abort, contents, data_batch, open_log, sizes

BATCH_BYTES = len(data_batch())


def bases(log: PartitionLogWriter) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def snapshot(folder: Path, offset: int) -> np.ndarray:
    return decode_snapshot(contents(folder)[f"{offset:020d}.snapshot"])


def test_leader_append_changes_only_offsets_and_epoch(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        info = log.append_as_leader(data_batch(records=3) + data_batch(records=2), 4)
        assert (info.first_offset, info.last_offset, info.appended_batches) == (0, 4, 2)
        expected = data_batch(0, records=3, leader_epoch=4) + data_batch(
            3, records=2, leader_epoch=4
        )
        assert log.read(0, 10**6).records == expected


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_leader_append_sets_the_log_append_time(tmp_path: Path, codec: str) -> None:
    settings = LogSettings(
        segment_index_bytes=4096, message_timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    with open_log(tmp_path, settings) as log:
        log.append_as_leader(data_batch(timestamp_ms=5, compression=codec), 0)
    with LogSegment.open(tmp_path / "topic-0" / f"{0:020d}.log") as closed:
        result = closed.find_offset_by_timestamp(NOW_MS, 0)
        assert result is not None
        assert (result.timestamp, result.offset) == (NOW_MS, 0)


def test_leader_appends_each_batch_separately(tmp_path: Path) -> None:
    single, bulk = tmp_path / "single", tmp_path / "bulk"
    batches = [data_batch(value=bytes(size)) for size in range(0, 400, 7)]
    with open_log(single) as log:
        for batch in batches:
            log.append_as_leader(batch, 0)
    with open_log(bulk) as log:
        log.append_as_leader(b"".join(batches), 0)
        assert len(log.segments) > 3
    assert contents(single) == contents(bulk)


def test_follower_appends_batches_unchanged_and_rolls_at_most_once(tmp_path: Path) -> None:
    data = b"".join(data_batch(n) for n in range(11))
    with open_log(tmp_path) as log:
        log.append_as_follower(data_batch(0), 0)
        log.append_as_follower(b"".join(data_batch(n) for n in range(1, 12)), 0)
        assert bases(log) == [0, 1]
        assert log.log_end_offset == 12
    assert sizes(tmp_path, ".log") == [BATCH_BYTES, len(data)]


def test_follower_does_not_append_batches_of_a_later_epoch(tmp_path: Path) -> None:
    data = b"".join(data_batch(n, leader_epoch=n) for n in range(3))
    with open_log(tmp_path) as log:
        assert log.append_as_follower(data, 1).last_offset == 1
        assert log.append_as_follower(data_batch(2, leader_epoch=2), 1).appended_batches == 0
        assert log.log_end_offset == 2


def test_segment_rolled_at_a_gap_starts_at_the_first_offset_after_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_follower(data_batch(0), 0)
        log.append_as_follower(data_batch(2**31 + 9), 0)
        assert bases(log) == [0, 2**31 + 9]


def test_roll_writes_a_snapshot_of_the_producers(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(producer=7, sequence=0, records=3), 0)
        log.roll()
        log.append_as_leader(data_batch(producer=7, sequence=3), 0)
    at_roll, at_end = snapshot(tmp_path, 3), snapshot(tmp_path, 4)
    assert at_roll["last_sequence"].tolist() == [2]
    assert at_end["last_sequence"].tolist() == [3]


def test_rolled_segment_has_trimmed_files_with_the_last_time_entry(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(), 0)
        log.roll()
        assert sizes(tmp_path, ".index") == [0]
        assert sizes(tmp_path, ".timeindex") == [12]


def test_roll_jitter_is_reproducible_by_seed(tmp_path: Path) -> None:
    settings = LogSettings(
        segment_index_bytes=4096, segment_ms=1000, segment_jitter_ms=900, segment_bytes=1 << 20
    )

    def rolls(folder: Path, seed: int) -> list[int]:
        clock = Clock()
        with open_log(folder, settings, clock=clock, random_source=random.Random(seed)) as log:
            for _ in range(60):
                clock.now_ms += 100
                log.append_as_leader(data_batch(timestamp_ms=clock.now_ms), 0)
            return bases(log)

    assert rolls(tmp_path / "a", 1) == rolls(tmp_path / "b", 1)
    assert rolls(tmp_path / "c", 2) != rolls(tmp_path / "d", 3)


def test_leader_epoch_is_checkpointed_at_its_first_append(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert contents(tmp_path)["leader-epoch-checkpoint"] == b""
        log.append_as_leader(data_batch(), 2)
        log.append_as_leader(data_batch(), 2)
        log.append_as_leader(data_batch(), 5)
        assert log.leader_epochs == (EpochEntry(2, 0), EpochEntry(5, 2))
        assert contents(tmp_path)["leader-epoch-checkpoint"] == b"0\n2\n2 0\n5 2\n"
        log.truncate_to(2)
        assert contents(tmp_path)["leader-epoch-checkpoint"] == b"0\n1\n2 0\n"


def test_committed_read_stops_at_an_open_transaction(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(), 0)
        log.append_as_leader(data_batch(producer=7, transactional=True), 0)
        log.append_as_leader(data_batch(), 0)
        assert log.last_stable_offset == 1
        committed = log.read(0, 10**6, isolation=Isolation.TXN_COMMITTED)
        assert len(committed.records) == BATCH_BYTES
        assert len(log.read(0, 10**6).records) == 3 * BATCH_BYTES
        nothing = log.read(1, 10**6, isolation=Isolation.TXN_COMMITTED)
        assert (nothing.base_offset, nothing.records) == (1, b"")


def test_committed_read_returns_the_aborted_transactions(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(producer=7, transactional=True), 0)
        log.append_as_leader(abort(7), 0, origin=AppendOrigin.COORDINATOR)
        assert log.last_stable_offset == 2
        result = log.read(0, 10**6, isolation=Isolation.TXN_COMMITTED)
        assert result.aborted_transactions == ((7, 0),)
        assert log.read(0, 10**6).aborted_transactions is None
    assert sizes(tmp_path, ".txnindex") == [34]


def test_read_continues_in_the_next_segment(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_follower(data_batch(0), 0)
        log.roll()
        log.append_as_follower(data_batch(9), 0)
        result = log.read(4, 10**6)
        assert (result.base_offset, result.segment_base_offset) == (9, 1)


def test_read_at_the_log_end_is_empty_but_rejected_beyond_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(), 0)
        assert log.read(1, 100).records == b""
        with pytest.raises(InputError, match=r"expected 0\.\.1, found 2"):
            log.read(2, 100)


def test_duplicate_batch_of_a_client_is_not_appended(tmp_path: Path) -> None:
    batches = [data_batch(producer=7, sequence=n) for n in range(4)]
    with open_log(tmp_path) as log:
        log.append_as_leader(batches[0] + batches[1], 0)
        info = log.append_as_leader(batches[0], 0)
        assert (info.appended_batches, info.duplicates) == (0, ((0, 0),))
        info = log.append_as_leader(b"".join(batches), 0)
        assert (info.first_offset, info.last_offset) == (2, 3)
        assert info.duplicates == ((0, 0), (1, 1))
        assert log.log_end_offset == 4


def test_truncation_removes_segments_their_snapshots_and_later_producers(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for n in range(4):
            log.append_as_leader(data_batch(producer=n), 0)
            log.roll()
        assert log.truncate_to(2)
        assert bases(log) == [0, 1, 2]
        assert log.log_end_offset == 2
        assert not log.truncate_to(2)
    names = [name for name in contents(tmp_path) if name.endswith(".snapshot")]
    assert names == [f"{n:020d}.snapshot" for n in (1, 2)]
    assert snapshot(tmp_path, 2)["producer_id"].tolist() == [0, 1]


def test_truncation_before_the_first_segment_restarts_the_log_there(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path / "topic-0", SMALL, log_start_offset=50) as log:
        assert (log.log_start_offset, log.log_end_offset) == (50, 50)
        log.append_as_leader(data_batch(timestamp_ms=1), 0)
        log.truncate_to(20)
        assert (log.log_start_offset, log.log_end_offset, bases(log)) == (20, 20, [20])
        assert log.leader_epochs == ()


def test_reopened_log_continues_at_its_end(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(producer=7, sequence=0, records=3), 1)
        log.append_as_leader(data_batch(producer=8, transactional=True), 1)
    before = contents(tmp_path)
    with open_log(tmp_path) as log:
        assert (log.log_end_offset, log.last_stable_offset) == (4, 3)
        assert log.leader_epochs == (EpochEntry(1, 0),)
        log.append_as_leader(data_batch(producer=7, sequence=3), 1)
        with pytest.raises(InputError, match=r"out of order .*expected 4, found 9"):
            log.append_as_leader(data_batch(producer=7, sequence=9), 1)
    for name, data in before.items():
        if name.endswith(".snapshot"):
            assert contents(tmp_path)[name] == data


def test_open_and_close_change_no_file(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(b"".join(data_batch() for _ in range(40)), 0)
    before = contents(tmp_path)
    with open_log(tmp_path):
        pass
    assert contents(tmp_path) == before


def test_expired_producers_are_dropped_when_the_log_is_opened(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock) as log:
        log.append_as_leader(data_batch(producer=7), 0)
    clock.now_ms += SMALL.producer_id_expiration_ms
    with open_log(tmp_path, clock=clock) as log:
        log.append_as_leader(data_batch(producer=7, sequence=99), 0)


def test_log_of_a_killed_writer_is_rejected_and_can_be_recovered(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(data_batch(producer=7, transactional=True), 0)
        log.append_as_leader(abort(7), 0, origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(b"".join(data_batch() for _ in range(20)), 0)
        last = log.segments[-1].base_offset
    complete_contents = contents(tmp_path)
    for name in complete_contents:
        if name.endswith((".snapshot", ".txnindex")):
            (tmp_path / "topic-0" / name).unlink()
    torn = tmp_path / "topic-0" / f"{last:020d}.log"
    torn.write_bytes(torn.read_bytes() + data_batch(22)[:50])
    with pytest.raises(InputError, match=r"not closed.*was_clean=False"):
        open_log(tmp_path)
    with open_log(tmp_path, was_clean=False) as log:
        assert log.log_end_offset == 22
    # Recovery restores the files that were written.
    for name, data in complete_contents.items():
        if not name.endswith(".snapshot"):
            assert contents(tmp_path)[name] == data, name


def test_segment_without_index_is_recovered_when_it_is_opened(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_as_leader(b"".join(data_batch(producer=7, sequence=n) for n in range(30)), 0)
    complete_contents = contents(tmp_path)
    for name in list(complete_contents):
        if name.endswith(("index", ".snapshot")):
            (tmp_path / "topic-0" / name).unlink()
    (tmp_path / "topic-0" / f"{99:020d}.index").write_bytes(b"orphan")
    with open_log(tmp_path):
        pass
    after = contents(tmp_path)
    assert f"{99:020d}.index" not in after
    for name, data in complete_contents.items():
        if name.endswith("index"):
            assert after[name] == data, name


def test_closed_log_rejects_flush_and_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader(data_batch(), 0)
    log.flush()
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.append_as_leader(data_batch(), 0)


GUIDE = Path(__file__).resolve().parents[4] / "docs" / "writing.md"


def test_example_log_equals_its_rebuilt_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(GUIDE), "exec"), {})  # noqa: S102, because the code is our own
    partition = tmp_path / "restored" / "orders-0"
    with PartitionLog.open(str(partition)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 1000)
    (tmp_path / "built").mkdir()
    (log_path,) = partition.glob("*.log")
    assert build_segment_files(log_path, tmp_path / "built").status == "built"
    for suffix in (".index", ".timeindex"):
        name = log_path.with_suffix(suffix).name
        assert (tmp_path / "built" / name).read_bytes() == (partition / name).read_bytes()


ELSEWHERE = """
import sys
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
PartitionLogWriter(sys.argv[1])
"""

#: Holds a lock file as a broker does, until its input ends.
BROKER = """
import fcntl, sys
with open(sys.argv[1], "w") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_partition_can_be_opened_only_once(tmp_path: Path) -> None:
    with open_log(tmp_path):
        with pytest.raises(PublishError, match="already appends"):
            open_log(tmp_path)
        # Another partition of the directory can be opened.
        with PartitionLogWriter(tmp_path / "topic-1", SMALL) as other:
            other.append_as_leader(data_batch(), 0)
    with open_log(tmp_path):
        pass
    assert not (tmp_path / ".lock").exists()


def test_open_log_is_locked_against_other_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "topic-1")]
    with open_log(tmp_path):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ".lock: a broker or another run has locked this directory" in result.stderr


def test_log_is_rejected_while_a_broker_holds_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKER, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        with pytest.raises(PublishError, match="broker"):
            open_log(tmp_path)
        broker.communicate()
    assert not any((tmp_path / "topic-0").iterdir())


def test_writable_log_requires_a_partition_directory_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="<topic>-<partition>"):
        PartitionLogWriter(tmp_path / "topic")


def test_partition_with_an_interrupted_cleaner_is_rejected(tmp_path: Path) -> None:
    with open_log(tmp_path):
        pass
    (tmp_path / "topic-0" / f"{0:020d}.log.swap").touch()
    with pytest.raises(InputError, match="cleaner was interrupted"):
        open_log(tmp_path)
    (tmp_path / "topic-0" / f"{0:020d}.log.swap").unlink()
    with open_log(tmp_path):
        pass

"""One writer per partition, and no broker at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.errors import InputError, PublishError
from kafka_index.growing import GrowingPartitionLog
from tests.support.growing import SMALL, data_batch, open_log

ELSEWHERE = """
import sys
from kafka_index.growing import GrowingPartitionLog
GrowingPartitionLog(sys.argv[1])
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
        with GrowingPartitionLog(tmp_path / "topic-1", SMALL) as other:
            other.append_as_leader(data_batch(), 0)
    with open_log(tmp_path):
        pass
    assert not (tmp_path / ".lock").exists()


def test_another_process_is_refused_while_the_log_is_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "topic-1")]
    with open_log(tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "holds this directory's .lock" in done.stderr


def test_log_is_refused_while_a_broker_holds_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKER, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        with pytest.raises(PublishError, match="broker"):
            open_log(tmp_path)
        broker.communicate()
    assert not any((tmp_path / "topic-0").iterdir())


def test_folder_must_be_named_as_a_partition(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="<topic>-<partition>"):
        GrowingPartitionLog(tmp_path / "topic")


def test_partition_with_an_interrupted_cleaner_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path):
        pass
    (tmp_path / "topic-0" / f"{0:020d}.log.swap").touch()
    with pytest.raises(InputError, match="cleaner was interrupted"):
        open_log(tmp_path)
    (tmp_path / "topic-0" / f"{0:020d}.log.swap").unlink()
    with open_log(tmp_path):
        pass

"""The daemon that forks Python workers."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.timeouts import scaled

_WORKER_ON_A_CLOSED_PIPE = """
import socket
from pyspark import daemon
from kafka_index.spark.daemon import ending_with_its_pipe
ours, jvms = socket.socketpair()
jvms.close()
print("code", ending_with_its_pipe(daemon.worker)(ours, True))
"""


def test_a_worker_whose_pipe_was_closed_is_not_run_again() -> None:
    # PySpark's daemon runs a worker again after the code 0.
    found = subprocess.run(
        [sys.executable, "-c", _WORKER_ON_A_CLOSED_PIPE, "pyspark.worker"],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )

    assert found.stdout.startswith("code ")
    assert found.stdout != "code 0\n"


def test_workers_start_with_all_that_tasks_import() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from kafka_index.spark.daemon import prepare; prepare()"],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )

    assert found.stderr == ""

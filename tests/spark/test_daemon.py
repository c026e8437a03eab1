"""The daemon that forks Python workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata

from tests.support.command_line import ROOT
from tests.support.timeouts import scaled

_WORKER_ON_A_CLOSED_PIPE = """
import socket
from pyspark import daemon
from kafka_index.spark.daemon import exit_on_closed_pipe
ours, jvms = socket.socketpair()
jvms.close()
print("code", exit_on_closed_pipe(daemon.worker)(ours, True))
"""


def test_worker_with_a_closed_pipe_is_not_restarted() -> None:
    # PySpark's daemon runs a worker again after the code 0.
    result = subprocess.run(
        [sys.executable, "-c", _WORKER_ON_A_CLOSED_PIPE, "pyspark.worker"],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )

    assert result.stdout.startswith("code ")
    assert result.stdout != "code 0\n"


def test_workers_preload_the_modules_of_tasks() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from kafka_index.spark.daemon import prepare; prepare()"],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )

    assert result.stderr == ""


#: Prepares workers in a Python that lacks what docs/clusters.md does not ask of executors.
_PREPARE_WITHOUT = """
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from kafka_index.spark.daemon import prepare
prepare()
"""


def test_workers_need_no_other_libraries_than_documented() -> None:
    libraries = {
        re.split(r"[^\w-]", line)[0]
        for line in metadata.requires("kafka-index") or ()
        if "extra == 'dev'" not in line.replace('"', "'")
    }
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    (documented,) = re.findall(r"numpy, pandas, pyarrow.*?\.", page, re.DOTALL)
    absent = {"_".join(name.split("-")) for name in libraries if name not in documented}
    absent -= {"pyspark"}
    assert absent >= {"duckdb", "lz4", "rich", "zstandard"}

    result = subprocess.run(
        [sys.executable, "-c", _PREPARE_WITHOUT, *absent],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )

    assert result.stderr == ""

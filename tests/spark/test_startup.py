"""Signals while the JVM of a driver starts: one line, an exit code, and no process that is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.campaign import sample_size
from tests.support.command_line import COMMAND, DUMP, ROOT, environment
from tests.support.gates import Gate, Step
from tests.support.timeouts import scaled, wait_for


def marked(mark: str) -> list[int]:
    """The processes that have inherited a mark through their environment, zombies left out."""
    result = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        folder = Path("/proc", entry)
        try:
            is_marked = mark.encode() in (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if is_marked and state != "Z":
            result.append(int(entry))
    return result


# From the moment that a child is there: the launcher, the JVM, the context, and the work.
@pytest.mark.parametrize(
    ("number", "code", "word", "after_seconds"),
    [
        (signal.SIGINT, 130, "interrupted", 0.3),
        (signal.SIGTERM, 143, "terminated", 2.0),
        (signal.SIGTERM, 143, "terminated", 0.0),
        (signal.SIGTERM, 143, "terminated", 1.0),
        (signal.SIGINT, 130, "interrupted", 3.0),
    ][: sample_size(5, one_in=2)],
)
def test_signal_while_spark_starts_leaves_no_process(
    tmp_path: Path, number: signal.Signals, code: int, word: str, after_seconds: float
) -> None:
    mark = uuid.uuid4().hex
    # However fast the machine is, the work is not over before the signal.
    gate = Gate(tmp_path / "gate", Step("os.rename", ".index", 1))
    arguments = ["build", "--input", str(DUMP), "--output", str(tmp_path / "out")]
    process = started(arguments, gate.on_the_way_of(environment()), mark)
    wait_for(lambda: len(marked(mark)) > 1, 30, "a child of the driver")
    time.sleep(after_seconds)
    process.send_signal(number)
    assert_is_one_line(process, code, word, mark)


def started(
    arguments: Sequence[str], variables: Mapping[str, str], mark: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments, "--engine", "spark", "--master", "local[1]"],
        env={**variables, "SPARK_LOCAL_IP": "127.0.0.1", "KAFKA_INDEX_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_is_one_line(process: subprocess.Popen[str], code: int, word: str, mark: str) -> None:
    stdout, stderr = process.communicate(timeout=scaled(15))
    assert (process.returncode, stdout) == (code, ""), stderr
    assert stderr.startswith(f"kafka-index: error: {word}")
    assert stderr.count("\n") == 1
    # The JVM of a run that had begun ends by itself, once its stdin has.
    wait_for(lambda: marked(mark) == [], 10, "the end of all processes")


OTHERS = (
    f"import --input {ROOT}/examples/kcat.json --layout kcat --output OUT",
    f"find --input {DUMP} --key-regex 7$",
    f"rewrite --input {DUMP} --drop-keys KEYS --output OUT",
    f"verify --input {DUMP}",
    f"export --input {DUMP} --output OUT",
    f"restore --input {DUMP} --output OUT",
    f"lookup --input {DUMP} --queries {ROOT}/examples/queries.csv --by offset --output OUT",
)


@pytest.mark.parametrize("line", OTHERS[: sample_size(len(OTHERS), one_in=3)])
def test_interrupt_while_spark_starts_is_one_line_in_every_command(
    line: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key-27820\n")
    arguments = line.replace("OUT", str(tmp_path / "out")).replace("KEYS", str(keys)).split()
    mark = uuid.uuid4().hex
    process = started(arguments, environment(), mark)
    wait_for(lambda: len(marked(mark)) > 1, 30, "a child of the driver")
    # A JVM takes longer than that to start.
    time.sleep(random.Random(line).uniform(0, 0.5))
    process.send_signal(signal.SIGINT)
    assert_is_one_line(process, 130, "interrupted", mark)


CALL = """
import os, signal, sys, threading, traceback
from pyspark import SparkConf, SparkContext
from kafka_index.spark.session import owned_jvm

def stop(*_):
    raise KeyboardInterrupt

def stop_while_it_waits():
    main = threading.main_thread().ident
    names = []
    while "readinto" not in names:
        names = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, stop)
try:
    with owned_jvm(SparkConf()):
        threading.Thread(target=stop_while_it_waits).start()
        SparkContext._jvm.java.lang.Thread.sleep(600_000)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_signal_in_the_middle_of_a_call_of_the_jvm_prints_no_traceback() -> None:
    process = subprocess.run(
        [sys.executable, "-c", CALL],
        env={**environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert (process.returncode, process.stderr) == (130, "")

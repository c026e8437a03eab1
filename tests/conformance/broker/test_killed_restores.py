"""Restores that are killed at random moments, checked by Kafka's own start after each.

Before the same command line is run again, a broker exits over the output, or all of it is there;
afterwards all of it is. ``Starting.java`` starts the output as in the test of random directories;
some outputs are started by a broker. ``make campaign`` kills 300 restores, four of them on Spark.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_cluster
from kafka_index.core.records.decompression import DecompressionBudget
from tests.conformance.kafka_reference import KafkaReference
from tests.support.campaign import sample_size
from tests.support.command_line import COMMAND, environment
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import MARKER, contents

from .broker import Broker, BrokerError, BrokerFolders
from .client import ISOLATIONS, Client, Digest
from .started_directories import Started, readable, topic_fields
from .topics import Topic, Traffic, Transactions

TOPICS = (
    Topic("killed", (Traffic(batches=60),), {"internal.segment.bytes": "20480"}, 3),
    Topic("killed.payments", (Transactions(batches=40),), {"internal.segment.bytes": "20480"}),
)
NAMES = [topic.name for topic in TOPICS]
NODE = 1
IN_FULL = sample_size(10) == 10
KILLS = sample_size(296, one_in=60)
#: A broker is started on these, too, before and after.
STARTED = set(range(0, KILLS, 24))
_SEED = 20


@dataclass(frozen=True)
class Dump:
    """The directories of a broker that was killed, what consumers had got, and their restore.

    `steps` is how many file system calls a restore makes at which it can be killed.
    """

    home: BrokerFolders
    cluster: ClusterImage
    digests: dict[str, dict[str, Digest]]
    written: dict[str, set[int]]
    files: dict[str, bytes]
    steps: int

    def differences(self, root: Path) -> list[str]:
        """Return the files of a restore that was not killed which an output has not, or others."""
        result = contents(root)
        return [name for name, data in self.files.items() if result.get(name) != data]


def command(dump: BrokerFolders, root: Path, *more: object) -> list[str]:
    inputs = ("restore", "--input", dump.data, dump.metadata, "--cluster", "same", "--quiet")
    output = ("--output", root / "data", "--metadata-output", root / "metadata")
    return [str(one) for one in (*inputs, *output, *more)]


@pytest.fixture(scope="module")
def runs() -> Iterator[KilledRuns]:
    with KilledRuns("restore", "--help") as forked:
        yield forked


@pytest.fixture(scope="module")
def dump(broker_root: Path, runs: KilledRuns) -> Dump:
    broker = Broker(BrokerFolders(broker_root / "restores-killed"))
    broker.start()
    try:
        with Client(broker.bootstrap, broker_root) as client:
            for topic in TOPICS:
                client.create(topic)
                client.fill(topic)
            digests = {isolation: client.digests(isolation, NAMES) for isolation in ISOLATIONS}
    finally:
        broker.kill()
    home = broker.home
    whole = broker_root / "restores-whole"
    whole.mkdir()
    counted = broker_root / "restores-counted"
    counted.mkdir()
    steps = runs.failing(
        counted, 1 << 30, Failure.KILL, *command(home, counted, "--threads", 1)
    ).calls
    assert not runs.run(whole, 1 << 30, *command(home, whole, "--threads", 1))
    cluster = read_cluster([str(home.metadata)], budget=DecompressionBudget(2**24))
    written = readable([home.data])
    return Dump(home, cluster, digests, written, contents(whole), steps)


@pytest.fixture(scope="module")
def reference() -> Iterator[KafkaReference]:
    """A reference program of its own: it keeps what it has started."""
    with KafkaReference() as started:
        yield started


def started_copy(reference: KafkaReference, dump: Dump, root: Path) -> Started:
    """Start a copy of an output."""
    copy = root.with_name(f"{root.name}-copy")
    shutil.copytree(root, copy)
    topics = topic_fields(dump.cluster, NODE)
    (copy / "data").mkdir(exist_ok=True)
    reply = reference.demand("start", NODE, copy / "metadata", copy / "data", *topics)
    shutil.rmtree(copy)
    return Started.of(reply[1:])


def check(reference: KafkaReference, dump: Dump, root: Path, *, is_over: bool) -> None:
    """Check that a broker exits over an output, or that all of it is there."""
    started = started_copy(reference, dump, root)
    has_marker = (root / "data" / MARKER).exists()
    assert started.starts or not (is_over or has_marker), started.reason
    if started.starts:
        assert started.faults(dump.written, {}) == {}
        # The marker is the last.
        assert dump.differences(root) == ([] if has_marker else [f"data/{MARKER}"])


def check_broker(dump: Dump, root: Path, *, is_over: bool) -> None:
    """Start a broker on a copy of an output, and compare what consumers get, if it starts."""
    copy = root.with_name(f"{root.name}-started")
    shutil.copytree(root, copy)
    (copy / "data").mkdir(exist_ok=True)
    broker = Broker(BrokerFolders(copy))
    try:
        broker.start()
    except BrokerError:
        assert not is_over
    else:
        try:
            with Client(broker.bootstrap, copy) as client:
                for isolation, digests in dump.digests.items():
                    assert client.digests(isolation, NAMES) == digests
        finally:
            broker.kill()
    shutil.rmtree(copy)


@pytest.mark.parametrize("number", range(KILLS))
def test_broker_rejects_a_killed_restore_or_finds_it_complete(
    tmp_path: Path, dump: Dump, reference: KafkaReference, runs: KilledRuns, number: int
) -> None:
    draw = random.Random(_SEED * KILLS + number)
    # A broker starts on a directory after the last steps.
    last = max(dump.steps - 40, 1) if number % 3 == 0 else 1
    root = tmp_path / "out"
    root.mkdir()
    threads = draw.choice((1, 3))
    given = command(dump.home, root, "--threads", threads)
    was_killed = runs.run(root, draw.randrange(last, dump.steps + 1), *given)
    is_over = (root / "data" / MARKER).exists()
    assert was_killed or is_over
    check(reference, dump, root, is_over=is_over)
    if number in STARTED:
        check_broker(dump, root, is_over=is_over)

    code = runs.failing(root, 1 << 30, Failure.KILL, *given).code

    assert code == 0
    assert dump.differences(root) == []
    if number in STARTED:
        check(reference, dump, root, is_over=True)
        check_broker(dump, root, is_over=True)


@pytest.mark.skipif(not IN_FULL, reason="make campaign kills these")
@pytest.mark.parametrize("number", range(4))
def test_restore_on_spark_that_is_killed_is_completed(
    tmp_path: Path, dump: Dump, reference: KafkaReference, number: int
) -> None:
    root = tmp_path / "out"
    root.mkdir()
    arguments = [*COMMAND, *command(dump.home, root, "--engine", "spark")]
    process = subprocess.Popen(arguments, env=environment(), start_new_session=True)
    # In the midst of the partitions: some are there, and not all of them.
    wanted = number * len(dump.written) // 4
    while process.poll() is None and len(list(root.glob("data/*/*.log"))) < wanted:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    is_over = process.returncode == 0
    check(reference, dump, root, is_over=is_over)

    result = subprocess.run(
        arguments, env=environment(), check=False, capture_output=True, text=True
    )

    assert result.returncode == (2 if is_over else 0), result.stderr
    check(reference, dump, root, is_over=True)

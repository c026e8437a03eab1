"""The time until a broker serves a dump without index files.

A dump of 1 GiB (8 partitions of 8 segments of 16 MiB, batches of one size) goes two ways, in turn,
in one run, with a warm page cache and Kafka's usual Java options:

- *alone*: the broker is started, and rebuilds all index files while it loads the logs;
- *built*: ``kafka-index build --in-place`` in a process of its own (start of Python included,
  machine code cached, files made durable), then the broker is started.

Both find ``.kafka_cleanshutdown``, without which a broker reads all logs however good their indexes
are, and no producer snapshots. The start is measured from the start of the broker's process to
"started" in its log, which is looked at every 20 ms; the loading is what the broker says itself
("Loaded N logs in M ms"). The goal is for the loading. The ratio of downtimes counts the build too,
although it may be done before the broker is stopped, or elsewhere; in a dump of this size much of
it is the start of Python and of Java.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.logs import benchmark_log, records_in, warm
from kafka_index.core.format.names import LOG_SUFFIX, segment_file_name
from tests.conformance.broker.broker import CLEAN_SHUTDOWN, Broker, BrokerFolders
from tests.conformance.broker.client import Client
from tests.conformance.broker.files import remove_all_but_logs
from tests.conformance.broker.topics import Topic

BATCH_BYTES = (1024, 16384)
_PARTITIONS = 8
_SEGMENTS = 8
_SEGMENT_BYTES = 16 << 20
_ROUNDS = 3
_GOAL = 3.0
TOPIC = Topic("dump", (), {"segment.bytes": str(_SEGMENT_BYTES)}, _PARTITIONS)
# Those of kafka-server-start.sh and kafka-run-class.sh.
JAVA_OPTIONS = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_LOADED = re.compile(r"Loaded (\d+) logs in (\d+)ms")
_REBUILT = "recovering segment and rebuilding index files"


@dataclass(frozen=True)
class Start:
    """A start of a broker."""

    started_seconds: float
    loading_seconds: float
    rebuilt_segments: int


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goal is reached."""
    dump_bytes = _PARTITIONS * _SEGMENTS * _SEGMENT_BYTES
    print(f"A broker on {dump_bytes >> 20} MiB in {_PARTITIONS * _SEGMENTS} segments without index")
    print("files: alone, and after a build in place; seconds (median of rounds, in turn)")
    print("            -- alone --   ------ built ------    --------- ratios ----------")
    print("batch bytes start  load   build  start   load    downtime   start    load   goal")
    reached = True
    for batch_bytes in BATCH_BYTES:
        with TemporaryDirectory(dir=scratch) as folder:
            home = make_dump(Path(folder), benchmark_log(scratch, batch_bytes), batch_bytes)
            build_seconds(home)  # for the cache of machine code
            alone, builds, built = [], [], []
            for _ in range(_ROUNDS):
                warm_logs_alone(home)
                alone.append(start(home))
                warm_logs_alone(home)
                builds.append(build_seconds(home))
                built.append(start(home))
        if {one.rebuilt_segments for one in alone} != {_PARTITIONS * _SEGMENTS}:
            raise RuntimeError("the broker did not rebuild every segment")
        if any(one.rebuilt_segments for one in built):
            raise RuntimeError("the broker rebuilt what had been built")
        b = statistics.median(builds)
        (s, load), (ours, our_load) = _medians(alone), _medians(built)
        reached &= load / our_load >= _GOAL
        row = f"{batch_bytes:11d} {s:5.2f} {load:5.2f}   {b:5.2f}  {ours:5.2f}  {our_load:5.2f}"
        ratios = f"{s / (b + ours):10.2f} {s / ours:7.2f} {load / our_load:7.1f}"
        print(f"{row}  {ratios} {_GOAL:6.1f}", flush=True)
    return reached


def start(home: BrokerFolders, *, keeps_marker: bool = False) -> Start:
    """Start a broker with the marker of a clean stop, measure, and stop it."""
    if not keeps_marker:
        (home.data / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}', encoding="utf-8")
    broker = Broker(home, java_options=JAVA_OPTIONS)
    began = time.perf_counter()
    with broker:
        started_seconds = time.perf_counter() - began
        log_text = broker.log_text()
    loaded = _LOADED.search(log_text)
    if loaded is None or int(loaded[1]) < _PARTITIONS:
        raise RuntimeError(f"the broker did not load its logs:\n{log_text[-2000:]}")
    return Start(started_seconds, int(loaded[2]) / 1000, log_text.count(_REBUILT))


def build_seconds(home: BrokerFolders) -> float:
    """Build the index files in place, in a process of its own."""
    command = [sys.executable, "-m", "kafka_index", "build", "--quiet", "--in-place"]
    began = time.perf_counter()
    subprocess.run([*command, "--input", str(home.data)], check=True)
    return time.perf_counter() - began


def _medians(starts: list[Start]) -> tuple[float, float]:
    return (
        statistics.median(one.started_seconds for one in starts),
        statistics.median(one.loading_seconds for one in starts),
    )


def warm_logs_alone(home: BrokerFolders) -> None:
    """Take everything but the logs away, and bring these into the page cache."""
    remove_all_but_logs(home.data)
    for log in sorted(home.data.glob(f"*/*{LOG_SUFFIX}")):
        warm(log)


def make_dump(
    folder: Path, log: Path, batch_bytes: int, *, segments: int = _SEGMENTS
) -> BrokerFolders:
    """Let a broker make the topic, and fill it while no broker runs.

    All segments are the first batches of one log: a base offset is not under the checksum.
    """
    home = BrokerFolders(folder / "broker")
    broker = Broker(home)
    with broker, Client(broker.bootstrap, folder) as client:
        client.create(TOPIC)
    batches = np.fromfile(log, np.uint8, _SEGMENT_BYTES).reshape(-1, batch_bytes)
    numbers = np.arange(len(batches)) * records_in(batch_bytes)
    for partition in range(_PARTITIONS):
        directory = home.data / f"{TOPIC.name}-{partition}"
        for empty in directory.glob("0*"):
            empty.unlink()
        for segment in range(segments):
            base_offset = segment * len(batches) * records_in(batch_bytes)
            offsets = (base_offset + numbers).astype(">i8")
            batches[:, :8] = offsets.view(np.uint8).reshape(-1, 8)
            batches.tofile(directory / segment_file_name(base_offset, LOG_SUFFIX))
    return home

"""The time until a broker serves a restored dump of 8 GiB that has only logs.

The dump has 8 partitions of 64 segments of 16 MiB, in batches of 1 KB. Two ways to a running broker
are measured in turn, with Kafka's usual Java options:

- *alone*: the broker starts on the logs with a clean shutdown file, and rebuilds all index files
  while it loads the logs.
- *restored*: ``kafka-index restore --link hard --cluster same`` runs in a separate process. The
  time includes the start of Python, with cached machine code. All checksums are verified, and all
  files are durable. Then a broker starts on the output.

Times are measured as in ``mount``. The goals for a restore with links are less than half of the
time until the broker has started, and at most a tenth of the time to load the logs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.logs import benchmark_log
from benchmarks.mount import Start, make_dump, start, warm_logs_alone
from tests.conformance.broker.broker import BrokerFolders

_BATCH_BYTES = 1024
_SEGMENTS = 64
_ROUNDS = 3
_DOWNTIME_GOAL = 0.5
_LOADING_GOAL = 0.1


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goals are reached."""
    alone: list[Start] = []
    restored: list[Start] = []
    seconds: list[float] = []
    with TemporaryDirectory(dir=scratch) as folder:
        log = benchmark_log(scratch, _BATCH_BYTES)
        home = make_dump(Path(folder), log, _BATCH_BYTES, segments=_SEGMENTS)
        for _ in range(_ROUNDS):
            warm_logs_alone(home)
            alone.append(start(home))
            warm_logs_alone(home)
            target = BrokerFolders(Path(folder, "restored"))
            seconds.append(_restore_seconds(home, target))
            restored.append(start(target, keeps_marker=True))
            shutil.rmtree(target.root)
    if any(one.rebuilt_segments for one in restored):
        raise RuntimeError("the broker rebuilt restored segments")
    own = statistics.median(one.started_seconds for one in alone)
    own_load = statistics.median(one.loading_seconds for one in alone)
    restore = statistics.median(seconds)
    ours = statistics.median(one.started_seconds for one in restored)
    load = statistics.median(one.loading_seconds for one in restored)
    downtime, loading = (restore + ours) / own, load / own_load
    reached = downtime < _DOWNTIME_GOAL and loading <= _LOADING_GOAL
    print("A broker on 8 GiB of batches of 1 KB: logs alone, and restored with links")
    print("seconds (median of rounds, in turn)")
    print("-- alone --   ------ restored ------   ------ ratios ------")
    print("start  load   restore  start   load    downtime     load    goals")
    print(
        f"{own:5.1f} {own_load:5.1f}   {restore:7.1f} {ours:6.1f} {load:6.2f}   "
        f"{downtime:9.2f} {loading:8.3f}    {'reached' if reached else 'MISSED'}"
    )
    return reached


def _restore_seconds(home: BrokerFolders, target: BrokerFolders) -> float:
    target.root.mkdir()
    command = [sys.executable, "-m", "kafka_index", "restore", "--quiet", "--link", "hard"]
    paths = ["--input", str(home.data), str(home.metadata), "--output", str(target.data)]
    same = ["--cluster", "same", "--metadata-output", str(target.metadata)]
    began = time.perf_counter()
    subprocess.run([*command, *paths, *same], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began

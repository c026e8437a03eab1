"""A broker starts on data directories, or does not, and finds what was predicted.

Each partition is in one of the states that a crash, a copy or a restore leaves. ``make campaign``
draws a hundred directories; other runs start on the first two, which have all states between them,
one with the marker of a clean stop and one without.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.format.config import LogConfig
from kafka_index.core.log.state.snapshots import decode_snapshot, list_snapshots, snapshot_path
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import (
    Outcome,
    PartitionPrediction,
    StartPrediction,
    Verdict,
)
from tests.support.campaign import sample_size
from tests.support.timeouts import wait_for

from .broker import CLEAN_SHUTDOWN, Broker, BrokerError, BrokerFolders
from .client import Client
from .topics import Topic, Traffic, Transactions

_SMALL = {"internal.segment.bytes": "24576"}
TOPIC = Topic("started", (Traffic(batches=500),), _SMALL, 8)
PAYMENTS = Topic("started.payments", (Transactions(batches=160, left_open="true"),), {}, 2)
#: Retention deletes what is too much, or too old.
RETAINED = tuple(
    Topic(f"started.{name}", (Traffic(batches=300),), {**_SMALL, **limit})
    for name, limit in (
        ("sized", {"retention.bytes": "40000"}),
        ("aged", {"retention.ms": "1"}),
        ("kept", {"retention.ms": "-1", "retention.bytes": "10000000"}),
    )
)
# Retention does its work at once, or not at all.
RETAINING = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "200"}
NOT_RETAINING = {"log.initial.task.delay.ms": "86400000"}
NAMES = [(topic.name, number) for topic in (TOPIC, PAYMENTS) for number in range(topic.partitions)]
_IN_TURN = 2
DIRECTORIES = 100 if sample_size(100) == 100 else _IN_TURN
#: One directory in so many may hold what keeps the whole broker from starting.
_ONE_IN = 5
_SEED = 4_3_1

State = Callable[[Path, random.Random], None]


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def torn(folder: Path, draw: random.Random) -> None:
    last = logs(folder)[-1]
    last.write_bytes(last.read_bytes()[: draw.randrange(last.stat().st_size + 1)])


def flipped(folder: Path, draw: random.Random) -> None:
    """Change a byte inside the records of a batch: its checksum is wrong."""
    path = draw.choice(logs(folder))
    data = bytearray(path.read_bytes())
    if len(data) > 100:
        data[-draw.randrange(1, 8)] ^= 1
        path.write_bytes(data)


def shortened(folder: Path, draw: random.Random) -> None:
    path = draw.choice(logs(folder)[:-1] or logs(folder))
    path.write_bytes(path.read_bytes()[: -draw.randrange(1, 200)])


def without_segment(folder: Path, draw: random.Random) -> None:
    stem = draw.choice(logs(folder)).stem
    for path in folder.glob(f"{stem}.*"):
        path.unlink()


def without_log(folder: Path, draw: random.Random) -> None:
    draw.choice(logs(folder)).unlink()


def without_index(folder: Path, draw: random.Random) -> None:
    draw.choice(logs(folder)).with_suffix(draw.choice((".index", ".timeindex"))).unlink()


def without_snapshots(folder: Path, _draw: random.Random) -> None:
    for path in folder.glob("*.snapshot"):
        path.unlink()


def with_bad_snapshot(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.glob("*.snapshot")) or logs(folder))
    if path.suffix == ".snapshot":
        path.write_bytes(path.read_bytes()[: draw.randrange(10)])


def without_epochs(folder: Path, draw: random.Random) -> None:
    path = folder / "leader-epoch-checkpoint"
    if draw.random() < 0.5:
        path.unlink()
    else:
        path.write_text("")


def with_leftovers(folder: Path, draw: random.Random) -> None:
    path = draw.choice(logs(folder))
    ending = draw.choice((".deleted", ".cleaned"))
    shutil.copy(path, path.with_name(path.name + ending))


def swapped(folder: Path, draw: random.Random) -> None:
    """Leave a log as a compaction does that was stopped before it renamed its files."""
    path = draw.choice(logs(folder))
    endings = (".log",) if draw.random() < 0.5 else (".log", ".index", ".timeindex")
    for ending in endings:
        file = path.with_suffix(ending)
        file.rename(file.with_name(f"{file.name}.swap"))


def stray(folder: Path, _draw: random.Random) -> None:
    (folder / "partition.metadata").unlink()


def missing(folder: Path, _draw: random.Random) -> None:
    shutil.rmtree(folder)


def intact(_folder: Path, _draw: random.Random) -> None:
    """Leave it as it is."""


def with_zeros(folder: Path, draw: random.Random) -> None:
    last = logs(folder)[-1]
    last.write_bytes(last.read_bytes() + bytes(draw.randrange(1, 100)))


def with_bad_epochs(folder: Path, _draw: random.Random) -> None:
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0\n")


STATES: tuple[State, ...] = (
    *(
        intact,
        torn,
        flipped,
        shortened,
        without_segment,
        without_log,
        without_index,
        stray,
        missing,
    ),
    *(without_snapshots, with_bad_snapshot, without_epochs, with_leftovers, swapped),
)
REFUSED: tuple[State, ...] = (with_zeros, with_bad_epochs)


@pytest.fixture(scope="module")
def stopped(broker_root: Path) -> BrokerFolders:
    """A broker that stopped cleanly."""
    broker = Broker(BrokerFolders(broker_root / "to-be-started"), more_settings=NOT_RETAINING)
    with broker, Client(broker.bootstrap, broker_root) as client:
        for topic in (TOPIC, PAYMENTS, *RETAINED):
            client.create(topic)
            client.fill(topic)
    return broker.home


def change(data: Path, draw: random.Random, number: int) -> dict[str, State]:
    """Bring each partition into a state, in the first directories in turn; return the states."""
    states = {}
    for at, (topic, partition) in enumerate(NAMES, number * len(NAMES)):
        state = STATES[at % len(STATES)] if number < _IN_TURN else draw.choice(STATES)
        state(data / f"{topic}-{partition}", draw)
        states[f"{topic}-{partition}"] = state
    if number % _ONE_IN == _ONE_IN - 1:
        folders = [data / name for name in states]
        some = draw.choice([folder for folder in folders if folder.exists() and logs(folder)])
        states[some.name] = draw.choice(REFUSED)
        states[some.name](some, draw)
    random_freely = number >= _IN_TURN
    if number == 1 or (random_freely and draw.random() < 0.5):
        (data / CLEAN_SHUTDOWN).unlink()
    if number == 1 or (random_freely and draw.random() < 0.3):
        (data / "recovery-point-offset-checkpoint").unlink()
    if number == 0 or (random_freely and draw.random() < 0.3):
        topic, partition = draw.choice(NAMES) if random_freely else NAMES[0]
        offset = draw.choice((5, 300, 10_000_000)) if random_freely else 10_000_000
        text = f"0\n1\n{topic} {partition} {offset}\n"
        (data / "log-start-offset-checkpoint").write_text(text)
    return states


def predicted(home: BrokerFolders) -> StartPrediction:
    metadata = read_metadata([str(home.metadata)], budget=DecompressionBudget(2**24))
    conditions = StartConditions(LogConfig(), metadata.cluster, properties={})
    return predict_directories([str(home.data)], conditions)


def ask(home: BrokerFolders, broker_root: Path) -> dict[str, tuple[int, int]]:
    """Start a broker; return log start and end of each partition, as a client gets them."""
    broker = Broker(home, more_settings=NOT_RETAINING)
    with broker, Client(broker.bootstrap, broker_root) as client:
        lines = client.times([(*name, end) for name in NAMES for end in (-2, -1)])
    result = [int(line.split()[0]) for line in lines]
    pairs = zip(result[::2], result[1::2], strict=True)
    return {f"{topic}-{n}": pair for (topic, n), pair in zip(NAMES, pairs, strict=True)}


@pytest.mark.parametrize("number", range(DIRECTORIES))
def test_directory_starts_as_predicted(
    broker_root: Path, stopped: BrokerFolders, number: int
) -> None:
    draw = random.Random(_SEED + number)
    home = stopped.copy_to(broker_root / f"started-{number}")
    states = change(home.data, draw, number)
    prediction = predicted(home)
    # A stray partition comes before the empty log that takes its place.
    expected = {
        f"{partition.topic}-{partition.partition}": partition
        for partition in reversed(prediction.partitions)
    }
    try:
        answers = ask(home, broker_root)
    except BrokerError:
        assert prediction.verdict is Verdict.DOES_NOT_START, states
        shutil.rmtree(home.root)
        return
    assert prediction.verdict is not Verdict.DOES_NOT_START, (states, prediction.refused)
    for name, offsets in answers.items():
        one = expected[name]
        is_replaced = one.loaded is None or one.outcome is Outcome.STRAY
        assert (one.outcome is Outcome.STRAY) == (states[name] is stray), name
        assert states[name] is not missing or one.outcome is Outcome.EMPTIED, name
        assert offsets == ((0, 0) if is_replaced else served(one)), (name, states)
        if not is_replaced:
            assert_state(home.data / name, one)
        elif states[name] is stray:
            assert [*home.data.glob(f"{name}.*-stray")]
    shutil.rmtree(home.root)


def test_retention_deletes_the_predicted_segments(
    broker_root: Path, stopped: BrokerFolders
) -> None:
    home = stopped.copy_to(broker_root / "retained")
    partitions = {partition.topic: partition for partition in predicted(home).partitions}
    sized, aged, kept = (partitions[topic.name] for topic in RETAINED)
    expected = [one.log_start_retained for one in (sized, aged, kept)]
    with (
        Broker(home, more_settings=RETAINING) as broker,
        Client(broker.bootstrap, broker_root) as client,
    ):

        def log_starts() -> list[int]:
            lines = client.times([(topic.name, 0, -2) for topic in RETAINED])
            return [int(line.split()[0]) for line in lines]

        wait_for(lambda: log_starts() == expected, 60, "retention")
    assert sized.loaded is not None
    assert aged.loaded is not None
    assert 0 < (sized.log_start_retained or 0) < sized.loaded.log_end_offset
    assert aged.log_start_retained == aged.loaded.log_end_offset
    assert (kept.log_start_retained, kept.notes) == (0, ())
    for one in (sized, aged, kept):
        left = {int(path.stem) for path in logs(home.data / f"{one.topic}-0")}
        assert one.loaded is not None
        # The broker may have rolled since, and retention has deleted whole segments.
        assert {b for b in one.loaded.base_offsets if b >= (one.log_start_retained or 0)} <= left


def served(one: PartitionPrediction) -> tuple[int, int]:
    assert one.loaded is not None
    return one.loaded.log_start_offset, one.loaded.log_end_offset


def assert_state(folder: Path, one: PartitionPrediction) -> None:
    """Compare segments, epochs and producers with what the broker has left when it stopped."""
    assert one.loaded is not None
    left = {int(path.stem) for path in logs(folder)}
    # Segments before the log start are deleted soon.
    kept = [base for base in one.loaded.base_offsets if base >= one.loaded.log_start_offset]
    assert set(kept) <= left, folder
    lines = (folder / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    epochs = [tuple(map(int, line.split())) for line in lines]
    predicted = [(entry.epoch, entry.start_offset) for entry in one.loaded.epochs]
    # The leader adds its own epoch, at the log end.
    assert epochs[: len(predicted)] == predicted, folder
    assert all(start >= one.loaded.log_end_offset for _, start in epochs[len(predicted) :]), folder
    last = max(list_snapshots(str(folder)), default=None)
    producers = set(one.loaded.producers["producer_id"].tolist())
    if last is not None and last == one.loaded.log_end_offset:
        entries = decode_snapshot(Path(snapshot_path(str(folder), last)).read_bytes())
        assert set(entries["producer_id"].tolist()) == producers, folder

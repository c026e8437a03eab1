"""A broker starts on damaged directories, and finds what was predicted."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index.config import LogConfig
from kafka_index.metadata import read_metadata
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.startup import (
    Outcome,
    PartitionPrediction,
    StartConditions,
    Verdict,
    predict_directories,
)
from tests.support.timeouts import wait_for

from .broker import CLEAN_SHUTDOWN, Broker, Home
from .client import Client
from .topics import Topic, Traffic, Transactions

TOPIC = Topic("started", (Traffic(batches=700),), {"internal.segment.bytes": "24576"}, 8)
PAYMENTS = Topic("started.payments", (Transactions(batches=160, left_open="true"),), {}, 2)
#: Retention deletes what is too much, or too old.
RETAINED = tuple(
    Topic(f"started.{name}", (Traffic(batches=300),), {"internal.segment.bytes": "24576", **limit})
    for name, limit in (
        ("sized", {"retention.bytes": "40000"}),
        ("aged", {"retention.ms": "1"}),
        ("kept", {"retention.ms": "-1", "retention.bytes": "10000000"}),
    )
)
# Retention does its work at once, or not at all.
RETAINING = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "200"}
NOT_RETAINING = {"log.initial.task.delay.ms": "86400000"}
EARLIEST, LATEST = ENDS = (-2, -1)


@dataclass(frozen=True)
class Started:
    """The prediction, the answers of a broker, and the directory after its stop."""

    predicted: dict[str, PartitionPrediction]
    answers: dict[str, tuple[int, int]]
    data: Path
    retained: dict[str, int]


@pytest.fixture(scope="module")
def stopped(room: Path) -> Home:
    """A broker that stopped cleanly."""
    broker = Broker(Home(room / "to-be-started"), more_settings=NOT_RETAINING)
    with broker, Client(broker.bootstrap, room) as client:
        for topic in (TOPIC, PAYMENTS, *RETAINED):
            client.create(topic)
            client.fill(topic)
    return broker.home


@pytest.fixture(scope="module", params=["clean", "unclean"])
def started(request: pytest.FixtureRequest, room: Path, stopped: Home) -> Started:
    """A broker on a copy with a different damage in each partition."""
    home = stopped.copy_to(room / f"started-{request.param}")
    damage(home.data)
    if request.param == "unclean":
        (home.data / CLEAN_SHUTDOWN).unlink()
        (home.data / "recovery-point-offset-checkpoint").unlink()
    metadata = read_metadata([str(home.metadata)], budget=DecompressionBudget(2**24))
    prediction = predict_directories(
        [str(home.data)], StartConditions(LogConfig(), metadata.cluster, properties={})
    )
    # A stray partition comes before the empty log that takes its place.
    predicted = {f"{one.topic}-{one.partition}": one for one in reversed(prediction.partitions)}
    assert prediction.verdict is Verdict.LOSES, prediction.refused
    names = [(topic.name, n) for topic in (TOPIC, PAYMENTS) for n in range(topic.partitions)]
    with Broker(home, more_settings=RETAINING) as broker, Client(broker.bootstrap, room) as client:
        lines = client.times([(*name, end) for name in names for end in ENDS])
        wanted = {f"{topic.name}-0": predicted[f"{topic.name}-0"] for topic in RETAINED}
        starts = {name: one.log_start_retained for name, one in wanted.items()}
        wait_for(lambda: log_starts(client) == starts, 60, "retention")
        retained = log_starts(client)
    offsets = [int(line.split()[0]) for line in lines]
    return Started(
        predicted,
        {
            f"{topic}-{number}": (offsets[2 * at], offsets[2 * at + 1])
            for at, (topic, number) in enumerate(names)
        },
        home.data,
        retained,
    )


def log_starts(client: Client) -> dict[str, int]:
    """The starts of the logs that retention deletes from."""
    lines = client.times([(topic.name, 0, EARLIEST) for topic in RETAINED])
    return {
        f"{topic.name}-0": int(line.split()[0]) for topic, line in zip(RETAINED, lines, strict=True)
    }


def damage(data: Path) -> None:
    """Damage the partitions, each in another way; the last ones stay as they are."""
    folders = [data / f"{TOPIC.name}-{number}" for number in range(TOPIC.partitions)]
    logs = [sorted(folder.glob("*.log")) for folder in folders]
    last = logs[0][-1]
    _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
    last.write_bytes(last.read_bytes()[: position + 50])
    for path in folders[1].glob(f"{logs[1][-1].stem}.*"):
        path.unlink()
    middle = bytearray(logs[2][1].read_bytes())
    middle[len(middle) // 2] ^= 1
    logs[2][1].write_bytes(middle)
    (folders[3] / "partition.metadata").unlink()
    checkpoint = data / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{TOPIC.name} 4 10000000\n")
    for path in folders[5].glob("*.index"):
        path.unlink()
    for path in folders[6].iterdir():
        path.unlink()
    folders[6].rmdir()


def test_outcomes_are_those_that_were_damaged_for(started: Started) -> None:
    outcomes = {name: one.outcome for name, one in started.predicted.items()}

    assert outcomes["started-3"] is Outcome.STRAY
    assert outcomes["started-4"] is Outcome.EMPTIED
    assert outcomes["started-6"] is Outcome.EMPTIED
    assert outcomes["started-7"] is Outcome.LOADED
    assert outcomes["started.payments-0"] is Outcome.LOADED


def test_retention_deletes_what_was_predicted(started: Started) -> None:
    sized, aged, kept = (started.predicted[f"{topic.name}-0"] for topic in RETAINED)

    assert sized.loaded is not None
    assert aged.loaded is not None
    assert started.retained["started.sized-0"] == sized.log_start_retained
    assert 0 < (sized.log_start_retained or 0) < sized.loaded.log_end_offset
    assert started.retained["started.aged-0"] == aged.loaded.log_end_offset
    assert (kept.log_start_retained, kept.notes) == (0, ())


def test_log_starts_and_ends_are_as_predicted(started: Started) -> None:
    predicted = {
        name: (one.loaded.log_start_offset, one.loaded.log_end_offset)
        for name, one in started.predicted.items()
        if one.loaded is not None and name in started.answers and one.outcome is not Outcome.STRAY
    }

    assert len(predicted) >= 8
    assert {name: started.answers[name] for name in predicted} == predicted


def test_an_empty_log_takes_the_place_of_a_stray_or_missing_partition(started: Started) -> None:
    assert started.answers["started-3"] == (0, 0)
    assert started.answers["started-6"] == (0, 0)
    assert [path.name for path in started.data.glob("started-3.*-stray")] != []


def test_segments_that_are_left_are_those_that_were_predicted(started: Started) -> None:
    for name, one in started.predicted.items():
        if one.loaded is None or one.outcome is not Outcome.LOADED:
            continue
        found = {int(path.stem) for path in (started.data / name).glob("*.log")}
        kept_from = one.log_start_retained or 0
        # The broker may have rolled since, and retention has deleted whole segments.
        left = {base for base in one.loaded.base_offsets if base >= kept_from}
        assert left <= found, name

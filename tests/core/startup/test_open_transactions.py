"""Predictions of starts after which a transaction stays open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage, PartitionImage, TopicImage
from kafka_index.core.format.config import LogConfig
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import Verdict
from tests.support.metadata import transaction_states
from tests.support.segments import batch, marker

if TYPE_CHECKING:
    from pathlib import Path

_IDS = {"t": "AAAAAAAAAAAAAAAAAAAAAg", "__transaction_state": "AAAAAAAAAAAAAAAAAAAAAw"}
_DIRECTORY = "ECPTmqBMRHwwfPQiR6tadg"
_IDENTITY = f"version=1\ncluster.id=x\nnode.id=1\ndirectory.id={_DIRECTORY}\n"
_ONGOING, _PREPARE_ABORT, _COMPLETE_ABORT = 1, 3, 5


def write_partition(data: Path, name: str, log: bytes) -> None:
    directory = data / name
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(log)
    topic_id = _IDS[name.rpartition("-")[0]]
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def cluster_of(replicas: tuple[int, ...], coordinators: int) -> ClusterImage:
    image = PartitionImage(
        replicas, (_DIRECTORY,) * len(replicas), replicas, (), (), 1, 0, 0, 0, (), ()
    )
    counts = {"t": 1, "__transaction_state": coordinators}
    names = [name for name, count in counts.items() if count]
    return ClusterImage(
        topics={
            _IDS[name]: TopicImage(name, _IDS[name], dict.fromkeys(range(counts[name]), image))
            for name in names
        },
        _topic_ids={name: _IDS[name] for name in names},
    )


@pytest.mark.parametrize(
    ("states", "cluster", "verdict"),
    [
        ([(_ONGOING, 0, ["t-0"]), (_COMPLETE_ABORT, 1, [])], ((1,), 1), Verdict.DOES_NOT_SERVE),
        ([(_ONGOING, 0, ["t-0"])], ((1,), 1), Verdict.SAFE),
        ([(_PREPARE_ABORT, 1, ["t-0"])], ((1,), 1), Verdict.SAFE),
        ([(_ONGOING, 1, ["t-1"])], ((1,), 1), Verdict.DOES_NOT_SERVE),
        # Another replica may have the marker.
        ([(_COMPLETE_ABORT, 1, [])], ((1, 2), 1), Verdict.UNKNOWN),
        ([(_COMPLETE_ABORT, 1, [])], None, Verdict.UNKNOWN),
        # No coordinator has the producer.
        ([], ((1,), 1), Verdict.DOES_NOT_SERVE),
        ([], ((1,), 0), Verdict.DOES_NOT_SERVE),
        # A coordinator elsewhere may.
        ([], None, Verdict.SAFE),
    ],
)
def test_open_transaction_that_no_coordinator_ends_is_not_served(
    tmp_path: Path,
    states: list[tuple[int, int, list[str]]],
    cluster: tuple[tuple[int, ...], int] | None,
    verdict: Verdict,
) -> None:
    (tmp_path / "meta.properties").write_text(_IDENTITY)
    first = batch(1, 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    other = batch(3, 1, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    ended = marker(4, 8, 0, commit=True)
    write_partition(tmp_path, "t-0", batch(0, 1) + first + other + ended)
    if states or cluster == ((1,), 1):
        write_partition(tmp_path, "__transaction_state-0", transaction_states(7, *states))
    image = None if cluster is None else cluster_of(*cluster)

    prediction = predict_directories(
        [str(tmp_path)], StartConditions(LogConfig(), image, properties={})
    )

    assert prediction.verdict is verdict, prediction
    one = next(partition for partition in prediction.partitions if partition.topic == "t")
    texts = {Verdict.DOES_NOT_SERVE: one.unserved, Verdict.UNKNOWN: one.unknown}
    assert ("from offset 1 on" in (texts.get(verdict) or "")) == (verdict in texts)
    is_elsewhere = any("open transactions" in text for text in prediction.not_checked)
    assert is_elsewhere == (not states and cluster is None)

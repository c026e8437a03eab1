"""The deletions of retention after a start; `tests/conformance/broker` asks a broker."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage, PartitionImage, TopicImage
from kafka_index.core.cluster.metadata.decoding import ALL_BROKERS, BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import PartitionPrediction, StartPrediction, Verdict
from tests.support.command_line import DUMP

TOPIC, PARTITION = "app-logs", "app-logs-0"
FIRST, SECOND, THIRD, END = 0, 1063, 2117, 2402
HOUR_MS = 3_600_000
#: In 2096, decades after the records.
NOW_MS = 4_000_000_000_000
#: An empty ``server.properties``.
DEFAULTS: dict[str, str] = {}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one partition of three segments, years old."""
    target = tmp_path / "data"
    shutil.copytree(DUMP / PARTITION, target / PARTITION)
    shutil.copy(DUMP / "meta.properties", target)
    (target / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":13}')
    return target


def predict(
    data: Path,
    configs: dict[str, str],
    properties: dict[str, str] | None = DEFAULTS,
    brokers: dict[str, str] | None = None,
    config: LogConfig | None = None,
) -> StartPrediction:
    topic_id = read_topic_id(str(data / PARTITION))
    assert topic_id is not None
    partition = PartitionImage((1,), ("x",), (1,), (), (), 1, 0, 0, 0, (), ())
    cluster = ClusterImage(
        topics={topic_id: TopicImage(TOPIC, topic_id, {0: partition})},
        configs={
            (TOPIC_RESOURCE, TOPIC): configs,
            (BROKER_RESOURCE, ALL_BROKERS): brokers or {},
        },
    )
    conditions = StartConditions(
        config or LogConfig(), cluster, clock=lambda: NOW_MS, properties=properties
    )
    return predict_directories([str(data)], conditions)


def single_partition(found: StartPrediction) -> PartitionPrediction:
    (one,) = found.partitions
    assert one.loaded is not None
    assert one.loaded.log_start_offset == FIRST
    return one


def size_of(data: Path, *bases: int) -> int:
    return sum((data / PARTITION / f"{base:020d}.log").stat().st_size for base in bases)


@pytest.mark.parametrize(("kept", "start"), [((THIRD,), THIRD), ((SECOND, THIRD), SECOND)])
def test_segments_above_retention_bytes_are_deleted(
    data: Path, kept: tuple[int, ...], start: int
) -> None:
    limit = {"retention.ms": "-1", "retention.bytes": str(size_of(data, *kept))}

    one = single_partition(predict(data, limit))

    assert one.log_start_retained == start
    assert f"up to offset {start - 1}, because of retention.bytes" in one.notes[0]


def test_log_one_byte_below_retention_bytes_keeps_one_more_segment(data: Path) -> None:
    limit = {"retention.ms": "-1", "retention.bytes": str(size_of(data, SECOND, THIRD) + 1)}

    assert single_partition(predict(data, limit)).log_start_retained == FIRST


def test_expired_segments_are_deleted_including_the_active_one(data: Path) -> None:
    one = single_partition(predict(data, {"retention.ms": str(HOUR_MS), "retention.bytes": "-1"}))

    assert one.log_start_retained == END
    assert "3 of 3 segments" in one.notes[0]


def test_segment_without_a_time_index_has_the_age_of_its_file(data: Path) -> None:
    (log, *_) = sorted((data / PARTITION).glob("*.log"))
    log.with_suffix(".timeindex").unlink()
    os.utime(log, ns=(NOW_MS * 10**6, NOW_MS * 10**6))

    one = single_partition(predict(data, {"retention.ms": str(HOUR_MS), "retention.bytes": "-1"}))

    assert one.log_start_retained == FIRST


def test_trailing_zeros_of_a_time_index_expire_the_segment(data: Path) -> None:
    (log, *_) = sorted((data / PARTITION).glob("*.log"))
    index = log.with_suffix(".timeindex")
    index.write_bytes(index.read_bytes() + bytes(12))
    # Longer than the records are old, and not than the time since 1970.
    limit = {"retention.ms": str(100 * 365 * 24 * HOUR_MS), "retention.bytes": "-1"}

    assert single_partition(predict(data, limit)).log_start_retained == SECOND


def test_compacted_topic_keeps_expired_segments(data: Path) -> None:
    one = single_partition(predict(data, {"cleanup.policy": "compact", "retention.ms": "1"}))

    assert (one.log_start_retained, one.notes) == (FIRST, ())


@pytest.mark.parametrize(
    ("properties", "start"),
    [
        ({}, END),
        ({"log.retention.hours": "1"}, END),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, FIRST),
    ],
)
def test_topics_without_retention_limits_use_those_of_the_broker(
    data: Path, properties: dict[str, str], start: int
) -> None:
    assert single_partition(predict(data, {}, properties)).log_start_retained == start


def test_cluster_default_overrides_the_settings_file(data: Path) -> None:
    brokers = {"log.retention.ms": "-1"}

    one = single_partition(predict(data, {}, {"log.retention.ms": "1"}, brokers))

    assert one.log_start_retained == FIRST


def test_retention_is_unknown_without_broker_settings(data: Path) -> None:
    prediction = predict(data, {"retention.ms": "1"}, None)

    assert single_partition(prediction).log_start_retained is None
    assert any("without --config" in note for note in prediction.notes)


def test_cleanup_policy_is_unknown_without_broker_settings(data: Path) -> None:
    limits = {"retention.ms": "1", "retention.bytes": "-1"}

    assert single_partition(predict(data, limits, None)).log_start_retained is None
    assert single_partition(
        predict(data, {**limits, "cleanup.policy": "delete"}, None)
    ).log_start_retained


@pytest.mark.parametrize(
    ("configs", "brokers", "start"),
    [
        ({}, {}, FIRST),
        ({}, {"log.cleanup.policy": "delete"}, END),
        ({"cleanup.policy": "compact,delete"}, {}, END),
    ],
)
def test_broker_cleanup_policy_is_the_default(
    data: Path, configs: dict[str, str], brokers: dict[str, str], start: int
) -> None:
    properties = {"log.cleanup.policy": "compact", "log.retention.ms": "1"}

    assert single_partition(predict(data, configs, properties, brokers)).log_start_retained == start


def test_policy_of_one_broker_overrides_the_cluster_default() -> None:
    cluster = ClusterImage(
        configs={
            (BROKER_RESOURCE, ALL_BROKERS): {"log.cleanup.policy": "delete"},
            (BROKER_RESOURCE, "1"): {"log.cleanup.policy": "compact"},
        }
    )
    topics = StartConditions(LogConfig(), cluster, properties={})

    assert [topics.cleanup_policy(TOPIC, node) for node in (1, 2)] == ["compact", "delete"]


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.bytes"])
def test_retention_with_an_invalid_limit_is_unknown(data: Path, name: str) -> None:
    prediction = predict(data, {}, {name: "abc"})

    assert single_partition(prediction).log_start_retained is None
    assert any("are unknown" in note and f"{name}=abc" in note for note in prediction.notes)
    assert not any("without --config" in note for note in prediction.notes)


@pytest.mark.parametrize(
    ("config", "verdict"),
    [
        (LogConfig(), Verdict.DOES_NOT_START),
        (LogConfig(IndexConfig(index_size_max_bytes=1 << 20)), Verdict.SAFE),
    ],
)
def test_index_settings_of_options_override_those_of_the_topic(
    data: Path, config: LogConfig, verdict: Verdict
) -> None:
    prediction = predict(data, {"segment.index.bytes": "12", "retention.ms": "-1"}, config=config)

    assert prediction.verdict is verdict

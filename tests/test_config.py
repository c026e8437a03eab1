"""Settings: Kafka's names, and which of an option, a file and a default wins."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from kafka_index.core.errors import ConfigError
from kafka_index.core.format.config import IndexConfig, LogConfig, to_choice


def properties(folder: Path, text: str) -> Path:
    path = folder / "server.properties"
    path.write_text(text)
    return path


def test_settings_without_a_file_are_kafkas_defaults() -> None:
    assert LogConfig.load().for_topic("any") == IndexConfig(4096, 10 * 1024 * 1024)


def test_settings_of_a_broker_file_are_read_and_others_ignored(tmp_path: Path) -> None:
    path = properties(
        tmp_path,
        "# a comment\n! another\nnode.id=1\nlog.index.interval.bytes = 1000\n"
        "log.index.size.max.bytes:\\\n   2000\nlisteners=PLAINTEXT://:9092\n",
    )
    assert LogConfig.load(path).default == IndexConfig(1000, 2000)


def test_topic_setting_overrides_the_file_for_this_setting_only(tmp_path: Path) -> None:
    path = properties(tmp_path, "log.index.interval.bytes=9\ntopic.a.b-c.segment.index.bytes=800\n")
    assert LogConfig.load(path).for_topic("a.b-c") == IndexConfig(9, 800)
    assert LogConfig.load(path).for_topic("a.b") == IndexConfig(9)


def test_option_wins_over_the_file_for_every_topic(tmp_path: Path) -> None:
    path = properties(tmp_path, "topic.t.index.interval.bytes=5\nlog.index.interval.bytes=6\n")
    config = LogConfig.load(path, index_interval_bytes=7)
    assert config.for_topic("t").index_interval_bytes == 7
    assert config.default.index_interval_bytes == 7


@pytest.mark.parametrize(
    "text",
    [
        "log.index.interval.bytes=4k",
        "log.index.interval.bytes=-1",
        "log.index.size.max.bytes=3",
        "log.index.size.max.bytes=2147483648",
        "topic.orders.index.intervall.bytes=1",
        "topic.orders.index.interval.bytes=",
    ],
)
def test_impossible_setting_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        LogConfig.load(properties(tmp_path, text))


def test_missing_index_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.properties"):
        LogConfig.load(tmp_path / "none.properties")


def test_decompression_limit_is_option_then_property_then_256_mib(
    tmp_path: Path,
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("max.decompressed.bytes=5000\n")
    assert LogConfig.load().max_decompressed_bytes == 256 * 1024 * 1024
    assert LogConfig.load(path).max_decompressed_bytes == 5000
    assert LogConfig.load(path, max_decompressed_bytes=7).max_decompressed_bytes == 7
    with pytest.raises(ConfigError, match=r"max\.decompressed\.bytes is out of range"):
        LogConfig.load(max_decompressed_bytes=0)


class Fruit(Enum):
    APPLE = "apple"
    FIG = "fig"


class Other(Enum):
    FIG = "fig"


@pytest.mark.parametrize("given", [Fruit.FIG, "fig"])
def test_choice_is_a_member_or_its_value(given: object) -> None:
    assert to_choice(Fruit, given, "fruit") is Fruit.FIG


@pytest.mark.parametrize("given", ["FIG", "figs", "", None, 1, True, b"fig", Other.FIG])
def test_invalid_choice_is_rejected_with_all_valid_ones(given: object) -> None:
    with pytest.raises(ConfigError, match=r"fruit is not one of the choices .*apple, fig"):
        to_choice(Fruit, given, "fruit")

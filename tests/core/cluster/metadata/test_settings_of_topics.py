"""The settings of logs: given settings, the metadata log, and Kafka's defaults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kafka_index
from kafka_index import restore_dump
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.records.decompression import DecompressionBudget
from tests.support.command_line import DUMP, run_here
from tests.support.metadata import cluster_record, log_batch
from tests.support.restoring import contents, copy_dump, logs

TOPIC, OTHER = "payments", "audit.trail"
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4


@pytest.mark.parametrize(
    ("option", "file", "topic", "broker", "expected"),
    [
        (100, 200, 300, 400, 100),
        (None, 200, 300, 400, 200),
        (None, None, 300, 400, 300),
        (None, None, None, 400, 400),
        (None, None, None, None, 4096),
        # Values that Kafka rejects are ignored.
        (None, None, "x", 400, 400),
        (None, None, -1, None, 4096),
        # A given default takes precedence.
        (4096, None, 300, 400, 4096),
        (None, 4096, 300, 400, 4096),
    ],
)
@pytest.mark.parametrize("name", ["log.index.interval.bytes", "topic.t.index.interval.bytes"])
def test_setting_precedence_is_option_file_topic_broker(
    tmp_path: Path,
    name: str,
    option: int | None,
    file: int | None,
    topic: int | str | None,
    broker: int | None,
    expected: int,
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("" if file is None else f"{name}={file}\n")
    given = LogConfig.load(path, index_interval_bytes=option)
    configs = {"t": {} if topic is None else {"index.interval.bytes": str(topic)}}
    brokers = {} if broker is None else {"log.index.interval.bytes": str(broker)}

    config = given.with_cluster(configs, brokers)

    assert config.for_topic("t").index_interval_bytes == expected
    if option is None and (file is None or name.startswith("topic.")):
        assert config.for_topic("u").index_interval_bytes == (broker or 4096)


def test_settings_of_a_topic_are_resolved_independently(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("topic.t.segment.index.bytes=800\n")
    cluster = {"t": {"index.interval.bytes": "7", "segment.index.bytes": "900"}}

    config = LogConfig.load(path).with_cluster(cluster, {"producer.id.expiration.ms": "5"})

    assert config.for_topic("t") == IndexConfig(7, 800)
    assert config.producer_id_expiration_ms == 5
    # Settings of the caller are not replaced.
    assert LogConfig(IndexConfig(9)).with_cluster(cluster, {}).for_topic("t") == IndexConfig(9, 900)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump whose metadata log has settings of a topic, and of all brokers."""
    dump = copy_dump(tmp_path / "dump", f"{TOPIC}-0", f"{OTHER}-0", "__cluster_metadata-0")
    metadata = read_metadata([str(dump)], budget=DecompressionBudget(2**24))
    end = metadata.sources[0].end_offset
    settings = [
        (_TOPIC_RESOURCE, TOPIC, "index.interval.bytes", "1024"),
        (_TOPIC_RESOURCE, OTHER, "index.interval.bytes", None),
        (_BROKER_RESOURCE, "", "log.index.interval.bytes", "2048"),
    ]
    records = [
        cluster_record("ConfigRecord", resourceType=kind, resourceName=of, name=name, value=value)
        for kind, of, name, value in settings
    ]
    log = logs(dump / "__cluster_metadata-0")[-1]
    log.write_bytes(log.read_bytes() + log_batch(end, *records))
    return dump


CONFIG = f"log.index.interval.bytes=2048\ntopic.{TOPIC}.index.interval.bytes=1024\n"


def expected_files(tmp_path: Path, dump: Path, partition: str) -> dict[str, bytes]:
    """The files of a build with these settings in a file."""
    path = tmp_path / "given.properties"
    path.write_text(CONFIG)
    shutil.copytree(dump / partition, tmp_path / "alone" / partition)
    kafka_index.build_indexes(tmp_path / "alone", tmp_path / "given", config=LogConfig.load(path))
    return {
        name: data
        for name, data in contents(tmp_path / "given" / partition).items()
        if name.endswith((".index", ".timeindex"))
    }


@pytest.mark.parametrize("partition", [f"{TOPIC}-0", f"{OTHER}-0"])
def test_builds_and_restores_with_topic_configs_write_the_files_of_the_brokers(
    tmp_path: Path, dump: Path, partition: str
) -> None:
    expected = expected_files(tmp_path, dump, partition)
    kafka_index.build_indexes(dump, tmp_path / "library")
    result = run_here("build", "--input", dump, "--output", tmp_path / "command")
    restore_dump(dump, tmp_path / "restored")
    run_here("restore", "--input", dump, "--output", tmp_path / "same", "--cluster", "same")
    run_here(
        *("restore", "--input", dump, "--output", tmp_path / "renamed"),
        *("--rename", f"{TOPIC}=new", "--rename", f"{OTHER}=newer"),
    )

    assert "assumed" not in result.stdout
    renamed = partition.replace(TOPIC, "new").replace(OTHER, "newer")
    for place in ("library", "command", "restored", "same"):
        made = contents(tmp_path / place / partition)
        assert {name: made[name] for name in expected} == expected, place
    made = contents(tmp_path / "renamed" / renamed)
    assert {name: made[name] for name in expected} == expected
    actual = kafka_index.verify(tmp_path / "same")
    rows = [row for row in actual.findings if row.topic is not None]
    assert not [row for row in rows if row.kind.value == "index" and row.found]


def test_assumed_settings_are_reported_without_metadata_or_file(tmp_path: Path, dump: Path) -> None:
    shutil.rmtree(dump / "__cluster_metadata-0")
    given = tmp_path / "given.properties"
    given.write_text(CONFIG)
    text = "index.interval.bytes=4096 was assumed"

    assert text in run_here("build", "--input", dump, "--output", tmp_path / "1").stdout
    assert text in run_here("restore", "--input", dump, "--output", tmp_path / "2").stdout
    config = ("--config", given)
    assert (
        text not in run_here("build", "--input", dump, "--output", tmp_path / "3", *config).stdout
    )
    result = run_here("restore", "--input", dump, "--output", tmp_path / "4", *config)
    assert text not in result.stdout
    option = ("--index-interval-bytes", 4096)
    assert (
        text not in run_here("build", "--input", dump, "--output", tmp_path / "5", *option).stdout
    )


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("log.index.intervall.bytes=1", "did you mean log.index.interval.bytes?"),
        ("index.interval.bytes=1", "did you mean log.index.interval.bytes?"),
        ("log.retention.hour=1", "did you mean log.retention.hours?"),
        ("unheard.of=1", "unheard.of is not a broker setting and has no effect"),
        ("log.index.interval.bytes=1", None),
        ("listener.name.internal.ssl.keystore.location=x", None),
        ("zookeeper.connect=x", None),
    ],
)
@pytest.mark.parametrize("command", ["build", "verify", "predict"])
def test_unknown_property_is_a_warning(
    tmp_path: Path, command: str, line: str, warning: str | None
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=1\n{line}\n")
    more = ("--output", tmp_path / "out", "--dry-run") if command == "build" else ()
    source = DUMP if command == "predict" else DUMP / f"{TOPIC}-0"

    result = run_here(command, "--input", source, "--config", path, *more)

    assert ("warning" in result.stderr) == (warning is not None), result.stderr
    assert (warning or "") in result.stderr

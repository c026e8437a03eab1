"""Restores into a fresh cluster, and into their own: what is written, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kafka_index
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.partition import engine_runner
from kafka_index.commands.restore.request import ClusterMode, RestoreRequest
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import METADATA_LOG
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.records.decompression import DecompressionBudget
from tests.support.command_line import DUMP, run_here
from tests.support.metadata import cluster_record, log_batch, snapshot_of, uuid_of
from tests.support.restoring import MARKER, RestoreRun, contents, copy_dump, logs, restore
from tests.support.segments import batch

PARTITIONS = ("payments-0", "payments-1", "__consumer_offsets-0", "__cluster_metadata-0")
NODE = "version=1\ncluster.id=fresh-cluster\nnode.id=7\ndirectory.id=ZZZZZZZZZZZZZZZZZZZZBw\n"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "dump", *PARTITIONS)


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    """A metadata log directory, as formatting leaves it."""
    path = tmp_path / "metadata"
    path.mkdir()
    shutil.copy2(DUMP / "bootstrap.checkpoint", path)
    (path / "meta.properties").write_text(NODE)
    return path


def test_seeded_cluster_has_topics_ids_settings_and_epochs(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    run = restore(dump, tmp_path / "out", "--seed", controller)

    assert run.code == 0, run.done.stderr
    old, new = cluster_of(DUMP), cluster_of(metadata_log(controller))
    assert {topic.name for topic in new.topics.values()} == {"payments", "__consumer_offsets"}
    for topic in new.topics.values():
        before = old.find_topic(topic.name)
        assert before is not None
        assert topic.topic_id == before.topic_id
        assert new.topic_configs(topic.name).items() <= old.topic_configs(topic.name).items()
        assert set(topic.partitions) == set(before.partitions)
        for number, partition in topic.partitions.items():
            # The first registration elects the leader.
            assert (partition.replicas, partition.isr, partition.leader) == ((7,), (7,), -1)
            assert partition.leader_epoch > before.partitions[number].leader_epoch
    properties = (tmp_path / "out/meta.properties").read_text()
    assert "node.id=7" in properties
    assert "cluster.id=fresh-cluster" in properties
    assert all(
        one.directories[0] in properties
        for topic in new.topics.values()
        for one in topic.partitions.values()
    )


def cluster_of(directory: Path) -> ClusterImage:
    """The cluster that the metadata log in a directory says."""
    result = read_metadata([str(directory)], budget=DecompressionBudget(2**24)).cluster
    assert result is not None
    return result


def metadata_log(controller: Path) -> Path:
    """The metadata log of a controller that has not started: bootstrap records alone."""
    (controller / "__cluster_metadata-0").mkdir(exist_ok=True)
    return controller


def test_bootstrap_records_of_formatting_are_kept(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    before = (controller / "bootstrap.checkpoint").read_bytes()

    restore(dump, tmp_path / "out", "--seed", controller)

    assert (controller / "bootstrap.checkpoint.orig").read_bytes() == before
    after = (controller / "bootstrap.checkpoint").read_bytes()
    footer = len(before) - 75
    assert after.startswith(before[:footer])
    assert after.endswith(before[footer + 8 :])


def test_bootstrap_records_formatted_again_are_not_replaced_by_older_records(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    restore(dump, tmp_path / "out", "--seed", controller)
    original = controller / "bootstrap.checkpoint.orig"
    # What another format run has written begins with another batch.
    changed = log_batch(0, cluster_record("NoOpRecord")) + original.read_bytes()
    (controller / "bootstrap.checkpoint").write_bytes(changed)

    run = restore(dump, tmp_path / "again", "--seed", controller)

    assert run.code == 2
    assert ".orig" in run.done.stderr
    assert (controller / "bootstrap.checkpoint").read_bytes() == changed


@pytest.mark.parametrize("has_log", [False, True])
def test_seeded_cluster_starts_on_the_restored_directory(
    tmp_path: Path, dump: Path, controller: Path, *, has_log: bool
) -> None:
    if has_log:
        # As a controller that was stopped before it was active: an empty log, and no snapshot.
        (controller / METADATA_LOG).mkdir()
        (controller / METADATA_LOG / f"{0:020d}.log").touch()
    run = restore(dump, tmp_path / "out", "--seed", controller)
    assert run.code == 0, run.done.stderr

    predicted = kafka_index.predict(tmp_path / "out", metadata=controller)

    assert predicted.verdict is kafka_index.Verdict.SAFE, predicted


def test_repeated_seeding_starts_from_the_records_of_formatting(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    restore(dump, tmp_path / "out", "--seed", controller)

    run = restore(dump, tmp_path / "again", "--seed", controller)

    assert run.code == 0, run.done.stderr


def used(controller: Path) -> None:
    log = controller / "__cluster_metadata-0"
    log.mkdir()
    (log / "00000000000000000000.log").write_bytes(batch(0))


def unformatted(controller: Path) -> None:
    (controller / "meta.properties").unlink()


def without_bootstrap(controller: Path) -> None:
    (controller / "bootstrap.checkpoint").unlink()


def damaged(controller: Path) -> None:
    path = controller / "bootstrap.checkpoint"
    data = bytearray(path.read_bytes())
    data[120] ^= 1
    path.write_bytes(data)


def test_controller_started_during_the_restore_is_not_seeded(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    request = RestoreRequest(
        inputs=(str(dump),), output=str(tmp_path / "out"), seeds=(str(controller),)
    )
    job = RestoreJob.prepare(request)
    used(controller)
    before = contents(controller)

    with pytest.raises(InputError, match="has records"):
        job.run(engine_runner(ThreadEngine(1)))

    assert contents(controller) == before
    assert not (tmp_path / "out" / MARKER).exists()


@pytest.mark.parametrize("change", [used, unformatted, without_bootstrap, damaged])
def test_invalid_seed_is_rejected_before_the_first_write(
    tmp_path: Path, dump: Path, controller: Path, change: Callable[[Path], None]
) -> None:
    change(controller)
    before = contents(controller)

    run = restore(dump, tmp_path / "out", "--seed", controller)

    assert run.code == 2
    assert contents(controller) == before
    assert not contents(tmp_path / "out")


def test_controllers_of_two_clusters_are_rejected(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    shutil.copytree(controller, tmp_path / "other")
    (tmp_path / "other/meta.properties").write_text(NODE.replace("fresh-cluster", "another"))

    run = restore(dump, tmp_path / "out", "--seed", controller, "--seed", tmp_path / "other")

    assert run.code == 2
    assert "another cluster" in run.done.stderr


def test_output_formatted_for_another_cluster_is_rejected(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/meta.properties").write_text(NODE.replace("fresh-cluster", "another"))

    assert restore(dump, tmp_path / "out", "--seed", controller).code == 2


def test_partition_in_no_dump_is_reported_as_empty(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    shutil.rmtree(dump / "payments-1")

    run = restore(dump, tmp_path / "out", "--seed", controller)

    assert run.code == 1
    assert run.partitions("skipped") == {"payments-1"}
    assert "starts empty" in run.done.stdout


def test_restore_reads_topic_ids_from_the_metadata_log(tmp_path: Path, dump: Path) -> None:
    known = (dump / "payments-0/partition.metadata").read_text()
    for path in dump.glob("*/partition.metadata"):
        path.unlink()

    run = restore(dump, tmp_path / "out")

    assert run.code == 0, run.done.stderr
    assert (tmp_path / "out/payments-0/partition.metadata").read_text() == known


def test_given_topic_settings_override_the_metadata_log(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    restore(
        *(dump, tmp_path / "out", "--seed", controller),
        *("--topic-config", "payments:retention.ms=12345"),
    )

    new = cluster_of(metadata_log(controller))
    assert new.topic_configs("payments")["retention.ms"] == "12345"


def test_retention_is_disabled_without_a_metadata_log(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    shutil.rmtree(dump / "__cluster_metadata-0")

    run = restore(dump, tmp_path / "out", "--seed", controller)

    new = cluster_of(metadata_log(controller))
    assert new.topic_configs("payments") == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert new.topic_configs("__consumer_offsets")["cleanup.policy"] == "compact"
    assert "retention is disabled for topics with unknown settings" in run.done.stdout


def test_same_cluster_gets_its_metadata_log_and_identity(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump")
    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 0, run.done.stderr
    made, before = contents(tmp_path / "out"), contents(dump)
    names = {name for name in before if name.startswith("__cluster_metadata-0/")}
    assert names
    assert all(made[name] == before[name] for name in names | {"bootstrap.checkpoint", MARKER})
    assert sorted(made["meta.properties"].splitlines()) == sorted(
        line for line in before["meta.properties"].splitlines() if not line.startswith(b"#")
    )


def test_metadata_log_with_only_a_snapshot_is_restored(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump")
    log = dump / "__cluster_metadata-0"
    snapshot = snapshot_of(log)
    for each in [*log.glob("*.log"), *log.glob("*index"), *log.glob("*.snapshot")]:
        each.unlink()

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 0, run.done.stderr
    made = tmp_path / "out/__cluster_metadata-0" / snapshot.name
    assert made.read_bytes() == snapshot.read_bytes()


def add_partition(dump: Path, topic: str, topic_id: str | None = None) -> None:
    """Add a partition to a dump, after its metadata log was copied."""
    shutil.copytree(dump / "payments-0", dump / f"{topic}-0")
    if topic_id is not None:
        (dump / f"{topic}-0/partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")


@pytest.mark.parametrize(
    ("topic_id", "code"), [("unknownunknownunknowng", "stray"), (None, "inconsistent_topic_id")]
)
def test_partition_unknown_to_the_cluster_is_skipped(
    tmp_path: Path, dump: Path, topic_id: str | None, code: str
) -> None:
    add_partition(dump, "later", topic_id)

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 1, run.done.stderr
    rows = {f"{row['topic']}-{row['partition']}": row for row in run.rows}
    assert rows["later-0"]["status"] == "skipped"
    assert rows["later-0"]["reason_code"] == code
    assert "later-0" in run.done.stdout
    assert not (tmp_path / "out/later-0").exists()
    assert (tmp_path / "out/payments-0").exists()
    # The dump has some of the cluster's partitions alone: the others begin empty.
    predicted = json.loads(run_here("predict", "--input", tmp_path / "out", "--json").stdout)
    assert predicted["refused"] == []
    assert {each["outcome"] for each in predicted["partitions"]} == {"loaded", "emptied"}


def test_partition_of_another_broker_is_skipped_as_predicted(tmp_path: Path, dump: Path) -> None:
    text = (dump / "meta.properties").read_text()
    (dump / "meta.properties").write_text(re.sub("node.id=.*", "node.id=99", text))

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 2
    assert "broker 99 has no replica of the partition" in run.done.stderr
    assert not (tmp_path / "out").exists()


_MALFORMED = {
    "node.id": ["x", "", "99999999999", "-1", "1 2"],
    "directory.id": ["x", "AAAAAAAAAAAAAAAAAAAABw", "AAAAAAAAAAAAAAAAAAAABwAA"],
    "cluster.id": [""],
    "version": ["x", "2", "99999999999"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, each) for name, found in _MALFORMED.items() for each in found]
)
@pytest.mark.parametrize("place", ["dump", "same", "output", "seed"])
def test_identity_on_which_no_broker_starts_is_rejected(
    tmp_path: Path, dump: Path, controller: Path, place: str, name: str, value: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    folder = {"dump": dump, "same": dump, "output": out, "seed": controller}[place]
    text = re.sub(f"(?m)^{name}=.*$", f"{name}={value}", NODE)
    (folder / "meta.properties").write_text(text)
    before = contents(tmp_path)
    more: tuple[str | Path, ...] = ("--cluster", "same") if place == "same" else ()
    if place in ("output", "seed"):
        more = ("--seed", controller)

    run = restore(dump, out, *more)

    assert run.code == 2, run.done.stderr
    assert re.search(f"no broker starts with this identity: .*{name}", run.done.stderr)
    assert contents(tmp_path) == before


def test_identity_of_a_zookeeper_broker_is_written_in_the_current_version(
    tmp_path: Path, dump: Path
) -> None:
    (dump / "meta.properties").write_text("version=0\ncluster.id=old\nbroker.id=5\n")

    assert restore(dump, tmp_path / "out").code == 0
    lines = (tmp_path / "out/meta.properties").read_text().splitlines()
    assert {"version=1", "cluster.id=old", "node.id=5"} < set(lines)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("paiments:retention.ms=1", "not restored"),
        ("payments:retention.ms=1d", "no broker starts"),
        ("payments:segment.bytes=100", "no broker starts"),
        ("payments:cleanup.policy=compacted", "no broker starts"),
        ("payments:retention.mss=1", "did you mean retention.ms"),
    ],
)
def test_invalid_topic_settings_are_rejected_before_the_first_write(
    tmp_path: Path, dump: Path, controller: Path, config: str, message: str
) -> None:
    before = contents(tmp_path)

    run = restore(dump, tmp_path / "out", "--seed", controller, "--topic-config", config)

    assert run.code == 2
    assert message in run.done.stderr
    assert contents(tmp_path) == before


def test_two_topics_with_the_same_id_are_rejected(
    tmp_path: Path, dump: Path, controller: Path
) -> None:
    add_partition(dump, "copied")

    run = restore(dump, tmp_path / "out", "--seed", controller)
    assert run.code == 2
    assert "--rename" in run.done.stderr

    run = restore(dump, tmp_path / "out", "--seed", controller, "--rename", "copied=other")
    assert run.code == 0, run.done.stderr


def test_same_cluster_without_a_metadata_log_is_rejected(tmp_path: Path, dump: Path) -> None:
    shutil.rmtree(dump / "__cluster_metadata-0")

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 2
    assert "metadata log" in run.done.stderr


def test_epoch_of_a_single_broker_comes_from_its_registration(tmp_path: Path, dump: Path) -> None:
    (dump / MARKER).unlink()

    restore(dump, tmp_path / "out", "--cluster", "same")

    (broker,) = cluster_of(dump).brokers.values()
    assert f'"brokerEpoch":{broker.broker_epoch}}}' in (tmp_path / "out" / MARKER).read_text()


def with_brokers(dump: Path, *numbers: int) -> None:
    """Let the metadata log of a dump know more brokers."""
    result = read_metadata([str(dump)], budget=DecompressionBudget(2**24))
    (end,) = (source.end_offset for source in result.sources if "__cluster" in source.path)
    log = logs(dump / "__cluster_metadata-0")[-1]
    records = [
        cluster_record(
            "RegisterBrokerRecord", brokerId=number, incarnationId=uuid_of(number), brokerEpoch=40
        )
        for number in numbers
    ]
    log.write_bytes(log.read_bytes() + log_batch(end, *records))


def test_same_cluster_with_other_brokers_is_rejected(
    tmp_path: Path,
) -> None:
    dump = copy_dump(tmp_path / "dump")
    with_brokers(dump, 2)
    (dump / MARKER).unlink()

    run = restore(dump, tmp_path / "out", "--cluster", "same")
    assert run.code == 2
    assert "--all-brokers-restored" in run.done.stderr
    assert not (tmp_path / "out" / MARKER).exists()

    run = restore(dump, tmp_path / "out", "--cluster", "same", "--all-brokers-restored")
    assert run.code == 0, run.done.stderr
    # Which of the brokers' epochs is the last one is not known then.
    assert '"brokerEpoch":-1}' in (tmp_path / "out" / MARKER).read_text()


@pytest.fixture
def metadata(tmp_path: Path, dump: Path) -> Path:
    """The metadata log of the dump, in a directory of its own."""
    path = tmp_path / "separate"
    path.mkdir()
    (dump / "__cluster_metadata-0").rename(path / "__cluster_metadata-0")
    (dump / "bootstrap.checkpoint").rename(path / "bootstrap.checkpoint")
    text = (dump / "meta.properties").read_text()
    other = re.sub("directory.id=.*", "directory.id=ZZZZZZZZZZZZZZZZZZZZCg", text)
    (path / "meta.properties").write_text(other)
    return path


def restore_same(tmp_path: Path, dump: Path, metadata: Path, target: Path) -> RestoreRun:
    return restore(
        *(dump, tmp_path / "out", "--input", metadata),
        *("--cluster", "same", "--metadata-output", target),
    )


def test_separate_metadata_log_is_restored_to_a_separate_directory(
    tmp_path: Path, dump: Path, metadata: Path
) -> None:
    restore_same(tmp_path, dump, metadata, tmp_path / "new")

    assert contents(tmp_path / "new") == contents(metadata)


@pytest.mark.parametrize(
    "place", ["separate", "dump", "separate/__cluster_metadata-0/in", "out/in"]
)
def test_metadata_output_in_the_input_or_output_is_rejected(
    tmp_path: Path, dump: Path, metadata: Path, place: str
) -> None:
    before = contents(metadata), contents(dump)

    run = restore_same(tmp_path, dump, metadata, tmp_path / place)

    assert run.code == 2
    assert "--metadata-output" in run.done.stderr
    assert (contents(metadata), contents(dump)) == before
    assert not contents(tmp_path / "out")


def begin_same(tmp_path: Path, dump: Path, metadata: Path) -> RestoreRequest:
    """Begin a restore to the same cluster, which ends when the logs are there."""
    request = RestoreRequest(
        inputs=(
            str(dump),
            str(metadata),
        ),
        output=str(tmp_path / "out"),
        cluster=ClusterMode.SAME,
        metadata_output=str(tmp_path / "new"),
    )
    with pytest.raises(KeyboardInterrupt):
        RestoreJob.prepare(request).run(_interrupted)
    return request


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_metadata_output_used_by_a_controller_is_rejected(
    tmp_path: Path, dump: Path, metadata: Path
) -> None:
    request = begin_same(tmp_path, dump, metadata)
    shutil.copytree(metadata, tmp_path / "new", dirs_exist_ok=True)
    log = next((tmp_path / "new").glob("*/*.log"))
    log.write_bytes(log.read_bytes() + b"more")
    before = contents(tmp_path / "new")

    with pytest.raises(InputError, match="not an empty directory"):
        RestoreJob.prepare(request)

    assert contents(tmp_path / "new") == before


def test_other_metadata_output_does_not_complete_a_restore(
    tmp_path: Path, dump: Path, metadata: Path
) -> None:
    request = begin_same(tmp_path, dump, metadata)

    with pytest.raises(InputError, match="another input or other options"):
        RestoreJob.prepare(replace(request, metadata_output=str(tmp_path / "other")))


def test_metadata_output_is_locked(tmp_path: Path, dump: Path, metadata: Path) -> None:
    request = RestoreRequest(
        inputs=(
            str(dump),
            str(metadata),
        ),
        output=str(tmp_path / "out"),
        cluster=ClusterMode.SAME,
        metadata_output=str(tmp_path / "new"),
    )
    locked: list[bool] = []

    def record_lock(*_: object) -> None:
        locked.append((tmp_path / "new/.lock").exists())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RestoreJob.prepare(request).run(record_lock)

    assert locked == [True]


def test_seed_in_the_input_is_rejected(tmp_path: Path, dump: Path, controller: Path) -> None:
    inside = dump / "controller"
    shutil.copytree(controller, inside)

    run = restore(dump, tmp_path / "out", "--seed", inside)

    assert run.code == 2
    assert "is inside the input" in run.done.stderr
    assert not (inside / "bootstrap.checkpoint.orig").exists()


def test_partition_assigned_here_but_not_in_the_dump_is_reported_as_empty(
    tmp_path: Path,
) -> None:
    dump = copy_dump(tmp_path / "dump")
    shutil.rmtree(dump / "payments-1")

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 1
    assert run.partitions("skipped") == {"payments-1"}
    assert "starts empty" in run.done.stdout


def test_same_cluster_with_selected_topics_is_rejected(tmp_path: Path, dump: Path) -> None:
    run = restore(dump, tmp_path / "out", "--cluster", "same", "--topics", "payments")

    assert run.code == 2
    assert "--topics" in run.done.stderr
    assert not contents(tmp_path / "out")


def test_torn_metadata_log_is_copied_and_reported(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump")
    log = max((dump / "__cluster_metadata-0").glob("*.log"))
    os.truncate(log, log.stat().st_size - 7)

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 1
    assert "the metadata log is damaged" in " ".join(run.done.stdout.split())
    assert (tmp_path / "out" / MARKER).exists()


def test_quorum_state_on_which_no_node_starts_is_rejected(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump")
    (dump / "__cluster_metadata-0/quorum-state").write_text("")

    run = restore(dump, tmp_path / "out", "--cluster", "same")

    assert run.code == 2
    assert "quorum-state" in run.done.stderr
    assert not (tmp_path / "out").exists()

"""The actions of a starting broker; `tests/conformance/test_predicted_partitions.py` asks Kafka."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_index
from kafka_index.config import LogConfig
from kafka_index.errors import InputError
from kafka_index.metadata import ClusterImage, PartitionImage, TopicImage
from kafka_index.startup import (
    Outcome,
    PartitionPrediction,
    Prediction,
    SegmentAction,
    StartConditions,
    Verdict,
    predict_directories,
    suggest,
)
from kafka_index.state.snapshots import decode_snapshot, encode_snapshot
from tests.support.child_processes import in_child
from tests.support.command_line import DUMP
from tests.support.restoring import copy_dump

PARTITION = "app-logs-0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a broker that stopped cleanly, with a few partitions."""
    target = copy_dump(tmp_path / "data", PARTITION, "payments-0", "customer-profiles-0")
    (target / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":13}')
    return target


def predict(data: Path, cluster: ClusterImage | None = None) -> Prediction:
    before = contents(data)
    conditions = StartConditions(LogConfig(), cluster, properties={})
    found = predict_directories([str(data)], conditions)
    assert contents(data) == before
    return found


def contents(data: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in data.rglob("*")}


def of(found: Prediction, name: str = PARTITION) -> PartitionPrediction:
    (one,) = [one for one in found.partitions if one.directory.endswith(f"/{name}")]
    return one


def logs(data: Path, name: str = PARTITION) -> list[Path]:
    return sorted((data / name).glob("*.log"))


def cut(path: Path, lost: int) -> None:
    path.write_bytes(path.read_bytes()[:-lost])


def actions(one: PartitionPrediction) -> list[SegmentAction]:
    return [segment.action for segment in one.segments]


def test_what_a_broker_left_is_safe(data: Path) -> None:
    found = predict(data)

    assert found.verdict is Verdict.SAFE
    assert {one.outcome for one in found.partitions} == {Outcome.LOADED}
    assert {action for one in found.partitions for action in actions(one)} == {SegmentAction.KEEP}


def test_a_torn_active_log_hides_its_whole_segment_behind_the_marker(data: Path) -> None:
    *_, last = logs(data)
    _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
    last.write_bytes(last.read_bytes()[: position + 100])

    found = predict(data)
    one = of(found)

    assert found.verdict is Verdict.LOSES
    assert one.loaded is not None
    assert one.loaded.log_end_offset == int(last.stem)
    assert one.lost.first_offset == int(last.stem)
    assert one.lost.records > 100
    assert one.lost.first_timestamp_ms is not None


def test_a_batch_torn_after_the_last_index_entry_stays_and_hides_what_is_appended(
    data: Path,
) -> None:
    cut(logs(data)[-1], 100)

    found = predict(data)
    one = of(found)

    assert found.verdict is Verdict.LOSES
    assert one.loaded is not None
    assert one.loaded.log_end_offset == 2378
    assert one.torn_bytes == 1350


def test_without_the_marker_only_the_torn_batch_goes(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    cut(logs(data)[-1], 100)

    one = of(predict(data))

    assert actions(one)[-1] is SegmentAction.CUT
    assert one.lost.records == 0


def test_a_bad_checksum_above_the_recovery_point_deletes_all_later_segments(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    first = logs(data)[0]
    damaged = bytearray(first.read_bytes())
    damaged[-1] ^= 1
    first.write_bytes(damaged)

    one = of(predict(data))

    assert actions(one) == [SegmentAction.CUT, SegmentAction.DELETE, SegmentAction.DELETE]
    assert one.log_end_before == 2402
    assert one.loaded is not None
    assert one.lost.records == one.log_end_before - one.loaded.log_end_offset


def test_zeros_after_the_active_log_keep_a_broker_from_starting_behind_the_marker(
    data: Path,
) -> None:
    last = logs(data)[-1]
    last.write_bytes(last.read_bytes() + bytes(100))

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert found.refused[0].file == str(last)
    assert of(found).outcome is Outcome.REFUSED


def test_a_log_that_cannot_be_read_where_a_transaction_is_open_keeps_a_broker_from_starting(
    data: Path,
) -> None:
    directory = data / "payments-1"
    shutil.copytree(DUMP / directory.name, directory)
    snapshot = max(directory.glob("*.snapshot"))
    entries = decode_snapshot(snapshot.read_bytes()).copy()
    is_open = entries["current_txn_first_offset"] >= 0
    assert is_open.sum() == 1
    _, second, third, *_ = (int(path.stem) for path in logs(data, directory.name))
    entries["current_txn_first_offset"][is_open] = third - 1
    snapshot.write_bytes(encode_snapshot(entries))
    one = of(predict(data), directory.name)
    assert one.outcome is Outcome.LOADED

    damaged = directory / f"{second:020d}.log"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert found.refused[0].file == str(damaged)


def test_a_compressed_message_of_a_magic_below_0_keeps_a_broker_from_starting(data: Path) -> None:
    last = logs(data)[-1]
    _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
    log = bytearray(last.read_bytes())
    log[position + 16 : position + 18] = b"\x80\x01"
    last.write_bytes(log)

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert found.refused[0].file == str(last)


def test_a_log_start_above_the_log_end_empties_a_partition(data: Path) -> None:
    (data / "log-start-offset-checkpoint").write_text("0\n1\napp-logs 0 999999\n")

    one = of(predict(data))

    assert one.outcome is Outcome.EMPTIED
    assert one.lost.records == 2402
    assert one.loaded is not None
    assert one.loaded.log_end_offset == 999999


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nothing-here")])
def test_what_has_the_name_of_a_log_and_is_no_file_is_a_log_that_is_gone(
    data: Path, make: Callable[[Path], None]
) -> None:
    first, second, *_ = logs(data)
    first.unlink()
    make(first)

    found = predict(data)

    assert found.verdict is Verdict.LOSES
    (missing,) = of(found).missing
    assert (missing.first_offset, missing.end_offset) == (0, int(second.stem))


@pytest.mark.parametrize("link", ["no-folder/file", "no-file"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_that_a_broker_cannot_make_where_its_link_leads_keeps_it_from_starting(
    data: Path, suffix: str, link: str
) -> None:
    index = logs(data)[0].with_suffix(suffix)
    index.unlink(missing_ok=True)
    index.symlink_to(data / link)

    found = predict(data)

    is_made = suffix == ".txnindex" or link == "no-file"
    assert (found.verdict is not Verdict.DOES_NOT_START) is is_made


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(os.devnull)])
def test_an_index_without_a_size_is_read_as_an_empty_one_and_cannot_be_rebuilt(
    data: Path, make: Callable[[Path], None], suffix: str
) -> None:
    first, *_, last = logs(data)
    verdicts = []
    for log in (first, last):
        index = log.with_suffix(suffix)
        content = index.read_bytes()
        index.unlink()
        make(index)
        verdicts.append(predict(data).verdict)
        index.unlink()
        index.write_bytes(content)
    # Without the marker, the first one is rebuilt.
    first.with_suffix(suffix).unlink()
    make(first.with_suffix(suffix))
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    verdicts.append(predict(data).verdict)

    assert verdicts == [Verdict.SAFE, Verdict.DOES_NOT_START, Verdict.DOES_NOT_START]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, -1])
def test_a_transaction_index_that_is_a_pipe_keeps_a_broker_from_starting(
    data: Path, number: int, *, is_clean: bool
) -> None:
    index = logs(data)[number].with_suffix(".txnindex")
    index.unlink(missing_ok=True)
    os.mkfifo(index)
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()

    assert predict(data).verdict is Verdict.DOES_NOT_START


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_transaction_index_that_is_the_null_device_is_read_as_an_empty_one(
    data: Path, *, is_clean: bool
) -> None:
    for log in (data / "payments-0").glob("*.log"):
        log.with_suffix(".txnindex").unlink(missing_ok=True)
        log.with_suffix(".txnindex").symlink_to(os.devnull)
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()

    assert predict(data).verdict is Verdict.SAFE


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_that_is_another_device_is_not_predicted(data: Path, suffix: str) -> None:
    index = logs(data)[0].with_suffix(suffix)
    index.unlink(missing_ok=True)
    index.symlink_to("/dev/full")

    found = predict(data)

    assert found.verdict is Verdict.UNKNOWN
    assert "is a device" in (of(found).unknown or "")


_NOWHERE = ["itself", "/nonexistent/file"]


def link_to_nowhere(path: Path, target: str) -> None:
    """Put a link that no file can be created through in the place of a file."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.name if target == "itself" else target)


@pytest.mark.parametrize("target", _NOWHERE)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_a_link_to_nowhere_keeps_a_broker_from_starting(
    data: Path, suffix: str, target: str
) -> None:
    link_to_nowhere(logs(data)[0].with_suffix(suffix), target)

    assert predict(data).verdict is Verdict.DOES_NOT_START


@pytest.mark.parametrize("target", _NOWHERE)
def test_a_log_that_is_recovered_is_lost_where_its_transaction_index_cannot_be_made(
    data: Path, target: str
) -> None:
    last = max((data / "payments-0").glob("*.log"))
    link_to_nowhere(last.with_suffix(".txnindex"), target)
    clean = predict(data)
    (data / ".kafka_cleanshutdown").unlink()

    assert clean.verdict is Verdict.SAFE
    loaded = of(predict(data), "payments-0").loaded
    assert loaded is not None
    assert loaded.log_end_offset == int(last.stem)


@pytest.mark.parametrize("target", _NOWHERE)
def test_a_snapshot_that_cannot_be_made_costs_the_log_or_keeps_a_broker_from_starting(
    data: Path, target: str
) -> None:
    link_to_nowhere(max((data / PARTITION).glob("*.snapshot")), target)
    clean = predict(data)
    (data / ".kafka_cleanshutdown").unlink()

    assert clean.verdict is Verdict.DOES_NOT_START
    assert predict(data).verdict is Verdict.LOSES


@pytest.mark.parametrize(("target", "starts"), [("itself", True), ("/nonexistent/file", False)])
def test_meta_properties_that_are_a_link_in_circles_take_the_directory_offline(
    data: Path, target: str, *, starts: bool
) -> None:
    other = moved_with_future(data)
    link_to_nowhere(other / "meta.properties", target)

    found = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert (found.verdict is not Verdict.DOES_NOT_START) is starts


def test_a_partition_metadata_that_is_a_link_in_circles_is_missing(data: Path) -> None:
    link_to_nowhere(data / PARTITION / "partition.metadata", "itself")

    assert of(predict(data)).outcome is Outcome.STRAY


@pytest.mark.parametrize("target", _NOWHERE)
def test_a_lock_that_cannot_be_made_keeps_a_broker_from_starting(data: Path, target: str) -> None:
    link_to_nowhere(data / ".lock", target)

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert [refusal.file for refusal in found.refused] == [str(data / ".lock")]


def test_a_socket_where_the_first_log_is_made_takes_the_data_directory_offline(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (data / PARTITION).iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    # Its whole path may be too long for a socket.
    monkeypatch.chdir(data / PARTITION)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{0:020d}.log")

    assert predict(data).verdict is Verdict.DOES_NOT_START


def test_a_lock_that_is_a_pipe_is_not_waited_for(data: Path) -> None:
    os.mkfifo(data / ".lock")

    assert predict(data).verdict is Verdict.SAFE


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("recovery-point-offset-checkpoint", True),
        ("log-start-offset-checkpoint", True),
        ("replication-offset-checkpoint", True),
        (f"{PARTITION}/leader-epoch-checkpoint", True),
        (f"{PARTITION}/partition.metadata", False),
        ("meta.properties", False),
    ],
)
def test_a_small_file_that_is_the_null_device_is_read_as_an_empty_one(
    data: Path, name: str, *, starts: bool
) -> None:
    (data / name).unlink(missing_ok=True)
    (data / name).symlink_to(os.devnull)

    assert (predict(data).verdict is not Verdict.DOES_NOT_START) is starts


@pytest.mark.parametrize("node", ["x", "-1", "99999999999", "1.0"])
def test_no_broker_starts_with_a_node_id_that_is_none(data: Path, node: str) -> None:
    found = kafka_index.predict(data, config={"node.id": node})

    assert found.verdict is Verdict.DOES_NOT_START
    assert "node.id" in [refusal.file for refusal in found.refused]


def test_no_broker_of_this_release_starts_with_zookeeper(data: Path) -> None:
    settings = {"zookeeper.connect": "localhost:2181"}

    found = kafka_index.predict(data, config=settings)
    of_kraft = kafka_index.predict(data, config={**settings, "process.roles": "broker"})

    assert found.verdict is Verdict.DOES_NOT_START
    assert [refusal.file for refusal in found.refused] == ["zookeeper.connect"]
    assert of_kraft.verdict is Verdict.SAFE


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_broker_waits_for_ever_that_writes_a_snapshot_into_a_pipe(
    data: Path, *, is_clean: bool
) -> None:
    snapshot = max((data / PARTITION).glob("*.snapshot"))
    snapshot.unlink()
    os.mkfifo(snapshot)
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert [refusal.file for refusal in found.refused] == [str(snapshot)]


@pytest.mark.parametrize(
    ("log_dirs", "is_known"), [("{data}", True), ("", False), ("/of/another/machine", False)]
)
@pytest.mark.parametrize("has_log", [True, False])
def test_a_metadata_directory_of_the_settings_that_is_not_here_is_not_safe(
    data: Path, log_dirs: str, *, is_known: bool, has_log: bool
) -> None:
    if has_log:
        (data / "__cluster_metadata-0").mkdir()
    settings = {"log.dirs": log_dirs.format(data=data), "metadata.log.dir": "/not/here"}

    found = kafka_index.predict(data, config=settings)

    assert (found.verdict is Verdict.DOES_NOT_START) is is_known
    assert (found.verdict is Verdict.SAFE) is (not has_log and not is_known)
    assert bool(found.unknown) is (has_log and not is_known)
    files = [refusal.file for refusal in found.refused]
    unexpected = [str(data / "__cluster_metadata-0")] * (has_log and is_known)
    assert files == [*unexpected, *["/not/here/meta.properties"] * is_known]


def test_a_metadata_log_in_the_second_of_the_data_directories_is_not_safe(data: Path) -> None:
    (data / "__cluster_metadata-0").mkdir()

    found = kafka_index.predict(data, config={"log.dirs": f"/not/here,{data}"})

    assert found.verdict is not Verdict.SAFE
    assert found.unknown


@pytest.mark.parametrize("first", ["data", "other"])
def test_the_metadata_log_is_in_the_first_data_directory_by_default(data: Path, first: str) -> None:
    other = data.with_name("other")
    other.mkdir()
    text = (data / "meta.properties").read_text()
    (other / "meta.properties").write_text(text.replace(directory_id(data), "A" * 20 + "ZQ"))
    (data / "__cluster_metadata-0").mkdir()
    paths = sorted([str(data), str(other)], key=lambda path: Path(path).name != first)
    conditions = StartConditions(LogConfig(), properties={"log.dirs": ",".join(paths)})

    found = predict_directories(paths, conditions)

    assert (found.verdict is Verdict.DOES_NOT_START) is (first == "other")


def test_a_missing_middle_segment_is_a_gap(data: Path) -> None:
    for path in (data / PARTITION).glob(f"{logs(data)[1].stem}.*"):
        path.unlink()

    found = predict(data)

    (gap,) = of(found).missing
    assert (gap.first_offset, gap.last_offset) == (1063, 2116)
    # Without the metadata log, the topic may be compacted.
    assert found.verdict is Verdict.UNKNOWN
    assert of(found).notes[0].startswith("gap: no segment holds offsets 1063 to 2116")


def test_a_partition_without_its_metadata_is_stray(data: Path) -> None:
    (data / PARTITION / "partition.metadata").unlink()

    found = predict(data)

    assert of(found).outcome is Outcome.STRAY
    assert found.verdict is Verdict.DOES_NOT_SERVE


def cluster_with(topic_id: str, replicas: tuple[int, ...], directory: str) -> ClusterImage:
    partition = PartitionImage(
        replicas, (directory,) * len(replicas), replicas, (), (), 1, 0, 0, 0, (), ()
    )
    return ClusterImage(topics={topic_id: TopicImage("app-logs", topic_id, {0: partition})})


def topic_id(data: Path) -> str:
    (path,) = data.glob(f"{PARTITION}*/partition.metadata")
    return path.read_text().split()[-1]


def directory_id(data: Path) -> str:
    lines = (data / "meta.properties").read_text().splitlines()
    (found,) = [line.partition("=")[2] for line in lines if "directory.id" in line]
    return found


@pytest.mark.parametrize(("replicas", "outcome"), [((1,), Outcome.LOADED), ((2,), Outcome.STRAY)])
def test_a_partition_of_other_brokers_is_stray(
    data: Path, replicas: tuple[int, ...], outcome: Outcome
) -> None:
    cluster = cluster_with(topic_id(data), replicas, "x")

    assert of(predict(data, cluster)).outcome is outcome


def test_a_partition_of_another_topic_id_is_stray(data: Path) -> None:
    cluster = cluster_with("A" * 21 + "B", (1,), "x")

    assert of(predict(data, cluster)).outcome is Outcome.STRAY


def test_a_partition_whose_directory_is_missing_comes_back_empty(data: Path) -> None:
    cluster = cluster_with(topic_id(data), (1,), directory_id(data))
    shutil.rmtree(data / PARTITION)

    one = of(predict(data, cluster))

    assert one.outcome is Outcome.EMPTIED
    assert "missing" in one.notes[0]


def test_a_directory_without_meta_properties_does_not_start(data: Path) -> None:
    (data / "meta.properties").unlink()

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert found.partitions == ()


@pytest.mark.parametrize("other_id", ["x", ""])
def test_directories_of_two_clusters_do_not_start(
    data: Path, tmp_path: Path, other_id: str
) -> None:
    other = tmp_path / "a-directory-before"
    other.mkdir()
    text = re.sub("cluster.id=.*", f"cluster.id={other_id}", (data / "meta.properties").read_text())
    (other / "meta.properties").write_text(text)

    found = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert found.verdict is Verdict.DOES_NOT_START
    assert "cluster.id" in found.refused[0].reason


def test_a_directory_where_the_first_log_is_made_takes_the_data_directory_offline(
    data: Path,
) -> None:
    for path in (data / PARTITION).iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    (data / PARTITION / f"{0:020d}.log").mkdir()

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert found.refused[0].file.endswith(f"{0:020d}.log")


def with_first_metadata(data: Path, content: bytes) -> Prediction:
    """Predict a start with these first records of the metadata, in a directory of their own."""
    metadata = data.with_name("of-metadata")
    metadata.mkdir()
    lines = (data / "meta.properties").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("directory.id")]
    (metadata / "meta.properties").write_text("".join(kept))
    (metadata / "bootstrap.checkpoint").write_bytes(content)
    conditions = StartConditions(LogConfig(), metadata_directory=str(metadata))
    return predict_directories([str(data)], conditions)


def test_a_broker_reads_the_first_metadata_whatever_its_checksum(data: Path) -> None:
    content = bytearray((DUMP / "bootstrap.checkpoint").read_bytes())
    content[17] ^= 1

    assert with_first_metadata(data, bytes(content)).verdict is Verdict.SAFE


def test_first_metadata_in_a_directory_that_may_not_be_that_of_the_metadata_log_are_not_safe(
    data: Path,
) -> None:
    (data / "bootstrap.checkpoint").write_bytes(bytes(40))
    known = kafka_index.predict(data, config={"log.dirs": str(data)})

    assert known.verdict is Verdict.DOES_NOT_START
    assert predict(data).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [(60, 0, "has no record"), (57, 1, "cannot be read"), (181, 0x8C, None), (0, 1, None)],
)
def test_first_metadata_that_cannot_be_read_keep_a_broker_from_starting(
    data: Path, at: int, value: int, reason: str | None
) -> None:
    content = bytearray((DUMP / "bootstrap.checkpoint").read_bytes())
    content[at] = value

    found = with_first_metadata(data, bytes(content))

    if reason is None:
        assert found.verdict is Verdict.UNKNOWN
    else:
        assert found.verdict is Verdict.DOES_NOT_START
        assert reason in found.refused[0].reason


def test_a_zero_tail_of_the_first_metadata_keeps_a_broker_from_starting(data: Path) -> None:
    found = with_first_metadata(data, bytes(40))

    assert [one.reason.partition(" at")[0] for one in found.refused] == ["the batch"]


def test_a_broker_halts_once_a_reader_takes_its_last_data_directory_offline(data: Path) -> None:
    first, *_ = logs(data)
    first.with_suffix(".index").unlink()
    first.with_suffix(".index").mkdir()
    conditions = StartConditions(LogConfig(), properties={})
    alone = predict(data)
    other = moved_with_future(data, "customer-profiles-0")
    shutil.rmtree(next(data.glob("customer-profiles-0.*-future")))
    paths = [str(data), str(other)]
    served = predict_directories(paths, conditions)
    (other / "recovery-point-offset-checkpoint").write_bytes(b"\xff")
    last = predict_directories(paths, conditions)

    found = [alone, served, last]
    assert {one.verdict for one in found} == {Verdict.DOES_NOT_SERVE}
    halts = [any("the broker halts" in text for text in one.unserved) for one in found]
    assert halts == [True, False, True]


@pytest.mark.parametrize(
    ("text", "starts"), [("0\n2\na 0 1\n", False), ("0\n1\na 0\n", False), ("0\n1\na 0 x\n", True)]
)
def test_a_malformed_checkpoint_takes_the_directory_offline(
    data: Path, text: str, *, starts: bool
) -> None:
    (data / "recovery-point-offset-checkpoint").write_text(text)

    assert (predict(data).verdict is not Verdict.DOES_NOT_START) is starts


def test_a_swapped_log_without_an_index_is_kept_as_it_is(data: Path) -> None:
    log = max((data / PARTITION).glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    log.rename(log.with_name(f"{log.name}.swap"))

    last = of(predict(data)).segments[-1]

    assert (last.action, last.cut_at_bytes) == (SegmentAction.REPLACE, None)


def test_a_log_whose_offsets_do_not_fit_is_refused_and_not_cut(data: Path) -> None:
    log = max((data / PARTITION).glob("*.log"))
    content = bytearray(log.read_bytes())
    content[0] ^= 1  # The base offset, which is outside the checksum.
    log.write_bytes(content)
    (data / ".kafka_cleanshutdown").unlink()

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_START
    assert "offset_overflow" in found.refused[0].reason


def test_a_future_copy_beside_its_partition_keeps_a_broker_from_starting(data: Path) -> None:
    shutil.copytree(data / PARTITION, data / FUTURE)

    assert predict(data).verdict is Verdict.DOES_NOT_START


FUTURE = f"{PARTITION}.0123456789abcdef0123456789abcdef-future"


def moved_with_future(data: Path, name: str = PARTITION) -> Path:
    """Move a partition to a second data directory, and leave a future replica of it here."""
    other = data.with_name("data-2")
    other.mkdir()
    (data / name).rename(other / name)
    shutil.copytree(other / name, data / FUTURE.replace(PARTITION, name))
    text = (data / "meta.properties").read_text()
    (other / "meta.properties").write_text(text.replace(directory_id(data), "A" * 20 + "ZQ"))
    (other / ".kafka_cleanshutdown").touch()
    for each in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        shutil.copy(data / each, other)
    return other


def predict_both(data: Path, other: Path) -> Prediction:
    cluster = cluster_with(topic_id(data), (1,), directory_id(data))
    conditions = StartConditions(LogConfig(), cluster, properties={})
    return predict_directories([str(data), str(other)], conditions)


def test_a_future_replica_takes_the_place_of_the_current_one_where_the_metadata_has_it(
    data: Path,
) -> None:
    other = moved_with_future(data)

    found = predict_both(data, other)

    outcomes = {one.directory: one.outcome for one in found.partitions if one.topic == "app-logs"}
    assert outcomes == {
        str(data / FUTURE): Outcome.LOADED,
        str(other / PARTITION): Outcome.REPLACED,
    }


def test_a_future_replica_that_lacks_the_end_loses_it(data: Path) -> None:
    other = moved_with_future(data)
    last = max((data / FUTURE).glob("*.log"))
    for path in (data / FUTURE).glob(f"{last.stem}.*"):
        path.unlink()

    lost = of(predict_both(data, other)).lost

    assert (lost.first_offset, lost.last_offset) == (int(last.stem), 2401)


def test_a_stray_partition_in_a_directory_that_is_offline_keeps_a_broker_from_starting(
    data: Path,
) -> None:
    other = moved_with_future(data)
    (data / "log-start-offset-checkpoint").write_text("x\n")

    found = predict_both(data, other)

    assert found.verdict is Verdict.DOES_NOT_START
    assert any("offline by then" in one.reason for one in found.refused)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_marker_that_is_a_directory_is_deleted_where_it_is_empty(
    data: Path, *, is_empty: bool
) -> None:
    marker = data / ".kafka_cleanshutdown"
    marker.unlink()
    marker.mkdir()
    if not is_empty:
        (marker / "x").touch()

    assert predict(data).verdict is (Verdict.SAFE if is_empty else Verdict.DOES_NOT_START)


def test_a_marker_that_is_a_link_to_a_directory_is_deleted(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    (data / ".kafka_cleanshutdown").symlink_to(data / PARTITION)

    assert predict(data).verdict is Verdict.SAFE


@pytest.mark.parametrize("mark", ["delete", "stray"])
def test_a_marked_directory_is_only_reported(data: Path, mark: str) -> None:
    name = f"{PARTITION}.0123456789abcdef0123456789abcdef-{mark}"
    shutil.copytree(data / PARTITION, data / name)

    found = predict(data)

    assert found.verdict is Verdict.SAFE
    assert any(name in note for note in found.notes)


def test_a_directory_that_is_no_partition_keeps_a_broker_from_starting(data: Path) -> None:
    (data / "lost+found").mkdir()

    assert predict(data).verdict is Verdict.DOES_NOT_START


def test_a_directory_that_a_broker_holds_is_refused(data: Path) -> None:
    with (data / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)

        # A process does not meet its own locks.
        assert in_child(lambda: _expect_refusal(data)) == 0


def _expect_refusal(data: Path) -> None:
    with pytest.raises(InputError, match="running broker"):
        predict_directories([str(data)], StartConditions(LogConfig()))


def test_a_gap_where_the_cleaner_has_been_is_not_reported(data: Path) -> None:
    for path in (data / PARTITION).glob(f"{logs(data)[1].stem}.*"):
        path.unlink()
    cluster = cluster_with(topic_id(data), (1,), "x")
    cluster.configs[2, "app-logs"] = {"cleanup.policy": "delete"}
    assert any("the topic is not compacted" in note for note in of(predict(data, cluster)).notes)

    cluster.configs[2, "app-logs"] = {"cleanup.policy": "compact"}
    assert any("cannot be known" in note for note in of(predict(data, cluster)).notes)

    (data / "cleaner-offset-checkpoint").write_text("0\n1\napp-logs 0 2117\n")
    assert of(predict(data, cluster)).notes == ()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("recovery-point-offset-checkpoint", "0\n1\na 0\n", 3),
        ("recovery-point-offset-checkpoint", "0\nx\n", 2),
        ("log-start-offset-checkpoint", "1\n0\n", 1),
        (f"{PARTITION}/leader-epoch-checkpoint", "0\n2\n0 0\n1 x\n", 4),
        (f"{PARTITION}/leader-epoch-checkpoint", "0\n1\n-1 0\n", 3),
        (f"{PARTITION}/partition.metadata", "version: 0\ntopic_id: ?\n", 2),
    ],
)
def test_a_refusal_names_the_line(data: Path, name: str, text: str, line: int) -> None:
    (data / name).write_text(text)

    found = predict(data)

    assert [(one.file, one.line) for one in found.refused] == [(str(data / name), line)]


def test_a_broker_reads_leader_epochs_before_the_names_of_a_partition(data: Path) -> None:
    """Malformed ones take the directory offline; a name that is no number would end the broker."""
    (data / PARTITION / ".snapshot").touch()
    assert predict(data).verdict is Verdict.DOES_NOT_START
    (data / PARTITION / "leader-epoch-checkpoint").write_text("10000000\n1\n0 0\n")
    other = data.parent / "other"
    other.mkdir()
    text = (data / "meta.properties").read_text()
    (other / "meta.properties").write_text(
        text.replace(directory_id(data), "JHz0NZ6tQNiQ2Mm2kGlrHg")
    )

    found = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert found.verdict is Verdict.DOES_NOT_SERVE


def test_a_refused_identity_names_the_line_of_the_property(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (data / "meta.properties").read_text().replace("cluster.id=", "cluster.id=x")
    (other / "meta.properties").write_text(text)
    lines = text.splitlines()

    found = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert found.refused[0].line is not None
    assert lines[found.refused[0].line - 1].startswith("cluster.id=x")


def with_properties(data: Path, text: str) -> Prediction:
    (data / "meta.properties").write_text(text)
    return predict(data)


@pytest.mark.parametrize(
    "node", ["3000000000", "1_0", "0x1", "", "1 ", "\u0661", "\\u00b9", "9" * 5000]
)
def test_a_node_that_java_does_not_read_keeps_a_broker_from_starting(data: Path, node: str) -> None:
    found = with_properties(data, f"#\nversion=1\ncluster.id=x\nnode.id={node}\n")

    assert found.verdict is Verdict.DOES_NOT_START
    assert [(one.file, one.line) for one in found.refused] == [(str(data / "meta.properties"), 4)]
    assert "node.id" in found.refused[0].reason


def test_a_negative_node_is_that_of_no_broker(data: Path) -> None:
    found = with_properties(data, "version=1\ncluster.id=x\nnode.id=-1\n")

    assert found.verdict is Verdict.DOES_NOT_START
    assert [one.line for one in found.refused] == [3]


@pytest.mark.parametrize("node", ["1", "+1", "0" * 5000 + "1", "\\u0661"])
def test_a_node_that_java_reads_is_safe(data: Path, node: str) -> None:
    found = with_properties(data, f"version=1\ncluster.id=x\nnode.id={node}\n")

    assert found.verdict is Verdict.SAFE


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cluster.id=x\nbroker.id=1_0\n", 2),
        ("version=0\nbroker.id=\n", 2),
        ("version=2\nnode.id=1\n", 1),
        ("version=1_0\nnode.id=1\n", 1),
    ],
)
def test_a_version_0_has_a_broker_id_and_later_ones_than_1_are_not_known(
    data: Path, text: str, line: int
) -> None:
    found = with_properties(data, text)

    assert [one.line for one in found.refused] == [line]


def test_what_a_version_does_not_read_is_not_judged(data: Path) -> None:
    text = "version=0\nbroker.id=1\ncluster.id=x\nnode.id=1_0\n"

    assert with_properties(data, text).verdict is Verdict.SAFE


def tear(data: Path, *, at_entry: bool) -> None:
    """Cut the active log: behind its last index entry, or inside the batch of that."""
    last = logs(data)[-1]
    if at_entry:
        _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
        last.write_bytes(last.read_bytes()[: position + 100])
    else:
        cut(last, 100)


@pytest.mark.parametrize("at_entry", [True, False])
def test_a_start_without_the_marker_is_suggested_where_it_is_better(
    data: Path, *, at_entry: bool
) -> None:
    tear(data, at_entry=at_entry)
    conditions = StartConditions(LogConfig())

    text = suggest([str(data)], conditions, predict(data))

    assert text is not None
    assert "without .kafka_cleanshutdown 0 records are lost or hidden; now" in text
    assert text.endswith("On a copy.")


def test_nothing_is_suggested_where_it_does_not_help(data: Path) -> None:
    (data / "log-start-offset-checkpoint").write_text("0\n1\napp-logs 0 999999\n")

    assert suggest([str(data)], StartConditions(LogConfig()), predict(data)) is None


def test_a_log_in_the_midst_of_another_hides_what_that_one_has(data: Path) -> None:
    first, second, *_ = logs(data)
    for suffix in (".log", ".index"):
        first.with_name(f"{int(second.stem) - 7:020d}{suffix}").touch()

    found = predict(data)

    assert found.verdict is Verdict.DOES_NOT_SERVE
    assert "which are in the log before" in (of(found).unserved or "")

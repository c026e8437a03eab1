"""The actions of a starting broker; `tests/conformance/test_predicted_partitions.py` asks Kafka."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path

import google_crc32c
import pytest

import kafka_index
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage, PartitionImage, TopicImage
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import LogConfig
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories, predict_start
from kafka_index.core.startup.prediction import (
    Outcome,
    PartitionPrediction,
    SegmentAction,
    StartPrediction,
    Verdict,
)
from tests.support.child_processes import run_in_child
from tests.support.command_line import DUMP
from tests.support.restoring import copy_dump

PARTITION = "app-logs-0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a broker that stopped cleanly, with a few partitions."""
    target = copy_dump(tmp_path / "data", PARTITION, "payments-0", "customer-profiles-0")
    (target / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":13}')
    return target


def predict(
    data: Path, cluster: ClusterImage | None = None, config: LogConfig | None = None
) -> StartPrediction:
    before = contents(data)
    conditions = StartConditions(config or LogConfig(), cluster, properties={})
    prediction = predict_directories([str(data)], conditions)
    assert contents(data) == before
    return prediction


def contents(data: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in data.rglob("*")}


def of(found: StartPrediction, name: str = PARTITION) -> PartitionPrediction:
    (one,) = [
        partition for partition in found.partitions if partition.directory.endswith(f"/{name}")
    ]
    return one


def logs(data: Path, name: str = PARTITION) -> list[Path]:
    return sorted((data / name).glob("*.log"))


def cut(path: Path, lost: int) -> None:
    path.write_bytes(path.read_bytes()[:-lost])


def actions(one: PartitionPrediction) -> list[SegmentAction]:
    return [segment.action for segment in one.segments]


def test_data_directory_of_a_stopped_broker_is_safe(data: Path) -> None:
    prediction = predict(data)

    assert prediction.verdict is Verdict.SAFE
    assert {partition.outcome for partition in prediction.partitions} == {Outcome.LOADED}
    assert {action for partition in prediction.partitions for action in actions(partition)} == {
        SegmentAction.KEEP
    }


def test_torn_active_log_hides_its_segment_after_a_clean_shutdown(data: Path) -> None:
    *_, last = logs(data)
    _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
    last.write_bytes(last.read_bytes()[: position + 100])

    prediction = predict(data)
    one = of(prediction)

    assert prediction.verdict is Verdict.LOSES
    assert one.loaded is not None
    assert one.loaded.log_end_offset == int(last.stem)
    assert one.lost.first_offset == int(last.stem)
    assert one.lost.records > 100
    assert one.lost.first_timestamp_ms is not None


def test_batch_torn_after_the_last_index_entry_stays_and_hides_appended_records(
    data: Path,
) -> None:
    cut(logs(data)[-1], 100)

    prediction = predict(data)
    one = of(prediction)

    assert prediction.verdict is Verdict.LOSES
    assert one.loaded is not None
    assert one.loaded.log_end_offset == 2378
    assert one.torn_bytes == 1350


def test_unclean_start_truncates_only_the_torn_batch(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    cut(logs(data)[-1], 100)

    one = of(predict(data))

    assert actions(one)[-1] is SegmentAction.CUT
    assert one.lost.records == 0


def test_bad_checksum_above_the_recovery_point_deletes_all_later_segments(data: Path) -> None:
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


def test_trailing_zeros_of_the_active_log_prevent_the_start_after_a_clean_shutdown(
    data: Path,
) -> None:
    last = logs(data)[-1]
    last.write_bytes(last.read_bytes() + bytes(100))

    prediction = predict(data)

    assert prediction.verdict is Verdict.DOES_NOT_START
    assert prediction.refused[0].file == str(last)
    assert of(prediction).outcome is Outcome.REFUSED


def test_log_start_above_the_log_end_empties_a_partition(data: Path) -> None:
    (data / "log-start-offset-checkpoint").write_text("0\n1\napp-logs 0 999999\n")

    one = of(predict(data))

    assert one.outcome is Outcome.EMPTIED
    assert one.lost.records == 2402
    assert one.loaded is not None
    assert one.loaded.log_end_offset == 999999


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nothing-here")])
def test_special_file_named_like_a_log_is_treated_as_a_missing_log(
    data: Path, make: Callable[[Path], None]
) -> None:
    first, second, *_ = logs(data)
    first.unlink()
    make(first)

    prediction = predict(data)

    assert prediction.verdict is Verdict.LOSES
    (missing,) = of(prediction).missing
    assert (missing.first_offset, missing.end_offset) == (0, int(second.stem))


#: What is put in the place of a file.
_MAKERS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "null": lambda path: path.symlink_to(os.devnull),
    "a device": lambda path: path.symlink_to("/dev/full"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link astray": lambda path: path.symlink_to("/nonexistent/file"),
    "a link to no file": lambda path: path.symlink_to("no-file"),
}
_NOWHERE = ("a link to itself", "a link astray")
_INDEXES = (".index", ".timeindex")
_SUFFIXES = (*_INDEXES, ".txnindex")
_CLEAN, _UNCLEAN = True, False
_FIRST, _LAST = f"{PARTITION}/first", f"{PARTITION}/last"
_LAST_OF_PAYMENTS = "payments-0/last"
#: Kinds of entries, the files in whose place each is, whether the marker is there, and the verdict.
_ODD_ENTRIES: list[tuple[Iterable[str], Iterable[str], Iterable[bool], Verdict]] = [
    # A broker makes an index where a link leads, if it can; a time index is empty then.
    (["a link to no file"], [f"{_FIRST}.index", f"{_FIRST}.txnindex"], [_CLEAN], Verdict.SAFE),
    (
        ["a link to no file", "a pipe", "null"],
        [f"{_FIRST}.timeindex"],
        [_CLEAN],
        Verdict.DOES_NOT_SERVE,
    ),
    (_NOWHERE, map(_FIRST.__add__, _INDEXES), [_CLEAN], Verdict.DOES_NOT_START),
    (_NOWHERE, [f"{_FIRST}.txnindex"], [_CLEAN], Verdict.SAFE),
    # An index without a size is read as an empty one, and cannot be rebuilt or resized.
    (["a pipe", "null"], [f"{_FIRST}.index"], [_CLEAN], Verdict.SAFE),
    (["a pipe", "null"], map(_FIRST.__add__, _INDEXES), [_UNCLEAN], Verdict.DOES_NOT_START),
    (["a pipe", "null"], map(_LAST.__add__, _INDEXES), [_CLEAN], Verdict.DOES_NOT_START),
    (
        ["a pipe"],
        [f"{_FIRST}.txnindex", f"{_LAST}.txnindex"],
        [_CLEAN, _UNCLEAN],
        Verdict.DOES_NOT_START,
    ),
    (["null"], [f"{_LAST}.txnindex"], [_CLEAN, _UNCLEAN], Verdict.SAFE),
    # Without the transactions that it aborts, aborted records are served.
    (
        ["null", *_NOWHERE],
        [f"{_LAST_OF_PAYMENTS}.txnindex"],
        [_CLEAN],
        Verdict.DOES_NOT_SERVE,
    ),
    (["null"], [f"{_LAST_OF_PAYMENTS}.txnindex"], [_UNCLEAN], Verdict.SAFE),
    (["a device"], map(_FIRST.__add__, _SUFFIXES), [_CLEAN], Verdict.UNKNOWN),
    # A log that is recovered is lost where its transaction index or snapshot cannot be made.
    (_NOWHERE, [f"{_LAST_OF_PAYMENTS}.txnindex"], [_UNCLEAN], Verdict.LOSES),
    (_NOWHERE, [f"{_LAST}.snapshot"], [_CLEAN], Verdict.DOES_NOT_START),
    (_NOWHERE, [f"{_LAST}.snapshot"], [_UNCLEAN], Verdict.LOSES),
    # A broker waits for ever that writes into a pipe, but not for its lock.
    (["a pipe"], [f"{_LAST}.snapshot"], [_CLEAN, _UNCLEAN], Verdict.DOES_NOT_START),
    (["a pipe"], [".lock"], [_CLEAN], Verdict.SAFE),
    (_NOWHERE, [".lock"], [_CLEAN], Verdict.DOES_NOT_START),
    (["a link to itself"], [f"{PARTITION}/partition.metadata"], [_CLEAN], Verdict.DOES_NOT_SERVE),
    (
        ["null"],
        [
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
            "replication-offset-checkpoint",
        ],
        [_CLEAN],
        Verdict.SAFE,
    ),
    (["null"], [f"{PARTITION}/leader-epoch-checkpoint"], [_CLEAN], Verdict.DOES_NOT_SERVE),
    (
        ["null"],
        [f"{PARTITION}/partition.metadata", "meta.properties"],
        [_CLEAN],
        Verdict.DOES_NOT_START,
    ),
]


@pytest.mark.parametrize(
    ("kind", "name", "is_clean", "verdict"),
    [(*case, verdict) for *lists, verdict in _ODD_ENTRIES for case in product(*lists)],
)
def test_effect_of_a_special_file_on_the_start_is_predicted(
    data: Path, kind: str, name: str, verdict: Verdict, *, is_clean: bool
) -> None:
    folder, _, file = name.rpartition("/")
    path = data / name
    if file.startswith(("first", "last")):
        ending = ".snapshot" if file.endswith(".snapshot") else ".log"
        files = sorted((data / folder).glob(f"*{ending}"))
        path = files[-file.startswith("last")].with_suffix(path.suffix)
    path.unlink(missing_ok=True)
    _MAKERS[kind](path)
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").unlink()

    prediction = predict(data)

    assert prediction.verdict is verdict
    if verdict is Verdict.UNKNOWN:
        assert "is a device" in (of(prediction).unknown or "")
    if verdict is Verdict.DOES_NOT_START:
        # The partition is refused where its snapshot cannot be written.
        is_unwritten = path.suffix == ".snapshot" and kind in _NOWHERE
        at_fault = path.parent if is_unwritten else path
        assert {refusal.file for refusal in prediction.refused} == {str(at_fault)}
    if verdict is Verdict.LOSES and path.suffix == ".txnindex":
        loaded = of(prediction, folder).loaded
        assert loaded is not None
        assert loaded.log_end_offset == int(path.stem)


def remove(path: Path) -> None:
    path.unlink()


def swap_entries(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[34:68] + data[:34] + data[68:])


def pad(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(12))


def take_from_previous(path: Path) -> None:
    files = sorted(path.parent.glob(f"*{path.suffix}"))
    path.write_bytes(files[files.index(path) - 1].read_bytes())


#: A change of files that a broker keeps after a clean shutdown, and the reason in the prediction.
_KEPT_FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("payments-0/*.txnindex", remove, "has no .txnindex"),
    ("payments-0/*.txnindex", swap_entries, "transaction markers"),
    ("app-logs-0/*.timeindex", remove, "has no .timeindex"),
    ("app-logs-0/*.timeindex", pad, "are followed by other bytes"),
    ("app-logs-0/*2117.timeindex", take_from_previous, "lookups by time"),
    ("payments-0/*.snapshot", remove, "differ from those in the log"),
    ("payments-0/*.snapshot", take_from_previous, "differ from those in the log"),
    ("payments-0/leader-epoch-checkpoint", remove, "leader epochs: expected epoch"),
]


@pytest.mark.parametrize(
    ("pattern", "change", "reason"),
    _KEPT_FILES,
    ids=[f"{change.__name__}-{pattern.rpartition('.')[2]}" for pattern, change, _ in _KEPT_FILES],
)
def test_file_kept_by_a_broker_is_compared_with_its_log(
    data: Path, pattern: str, change: Callable[[Path], object], reason: str
) -> None:
    paths = [path for path in sorted(data.glob(pattern)) if path.stat().st_size]
    for path in paths[-1:] if change is take_from_previous else paths:
        change(path)
    config = LogConfig(producer_id_expiration_ms=2**31 - 1)

    kept = predict(data, config=config)
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    rebuilt = predict(data, config=config)

    assert kept.verdict is Verdict.DOES_NOT_SERVE
    assert reason in (of(kept, pattern.partition("/")[0]).unserved or "")
    assert rebuilt.verdict is Verdict.SAFE


def test_log_rejected_by_recovery_is_not_compared_with_its_index_files(
    data: Path,
) -> None:
    path = logs(data, "payments-0")[0]
    log = bytearray(path.read_bytes())
    position = next(
        at for at in batches_of(log) if struct.unpack_from(">h", log, at + 21)[0] & 0x30 == 0x30
    )
    # A marker of a version that no broker writes.
    key = log.index(b"\x08\x00\x00\x00", position + 61)
    log[key + 1] = 0xFF
    (size,) = struct.unpack_from(">i", log, position + 8)
    crc = google_crc32c.value(bytes(log[position + 21 : position + 12 + size]))
    struct.pack_into(">I", log, position + 17, crc)
    path.write_bytes(log)

    prediction = predict(data)

    assert prediction.verdict is Verdict.UNKNOWN
    assert "were not checked" in (of(prediction, "payments-0").unknown or "")


def batches_of(log: bytearray) -> Iterator[int]:
    at = 0
    while at < len(log):
        yield at
        at += 12 + struct.unpack_from(">i", log, at + 8)[0]


@pytest.mark.parametrize(("kind", "starts"), [("a link to itself", True), ("a link astray", False)])
def test_circular_link_as_meta_properties_takes_the_directory_offline(
    data: Path, kind: str, *, starts: bool
) -> None:
    other = moved_with_future(data)
    (other / "meta.properties").unlink()
    _MAKERS[kind](other / "meta.properties")

    prediction = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert (prediction.verdict is not Verdict.DOES_NOT_START) is starts


@pytest.mark.parametrize("is_socket", [True, False])
def test_special_file_at_the_path_of_a_new_log_takes_the_data_directory_offline(
    data: Path, monkeypatch: pytest.MonkeyPatch, *, is_socket: bool
) -> None:
    for path in (data / PARTITION).iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    # Its whole path may be too long for a socket.
    monkeypatch.chdir(data / PARTITION)
    log = f"{0:020d}.log"
    if is_socket:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(log)
    else:
        Path(log).mkdir()

    prediction = predict(data)

    assert prediction.verdict is Verdict.DOES_NOT_START
    assert prediction.refused[0].file.endswith(log)


@pytest.mark.parametrize("node", ["x", "-1", "99999999999", "1.0"])
def test_invalid_node_id_prevents_the_start(data: Path, node: str) -> None:
    prediction = kafka_index.predict(data, config={"node.id": node})

    assert prediction.verdict is Verdict.DOES_NOT_START
    assert "node.id" in [refusal.file for refusal in prediction.refused]


def test_zookeeper_settings_prevent_the_start(data: Path) -> None:
    settings = {"zookeeper.connect": "localhost:2181"}

    prediction = kafka_index.predict(data, config=settings)
    of_kraft = kafka_index.predict(data, config={**settings, "process.roles": "broker"})

    assert prediction.verdict is Verdict.DOES_NOT_START
    assert [refusal.file for refusal in prediction.refused] == ["zookeeper.connect"]
    assert of_kraft.verdict is Verdict.SAFE


@pytest.mark.parametrize(
    ("log_dirs", "is_known"), [("{data}", True), ("", False), ("/of/another/machine", False)]
)
@pytest.mark.parametrize("has_log", [True, False])
def test_missing_configured_metadata_directory_is_not_safe(
    data: Path, log_dirs: str, *, is_known: bool, has_log: bool
) -> None:
    if has_log:
        (data / "__cluster_metadata-0").mkdir()
    settings = {"log.dirs": log_dirs.format(data=data), "metadata.log.dir": "/not/here"}

    prediction = kafka_index.predict(data, config=settings)

    assert (prediction.verdict is Verdict.DOES_NOT_START) is is_known
    assert (prediction.verdict is Verdict.SAFE) is (not has_log and not is_known)
    assert bool(prediction.unknown) is (has_log and not is_known)
    files = [refusal.file for refusal in prediction.refused]
    unexpected = [str(data / "__cluster_metadata-0")] * (has_log and is_known)
    assert files == [*unexpected, *["/not/here/meta.properties"] * is_known]


def test_metadata_log_in_the_second_data_directory_is_not_safe(data: Path) -> None:
    (data / "__cluster_metadata-0").mkdir()

    prediction = kafka_index.predict(data, config={"log.dirs": f"/not/here,{data}"})

    assert prediction.verdict is Verdict.DOES_NOT_START
    assert prediction.refused[-1].file == "/not/here/meta.properties"


@pytest.mark.parametrize("first", ["data", "other"])
def test_metadata_log_is_in_the_first_data_directory_by_default(data: Path, first: str) -> None:
    other = add_data_directory(data, "other")
    (data / "__cluster_metadata-0").mkdir()
    paths = sorted([str(data), str(other)], key=lambda path: Path(path).name != first)
    conditions = StartConditions(LogConfig(), properties={"log.dirs": ",".join(paths)})

    prediction = predict_directories(paths, conditions)

    assert (prediction.verdict is Verdict.DOES_NOT_START) is (first == "other")


def test_missing_middle_segment_is_a_gap(data: Path) -> None:
    for path in (data / PARTITION).glob(f"{logs(data)[1].stem}.*"):
        path.unlink()

    prediction = predict(data)

    (gap,) = of(prediction).missing
    assert (gap.first_offset, gap.last_offset) == (1063, 2116)
    # Without the metadata log, the topic may be compacted.
    assert prediction.verdict is Verdict.UNKNOWN
    assert of(prediction).notes[0].startswith("gap: offsets 1063 to 2116 are missing")


def test_partition_without_its_metadata_is_stray(data: Path) -> None:
    (data / PARTITION / "partition.metadata").unlink()

    prediction = predict(data)

    assert of(prediction).outcome is Outcome.STRAY
    assert prediction.verdict is Verdict.DOES_NOT_SERVE


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


def add_data_directory(data: Path, name: str) -> Path:
    """Make a second data directory of the same broker."""
    other = data.with_name(name)
    other.mkdir()
    text = (data / "meta.properties").read_text()
    (other / "meta.properties").write_text(text.replace(directory_id(data), "A" * 20 + "ZQ"))
    return other


@pytest.mark.parametrize(
    ("other_id", "replicas", "outcome"),
    [
        (None, (1,), Outcome.LOADED),
        (None, (2,), Outcome.STRAY),
        ("A" * 21 + "B", (1,), Outcome.STRAY),
    ],
)
def test_partition_of_other_brokers_or_of_another_topic_id_is_stray(
    data: Path, other_id: str | None, replicas: tuple[int, ...], outcome: Outcome
) -> None:
    cluster = cluster_with(other_id or topic_id(data), replicas, "x")

    assert of(predict(data, cluster)).outcome is outcome


def test_partition_with_a_missing_directory_is_recreated_empty(data: Path) -> None:
    cluster = cluster_with(topic_id(data), (1,), directory_id(data))
    shutil.rmtree(data / PARTITION)

    one = of(predict(data, cluster))

    assert one.outcome is Outcome.EMPTIED
    assert "missing" in one.notes[0]


def test_directory_without_meta_properties_does_not_start(data: Path) -> None:
    (data / "meta.properties").unlink()

    prediction = predict(data)

    assert prediction.verdict is Verdict.DOES_NOT_START
    assert prediction.partitions == ()


@pytest.mark.parametrize("other_id", ["x", ""])
def test_directories_of_two_clusters_do_not_start(
    data: Path, tmp_path: Path, other_id: str
) -> None:
    other = tmp_path / "a-directory-before"
    other.mkdir()
    text = re.sub("cluster.id=.*", f"cluster.id={other_id}", (data / "meta.properties").read_text())
    (other / "meta.properties").write_text(text)

    prediction = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert prediction.verdict is Verdict.DOES_NOT_START
    refused = prediction.refused[0]
    assert "cluster.id" in refused.reason
    assert refused.line is not None
    lines = Path(refused.file).read_text().splitlines()
    assert lines[refused.line - 1].startswith("cluster.id=")


def with_first_metadata(data: Path, content: bytes) -> StartPrediction:
    """Predict a start with these first records of the metadata, in a directory of their own."""
    metadata = data.with_name("of-metadata")
    metadata.mkdir()
    lines = (data / "meta.properties").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("directory.id")]
    (metadata / "meta.properties").write_text("".join(kept))
    (metadata / "bootstrap.checkpoint").write_bytes(content)
    conditions = StartConditions(LogConfig(), metadata_directory=str(metadata))
    return predict_directories([str(data)], conditions)


def test_bootstrap_metadata_with_a_wrong_checksum_is_read(data: Path) -> None:
    content = bytearray((DUMP / "bootstrap.checkpoint").read_bytes())
    content[17] ^= 1

    assert with_first_metadata(data, bytes(content)).verdict is Verdict.SAFE


def test_bootstrap_metadata_outside_the_metadata_directory_is_not_safe(
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
def test_unreadable_bootstrap_metadata_prevents_the_start(
    data: Path, at: int, value: int, reason: str | None
) -> None:
    content = bytearray((DUMP / "bootstrap.checkpoint").read_bytes())
    content[at] = value

    result = with_first_metadata(data, bytes(content))

    if reason is None:
        assert result.verdict is Verdict.UNKNOWN
    else:
        assert result.verdict is Verdict.DOES_NOT_START
        assert reason in result.refused[0].reason


def test_zero_tail_of_the_bootstrap_metadata_prevents_the_start(data: Path) -> None:
    result = with_first_metadata(data, bytes(40))

    assert [one.reason.partition(" at")[0] for one in result.refused] == ["the batch"]


def test_broker_halts_once_a_reader_takes_its_last_data_directory_offline(data: Path) -> None:
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

    result = [alone, served, last]
    assert {one.verdict for one in result} == {Verdict.DOES_NOT_SERVE}
    halts = [any("the broker halts" in text for text in one.unserved) for one in result]
    assert halts == [True, False, True]


def test_checkpoint_with_a_non_numeric_offset_is_treated_as_empty(data: Path) -> None:
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\na 0 x\n")

    assert predict(data).verdict is not Verdict.DOES_NOT_START


def test_swap_file_without_an_index_is_unchanged(data: Path) -> None:
    log = max((data / PARTITION).glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    log.rename(log.with_name(f"{log.name}.swap"))

    last = of(predict(data)).segments[-1]

    assert (last.action, last.cut_at_bytes) == (SegmentAction.REPLACE, None)


def test_future_replica_next_to_its_partition_prevents_the_start(data: Path) -> None:
    shutil.copytree(data / PARTITION, data / FUTURE)

    assert predict(data).verdict is Verdict.DOES_NOT_START


FUTURE = f"{PARTITION}.0123456789abcdef0123456789abcdef-future"


def moved_with_future(data: Path, name: str = PARTITION) -> Path:
    """Move a partition to a second data directory, and leave a future replica of it here."""
    other = add_data_directory(data, "data-2")
    (data / name).rename(other / name)
    shutil.copytree(other / name, data / FUTURE.replace(PARTITION, name))
    (other / ".kafka_cleanshutdown").touch()
    for each in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        shutil.copy(data / each, other)
    return other


def predict_both(data: Path, other: Path) -> StartPrediction:
    cluster = cluster_with(topic_id(data), (1,), directory_id(data))
    conditions = StartConditions(LogConfig(), cluster, properties={})
    return predict_directories([str(data), str(other)], conditions)


def test_future_replica_replaces_the_current_one_if_the_metadata_assigns_it(
    data: Path,
) -> None:
    other = moved_with_future(data)

    result = predict_both(data, other)

    outcomes = {
        partition.directory: partition.outcome
        for partition in result.partitions
        if partition.topic == "app-logs"
    }
    assert outcomes == {
        str(data / FUTURE): Outcome.LOADED,
        str(other / PARTITION): Outcome.REPLACED,
    }


def test_future_replica_without_the_log_end_loses_its_records(data: Path) -> None:
    other = moved_with_future(data)
    last = max((data / FUTURE).glob("*.log"))
    for path in (data / FUTURE).glob(f"{last.stem}.*"):
        path.unlink()

    lost = of(predict_both(data, other)).lost

    assert (lost.first_offset, lost.last_offset) == (int(last.stem), 2401)


def test_stray_partition_in_an_offline_directory_prevents_the_start(
    data: Path,
) -> None:
    other = moved_with_future(data)
    (data / "log-start-offset-checkpoint").write_text("x\n")

    result = predict_both(data, other)

    assert result.verdict is Verdict.DOES_NOT_START
    assert any("the data directory is already offline" in one.reason for one in result.refused)


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        ("empty", Verdict.SAFE),
        ("linked", Verdict.SAFE),
        ("filled", Verdict.DOES_NOT_START),
    ],
)
def test_clean_shutdown_file_that_is_a_directory_is_deleted_if_empty_or_linked(
    data: Path, entry: str, verdict: Verdict
) -> None:
    marker = data / ".kafka_cleanshutdown"
    marker.unlink()
    if entry == "linked":
        marker.symlink_to(data / PARTITION)
    else:
        marker.mkdir()
    if entry == "filled":
        (marker / "x").touch()

    assert predict(data).verdict is verdict


@pytest.mark.parametrize("mark", ["delete", "stray"])
def test_stray_or_deleted_directory_is_only_reported(data: Path, mark: str) -> None:
    name = f"{PARTITION}.0123456789abcdef0123456789abcdef-{mark}"
    shutil.copytree(data / PARTITION, data / name)

    prediction = predict(data)

    assert prediction.verdict is Verdict.SAFE
    assert any(name in note for note in prediction.notes)


@pytest.mark.parametrize(
    ("log_starts", "verdict"), [("0\n0\n", Verdict.UNKNOWN), (None, Verdict.LOSES)]
)
def test_records_before_the_first_epoch_are_reported_as_possibly_reappeared(
    data: Path, log_starts: str | None, verdict: Verdict
) -> None:
    (data / PARTITION / "leader-epoch-checkpoint").write_text("0\n1\n0 100\n")
    path = data / "log-start-offset-checkpoint"
    if log_starts is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(log_starts)

    assert predict(data).verdict is verdict


def test_directory_loaded_twice_through_a_link_is_not_safe(data: Path) -> None:
    (data / f"{PARTITION}.0123456789abcdef0123456789abcdef-stray").symlink_to(data / PARTITION)

    assert predict(data).verdict is Verdict.UNKNOWN


def test_directory_locked_by_a_broker_is_rejected(data: Path) -> None:
    with (data / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)

        # A process does not meet its own locks.
        assert run_in_child(lambda: _expect_refusal(data)) == 0


def _expect_refusal(data: Path) -> None:
    with pytest.raises(InputError, match="running broker"):
        predict_directories([str(data)], StartConditions(LogConfig()))


def test_gap_below_the_cleaner_checkpoint_is_not_reported(data: Path) -> None:
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
        ("recovery-point-offset-checkpoint", "0\n2\na 0 1\n", 2),
        ("recovery-point-offset-checkpoint", "0\nx\n", 2),
        ("log-start-offset-checkpoint", "1\n0\n", 1),
        (f"{PARTITION}/leader-epoch-checkpoint", "0\n2\n0 0\n1 x\n", 4),
        (f"{PARTITION}/leader-epoch-checkpoint", "0\n1\n-1 0\n", 3),
        (f"{PARTITION}/partition.metadata", "version: 0\ntopic_id: ?\n", 2),
    ],
)
def test_rejected_checkpoint_is_reported_with_its_line(
    data: Path, name: str, text: str, line: int
) -> None:
    (data / name).write_text(text)

    prediction = predict(data)

    assert [(one.file, one.line) for one in prediction.refused] == [(str(data / name), line)]


def test_broker_reads_leader_epochs_before_the_names_of_a_partition(data: Path) -> None:
    """Malformed ones take the directory offline; a name that is no number would end the broker."""
    (data / PARTITION / ".snapshot").touch()
    assert predict(data).verdict is Verdict.DOES_NOT_START
    (data / PARTITION / "leader-epoch-checkpoint").write_text("10000000\n1\n0 0\n")
    other = add_data_directory(data, "other")

    prediction = predict_directories([str(data), str(other)], StartConditions(LogConfig()))

    assert prediction.verdict is Verdict.DOES_NOT_SERVE


_NO_INTEGERS = ("3000000000", "1_0", "0x1", "", "1 ", "\u0661", "\\u00b9", "9" * 5000, "-1")
_INTEGERS = ("1", "+1", "0" * 5000 + "1", "\\u0661")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *((f"#\nversion=1\ncluster.id=x\nnode.id={node}\n", 4) for node in _NO_INTEGERS),
        *((f"version=1\ncluster.id=x\nnode.id={node}\n", None) for node in _INTEGERS),
        # A version 0 has a broker id, and later ones than 1 are not known.
        ("cluster.id=x\nbroker.id=1_0\n", 2),
        ("version=0\nbroker.id=\n", 2),
        ("version=2\nnode.id=1\n", 1),
        ("version=1_0\nnode.id=1\n", 1),
        ("version=0\nbroker.id=1\ncluster.id=x\nnode.id=1_0\n", None),
    ],
)
def test_broker_starts_with_the_properties_that_java_reads(
    data: Path, text: str, line: int | None
) -> None:
    (data / "meta.properties").write_text(text)

    prediction = predict(data)

    assert prediction.verdict is (Verdict.SAFE if line is None else Verdict.DOES_NOT_START)
    refused = [] if line is None else [(str(data / "meta.properties"), line)]
    assert [(one.file, one.line) for one in prediction.refused] == refused
    assert all("node.id" in one.reason for one in prediction.refused if line == 4)


def tear(data: Path, *, at_entry: bool) -> None:
    """Cut the active log: behind its last index entry, or inside the batch of that."""
    last = logs(data)[-1]
    if at_entry:
        _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
        last.write_bytes(last.read_bytes()[: position + 100])
    else:
        cut(last, 100)


@pytest.mark.parametrize("at_entry", [True, False])
def test_unclean_start_is_suggested_if_it_loses_less(data: Path, *, at_entry: bool) -> None:
    tear(data, at_entry=at_entry)

    text = predict_start([str(data)], StartConditions(LogConfig())).suggestion

    assert text is not None
    assert text.startswith("start a copy without .kafka_cleanshutdown: 0 records lost")


def test_unclean_start_is_not_suggested_if_it_does_not_help(data: Path) -> None:
    (data / "log-start-offset-checkpoint").write_text("0\n1\napp-logs 0 999999\n")

    assert predict_start([str(data)], StartConditions(LogConfig())).suggestion is None


def test_log_that_starts_within_another_hides_its_records(data: Path) -> None:
    first, second, *_ = logs(data)
    for suffix in (".log", ".index"):
        first.with_name(f"{int(second.stem) - 7:020d}{suffix}").touch()

    prediction = predict(data)

    assert prediction.verdict is Verdict.DOES_NOT_SERVE
    assert "but they are in the previous log" in (of(prediction).unserved or "")


def test_directory_that_is_not_a_partition_prevents_the_start(data: Path) -> None:
    (data / "lost+found").mkdir()

    assert predict(data).verdict is Verdict.DOES_NOT_START

"""Records of tiered dumps, compared with the records that consumers read."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.core.cluster.merged_listing import list_merged
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.uris import TieredOptions, is_segment_path
from kafka_index.core.log.scan.segment_scan import LogFileSource, read_batches
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import WindowBatches
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_decoder import BatchDamage, RecordDecoder
from kafka_index.core.records.record_table import RecordTable
from tests.support.tiered import SETTINGS, Setting, keys, setting

_COLUMNS = ("offset", "timestamp", "timestampType", "leader_epoch", "key", "value", "headers")
_Row = dict[str, Any]


def _records(segment: SegmentFile) -> list[_Row]:
    table = RecordTable(segment.topic, segment.partition, (*_COLUMNS, "is_control"))
    decoder = RecordDecoder(shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
    source = LogFileSource.of_segment(segment, verify_crc=True)
    rows: list[_Row] = []
    for window, start, batches in source.windows():
        convert = partial(table.convert, source=WindowBatches(window, start, batches))
        positions, sizes = batches.position_bytes - start, batches.size_bytes
        for found in decoder.decode(window, positions, sizes, convert):
            assert not isinstance(found, BatchDamage)
            rows += found.to_pylist()
    assert source.stop is None
    return rows


def _union(at: Setting, *, with_data: bool) -> Listing:
    inputs = [at.data] if with_data else []
    return list_merged(inputs, TieredOptions((at.remote,)), topics=None)


def _found(listing: Listing) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    rows: dict[tuple[str, int], list[tuple[object, ...]]] = defaultdict(list)
    for segment in listing.segments:
        partition = TopicPartition(segment.topic, segment.partition)
        tiered = listing.tiered.get(partition)
        for row in _records(segment):
            offset, timestamp = row["offset"], row["timestamp"]
            assert isinstance(offset, int)
            if row["is_control"] or (tiered and offset < tiered.log_start_offset):
                continue
            timestamp_ms = pa.scalar(timestamp, pa.timestamp("ms", "UTC")).value
            kind = "LogAppendTime" if row["timestampType"] else "CreateTime"
            headers = [(each["key"], each["value"]) for each in row["headers"] or []]
            rows[segment.topic, segment.partition].append(
                (offset, timestamp_ms, kind, row["leader_epoch"], row["key"], row["value"], headers)
            )
    return rows


def _truth(at: Setting) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    rows: dict[tuple[str, int], list[tuple[object, ...]]] = defaultdict(list)
    for row in pq.read_table(at.path / "truth" / "read_uncommitted.parquet").to_pylist():
        headers = [(each["key"], each["value"]) for each in row["headers"]]
        rows[row["topic"], row["partition"]].append(
            (
                row["offset"],
                row["timestamp"],
                row["timestampType"],
                row["leaderEpoch"],
                row["key"],
                row["value"],
                headers,
            )
        )
    return rows


@pytest.mark.parametrize("name", SETTINGS)
def test_tiered_partition_has_exactly_the_records_of_a_consumer(name: str) -> None:
    at = setting(name)
    with keys(at.keys):
        listing = _union(at, with_data=True)
        actual = _found(listing)
    expected = _truth(at)

    for partition, rows in expected.items():
        assert actual[partition] == rows, partition
    assert {each for each in actual if not each[0].startswith("__")} == set(expected)
    assert any(is_segment_path(segment.log_path) for segment in listing.segments)


@pytest.mark.parametrize("name", SETTINGS)
def test_remote_objects_have_the_same_records_up_to_the_last_upload(name: str) -> None:
    at = setting(name)
    with keys(at.keys):
        listing = _union(at, with_data=False)
        actual = _found(listing)
    expected = _truth(at)

    for partition, tiered in listing.tiered.items():
        assert tiered.is_lower_bound
        rows = expected[partition.topic, partition.partition]
        uploaded = [row for row in rows if int(str(row[0])) <= tiered.tiered_end_offset]
        # Without a checkpoint, records that were deleted from a segment's head are still there.
        assert actual[partition.topic, partition.partition][-len(uploaded) :] == uploaded


@pytest.mark.parametrize("name", SETTINGS)
def test_tier_boundaries_equal_those_of_the_broker(name: str) -> None:
    at = setting(name)
    with keys(at.keys):
        listing = _union(at, with_data=True)
    answers = {
        (row["topic"], int(row["partition"]), row["spec"].partition("(")[0]): int(row["offset"])
        for row in at.rows("offsets.csv.gz")
        if row["isolation"] == "read_uncommitted"
    }
    for partition, tiered in listing.tiered.items():
        of = partial(
            lambda spec, key: answers[*key, spec], key=(partition.topic, partition.partition)
        )
        assert tiered.log_start_offset == of("earliest")
        assert tiered.tiered_end_offset == of("latest-tiered")
        assert tiered.local_start_offset is not None
        assert max(tiered.local_start_offset, tiered.log_start_offset) == of("earliest-local")


def test_incomplete_upload_is_listed_and_not_read() -> None:
    listing = _union(setting("aiven-plain"), with_data=True)

    (skipped,) = listing.skipped
    assert "interrupted" in skipped.path
    assert skipped.reason == "the upload did not finish (COPY_SEGMENT_STARTED)"
    assert skipped.path not in {segment.log_path for segment in listing.segments}


def test_later_of_two_equal_uploads_is_read_without_events() -> None:
    listing = _union(setting("aiven-plain"), with_data=False)

    (skipped,) = listing.skipped
    assert skipped.reason == "a later upload also contains offsets 0 to 14, with the same content"


@pytest.mark.parametrize("suffix", [".rsm-manifest", ".indexes", ".log"])
def test_incomplete_upload_without_events_is_a_gap(suffix: str, tmp_path: Path) -> None:
    at = Setting(tmp_path / "aiven-plain")
    shutil.copytree(setting("aiven-plain").path, at.path)
    first, second = sorted(
        (key for key in at.segments() if "log_gz" in key.name), key=lambda each: each.start_offset
    )[:2]
    os.remove(f"{at.remote}/{second.name}{suffix}")

    listing = list_merged([], TieredOptions((at.remote,)), topics=re.compile("log_gz"))

    paths = [segment.log_path for segment in listing.segments]
    assert at.file(first, ".log") in paths
    # Reading the segment raises the error, and the next segment does not answer its offsets.
    assert at.file(second, ".log") in paths


@pytest.mark.parametrize("name", ["local", "aiven-plain"])
def test_finished_segment_without_objects_is_reported_at_its_offsets(
    name: str, tmp_path: Path
) -> None:
    at = Setting(tmp_path / name)
    shutil.copytree(setting(name).path, at.path)
    key = min((key for key in at.segments() if "log_gz" in key.name), key=lambda k: k.start_offset)
    for path in Path(f"{at.remote}/{key.parent}").glob(f"*{key.segment_id}*"):
        path.unlink()

    listing = _union(at, with_data=True)

    (segment,) = (each for each in listing.segments if key.segment_id in each.log_path)
    assert segment.base_offset == key.start_offset
    with pytest.raises(InputError, match="No such file") as caught:
        _records(segment)
    assert caught.value.path == f"{at.remote}/{key.name}.log"


def test_recreated_topic_is_listed_and_can_be_selected_by_id(tmp_path: Path) -> None:
    at = Setting(tmp_path / "local")
    shutil.copytree(setting("local").path, at.path)
    old = "AAAAAAAAAAAAAAAAAAAAAA"
    folder = Path(at.remote) / "kafka-tiered-storage"
    live = next(path for path in folder.iterdir() if path.name.startswith("log_gz-0-"))
    shutil.copytree(live, folder / f"log_gz-0-{old}")
    with_data = list_merged([at.data], TieredOptions((at.remote,)), topics=re.compile("log_gz"))
    chosen = list_merged(
        [at.data], TieredOptions((at.remote,), topic_ids=(old,)), topics=re.compile("log_gz")
    )

    selected = f"topic ID {live.name[-22:]} was selected for the name log_gz"
    reason = f"{selected}; to read this topic, give --topic-id {old}"
    assert [each.reason for each in with_data.skipped] == [reason]
    assert all(old in segment.log_path for segment in chosen.segments)
    assert {f"{at.data}/log_gz-0", str(live)} == {each.path for each in chosen.skipped}


def test_remote_segment_is_read_up_to_the_local_log_start(tmp_path: Path) -> None:
    """The local replica may have rolled at other offsets than the uploading replica."""
    at = Setting(tmp_path / "local")
    shutil.copytree(setting("local").path, at.path)
    folder = Path(at.data) / "kept-both-0"
    log = min(folder.glob("*.log"))
    complete_data = log.read_bytes()
    batches = list(read_batches(log))
    base_offset = batches[0]["base_offset"][2].as_py()
    position = batches[0]["position_bytes"][2].as_py()
    for old in (log, *folder.glob("*index")):
        old.unlink()
    (folder / f"{base_offset:020d}.log").write_bytes(complete_data[position:])

    with keys(at.keys):
        listing = _union(at, with_data=True)
        result = _found(listing)["kept-both", 0]

    remote = [s for s in listing.segments if s.topic == "kept-both" and is_segment_path(s.log_path)]
    assert [segment.log_size_bytes for segment in remote] == [position]
    assert result == _truth(at)["kept-both", 0]


def test_unknown_topic_id_is_rejected() -> None:
    at = setting("local")
    with pytest.raises(InputError, match="no topic has this ID"):
        list_merged([], TieredOptions((at.remote,), topic_ids=("x" * 22,)), topics=None)


def test_key_prefix_selects_the_keys_that_begin_with_it() -> None:
    at = setting("aiven-zstd")
    everything = _union(at, with_data=False)
    options = TieredOptions((at.remote,), "aiven", "golden/tier.a_b-")
    assert list_merged([], options, topics=None).segments == everything.segments

    with pytest.raises(InputError, match="contains no remote segments"):
        list_merged([], TieredOptions((at.remote,), None, "golden/tier.a_c-"), topics=None)


def test_file_uri_is_accepted_as_a_folder() -> None:
    at = setting("aiven-plain")
    options = TieredOptions((f"file://{at.remote}/",))

    result = list_merged([], options, topics=None)

    assert result.segments == _union(at, with_data=False).segments


def test_iceberg_segments_are_rejected_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "warehouse" / "orders" / "metadata"
    folder.mkdir(parents=True)
    (folder / "bKI9IZIyRVqFtx14oB1G3w.puffin").write_bytes(b"PFA1")

    with pytest.raises(InputError, match="segments in Iceberg format") as caught:
        list_merged([], TieredOptions((str(tmp_path),)), topics=None)

    assert caught.value.path == str(folder / "bKI9IZIyRVqFtx14oB1G3w.puffin")

"""The files that a build of whole partitions writes: all that are asked for, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_index.core.job.engine import new_run_id
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.listing import list_dump
from tests.support.dumps import built_rows
from tests.support.segments import batch
from tests.support.transactional_logs import built_files, log_path, segments, write

FOLDER = "pay.x-y-0"
SUFFIXES = {
    BuildOutput.INDEX: ".index",
    BuildOutput.TIME_INDEX: ".timeindex",
    BuildOutput.TXN_INDEX: ".txnindex",
    BuildOutput.SNAPSHOT: ".snapshot",
    BuildOutput.EPOCHS: "checkpoint",
}
_Files = dict[str, bytes]


def build(data: Path, settings: BuildSettings) -> list[SegmentReport]:
    """Build with both threads at work, as a run of its own; rows by partition and offset."""
    settings = replace(settings, run_id=new_run_id())
    rows = built_rows(list_dump([str(data)], topics=None).segments, settings)
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.segment_base_offset))


def visible(root: Path) -> _Files:
    return {name: data for name, data in built_files(root).items() if "/." not in name}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data" / FOLDER, segments(4))


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    return BuildSettings(target_root=str(tmp_path / "out"))


OUTPUTS = [
    *(frozenset([one]) for one in BuildOutput),
    frozenset((BuildOutput.TXN_INDEX, BuildOutput.EPOCHS)),
    frozenset((BuildOutput.TIME_INDEX, BuildOutput.SNAPSHOT)),
    frozenset((BuildOutput.INDEX, BuildOutput.TXN_INDEX)),
]


@pytest.mark.parametrize("outputs", OUTPUTS, ids=lambda outputs: ",".join(sorted(outputs)))
@pytest.mark.parametrize("in_place", [False, True], ids=["output", "in place"])
def test_build_writes_only_requested_files(
    data: Path,
    tmp_path: Path,
    settings: BuildSettings,
    outputs: frozenset[BuildOutput],
    *,
    in_place: bool,
) -> None:
    build(data, settings)
    suffixes = tuple(SUFFIXES[output] for output in outputs)
    expected = {
        name: content
        for name, content in visible(tmp_path / "out").items()
        if name.endswith(suffixes)
    }
    some = BuildSettings(target_root=None if in_place else str(tmp_path / "some"), outputs=outputs)

    rows = build(data, some)

    if in_place and BuildOutput.INDEX in outputs and BuildOutput.TXN_INDEX not in outputs:
        # A broker that finds an .index never rebuilds what belongs beside it.
        assert {row.status for row in rows} == {"failed"}
        expected = {}
    else:
        assert {row.status for row in rows} == {"built"}
    assert visible(data if in_place else tmp_path / "some") == expected


@pytest.mark.parametrize("outputs", OUTPUTS, ids=lambda outputs: ",".join(sorted(outputs)))
def test_build_leaves_unrequested_files_unchanged(
    data: Path, tmp_path: Path, settings: BuildSettings, outputs: frozenset[BuildOutput]
) -> None:
    build(data, settings)
    suffixes = tuple(SUFFIXES[output] for output in outputs)
    whole = visible(tmp_path / "out")
    for path in (tmp_path / "out" / FOLDER).iterdir():
        if path.name[0] != ".":
            path.write_bytes(b"wrong")

    build(data, replace(settings, outputs=outputs))

    assert visible(tmp_path / "out") == {
        name: content if name.endswith(suffixes) else b"wrong" for name, content in whole.items()
    }


def test_segments_after_a_failed_segment_are_built_only_without_aborted_transactions(
    data: Path, tmp_path: Path, settings: BuildSettings
) -> None:
    first, second, _, fourth = sorted(segments(4))
    in_transaction = batch(second, 1, producer_id=9, producer_epoch=0, transactional=True)
    refused = in_transaction + batch(second + 1, 1, producer_id=9, producer_epoch=0)
    write(data / FOLDER, {second: refused, fourth: batch(fourth, 1)})
    write(data / "other-0", segments(2))

    rows = build(data, settings)

    mine = [row for row in rows if row.topic == "pay.x-y"]
    assert [row.status for row in mine] == ["built", "failed", "failed", "built"]
    assert mine[1].reason == "not_transactional"
    for text in (str(mine[2].reason), str(mine[3].note)):
        assert text.startswith(f"state_unknown: segment {second} failed")
    assert "this segment has aborted transactions" in str(mine[2].reason)
    assert {row.status for row in rows if row.topic == "other"} == {"built"}
    names = {
        re.sub("^0+(?=[0-9])", "", path.name) for path in (tmp_path / "out" / FOLDER).iterdir()
    }
    assert {name for name in names if name[0] != "."} == {
        *(f"{first}.{kind}" for kind in ("index", "timeindex", "txnindex")),
        *(f"{fourth}.{kind}" for kind in ("index", "timeindex")),
    }


def test_malformed_checkpoint_fails_only_its_partition(
    data: Path, tmp_path: Path, settings: BuildSettings
) -> None:
    write(data / "other-0", segments(2))
    checkpoint = data / FOLDER / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n5\n0 0\n")

    rows = build(data, settings)

    for row in rows:
        if row.topic == "other":
            assert row.status == "built"
        else:
            assert row.status == "failed"
            assert str(row.reason).startswith(f"{checkpoint}: the number of entries")
    assert list((tmp_path / "out" / FOLDER).iterdir()) == []


def test_producer_expired_at_the_given_time_is_in_no_snapshot(
    data: Path, tmp_path: Path, settings: BuildSettings
) -> None:
    build(data, settings)
    for_ever = visible(tmp_path / "out")
    latest = 1_700_000_000_000 + 10_000
    day_ms = 86_400_000

    kept_result = build(data, replace(settings, expiration=ProducerExpiration(day_ms, latest)))

    assert {row.status for row in kept_result} == {"unchanged"}
    rows = build(data, replace(settings, expiration=ProducerExpiration(day_ms, latest + day_ms)))
    changed = {
        name for name, content in visible(tmp_path / "out").items() if content != for_ever[name]
    }
    assert changed
    assert all(name.endswith(".snapshot") for name in changed)
    assert [one.producers for one in rows] < [one.producers for one in kept_result]


def test_empty_active_segment_keeps_the_snapshot_at_its_base_offset(
    data: Path, tmp_path: Path, settings: BuildSettings
) -> None:
    end = sorted(segments(5))[4]
    build(data, settings)
    before = visible(tmp_path / "out")
    log_path(data / FOLDER, end).touch()

    rows = build(data, settings)

    assert [row.status for row in rows] == ["unchanged"] * 4 + ["built"]
    added = {f"{FOLDER}/{end:020d}{suffix}": b"" for suffix in (".index", ".timeindex")}
    assert visible(tmp_path / "out") == before | added

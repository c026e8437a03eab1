"""One segment, or a few: cut ends, offsets that go back, and logs by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

import kafka_index
from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.errors import InputError
from kafka_index.core.job.result import RunOutcome
from kafka_index.core.log.choices import INDEX_OUTPUTS
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport, report_table
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from tests.support.command_line import run_here
from tests.support.dumps import built_rows
from tests.support.segments import batch

INT64_MAX = 2**63 - 1
REPEATED = [batch(0, 3), batch(3, 3), batch(3, 3), batch(6, 3)]


def log_of(directory: Path, base_offset: int, content: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(content)
    return path


def built(tmp_path: Path) -> list[SegmentReport]:
    listing = list_dump([str(tmp_path / "dump")], topics=None)
    return built_indexes(listing.segments, tmp_path / "out")


def built_indexes(segments: Iterable[SegmentFile], target: Path) -> list[SegmentReport]:
    settings = BuildSettings(target_root=str(target), outputs=INDEX_OUTPUTS)
    return sorted(built_rows(segments, settings), key=lambda row: row.segment_base_offset)


def test_zeros_at_the_end_of_the_last_segment_are_preallocation(tmp_path: Path) -> None:
    log_of(tmp_path / "dump" / "t-0", 0, batch(0))
    log_of(tmp_path / "dump" / "t-0", 3, batch(3) + bytes(1000))
    last = built(tmp_path)[1]
    assert (last.status, last.reason, last.is_damage) == ("truncated", "preallocated_tail", False)


def test_zeros_at_the_end_of_any_other_segment_are_damage(tmp_path: Path) -> None:
    log_of(tmp_path / "dump" / "t-0", 0, batch(0) + bytes(1000))
    log_of(tmp_path / "dump" / "t-0", 3, batch(3))
    first = built(tmp_path)[0]
    assert (first.status, first.reason, first.is_damage) == ("truncated", "zero_tail", True)
    assert first.position_bytes == len(batch(0))


def test_log_end_after_int64_max_is_reported(tmp_path: Path) -> None:
    log_of(tmp_path / "dump" / "t-0", INT64_MAX, batch(INT64_MAX, records=1))
    (row,) = built(tmp_path)
    assert row.status == "built"
    assert report_table([row]).column("next_offset").to_pylist() == [-(2**63)]


def test_deleted_log_is_a_failed_row_and_the_next_segment_is_built(tmp_path: Path) -> None:
    gone = log_of(tmp_path / "dump" / "t-0", 0, batch(0))
    log_of(tmp_path / "dump" / "t-0", 3, batch(3))
    segments = list_dump([str(tmp_path / "dump")], topics=None).segments
    gone.unlink()
    rows = built_indexes(segments, tmp_path / "out")
    assert [row.status for row in rows] == ["failed", "built"]
    assert str(gone) in str(rows[0].reason)


def test_single_log_in_any_folder_is_built(tmp_path: Path) -> None:
    log = log_of(tmp_path / "broken", 7, batch(7))
    (tmp_path / "out").mkdir()
    row = build_segment_files(log, tmp_path / "out")
    assert row.counts is not None
    assert (row.status, row.counts.next_offset, row.counts.batch_count) == ("built", 10, 1)
    assert (tmp_path / "out" / "00000000000000000007.timeindex").stat().st_size == 12


def test_output_in_the_folder_of_a_single_log_is_rejected(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", 7, batch(7))
    with pytest.raises(InputError, match="folder of the log"):
        build_segment_files(log, tmp_path / "t-0")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a batch that comes twice."""
    return log_of(tmp_path / "dump" / "topic-0", 0, b"".join(REPEATED))


def test_build_reports_backward_offsets_in_every_run(tmp_path: Path, log: Path) -> None:
    built = [kafka_index.build_indexes(log.parent.parent, tmp_path / "indexes") for _ in range(2)]

    position = len(REPEATED[0]) + len(REPEATED[1])
    for found in built:
        (row,) = found.rows.to_pylist()
        assert found.outcome is RunOutcome.DAMAGE
        assert (row["reason_code"], row["position_bytes"]) == ("overlap", position)
        assert row["valid_bytes"] == log.stat().st_size
    assert [one.rows["status"].to_pylist() for one in built] == [["built"], ["unchanged"]]


def test_command_and_page_report_backward_offsets_in_every_run(tmp_path: Path, log: Path) -> None:
    for name in ("first.html", "second.html"):
        result = run_here(
            *("build", "--input", log.parent.parent, "--output", tmp_path / "indexes"),
            *("--report", tmp_path / name),
        )

        assert result.returncode == 1
        assert (
            "overlap (expected offset 6 or more, found offset 3)" in result.stdout + result.stderr
        )
        assert "1 segment of 1 damaged" in (tmp_path / name).read_text()


def test_rewrite_skips_a_partition_with_backward_offsets(tmp_path: Path, log: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("none\n")
    report = tmp_path / "rows.json"

    result = run_here(
        *("rewrite", "--input", log.parent.parent, "--output", tmp_path / "rewritten"),
        *("--drop-keys", keys, "--report", report),
    )

    (row,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert result.returncode == 1
    assert row["status"] == "skipped"
    assert "overlap" in row["reason"]

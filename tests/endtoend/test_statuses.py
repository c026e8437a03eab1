"""The reports of builds on each segment, run after run: exit codes, report rows, files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.builds import build_with_report, leftover_files, state, state_files
from tests.support.command_line import (
    DUMP,
    Argument,
    broker_files,
    build_here,
    copy_partitions,
    first_log,
    index_files,
)

PARTITION = "orders.eu-west-0"
INDEXES_ALONE = ("--what", "index,timeindex")
WHAT = pytest.mark.parametrize("what", [[], list(INDEXES_ALONE)], ids=["all", "indexes"])
TRANSACTIONAL = "payments-0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return copy_partitions(tmp_path / "data", PARTITION)


def run(tmp_path: Path, data: Path, *options: Argument) -> tuple[int, list[dict[str, Any]]]:
    """Build into a folder; return exit code and report rows."""
    done, rows = build_with_report(
        build_here, tmp_path, "--input", data, "--output", tmp_path / "out", *options
    )
    assert done.stderr == ""
    assert leftover_files(tmp_path) == []
    return done.returncode, rows


def statuses(rows: list[dict[str, Any]]) -> list[str]:
    return [row["status"] for row in rows]


def damage(log: Path, position: int) -> None:
    """Flip a byte, and leave size and time as they would be if nobody had been here."""
    before = log.stat()
    content = bytearray(log.read_bytes())
    content[position] ^= 0xFF
    log.write_bytes(content)
    os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))


# ------------------------------------------------------------------------------------ in place


def test_build_in_place_writes_no_index_for_a_damaged_segment(data: Path, tmp_path: Path) -> None:
    log = first_log(data)
    damage(log, 30_000)
    for _ in range(2):
        done, rows = build_with_report(build_here, tmp_path, "--input", data, "--in-place")
        assert done.returncode == 1
        assert statuses(rows)[0] == "truncated"
        assert rows[0]["reason"].startswith("bad_crc (expected 0x")
        assert "the index files were not published" in rows[0]["reason"]
        assert rows[0]["position_bytes"] == rows[0]["valid_bytes"] <= 30_000
        name = f"{PARTITION}/{log.stem}"
        others = {
            path: content
            for path, content in broker_files(PARTITION).items()
            if not path.startswith(name)
        }
        assert index_files(data) == others
        assert leftover_files(data) == []
    assert statuses(rows)[1:] == ["unchanged"] * 3


def test_build_in_place_of_transactional_segments_writes_the_files_of_the_broker(
    tmp_path: Path,
) -> None:
    data = copy_partitions(tmp_path / "data", PARTITION, TRANSACTIONAL)
    done, rows = build_with_report(build_here, tmp_path, "--input", data, "--in-place")
    assert done.returncode == 0
    assert statuses(rows) == ["built"] * 7
    assert sum(row["aborted_txns"] for row in rows) > 0
    assert index_files(data) == broker_files(PARTITION, TRANSACTIONAL)
    for name in (PARTITION, TRANSACTIONAL):
        assert state_files(data / name) == state_files(DUMP / name)


def test_build_in_place_of_offset_indexes_only_fails_for_transactional_segments(
    tmp_path: Path,
) -> None:
    data = copy_partitions(tmp_path / "data", PARTITION, TRANSACTIONAL)
    before = state(data / TRANSACTIONAL)
    options = ("--input", data, "--in-place", "--what", "index,timeindex")
    done, rows = build_with_report(build_here, tmp_path, *options)
    assert done.returncode == 1
    # Sorted by path: orders.eu-west comes before payments.
    assert statuses(rows) == ["built"] * 4 + ["failed"] * 3
    for row in rows[4:]:
        assert row["topic"] == "payments"
        assert row["reason"].startswith("transactional: the segment was not built")
    assert index_files(data) == broker_files(PARTITION)
    # Not even a file that comes and goes again: but for its time, the folder is as it was.
    after = state(data / TRANSACTIONAL)
    assert after.pop(".")[0] == before.pop(".")[0]
    assert after == before


def test_build_in_place_accepts_and_keeps_preallocated_zeros(data: Path, tmp_path: Path) -> None:
    log = max(data.glob("*/*.log"))
    size = log.stat().st_size
    os.truncate(log, size + 50_000)
    done, rows = build_with_report(build_here, tmp_path, "--input", data, "--in-place")
    assert done.returncode == 0
    assert statuses(rows) == ["built"] * 3 + ["truncated"]
    assert rows[-1]["reason"].startswith("preallocated_tail; the index files were not published")
    assert rows[-1]["position_bytes"] == rows[-1]["valid_bytes"] == size
    assert not log.with_suffix(".index").exists()


def test_build_in_place_replaces_wrong_older_indexes(data: Path, tmp_path: Path) -> None:
    for log in data.glob("*/*.log"):
        log.with_suffix(".index").write_bytes(b"\1" * 24)
        log.with_suffix(".timeindex").write_bytes(b"\2" * 13)
    done, rows = build_with_report(build_here, tmp_path, "--input", data, "--in-place")
    assert done.returncode == 0
    assert statuses(rows) == ["built"] * 4
    assert index_files(data) == broker_files(PARTITION)


# ------------------------------------------------------------------------------------- output


def test_transactional_segments_are_built_into_another_folder(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", TRANSACTIONAL)
    code, rows = run(tmp_path, data)
    assert code == 0
    assert statuses(rows) == ["built"] * 3
    assert index_files(tmp_path / "out") == broker_files(TRANSACTIONAL)


def test_truncated_segment_is_reported_in_every_run_and_not_read_again(
    data: Path, tmp_path: Path
) -> None:
    damage(first_log(data), 30_000)
    code, rows = run(tmp_path, data)
    assert (code, statuses(rows)) == (1, ["truncated"] + ["built"] * 3)
    written = state(tmp_path / "out")

    code, again = run(tmp_path, data)

    assert (code, statuses(again)) == (1, ["truncated"] + ["unchanged"] * 3)
    for one in (rows[0], again[0]):
        one.pop("seconds")
        one.pop("run_id")
    assert again[0] == rows[0]
    # The lock has come and gone.
    now = state(tmp_path / "out")
    assert now.pop(".") != written.pop(".")
    assert now == written


def _touch(log: Path) -> None:
    os.utime(log, ns=(1, 1))


def _replace(log: Path) -> None:
    new = log.with_suffix(".new")
    shutil.copyfile(log, new)
    os.replace(new, log)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def _flip(path: Path) -> None:
    damage(path, 9)


@pytest.mark.parametrize(
    ("which", "change"),
    [
        ("data/*/*.log", _touch),
        ("data/*/*.log", _replace),
        ("out/*/*.index", _cut),
        ("out/*/*.index", _flip),
        ("out/*/*.index", Path.unlink),
        ("out/*/*.timeindex", _flip),
        ("out/*/*.timeindex", Path.unlink),
    ],
)
@WHAT
def test_only_the_changed_segment_is_built_again(
    data: Path, tmp_path: Path, which: str, change: Callable[[Path], None], what: list[str]
) -> None:
    assert run(tmp_path, data, *what)[0] == 0
    change(min(tmp_path.glob(which)))

    code, rows = run(tmp_path, data, *what)

    assert (code, statuses(rows)) == (0, ["built"] + ["unchanged"] * 3)
    assert index_files(tmp_path / "out") == broker_files(PARTITION)


class Opened:
    """The names of the files that this process opens, inside of a context."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._collects = False
        sys.addaudithook(self._on_event)

    def __enter__(self) -> list[str]:
        self._collects = True
        return self.names

    def __exit__(self, *_: object) -> None:
        self._collects = False

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._collects and event == "open" and isinstance(arguments[0], str):
            self.names.append(os.path.basename(arguments[0]))


@pytest.fixture(scope="module")
def opened() -> Opened:
    return Opened()


@WHAT
def test_rerun_opens_no_log_and_no_published_file(
    data: Path, tmp_path: Path, opened: Opened, what: list[str]
) -> None:
    with opened as names:
        assert run(tmp_path, data, *what)[0] == 0
    assert {Path(name).suffix for name in names} >= {".log"}
    names.clear()

    with opened as names:
        code, rows = run(tmp_path, data, *what)

    assert (code, statuses(rows)) == (0, ["unchanged"] * 4)
    assert ".partition.kafka-index" in names
    kinds = (".log", ".index", ".timeindex", ".snapshot", ".kafka-index-state")
    assert [name for name in names if name.endswith(kinds)] == []


def test_build_of_only_indexes_has_a_manifest(data: Path, tmp_path: Path) -> None:
    assert run(tmp_path, data, *INDEXES_ALONE)[0] == 0
    hidden = [path.name for path in (tmp_path / "out" / PARTITION).glob(".*")]
    assert hidden == [".partition.kafka-index"]
    assert index_files(tmp_path / "out") == broker_files(PARTITION)


def test_build_of_only_indexes_keeps_the_manifest_of_all_files(data: Path, tmp_path: Path) -> None:
    assert run(tmp_path, data)[0] == 0
    record = tmp_path / "out" / PARTITION / ".partition.kafka-index"
    before = record.read_bytes()

    code, rows = run(tmp_path, data, *INDEXES_ALONE)

    assert (code, statuses(rows)) == (0, ["unchanged"] * 4)
    assert record.read_bytes() == before
    assert statuses(run(tmp_path, data)[1]) == ["unchanged"] * 4


def test_complete_build_after_an_index_build_writes_the_other_files(
    data: Path, tmp_path: Path
) -> None:
    assert run(tmp_path, data, *INDEXES_ALONE)[0] == 0
    code, rows = run(tmp_path, data)
    assert (code, statuses(rows)) == (0, ["built"] * 4)
    assert state_files(tmp_path / "out" / PARTITION) == state_files(DUMP / PARTITION)


@pytest.mark.parametrize("change", [_flip, Path.unlink])
def test_partition_with_a_changed_manifest_is_built_again(
    data: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    assert run(tmp_path, data)[0] == 0
    change(tmp_path / "out" / PARTITION / ".partition.kafka-index")
    code, rows = run(tmp_path, data)
    assert (code, statuses(rows)) == (0, ["built"] * 4)
    assert statuses(run(tmp_path, data)[1]) == ["unchanged"] * 4


def test_copied_output_is_trusted_by_its_content(data: Path, tmp_path: Path) -> None:
    assert run(tmp_path, data)[0] == 0
    for path in (tmp_path / "out" / PARTITION).iterdir():
        os.utime(path, ns=(1, 1))
    code, rows = run(tmp_path, data)
    assert (code, statuses(rows)) == (0, ["unchanged"] * 4)


def test_grown_log_is_built_again(data: Path, tmp_path: Path) -> None:
    log = first_log(data)
    complete_data = log.read_bytes()
    os.truncate(log, 30_000)
    code, rows = run(tmp_path, data)
    assert (code, rows[0]["status"]) == (1, "truncated")
    assert "torn" in rows[0]["reason"]
    log.write_bytes(complete_data)

    code, rows = run(tmp_path, data)

    # The one behind it is right but for its snapshot, which now is at its base offset.
    assert (code, statuses(rows)) == (0, ["built", "built", "unchanged", "unchanged"])
    assert index_files(tmp_path / "out") == broker_files(PARTITION)
    assert state_files(tmp_path / "out" / PARTITION) == state_files(DUMP / PARTITION)


def test_build_with_other_settings_builds_all_segments_again(data: Path, tmp_path: Path) -> None:
    for option in ("--index-interval-bytes", "--index-size-max-bytes"):
        for value in (8000, 8001):
            code, rows = run(tmp_path, data, option, value)
            assert (code, statuses(rows)) == (0, ["built"] * 4), (option, value)
        code, rows = run(tmp_path, data, option, value)
        assert (code, statuses(rows)) == (0, ["unchanged"] * 4)
    code, rows = run(tmp_path, data, "--force", option, value)
    assert (code, statuses(rows)) == (0, ["built"] * 4)


def test_output_built_without_checksums_is_verified_on_request(data: Path, tmp_path: Path) -> None:
    damage(first_log(data), 30_000)
    for expected in (["built"] * 4, ["unchanged"] * 4):
        code, rows = run(tmp_path, data, "--no-verify-crc")
        assert (code, statuses(rows)) == (0, expected)

    code, rows = run(tmp_path, data)
    assert (code, statuses(rows)) == (1, ["truncated"] + ["built"] * 3)
    assert rows[0]["reason"].startswith("bad_crc")

    # What was verified is good enough for a run that does not ask.
    code, rows = run(tmp_path, data, "--no-verify-crc")
    assert (code, statuses(rows)) == (1, ["truncated"] + ["unchanged"] * 3)

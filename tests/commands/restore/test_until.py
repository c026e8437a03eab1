"""Restores to a point in time, or to offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_index import restore_dump
from kafka_index.core.errors import InputError
from kafka_index.core.format.times import format_time
from tests.support.command_line import run_here
from tests.support.restoring import batches as batches_of
from tests.support.restoring import copy_dump, logs, restore

PARTITION = "audit.trail-0"
INTERNAL = ("__consumer_offsets-0", "__transaction_state-0")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "dump", PARTITION, "payments-0", "payments-1", *INTERNAL)


def batches(directory: Path) -> list[dict[str, Any]]:
    return [row for log in logs(directory) for row in batches_of(log)]


def test_until_a_create_time_requires_an_option(tmp_path: Path, dump: Path) -> None:
    run = restore(dump, tmp_path / "out", "--until", "2026-01-01T00:00:00Z")

    assert run.code == 2
    assert "CreateTime" in run.done.stderr
    assert "--create-time" in run.done.stderr
    assert not (tmp_path / "out").exists()


def test_until_a_time_truncates_logs_before_the_first_later_batch(
    tmp_path: Path, dump: Path
) -> None:
    before = batches(dump / PARTITION)
    time = before[len(before) // 2]["max_timestamp_ms"]
    beyond = next(at for at, row in enumerate(before) if row["max_timestamp_ms"] > time)

    run = restore(
        *(dump, tmp_path / "out", "--topics", "audit.trail"), "--until", time, "--create-time"
    )

    assert run.code == 0, run.done.stdout + run.done.stderr
    assert batches(tmp_path / "out" / PARTITION) == before[:beyond]
    (row,) = run.rows
    assert row["log_end_offset"] == before[beyond]["base_offset"]
    assert "\nsafe" in run_here("predict", "--input", tmp_path / "out").stdout


@pytest.mark.parametrize("link", ["copy", "hard"])
def test_until_an_offset_truncates_logs_before_the_batch_that_contains_it(
    tmp_path: Path, dump: Path, link: str
) -> None:
    before = batches(dump / PARTITION)
    sizes = {log.name: log.stat().st_size for log in logs(dump / PARTITION)}
    at = len(before) // 3
    offset = before[at]["base_offset"] + 1
    (tmp_path / "offsets.csv").write_text(f"audit.trail,0,{offset}\n")

    run = restore(
        *(dump, tmp_path / "out", "--until", tmp_path / "offsets.csv", "--link", link),
        *("--topics", "audit.trail|payments"),
    )

    assert run.code == 0, run.done.stdout
    assert batches(tmp_path / "out" / PARTITION) == before[:at]
    assert batches(tmp_path / "out/payments-0") == batches(dump / "payments-0")
    assert {log.name: log.stat().st_size for log in logs(dump / PARTITION)} == sizes


def test_end_before_the_first_record_leaves_an_empty_log(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "offsets.json").write_text('{"audit.trail": {"0": 0}}')

    run = restore(
        *(dump, tmp_path / "out", "--until", tmp_path / "offsets.json"),
        *("--topics", "audit.trail"),
    )

    assert run.code == 0, run.done.stdout
    (log,) = logs(tmp_path / "out" / PARTITION)
    assert log.stat().st_size == 0
    assert run.rows[0]["log_end_offset"] == 0


def test_open_transactions_at_the_end_are_reported(tmp_path: Path, dump: Path) -> None:
    committed = [line for line in batches(dump / "payments-0") if line["control_type"] is not None]
    # The marker of a transaction is beyond the end, its records are not.
    (tmp_path / "offsets.csv").write_text(
        f"payments,0,{committed[len(committed) // 2]['base_offset']}\n"
    )

    run = restore(dump, tmp_path / "out", "--until", tmp_path / "offsets.csv")

    assert run.code == 0, run.done.stdout
    assert "is open at the end of payments-0" in run.done.stdout


def test_until_of_missing_partitions_is_rejected(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "offsets.csv").write_text("unknown,0,10\n")

    assert restore(dump, tmp_path / "out", "--until", tmp_path / "offsets.csv").code == 2


def test_time_before_all_records_is_rejected_with_the_existing_times(
    tmp_path: Path, dump: Path
) -> None:
    run = restore(dump, tmp_path / "out", "--until", "2020-01-01", "--create-time")

    assert run.code == 2
    message = "is before the first batch of every partition: no record would be restored"
    assert f"--until 2020-01-01T00:00:00.000Z {message}" in run.done.stderr
    names = ("audit.trail-0", "payments-0", "payments-1")
    times = [row for name in names for row in batches(dump / name)]
    for time in (
        min(row["base_timestamp_ms"] for row in times),
        max(row["max_timestamp_ms"] for row in times),
    ):
        assert str(format_time(time)) in run.done.stderr
    assert not (tmp_path / "out").exists()


def test_restore_summary_reports_the_requested_end(tmp_path: Path, dump: Path) -> None:
    ends = [batches(dump / name)[-1]["max_timestamp_ms"] for name in ("payments-0", "payments-1")]
    first = batches(dump / "payments-0")[5]["max_timestamp_ms"]
    run = restore(dump, tmp_path / "out", "--until", first, "--create-time", "--topics", "payments")
    assert f"nothing lost up to {format_time(first)}" in run.done.stdout
    assert f"logs of 2 truncated at {format_time(first)}" in run.done.stdout
    run = restore(
        dump, tmp_path / "all", "--until", max(ends), "--create-time", "--topics", "payments"
    )
    assert f"0 logs of 2 truncated at {format_time(max(ends))}" in run.done.stdout


def test_directories_that_are_not_live_are_reported(tmp_path: Path, dump: Path) -> None:
    (dump / "old-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    run = restore(dump, tmp_path / "out")
    assert "skipped 1 entry" in run.done.stdout
    assert "the partition is marked for deletion" in run.done.stdout


def test_relative_time_of_a_resumed_restore_is_that_of_the_first_run(
    tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = batches(dump / "payments-0")
    cut, later = rows[5]["max_timestamp_ms"], rows[-1]["max_timestamp_ms"] + 1
    options: dict[str, Any] = {
        "topics": "payments",
        "new_topic_ids": True,
        "create_time": True,
        "until": "-1h",
    }
    monkeypatch.setattr("kafka_index.core.job.request.now_ms", lambda: cut + 3_600_000)
    out = tmp_path / "out"
    with monkeypatch.context() as failing:
        failing.setattr("kafka_index.core.output.output.LastFiles.publish", _full)
        with pytest.raises(OSError, match="disk"):
            restore_dump(dump, out, **options)
    monkeypatch.setattr("kafka_index.core.job.request.now_ms", lambda: later + 3_600_000)
    restore_dump(dump, out, **options)
    restore_dump(dump, tmp_path / "once", **options | {"until": cut})
    assert [log.stat().st_size for log in logs(out / "payments-0")] == [
        log.stat().st_size for log in logs(tmp_path / "once" / "payments-0")
    ]
    with pytest.raises(InputError):
        restore_dump(dump, out, **options | {"until": "-2h"})


def _full(*_: object) -> None:
    raise OSError("disk")


@pytest.mark.parametrize(("offset", "is_named"), [(2000, True), (2700, False)])
def test_partition_cleaned_beyond_its_new_end_is_reported(
    tmp_path: Path, offset: int, *, is_named: bool
) -> None:
    dump = copy_dump(tmp_path / "dump", "customer-profiles-0")
    limits = tmp_path / "limits.csv"
    limits.write_text(f"customer-profiles,0,{offset}\n")

    run = restore(dump, tmp_path / "out", "--until", limits)

    assert ("was compacted up to offset 2637" in " ".join(run.done.stdout.split())) == is_named

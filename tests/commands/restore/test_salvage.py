"""Damaged dumps: what is kept, and that what is lost is said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from kafka_index import restore_dump, verify
from kafka_index.commands.restore.request import ClusterMode, Link, RestoreRequest, Salvage
from kafka_index.core.errors import ConfigError
from tests.support.command_line import Argument, run_here
from tests.support.restoring import batches, contents, copy_dump, damage_batch, logs, restore

PARTITION = "audit.trail-0"


def places(log: Path) -> list[tuple[int, int, int]]:
    """Position, size and number of records of each batch."""
    rows = batches(log)
    return [(row["position_bytes"], row["size_bytes"], row["record_count"]) for row in rows]


def records(directory: Path) -> int:
    return sum(count for log in logs(directory) for _, _, count in places(log))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "dump", PARTITION)


def test_prefix_of_a_damaged_segment_and_later_segments_are_kept(
    tmp_path: Path, dump: Path
) -> None:
    before = records(dump / PARTITION)
    second = logs(dump / PARTITION)[1]
    lost_records = sum(count for _, _, count in places(second)[5:])
    complete_data = second.read_bytes()
    damage_batch(second, 5)

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    assert run.partitions("salvaged") == {PARTITION}
    assert records(tmp_path / "out" / PARTITION) == before - lost_records
    (lost,) = run.lost
    assert lost["reason_code"] == "bad_crc"
    assert lost["records"] == lost_records
    kept_data = logs(tmp_path / "out" / PARTITION)[1].read_bytes()
    assert complete_data.startswith(kept_data)
    assert lost["size_bytes"] == len(complete_data) - len(kept_data)
    assert lost["last_offset"] == int(logs(dump / PARTITION)[2].stem) - 1


def test_runbook_reports_how_many_more_offsets_a_prefix_loses(tmp_path: Path, dump: Path) -> None:
    second = logs(dump / PARTITION)[1]
    for number in (9, 5):
        damage_batch(second, number)

    prefix = restore(dump, tmp_path / "prefix")
    kept_result = restore(dump, tmp_path / "batches", "--salvage", "batches")

    more = records(tmp_path / "batches" / PARTITION) - records(tmp_path / "prefix" / PARTITION)
    line = f"{PARTITION}: --salvage batches would keep {more:,} more offsets"
    assert line in prefix.done.stdout
    assert "more offsets" not in kept_result.done.stdout


def test_salvage_batches_drops_only_corrupt_batches(tmp_path: Path, dump: Path) -> None:
    before = records(dump / PARTITION)
    second = logs(dump / PARTITION)[1]
    dropped = damage_batch(second, 9) + damage_batch(second, 5)

    run = restore(dump, tmp_path / "out", "--salvage", "batches")

    assert run.code == 1
    assert [row["records"] for row in run.lost] == counts_at(second, 5, 9)
    assert f"{dropped} records lost in 2 ranges" in run.done.stdout
    assert records(tmp_path / "out" / PARTITION) == before - dropped
    result = run_here("predict", "--input", tmp_path / "out")
    assert "0 records lost or unreadable, 24 offsets missing" in result.stdout


@pytest.mark.parametrize("salvage", list(Salvage))
def test_choice_as_text_equals_the_enum_member(
    tmp_path: Path, dump: Path, salvage: Salvage
) -> None:
    damage_batch(logs(dump / PARTITION)[1], 5)

    kept = [
        restore_dump(dump, tmp_path / str(number), salvage=given, link=link)
        for number, (given, link) in enumerate([(salvage, Link.COPY), (salvage.value, "copy")])
    ]

    assert kept[0].partitions == kept[1].partitions
    assert contents(tmp_path / "0") == contents(tmp_path / "1")


@pytest.mark.parametrize(
    "choices",
    [
        {"cluster": ClusterMode.SAME, "seeds": ["metadata"]},
        {"cluster": ClusterMode.SAME, "renames": {"a": "b"}},
        {"metadata_output": "metadata"},
        {"all_brokers_restored": True},
        {"topic_configs": {"a": {"retention.ms": "1"}}},
    ],
)
def test_conflicting_options_are_rejected(
    tmp_path: Path, dump: Path, choices: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"requires (cluster|seeds)"):
        RestoreRequest(inputs=(str(dump),), output=str(tmp_path / "out"), **choices)


def counts_at(log: Path, *numbers: int) -> list[int]:
    """The number of records by the headers of batches, whatever their checksums."""
    headers = batches(log, verify_crc=False)
    return [headers[number]["record_count"] for number in numbers]


def test_batches_after_lost_bytes_are_restored(tmp_path: Path, dump: Path) -> None:
    second = logs(dump / PARTITION)[1]
    result = places(second)
    data = bytearray(second.read_bytes())
    # The header of one batch, its length above all, and the middle of the next.
    start = result[5][0]
    data[start : result[6][0] + 30] = b"\xff" * (result[6][0] + 30 - start)
    second.write_bytes(data)

    run = restore(dump, tmp_path / "out", "--salvage", "batches")

    (lost,) = run.lost
    assert lost["records"] is None
    assert lost["size_bytes"] == result[5][1] + result[6][1]
    assert len(places(logs(tmp_path / "out" / PARTITION)[1])) == len(result) - 2


def test_salvage_none_skips_a_damaged_partition(tmp_path: Path, dump: Path) -> None:
    damage_batch(logs(dump / PARTITION)[1], 5)
    shutil.copytree(dump / PARTITION, dump / "audit.trail-1")

    run = restore(dump, tmp_path / "out", "--salvage", "none")

    assert run.code == 1
    assert run.partitions("skipped") == {PARTITION, "audit.trail-1"}
    assert not list((tmp_path / "out").glob("audit.trail*"))


def test_torn_end_is_a_loss(tmp_path: Path, dump: Path) -> None:
    last = logs(dump / PARTITION)[-1]
    position, _, count = places(last)[-1]
    last.write_bytes(last.read_bytes()[: position + 80])

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    (lost,) = run.lost
    assert lost["reason_code"] == "torn_batch"
    assert lost["records"] == count
    assert logs(tmp_path / "out" / PARTITION)[-1].stat().st_size == position


@pytest.mark.parametrize("kept_bytes", [8, 80])
def test_torn_log_end_below_the_high_watermark_reports_two_losses(
    tmp_path: Path, dump: Path, kept_bytes: int
) -> None:
    last = logs(dump / PARTITION)[-1]
    end = batches(last)[-1]["last_offset"] + 1
    torn = batches(last)[-4]
    last.write_bytes(last.read_bytes()[: torn["position_bytes"] + kept_bytes])

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    header_is_there = kept_bytes > 61
    committed = torn["last_offset"] + 1 if header_is_there else torn["base_offset"]
    code = "torn_batch" if header_is_there else "torn_header"
    torn_to = torn["last_offset"] if header_is_there else None
    assert run.lost_offsets == [
        (code, torn["base_offset"], torn_to),
        ("below_committed", committed, end - 1),
    ]


@pytest.mark.parametrize("salvage", ["prefix", "batches"])
def test_number_of_records_after_a_torn_batch_is_unknown(
    tmp_path: Path, dump: Path, salvage: str
) -> None:
    second, third = logs(dump / PARTITION)[1:3]
    position, _, _ = places(second)[5]
    kept = sum(count for _, _, count in places(second)[:5])
    second.write_bytes(second.read_bytes()[: position + 80])

    run = restore(dump, tmp_path / "out", "--salvage", salvage)

    assert run.code == 1
    (lost,) = run.lost
    first, last = int(second.stem) + kept, int(third.stem) - 1
    assert (lost["first_offset"], lost["last_offset"], lost["records"]) == (first, last, None)
    assert f"{last - first + 1:,} offsets lost in 1 range" in run.done.stdout
    assert f"offsets {first} to {last} (unknown number of records)" in run.done.stdout


def test_zeros_of_preallocation_are_truncated_and_no_loss(tmp_path: Path, dump: Path) -> None:
    last = logs(dump / PARTITION)[-1]
    complete_data = last.read_bytes()
    last.write_bytes(complete_data + bytes(10_000))

    run = restore(dump, tmp_path / "out")

    assert run.code == 0, run.done.stdout
    assert logs(tmp_path / "out" / PARTITION)[-1].read_bytes() == complete_data


def test_log_end_below_the_checkpoints_is_a_loss(tmp_path: Path, dump: Path) -> None:
    last = logs(dump / PARTITION)[-1]
    position, _, count = places(last)[-1]
    last.write_bytes(last.read_bytes()[:position])

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    (lost,) = run.lost
    assert lost["reason_code"] == "below_committed"
    assert lost["last_offset"] - lost["first_offset"] + 1 == count


def test_missing_segment_is_a_loss(tmp_path: Path, dump: Path) -> None:
    first, second, third = (int(log.stem) for log in logs(dump / PARTITION)[:3])
    assert first == 0
    logs(dump / PARTITION)[1].unlink()

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    (lost,) = run.lost
    assert (lost["reason_code"], lost["first_offset"], lost["last_offset"]) == (
        "gap",
        second,
        third - 1,
    )
    assert f"{third - second:,} offsets lost in 1 range" in run.done.stdout


def test_restore_summary_and_page_count_lost_records_and_offsets(
    tmp_path: Path, dump: Path
) -> None:
    first, second, third = logs(dump / PARTITION)[:3]
    damage_batch(first, 5)
    second.unlink()
    page = tmp_path / "restore.html"
    again: list[Argument] = [
        "--input",
        dump,
        "--output",
        tmp_path / "again",
        "--salvage",
        "batches",
    ]

    run = restore(dump, tmp_path / "out", "--salvage", "batches")
    run_here("restore", *again, "--report", page)

    lost = sum(row["records"] or 0 for row in run.lost)
    gap = int(third.stem) - int(second.stem)
    text = f"{lost} records and {gap:,} offsets lost in 2 ranges"
    assert text in run.done.stdout
    assert text in page.read_text()


def test_share_group_state_is_not_compacted(tmp_path: Path, dump: Path) -> None:
    directory = (dump / PARTITION).rename(dump / "__share_group_state-0")
    logs(directory)[1].unlink()

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    assert [lost["reason_code"] for lost in run.lost] == ["gap"]


def test_offsets_removed_by_compaction_are_no_loss(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "customer-profiles-0", "inventory.levels-0")

    assert restore(dump, tmp_path / "out").code == 0


def test_hard_link_is_replaced_before_it_is_truncated(tmp_path: Path, dump: Path) -> None:
    damage_batch(logs(dump / PARTITION)[1], 5)
    before = logs(dump / PARTITION)[1].read_bytes()

    run = restore(dump, tmp_path / "out", "--link", "hard")

    assert run.code == 1
    assert logs(dump / PARTITION)[1].read_bytes() == before
    assert logs(tmp_path / "out" / PARTITION)[1].stat().st_nlink == 1


def test_log_behind_a_symbolic_link_is_not_truncated_in_the_dump(
    tmp_path: Path, dump: Path
) -> None:
    second = logs(dump / PARTITION)[1]
    damage_batch(second, 5)
    kept = tmp_path / "kept.log"
    second.rename(kept)
    second.symlink_to(kept)
    before = kept.read_bytes()

    run = restore(dump, tmp_path / "out", "--link", "hard")

    assert run.code == 1
    assert kept.read_bytes() == before
    made = logs(tmp_path / "out" / PARTITION)
    assert not any(log.is_symlink() for log in made)
    assert len(made[1].read_bytes()) < len(before)


def test_missing_first_segment_is_a_loss_from_the_log_start(tmp_path: Path, dump: Path) -> None:
    second = int(logs(dump / PARTITION)[1].stem)
    logs(dump / PARTITION)[0].unlink()
    (dump / "log-start-offset-checkpoint").write_text("0\n1\naudit.trail 0 20\n")

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    assert run.lost_offsets == [("gap", 20, second - 1)]


def test_missing_first_batches_of_the_first_log_are_a_loss(tmp_path: Path, dump: Path) -> None:
    first = logs(dump / PARTITION)[0]
    position, _, _ = places(first)[3]
    offset = batches(first)[3]["base_offset"]
    first.write_bytes(first.read_bytes()[position:])

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    assert run.lost_offsets == [("gap", 0, offset - 1)]


def compacted(dump: Path, *, cleaned_to: int) -> Path:
    """Make the partition one of a compacted topic, cleaned up to an offset."""
    (dump / PARTITION).rename(dump / "__consumer_offsets-0")
    text = f"0\n1\n__consumer_offsets 0 {cleaned_to}\n"
    (dump / "cleaner-offset-checkpoint").write_text(text)
    return dump / "__consumer_offsets-0"


def test_missing_segment_above_the_cleaned_part_is_a_loss(tmp_path: Path, dump: Path) -> None:
    first, second, third = (int(log.stem) for log in logs(dump / PARTITION)[:3])
    directory = compacted(dump, cleaned_to=first + 20)
    logs(directory)[1].unlink()

    run = restore(dump, tmp_path / "out")

    assert run.code == 1
    assert run.lost_offsets == [("gap", second, third - 1)]


def test_missing_segment_above_the_cleaned_part_is_repaired_from_another_copy(
    tmp_path: Path, dump: Path
) -> None:
    directory = compacted(dump, cleaned_to=20)
    other = tmp_path / "other"
    shutil.copytree(dump, other)
    missing = logs(directory)[1]
    missing.unlink()

    run = restore(dump, tmp_path / "out", "--input", other)

    assert run.code == 0, run.done.stdout
    made = tmp_path / "out/__consumer_offsets-0" / missing.name
    assert made.read_bytes() == (other / directory.name / missing.name).read_bytes()


def test_gap_in_the_cleaned_part_is_no_loss(tmp_path: Path, dump: Path) -> None:
    third = int(logs(dump / PARTITION)[2].stem)
    directory = compacted(dump, cleaned_to=third)
    for file in directory.glob(f"{logs(directory)[1].stem}.*"):
        file.unlink()

    assert restore(dump, tmp_path / "out").code == 0


def duplicate_batch(log: Path, number: int) -> None:
    """Let a batch follow itself: whole, with the right checksum, and offsets that go back."""
    position, size, _ = places(log)[number]
    data = log.read_bytes()
    end = position + size
    log.write_bytes(data[:end] + data[position:end] + data[end:])


@pytest.mark.parametrize("segment", [1, -1])
@pytest.mark.parametrize("number", [3, -1])
def test_batch_with_decreasing_offsets_is_damage(
    tmp_path: Path, dump: Path, segment: int, number: int
) -> None:
    log = logs(dump / PARTITION)[segment]
    sound, (position, *_) = log.read_bytes(), places(log)[number]
    duplicate_batch(log, number)

    kept_result = restore(dump, tmp_path / "batches", "--salvage", "batches")
    prefix = restore(dump, tmp_path / "prefix")
    none = restore(dump, tmp_path / "none", "--salvage", "none")

    assert [each.code for each in (kept_result, prefix, none)] == [1, 1, 1]
    assert not any("nothing lost" in each.done.stdout for each in (kept_result, prefix, none))
    assert [(row["reason_code"], row["records"]) for row in kept_result.lost] == [("overlap", 0)]
    reason = f"nothing is lost: the batch at byte {position} is the same"
    assert reason in kept_result.lost[0]["reason"]
    assert "0 records lost in 1 range" in kept_result.done.stdout
    assert [row["reason_code"] for row in prefix.lost][:1] == ["overlap"]
    assert none.partitions("skipped") == {PARTITION}
    assert (tmp_path / "batches" / PARTITION / log.name).read_bytes() == sound
    assert sound.startswith((tmp_path / "prefix" / PARTITION / log.name).read_bytes())
    for command in ("verify", "predict"):
        assert run_here(command, "--input", tmp_path / "batches").returncode == 0
        assert "go back" not in run_here(command, "--input", tmp_path / "prefix").stdout


def test_batch_with_decreasing_offsets_that_repeats_no_batch_is_lost(
    tmp_path: Path, dump: Path
) -> None:
    log = logs(dump / PARTITION)[1]
    position, size, count = places(log)[3]
    data = bytearray(log.read_bytes())
    again = data[position : position + size]
    again[34] ^= 1
    again[17:21] = google_crc32c.value(bytes(again[21:])).to_bytes(4)
    log.write_bytes(data[: position + size] + again + data[position + size :])

    run = restore(dump, tmp_path / "out", "--salvage", "batches")

    assert [(row["reason_code"], row["records"]) for row in run.lost] == [("overlap", count)]


def test_repeated_batch_is_repaired_from_a_copy_without_it(tmp_path: Path, dump: Path) -> None:
    complete_dump = copy_dump(tmp_path / "whole", PARTITION)
    log = logs(dump / PARTITION)[1]
    sound = log.read_bytes()
    duplicate_batch(log, 3)

    run = restore(dump, tmp_path / "out", "--input", complete_dump)

    assert run.code == 0
    assert (run.lost, run.partitions("restored")) == ([], {PARTITION})
    assert (tmp_path / "out" / PARTITION / log.name).read_bytes() == sound


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("delete", "is not compacted"), ("compact", "topic is compacted"), (None, "is not compacted")],
)
def test_cleanup_policy_of_brokers_comes_from_the_config_as_in_verify(
    tmp_path: Path, policy: str | None, expected: str
) -> None:
    dump = copy_dump(tmp_path / "dump", PARTITION, "__cluster_metadata-0")
    for path in (dump / PARTITION).glob(f"{logs(dump / PARTITION)[1].stem}.*"):
        path.unlink()
    settings = {} if policy is None else {"log.cleanup.policy": policy}

    restored = restore_dump(dump, tmp_path / "out", config=settings)
    verified = verify(dump, config=settings)

    (lost,) = [one for partition in restored.partitions for one in partition.lost]
    (gap,) = [row for row in verified.findings if row.kind == "log" and row.file_class == "gap"]
    assert expected in lost.reason
    assert lost.is_known is (policy != "compact")
    assert lost.reason.partition("; ")[2].lower() in (gap.effect or "").lower()


@pytest.mark.parametrize("number", [0, 3])
def test_last_log_truncated_between_batches_has_a_note_about_its_index_files(
    tmp_path: Path, number: int
) -> None:
    dump = copy_dump(tmp_path / "dump", PARTITION)
    for path in dump.glob("*-checkpoint"):
        path.unlink()
    log = logs(dump / PARTITION)[-1]
    os.truncate(log, batches(log)[number]["position_bytes"])

    restored = restore_dump(dump, tmp_path / "out")

    (found,) = restored.partitions
    assert not found.lost
    assert any("its index files contain later offsets" in note for note in found.notes)

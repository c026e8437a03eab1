"""Topics under new names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from tests.support.restoring import contents, copy_dump, partition_contents, restore


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    names = ("payments-0", "payments-1", "shipments.tracking-0", "__consumer_offsets-0")
    return copy_dump(tmp_path / "dump", *names)


def test_renamed_topic_has_the_same_files_and_a_new_id(tmp_path: Path, dump: Path) -> None:
    run = restore(dump, tmp_path / "out", "--rename", "payments=paid")

    assert run.code == 0, run.done.stderr
    for number in range(2):
        made = partition_contents(tmp_path / "out", f"paid-{number}")
        before = partition_contents(dump, f"payments-{number}")
        assert made.pop("partition.metadata") != before.pop("partition.metadata")
        assert made == before
    assert not list((tmp_path / "out").glob("payments*"))
    text = (tmp_path / "out/recovery-point-offset-checkpoint").read_text()
    assert "paid 0 " in text
    assert "payments" not in text


def test_committed_offsets_under_the_old_name_are_reported(tmp_path: Path) -> None:
    name = "orders.eu-west"
    dump = copy_dump(tmp_path / "dump", f"{name}-0", f"{name}-1", "__consumer_offsets-0")
    listed = run_here("metadata", dump, "--what", "offsets", "--json")
    committed = [json.loads(line) for line in listed.stdout.splitlines()]
    summary = tmp_path / "summary.json"

    run = restore(dump, tmp_path / "out", "--rename", f"{name}=orders", "--summary", summary)

    assert [
        [row[column] for column in ("topic", "partition", "group", "committed_offset")]
        for row in run.rows
        if row["status"] == "not_renamed"
    ] == [[name, one["partition"], one["group"], one["offset"]] for one in committed]
    assert len(committed) == 3
    assert "remain under the old name (offsets: 3, groups: 1)" in run.done.stdout
    assert json.loads(summary.read_text())["counts"]["offsets_not_renamed"] == 3
    assert run.code == 0


def test_checkpoints_of_the_old_name_apply(tmp_path: Path, dump: Path) -> None:
    restore(dump, tmp_path / "out", "--rename", "shipments.tracking=tracked")

    text = (tmp_path / "out/log-start-offset-checkpoint").read_text()
    assert text == "0\n1\ntracked 0 1500\n"


@pytest.mark.parametrize(
    "rename",
    [
        "__consumer_offsets=groups",
        "payments=__paid",
        "payments=shipments.tracking",
        "unknown=known",
        "payments=a/b",
        "payments",
    ],
)
def test_invalid_renames_are_rejected(tmp_path: Path, dump: Path, rename: str) -> None:
    run = restore(dump, tmp_path / "out", "--rename", rename)

    assert run.code == 2
    assert not contents(tmp_path / "out")


def test_two_topics_with_one_new_name_are_rejected(tmp_path: Path, dump: Path) -> None:
    more = ("--rename", "payments=x", "--rename", "shipments.tracking=x")

    assert restore(dump, tmp_path / "out", *more).code == 2

"""Topics under new names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.restoring import contents, copy_dump, partition_contents, restore


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    names = ("payments-0", "payments-1", "shipments.tracking-0", "__consumer_offsets-0")
    return copy_dump(tmp_path / "dump", *names)


def test_a_renamed_topic_has_the_same_files_and_a_new_id(tmp_path: Path, dump: Path) -> None:
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


def test_the_checkpoints_of_the_old_name_count(tmp_path: Path, dump: Path) -> None:
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
def test_names_that_cannot_be_given_are_refused(tmp_path: Path, dump: Path, rename: str) -> None:
    run = restore(dump, tmp_path / "out", "--rename", rename)

    assert run.code == 2
    assert not contents(tmp_path / "out")


def test_two_topics_do_not_get_one_name(tmp_path: Path, dump: Path) -> None:
    more = ("--rename", "payments=x", "--rename", "shipments.tracking=x")

    assert restore(dump, tmp_path / "out", *more).code == 2

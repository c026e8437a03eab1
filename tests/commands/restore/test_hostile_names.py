"""Dumps with directories of strange names: legal topics are restored, nothing leaves the output."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import DUMP
from tests.support.restoring import MARKER, copy_dump, restore

SOURCE = "payments-0"
#: Names of topics as long, and as like a partition, as Kafka allows.
LEGAL = ("a-0", "-", "-1", "...", "x" * 249, "A.b_c-0-1")
#: Directory names that no broker makes.
ILLEGAL = (
    "..-0",
    ".-0",
    "a\nb-0",
    "a b-0",
    "ü-0",
    "x" * 250 + "-0",
    "-0",
    "a-",
    "a-+1",
    "a-٣",
    "a-2147483648",
    "$(touch x)-0",
)


def of_one_topic(directory: Path) -> None:
    shutil.copytree(DUMP / SOURCE, directory)
    (directory / "partition.metadata").unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def test_legal_topic_names_are_restored_unchanged(root: Path) -> None:
    dump = root / "dump"
    for name in LEGAL:
        of_one_topic(dump / f"{name}-0")

    run = restore(dump, root / "out", "--new-topic-ids")

    assert run.code == 0, run.done.stderr
    assert run.partitions("restored") == {f"{name}-0" for name in LEGAL}
    result = {entry.name for entry in (root / "out").iterdir() if entry.is_dir()}
    assert result == {f"{name}-0" for name in LEGAL}


def test_directories_without_a_partition_name_are_not_restored(root: Path) -> None:
    dump = copy_dump(root / "dump", SOURCE)
    for name in ILLEGAL:
        of_one_topic(dump / name)

    run = restore(dump, root / "out", "--new-topic-ids")

    assert run.partitions("restored") == {SOURCE}
    assert {entry.name for entry in (root / "out").iterdir() if entry.is_dir()} == {SOURCE}
    assert sorted(os.listdir(root)) == ["dump", "out", "out.json", "out.json.runbook.txt"]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../b", "a b", "x" * 250, "a\nb"])
def test_rename_to_an_illegal_name_is_rejected(root: Path, name: str) -> None:
    dump = copy_dump(root / "dump", SOURCE)

    run = restore(dump, root / "out", "--rename", f"payments={name}")

    assert run.code == 2
    assert sorted(os.listdir(root)) == ["dump"]


@pytest.mark.parametrize("text", ["../../../up", "A" * 21, "ü" * 22, "", "AAAA\nversion: 1"])
def test_invalid_topic_id_is_not_restored(root: Path, text: str) -> None:
    dump = copy_dump(root / "dump", SOURCE)
    (dump / SOURCE / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}")

    run = restore(dump, root / "out")

    assert run.code == 2
    assert "topic ID" in run.done.stderr
    assert not (root / "out" / MARKER).exists()


def test_checkpoint_entries_with_illegal_names_are_not_restored(root: Path) -> None:
    dump = copy_dump(root / "dump", SOURCE)
    text = "0\n3\n../../x 0 7\nno-such-topic 0 7\npayments 5 7\n"
    (dump / "cleaner-offset-checkpoint").write_text(text)
    (dump / "log-start-offset-checkpoint").write_text(text)

    run = restore(dump, root / "out")

    assert run.code == 0, run.done.stderr
    assert (root / "out/log-start-offset-checkpoint").read_text() == "0\n0\n"
    assert not (root / "out/cleaner-offset-checkpoint").exists()

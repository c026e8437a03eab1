"""Files of a dump that are links out of it: not opened, a line and exit 1, unless it is asked."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_index
from tests.support.campaign import combine_cases
from tests.support.command_line import DUMP, Argument, run_here
from tests.support.registry_records import write_schema_next_to
from tests.support.restoring import copy_dump
from tests.support.tiered import setting

_opened: list[str] = []


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


# It cannot be removed again.
sys.addaudithook(_on_event)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Return the paths that this process opens from now on."""
    _opened.clear()
    yield _opened
    _opened.clear()


#: A file of each kind that is not a log.
FILES = [
    "payments-0/00000000000000000000.index",
    "payments-0/00000000000000000532.timeindex",
    "payments-0/00000000000000000000.txnindex",
    "payments-0/00000000000000001056.snapshot",
    "payments-0/leader-epoch-checkpoint",
    "payments-0/partition.metadata",
    ".kafka_cleanshutdown",
    "bootstrap.checkpoint",
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
]
COMMANDS: dict[str, Callable[[Path, Path], list[Argument]]] = {
    "build": lambda dump, out: ["--input", dump, "--output", out / "a"],
    "lookup": lambda dump, _: [
        *("--logs", dump, "--topic", "payments", "--partition", 0, "--offset", 5),
    ],
    "verify": lambda dump, _: ["--input", dump],
    "export": lambda dump, out: ["--input", dump, "--output", out / "b"],
    "find": lambda dump, _: ["--input", dump, "--key", "x"],
    "cat": lambda dump, _: ["payments", "--input", dump, "--isolation", "read_committed"],
    "dump": lambda dump, _: [dump],
    "rewrite": lambda dump, out: [
        *("--input", dump, "--output", out / "c", "--drop-where", "offset = 3"),
    ],
    "restore": lambda dump, out: ["--input", dump, "--output", out / "d"],
    "schemas": lambda dump, out: ["--input", dump, "--schemas", write_schema_next_to(out)],
}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Copy a part of the example to where another test may not have followed links."""
    return copy_dump(tmp_path / "dump", "payments-0", "payments-1")


def link_out(path: Path, tmp_path: Path) -> Path:
    """Move a file out of the dump, and leave a link to it; return where it is."""
    aside = tmp_path / "elsewhere" / path.name
    aside.parent.mkdir(exist_ok=True)
    shutil.move(path, aside)
    path.symlink_to(aside)
    return aside


@pytest.mark.parametrize(("command", "number"), combine_cases(COMMANDS, range(3)))
def test_link_out_of_the_input_is_reported_and_not_opened(
    command: str, number: int, dump: Path, tmp_path: Path, opened: list[str]
) -> None:
    for name in FILES[number::3]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        (tmp_path / "out").mkdir()
        path = dump / name
        target = link_out(path, tmp_path)
        opened.clear()

        arguments = [*COMMANDS[command](dump, tmp_path / "out"), "--summary", tmp_path / "summary"]
        result = run_here(command, *arguments)

        assert result.returncode == 1, (name, result.stderr)
        assert f"{path} -> {target}" in result.stdout + result.stderr, name
        assert not {str(path), str(target)}.intersection(opened), name
        assert json.loads((tmp_path / "summary").read_text())["counts"]["links_not_followed"] == 1
        path.unlink()
        shutil.move(target, path)


@pytest.mark.parametrize("command", ["build", "verify", "restore"])
def test_link_listed_twice_is_counted_once(command: str, dump: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    link_out(dump / FILES[0], tmp_path)
    arguments = [*COMMANDS[command](dump, tmp_path / "out"), "--report", tmp_path / "report.html"]
    result = run_here(command, *arguments, "--summary", tmp_path / "summary")
    assert result.returncode == 1, result.stderr
    assert json.loads((tmp_path / "summary").read_text())["counts"]["links_not_followed"] == 1
    assert not result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_link_out_of_the_input_is_read_on_request(command: str, dump: Path, tmp_path: Path) -> None:
    for name in FILES:
        link_out(dump / name, tmp_path)
    (tmp_path / "out").mkdir()
    result = run_here(command, *COMMANDS[command](dump, tmp_path / "out"), "--follow-links")
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "elsewhere") not in result.stdout + result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_link_within_the_inputs_is_followed(command: str, dump: Path, tmp_path: Path) -> None:
    """Partition directories that are links, logs that are, and links from one disk to another."""
    shutil.move(dump / "payments-1", tmp_path / "payments-1")
    (dump / "payments-1").symlink_to(tmp_path / "payments-1")
    log = dump / "payments-0" / f"{0:020d}.log"
    shutil.move(log, tmp_path / "log")
    log.symlink_to(tmp_path / "log")
    epochs = dump / "payments-0" / "leader-epoch-checkpoint"
    shutil.move(epochs, dump / "epochs")
    epochs.symlink_to(os.path.join("..", "epochs"))
    index = dump / "payments-1" / f"{0:020d}.index"
    shutil.move(index, index.with_name("kept"))
    index.symlink_to("kept")
    (tmp_path / "out").mkdir()
    result = run_here(command, *COMMANDS[command](dump, tmp_path / "out"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["payments-0/00000000000000000532.log", "payments-1"])
def test_dangling_link_to_a_log_or_partition_is_reported_as_missing(
    command: str, name: str, dump: Path, tmp_path: Path
) -> None:
    path = dump / name
    shutil.move(path, tmp_path / "gone")
    path.symlink_to("/nowhere/at/all")
    (tmp_path / "out").mkdir()
    result = run_here(command, *COMMANDS[command](dump, tmp_path / "out"))
    if (command, name) == ("lookup", "payments-1"):
        # The question is of another partition.
        assert result.returncode == 0
        return
    assert result.returncode == 1, result.stderr
    assert f"{path} -> /nowhere/at/all" in result.stdout + result.stderr


def make_directory(path: Path) -> None:
    path.mkdir()


def bind_socket(path: Path) -> None:
    # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def link_to_fifo(path: Path) -> None:
    os.mkfifo(path.parent / "fifo")
    path.symlink_to("fifo")


@pytest.mark.parametrize("command", [*COMMANDS, "metadata"])
@pytest.mark.parametrize("make", [os.mkfifo, bind_socket, link_to_fifo, make_directory])
def test_log_that_is_not_a_regular_file_is_reported_as_missing(
    command: str,
    make: Callable[[Path], None],
    dump: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: list[Argument] = [dump]
    path = dump / "payments-0" / f"{532:020d}.log"
    if command == "metadata":
        shutil.copytree(DUMP / "__consumer_offsets-0", dump / "__consumer_offsets-0")
        path = dump / "__consumer_offsets-0" / f"{99999:020d}.log"
    else:
        path.unlink()
        (tmp_path / "out").mkdir()
        arguments = COMMANDS[command](dump, tmp_path / "out")
    make(path)
    result = run_here(command, *arguments, "--summary", tmp_path / "summary")
    assert result.returncode == 1, result.stderr
    printed = result.stdout + result.stderr
    assert str(path) in printed
    assert "not a file" in printed or "not files" in printed
    assert json.loads((tmp_path / "summary").read_text())["counts"]["not_files"] == 1


def test_link_matched_by_a_glob_does_not_make_its_target_an_input(
    dump: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "secret").write_text("version: 0\n")
    (dump / "zz-0").symlink_to(private)
    path = dump / "payments-0" / "partition.metadata"
    path.unlink()
    path.symlink_to(os.path.join("..", "zz-0", "secret"))
    result = run_here("verify", "--input", dump / "*")
    assert result.returncode == 1
    assert f"{path} -> {private / 'secret'}" in result.stdout + result.stderr


def test_link_is_followed_into_another_input_but_not_into_the_parent(
    dump: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(dump, other)
    shutil.rmtree(other / "payments-0")
    shutil.rmtree(dump / "payments-1")
    checkpoint = dump / "payments-0" / "leader-epoch-checkpoint"
    shutil.move(checkpoint, other / "epochs")
    checkpoint.symlink_to(other / "epochs")
    assert run_here("build", "--input", dump, other, "--output", tmp_path / "a").returncode == 0

    checkpoint.unlink()
    shutil.move(other / "epochs", dump / "private")
    checkpoint.symlink_to(dump / "private")
    assert run_here("build", "--input", dump, "--output", tmp_path / "b").returncode == 0
    alone = run_here("build", "--input", dump / "payments-0", "--output", tmp_path / "c")
    assert alone.returncode == 1
    assert f"{checkpoint} -> {dump / 'private'}" in alone.stdout + alone.stderr


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", f"{0:020d}.index"])
def test_dump_rejects_an_outside_link_given_by_path_unless_followed(
    name: str, dump: Path, tmp_path: Path, opened: list[str]
) -> None:
    path = dump / "payments-0" / name
    target = link_out(path, tmp_path)
    opened.clear()
    result = run_here("dump", path)
    assert result.returncode == 1
    assert f"{path} -> {target}" in result.stdout + result.stderr
    assert not {str(path), str(target)}.intersection(opened)
    followed = run_here("dump", path, "--follow-links")
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout


def test_predict_follows_links_like_a_broker(dump: Path, tmp_path: Path) -> None:
    plain = run_here("predict", "--input", dump, "--json")
    for name in FILES:
        link_out(dump / name, tmp_path)
    assert run_here("predict", "--input", dump, "--json").stdout == plain.stdout


@pytest.mark.parametrize("name", ["meta.properties", "__cluster_metadata-0/quorum-state"])
def test_metadata_does_not_open_an_outside_link(
    name: str, tmp_path: Path, opened: list[str]
) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(DUMP / "__cluster_metadata-0", dump / "__cluster_metadata-0")
    shutil.copy2(DUMP / "meta.properties", dump)
    path = dump / name
    target = link_out(path, tmp_path)
    opened.clear()
    result = run_here("metadata", dump)
    assert result.returncode == 1
    assert f"{path} -> {target}" in result.stdout + result.stderr
    assert not {str(path), str(target)}.intersection(opened)
    assert run_here("metadata", dump, "--follow-links").returncode == 0


def test_outside_link_as_metadata_snapshot_is_not_opened(tmp_path: Path, opened: list[str]) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(DUMP / "__cluster_metadata-0", dump / "__cluster_metadata-0")
    (tmp_path / "private").write_text("nothing of it is shown")
    path = dump / "__cluster_metadata-0" / "00000000000000000100-0000000001.checkpoint"
    path.symlink_to(tmp_path / "private")
    opened.clear()
    result = run_here("metadata", dump)
    assert result.returncode == 1
    assert f"{path} -> {tmp_path / 'private'}" in result.stdout + result.stderr
    assert not {str(path), str(tmp_path / "private")}.intersection(opened)


def test_rewrite_and_restore_do_not_copy_outside_links_of_internal_topics(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(DUMP, dump)
    private = b"canary-5309"
    (tmp_path / "private").write_bytes(private)
    for folder in ("__cluster_metadata-0", "__consumer_offsets-0"):
        (dump / folder / "anything").symlink_to(tmp_path / "private")
    out = tmp_path / "out"
    out.mkdir()
    arguments = ("--input", dump, "--output")
    run_here("rewrite", *arguments, out / "a", "--drop-where", "topic = 'payments'")
    run_here("restore", *arguments, out / "b", "--cluster", "same", "--metadata-output", out / "c")
    assert list(out.rglob("*.log"))
    files = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in files if private in path.read_bytes()]


def test_python_functions_do_not_follow_outside_links(
    dump: Path, tmp_path: Path, opened: list[str]
) -> None:
    target = link_out(dump / "payments-0" / "leader-epoch-checkpoint", tmp_path)
    opened.clear()
    index = link_out(dump / "payments-0" / f"{0:020d}.index", tmp_path)
    queries = pa.table({"topic": ["payments"], "partition": [0], "offset": [5]})

    result = kafka_index.verify(dump)
    rows = [row for row in result.findings if row.topic is not None]
    unreadable = {row.path for row in rows if row.file_class == "unreadable" and row.kind != "log"}
    assert {str(dump / "payments-0" / name) for name in (target.name, index.name)} <= unreadable
    built = kafka_index.build_indexes(dump, tmp_path / "a").to_arrow().to_pylist()
    assert {row["partition"] for row in built if row["status"] == "failed"} == {0}
    lost = kafka_index.restore_dump(dump, tmp_path / "b")
    assert lost.runbook is not None
    assert str(dump / "payments-0") in lost.runbook
    assert "-> " in lost.runbook
    kafka_index.lookup_offsets(dump, queries)
    kafka_index.read_records(dump).read_all()
    assert not {str(dump / "payments-0" / target.name), str(target)}.intersection(opened)

    assert not kafka_index.verify(dump, follow_links=True).is_harmful
    second_indexes = kafka_index.build_indexes(dump, tmp_path / "c", follow_links=True)
    assert set(second_indexes.to_arrow()["status"].to_pylist()) == {"built"}
    answered = kafka_index.lookup_offsets(dump, queries, follow_links=True)
    assert answered.counts["queries_found"] == 1
    kafka_index.read_records(dump, follow_links=True).read_all()
    kafka_index.restore_dump(dump, tmp_path / "d", follow_links=True)


def test_outside_links_in_tiered_storage_are_not_followed(
    tmp_path: Path, opened: list[str]
) -> None:
    at = setting("local")
    remote = tmp_path / "remote"
    shutil.copytree(at.remote, remote)
    path = next(remote.rglob("*.timeindex"))
    target = link_out(path, tmp_path)
    opened.clear()
    arguments = ("--input", at.data, "--tiered", remote)
    result = run_here("verify", *arguments)
    assert result.returncode == 1
    assert f"{path} -> {target}" in result.stdout + result.stderr
    assert not {str(path), str(target)}.intersection(opened)
    assert run_here("verify", *arguments, "--follow-links").stderr == ""


def test_links_with_unknown_names_are_reported(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "anything").write_text("")
    (dump / "payments-0" / "anything").symlink_to(tmp_path / "anything")
    (dump / "payments-0" / "nothing").symlink_to("nowhere")
    (dump / "payments-0" / "folder").symlink_to(tmp_path)
    result = run_here("verify", "--input", dump)
    assert result.returncode == 1
    assert (
        f"{dump / 'payments-0' / 'anything'} -> {tmp_path / 'anything'}"
        in result.stdout + result.stderr
    )

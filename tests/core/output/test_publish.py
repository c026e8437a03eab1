"""Publishing groups of segments: what is seen at every moment, and what goes wrong."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_index.core.errors import PublishError
from kafka_index.core.fs import durable_files as durability_module
from kafka_index.core.output.publish import (
    Publication,
    StagedFile,
    publish_group,
    scratch_path,
    write_scratch,
)
from tests.support.child_processes import NOBODY, allow_other_users, run_in_child, run_unprivileged

BASE = "00000000000000000005"


def stage(
    directory: Path,
    content: bytes,
    *,
    base: str = BASE,
    attributes_of: Path | None = None,
    run_id: str = "run1",
) -> Publication:
    """Stage a time index and an index, each with `content`."""
    directory.mkdir(parents=True, exist_ok=True)
    like = None if attributes_of is None else str(attributes_of)
    files = {f"{base}.timeindex": b"time " + content, f"{base}.index": b"offset " + content}

    def staged(final_path: str, data: bytes) -> StagedFile:
        scratch = scratch_path(final_path, run_id, "0")
        write_scratch(scratch, data, attributes_of=like)
        return StagedFile(scratch, final_path)

    return Publication(
        tuple(staged(str(directory / name), data) for name, data in files.items()),
        like,
        is_segment=True,
    )


ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, chattr or chown")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def is_whole(directory: Path, base: str = BASE) -> bool:
    """An .index is there, with its time index."""
    files = contents(directory)
    index, time_index = files.get(f"{base}.index"), files.get(f"{base}.timeindex")
    if index is None:
        return False
    assert time_index is not None
    assert index.removeprefix(b"offset ") == time_index.removeprefix(b"time ")
    return True


def published(publication: Publication) -> None:
    assert publish_group([publication]) == [None]


def test_publication_leaves_only_the_published_files(tmp_path: Path) -> None:
    published(stage(tmp_path / "t-0", b"new"))
    files = contents(tmp_path / "t-0")
    assert sorted(files) == [f"{BASE}.index", f"{BASE}.timeindex"]
    assert files[f"{BASE}.index"] == b"offset new"
    assert is_whole(tmp_path / "t-0")


def test_old_files_are_replaced(tmp_path: Path) -> None:
    published(stage(tmp_path, b"old"))
    published(stage(tmp_path, b"new"))
    assert contents(tmp_path)[f"{BASE}.index"] == b"offset new"
    assert is_whole(tmp_path)


def test_large_group_is_published_completely(tmp_path: Path) -> None:
    group = [stage(tmp_path / f"t-{n % 9}", b"%d" % n, base=f"{n:020}") for n in range(40)]
    assert publish_group(group) == [None] * 40
    assert all(is_whole(tmp_path / f"t-{n % 9}", f"{n:020}") for n in range(40))


# Publishing over old files sets the old .index aside, removes it, and renames two: dying before
# each, and after.
@pytest.mark.parametrize("last_step", range(5))
def test_killed_process_leaves_no_index_next_to_files_of_another_build(
    tmp_path: Path, last_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(stage(tmp_path, b"old"))
    publication = stage(tmp_path, b"new")
    steps = 0

    def dying(call: Callable[..., None]) -> Callable[..., None]:
        def step(*paths: str) -> None:
            nonlocal steps
            if steps == last_step:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
            call(*paths)

        return step

    def publish() -> None:
        monkeypatch.setattr(os, "rename", dying(os.rename))
        monkeypatch.setattr(os, "unlink", dying(os.unlink))
        monkeypatch.setattr(os, "replace", dying(os.replace))
        publish_group([publication])

    status = run_in_child(publish)
    assert (os.WIFSIGNALED(status), status == 0) == (last_step < 4, last_step == 4)
    whole = is_whole(tmp_path)
    expected = {0: b"old", 4: b"new"}.get(last_step)
    assert whole == (expected is not None)
    if expected:
        assert contents(tmp_path)[f"{BASE}.index"] == b"offset " + expected
    # And the next run gets through, whatever was left.
    published(stage(tmp_path, b"newer"))
    assert contents(tmp_path)[f"{BASE}.index"] == b"offset newer"


def test_failed_segment_does_not_affect_the_others(tmp_path: Path) -> None:
    group = [stage(tmp_path / f"t-{n}", b"new") for n in range(3)]
    (tmp_path / "t-1" / f"{BASE}.timeindex").mkdir()
    errors = publish_group(group)
    assert [error is None for error in errors] == [True, False, True]
    assert isinstance(errors[1], PublishError)
    assert errors[1].path == str(tmp_path / "t-1" / f"{BASE}.timeindex")
    assert "a directory has the path of a file" in str(errors[1])
    assert os.listdir(tmp_path / "t-1") == [f"{BASE}.timeindex"]


def test_failed_segment_loses_its_old_index(tmp_path: Path) -> None:
    published(stage(tmp_path, b"old"))
    (tmp_path / f"{BASE}.timeindex").unlink()
    (tmp_path / f"{BASE}.timeindex").mkdir()
    assert publish_group([stage(tmp_path, b"new")]) != [None]
    assert os.listdir(tmp_path) == [f"{BASE}.timeindex"]


@pytest.mark.parametrize("attributes", [True, False])
def test_missing_scratch_file_fails_only_its_segment(tmp_path: Path, *, attributes: bool) -> None:
    log = tmp_path / f"{BASE}.log"
    log.touch()
    group = [
        stage(tmp_path / f"t-{n}", b"new", attributes_of=log if attributes else None)
        for n in range(2)
    ]
    os.unlink(group[0].files[1].scratch_path)
    errors = publish_group(group)
    assert isinstance(errors[0], PublishError)
    assert errors[1] is None
    assert os.listdir(tmp_path / "t-0") == []


def test_publication_without_the_index_last_is_rejected(tmp_path: Path) -> None:
    good = stage(tmp_path, b"x")
    with pytest.raises(ValueError, match="last"):
        Publication(good.files[::-1], is_segment=True)
    with pytest.raises(ValueError, match="last"):
        Publication(good.files[:1], is_segment=True)


def test_scratch_and_final_file_must_share_a_folder() -> None:
    with pytest.raises(ValueError, match="different directories"):
        StagedFile("/a/x", "/b/x")


# ------------------------------------------------------------------------------- durability


def trace_syncs(action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fsyncs that really happen, by name of what is synced."""
    synced: list[str] = []
    fsync = os.fsync

    def traced(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", traced)
        action()
    return synced


def test_single_segment_is_synced_by_file_and_then_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = stage(tmp_path / "t-0", b"x")
    synced = trace_syncs(lambda: publish_group([publication]), monkeypatch)
    scratch = [os.path.basename(staged.scratch_path) for staged in publication.files]
    assert synced == [*scratch, "t-0", tmp_path.name]


def test_group_is_synced_by_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if durability_module._load_sync_calls() is None:
        pytest.skip("this kernel's syncfs cannot be relied on")
    group = [stage(tmp_path / "t-0", b"x", base=f"{n:020}") for n in range(30)]
    assert trace_syncs(lambda: publish_group(group), monkeypatch) == ["t-0", tmp_path.name]


def test_group_without_syncfs_is_synced_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability_module, "_load_sync_calls", lambda: None)
    group = [stage(tmp_path / "t-0", b"x", base=f"{n:020}") for n in range(30)]
    assert len(trace_syncs(lambda: publish_group(group), monkeypatch)) == 30 * 2 + 2


def test_failed_sync_fails_only_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [stage(tmp_path / f"t-{n}", b"x") for n in range(2)]
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if "/t-1/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(durability_module, "_load_sync_calls", lambda: None)
    monkeypatch.setattr(os, "fsync", failing)
    errors = publish_group(group)
    assert errors[0] is None
    assert "cannot make the file durable: Input/output error" in str(errors[1])
    assert os.listdir(tmp_path / "t-1") == []


# --------------------------------------------------------------------------- mode and owner


def test_files_in_place_take_the_mode_of_their_log(tmp_path: Path) -> None:
    log = tmp_path / f"{BASE}.log"
    log.touch()
    log.chmod(0o604)
    published(stage(tmp_path, b"x", attributes_of=log))
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o604}


@ROOT_ONLY
def test_files_in_place_take_the_owner_of_their_log(tmp_path: Path) -> None:
    log = tmp_path / f"{BASE}.log"
    log.touch()
    os.chown(log, NOBODY, NOBODY)
    publication = stage(tmp_path, b"x", attributes_of=log)
    # Also while they are scratch: a broker refuses to start on files it cannot read.
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {NOBODY}
    published(publication)
    assert {path.stat().st_gid for path in tmp_path.iterdir()} == {NOBODY}


@ROOT_ONLY
def test_owner_that_cannot_be_set_is_reported(tmp_path: Path) -> None:
    allow_other_users(tmp_path)
    tmp_path.chmod(0o777)
    log = tmp_path / f"{BASE}.log"
    log.touch()

    def write() -> None:
        with pytest.raises(PublishError, match=r"owner of the log.*expected 0:0, found 65534"):
            write_scratch(str(tmp_path / ".x"), b"", attributes_of=str(log))

    assert run_unprivileged(write) == 0
    assert os.listdir(tmp_path) == [log.name]


# ------------------------------------------------------------------------- disks and limits


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mounted)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        if "CI" in os.environ:
            pytest.fail("cannot mount a tmpfs here, and these tests must not be skipped in CI")
        pytest.skip("CANNOT MOUNT a tmpfs: what happens on a full disk is NOT tested")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_full_disk_is_an_error_and_leaves_no_file(tiny_disk: Path) -> None:
    with pytest.raises(PublishError, match=r"no space left .*free space") as caught:
        write_scratch(str(tiny_disk / "x"), bytes(100_000), attributes_of=None)
    assert caught.value.path == str(tiny_disk / "x")
    assert os.listdir(tiny_disk) == []


def test_group_on_several_file_systems_is_published(tmp_path: Path, tiny_disk: Path) -> None:
    roots = [tmp_path / "a", tiny_disk / "a"]
    group = [stage(root / f"t-{n}", b"x") for n in range(3) for root in roots]
    assert publish_group(group) == [None] * 6


def test_read_only_target_is_an_error(tiny_disk: Path) -> None:
    publication = stage(tiny_disk, b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    assert re.search(r"read-only; mount it", str(publish_group([publication])[0]))
    with pytest.raises(PublishError, match="read-only"):
        write_scratch(str(tiny_disk / "y"), b"", attributes_of=None)


def test_file_size_limit_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(PublishError, match="larger than this process may write"):
            write_scratch(str(tmp_path / "x"), bytes(2000), attributes_of=None)

    assert run_in_child(write) == 0
    assert os.listdir(tmp_path) == []


def test_missing_permission_is_an_error(tmp_path: Path) -> None:
    allow_other_users(tmp_path)
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)

    def write() -> None:
        with pytest.raises(PublishError, match=r"no permission .*run as the owner"):
            write_scratch(str(tmp_path / "x"), b"", attributes_of=None)

    assert run_unprivileged(write) == 0


@ROOT_ONLY
def test_immutable_old_index_is_an_error_and_stays(tmp_path: Path) -> None:
    published(stage(tmp_path, b"old"))
    index = str(tmp_path / f"{BASE}.index")
    if subprocess.run(["chattr", "+i", index], check=False, capture_output=True).returncode != 0:
        pytest.skip("this file system knows no immutable files")
    try:
        error = publish_group([stage(tmp_path, b"new")])[0]
    finally:
        subprocess.run(["chattr", "-i", index], check=True)
    assert "remove its immutable flag" in str(error)
    assert contents(tmp_path)[f"{BASE}.index"] == b"offset old"
    assert is_whole(tmp_path)


def test_index_of_a_swap_file_stays_until_it_is_replaced(tmp_path: Path) -> None:
    # A broker that starts meanwhile would make one of zeros where there is none.
    directory = tmp_path / "t-0"
    directory.mkdir()
    staged = []
    for suffix in (".timeindex.swap", ".index.swap"):
        final = str(directory / (BASE + suffix))
        scratch = f"{directory}/.{BASE}{suffix}.run1.0.tmp"
        write_scratch(scratch, b"new", attributes_of=None)
        staged.append(StagedFile(scratch, final))
    (directory / f"{BASE}.index.swap").write_bytes(b"old")
    # The time index cannot be put in place, so publishing ends before the index is.
    (directory / f"{BASE}.timeindex.swap" / "in the way").mkdir(parents=True)
    publication = Publication(tuple(staged), is_segment=True)
    assert isinstance(publish_group([publication])[0], PublishError)
    assert (directory / f"{BASE}.index.swap").read_bytes() == b"old"

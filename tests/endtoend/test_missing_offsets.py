"""Every command names the same missing offsets: each magic and codec, each place in a partition."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_index.verification import verify
from tests.support.command_line import run_here
from tests.support.packed import packed_batch, wrapper
from tests.support.segments import message

NAME = "orders-0"
TOPIC_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"
T = 1_700_000_000_000
#: Batches a log, and offsets a batch.
BATCHES, SPAN = 6, 4
LOGS = 4
END = LOGS * BATCHES * SPAN

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Form = tuple[int, str]
FORMS: list[Form] = [
    (magic, codec) for magic in (0, 1, 2) for codec in CODECS if magic == 2 or codec != "zstd"
]
Offsets = list[tuple[int, int]]


def entry(base: int, form: Form) -> bytes:
    """The batch, or messages, of some offsets, all of it one entry where that is compressed."""
    magic, codec = form
    number = CODECS.index(codec)
    if magic == 2:
        return packed_batch(base, [(i, T) for i in range(SPAN)], number)
    if number:
        first = 0 if magic == 1 else base
        inner = [(first + i, T) for i in range(SPAN)]
        return wrapper(base + SPAN - 1, magic, inner, number)
    return b"".join(message(base + i, magic, T, b"value") for i in range(SPAN))


def write_partition(root: Path, form: Form) -> Path:
    """A partition of four logs."""
    directory = root / NAME
    directory.mkdir(parents=True)
    (directory / "partition.metadata").write_text(TOPIC_ID)
    (root / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    for log in range(LOGS):
        base = log * BATCHES * SPAN
        data = b"".join(entry(base + i * SPAN, form) for i in range(BATCHES))
        (directory / f"{base:020d}.log").write_bytes(data)
    return root


def logs(root: Path) -> list[Path]:
    return sorted((root / NAME).glob("*.log"))


def checkpoint(root: Path, name: str, offset: int) -> None:
    (root / name).write_text(f"0\n1\norders 0 {offset}\n")


def without(log: Path, batch: int, form: Form) -> None:
    """Take one entry out of a log."""
    base = int(log.stem)
    data = b"".join(entry(base + i * SPAN, form) for i in range(BATCHES) if i != batch)
    log.write_bytes(data)


def within(root: Path, form: Form) -> Offsets:
    without(logs(root)[1], 2, form)
    return [(32, 35)]


def between(root: Path, _form: Form) -> Offsets:
    logs(root)[1].unlink()
    return [(24, 47)]


def within_and_between(root: Path, form: Form) -> Offsets:
    without(logs(root)[0], 3, form)
    logs(root)[2].unlink()
    return [(12, 15), (48, 71)]


def first_batch(root: Path, form: Form) -> Offsets:
    without(logs(root)[0], 0, form)
    return [(0, 3)]


def after_a_missing_log(root: Path, form: Form) -> Offsets:
    logs(root)[1].unlink()
    without(logs(root)[1], 0, form)
    return [(24, 51)]


def head(root: Path, _form: Form) -> Offsets:
    logs(root)[0].unlink()
    checkpoint(root, "log-start-offset-checkpoint", 7)
    return [(7, 23)]


def tail(root: Path, form: Form) -> Offsets:
    log = logs(root)[-1]
    base = int(log.stem)
    log.write_bytes(b"".join(entry(base + i * SPAN, form) for i in range(BATCHES - 1)))
    checkpoint(root, "replication-offset-checkpoint", END)
    return [(END - SPAN, END - 1)]


PLACES = (within, between, within_and_between, first_batch, after_a_missing_log, head, tail)
Place = Callable[[Path, Form], Offsets]


def verified(root: Path) -> tuple[int, Offsets]:
    """The exit code of verify, and the offsets that it names as missing."""
    done = run_here("verify", "--input", root)
    (found,) = verify([root], threads=1).partitions
    lost = [(each.first_offset, (each.end_offset or 0) - 1) for each in found.lost]
    assert all(f"{first} to {last}" in done.stdout for first, last in lost)
    return done.returncode, sorted(lost)


def predicted(root: Path) -> tuple[int, Offsets]:
    """The exit code of predict, and the offsets that it names as missing."""
    done = run_here("predict", "--input", root, "--json")
    (found,) = json.loads(done.stdout)["partitions"]
    return done.returncode, [
        (each["first_offset"], each["last_offset"]) for each in found["missing"]
    ]


def restored(*roots: Path) -> tuple[int, Offsets]:
    """The exit code of restore, and the offsets that it names as lost."""
    output = roots[0].parent / "out"
    report = output.with_suffix(".json")
    inputs = [part for root in roots for part in ("--input", root)]
    done = run_here("restore", *inputs, "--output", output, "--report", report)
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    shutil.rmtree(output)
    found = [(row["first_offset"], row["last_offset"]) for row in rows if row["status"] == "lost"]
    assert all(f"{first} to {last}" in done.stdout for first, last in found)
    return done.returncode, sorted(found)


@pytest.fixture(params=FORMS, ids=lambda each: f"{each[0]}-{each[1]}")
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.mark.parametrize("place", PLACES)
def test_every_command_names_the_same_offsets(tmp_path: Path, form: Form, place: Place) -> None:
    root = write_partition(tmp_path / "data", form)
    missing = place(root, form)

    assert verified(root) == (1, missing)
    assert restored(root) == (1, missing)
    assert predicted(root) == (1, missing)


def test_a_whole_log_lacks_nothing(tmp_path: Path, form: Form) -> None:
    root = write_partition(tmp_path / "data", form)

    assert verified(root) == (0, [])
    assert restored(root) == (0, [])
    assert predicted(root) == (0, [])


@pytest.mark.parametrize("place", [within, between, within_and_between, after_a_missing_log])
def test_a_whole_copy_fills_them(tmp_path: Path, form: Form, place: Place) -> None:
    root = write_partition(tmp_path / "data", form)
    other = write_partition(tmp_path / "other", form)
    missing = place(root, form)
    # The base is the copy that ends later.
    log = logs(other)[-1]
    log.write_bytes(log.read_bytes()[:-1])

    code, found = restored(root, other)

    expected = missing if place is after_a_missing_log else []
    assert (code, found) == (int(bool(expected)), expected)


@pytest.mark.parametrize("place", [within, between])
def test_a_copy_that_lacks_a_part_fills_the_rest(tmp_path: Path, form: Form, place: Place) -> None:
    root = write_partition(tmp_path / "data", form)
    other = write_partition(tmp_path / "other", form)
    place(root, form)
    without(logs(other)[1], 2, form)
    log = logs(other)[-1]
    log.write_bytes(log.read_bytes()[:-1])

    assert restored(root, other) == (1, [(32, 35)])

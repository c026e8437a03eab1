"""Any mutation of any file is found, or a broker that loads the directory does not notice it.

What nothing in the directory shows is listed in docs/verify.md, and in `_HIDDEN` here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kafka_index import verify
from kafka_index.commands.verify.result import FileClass, FileKind, Verification
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.format.names import CLEAN_SHUTDOWN
from tests.support.golden_segments import PARTITION

from .campaign import random_cases
from .kafka_loading import PartitionFiles, partition_files
from .kafka_reference import KafkaRefusal
from .reference_log import DAY_MS
from .test_predicted_partitions import KINDS, Writer

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference

META = (
    "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\ndirectory.id=ECPTmqBMRHwwfPQiR6tadg\n"
)
TOPIC_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
CHANGES = ("flip", "cut", "append zeros", "append garbage", "empty", "remove", "copy", "fill")
#: Base offset, leader epoch and magic of a batch: outside its checksum.
_UNCOVERED = (*range(8), *range(12, 17))


@dataclass(frozen=True)
class Mutation:
    """A change of one file, which is chosen by its number."""

    change: str
    file: int
    at: int
    other: int


@dataclass(frozen=True)
class Case:
    """A partition, and what is changed of it."""

    logs: dict[int, list[bytes]]
    mutation: Mutation
    is_clean: bool
    interval: int


def in_epoch(data: bytes, epoch: int) -> bytes:
    """Return a batch of the leader epoch of those before it, as markers have it too."""
    return data[:12] + epoch.to_bytes(4, "big") + data[16:]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    writer = Writer()
    logs: dict[int, list[bytes]] = {}
    kinds = tuple(kind for kind in KINDS if kind != "gap")
    for _ in range(draw(st.integers(1, 3))):
        entries = draw(
            st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 4)), min_size=2, max_size=6)
        )
        base_offset = writer.offset
        logs[base_offset] = [
            in_epoch(writer.write(kind, count), writer.epoch) for kind, count in entries
        ]
    mutation = Mutation(
        draw(st.sampled_from(CHANGES)),
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 100_000)),
        draw(st.integers(0, 1000)),
    )
    return Case(logs, mutation, draw(st.booleans()), draw(st.sampled_from((0, 0, 100, 300))))


def changed(files: list[Path], mutation: Mutation) -> Path | None:
    """Change one of the files; return it, None where nothing changed."""
    path = files[mutation.file % len(files)]
    data = path.read_bytes()
    at = mutation.at % len(data) if data else 0
    match mutation.change:
        case "remove":
            path.unlink()
            return path
        case "flip" if data:
            new = data[:at] + bytes([data[at] ^ 1 << mutation.other % 8]) + data[at + 1 :]
        case "cut":
            new = data[:at]
        case "append zeros":
            new = data + bytes(1 + mutation.at % 200)
        case "append garbage":
            new = data + b"\x7f" * (1 + mutation.at % 200)
        case "copy":
            alike = [file for file in files if file.suffix == path.suffix]
            new = alike[mutation.other % len(alike)].read_bytes()
        case "fill":
            new = b"\xff" * len(data)
        case _:
            new = b""
    if new == data:
        return None
    path.write_bytes(new)
    return path


def is_hidden(path: Path, before: bytes, case: Case) -> bool:
    """Return whether nothing in the directory can show the change of this file."""
    if path.name in ("meta.properties", "partition.metadata"):
        # Another valid id.
        return case.mutation.change == "flip"
    if path.suffix != ".log" or case.mutation.change != "flip":
        return False
    position = 0
    at = case.mutation.at % len(before)
    while position < len(before):
        size = 12 + int.from_bytes(before[position + 8 : position + 12], "big")
        if position <= at < position + size:
            return at - position in _UNCOVERED
        position += size
    return False


def verified(root: Path, case: Case) -> Verification:
    config = LogConfig(IndexConfig(index_interval_bytes=case.interval))
    return verify([root], config=config, threads=1, now=f"ms:{DAY_MS}")


def answers(files: PartitionFiles, case: Case, end: int) -> tuple[object, ...] | str:
    """Return what a broker has after loading, and what it reads at each offset."""
    try:
        log = files.load(
            clean=case.is_clean,
            recovery_point=min(case.logs),
            settings={"index.interval.bytes": case.interval},
        )
    except KafkaRefusal:
        return "refused"
    with log:
        state = log.loaded
        reads = [log.read(offset, 1) for offset in range(state.log_start_offset, min(end, 1 << 20))]
        return (
            state.log_start_offset,
            state.log_end_offset,
            state.last_stable_offset,
            state.base_offsets,
            # A broker that replays batches remembers more of them than a broker that loads a
            # snapshot.
            sorted(producer._replace(first_data_offset=0) for producer in log.producers()),
            log.epochs(),
            reads,
        )


@given(cases())
@random_cases(0.05)
def test_file_mutation_is_reported_or_harmless(
    reference: KafkaReference, scratch: Path, case: Case
) -> None:
    files = partition_files(reference, scratch, case.logs)
    root = files.directory.parent
    files.load(settings={"index.interval.bytes": case.interval}).close()
    for path in files.directory.glob("*.deleted"):
        path.unlink()
    (files.directory / "partition.metadata").write_text(TOPIC_ID)
    (root / "meta.properties").write_text(META)
    if case.is_clean:
        (root / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{PARTITION[:-2]} 0 0\n")
    before = verified(root, case)
    assert not before.is_harmful, [row for row in before.findings if row.harmful]
    (end,) = [partition.log_end_offset for partition in before.partitions]
    assert end is not None
    intact = scratch / "intact"
    shutil.rmtree(intact, ignore_errors=True)
    shutil.copytree(root, intact)

    everything = sorted(path for path in root.rglob("*") if path.is_file())
    mutated = changed(everything, case.mutation)
    if mutated is None:
        return
    original = (intact / mutated.relative_to(root)).read_bytes()
    try:
        after = verified(root, case)
    except InputError:
        # Not one log is left.
        assert not list(files.directory.glob("*.log"))
        return
    rows = after.findings
    if after.is_harmful or any(row.file_class is FileClass.UNREADABLE for row in rows):
        return
    if is_hidden(mutated, original, case):
        return
    is_cut_tail = any(
        row.kind is FileKind.LOG and row.file_class is FileClass.TORN and not row.harmful
        for row in rows
    )
    expected = answers(PartitionFiles(reference, intact / PARTITION), case, end)
    actual = answers(files, case, end)
    if is_cut_tail:
        # The batch that was not written to its end is gone.
        assert actual != "refused"
        return
    assert actual == expected, (mutated.name, case.mutation, rows)

"""The effects of a start on a partition, predicted, against Kafka's own loading of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import example, given
from hypothesis import strategies as st

from kafka_index.core.errors import StartRefusedError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.startup.partition_loading import LoadedPartition, Loading, load_partition
from tests.support.segments import batch, marker

from .campaign import random_cases
from .kafka_loading import PartitionFiles, partition_files
from .kafka_reference import KafkaRefusal
from .reference_log import DAY_MS

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
TRANSIENT = (".swap", ".cleaned", ".deleted")


@dataclass(frozen=True)
class Fault:
    """A change of one file of a random partition."""

    kind: str
    segment: int
    suffix: str = ".log"
    amount: int = 0


@dataclass(frozen=True)
class Case:
    """A partition, what was done to it, and how a broker finds it."""

    logs: dict[int, list[bytes]]
    faults: list[Fault]
    is_clean: bool
    recovery_point: int
    log_start_offset: int
    interval: int

    def settings(self) -> dict[str, int]:
        return {"index.interval.bytes": self.interval}


@dataclass
class Writer:
    """Writes batches of producers that a broker would accept."""

    offset: int = 0
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    has_transaction: bool = False

    def write(self, kind: str, records: int) -> bytes:
        base, self.offset = self.offset, self.offset + records
        if kind == "marker" and self.has_transaction:
            self.has_transaction = False
            self.offset = base + 1
            return marker(base, 9, 0, commit=records != 1)
        if kind == "gap":
            base, self.offset = base + 5, self.offset + 5
        if kind == "epoch":
            self.epoch += 1
        producer = {"idempotent": 7, "transaction": 9}.get(kind, -1)
        if producer < 0:
            return batch(base, records, leader_epoch=self.epoch)
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + records
        self.has_transaction |= kind == "transaction"
        return batch(
            base,
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=kind == "transaction",
            leader_epoch=self.epoch,
        )


KINDS = ("plain", "idempotent", "transaction", "marker", "epoch", "gap")
FAULTS = (
    *("cut", "remove", "append zeros", "append garbage", "flip", "empty", "rename"),
    *("pad", "cut", "flip", "no epochs", "bad epochs", "remove snapshots"),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    writer = Writer()
    logs: dict[int, list[bytes]] = {}
    for _ in range(draw(st.integers(1, 4))):
        entries = draw(
            st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4)), min_size=1, max_size=5)
        )
        base_offset = writer.offset
        logs[base_offset] = [writer.write(kind, count) for kind, count in entries]
    faults = draw(
        st.lists(
            st.builds(
                Fault,
                st.sampled_from(FAULTS),
                st.integers(0, len(logs) - 1),
                st.sampled_from((".log", ".log", *SUFFIXES)),
                st.integers(1, 200),
            ),
            max_size=3,
        )
    )
    return Case(
        logs,
        faults,
        draw(st.booleans()),
        draw(st.integers(0, writer.offset + 3)),
        draw(st.sampled_from((0, 0, 0, 2, 6, writer.offset, writer.offset + 2))),
        draw(st.sampled_from((0, 100, 200, 4096))),
    )


def apply(fault: Fault, files: PartitionFiles, base_offsets: list[int]) -> None:  # noqa: C901, PLR0912, one case each
    """Change a file, if it is there."""
    base = base_offsets[fault.segment]
    checkpoint = files.directory / "leader-epoch-checkpoint"
    if fault.kind == "no epochs":
        checkpoint.unlink(missing_ok=True)
        return
    if fault.kind == "bad epochs":
        checkpoint.write_text(("0\n1\n0\n", "0\n1\nx 0\n", "0\n2\n0 0\n", "")[fault.amount % 4])
        return
    if fault.kind == "remove snapshots":
        files.remove(".snapshot")
        return
    if fault.kind == "remove last snapshot":
        max(files.directory.glob("*.snapshot")).unlink()
        return
    path = files.path(base, fault.suffix)
    if not path.exists():
        return
    data = path.read_bytes()
    match fault.kind:
        case "cut":
            path.write_bytes(data[: max(len(data) - fault.amount, 0)])
        case "remove":
            path.unlink()
        case "append zeros" | "pad":
            path.write_bytes(data + bytes(fault.amount))
        case "append garbage":
            path.write_bytes(data + b"\x7f" * fault.amount)
        case "flip" if data:
            at = fault.amount * 7 % len(data)
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        case "empty":
            path.write_bytes(b"")
        case "magic":
            path.write_bytes(data[:16] + bytes([fault.amount]) + data[17:])
        case "rename":
            ending = TRANSIENT[fault.amount % len(TRANSIENT)]
            if fault.suffix != ".snapshot":
                path.rename(path.with_name(path.name + ending))


@contextmanager
def predicted(files: PartitionFiles, case: Case) -> Iterator[LoadedPartition]:
    partition = TopicPartition("t", 0)
    loading = Loading(
        case.is_clean,
        case.recovery_point,
        case.log_start_offset,
        settings=LogSettings(index_interval_bytes=case.interval, producer_id_expiration_ms=DAY_MS),
        clock=lambda: DAY_MS,
    )
    with load_partition(partition, str(files.directory), loading) as loaded:
        yield loaded


#: A swapped log without an index, that ends inside a batch: a broker keeps it as it is.
TORN_SWAP = Case(
    {0: [batch(0, 1), batch(1, 1)]},
    [Fault("cut", 0, ".log", 1), Fault("rename", 0, ".log", TRANSIENT.index(".swap"))],
    is_clean=True,
    recovery_point=0,
    log_start_offset=0,
    interval=0,
)


#: The base offset of a batch that others follow does not fit that of its segment: a broker that
#: recovers the segment fails.
OVERFLOW = Case(
    {0: [batch(0, 1), batch(1, 1)]},
    [Fault("flip", 0, ".log", 0)],
    is_clean=False,
    recovery_point=0,
    log_start_offset=0,
    interval=0,
)
PLAIN = batch(1, 1)
TRANSACTION = batch(0, 1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
#: Zeros where the first batch is.
ZEROED = [Fault("empty", 0), Fault("append zeros", 0, amount=100)]


def clean(logs: dict[int, list[bytes]], faults: list[Fault], log_start_offset: int = 0) -> Case:
    return Case(
        logs, faults, is_clean=True, recovery_point=0, log_start_offset=log_start_offset, interval=0
    )


#: Once a log is loaded, a broker looks up its first unstable offset: where a transaction is open,
OPEN = clean({0: [TRANSACTION], 1: [PLAIN]}, ZEROED)
#: where one ends in what was replayed after a snapshot,
REPLAYED = clean(
    {0: [TRANSACTION], 1: [PLAIN], 2: [marker(2, 9, 0, commit=True)]},
    [*ZEROED, Fault("remove last snapshot", 0)],
)
#: or where the log starts within an open one, in a batch that the next one, damaged, would end.
WITHIN = clean(
    {
        0: [
            batch(0, 4, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
            batch(4, 1),
        ],
        5: [batch(5, 1)],
    },
    [Fault("cut", 0, amount=len(batch(4, 1))), Fault("append zeros", 0, amount=18)],
    log_start_offset=2,
)
#: What is cut off there is no damage to it.
TORN = clean({0: [TRANSACTION], 1: [PLAIN]}, [Fault("cut", 0, amount=1)])
#: A magic below 0 is that of a message, and its checksum says here that it is compressed.
BELOW_ZERO = clean({0: [TRANSACTION], 1: [PLAIN]}, [Fault("magic", 0, amount=0x80)])
BELOW_ZERO_AT_END = clean({0: [batch(0, 1)]}, [Fault("magic", 0, amount=0x80)])
#: Where predictions are careful (docs/predict.md): a broker may split such a segment, or start with
#: such an end.
CAREFUL = ("offset_overflow", "bad_size")


@example(TORN_SWAP)
@example(OVERFLOW)
@example(OPEN)
@example(REPLAYED)
@example(WITHIN)
@example(TORN)
@example(BELOW_ZERO)
@example(BELOW_ZERO_AT_END)
@given(cases())
@random_cases(0.1)
def test_partition_is_loaded_as_predicted(
    reference: KafkaReference, scratch: Path, case: Case
) -> None:
    files = partition_files(reference, scratch, case.logs)
    files.load(settings=case.settings()).close()
    for fault in case.faults:
        apply(fault, files, list(case.logs))
    before = files.contents()
    refused: StartRefusedError | None = None
    try:
        with predicted(files, case) as loaded:
            log = loaded.log
            cut = {
                segment.base_offset: bytes(segment.log)
                for segment in loaded.segments
                if segment.files is not None
            }
    except StartRefusedError as error:
        refused = error
    assert files.contents() == before

    try:
        theirs = files.load(
            clean=case.is_clean,
            recovery_point=case.recovery_point,
            log_start_offset=case.log_start_offset,
            settings=case.settings(),
        )
    except KafkaRefusal as refusal:
        if refused is None:
            raise AssertionError("the prediction starts") from refusal
        return
    with theirs:
        state = theirs.loaded
        if refused is not None and refused.message.endswith(CAREFUL):
            return
        assert refused is None, str(refused)
        assert log.base_offsets == state.base_offsets
        assert log.log_start_offset == state.log_start_offset
        assert log.log_end_offset == state.log_end_offset
        assert log.recovery_point == state.recovery_point
        assert [(entry.epoch, entry.start_offset) for entry in log.epochs] == theirs.epochs()
        producers = theirs.producers()
        assert sorted(log.producers["producer_id"].tolist()) == sorted(
            producer.producer_id for producer in producers
        )
        unstable = log.first_unstable_offset
        assert (-1 if unstable is None else unstable) == min(
            (p.transaction_first_offset for p in producers if p.transaction_first_offset >= 0),
            default=-1,
        )
    for base_offset, data in cut.items():
        assert files.read(base_offset, ".log")[: len(data)] == data
        assert files.path(base_offset, ".log").stat().st_size == len(data)

"""Partitions with producers, transactions and epochs that run across segments, as files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from kafka_index.layout.records import PRODUCER_STATE_ENTRY
from kafka_index.state.snapshots import encode_snapshot
from tests.support.segments import batch, control_key, marker_value, record
from tests.support.transactional_logs import histories
from tests.support.twins import CONTROL, EMPTY, INVALID, REFUSED, TRANSACTIONAL, ProducerRow

if TYPE_CHECKING:
    from pathlib import Path

DIRECTORY = "some-topic-3"


@dataclass(frozen=True)
class StatePartition:
    """Logs by base offset, and what a broker finds beside them."""

    logs: dict[int, bytes]
    log_start_offset: int = 0
    snapshots: dict[int, bytes] = field(default_factory=dict)
    epochs: str | None = None

    def write(self, data_directory: Path) -> Path:
        """The partition's directory, without any index, in a new data directory."""
        shutil.rmtree(data_directory, ignore_errors=True)
        directory = data_directory / DIRECTORY
        directory.mkdir(parents=True)
        for base_offset, log in self.logs.items():
            (directory / f"{base_offset:020d}.log").write_bytes(log)
        for offset, snapshot in self.snapshots.items():
            (directory / f"{offset:020d}.snapshot").write_bytes(snapshot)
        if self.epochs is not None:
            (directory / "leader-epoch-checkpoint").write_text(self.epochs)
        if self.log_start_offset:
            topic, _, number = DIRECTORY.rpartition("-")
            (data_directory / "log-start-offset-checkpoint").write_text(
                f"0\n1\n{topic} {number} {self.log_start_offset}\n"
            )
        return directory


def bytes_of(row: ProducerRow) -> bytes:
    """A batch as a broker has it in its log."""
    is_control = bool(row.attributes & CONTROL)
    value: bytes | None = marker_value(row.coordinator_epoch)
    kind, count = row.control_type, 1
    if kind == INVALID:
        value, kind = marker_value(row.coordinator_epoch, version=-1), 0
    elif kind == REFUSED:
        value, kind = None, 0
    payload = None
    if is_control:
        payload = record(0, 0, control_key(max(kind, 0)), value)
        if kind == EMPTY:
            payload, count = b"", 0
    return batch(
        row.base_offset,
        1,
        timestamps=[row.timestamp_ms],
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        base_sequence=-1 if is_control else row.base_sequence,
        transactional=bool(row.attributes & TRANSACTIONAL),
        control=is_control,
        leader_epoch=row.leader_epoch,
        last_offset_delta=row.last_offset_delta,
        record_count=count,
        payload=payload,
    )


@st.composite
def state_partitions(draw: st.DrawFn, *, wild: bool = False) -> StatePartition:
    """A partition of one to five segments, sound or wild."""
    rows = draw(histories(wild=wild))
    logs: dict[int, bytes] = {}
    cuts = sorted(draw(st.sets(st.integers(1, 40), max_size=4)))
    parts = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    parts = [part for part in parts if part]
    for part in parts:
        base_offset = part[0].base_offset
        if base_offset <= max(logs, default=-1):
            break
        logs[base_offset] = b"".join(map(bytes_of, part))
    twist = draw(st.integers(0, 9))
    if len(logs) > 2 and twist == 0:
        del logs[sorted(logs)[1]]
    end = rows[-1].base_offset + rows[-1].last_offset_delta + 1 if rows else 0
    if twist == 1 and end > max(logs, default=-1):
        logs[end + draw(st.sampled_from((0, 3)))] = b""
    if twist == 2 and logs:
        damaged = draw(st.sampled_from(sorted(logs)))
        logs[damaged] = logs[damaged][: -draw(st.integers(1, 60))]
    if not logs:
        logs = {draw(st.sampled_from((0, 900))): b""}
    first = min(logs)
    log_start, snapshots, epochs = 0, {}, None
    if twist == 3:
        log_start = draw(st.integers(first, max(first, end - 1)))
    if first > 0 and twist in {4, 5}:
        snapshots[first - (twist == 5)] = encode_snapshot(draw(_entries(first)))
    if twist == 6:
        lines = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), max_size=4))
        body = "".join(f"{epoch} {start}\n" for epoch, start in lines)
        epochs = f"0\n{len(lines)}\n{body}"
    return StatePartition(logs, log_start, snapshots, epochs)


@st.composite
def _entries(draw: st.DrawFn, end_offset: int) -> np.ndarray:
    ids = draw(st.lists(st.sampled_from((0, 1, 16, 5, 77)), unique=True))
    entries = np.zeros(len(ids), PRODUCER_STATE_ENTRY)
    entries["producer_id"] = ids
    entries["last_offset"] = [draw(st.sampled_from((-1, 0, end_offset - 1))) for _ in ids]
    entries["timestamp_ms"] = 900
    first = draw(st.permutations(range(len(ids))))
    is_open = [draw(st.booleans()) for _ in ids]
    entries["current_txn_first_offset"] = np.where(is_open, first, -1) if ids else []
    return entries

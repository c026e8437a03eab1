"""The checkpoints at the root of a data directory that a starting broker cannot read."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_index.dump.data_directory import DataDirectory, FaultEffect
from kafka_index.layout.names import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from kafka_index.startup.identity import refusal_of
from kafka_index.startup.prediction import Refusal

# As a broker reads them: the first that it fails on is the reason.
_IN_ORDER = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    CLEANER_CHECKPOINT,
)


@dataclass(slots=True)
class RootFaults:
    """The effects of the checkpoints of a data directory that a broker cannot read.

    `offline` is why it takes the directory offline before it loads a partition, `offline_later` why
    after all, and `refused` why it exits. `hidden` is why it serves no partition of the directory,
    `unserved` why it does not serve them for long. `notes` are the faults that it warns about only.
    """

    offline: Refusal | None = None
    offline_later: Refusal | None = None
    refused: Refusal | None = None
    hidden: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, directory: DataDirectory) -> RootFaults:
        """Return the effects in a directory; raises `InputError` if this process may not read."""
        faults = cls()
        for name in _IN_ORDER:
            checkpoint = directory.checkpoint(name)
            if checkpoint.fault is None:
                continue
            if checkpoint.effect is None:
                raise checkpoint.fault
            faults._add(checkpoint.effect, refusal_of(checkpoint.fault))
        return faults

    def _add(self, effect: FaultEffect, why: Refusal) -> None:
        text = f"{why.file}: {why.reason}"
        match effect:
            case FaultEffect.OFFLINE:
                self.offline = self.offline or why
            case FaultEffect.OFFLINE_LATER:
                self.offline_later = why
            case FaultEffect.EXITS:
                self.refused = why
            case FaultEffect.RESET:
                self.notes.append(f"{text}: all of it counts as 0")
            case FaultEffect.SERVES_NONE:
                self.hidden.append(f"{text}: the broker starts, and serves no partition")
            case FaultEffect.CLEANS_NONE:
                self.unserved.append(f"{text}: the broker starts, and cleans none")
            case FaultEffect.CLEANER_OFFLINE:
                does = "the cleaner fails on it, and the broker takes the directory offline"
                self.unserved.append(f"{text}: {does}")

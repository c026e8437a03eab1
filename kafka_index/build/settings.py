"""What every segment of a build shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_index.build.outputs import ALL_OUTPUTS, Output, needs_state
from kafka_index.config import LogConfig
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.tasks import new_run_id


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How to build, and where to.

    Parameters
    ----------
    config : LogConfig
        Kafka's settings, by topic.
    target_root : str, optional
        Folder that mirrors the partition directories; None to write beside the logs.
    outputs : frozenset of Output
        What to write.
    expiration : ProducerExpiration, optional
        Leave producers out of snapshots as a broker that starts now would; by default none is.
    verify_crc : bool
        Whether checksums are verified.
    force : bool
        Build also what is known to be right.
    run_id : str
        Letters, digits and underscores; no two runs share it.
    """

    config: LogConfig = field(default_factory=LogConfig)
    target_root: str | None = None
    outputs: frozenset[Output] = ALL_OUTPUTS
    expiration: ProducerExpiration | None = None
    verify_crc: bool = True
    force: bool = False
    run_id: str = field(default_factory=new_run_id)

    @property
    def in_place(self) -> bool:
        """Whether index files go beside their logs."""
        return self.target_root is None

    def attributes_of(self, log_path: str) -> str | None:
        """Return the log whose mode and owner the files beside it take; None for another folder."""
        return log_path if self.in_place else None

    @property
    def needs_state(self) -> bool:
        """Whether anything runs on from segment to segment."""
        return needs_state(self.outputs)

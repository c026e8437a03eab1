"""The settings of a build: output files and their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.local_work import workspace
from kafka_index.core.fs.registry import store_of
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.log.recovery.choices import ALL_OUTPUTS, INDEX_OUTPUTS, BuildOutput
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.partition_files import TieredPartition
from kafka_index.core.output.locks import RUNS_FOLDER
from kafka_index.core.output.temporary_files import scratch_path


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """The settings that affect the scan of a segment: two of its topic, and CRC verification."""

    index_interval_bytes: int
    index_size_max_bytes: int
    verify_crc: bool


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The settings of a build.

    Attributes
    ----------
    target_root
        Root of the output, with the partition directories; None to write next to the logs.
    expiration
        Which idle producers to omit from snapshots, as a broker starting now would; default none.
    force
        Rebuild segments whose files are up to date.
    run_id
        Unique ID of letters, digits and underscores.
    tiered
        Partitions with remote segments.
    shares_staged
        Stage files for a remote target in its store, because another process publishes them.
    keeps_digests
        Compute digests of written files for the build manifest; required for publishing.
    keeps_record
        Write a build manifest, by which the next build recognizes unchanged files.
    """

    config: LogConfig = field(default_factory=LogConfig)
    target_root: str | None = None
    outputs: frozenset[BuildOutput] = ALL_OUTPUTS
    expiration: ProducerExpiration | None = None
    verify_crc: bool = True
    force: bool = False
    run_id: str = field(default_factory=new_run_id)
    tiered: Mapping[TopicPartition, TieredPartition] = field(default_factory=dict)
    shares_staged: bool = False
    keeps_digests: bool = True
    keeps_record: bool = True

    @property
    def in_place(self) -> bool:
        """Whether index files are written next to their logs."""
        return self.target_root is None

    @property
    def needs_state(self) -> bool:
        """Whether an output file depends on earlier segments."""
        return not INDEX_OUTPUTS.issuperset(self.outputs)

    @property
    def _stages_beside(self) -> bool:
        return self.target_root is None or store_of(self.target_root).stages_beside

    def work_path(self, final_path: str, attempt_id: str) -> str:
        """Return the local path for writing a file: next to its target if that is local."""
        if self._stages_beside:
            return scratch_path(final_path, self.run_id, attempt_id)
        return scratch_path(_moved(final_path, workspace()), self.run_id, attempt_id)

    def staged_path(self, final_path: str, attempt_id: str) -> str:
        """Return the path of a scanned file until it is published."""
        if not self.shares_staged or self.target_root is None or self._stages_beside:
            return self.work_path(final_path, attempt_id)
        root = f"{self.target_root}/{RUNS_FOLDER}/{self.run_id}"
        return scratch_path(_moved(final_path, root), self.run_id, attempt_id)

    def attributes_of(self, log_path: str) -> str | None:
        """Return the log whose mode and owner its index files inherit; None in another folder."""
        return log_path if self.in_place else None

    def scan_settings(self, topic: str) -> ScanSettings:
        config = self.config.for_topic(topic)
        return ScanSettings(
            config.index_interval_bytes, config.index_size_max_bytes, verify_crc=self.verify_crc
        )


def _moved(final_path: str, root: str) -> str:
    """Move the path of a partition's file below another root."""
    folder, name = os.path.split(final_path)
    return os.path.join(root, os.path.basename(folder), name)

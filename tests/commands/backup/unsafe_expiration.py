"""Rules of repositories by which a day lasts seconds: in this process, and in runs of commands.

`tests.support.killed_runs` imports this module, which takes the rules from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from kafka_index.core.fs import object_store
from kafka_index.core.fs.backup import repository

_VARIABLE = "KAFKA_INDEX_HASTY_RULES"


@dataclass(frozen=True)
class UnsafeExpiration:
    """Times in seconds; see `kafka_index.core.fs.backup.repository`."""

    longest_run: float
    clocks: float
    settled: float

    @property
    def spared(self) -> float:
        """The age at which objects may be deleted."""
        return 2 * self.longest_run

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Apply them here, and to processes that are started meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(_VARIABLE, f"{self.longest_run} {self.clocks} {self.settled}")
            self._set(patch)
            yield

    def _set(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(repository, "LONGEST_BACKUP_S", self.longest_run)
        patch.setattr(repository, "SPARED_S", self.spared)
        patch.setattr(repository, "SETTLED_S", self.settled)
        patch.setattr(repository, "CLOCKS_S", self.clocks)
        patch.setattr(object_store, "JUST_WRITTEN_S", self.clocks)


if _VARIABLE in os.environ:
    UnsafeExpiration(*map(float, os.environ[_VARIABLE].split()))._set(pytest.MonkeyPatch())

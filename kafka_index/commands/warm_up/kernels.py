"""The run and the result of ``warm-up``: all kernels are compiled and cached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.commands.warm_up.request import WarmUpRequest
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import ReportSink, Result, RunOutcome
from kafka_index.core.kernels.compile_cache import (
    are_all_packaged,
    cache_folders,
    keep_in_shared_folder,
)
from kafka_index.core.kernels.compile_clock import compile_clock
from kafka_index.core.kernels.warm_up import warm_up as warm_up_kernels


@dataclass(frozen=True, repr=False)
class WarmUpResult(Result):
    """The result of a warm-up.

    Parameters
    ----------
    compiled : int
        The number of kernels that this run compiled.
    folder : str, optional
        The cache folder of the machine code; None if no folder can be written.
    is_packaged : bool
        Whether the package contains the machine code.
    """

    compiled: int
    folder: str | None
    is_packaged: bool = False

    command = "warm-up"

    @property
    def headline(self) -> str:
        """The folder of the machine code."""
        if self.is_packaged:
            return "all kernels are already compiled: the package contains their machine code"
        if self.folder is None:
            return "the machine code of the kernels cannot be cached: no folder can be written"
        done = "compiled" if self.compiled else "already compiled"
        return f"all kernels are {done}, and cached in {self.folder}"

    @property
    def outcome(self) -> RunOutcome:
        """The environment if the machine code cannot be cached."""
        is_cached = self.is_packaged or self.folder is not None
        return RunOutcome.DONE if is_cached else RunOutcome.ENVIRONMENT

    @property
    def counts(self) -> Mapping[str, int]:
        return {"kernels_compiled": self.compiled}

    def to_arrow(self) -> pa.Table:
        return pa.table({"folder": pa.array([self.folder], pa.string())})


def warm_up(
    request: WarmUpRequest,
    _engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> WarmUpResult:
    """Load or compile every kernel."""
    if request.shared:
        keep_in_shared_folder()
    (listener or SILENT).on_begin()
    warm_up_kernels()
    if are_all_packaged():
        return WarmUpResult(compile_clock.count, None, is_packaged=True)
    folder = cache_folders().writable
    return WarmUpResult(compile_clock.count, None if folder is None else str(folder))

"""Protocols of engines, the distribution of tasks over Spark jobs and bins, and run IDs."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

#: Tasks per worker in the largest job of `Waves.GROWING`.
GROWN_WAVE = 4
#: Column with the bin of a task.
BIN = "bin"
#: Fixed cost of opening, creating and publishing a file, as the number of bytes read in the same
#: time.
COST_BYTES = 2 << 20
# A bin becomes a Spark task. Small runs use smaller bins to keep several cores busy.
_BIN_BYTES = 256 << 20
_SMALL_BIN_BYTES = 16 << 20
_FEW_BINS = 64
# A failed run loses the current job, which should be a small part of a large run.
_MAX_WAVES = 64
_WAVE_BYTES = 16 << 30
_MAX_WAVE_BYTES = 1 << 40


class Waves(Enum):
    """How a run is divided into Spark jobs; results arrive when their job is complete."""

    ONE = auto()
    """One job: its results are of use only together."""
    KEPT = auto()
    """Jobs of about equal bytes: a run that fails keeps the results of the jobs before."""
    GROWING = auto()
    """Each job twice the one before: the caller may end the run with its first results."""


@dataclass(frozen=True, slots=True)
class SplittableTask(Generic[Result]):
    """A task that can be split across threads.

    Each of `parts` (at least one) is called with the attempt ID and returns a partial result.
    `join` is called with all partial results in order and the attempt ID.
    """

    parts: Sequence[Callable[[str], Any]]
    join: Callable[[list[Any], str], Result]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a work needs one part or more")

    def run(self, attempt_id: str) -> Result:
        return self.join([part(attempt_id) for part in self.parts], attempt_id)


class Listener(Protocol):
    """Receives the progress of a run; by default it does nothing."""

    def run_id(self) -> str:
        """Return the ID of a new run, for reports and names of temporary files."""
        return new_run_id()

    def on_plan(self, count: int, size_bytes: int | None, nouns: tuple[str, str]) -> None:  # noqa: ARG002, of listeners that show it
        """Receive the total amount of work: a count with its nouns, and its bytes."""
        return

    def on_begin(self) -> None:
        """Receive the start of the work, after the engine has started."""
        return

    def on_done(self, count: int, size_bytes: int = 0) -> None:  # noqa: ARG002, as above
        """Receive an amount of completed work; called from any thread."""
        return

    def on_share(self, done: int, total: int) -> None:  # noqa: ARG002, of listeners that show it
        """Receive the number of completed progress units; called from any thread."""
        return

    def on_note(self, text: str) -> None:  # noqa: ARG002
        """Show a line before the result is available."""
        return


class _SilentListener(Listener):
    pass


#: Used by runs without progress display.
SILENT = _SilentListener()


class Workers(Protocol):
    """Runs a function over tasks until the context that started the workers ends."""

    @property
    def count(self) -> int:
        """Number of tasks that run concurrently."""

    @property
    def in_process(self) -> bool:
        """Whether tasks run in this process and share its memory."""

    @property
    def driver_bytes(self) -> int:
        """Bytes of tasks and results that this process has sent and received."""

    def stop(self) -> None:
        """Cancel all runs of these workers; called from any thread."""

    def run(
        self,
        works: Sequence[Work],
        function: Callable[[Work, str], Result],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,
        shares: int | None = None,
        result_bytes: int = 0,
    ) -> Generator[Result, None, None]:
        """Yield the results of a function over tasks, starting when the first one is requested.

        Closing the generator cancels the run, and so does an exception of the function. Tasks, the
        function and results are small and picklable; tasks start in the given order. The function
        is called with a task and an attempt ID, which consists of letters, digits and underscores
        and is unique among concurrent attempts. On threads it is one shared object, on Spark there
        is a copy per Spark task.

        `sizes` are bytes per task. `what` is a description with a placeholder for the number of
        tasks, such as ``verify {:,} partitions``, and optionally one for their ``{size}``.
        `result_bytes` is the maximum size of a result, if it is much larger than its task. Results
        arrive as they complete, or, if `ordered`, in the order of tasks. `shares` is the number of
        progress units of the run, by default one per task.
        """

    def run_parts(
        self,
        works: Sequence[Work],
        divide: Callable[[Work], SplittableTask[Result]],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,
    ) -> Generator[Result, None, None]:
        """Run splittable tasks; threads share their parts, a Spark task runs all parts of one."""


class Engine(Protocol):
    """The selected engine; it starts nothing before `start`."""

    @property
    def on_spark(self) -> bool:
        """Whether tasks run on Spark rather than on threads of this process."""

    def start(
        self,
        command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,
        works: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> AbstractContextManager[Workers]:
        """Start the workers of a command.

        `after_failure` is the hint for the error of a failed job. `works` is the number of tasks
        reported to the listener. `inputs` are paths that tasks read. `outputs` are existing, locked
        folders or URIs that they write. Raises `KafkaIndexError` if the engine does not start, and
        on exit if a task has failed.
        """


def balance(sizes: Sequence[float], bins: int, *, overhead: float = 1) -> list[int]:
    """Assign each item to a bin so that all bins have about the same load.

    Sizes have any unit. `overhead` is the fixed cost of an item in the same unit. Bins can be empty
    if there are fewer items. Greedy: each item, largest first, goes to the bin with the smallest
    load. So no bin exceeds the smallest bin by more than one item.
    """
    if bins < 1:
        raise ValueError(f"work needs one bin or more, not {bins}")
    loads: list[tuple[float, int]] = [(0, number) for number in range(bins)]
    bin_of = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        load, number = loads[0]
        bin_of[item] = number
        heapq.heapreplace(loads, (load + sizes[item] + overhead, number))
    return bin_of


def count_bins(works: int, cost: int) -> int:
    """Return the number of bins for tasks, on any engine.

    `cost` is in bytes that could be read in the same time.
    """
    bin_bytes = min(max(cost // _FEW_BINS, _SMALL_BIN_BYTES), _BIN_BYTES)
    return max(min(works, -(-cost // bin_bytes)), 1)


def split_waves(costs: Sequence[int], waves: Waves, workers: int) -> Iterator[tuple[int, int]]:
    """Yield the range of tasks of each Spark job: its first task, and the one after its last.

    Costs have the unit of `count_bins`; as many tasks as `workers` run concurrently.
    """
    if waves is Waves.ONE:
        if costs:
            yield 0, len(costs)
        return
    max_bytes = wave_bytes(sum(costs))
    max_works = workers if waves is Waves.GROWING else len(costs)
    start = size_bytes = 0
    for end, cost in enumerate(costs, start=1):
        size_bytes += cost
        if end == len(costs) or end - start == max_works or size_bytes >= max_bytes:
            yield start, end
            start, size_bytes = end, 0
            if waves is Waves.GROWING:
                max_works = min(2 * max_works, GROWN_WAVE * workers)


def wave_bytes(total_bytes: int) -> int:
    """Return the cost of a job: many bins, but a small part of a large run."""
    return min(max(_WAVE_BYTES, total_bytes // _MAX_WAVES), _MAX_WAVE_BYTES)


def new_run_id() -> str:
    """Return an ID for a run's temporary files: 16 hexadecimal digits."""
    return os.urandom(8).hex()

"""Engines: their protocols, how works are spread over jobs and bins, and the names of runs."""

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

#: Works of each worker in the largest of `Waves.GROWING`.
GROWN_WAVE = 4
#: The column of the bin that a row of work belongs to.
BIN = "bin"
#: What opening, creating and publishing cost, in bytes that could be read meanwhile.
COST_BYTES = 2 << 20
# A bin is a task. Those of a small run are smaller, so that they keep several cores busy.
_BIN_BYTES = 256 << 20
_SMALL_BIN_BYTES = 16 << 20
_FEW_BINS = 64
# A wave is what a failed run loses: a small share of a large run.
_MAX_WAVES = 64
_WAVE_BYTES = 16 << 30
_MAX_WAVE_BYTES = 1 << 40


class Waves(Enum):
    """The jobs of a run on Spark: the results of a job come back when all of it is done."""

    ONE = auto()
    """One job: its results are of use only together."""
    KEPT = auto()
    """Jobs of about equal bytes: a run that fails keeps the results of the jobs before."""
    GROWING = auto()
    """Each job twice the one before: the caller may end the run with its first results."""


@dataclass(frozen=True, slots=True)
class SplittableTask(Generic[Result]):
    """A work divided, so that threads share it.

    Each part, one at least, is called with the id of an attempt, and returns a piece. `join` is
    called with all pieces in their order and the id of an attempt, once all are there.
    """

    parts: Sequence[Callable[[str], Any]]
    join: Callable[[list[Any], str], Result]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a work needs one part or more")

    def run(self, attempt_id: str) -> Result:
        """Do the parts one after the other, and join their pieces."""
        return self.join([part(attempt_id) for part in self.parts], attempt_id)


class Listener(Protocol):
    """Follows any engine at work; by default it does nothing."""

    def run_id(self) -> str:
        """Return the id of a run that begins, for reports and for names of scratch files."""
        return new_run_id()

    def on_plan(self, count: int, size_bytes: int | None, nouns: tuple[str, str]) -> None:  # noqa: ARG002, of listeners that show it
        """Record the total of the work: a number of things with their nouns, and their bytes."""
        return

    def on_begin(self) -> None:
        """Record that the engine has started and the work begins."""
        return

    def on_done(self, count: int, size_bytes: int = 0) -> None:  # noqa: ARG002, as above
        """Record that some of the total is done; called from any thread."""
        return

    def on_share(self, done: int, total: int) -> None:  # noqa: ARG002, of listeners that show it
        """Show how many of the equal shares of the work are done; called from any thread."""
        return

    def on_note(self, text: str) -> None:  # noqa: ARG002
        """Show a line that matters before the result is there."""
        return


class _SilentListener(Listener):
    """Shows nothing."""


#: For runs that nobody listens to.
SILENT = _SilentListener()


class Workers(Protocol):
    """Runs functions over works, until the context that has started them ends."""

    @property
    def count(self) -> int:
        """The number of works that are done at a time."""

    @property
    def in_process(self) -> bool:
        """Whether works are done in this process, and share its memory."""

    @property
    def driver_bytes(self) -> int:
        """The bytes of works and results that this process has sent and received so far."""

    def stop(self) -> None:
        """End the runs that others wait for; called from any thread."""

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
        """Yield the results of a function over works; nothing begins before the first is asked for.

        Closing the generator ends the run, and so does an exception of the function. Works, in the
        order in which they begin, the function and its results are small, and picklable. The
        function is called with a work and the id of an attempt: letters, digits and underscores,
        which no two attempts of a run that may overlap share. What it holds is one object for all
        threads, and one for each task of Spark. `sizes` are bytes; `what` has a place for the
        number of works, such as ``verify {:,} partitions``, and may have one for their ``{size}``.
        `result_bytes` are the most that a result may be, if that is much more than its work.
        Results come when they are there, or `ordered` as the works are. The jobs of the run amount
        to so many shares of the listener, by default one for each work.
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
        """Run works whose parts threads share; a task of Spark does all parts of one."""


class Engine(Protocol):
    """The chosen engine; nothing is started before the work."""

    @property
    def on_spark(self) -> bool:
        """Whether Spark runs the work, otherwise threads of this process."""

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

        `after_failure` is the hint for the error of a job that fails. The listener follows so many
        works as the run has. `inputs` are paths that works read, and `outputs` existing folders, or
        URIs, that they write to, whose locks are held. Raises `KafkaIndexError` if the engine does
        not start or lacks something, and in the context if a work has failed.
        """


def balance(sizes: Sequence[float], bins: int, *, overhead: float = 1) -> list[int]:
    """Assign each item to a bin so that the bins have about equal work.

    Sizes are in any unit; the overhead is the fixed cost of an item in the same unit, and keeps a
    bin of many small items from lasting longer than a bin of one large item. Some bins stay empty
    when there are fewer items. Greedy: the largest item first, each to the bin that has least. No
    bin ends up with more than the smallest bin and one item.
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
    """Return how many bins works are divided into, whatever runs them.

    A cost is the bytes that reading takes as long as the works.
    """
    bin_bytes = min(max(cost // _FEW_BINS, _SMALL_BIN_BYTES), _BIN_BYTES)
    return max(min(works, -(-cost // bin_bytes)), 1)


def split_waves(costs: Sequence[int], waves: Waves, workers: int) -> Iterator[tuple[int, int]]:
    """Yield the first work of each wave, and the one after its last.

    Costs are as for `count_bins`; so many works as workers are done at a time.
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
    """Return the cost of a wave: many bins, but a small fraction of a large run."""
    return min(max(_WAVE_BYTES, total_bytes // _MAX_WAVES), _MAX_WAVE_BYTES)


def new_run_id() -> str:
    """Return an id that names a run's scratch files: 16 hexadecimal digits."""
    return os.urandom(8).hex()

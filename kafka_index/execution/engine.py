"""The engines of commands, and their `Workers`, which run a function over works."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

#: Works of each worker in the largest of `Waves.GROWING`.
GROWN_WAVE = 4


class Waves(Enum):
    """The jobs of a run on Spark: the results of a job come back when all of it is done."""

    ONE = auto()
    """One job: its results are of use only together."""
    KEPT = auto()
    """Jobs of about equal bytes: a run that fails keeps the results of the jobs before."""
    GROWING = auto()
    """Each job twice the one before: the caller may end the run with its first results."""


@dataclass(frozen=True, slots=True)
class Parts(Generic[Result]):
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
    """Follows any engine at work."""

    def on_begin(self) -> None:
        """Record that the engine has started and the work begins."""

    def on_share(self, done: int, total: int) -> None:
        """Show how many of the equal shares of the work are done; called from any thread."""


class Workers(Protocol):
    """Runs functions over works, until the context that has started them ends."""

    @property
    def count(self) -> int:
        """The number of works that are done at a time."""

    @property
    def in_process(self) -> bool:
        """Whether works are done in this process, and share its memory."""

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
    ) -> Generator[Result, None, None]:
        """Yield the results of a function over works; nothing begins before the first is asked for.

        Closing the generator ends the run, and so does an exception of the function. Works, in the
        order in which they begin, the function and its results are small, and picklable. The
        function is called with a work and the id of an attempt: letters, digits and underscores,
        which no two attempts of a run that may overlap share. What it holds is one object for all
        threads, and one for each task of Spark. `sizes` are bytes; `what` has a place for the
        number of works, such as ``verify {:,} partitions``. Results come when they are there, or
        `ordered` as the works are. The jobs of the run amount to so many shares of the listener, by
        default one for each work.
        """

    def run_parts(
        self,
        works: Sequence[Work],
        divide: Callable[[Work], Parts[Result]],
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

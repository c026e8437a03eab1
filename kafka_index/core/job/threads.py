"""The thread engine: threads of this process; kernels release the GIL."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar

from kafka_index.core.fs.uris import remote_among
from kafka_index.core.job.engine import Listener, Result, SplittableTask, Waves, Work, Workers

Job = TypeVar("Job")

_FEWEST, _MOST = 2, 32
# Bins of the running jobs. Spark prefers the first job; the others fill idle cores.
_BINS_PER_CORE = 2


class Overlap(Generic[Job, Result]):
    """Runs several jobs concurrently; all are cancelled when the context ends.

    `bins_of` returns the number of bins of a job. Iteration yields the results in order, and raises
    the error of the first failed job. A job starts when earlier results have been consumed.
    """

    def __init__(
        self,
        workers: Workers,
        jobs: Iterable[Job],
        run: Callable[[Job], Result],
        *,
        bins_of: Callable[[Job], int],
        one_at_a_time: bool = False,
    ) -> None:
        #: Started jobs whose results have not been consumed.
        self.running: deque[tuple[Job, Future[Result]]] = deque()
        self._workers = workers
        self._left = iter(jobs)
        self._run = run
        self._bins_of = bins_of
        self._most = 1 if one_at_a_time else _MOST
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="wave")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pending = [future for _, future in self.running if not future.cancel()]
        if not all(future.done() for future in pending):
            self._workers.stop()
        self._pool.shutdown()

    def __iter__(self) -> Iterator[Result]:
        while True:
            while self._has_room() and (job := next(self._left, None)) is not None:
                self.running.append((job, self._pool.submit(self._run, job)))
            if not self.running:
                return
            result = self.running[0][1].result()
            self.running.popleft()
            yield result

    def _has_room(self) -> bool:
        count = len(self.running)
        if count >= self._most:
            return False
        bins = sum(self._bins_of(job) for job, _ in self.running)
        return count < _FEWEST or bins < _BINS_PER_CORE * self._workers.count


@dataclass(frozen=True, slots=True)
class ThreadEngine:
    """The thread engine, by default with one thread per core, or two if an input is remote."""

    threads: int | None = None
    on_spark = False

    @contextmanager
    def start(
        self,
        command: str,
        *,
        after_failure: str = "",  # noqa: ARG002, of `Engine.start`, as are the others
        listener: Listener | None = None,
        works: int = 0,  # noqa: ARG002
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),  # noqa: ARG002
    ) -> Iterator[ThreadWorkers]:
        if listener is not None:
            listener.on_begin()
        workers = ThreadWorkers(self.threads or _default_threads(inputs), command)
        try:
            yield workers
        finally:
            workers.stop()


def _default_threads(inputs: Iterable[str]) -> int:
    """Return one thread per core, or two for remote inputs, which wait half of the time."""
    return (os.cpu_count() or 1) * (2 if remote_among(inputs) else 1)


def map_requests(
    function: Callable[[Work], Result], works: Sequence[Work], *, threads: int, name: str
) -> Generator[Result, None, None]:
    """Yield the results of a function over tasks in order, on threads that mostly wait."""
    with ThreadEngine(threads).start(name) as workers:
        yield from workers.run(
            works, lambda work, _: function(work), sizes=(), what="", ordered=True
        )


class ThreadWorkers:
    """Thread workers; each run starts `count` threads of its own."""

    in_process = True
    driver_bytes = 0

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._runs: list[_Run[Any, Any]] = []

    def run(
        self,
        works: Sequence[Work],
        function: Callable[[Work, str], Result],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,
        shares: int | None = None,  # noqa: ARG002, who takes the results counts them
        result_bytes: int = 0,  # noqa: ARG002
    ) -> Generator[Result, None, None]:
        def divide(work: Work) -> SplittableTask[Result]:
            return SplittableTask([partial(function, work)], _only)

        return self.run_parts(works, divide, sizes=sizes, what=what, waves=waves, ordered=ordered)

    def run_parts(
        self,
        works: Sequence[Work],
        divide: Callable[[Work], SplittableTask[Result]],
        *,
        sizes: Sequence[int],  # noqa: ARG002, of `Workers.run_parts`, as are the others
        what: str,  # noqa: ARG002
        waves: Waves = Waves.ONE,  # noqa: ARG002
        ordered: bool = False,
    ) -> Generator[Result, None, None]:
        run = _Run(works, divide, self.count, self._name)
        self._runs.append(run)
        try:
            with closing(run.results(ordered=ordered)) as results:
                yield from results
        finally:
            self._runs.remove(run)

    def stop(self) -> None:
        """Cancel the runs whose results are no longer consumed."""
        for run in list(self._runs):
            run.shutdown()


def _only(pieces: list[Any], _attempt_id: str) -> Any:
    return pieces[0]


@dataclass(eq=False, slots=True)
class _Running(Generic[Result]):
    """A splittable task in progress."""

    number: int
    parts: SplittableTask[Result]
    missing: int
    pieces: list[Any] = field(default_factory=list)


class _Run(Generic[Work, Result]):
    """A function applied to tasks on threads.

    Tasks start only a few ahead of the consumed results.
    """

    def __init__(
        self,
        works: Sequence[Work],
        divide: Callable[[Work], SplittableTask[Result]],
        threads: int,
        name: str,
    ) -> None:
        self._works = enumerate(works)
        self._divide = divide
        self._room = 2 * threads
        self._parts: deque[tuple[_Running[Result], int]] = deque()
        self._done: deque[tuple[int, Result]] = deque()
        self._error: BaseException | None = None
        self._is_stopped = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=[f"thread{at}"], name=f"{name}_{at}")
            for at in range(threads)
        ]
        self._alive = 0

    def results(self, *, ordered: bool) -> Generator[Result, None, None]:
        """Yield the results; then raise the error that ended the run early, if any."""
        waiting: dict[int, Result] = {}
        following = 0
        try:
            for thread in self._threads:
                with self._changed:
                    self._alive += 1
                thread.start()
            while (done := self._next_done()) is not None:
                number, result = done
                if ordered:
                    waiting[number] = result
                    while following in waiting:
                        yield waiting.pop(following)
                        following += 1
                        self._make_room()
                else:
                    yield result
                    self._make_room()
        finally:
            self.shutdown()
        if self._error is not None:
            raise self._error

    def shutdown(self) -> None:
        """Start no further parts, and wait for the running ones."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _next_done(self) -> tuple[int, Result] | None:
        """Wait for a result; None if there are no more."""
        while True:
            try:
                with self._changed:
                    while not self._done and self._alive:
                        self._changed.wait()
                    return self._done.popleft() if self._done else None
            except BaseException as error:
                # On a signal, running parts finish and their results are yielded. A second signal
                # aborts.
                if self._error is not None:
                    raise
                with self._changed:
                    self._fail(error)
                self.shutdown()

    def _make_room(self) -> None:
        with self._changed:
            self._room += 1
            self._changed.notify()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._is_stopped = True
        self._changed.notify_all()

    def _next_part(self) -> tuple[_Running[Result], int] | None:
        """Wait for a part to run; None if there are no more."""
        with self._changed:
            while not self._is_stopped:
                if self._parts:
                    return self._parts.popleft()
                if self._room:
                    following = next(self._works, None)
                    if following is None:
                        return None
                    number, work = following
                    parts = self._divide(work)
                    count = len(parts.parts)
                    running = _Running(number, parts, count, [None] * count)
                    self._parts.extend((running, at) for at in range(count))
                    self._room -= 1
                    self._changed.notify_all()
                    continue
                self._changed.wait()
            return None

    def _work(self, attempt_id: str) -> None:
        """Run parts until there are none left."""
        try:
            while (taken := self._next_part()) is not None:
                running, at = taken
                piece = running.parts.parts[at](attempt_id)
                with self._changed:
                    running.pieces[at] = piece
                    running.missing -= 1
                    is_last = not running.missing
                if is_last:
                    result = running.parts.join(running.pieces, attempt_id)
                    with self._changed:
                        self._done.append((running.number, result))
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001, because the caller's thread raises it
            with self._changed:
                self._fail(error)
        finally:
            with self._changed:
                self._alive -= 1
                self._changed.notify_all()

"""Concurrent jobs of other processes, so that no core waits for the end of a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

from kafka_index.core.job.engine import Workers

Job = TypeVar("Job")
Result = TypeVar("Result")

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

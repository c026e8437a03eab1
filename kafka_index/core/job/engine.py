"""Engines: protocols, the distribution of tasks over Spark jobs and bins, and the thread engine.

The thread engine runs tasks in threads of this process: kernels release the GIL.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, Self, TypeVar

from kafka_index.core.contexts import deferred_signals, lock_and_condition
from kafka_index.core.fs.uris import select_remote

Task = TypeVar("Task")
Result = TypeVar("Result")

#: Maximum number of tasks per worker in a job of `JobSizes.GROWING`.
MAX_TASKS_PER_WORKER = 4
#: Column with the bin of a task.
BIN = "bin"
#: Fixed cost of opening, creating and publishing a file, as the number of bytes read in the same
#: time.
COST_BYTES = 2 << 20
# A bin becomes a Spark task. Small runs use smaller bins to keep several cores busy.
_BIN_BYTES = 256 << 20
_SMALL_BIN_BYTES = 16 << 20
_TARGET_BINS = 64
# If a run fails, the results of its current job are lost, so a job should be a small part of a
# large run.
_MAX_JOBS = 64
_MIN_JOB_BYTES = 16 << 30
_MAX_JOB_BYTES = 1 << 40


class JobSizes(Enum):
    """How a run is divided into Spark jobs; results arrive when a job is complete."""

    ONE = auto()
    """One job, since all results are needed at once."""
    EQUAL = auto()
    """Jobs of about equal size; the results of completed jobs survive a failed run."""
    GROWING = auto()
    """Each job has twice as many tasks as the previous one; the caller may stop early."""


@dataclass(frozen=True, slots=True)
class SplittableTask(Generic[Result]):
    """A task whose parts can run on several threads.

    Attributes
    ----------
    parts : sequence of callable
        One or more parts. Each part is called with the attempt ID, and returns a partial result.
    join : callable
        Called with all partial results, in order, and the attempt ID; returns the result.
    """

    parts: Sequence[Callable[[str], Any]]
    join: Callable[[list[Any], str], Result]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a task needs one part or more")

    def run(self, attempt_id: str) -> Result:
        return self.join([part(attempt_id) for part in self.parts], attempt_id)


@dataclass(frozen=True, slots=True)
class TaskSplitter(Generic[Task, Result]):
    """Splits a task of `Workers.run` into parts for threads; a Spark task runs all parts."""

    split: Callable[[Task], SplittableTask[Result]]

    def __call__(self, task: Task, attempt_id: str) -> Result:
        return self.split(task).run(attempt_id)


class Listener(Protocol):
    """Receives the progress of a run; the default implementation does nothing."""

    def run_id(self) -> str:
        """Return the ID of a new run, for reports and names of temporary files."""
        return new_run_id()

    def on_plan(self, count: int, size_bytes: int | None, nouns: tuple[str, str]) -> None:  # noqa: ARG002, for subclasses
        """Receive the total amount of work: a count, the noun (singular and plural), and bytes."""
        return

    def on_begin(self) -> None:
        """Receive a notification that work starts, after the engine has started."""
        return

    def on_done(self, count: int, size_bytes: int = 0) -> None:  # noqa: ARG002, as above
        """Receive an amount of newly completed work; called from any thread."""
        return

    def on_units(self, completed_units: int, total_units: int) -> None:  # noqa: ARG002, for subclasses
        """Receive the total number of completed progress units; called from any thread."""
        return

    def on_note(self, text: str) -> None:  # noqa: ARG002
        """Show a line before the result is available."""
        return


class _SilentListener(Listener):
    pass


#: The listener of runs that do not display progress.
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
        """Total bytes of tasks that this process sent, and of results that it received."""

    def stop(self) -> None:
        """Cancel all runs of these workers; called from any thread."""

    def run(
        self,
        tasks: Sequence[Task],
        function: Callable[[Task, str], Result],
        *,
        sizes: Sequence[int],
        description: str,
        jobs: JobSizes = JobSizes.ONE,
        ordered: bool = False,
        units: int | None = None,
        result_bytes: int = 0,
    ) -> Generator[Result, None, None]:
        """Run a function over tasks when the first result is requested, and yield the results.

        Closing the generator cancels the run, and so does an exception that the function raises.
        Tasks, the function and results are small and picklable. Tasks start in the given order.

        Parameters
        ----------
        tasks : sequence
            The tasks.
        function : callable
            Called with a task and an attempt ID, which consists of letters, digits and underscores
            and is unique among concurrent attempts. Threads share one function; each Spark task has
            a copy. Threads share the parts of a task if the function is a `TaskSplitter`.
        sizes : sequence of int
            Size of each task in bytes.
        description : str
            Description of a job, with a placeholder for the number of tasks, such as ``verify {:,}
            partitions``, and optionally a placeholder ``{size}`` for the bytes of these tasks.
        jobs : JobSizes
            How tasks are divided into Spark jobs.
        ordered : bool
            Yield results in the order of tasks instead of the order of completion.
        units : int, optional
            Number of progress units of the run, by default one per task.
        result_bytes : int
            Maximum size of a result, if results are much larger than tasks.
        """


class Engine(Protocol):
    """The selected engine; only `start` starts threads or a Spark session."""

    @property
    def on_spark(self) -> bool:
        """Whether tasks run on Spark rather than on threads of this process."""

    @property
    def threads(self) -> int | None:
        """The number of threads in this process, None if the user has not specified it."""
        return None

    def start(
        self,
        command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,
        tasks: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> AbstractContextManager[Workers]:
        """Start the workers of a command.

        Parameters
        ----------
        command : str
            Name of the command.
        after_failure : str
            Hint for the error of a failed Spark job.
        listener : Listener, optional
            Receives the progress.
        tasks : int
            Total number of progress units that the listener receives.
        inputs : sequence of str
            Paths that tasks read.
        outputs : sequence of str
            Existing, locked folders or URIs that tasks write to.

        Raises
        ------
        KafkaIndexError
            The engine does not start; or on exit from the context, if a task has failed.
        """


def balance(sizes: Sequence[float], bins: int, *, overhead: float = 1) -> list[int]:
    """Assign each item to a bin so that all bins have about the same load.

    `overhead` is the fixed cost of an item, in the unit of `sizes`. If there are fewer items than
    bins, some bins are empty. The algorithm is greedy: each item, largest first, is added to the
    bin with the smallest load. So the loads of two bins differ by at most the cost of one item.
    """
    if bins < 1:
        raise ValueError(f"tasks need one bin or more, not {bins}")
    loads: list[tuple[float, int]] = [(0, number) for number in range(bins)]
    bin_of = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        load, number = loads[0]
        bin_of[item] = number
        heapq.heapreplace(loads, (load + sizes[item] + overhead, number))
    return bin_of


def count_bins(tasks: int, cost: int) -> int:
    """Return the number of bins for tasks; a `cost` of 1 is the time to read one byte."""
    bin_bytes = min(max(cost // _TARGET_BINS, _SMALL_BIN_BYTES), _BIN_BYTES)
    return max(min(tasks, -(-cost // bin_bytes)), 1)


def split_jobs(costs: Sequence[int], jobs: JobSizes, workers: int) -> Iterator[tuple[int, int]]:
    """Yield the range of tasks of each Spark job: start and exclusive end.

    Costs have the unit of `count_bins`. `workers` is the number of concurrent tasks.
    """
    if jobs is JobSizes.ONE:
        if costs:
            yield 0, len(costs)
        return
    max_bytes = job_bytes(sum(costs))
    max_tasks = workers if jobs is JobSizes.GROWING else len(costs)
    start = size_bytes = 0
    for end, cost in enumerate(costs, start=1):
        size_bytes += cost
        if end == len(costs) or end - start == max_tasks or size_bytes >= max_bytes:
            yield start, end
            start, size_bytes = end, 0
            if jobs is JobSizes.GROWING:
                max_tasks = min(2 * max_tasks, MAX_TASKS_PER_WORKER * workers)


def job_bytes(total_bytes: int) -> int:
    """Return the maximum cost of a job, which has many bins but is a small part of a large run."""
    return min(max(_MIN_JOB_BYTES, total_bytes // _MAX_JOBS), _MAX_JOB_BYTES)


def new_run_id() -> str:
    """Return an ID for a run's temporary files: 16 hexadecimal digits."""
    return os.urandom(8).hex()


Job = TypeVar("Job")

_MIN_RUNNING_JOBS, _MAX_RUNNING_JOBS = 2, 32
# Start further jobs until running jobs have this number of bins per core. Spark prefers the first
# running job, and the bins of later jobs fill idle cores.
_BINS_PER_CORE = 2


class Overlap(Generic[Job, Result]):
    """Runs several jobs concurrently; running jobs are cancelled when the context ends.

    `bins_of` returns the number of bins of a job. Iteration yields the results in order, and raises
    the error of the first failed job. The number of jobs whose results are not consumed is limited.
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
        self._remaining_jobs = iter(jobs)
        self._run = run
        self._bins_of = bins_of
        self._most = 1 if one_at_a_time else _MAX_RUNNING_JOBS
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="job")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pending = [future for _, future in self.running if not future.cancel()]
        if not all(future.done() for future in pending):
            self._workers.stop()
        self._pool.shutdown()

    def __iter__(self) -> Iterator[Result]:
        while True:
            while self._may_start() and (job := next(self._remaining_jobs, None)) is not None:
                self.running.append((job, self._pool.submit(self._run, job)))
            if not self.running:
                return
            result = self.running[0][1].result()
            self.running.popleft()
            yield result

    def _may_start(self) -> bool:
        count = len(self.running)
        if count >= self._most:
            return False
        bins = sum(self._bins_of(job) for job, _ in self.running)
        return count < _MIN_RUNNING_JOBS or bins < _BINS_PER_CORE * self._workers.count


@dataclass(frozen=True, slots=True)
class ThreadEngine:
    """The thread engine, by default with one thread per core, or two per core for remote inputs."""

    threads: int | None = None
    on_spark = False

    @contextmanager
    def start(
        self,
        command: str,
        *,
        listener: Listener | None = None,
        inputs: Sequence[str] = (),
        **_spark_parameters: object,
    ) -> Iterator[ThreadWorkers]:
        """Yield thread workers; for the parameters, see `Engine.start`."""
        if listener is not None:
            listener.on_begin()
        workers = ThreadWorkers(self.threads or _default_threads(inputs), command)
        try:
            yield workers
        finally:
            workers.stop()


def _default_threads(inputs: Iterable[str]) -> int:
    """Return the number of threads: one per core, or two for remote inputs, as their reads wait."""
    return (os.cpu_count() or 1) * (2 if select_remote(inputs) else 1)


def map_requests(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, threads: int, name: str
) -> Generator[Result, None, None]:
    """Run a function over tasks on threads that mostly wait, and yield the results in order."""
    with ThreadEngine(threads).start(name) as workers:
        yield from workers.run(tasks, lambda task, _: function(task), ordered=True)


class ThreadWorkers:
    """Workers that run tasks on threads; each run starts `count` threads of its own."""

    in_process = True
    driver_bytes = 0

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._runs: list[_Run[Any, Any]] = []

    def run(
        self,
        tasks: Sequence[Task],
        function: Callable[[Task, str], Result],
        *,
        ordered: bool = False,
        **_spark_parameters: object,
    ) -> Generator[Result, None, None]:
        """Yield the results of a function over tasks; for the parameters, see `Workers.run`."""

        def split(task: Task) -> SplittableTask[Result]:
            if isinstance(function, TaskSplitter):
                return function.split(task)
            return SplittableTask([partial(function, task)], _single_result)

        run = _Run(tasks, split, self.count, self._name)
        self._runs.append(run)
        try:
            with closing(run.results(ordered=ordered)) as results:
                yield from results
        finally:
            self._runs.remove(run)

    def stop(self) -> None:
        """Cancel the runs that are still in progress."""
        for run in list(self._runs):
            run.shutdown()


def _single_result(results: list[Any], _attempt_id: str) -> Any:
    return results[0]


@dataclass(eq=False, slots=True)
class _RunningTask(Generic[Result]):
    """A splittable task in progress."""

    number: int
    task: SplittableTask[Result]
    missing: int
    results: list[Any] = field(default_factory=list)


class _Run(Generic[Task, Result]):
    """A run of tasks on threads; it starts only a few tasks before earlier results are consumed."""

    def __init__(
        self,
        tasks: Sequence[Task],
        split: Callable[[Task], SplittableTask[Result]],
        threads: int,
        name: str,
    ) -> None:
        self._tasks = enumerate(tasks)
        self._split = split
        self._startable = 2 * threads
        self._parts: deque[tuple[_RunningTask[Result], int]] = deque()
        # Results by task number; None after the last thread has ended.
        self._results: SimpleQueue[tuple[int, Result] | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._is_stopped = False
        self._lock, self._changed = lock_and_condition()
        self._threads = [
            threading.Thread(target=self._work, args=[f"thread{at}"], name=f"{name}_{at}")
            for at in range(threads)
        ]
        self._alive = threads

    def results(self, *, ordered: bool) -> Generator[Result, None, None]:
        """Yield the results; if an error ended the run early, raise it after these results."""
        pending_results: dict[int, Result] = {}
        next_number = 0
        try:
            # A signal inside `Thread.start` could leave a lock locked that the new thread needs.
            with deferred_signals():
                for thread in self._threads:
                    thread.start()
            while (numbered_result := self._next_result()) is not None:
                number, result = numbered_result
                if ordered:
                    pending_results[number] = result
                    while next_number in pending_results:
                        yield pending_results.pop(next_number)
                        next_number += 1
                        self._start_more()
                else:
                    yield result
                    self._start_more()
        finally:
            self.shutdown()
        if self._error is not None:
            raise self._error

    def shutdown(self) -> None:
        """Start no further parts, and wait for running parts."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _next_result(self) -> tuple[int, Result] | None:
        """Wait for a result; return None if no task is left."""
        while True:
            try:
                return self._results.get()
            except BaseException as error:
                # After a signal, wait for running parts, and yield their results. A second signal
                # aborts the wait.
                if self._error is not None:
                    raise
                with self._lock:
                    self._fail(error)
                self.shutdown()
                # The signal may have discarded the None of the last thread.
                self._results.put(None)

    def _start_more(self) -> None:
        with self._lock:
            self._startable += 1
            self._changed.notify()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._is_stopped = True
        self._changed.notify_all()

    def _next_part(self) -> tuple[_RunningTask[Result], int] | None:
        """Wait for a part that can be run; return None if no part is left."""
        with self._lock:
            while not self._is_stopped:
                if self._parts:
                    return self._parts.popleft()
                if self._startable:
                    numbered_task = next(self._tasks, None)
                    if numbered_task is None:
                        return None
                    number, task = numbered_task
                    splittable = self._split(task)
                    count = len(splittable.parts)
                    running = _RunningTask(number, splittable, count, [None] * count)
                    self._parts.extend((running, at) for at in range(count))
                    self._startable -= 1
                    self._changed.notify_all()
                    continue
                self._changed.wait()
            return None

    def _work(self, attempt_id: str) -> None:
        """Run parts until no part is left."""
        try:
            while (part := self._next_part()) is not None:
                running, at = part
                result = running.task.parts[at](attempt_id)
                with self._lock:
                    running.results[at] = result
                    running.missing -= 1
                    is_last = not running.missing
                if is_last:
                    joined = running.task.join(running.results, attempt_id)
                    self._results.put((running.number, joined))
        except BaseException as error:  # noqa: BLE001, because the caller's thread raises it
            with self._lock:
                self._fail(error)
        finally:
            with self._lock:
                self._alive -= 1
                is_last_thread = not self._alive
            if is_last_thread:
                self._results.put(None)

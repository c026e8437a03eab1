"""The Spark jobs of a run: names in the Spark UI, progress, cancellation, and errors.

Only this module distinguishes classic sessions from Spark Connect.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from kafka_index.core import errors
from kafka_index.core.errors import EngineError, KafkaIndexError, help_page
from kafka_index.core.job.engine import new_run_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_POLL_SECONDS = 0.5
_LOGGER = logging.getLogger(__name__)
_IDLE_TIMEOUT_SECONDS = 120.0
_IDLE_WARNING = (
    f"no task has started within {_IDLE_TIMEOUT_SECONDS:.0f} s; the cluster may lack free cores or "
    "memory (see the web UI of the Spark master)"
)
# Spark Connect does not report its number of cores, but splits a range into one partition per core.
# No cluster has more cores than this number.
_MAX_CORES = 1 << 16
_CORES_MAX_AGE_SECONDS = 60.0
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"

#: Called from any thread with the number of completed items, and the total number of items.
Callback = Callable[[int, int], None]

DEPENDENCY_HINT = (
    "install the packages into the Python of the executors, or send a packed environment "
    f"({help_page('clusters')})"
)
_MAX_CAUSES = 8
_PACKAGE = __name__.partition(".")[0]
# The last line of a traceback: the class of the error, after its module unless it is built in.
_ERROR_LINE = re.compile(r"(?:([a-zA-Z_][\w.]*)\.)?(_?[A-Z]\w*)(?:: |$)")
_MISSING_MODULE = re.compile(r"No module named '([^']+)'")
#: Prefix of the error of a task whose Python lacks modules, before the names of the modules.
LACKS = "the Python of the executors lacks "
_LACKS_LINE = re.compile(rf"{LACKS}.+")
# Spark's message about the executor of the last failed attempt.
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<executor>[^()]+)\)")
# The stderr of a Python process that failed to become a worker.
_WORKER_STDERR = re.compile(
    r"Error from python worker:\n(?P<text>.*?)\n\s*PYTHONPATH was:", re.DOTALL
)
# The Java package of an error class, and Spark's wrapper class.
_JAVA_PACKAGE = re.compile(
    r"^(?:[a-z_]\w*\.)+(?:SparkException: |(?=[A-Z]\w*(?:Exception|Error)\b))"
)


def is_connect(session: SparkSession) -> bool:
    """Return whether a session is a Spark Connect session, which has no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect")


@dataclass(slots=True)
class _Job:
    items: int
    stages: int
    done: int = 0


class Jobs:
    """Names the Spark jobs of a run, and counts the items that they have completed.

    The progress of a classic session is polled by a thread; a Connect session reports it to a
    handler. Items are units of the run, such as segments. `on_progress` is called while jobs run,
    with numbers that never decrease. A context manager; several threads may run jobs concurrently.
    """

    def __init__(
        self, session: SparkSession, *, items: int = 0, on_progress: Callback | None = None
    ) -> None:
        self._session = session
        self._items = items
        self._on_progress = on_progress
        self._tag = f"kafka-index-{new_run_id()}"
        self._lock = threading.Lock()
        self._running: dict[str, _Job] = {}
        self._started = 0
        self._finished = self._finished_jobs = 0
        self._reported_items = 0
        self._thread_state = threading.local()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Spark removes a handler only if it is the same object as the registered handler.
        self._handler: Any = self._on_stages
        self._cores, self._counted_at = 1, -_CORES_MAX_AGE_SECONDS
        self._has_tasks = False
        self._idle_timer = threading.Timer(_IDLE_TIMEOUT_SECONDS, self._warn_if_idle)
        self._idle_timer.daemon = True

    def __enter__(self) -> Self:
        self._idle_timer.start()
        if self._on_progress is None:
            return self
        if is_connect(self._session):
            self._session.registerProgressHandler(self._handler)
        else:
            self._thread = threading.Thread(target=self._poll, name="spark-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._idle_timer.cancel()
        if self._thread is not None:
            self._thread.join()
        elif self._on_progress is not None:
            self._session.removeProgressHandler(self._handler)

    def count_cores(self) -> int:
        """Return the number of cores, at least 1; for a Connect server, up to a minute old."""
        if not is_connect(self._session):
            return max(self._session.sparkContext.defaultParallelism, 1)
        from pyspark.sql import functions as F  # noqa: N812, slow to import

        now = time.monotonic()
        if now - self._counted_at >= _CORES_MAX_AGE_SECONDS:
            splits = self._session.range(_MAX_CORES).select(F.spark_partition_id()).distinct()
            with self.job("count the cores"):
                self._cores, self._counted_at = max(splits.count(), 1), now
        return self._cores

    @contextlib.contextmanager
    def job(self, description: str, *, items: int = 0, stages: int = 1) -> Iterator[None]:
        """Name the Spark job that this thread runs in the context, for the Spark UI and progress.

        With Spark Connect, the name is not used. `items` is the number of items that the job
        completes. `stages` is the number of stages of the job after its first stage, which
        distributes the tasks.
        """
        with self._lock:
            self._started += 1
            key = f"{self._tag}-{self._started}"
            self._running[key] = job = _Job(items, stages)
        self._thread_state.key = key
        context = None if is_connect(self._session) else self._session.sparkContext
        if context is None:
            self._session.addTag(self._tag)
        else:
            # In a classic session, a tag applies only to the thread that adds the tag.
            context.addJobTag(self._tag)
            context.setLocalProperty(_GROUP, key)
            context.setLocalProperty(_DESCRIPTION, description)
        try:
            yield
            job.done = items
        finally:
            if context is None:
                self._session.removeTag(self._tag)
            else:
                context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
                context.setLocalProperty(_DESCRIPTION, None)  # type: ignore[arg-type]
                context.removeJobTag(self._tag)
            self._thread_state.key = None
            with self._lock:
                self._finished += self._running.pop(key).done
                self._finished_jobs += 1
            self._report_progress()

    def cancel(self) -> None:
        if is_connect(self._session):
            self._session.interruptTag(self._tag)
        else:
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _warn_if_idle(self) -> None:
        """Warn if no task of a job has started: without free cores, a job waits indefinitely."""
        if not is_connect(self._session):
            tracker = self._session.sparkContext.statusTracker()
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            self._has_tasks |= any(
                stage.numActiveTasks or stage.numCompletedTasks for stage in stages if stage
            )
        if self._running and not self._finished_jobs and not self._has_tasks:
            _LOGGER.warning(_IDLE_WARNING)

    def _report_progress(self) -> None:
        with self._lock:
            completed_items = self._finished + sum(job.done for job in self._running.values())
            # The sum could decrease, because it omits failed jobs and earlier attempts of repeated
            # tasks.
            self._reported_items = completed_items = max(completed_items, self._reported_items)
        if self._on_progress is not None:
            self._on_progress(completed_items, self._items)

    def _update(self, key: str, stages: Sequence[tuple[int, int]]) -> None:
        """Set the progress of a job: completed and total tasks of its stages, in order."""
        job = self._running.get(key)
        if job is not None:
            # The first stage distributes the plan. Later stages appear when they start.
            stage_fractions = [
                completed_tasks / tasks for completed_tasks, tasks in stages[1:] if tasks
            ]
            fraction = min(sum(stage_fractions) / job.stages, 1.0)
            job.done = max(job.done, int(job.items * fraction))

    def _poll(self) -> None:
        tracker = self._session.sparkContext.statusTracker()
        while not self._stop.wait(_POLL_SECONDS):
            for key in list(self._running):
                jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(key))
                numbers = {number for job in jobs if job is not None for number in job.stageIds}
                infos = map(tracker.getStageInfo, sorted(numbers))
                self._update(
                    key, [(info.numCompletedTasks, info.numTasks) for info in infos if info]
                )
            self._report_progress()

    # Other keyword arguments of the handler depend on the Spark version.
    def _on_stages(
        self, stages: Iterable[Any] | None = None, inflight_tasks: int = 0, **_: object
    ) -> None:
        # Spark calls the handler in the thread that runs the job.
        self._has_tasks |= inflight_tasks > 0
        key = getattr(self._thread_state, "key", None)
        if key is not None:
            sorted_stages = sorted(stages or (), key=lambda stage: stage.stage_id)
            self._update(
                key, [(stage.num_completed_tasks, stage.num_tasks) for stage in sorted_stages]
            )
            self._report_progress()


def job_failure(error: Exception, hint: str) -> Exception:
    """Convert the error of a failed job, as raised by PySpark or py4j.

    Returns an `EngineError` if the cluster or its environment failed, a `KafkaIndexError` if a task
    failed because of its data, and a `RuntimeError` if a task failed because of an error in this
    package. `hint` is used if the error has no specific hint.
    """
    from pyspark.errors import PythonException

    messages = _all_messages(error)
    lacking_modules = _LACKS_LINE.search(messages)
    if lacking_modules is not None:
        return EngineError(lacking_modules[0], hint=DEPENDENCY_HINT)
    missing_module = _MISSING_MODULE.search(_import_error_line(messages))
    if missing_module is not None and not missing_module[1].startswith(f"{_PACKAGE}."):
        name = missing_module[1].partition(".")[0]
        return EngineError(
            f"the Python of an executor lacks the package {name}{_format_executor(messages)}",
            hint=DEPENDENCY_HINT,
        )
    if not isinstance(error, PythonException):
        return EngineError(
            f"the Spark job failed{_format_executor(messages)}: {_parse_reason(messages)}",
            hint=hint,
        )
    reason = _parse_reason(str(error))
    message = f"the Spark job failed: {reason}"
    # Spark forwards only the traceback of the task; the last line starts with the exception class.
    raised_errors = [
        match.groups("") for match in map(_ERROR_LINE.match, str(error).splitlines()) if match
    ]
    error_class: type[BaseException] = Exception
    for module, name in raised_errors:
        error_class = _import_error_class(module, name) or error_class
    if issubclass(error_class, errors.ExecutorError):
        message, hint = reason.partition(": ")[2], ""
    if issubclass(error_class, errors.RetriableError | OSError | MemoryError):
        return EngineError(message, hint=hint or None)
    if issubclass(error_class, KafkaIndexError):
        return KafkaIndexError(message, hint=hint)
    return RuntimeError(f"a Spark task failed: {reason}")


def _import_error_class(module: str, name: str) -> type[BaseException] | None:
    """Return the class of an error by name; None if no exception class has this name.

    Returns `EngineError` for errors of PySpark's worker, for example about the Python version, and
    `Exception` for errors of other libraries.
    """
    package = module.partition(".")[0]
    if package not in ("", _PACKAGE):
        return EngineError if package == "pyspark" else Exception
    try:
        error_class = getattr(import_module(module or builtins.__name__), name, None)
    except ImportError:
        return Exception
    return (
        error_class
        if isinstance(error_class, type) and issubclass(error_class, BaseException)
        else None
    )


def failure_reason(error: Exception) -> str:
    """Return the line of a Spark error that contains its cause."""
    return _parse_reason(_all_messages(error))


def without_package(reason: str) -> str:
    """Remove the package names from a Java error."""
    return _JAVA_PACKAGE.sub("", reason.lstrip(": ")).rstrip(".")


def _all_messages(error: Exception) -> str:
    """Return all messages of an error, including the JVM's causes."""
    messages = [str(error)]
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    # The JVM may have exited.
    with suppress(Exception):
        while cause is not None and len(messages) < _MAX_CAUSES:
            messages.append(str(cause.getMessage() or ""))
            cause = cause.getCause()
    return "\n".join(messages)


def _import_error_line(text: str) -> str:
    """Return the last line about a missing module in a Python traceback."""
    worker = _WORKER_STDERR.search(text)
    lines = (worker["text"] if worker else text).splitlines()
    matching_lines = [line for line in lines if _MISSING_MODULE.search(line)]
    return matching_lines[-1] if matching_lines else ""


def _format_executor(text: str) -> str:
    """Return the text `` on EXECUTOR`` for the last failed attempt; empty if unknown."""
    executors = _LOST_TASK.findall(text)
    return f" on {executors[-1]}" if executors else ""


def _parse_reason(text: str) -> str:
    worker = _WORKER_STDERR.search(text)
    lines = [line.strip() for line in (worker["text"] if worker else text).splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    causes = [line for line in lines if "Error: " in line or "Exception: " in line]
    reason = (causes or lines or ["Spark reports no reason"])[-1]
    return without_package(reason.removeprefix("Caused by: "))

"""The reason why a Spark job failed, in one line: an error of a task, or a report of Spark."""

from __future__ import annotations

import builtins
import re
from contextlib import suppress
from importlib import import_module

from kafka_index import errors
from kafka_index.errors import EngineError, KafkaIndexError

_MAX_CAUSES = 8
_PACKAGE = __name__.partition(".")[0]

# The last line of a traceback: the class of the error, with its module unless it is a builtin.
_RAISED = re.compile(r"(?:([a-zA-Z_][\w.]*)\.)?(_?[A-Z]\w*)(?:: |$)")
_MISSING = re.compile(r"No module named '([^']+)'")
# What Spark says of the executor on which a task failed for the last time.
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<executor>[^()]+)\)")
# What a Python process that never became a worker wrote to the stderr of its executor.
_WORKER_STDERR = re.compile(
    r"Error from python worker:\n(?P<text>.*?)\n\s*PYTHONPATH was:", re.DOTALL
)
# The Java package of an error, and Spark's own class for all of them.
_JAVA_PACKAGE = re.compile(
    r"^(?:[a-z_]\w*\.)+(?:SparkException: |(?=[A-Z]\w*(?:Exception|Error)\b))"
)


def job_failure(error: Exception, hint: str) -> Exception:
    """Return the error of a job that failed, as PySpark or py4j raised it.

    `EngineError`: the cluster or its environment is at fault. `KafkaIndexError`: a task failed
    because of its data. `RuntimeError`: a task failed because of an error in this package. The hint
    is for errors without their own.
    """
    from pyspark.errors import PythonException

    from kafka_index.spark.executors import DEPENDENCY_HINT

    whole = _whole_text(error)
    missing = _MISSING.search(_traceback(whole))
    if missing is not None and not missing[1].startswith(f"{_PACKAGE}."):
        name = missing[1].partition(".")[0]
        return EngineError(
            f"the Python of an executor lacks the package {name}{_where(whole)}",
            hint=DEPENDENCY_HINT,
        )
    if not isinstance(error, PythonException):
        return EngineError(f"the Spark job failed{_where(whole)}: {_reason(whole)}", hint=hint)
    reason = _reason(str(error))
    message = f"the Spark job failed: {reason}"
    # Of what a task raised only the traceback arrives; its last line begins with the class.
    raised = [match.groups("") for match in map(_RAISED.match, str(error).splitlines()) if match]
    kind: type[BaseException] = Exception
    for module, name in raised:
        kind = _class_of(module, name) or kind
    if issubclass(kind, errors.RetriableError | OSError | MemoryError):
        return EngineError(message, hint=hint)
    if issubclass(kind, KafkaIndexError):
        return KafkaIndexError(message, hint=hint)
    return RuntimeError(f"a Spark task failed: {reason}")


def _class_of(module: str, name: str) -> type[BaseException] | None:
    """Return the class of an error; None for a line of a message, which names no builtin error.

    One of another library is an `Exception`, or an `EngineError` where it is of PySpark's own
    worker, such as that its Python is of another version.
    """
    package = module.partition(".")[0]
    if package not in ("", _PACKAGE):
        return EngineError if package == "pyspark" else Exception
    try:
        found = getattr(import_module(module or builtins.__name__), name, None)
    except ImportError:
        return Exception
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def failure_reason(error: Exception) -> str:
    """Return the line of a Spark error that names its cause."""
    return _reason(_whole_text(error))


def without_package(reason: str) -> str:
    """Return the line of a Java error as people read it."""
    return _JAVA_PACKAGE.sub("", reason.lstrip(": ")).rstrip(".")


def _whole_text(error: Exception) -> str:
    """Return all that Spark says of an error, with the messages of the JVM's causes."""
    texts = [str(error)]
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    # The JVM may be gone by now.
    with suppress(Exception):
        while cause is not None and len(texts) < _MAX_CAUSES:
            texts.append(str(cause.getMessage() or ""))
            cause = cause.getCause()
    return "\n".join(texts)


def _traceback(text: str) -> str:
    """Return the last line of a Python traceback in a text: what was raised."""
    worker = _WORKER_STDERR.search(text)
    lines = (worker["text"] if worker else text).splitlines()
    raised = [line for line in lines if _MISSING.search(line)]
    return raised[-1] if raised else ""


def _where(text: str) -> str:
    """Return the executor on which a task failed last, if Spark says so."""
    lost = _LOST_TASK.findall(text)
    return f" on {lost[-1]}" if lost else ""


def _reason(text: str) -> str:
    worker = _WORKER_STDERR.search(text)
    lines = [line.strip() for line in (worker["text"] if worker else text).splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    causes = [line for line in lines if "Error: " in line or "Exception: " in line]
    reason = (causes or lines or ["Spark does not say why"])[-1]
    return without_package(reason.removeprefix("Caused by: "))

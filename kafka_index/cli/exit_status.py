"""The end of a run: exit code, one-line error, and machine-readable summary.

``--summary FILE`` writes one JSON object for every command. A command adds its counts to
`run_summary`. The entry point adds the rest, including exit code and error, and writes the object
when the run ends, even if it fails.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Self

import click

from kafka_index import __version__
from kafka_index.core.errors import (
    OPEN_FILES_HINT,
    ConfigError,
    InputError,
    KafkaIndexError,
    LinkedOutError,
    is_retriable,
    lacks_open_files,
)
from kafka_index.core.format.uri_passwords import hide_passwords

if TYPE_CHECKING:
    from kafka_index.core.fs.durable_files import AtomicFile
    from kafka_index.core.job.result import Result

#: Environment variable: if set, print the traceback of the error that ends a run, like --verbose.
TRACEBACK_VARIABLE = "KAFKA_INDEX_TRACEBACK"
# Libraries whose errors mean that Spark or the connection to it failed.
_CLUSTER_LIBRARIES = frozenset({"grpc", "py4j", "pyspark"})
STDOUT = "-"
# Metavars of options whose value is just a path, unlike TIME|FILE or KEYID=FILE.
_PLAIN_PATH_METAVAR = re.compile(r"(\w+_)?(PATH|FILE|DIR|URI)(\.\.\.)?")
# Libraries whose versions are in the summary, if they are loaded.
_LIBRARIES = ("numba", "pyarrow", "pyspark")


class ExitCode(IntEnum):
    """Exit codes in order of precedence."""

    INTERRUPTED = 130
    TERMINATED = 143
    NO_READER = 141
    INTERNAL = 70
    USAGE = 2
    ENVIRONMENT = 3
    DAMAGE = 1
    DONE = 0

    @classmethod
    def first(cls, *codes: ExitCode) -> ExitCode:
        """Return the code with the highest precedence."""
        return next(code for code in cls if code in codes)

    @classmethod
    def from_error(cls, error: BaseException) -> ExitCode:
        if isinstance(error, click.ClickException):
            return cls.USAGE
        if is_retriable(error):
            return cls.ENVIRONMENT
        if isinstance(error, LinkedOutError):
            return cls.DAMAGE
        if isinstance(error, KafkaIndexError):
            is_usage = isinstance(error, InputError | ConfigError)
            return cls.USAGE if is_usage else cls.DAMAGE
        if _is_environment_error(error):
            return cls.ENVIRONMENT
        return cls.INTERNAL


def _is_environment_error(error: BaseException) -> bool:
    """Return whether an error of another library is caused by the environment."""
    if isinstance(error, ModuleNotFoundError):
        # A missing dependency is an environment error; a missing module of this package is
        # internal.
        return (error.name or "").partition(".")[0] != "kafka_index"
    is_foreign = type(error).__module__.partition(".")[0] in _CLUSTER_LIBRARIES
    return is_foreign or (isinstance(error, OSError) and not isinstance(error, ValueError))


def format_error(error: BaseException, program: str) -> str:
    """Format an error as one line, without the passwords in quoted URIs."""
    return hide_passwords(_format_error(error, program))


def _format_error(error: BaseException, program: str) -> str:
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = program if context is None else context.command_path
        return f"{' '.join(error.format_message().split())} (see {path} --help)"
    if isinstance(error, KafkaIndexError):
        return str(error)
    if ExitCode.from_error(error) is ExitCode.ENVIRONMENT:
        return _format_environment_error(error)
    return _format_internal_error(error, program)


def _format_environment_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        location = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        hint = OPEN_FILES_HINT if lacks_open_files(error) else "fix the cause and run again"
        return f"{location}{error.strerror}; {hint}"
    if isinstance(error, MemoryError):
        return "out of memory; give the process more memory or use fewer --threads"
    if isinstance(error, ModuleNotFoundError):
        return (
            f"the Python package {error.name} is not installed; install the package and run again"
        )
    return f"{_format_first_line(error)}; check the cluster and run again"


def _format_internal_error(error: BaseException, program: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    location = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return (
        f"internal error in {program} {__version__}{location}: {_format_first_line(error)}; run "
        f"again with {TRACEBACK_VARIABLE}=1 (or --verbose), and report the bug with the command "
        "and the output"
    )


def _format_first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class RunSummary:
    """The summary of a run; a context manager around the run.

    Attributes
    ----------
    run_id : str
        16 hexadecimal digits, also in reports and in names of temporary files.
    error : str or None
        The error that ended the run.
    outcome : str or None
        A more specific outcome than the name of the exit code.
    """

    def __init__(self, command: str = "") -> None:
        self.command = command
        self.run_id = os.urandom(8).hex()
        self.error: str | None = None
        self.outcome: str | None = None
        self.conclusion: str | None = None
        self.next_command: str | None = None
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._missing_offsets: dict[str, object] = {"count": 0, "ranges": []}
        self._paths: dict[str, str | list[str]] = {}
        self._started_at = datetime.now(UTC)
        self._started = time.monotonic()
        self._file: AtomicFile | None = None
        self._to_stdout = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        global _current  # noqa: PLW0603, because a process runs one command at a time
        _current = self
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def started_ms(self) -> int:
        """Start of the run in ms since the epoch, used as the current time everywhere."""
        return int(self._started_at.timestamp() * 1000)

    def about(self) -> dict[str, str]:
        """Return facts about the run for HTML reports: version, run ID, start time, and paths."""
        paths = {
            name: value if isinstance(value, str) else "\n".join(value)
            for name, value in self._paths.items()
            if value
        }
        return {
            "kafka-index": __version__,
            "run id": self.run_id,
            "started": _format_time(self._started_at),
            **paths,
        }

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Increase counts, such as ``segments_built``."""
        self._counts.update(counts)

    def add_result(self, result: Result) -> None:
        self.add_counts(result.counts)
        self._bytes.update(result.sizes_bytes)
        self._missing_offsets = result.missing_offsets.as_object()
        self.conclusion = result.conclusion.text
        self.next_command = result.next_command

    def add_paths(self, context: click.Context) -> None:
        """Add the values of a command's path parameters, keyed by option name."""
        for parameter in context.command.params:
            value = context.params.get(parameter.name or "")
            name = option_name(parameter).lstrip("-")
            if not _PLAIN_PATH_METAVAR.fullmatch(parameter.metavar or ""):
                continue
            if isinstance(value, str):
                self._paths[name] = _absolute_path(value)
            elif isinstance(value, tuple) and all(isinstance(path, str) for path in value):
                self._paths[name] = [_absolute_path(path) for path in value]

    def open(self, path: str) -> None:
        """Open the summary file; ``-`` is stdout.

        If the summary goes to stdout, all other output goes to stderr. Raises `PublishError` if the
        file is not writable.
        """
        if path == STDOUT:
            self._to_stdout = True
            self._stack.enter_context(redirect_stdout(sys.stderr))
            return
        from kafka_index.core.fs.paths import absolute_path  # noqa: PLC0415, slow to import
        from kafka_index.core.fs.registry import atomic_file  # noqa: PLC0415, slow to import

        self._file = self._stack.enter_context(atomic_file(absolute_path(path), noun="summary"))

    def write(self, exit_code: int, outcome: str) -> None:
        """Write the summary if requested and not yet written.

        `outcome` is the name of the exit code, used unless the attribute `outcome` is set. Raises
        `OSError` or `PublishError` if writing fails.
        """
        file, to_stdout = self._file, self._to_stdout
        self._file, self._to_stdout = None, False
        if file is None and not to_stdout:
            self._stack.close()
            return
        line = json.dumps(self._as_object(exit_code, self.outcome or outcome)) + "\n"
        if file is not None:
            file.write(line.encode())
            file.commit()
        self._stack.close()
        if to_stdout:
            sys.stdout.write(line)
            sys.stdout.flush()

    def _as_object(self, exit_code: int, outcome: str) -> dict[str, object]:
        from importlib.metadata import version  # noqa: PLC0415, slow to import

        return {
            "command": self.command,
            "run_id": self.run_id,
            "outcome": outcome,
            "exit_code": exit_code,
            "conclusion": self.conclusion,
            "next_command": self.next_command,
            "error": self.error,
            "started_at": _format_time(self._started_at),
            "ended_at": _format_time(datetime.now(UTC)),
            "seconds": round(time.monotonic() - self._started, 3),
            "counts": self._counts,
            "bytes": self._bytes,
            "missing_offsets": self._missing_offsets,
            "paths": self._paths,
            "versions": {
                "kafka_index": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in _LIBRARIES if name in sys.modules},
            },
        }


_current = RunSummary()


def run_summary() -> RunSummary:
    """Return the summary of the running command."""
    return _current


def option_name(parameter: click.Parameter) -> str:
    """Return the first long name of an option, for messages and summaries."""
    return next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])


def _format_time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _absolute_path(path: str) -> str:
    return path if "://" in path or path == STDOUT else os.path.abspath(path)

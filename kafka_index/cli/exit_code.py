"""Exit codes, and the errors that end a run as one line each."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from enum import IntEnum

import click

from kafka_index import __version__
from kafka_index.errors import (
    OPEN_FILES_HINT,
    ConfigError,
    InputError,
    KafkaIndexError,
    LinkedOutError,
    is_retriable,
    lacks_open_files,
)
from kafka_index.layout.uri_passwords import hide_passwords

#: Set to anything: print the traceback of the error that ends a run, as --verbose does.
TRACEBACK_VARIABLE = "KAFKA_INDEX_TRACEBACK"
# Libraries whose own errors mean that Spark or the way to it failed.
_CLUSTER_LIBRARIES = frozenset({"grpc", "py4j", "pyspark"})


class ExitCode(IntEnum):
    """The codes, in the order of precedence: a run with several causes takes the first."""

    INTERRUPTED = 130
    TERMINATED = 143
    NO_READER = 141
    INTERNAL = 70
    USAGE = 2
    ENVIRONMENT = 3
    DAMAGE = 1
    DONE = 0

    @classmethod
    def first(cls, codes: Iterable[ExitCode]) -> ExitCode:
        """Return the code that takes precedence; DONE when there is none."""
        given = set(codes)
        return next((code for code in cls if code in given), cls.DONE)

    @classmethod
    def of_run(cls, error: BaseException) -> ExitCode:
        """Return the code of an error that ended a whole run."""
        if isinstance(error, click.ClickException):
            return cls.USAGE
        if is_retriable(error):
            return cls.ENVIRONMENT
        if isinstance(error, LinkedOutError):
            return cls.DAMAGE
        if isinstance(error, KafkaIndexError):
            is_usage = isinstance(error, InputError | ConfigError)
            return cls.USAGE if is_usage else cls.DAMAGE
        if _is_environment(error):
            return cls.ENVIRONMENT
        return cls.INTERNAL

    @classmethod
    def of_faults(cls, errors: Iterable[BaseException]) -> ExitCode:
        """Return the code of failures that left the rest of the run intact; DONE for none."""
        return cls.first(cls.ENVIRONMENT if is_retriable(each) else cls.DAMAGE for each in errors)


def _is_environment(error: BaseException) -> bool:
    """Return whether an error that is not of this package's tree comes from the environment."""
    if isinstance(error, ModuleNotFoundError):
        # A dependency is missing; a module of this package that is missing is an error of ours.
        return (error.name or "").partition(".")[0] != "kafka_index"
    is_foreign = type(error).__module__.partition(".")[0] in _CLUSTER_LIBRARIES
    return is_foreign or (isinstance(error, OSError) and not isinstance(error, ValueError))


def error_text(error: BaseException, program: str) -> str:
    """Return an error as one line, without passwords of URIs: a mistyped one is quoted."""
    return hide_passwords(_error_text(error, program))


def _error_text(error: BaseException, program: str) -> str:
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = program if context is None else context.command_path
        return f"{' '.join(error.format_message().split())} (see {path} --help)"
    if isinstance(error, KafkaIndexError):
        return str(error)
    if ExitCode.of_run(error) is ExitCode.ENVIRONMENT:
        return _environment_text(error)
    return _internal_text(error, program)


def _environment_text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        hint = OPEN_FILES_HINT if lacks_open_files(error) else "fix that and run again"
        return f"{place}{error.strerror}; {hint}"
    if isinstance(error, MemoryError):
        return "out of memory; give the process more memory or use fewer --threads"
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name} is not installed; install it and run again"
    return f"{_first_line(error)}; check the cluster and run again"


def _internal_text(error: BaseException, program: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return (
        f"internal error in {program} {__version__}{place}: {_first_line(error)}; this is a bug: "
        f"run again with {TRACEBACK_VARIABLE}=1 (or --verbose), and report the command and its "
        "output"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

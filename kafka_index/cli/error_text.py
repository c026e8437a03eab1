"""Errors that end a run, each as one line."""

from __future__ import annotations

import os
import traceback

import click

from kafka_index import __version__
from kafka_index.cli.exit_code import ExitCode
from kafka_index.errors import OPEN_FILES_HINT, KafkaIndexError, lacks_open_files
from kafka_index.layout.uri_passwords import hide_passwords

#: Set to anything: print the traceback of the error that ends a run, as --verbose does.
TRACEBACK_VARIABLE = "KAFKA_INDEX_TRACEBACK"


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

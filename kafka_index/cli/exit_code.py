"""Exit codes: what a command reports to the shell, and which one an error means."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import click

from kafka_index.errors import (
    ConfigError,
    InputError,
    KafkaIndexError,
    LinkedOutError,
    is_retriable,
)

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
    def of_part(cls, *, retriable: bool) -> ExitCode:
        """Return the code of a failure that left the rest of the run intact.

        `retriable`: the environment was at fault, not the data.
        """
        return cls.ENVIRONMENT if retriable else cls.DAMAGE


def _is_environment(error: BaseException) -> bool:
    """Return whether an error that is not of this package's tree comes from the environment."""
    if isinstance(error, ModuleNotFoundError):
        # A dependency is missing; a module of this package that is missing is an error of ours.
        return (error.name or "").partition(".")[0] != "kafka_index"
    is_foreign = type(error).__module__.partition(".")[0] in _CLUSTER_LIBRARIES
    return is_foreign or (isinstance(error, OSError) and not isinstance(error, ValueError))

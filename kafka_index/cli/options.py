"""Options that commands share: how they read, their checks, and what follows from them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from enum import Enum

import click

from kafka_index.config import INT32_MAX
from kafka_index.errors import InputError

# What Spark takes (SparkContext.createTaskScheduler, SparkSubmit), and a Connect server.
_COUNT = r"\s*(?:\*|[0-9]+)\s*"
_MASTER = re.compile(
    rf"local(?:\[{_COUNT}(?:,\s*[0-9]+\s*)?\])?|local-cluster\[[0-9, ]+\]|yarn"
    r"|(?:spark|k8s|sc)://.+"
)

Decorator = Callable[[Callable[..., int]], Callable[..., int]]


class Detail(Enum):
    """How much a command prints."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


def pattern(_context: click.Context, _option: click.Parameter, value: str | None) -> object:
    """Compile a regular expression, or refuse it with where it goes wrong."""
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error


def report_path(_context: click.Context, _option: click.Parameter, value: str | None) -> object:
    """Return the local path of a report, or refuse its ending."""
    if value is None:
        return None
    from kafka_index.storage.report_file import check_report_path  # noqa: PLC0415, slow to import

    try:
        return check_report_path(value)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def settings_options() -> list[Decorator]:
    """Return the options behind `LogConfig.load`: ``config_path``, ``index_interval_bytes``."""
    return [
        click.option(
            "--config",
            "config_path",
            metavar="FILE",
            help="Settings under Kafka's names, such as a broker's server.properties; "
            "topic.NAME.index.interval.bytes overrides one topic.",
        ),
        click.option(
            "--index-interval-bytes",
            type=click.IntRange(0, INT32_MAX),
            metavar="N",
            help="Bytes of log between two entries, over the settings file.  [default: 4096]",
        ),
    ]


def engine_options() -> list[Decorator]:
    """Return the options that choose an engine: ``engine``, ``master``, ``threads``."""
    return [
        click.option(
            "--engine",
            type=click.Choice(["local", "spark"]),
            default="local",
            show_default=True,
            help="Threads of this process, or Spark.",
        ),
        click.option("--master", metavar="URL", help="Spark's master, with --engine spark."),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            metavar="N",
            help="Threads of the local engine.  [default: one a core]",
        ),
    ]


def detail_options() -> list[Decorator]:
    """Return the options of how much to say: ``quiet``, ``verbose``."""
    return [
        click.option("--quiet", "-q", is_flag=True, help="Say nothing unless something is wrong."),
        click.option("--verbose", "-v", is_flag=True, help="Say more, also about errors."),
    ]


def check_engine(engine: str, master: str | None, threads: int | None) -> int:
    """Return the threads of the local engine.

    Raises
    ------
    click.UsageError
        An option is the other engine's.
    """
    if master is not None and engine != "spark":
        raise click.UsageError("--master goes with --engine spark")
    if master is not None and not _MASTER.fullmatch(master):
        raise click.UsageError(
            f"{master!r} is not a Spark master such as local[4], spark://host:7077, yarn, "
            "k8s://https://host or sc://host"
        )
    if threads is not None and engine != "local":
        raise click.UsageError("--threads goes with --engine local")
    return threads or os.cpu_count() or 1


def choose_detail(*, quiet: bool, verbose: bool) -> Detail:
    """Return how much to say.

    Raises
    ------
    click.UsageError
        Both flags are given.
    """
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    return Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.NORMAL


def decorate(function: Callable[..., int], options: Sequence[Decorator]) -> Callable[..., int]:
    """Give a function its options, in the order in which its help shows them."""
    for option in reversed(options):
        function = option(function)
    return function

"""Options that several commands share: logs, topics, times, settings, reports and engines.

Spark as an engine is chosen here, and imported when it starts.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_index.cli.completion import PATHS, complete_topics
from kafka_index.cli.options import (
    MORE_PATHS,
    Option,
    Whole,
    option,
    option_group,
)
from kafka_index.cli.terminal import print_log
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import (
    read_properties,
)
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.request import Group
from kafka_index.core.job.threads import ThreadEngine

if TYPE_CHECKING:
    from kafka_index.spark.workers import SparkWorkers

# What Spark takes (SparkContext.createTaskScheduler, SparkSubmit), and a Connect server.
_COUNT = r"\s*(?:\*|[0-9]+)\s*"
_MASTER = re.compile(
    rf"local(?:\[{_COUNT}(?:,\s*[0-9]+\s*)?\])?|local-cluster\[[0-9, ]+\]|yarn"
    r"|(?:spark|k8s|sc)://.+"
)


class Detail(Enum):
    """The amount of output of a command."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"

    @property
    def stdout(self) -> TextIO:
        """The stream for output other than damage; with --quiet it is discarded."""
        return _Discarded() if self is Detail.QUIET else sys.stdout


class _Discarded(io.StringIO):
    """A text stream that keeps nothing."""

    def write(self, text: str) -> int:
        """Discard a text."""
        return len(text)


# ------------------------------------------------------------------------------------ logs


def input_option(help_text: str, *names: str) -> Any:
    """Return the option of what is read, several paths each time; with other names of it."""
    return option_group(
        Option(
            ["--input", *names, PATHS],
            Group.INPUT,
            multiple=True,
            metavar="PATH...",
            help=help_text,
        ),
        click.Argument([MORE_PATHS], nargs=-1, metavar=""),
        make=lambda paths, _: paths,
    )


def topics_option() -> Any:
    """Return the option that restricts the topics, a pattern."""

    def compiled(value: str | None) -> re.Pattern[str] | None:
        try:
            return None if value is None else re.compile(value)
        except re.error as error:
            raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from error

    return option(
        "--topics",
        group=Group.SELECTION,
        parse=compiled,
        metavar="REGEX",
        shell_complete=complete_topics,
        help="Only topics that match in full.",
    )


# ------------------------------------------------------------------- settings and reports


def config_option(help_text: str) -> Any:
    """Return the option of a file of settings, by its path."""
    return option_group(_config(help_text), make=lambda path: path)


def _config(help_text: str) -> click.Option:
    return Option(
        ["--config", "config_path"],
        Group.SETTINGS,
        metavar="FILE",
        parse=_warn_of_unknown_settings,
        help=help_text,
    )


def _warn_of_unknown_settings(path: str | None) -> str | None:
    """Warn of properties in a settings file that are not settings of a broker; return its path."""
    if path is not None:
        from kafka_index.core.format.broker_settings import unknown_settings  # noqa: PLC0415, of --config alone

        for name, other in unknown_settings(read_properties(path)).items():
            hint = f"; is it {other}?" if other else ""
            print_log(f"warning: {path}: {name} is not a setting, and has no effect{hint}")
    return path


def report_option(rows: str, *, has_page: bool = False) -> Any:
    """Return the option for a report of these rows, named in the help: a path or URI.

    `has_page`: it can be a page of HTML.
    """
    return option_group(report_parameter(rows, has_page=has_page), make=lambda path: path)


def report_parameter(rows: str, *, has_page: bool) -> click.Option:
    """Return ``--report``, whose value is checked before any work is done."""
    endings = ".parquet, .json (JSON lines)" + (", .csv or .html" if has_page else " or .csv")

    def checked(value: str | None) -> str | None:
        if value is None:
            return None
        from kafka_index.core.output.report_file import PAGE_SUFFIX, check_report_path  # noqa: PLC0415, slow to import

        try:
            path = check_report_path(value, has_page=has_page)
            if path.lower().endswith(PAGE_SUFFIX):
                from kafka_index.cli.html.page import bokeh_folder  # noqa: PLC0415

                bokeh_folder(path)
        except InputError as error:
            raise click.BadParameter(str(error)) from error
        return path

    return Option(
        ["--report"],
        Group.OUTPUT,
        parse=checked,
        metavar="FILE",
        help=f"Write {rows} to FILE: {endings}.",
    )


# --------------------------------------------------------------------- engines and output


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Spark, on a master, or that of ``spark-submit``, else this machine's cores."""

    master: str | None = None
    on_spark = True

    @contextmanager
    def start(
        self,
        command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,
        works: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> Iterator[SparkWorkers]:
        """Start a session, check what executors have, and return its workers.

        Parameters are those of `kafka_index.core.job.Engine.start`.
        """
        from kafka_index.spark.session import open_session  # noqa: PLC0415, PySpark

        name = f"kafka-index {command}"
        with open_session(self.master, name, after_failure=after_failure) as session:
            from kafka_index.spark.workers import session_workers  # noqa: PLC0415, PySpark

            with session_workers(
                session, listener=listener, works=works, inputs=inputs, outputs=outputs
            ) as workers:
                yield workers


def engine_parameters() -> list[click.Parameter]:
    """Return the options of the engine: ``--engine``, ``--master`` and ``--threads``."""
    return [
        Option(
            ["--engine"],
            Group.ENGINE,
            type=click.Choice(["local", "spark"]),
            default="local",
            help="Run in threads of this process, or on Spark.",
        ),
        Option(
            ["--master"], Group.ENGINE, metavar="URL", help="Spark master, with --engine spark."
        ),
        Option(
            ["--threads"],
            Group.ENGINE,
            type=Whole(min=1),
            metavar="N",
            help="Threads of the local engine.  [default: one per core, two for remote inputs]",
        ),
    ]


def engine_of(name: str, master: str | None, threads: int | None) -> Engine:
    """Return the engine; refuse options of the other one, and a malformed master."""
    if master is not None and name != "spark":
        raise click.UsageError("--master requires --engine spark")
    if master is not None and not _MASTER.fullmatch(master):
        raise click.UsageError(
            f"{master!r} is not a Spark master such as local[4], spark://host:7077, yarn, "
            "k8s://https://host or sc://host"
        )
    if threads is not None and name != "local":
        raise click.UsageError("--threads requires --engine local")
    return SparkEngine(master) if name == "spark" else ThreadEngine(threads)


def detail_options() -> Any:
    """Return the options of how much is printed, a `Detail`."""
    return option_group(*verbosity_parameters(), make=verbosity_of)


def verbosity_parameters() -> list[click.Parameter]:
    """Return ``--quiet`` and ``--verbose``."""
    return [
        Option(["--quiet", "-q"], Group.OUTPUT, is_flag=True, help="Print only damage and errors."),
        Option(
            ["--verbose", "-v"], Group.OUTPUT, is_flag=True, help="Print details and tracebacks."
        ),
    ]


def verbosity_of(quiet: bool, verbose: bool) -> Detail:  # noqa: FBT001, because they are flags
    """Return how much is printed; both options together are refused."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose are mutually exclusive")
    return Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.NORMAL

"""Options of every command: reports, engines and verbosity.

The Spark engine is selected here and imported when it starts.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TextIO

import click

from kafka_index.cli.options import (
    Option,
    Whole,
)
from kafka_index.core.errors import InputError
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.request import Group
from kafka_index.core.job.threads import ThreadEngine

if TYPE_CHECKING:
    from kafka_index.spark.workers import SparkWorkers

# Masters accepted by Spark (SparkContext.createTaskScheduler, SparkSubmit), and Connect servers.
_COUNT = r"\s*(?:\*|[0-9]+)\s*"
_MASTER = re.compile(
    rf"local(?:\[{_COUNT}(?:,\s*[0-9]+\s*)?\])?|local-cluster\[[0-9, ]+\]|yarn"
    r"|(?:spark|k8s|sc)://.+"
)


class Detail(Enum):
    """The verbosity of a command."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"

    @property
    def stdout(self) -> TextIO:
        """The stream for output other than problems; with --quiet it is discarded."""
        return _Discarded() if self is Detail.QUIET else sys.stdout


class _Discarded(io.StringIO):
    """A text stream that discards everything."""

    def write(self, text: str) -> int:
        return len(text)


def report_parameter(rows: str, *, has_page: bool) -> click.Option:
    """Return ``--report``, whose value is validated before the run starts."""
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


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Spark, on the given master, that of ``spark-submit``, or the local cores."""

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
        """Start a session, check the executors, and return its workers.

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
    """Return the options ``--engine``, ``--master`` and ``--threads``."""
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
    """Return the engine; reject options of the other engine, and a malformed master."""
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


def verbosity_parameters() -> list[click.Parameter]:
    return [
        Option(["--quiet", "-q"], Group.OUTPUT, is_flag=True, help="Print only damage and errors."),
        Option(
            ["--verbose", "-v"], Group.OUTPUT, is_flag=True, help="Print details and tracebacks."
        ),
    ]


def verbosity_of(quiet: bool, verbose: bool) -> Detail:  # noqa: FBT001, because they are flags
    """Return the verbosity; reject both options together."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose are mutually exclusive")
    return Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.NORMAL

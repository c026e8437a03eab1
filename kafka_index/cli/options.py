"""Options that several commands share, and their checks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.compilation import announce_compilation
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.numbers import Whole
from kafka_index.cli.run_summary import run_summary, summary_option
from kafka_index.cli.spark_engine import SparkEngine
from kafka_index.cli.terminal import print_error, print_log
from kafka_index.cli.text import plural
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, read_properties
from kafka_index.errors import ConfigError, InputError
from kafka_index.execution import Engine, ThreadEngine
from kafka_index.layout.integers import INT32_MAX
from kafka_index.layout.uri_passwords import refuse_passwords

if TYPE_CHECKING:
    from kafka_index.stores.inputs import LinkedFile

# What Spark takes (SparkContext.createTaskScheduler, SparkSubmit), and a Connect server.
_COUNT = r"\s*(?:\*|[0-9]+)\s*"
_MASTER = re.compile(
    rf"local(?:\[{_COUNT}(?:,\s*[0-9]+\s*)?\])?|local-cluster\[[0-9, ]+\]|yarn"
    r"|(?:spark|k8s|sc)://.+"
)

# Also of a value that has more than a place, such as TIME|FILE or KEYID=PEM.
_PLACES = re.compile(r"PATH|FILE|DIR|URI|PEM|PREFIX|KEY=VALUE")

_FOLLOW_LINKS = "--follow-links"

Decorator = Callable[[Callable[..., int]], Callable[..., int]]


class Detail(Enum):
    """The amount of output of a command."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class Command(click.Command):
    """A command that records its run, and refuses an option of one value that is given twice."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; click itself would keep the last of several values."""
        try:
            values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        except click.UsageError as error:
            # No callback has run, and the summary of an earlier run would stand for this one.
            _open_summary(args)
            if isinstance(error, click.BadOptionUsage):
                # click does not say of which command the option is that lacks its value.
                raise click.BadOptionUsage(error.option_name, error.message, ctx) from error
            raise
        _refuse_passwords(ctx, values)
        counts = Counter(id(parameter) for parameter in given)
        for parameter in given:
            if not isinstance(parameter, click.Option):
                continue
            takes_one = not (parameter.multiple or parameter.is_flag)
            if takes_one and counts[id(parameter)] > 1 and not ctx.resilient_parsing:
                name = max(parameter.opts, key=len)
                raise click.UsageError(f"{name} is given more than once, and takes one value", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        summary = run_summary()
        summary.command = self.name or ""
        summary.add_paths(ctx)
        if not kept(ctx, "quiet"):
            announce_compilation()
        from kafka_index.stores.inputs import (  # noqa: PLC0415, slow to import
            forget_inputs,
            reading_inputs,
        )

        # Commands without the option follow links, as a broker does.
        has_option = any(_FOLLOW_LINKS in option.opts for option in self.params)
        forget_inputs()
        code = ExitCode.DONE
        try:
            with reading_inputs(follow_links=not has_option or bool(kept(ctx, "follow_links"))):
                code = ExitCode(int(super().invoke(ctx) or 0))
        finally:
            code = add_refused_links(code)
        return code


def _open_summary(args: Sequence[str]) -> None:
    """Open the summary of a command whose options cannot be parsed."""
    for option, value in pairwise((*args, "")):
        name, separator, joined = option.partition("=")
        if name == "--summary" and (joined or value):
            run_summary().open(joined if separator else value)
            return


def _refuse_passwords(context: click.Context, values: Mapping[str, Any]) -> None:
    """Refuse a URI with a password in any option that takes a place, before any is opened."""
    for parameter in context.command.params:
        given = values.get(parameter.name or "")
        if not _PLACES.search(parameter.metavar or "") and parameter.nargs != -1:
            continue
        try:
            refuse_passwords(given if isinstance(given, tuple | list) else [given])
        except InputError as error:
            name = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else "PATH"
            raise click.UsageError(f"{name}: {error}", context) from None


def add_refused_links(code: int) -> ExitCode:
    """Print the links that were not followed, once; return the exit code of a run with them."""
    from kafka_index.stores.inputs import drain_refused_links  # noqa: PLC0415, slow to import

    links = drain_refused_links()
    if not links:
        return ExitCode(code)
    run_summary().add_count("links_not_followed", len(links))
    broken = [each for each in links if each.is_broken]
    out = [each for each in links if not each.is_broken]
    if broken:
        print_error(f"not read, as links lead to nothing: {_first_of(broken)}")
    if out:
        print_error(
            f"not read, as links lead out of the input: {_first_of(out)}; "
            "--follow-links reads what they lead to"
        )
    return ExitCode.first([ExitCode(code), ExitCode.DAMAGE])


def _first_of(links: Sequence[LinkedFile]) -> str:
    more = f" and {plural(len(links) - 1, 'other')}" if len(links) > 1 else ""
    return f"{links[0].path} -> {links[0].target}{more}"


def command(
    function: Callable[..., int],
    options: Sequence[Decorator],
    *,
    help_text: str,
    usage: str,
    has_links: bool = True,
) -> click.Command:
    """Return a command named after its function; its help shows the options in this order.

    Every command has ``--storage-option`` and ``--summary``, and every one that reads dumps
    ``--follow-links``, which the function does not see.
    """
    given = [links_option()] if has_links else []
    for option in reversed([*options, *given, storage_option(), summary_option()]):
        function = option(function)
    return click.command(
        name=function.__name__,
        cls=Command,
        help=help_text,
        context_settings={"help_option_names": ["-h", "--help"]},
        options_metavar=usage,
    )(function)


def refuse_job(name: str, *, as_job: bool) -> None:
    """Refuse to make a command that does not run on Spark a job of ``spark-submit``."""
    if as_job:
        raise ValueError(f"{name} does not run as a job")


def keep(context: click.Context, option: click.Parameter, value: object) -> None:
    """Keep the value of an option for the callback of another one: `kept`.

    It is the callback of an option that is eager and does not expose its value.
    """
    context.meta[f"{__name__}.{option.name}"] = value


def kept(context: click.Context, name: str) -> Any:
    """Return the value of an option that `keep` kept; None if the command does not have it."""
    return context.meta.get(f"{__name__}.{name}")


def paths_options(flag: str, name: str, help_text: str) -> list[Decorator]:
    """Return an option that names several paths, each time it is given: `name`."""

    def with_more(
        context: click.Context, _option: click.Parameter, value: tuple[str, ...]
    ) -> tuple[str, ...]:
        return (*value, *kept(context, "more_paths"))

    return [
        click.option(
            flag, name, multiple=True, callback=with_more, metavar="PATH...", help=help_text
        ),
        click.argument(
            "more_paths", nargs=-1, metavar="", is_eager=True, expose_value=False, callback=keep
        ),
    ]


def topics_option() -> Decorator:
    """Return the option that restricts the topics: ``topics``, a pattern."""

    def compiled(
        _context: click.Context, _option: click.Parameter, value: str | None
    ) -> re.Pattern[str] | None:
        try:
            return None if value is None else re.compile(value)
        except re.error as error:
            raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from error

    return click.option(
        "--topics", callback=compiled, metavar="REGEX", help="Only topics that match in full."
    )


def report_option(rows: str, *, has_page: bool = False) -> Decorator:
    """Return the option for a report of these rows, named in the help: ``report``, a path or URI.

    `has_page`: it can be a page of HTML.
    """
    endings = ".parquet, .json (JSON lines)" + (", .csv or .html" if has_page else " or .csv")

    def checked(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return None
        from kafka_index.storage.report_file import (  # noqa: PLC0415, slow to import
            PAGE_SUFFIX,
            check_report_path,
        )

        try:
            path = check_report_path(value, has_page=has_page)
            if path.lower().endswith(PAGE_SUFFIX):
                from kafka_index.pages.libraries import bokeh_folder  # noqa: PLC0415

                bokeh_folder(path)
        except InputError as error:
            raise click.BadParameter(str(error)) from error
        return path

    return click.option(
        "--report",
        callback=checked,
        metavar="FILE",
        help=f"Write {rows} to FILE: {endings}.",
    )


def storage_option() -> Decorator:
    """Return the option that configures the stores of this process, and passes no value on."""

    def configured(
        context: click.Context, _option: click.Parameter, value: tuple[str, ...]
    ) -> None:
        if context.resilient_parsing:
            # A shell asks for completions.
            return
        from kafka_index.stores import (  # noqa: PLC0415, slow to import
            configure_stores,
            parse_storage_options,
        )

        try:
            configure_stores(parse_storage_options(value))
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error

    return click.option(
        "--storage-option",
        multiple=True,
        callback=configured,
        expose_value=False,
        metavar="KEY=VALUE",
        help="An option of the stores of URIs, such as region=eu-west-1; a secret as KEY=@FILE, "
        "which each process reads for itself. May be repeated.",
    )


def links_option() -> Decorator:
    """Return the option that has links followed out of the input, and passes no value on."""
    return click.option(
        _FOLLOW_LINKS,
        is_flag=True,
        is_eager=True,
        callback=keep,
        expose_value=False,
        help="Read index files, checkpoints and snapshots also where links lead out of the input. "
        "Links to directories and logs are followed in any case.",
    )


def warn_of_unknown_settings(
    _context: click.Context, _option: click.Parameter, path: str | None
) -> str | None:
    """Warn of properties in a settings file that are not settings of a broker; return its path."""
    if path is not None:
        from kafka_index.layout.broker_settings import unknown_settings  # noqa: PLC0415, of --config alone

        for name, other in unknown_settings(read_properties(path)).items():
            hint = f"; is it {other}?" if other else ""
            print_log(f"warning: {path}: {name} is not a setting, and has no effect{hint}")
    return path


def settings_options() -> list[Decorator]:
    """Return the options for `LogConfig.load`: ``config_path``, ``index_interval_bytes``."""
    return [
        click.option(
            "--config",
            "config_path",
            metavar="FILE",
            callback=warn_of_unknown_settings,
            help="Kafka settings, such as a broker's server.properties; "
            "topic.NAME.index.interval.bytes overrides one topic.",
        ),
        click.option(
            "--index-interval-bytes",
            type=Whole(0, INT32_MAX),
            metavar="N",
            help="Bytes of log between two index entries; overrides --config.  [default: 4096]",
        ),
    ]


def max_decompressed_option() -> Decorator:
    """Return the option that bounds decompressed records: ``max_decompressed_bytes``."""
    return click.option(
        "--max-decompressed-bytes",
        type=Whole(min=1),
        metavar="N",
        help="The most bytes of decompressed records that a process holds at a time; a batch that "
        f"needs more is too_large.  [default: {DEFAULT_MAX_DECOMPRESSED_BYTES}]",
    )


#: The engine of a job: that of ``spark-submit``.
SUBMITTED: Engine = SparkEngine()


def run_options(*, as_job: bool) -> list[Decorator]:
    """Return the options of what runs the work and how much is printed: ``engine``, ``detail``.

    A job has no ``engine``; it runs on that of ``spark-submit``, `SUBMITTED`.
    """
    return [*([] if as_job else _engine_options()), *_detail_options()]


def _engine_options() -> list[Decorator]:
    return [
        click.option(
            "--engine",
            type=click.Choice(["local", "spark"]),
            default="local",
            show_default=True,
            callback=_engine,
            help="Run in threads of this process, or on Spark.",
        ),
        click.option(
            "--master",
            is_eager=True,
            expose_value=False,
            callback=keep,
            metavar="URL",
            help="Spark master, with --engine spark.",
        ),
        click.option(
            "--threads",
            type=Whole(min=1),
            is_eager=True,
            expose_value=False,
            callback=keep,
            metavar="N",
            help="Threads of the local engine.  [default: one per core]",
        ),
    ]


def _engine(context: click.Context, _option: click.Parameter, name: str) -> Engine:
    """Return the engine; refuse options of the other one, and a malformed master."""
    master, threads = kept(context, "master"), kept(context, "threads")
    if master is not None and name != "spark":
        raise click.UsageError("--master requires --engine spark")
    if master is not None and not _MASTER.fullmatch(master):
        raise click.UsageError(
            f"{master!r} is not a Spark master such as local[4], spark://host:7077, yarn, "
            "k8s://https://host or sc://host"
        )
    if threads is not None and name != "local":
        raise click.UsageError("--threads requires --engine local")
    return SparkEngine(master) if name == "spark" else ThreadEngine(threads or os.cpu_count() or 1)


def _detail_options() -> list[Decorator]:
    return [
        click.option(
            "--quiet",
            "-q",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=keep,
            help="Print only damage and errors.",
        ),
        click.option(
            "--verbose",
            "-v",
            "detail",
            is_flag=True,
            callback=_detail,
            help="Print details and tracebacks.",
        ),
    ]


def _detail(context: click.Context, _option: click.Parameter, value: bool) -> Detail:  # noqa: FBT001, because click passes it so
    """Return how much to print; refuse both flags at once."""
    if value and kept(context, "quiet"):
        raise click.UsageError("--quiet and --verbose are mutually exclusive")
    return Detail.QUIET if kept(context, "quiet") else Detail.VERBOSE if value else Detail.NORMAL

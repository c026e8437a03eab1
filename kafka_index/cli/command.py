"""Commands made from requests: their options, engines, runs and reports."""

from __future__ import annotations

import contextlib
import glob
import inspect
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass
from functools import partial
from itertools import pairwise
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.exit_status import ExitCode, option_name, run_summary
from kafka_index.cli.terminal import Verbosity, announce_compilation, print_error, print_log
from kafka_index.core.errors import ConfigError, InputError, help_page, plural
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.job.engine import Engine, Listener, ThreadEngine
from kafka_index.core.job.request import (
    ArgumentError,
    CommandSpec,
    Group,
    IntegerKind,
    OptionSpec,
    Parameter,
    Request,
    function_at,
    naming,
    parameters,
)
from kafka_index.core.parameters import KafkaSettings

if TYPE_CHECKING:
    from kafka_index.cli.print_result import ProgressListener
    from kafka_index.core.format.names import TopicPartition
    from kafka_index.core.fs.inputs import Skipped
    from kafka_index.core.job.result import ReportSpec, Result
    from kafka_index.spark.workers import SparkWorkers

#: The option that accepts several paths per use.
PATHS = "inputs"
#: The argument that takes further paths of an option with several values.
MORE_PATHS = "more_paths"
# Includes values that are not just a path, such as TIME|FILE or KEYID=PEM.
_PLACES = re.compile(r"PATH|FILE|DIR|URI|PEM|PREFIX|KEY=VALUE")
# Longer option names get their own line in the help.
_NAMES_WIDTH = 30


class Option(click.Option):
    """An option with a group and a visible default; `parse` converts its value, including None."""

    def __init__(
        self,
        names: Sequence[str],
        group: Group,
        parse: Callable[[Any], object] | None = None,
        **attributes: Any,
    ) -> None:
        if parse is not None:
            attributes["callback"] = lambda _context, _option, value: parse(value)
        super().__init__(names, show_default="default" in attributes, **attributes)
        self.group = group


class Command(click.Command):
    """A command with a run summary, which rejects repeated options with a single value."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, with all help texts aligned."""
        groups: dict[Group, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                # click's own option is --help.
                group = parameter.group if isinstance(parameter, Option) else Group.HELP
                groups.setdefault(group, []).append(record)
        short = (len(names) for rows in groups.values() for names, _ in rows)
        width = max((each for each in short if each <= _NAMES_WIDTH), default=0)
        for group in filter(groups.__contains__, Group):
            with formatter.section(group.value):
                formatter.write_dl(
                    [(names.ljust(width), text) for names, text in groups[group]], width
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; click would silently use the last of repeated values."""
        try:
            values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        except click.UsageError as error:
            # No callback has run, so `_summary` would still belong to an earlier run.
            _open_summary(args)
            if isinstance(error, click.BadOptionUsage):
                # click does not set the command of the option that lacks its value.
                raise click.BadOptionUsage(error.option_name, error.message, ctx) from error
            raise
        if not ctx.resilient_parsing:
            _refuse_passwords(ctx, values)
        counts = Counter(id(parameter) for parameter in given)
        for parameter in given:
            if not isinstance(parameter, click.Option):
                continue
            takes_one = not (parameter.multiple or parameter.is_flag)
            if takes_one and counts[id(parameter)] > 1 and not ctx.resilient_parsing:
                name = option_name(parameter)
                raise click.UsageError(f"{name} is given more than once, and takes one value", ctx)
        rest = super().parse_args(ctx, args)
        if more := ctx.params.pop(MORE_PATHS, None):
            ctx.params[PATHS] = (*ctx.params[PATHS], *more)
        return rest

    def invoke(self, ctx: click.Context) -> object:
        summary = run_summary()
        summary.command = self.name or ""
        summary.add_paths(ctx)
        if not ctx.params.get("quiet"):
            announce_compilation()
        from kafka_index.core.fs.inputs import forget_inputs, reading_inputs  # noqa: PLC0415, slow to import

        forget_inputs()
        code = ExitCode.DONE
        try:
            # Commands without this option follow links, as a broker does.
            with reading_inputs(follow_links=ctx.params.get("follow_links", True)):
                code = ExitCode(int(super().invoke(ctx) or 0))
        finally:
            code = add_unread(code)
        return code


def _open_summary(args: Sequence[str]) -> None:
    """Open the summary of a command whose options cannot be parsed."""
    for name_or_pair, value in pairwise((*args, "")):
        name, separator, joined = name_or_pair.partition("=")
        if name == "--summary" and (joined or value):
            run_summary().open(joined if separator else value)
            return


def _refuse_passwords(context: click.Context, values: Mapping[str, Any]) -> None:
    """Reject URIs with passwords in all path options before any is opened."""
    for parameter in _places(context.command):
        given = values.get(parameter.name or "")
        try:
            refuse_passwords(given if isinstance(given, tuple | list) else [given])
        except InputError as error:
            name = option_name(parameter) if isinstance(parameter, click.Option) else "PATH"
            raise click.UsageError(f"{name}: {error}", context) from None


def _places(command: click.Command) -> list[click.Parameter]:
    return [
        each for each in command.params if _PLACES.search(each.metavar or "") or each.nargs == -1
    ]


def count_unread() -> list[Skipped]:
    """Add unread files to the summary, once; return them."""
    from kafka_index.core.fs.inputs import UNREAD_COUNTS, drain_unread  # noqa: PLC0415, slow to import

    files = drain_unread()
    run_summary().add_counts(Counter(UNREAD_COUNTS[file.reason] for file in files))
    return files


def add_unread(code: int) -> ExitCode:
    """Print unread files that no result has reported; return the exit code including them."""
    from kafka_index.core.fs.inputs import (  # noqa: PLC0415, slow to import
        BAD_CHECKPOINT,
        BROKEN_LINK,
        LINKED_OUT,
        NOT_A_FILE,
    )

    files = count_unread()
    if not files:
        return ExitCode(code)
    for reason, text, hint in (
        (NOT_A_FILE, "not read because they are not regular files: ", ""),
        (BROKEN_LINK, "not read because they are links without a target: ", ""),
        (BAD_CHECKPOINT, "checkpoints that a broker cannot read: ", ""),
        (
            LINKED_OUT,
            "not read because they are links that point outside the input: ",
            "; --follow-links reads their targets",
        ),
    ):
        found = [each for each in files if each.reason == reason]
        if found:
            print_error(f"{text}{_first_of(found)}{hint}")
    return ExitCode.first([ExitCode(code), ExitCode.DAMAGE])


def _first_of(files: Sequence[Skipped]) -> str:
    more = f" and {plural(len(files) - 1, 'other')}" if len(files) > 1 else ""
    return f"{files[0].shown}{more}"


# Masters accepted by Spark (SparkContext.createTaskScheduler, SparkSubmit), and Connect servers.
_COUNT = r"\s*(?:\*|[0-9]+)\s*"
_MASTER = re.compile(
    rf"local(?:\[{_COUNT}(?:,\s*[0-9]+\s*)?\])?|local-cluster\[[0-9, ]+\]|yarn"
    r"|(?:spark|k8s|sc)://.+"
)


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
    """Spark, on the given master, the master of ``spark-submit``, or the local cores."""

    master: str | None = None
    on_spark = True
    threads = None

    @contextmanager
    def start(
        self,
        command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,
        tasks: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> Iterator[SparkWorkers]:
        """Start a session, check the executors, and return its workers.

        The parameters are documented in `kafka_index.core.job.Engine.start`.
        """
        from kafka_index.spark.session import open_session  # noqa: PLC0415, PySpark

        name = f"kafka-index {command}"
        with open_session(self.master, name, after_failure=after_failure) as session:
            from kafka_index.spark.workers import session_workers  # noqa: PLC0415, PySpark

            with session_workers(
                session, listener=listener, tasks=tasks, inputs=inputs, outputs=outputs
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
            metavar="N",
            help="Threads of the local engine, at least 1.  [default: one per core, two for remote "
            "inputs]",
        ),
    ]


def engine_of(name: str, master: str | None, threads: str | None) -> Engine:
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
    if name == "spark":
        return SparkEngine(master)
    return ThreadEngine(
        None if threads is None else IntegerKind(1).convert(threads, "--threads", 0)
    )


def verbosity_parameters() -> list[click.Parameter]:
    return [
        Option(["--quiet", "-q"], Group.OUTPUT, is_flag=True, help="Print only damage and errors."),
        Option(
            ["--verbose", "-v"], Group.OUTPUT, is_flag=True, help="Print details and tracebacks."
        ),
    ]


def verbosity_of(quiet: bool, verbose: bool) -> Verbosity:  # noqa: FBT001, because they are flags
    """Return the verbosity; reject both options together."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose are mutually exclusive")
    return Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


def storage_option() -> click.Option:
    """Return the option that configures the stores of this process."""

    def configured(
        context: click.Context, _option: click.Parameter, value: tuple[str, ...]
    ) -> None:
        if context.resilient_parsing:
            # The shell requests completions.
            return
        from kafka_index.core.fs.registry import configure_stores  # noqa: PLC0415, slow to import
        from kafka_index.core.fs.store import parse_storage_options  # noqa: PLC0415, slow to import

        try:
            configure_stores(parse_storage_options(value))
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error

    return Option(
        ["--storage-option"],
        Group.STORAGE,
        multiple=True,
        callback=configured,
        expose_value=False,
        metavar="KEY=VALUE",
        help="Option of the object store, such as region=eu-west-1. KEY=@FILE reads a secret from "
        "a file, in each process. May be repeated.",
    )


def summary_option() -> click.Option:
    def opened(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None and not context.resilient_parsing:
            try:
                run_summary().open(value)
            except InputError as error:
                raise click.BadParameter(str(error)) from error

    return Option(
        ["--summary"],
        Group.OUTPUT,
        metavar="FILE",
        # Eager, so that --summary also reports errors in other options.
        is_eager=True,
        expose_value=False,
        callback=opened,
        help="Write a summary to FILE, or to stdout (-), as one JSON object: counts, bytes, "
        "seconds, paths, run ID and versions.",
    )


#: Maximum completion time, since a folder may be on a network.
WAIT_SECONDS = 1.0
# Prefixes of metavars that are paths; further paths of an option have no metavar.
_PATH_NAMES = ("PATH", "FILE", "DIR", "URI")


def complete_paths(command: click.Command) -> None:
    """Enable completion for a command's options and arguments that are paths."""
    for parameter in command.params:
        is_plain = isinstance(parameter.type, click.types.StringParamType)
        names_path = (parameter.metavar or "").startswith(_PATH_NAMES)
        if is_plain and (names_path or parameter.metavar == ""):
            parameter.type = click.Path()


def complete_topic(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the topics below the local folders that precede on the command line."""
    # Parsing stops at the option without a value; further paths are in context.args.
    names = _topics_below([*(context.params.get(PATHS) or ()), *context.args])
    return [name for name in names if name.startswith(incomplete)]


def complete_topics(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Complete the last alternative of a topic pattern."""
    before, bar, last = incomplete.rpartition("|")
    return [f"{before}{bar}{name}" for name in complete_topic(context, parameter, last)]


def _topics_below(paths: Sequence[str]) -> list[str]:
    """Return topics of partition directories, and of partition directories in data directories.

    Returns the names found so far when the time limit is reached.
    """
    from kafka_index.core.format.names import parse_partition_directory  # noqa: PLC0415, slow to import

    found: set[str] = set()
    folders = [os.path.expanduser(path) for path in paths if "://" not in path]
    reader = threading.Thread(
        target=_collect_topics, args=[folders, parse_partition_directory, found], daemon=True
    )
    reader.start()
    reader.join(WAIT_SECONDS)
    return sorted(found.copy())


def _collect_topics(
    folders: Sequence[str], parse: Callable[[str], TopicPartition | None], found: set[str]
) -> None:
    for folder in folders:
        for path in glob.iglob(folder) if glob.has_magic(folder) else [folder]:
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                is_data_directory = False
                for partition in map(parse, (each.name for each in entries)):
                    if partition is not None:
                        is_data_directory = True
                        found.add(partition.topic)
                # The name of a data directory may look like the name of a partition.
                own = parse(os.path.basename(os.path.abspath(path)))
                if own is not None and not is_data_directory:
                    found.add(own.topic)


_COMPLETIONS = {"topics": complete_topics, "topic": complete_topic}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run that are not fields of its request."""

    engine: Engine
    verbosity: Verbosity
    report: str | None = None
    as_json: bool = False


#: Runs a request; by default `run_request`.
Runner = Callable[[CommandSpec, Any, RunOptions], int]


def make_command(spec: CommandSpec, *, as_job: bool, run: Runner | None = None) -> click.Command:
    """Create the click command; as a job it always runs on Spark.

    Its help refers to the documentation page.
    """
    if as_job and spec.job_examples is None:
        raise ValueError(f"{spec.name} does not run as a job")
    fields = parameters(spec.request)
    click_names: dict[str, list[str]] = {}
    shown: list[click.Parameter] = []
    for field, one in fields.items():
        own = list(_click_parameters(field, one))
        click_names[field] = [each.name or "" for each in own if each.name != MORE_PATHS]
        shown += own
    # An argument with several values takes all remaining values, so it comes last.
    shown.sort(key=lambda each: not isinstance(each, _Argument))
    has_engine = spec.has_engine and not as_job
    shown += engine_parameters() if has_engine else []
    shown += [report_parameter(spec.report_rows, has_page=spec.has_page)] if spec.report else []
    if spec.has_json:
        shown.append(Option(["--json"], Group.OUTPUT, is_flag=True, help=spec.json_help))
    shown += [*verbosity_parameters(), storage_option(), summary_option()]

    def run_with_options(**values: Any) -> int:
        options = RunOptions(
            engine_of(*(values.pop(name) for name in ("engine", "master", "threads")))
            if has_engine
            else SparkEngine()
            if as_job
            else engine_of("local", None, None),
            verbosity_of(values.pop("quiet"), values.pop("verbose")),
            values.pop("report", None),
            bool(values.pop("json", False)),
        )
        request = _build(spec.request, fields, click_names, values)
        try:
            return (run or run_request)(spec, request, options)
        except ArgumentError as error:
            # For example an option that does not apply to the files.
            error.name_fields(partial(_name_of, fields))
            raise click.UsageError(str(error)) from error

    examples = inspect.cleandoc(
        spec.job_examples if as_job and spec.job_examples else spec.examples
    )
    return Command(
        spec.name,
        {"help_option_names": ["-h", "--help"]},
        run_with_options,
        shown,
        help=f"{inspect.cleandoc(spec.help)}\n\n\b\nExamples:\n{indent(examples, '  ')}",
        epilog=f"Documentation: {help_page(spec.page or spec.name)}",
        options_metavar=spec.usage,
    )


class _Argument(click.Argument):
    """An argument whose position in the usage line is part of the command's usage text."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, as click passes it
        return []


def _click_parameters(field: str, one: Parameter) -> Iterable[click.Parameter]:
    if one.is_argument:
        yield _Argument(
            [field],
            nargs=-1 if one.kind.is_multiple else 1,
            required=one.default is MISSING,
            metavar=one.metavar or one.kind.metavar,
            shell_complete=_COMPLETIONS.get(one.kind.completes or ""),
        )
        return
    names = one.names or (f"--{field.replace('_', '-')}",)
    for number, option in enumerate(one.kind.options(one, names)):
        name = PATHS if option.takes_more else field if number == 0 else f"{field}_{number}"
        yield _click_option(name, option)
        if option.takes_more:
            yield click.Argument([MORE_PATHS], nargs=-1, metavar="")


def _click_option(name: str, option: OptionSpec) -> Option:
    text = option.help
    if option.default is not None:
        text = f"{text}  [default: {option.default}]"
    # If is_flag is False, click would make the option's value optional.
    attributes: dict[str, Any] = {"is_flag": True} if option.is_flag else {}
    return Option(
        [*option.names, name],
        option.group,
        help=text,
        metavar=option.metavar if not (option.is_flag or option.choices) else None,
        multiple=option.is_multiple,
        **attributes,
        type=click.Choice(option.choices) if option.choices else None,
        shell_complete=_COMPLETIONS.get(option.completes or ""),
    )


def _name_of(fields: Mapping[str, Parameter], field: str) -> str:
    one = fields[field]
    if one.is_argument:
        return one.metavar or one.kind.metavar or field.upper()
    return next(iter(one.names), f"--{field.replace('_', '-')}")


def _build(
    kind: type[Request],
    fields: Mapping[str, Parameter],
    click_names: Mapping[str, list[str]],
    values: Mapping[str, Any],
) -> Request:
    """Build the request from option texts.

    Raises `click.UsageError` with option names.
    """
    name_of = partial(_name_of, fields)
    try:
        given = {}
        for field, one in fields.items():
            # click passes False for an absent flag, and () for an absent repeated option.
            found = [
                None if (value := values.get(name)) is False or value == () else value
                for name in click_names[field]
            ]
            if any(value is not None for value in found):
                with naming(name_of(field)):
                    given[field] = one.kind.combine(found)
        request = kind.build(given, name_of=name_of, now=run_summary().started_ms)
    except (ConfigError, InputError) as error:
        raise click.UsageError(str(error)) from error
    for field in fields:
        value = getattr(request, field)
        if isinstance(value, KafkaSettings) and value.properties is not None:
            _warn_of_unknown_settings(str(values[field]), value.properties)
    return request


def _warn_of_unknown_settings(path: str, properties: Mapping[str, str]) -> None:
    """Print a warning for properties in a settings file that are not broker settings."""
    from kafka_index.core.format.broker_settings import unknown_settings  # noqa: PLC0415, of --config alone

    for name, other in unknown_settings(properties).items():
        hint = f"; is it {other}?" if other else ""
        print_log(f"warning: {path}: {name} is not a setting, and has no effect{hint}")


def run_request(
    spec: CommandSpec,
    request: Request,
    options: RunOptions,
    *,
    print_rows: Callable[[Any, ProgressListener], bool] | None = None,
) -> int:
    """Run a command, print its result and write its report; return the exit code.

    `print_rows` prints the rows of a result to stdout, possibly while they are read; it returns
    False if it prints nothing. Raises `KafkaIndexError` if the run cannot start or continue.
    """
    result = run_for_result(spec, request, options, print_rows=print_rows)
    return ExitCode(result.outcome.exit_code)


def run_for_result(
    spec: CommandSpec,
    request: Request,
    options: RunOptions,
    *,
    work: Callable[..., Any] | None = None,
    print_rows: Callable[[Any, ProgressListener], bool] | None = None,
) -> Any:
    """Run a command as `run_request` does; return its result.

    `work` overrides `spec.work`.
    """
    from kafka_index.cli.print_result import ProgressListener, print_result  # noqa: PLC0415, slow to import

    work = work or spec.work_on(options.engine)
    columns: ReportSpec | None = None if spec.report is None else function_at(spec.report)
    with ExitStack() as stack:
        report = None
        if options.report is not None and columns is not None:
            from kafka_index.core.output.report_file import ReportFile  # noqa: PLC0415, slow to import

            report = stack.enter_context(
                ReportFile(options.report, columns.schema, _page_maker(spec.name, columns))
            )
        with ProgressListener(options.verbosity) as progress:
            result: Result = work(request, options.engine, progress, report)
            after_rows = print_rows is not None and print_rows(result, progress)
        sys.stdout.flush()
        # Printed first, so that the result is not lost if writing the report fails.
        if options.as_json:
            sys.stdout.write(json.dumps(result.as_object()) + "\n")
            sys.stdout.flush()
        else:
            print_result(result, progress, options.verbosity, after_rows=after_rows)
        run_summary().add_result(result)
        if report is not None and columns is not None and not report.is_published:
            if not columns.is_streamed:
                report.write_table(result.to_arrow())
            report.finish(result.conclusion)
    # Count again, because writing the HTML page, the last step, can add unread files.
    count_unread()
    return result


def _page_maker(command: str, columns: ReportSpec) -> Any:
    """Return the page factory for a report, None if the command has no page."""
    if columns.page is None:
        return None
    from kafka_index.cli.html.page import PageWriter  # noqa: PLC0415, slow to import

    return partial(PageWriter, command, columns.page, run_summary().about())

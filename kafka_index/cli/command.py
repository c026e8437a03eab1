"""Create click commands from request classes: options, engine, run and report."""

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
from kafka_index.core.job.engine import Engine, ThreadEngine
from kafka_index.core.job.request import (
    ArgumentError,
    CommandSpec,
    Group,
    IntegerKind,
    OptionSpec,
    Parameter,
    Request,
    import_object,
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

#: The name of the parameter of the option that accepts several paths per use.
PATHS = "inputs"
#: The argument for the further paths of the option `PATHS`.
MORE_PATHS = "more_paths"
# Metavars of path options, including values that contain a path, such as TIME|FILE or KEYID=PEM.
_PATH_METAVARS = re.compile(r"PATH|FILE|DIR|URI|PEM|PREFIX|KEY=VALUE")
# In the help text, option names longer than this get their own line.
_MAX_NAMES_WIDTH = 30


class Option(click.Option):
    """An option with a help group and visible default; `parse` converts the value, also None."""

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
    """A command that fills the run summary, and rejects a single-valued option given twice."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, with all help texts aligned."""
        groups: dict[Group, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            help_record = parameter.get_help_record(ctx)
            if help_record is not None and isinstance(parameter, click.Option):
                # The only other option is --help, which click adds.
                group = parameter.group if isinstance(parameter, Option) else Group.HELP
                groups.setdefault(group, []).append(help_record)
        name_widths = (len(names) for rows in groups.values() for names, _ in rows)
        width = max(
            (name_width for name_width in name_widths if name_width <= _MAX_NAMES_WIDTH), default=0
        )
        for group in filter(groups.__contains__, Group):
            with formatter.section(group.value):
                formatter.write_dl(
                    [(names.ljust(width), text) for names, text in groups[group]], width
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; reject repeated values, of which click would use the last."""
        try:
            values, _, parsed_parameters = self.make_parser(ctx).parse_args(args=list(args))
        except click.UsageError as error:
            # Parsing failed before the callback of --summary, so the summary is opened here.
            _open_summary(args)
            if isinstance(error, click.BadOptionUsage):
                # If an option lacks its value, click does not set the context of the error.
                raise click.BadOptionUsage(error.option_name, error.message, ctx) from error
            raise
        if not ctx.resilient_parsing:
            _refuse_passwords(ctx, values)
        counts = Counter(id(parameter) for parameter in parsed_parameters)
        for parameter in parsed_parameters:
            if not isinstance(parameter, click.Option):
                continue
            has_single_value = not (parameter.multiple or parameter.is_flag)
            if has_single_value and counts[id(parameter)] > 1 and not ctx.resilient_parsing:
                name = option_name(parameter)
                raise click.UsageError(f"{name} may be given only once", ctx)
        remaining_args = super().parse_args(ctx, args)
        if more := ctx.params.pop(MORE_PATHS, None):
            ctx.params[PATHS] = (*ctx.params[PATHS], *more)
        return remaining_args

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
            # Commands without an option about links follow links, as a broker does.
            with reading_inputs(follow_links=ctx.params.get("follow_links", True)):
                code = ExitCode(int(super().invoke(ctx) or 0))
        finally:
            code = report_unread_files(code)
        return code


def _open_summary(args: Sequence[str]) -> None:
    """Open the summary of a command whose options cannot be parsed."""
    for name_or_pair, value in pairwise((*args, "")):
        name, separator, joined = name_or_pair.partition("=")
        if name == "--summary" and (joined or value):
            run_summary().open(joined if separator else value)
            return


def _refuse_passwords(context: click.Context, values: Mapping[str, Any]) -> None:
    """Reject URIs with passwords in path options, before any path is opened."""
    for parameter in _path_parameters(context.command):
        value = values.get(parameter.name or "")
        try:
            refuse_passwords(value if isinstance(value, tuple | list) else [value])
        except InputError as error:
            name = option_name(parameter) if isinstance(parameter, click.Option) else "PATH"
            raise click.UsageError(f"{name}: {error}", context) from None


def _path_parameters(command: click.Command) -> list[click.Parameter]:
    return [
        parameter
        for parameter in command.params
        if _PATH_METAVARS.search(parameter.metavar or "") or parameter.nargs == -1
    ]


def count_unread_files() -> list[Skipped]:
    """Return the unread files that were not yet returned, and count them in the summary."""
    from kafka_index.core.fs.inputs import UNREAD_COUNTS, drain_unread  # noqa: PLC0415, slow to import

    files = drain_unread()
    run_summary().add_counts(Counter(UNREAD_COUNTS[file.reason] for file in files))
    return files


def report_unread_files(code: int) -> ExitCode:
    """Print unread files that no result has reported; return the exit code that includes them."""
    from kafka_index.core.fs.inputs import (  # noqa: PLC0415, slow to import
        BAD_CHECKPOINT,
        BROKEN_LINK,
        LINKED_OUT,
        NOT_A_FILE,
    )

    files = count_unread_files()
    if not files:
        return ExitCode(code)
    for reason, text, hint in (
        (NOT_A_FILE, "entries that are not regular files were skipped: ", ""),
        (BROKEN_LINK, "links without a target were skipped: ", ""),
        (BAD_CHECKPOINT, "a broker cannot read these checkpoints: ", ""),
        (
            LINKED_OUT,
            "links that point outside the input were skipped: ",
            "; give --follow-links to read link targets",
        ),
    ):
        files_of_reason = [file for file in files if file.reason == reason]
        if files_of_reason:
            print_error(f"{text}{_format_files(files_of_reason)}{hint}")
    return ExitCode.first(ExitCode(code), ExitCode.DAMAGE)


def _format_files(files: Sequence[Skipped]) -> str:
    more = f" and {plural(len(files) - 1, 'other')}" if len(files) > 1 else ""
    return f"{files[0].path_with_target}{more}"


# Patterns of masters that Spark accepts (SparkContext.createTaskScheduler, SparkSubmit), and of
# Connect servers.
_THREAD_COUNT = r"\s*(?:\*|[0-9]+)\s*"
_MASTER = re.compile(
    rf"local(?:\[{_THREAD_COUNT}(?:,\s*[0-9]+\s*)?\])?|local-cluster\[[0-9, ]+\]|yarn"
    r"|(?:spark|k8s|sc)://.+"
)


def report_parameter(rows: str, *, has_page: bool) -> click.Option:
    """Return ``--report``, whose value is validated before the run starts."""
    formats = ".parquet, .json (JSON lines)" + (", .csv or .html" if has_page else " or .csv")

    def validate_path(value: str | None) -> str | None:
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
        parse=validate_path,
        metavar="FILE",
        help=f"Write {rows} to FILE: {formats}.",
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
        **parameters: Any,
    ) -> Iterator[SparkWorkers]:
        """Start a session and check the executors; for the parameters, see `Engine.start`."""
        from kafka_index.spark.session import open_session  # noqa: PLC0415, PySpark

        name = f"kafka-index {command}"
        with open_session(self.master, name, after_failure=after_failure) as session:
            from kafka_index.spark.workers import session_workers  # noqa: PLC0415, PySpark

            with session_workers(session, **parameters) as workers:
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
            ["--master"], Group.ENGINE, metavar="URL", help="Spark master; requires --engine spark."
        ),
        Option(
            ["--threads"],
            Group.ENGINE,
            metavar="N",
            help="Threads of the local engine, at least 1.  [default: one per core, two for remote "
            "inputs]",
        ),
    ]


def parse_engine(name: str, master: str | None, threads: str | None) -> Engine:
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


def parse_verbosity(quiet: bool, verbose: bool) -> Verbosity:  # noqa: FBT001, because they are flags
    """Return the verbosity; reject both options together."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose are mutually exclusive")
    return Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


def storage_option() -> click.Option:
    """Return the option that configures the stores of this process."""

    def configure(context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> None:
        if context.resilient_parsing:
            # The shell is requesting completions, so no store is opened.
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
        callback=configure,
        expose_value=False,
        metavar="KEY=VALUE",
        help="Option of the object store, such as region=eu-west-1. KEY=@FILE reads a secret from "
        "a file, in each process. May be repeated.",
    )


def summary_option() -> click.Option:
    def open_summary(context: click.Context, _option: click.Parameter, value: str | None) -> None:
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
        callback=open_summary,
        help="Write a summary to FILE, or to stdout (-), as one JSON object: counts, bytes, "
        "seconds, paths, run ID and versions.",
    )


#: Maximum time for listing topics, since a folder may be on a slow network file system.
COMPLETION_TIMEOUT_SECONDS = 1.0
# Metavars of parameters that are completed as paths. The argument for further paths has an empty
# metavar.
_PATH_METAVAR_PREFIXES = ("PATH", "FILE", "DIR", "URI")


def complete_paths(command: click.Command) -> None:
    """Enable path completion for the options and arguments of a command that are paths."""
    for parameter in command.params:
        is_plain = isinstance(parameter.type, click.types.StringParamType)
        is_path = (parameter.metavar or "").startswith(_PATH_METAVAR_PREFIXES)
        if is_plain and (is_path or parameter.metavar == ""):
            parameter.type = click.Path()


def complete_topic(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the matching topics in the local folders that precede on the command line."""
    # Parsing stops at the option that is being completed; further paths are in context.args.
    names = _list_topics([*(context.params.get(PATHS) or ()), *context.args])
    return [name for name in names if name.startswith(incomplete)]


def complete_topics(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Complete the last alternative of a topic pattern."""
    prefix, separator, last_alternative = incomplete.rpartition("|")
    return [
        f"{prefix}{separator}{name}"
        for name in complete_topic(context, parameter, last_alternative)
    ]


def _list_topics(paths: Sequence[str]) -> list[str]:
    """List the topics of partition directories and of data directories, within the time limit."""
    from kafka_index.core.format.names import parse_partition_directory  # noqa: PLC0415, slow to import

    topics: set[str] = set()
    folders = [os.path.expanduser(path) for path in paths if "://" not in path]
    thread = threading.Thread(
        target=_collect_topics, args=[folders, parse_partition_directory, topics], daemon=True
    )
    thread.start()
    thread.join(COMPLETION_TIMEOUT_SECONDS)
    return sorted(topics.copy())


def _collect_topics(
    folders: Sequence[str], parse: Callable[[str], TopicPartition | None], topics: set[str]
) -> None:
    for folder in folders:
        for path in glob.iglob(folder) if glob.has_magic(folder) else [folder]:
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                is_data_directory = False
                for partition in map(parse, (entry.name for entry in entries)):
                    if partition is not None:
                        is_data_directory = True
                        topics.add(partition.topic)
                # The name of a data directory may look like the name of a partition.
                path_partition = parse(os.path.basename(os.path.abspath(path)))
                if path_partition is not None and not is_data_directory:
                    topics.add(path_partition.topic)


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
    click_parameters: list[click.Parameter] = []
    for field, parameter in fields.items():
        field_parameters = list(_click_parameters(field, parameter))
        click_names[field] = [
            click_parameter.name or ""
            for click_parameter in field_parameters
            if click_parameter.name != MORE_PATHS
        ]
        click_parameters += field_parameters
    # An argument with several values takes all remaining values, so it must be the last.
    click_parameters.sort(key=lambda parameter: not isinstance(parameter, _Argument))
    has_engine = spec.has_engine and not as_job
    click_parameters += engine_parameters() if has_engine else []
    click_parameters += (
        [report_parameter(spec.report_rows, has_page=spec.has_page)] if spec.report else []
    )
    if spec.has_json:
        click_parameters.append(Option(["--json"], Group.OUTPUT, is_flag=True, help=spec.json_help))
    click_parameters += [*verbosity_parameters(), storage_option(), summary_option()]

    def run_with_options(**values: Any) -> int:
        options = RunOptions(
            parse_engine(*(values.pop(name) for name in ("engine", "master", "threads")))
            if has_engine
            else SparkEngine()
            if as_job
            else parse_engine("local", None, None),
            parse_verbosity(values.pop("quiet"), values.pop("verbose")),
            values.pop("report", None),
            bool(values.pop("json", False)),
        )
        request = _build_request(spec.request, fields, click_names, values)
        try:
            return (run or run_request)(spec, request, options)
        except ArgumentError as error:
            # For example, an option that does not apply to the input files.
            error.name_fields(partial(_format_field_name, fields))
            raise click.UsageError(str(error)) from error

    examples = inspect.cleandoc(
        spec.job_examples if as_job and spec.job_examples else spec.examples
    )
    return Command(
        spec.name,
        {"help_option_names": ["-h", "--help"]},
        run_with_options,
        click_parameters,
        help=f"{inspect.cleandoc(spec.help)}\n\n\b\nExamples:\n{indent(examples, '  ')}",
        epilog=f"Documentation: {help_page(spec.page or spec.name)}",
        options_metavar=spec.usage,
    )


class _Argument(click.Argument):
    """An argument whose position in the usage line is part of the command's usage text."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, as click passes it
        return []


def _click_parameters(field: str, parameter: Parameter) -> Iterable[click.Parameter]:
    if parameter.is_argument:
        yield _Argument(
            [field],
            nargs=-1 if parameter.kind.is_multiple else 1,
            required=parameter.default is MISSING,
            metavar=parameter.metavar or parameter.kind.metavar,
            shell_complete=_COMPLETIONS.get(parameter.kind.completes or ""),
        )
        return
    names = parameter.names or (f"--{field.replace('_', '-')}",)
    for number, option in enumerate(parameter.kind.options(parameter, names)):
        name = PATHS if option.takes_more else field if number == 0 else f"{field}_{number}"
        yield _click_option(name, option)
        if option.takes_more:
            yield click.Argument([MORE_PATHS], nargs=-1, metavar="")


def _click_option(name: str, option: OptionSpec) -> Option:
    help_text = option.help
    if option.default is not None:
        help_text = f"{help_text}  [default: {option.default}]"
    # Passed only if True: with is_flag=False, click would make the value of the option optional.
    attributes: dict[str, Any] = {"is_flag": True} if option.is_flag else {}
    return Option(
        [*option.names, name],
        option.group,
        help=help_text,
        metavar=option.metavar if not (option.is_flag or option.choices) else None,
        multiple=option.is_multiple,
        **attributes,
        type=click.Choice(option.choices) if option.choices else None,
        shell_complete=_COMPLETIONS.get(option.completes or ""),
    )


def _format_field_name(fields: Mapping[str, Parameter], field: str) -> str:
    parameter = fields[field]
    if parameter.is_argument:
        return parameter.metavar or parameter.kind.metavar or field.upper()
    return next(iter(parameter.names), f"--{field.replace('_', '-')}")


def _build_request(
    request_class: type[Request],
    fields: Mapping[str, Parameter],
    click_names: Mapping[str, list[str]],
    values: Mapping[str, Any],
) -> Request:
    """Build the request from the option values.

    Raises `click.UsageError` with the names of invalid options.
    """
    format_name = partial(_format_field_name, fields)
    try:
        field_values = {}
        for field, parameter in fields.items():
            # click passes False for an absent flag, and () for an absent repeated option.
            option_values = [
                None if (value := values.get(name)) is False or value == () else value
                for name in click_names[field]
            ]
            if any(value is not None for value in option_values):
                with naming(format_name(field)):
                    field_values[field] = parameter.kind.combine(option_values)
        request = request_class.build(
            field_values, name_of=format_name, now=run_summary().started_ms
        )
    except (ConfigError, InputError) as error:
        raise click.UsageError(str(error)) from error
    for field in fields:
        value = getattr(request, field)
        if isinstance(value, KafkaSettings) and value.properties is not None:
            _warn_about_unknown_settings(str(values[field]), value.properties)
    return request


def _warn_about_unknown_settings(path: str, properties: Mapping[str, str]) -> None:
    """Print a warning for properties in a settings file that are not broker settings."""
    from kafka_index.core.format.broker_settings import unknown_settings  # noqa: PLC0415, only for --config

    for name, similar_name in unknown_settings(properties).items():
        hint = f"; did you mean {similar_name}?" if similar_name else ""
        print_log(f"warning: {path}: {name} is not a broker setting and has no effect{hint}")


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
    """Run a command like `run_request`, and return its result; `work` overrides `spec.work`."""
    from kafka_index.cli.print_result import ProgressListener, print_result  # noqa: PLC0415, slow to import

    work = work or spec.work_on(options.engine)
    report_spec: ReportSpec | None = None if spec.report is None else import_object(spec.report)
    with ExitStack() as stack:
        report = None
        if options.report is not None and report_spec is not None:
            from kafka_index.core.output.report_file import ReportFile  # noqa: PLC0415, slow to import

            report = stack.enter_context(
                ReportFile(
                    options.report, report_spec.schema, _page_factory(spec.name, report_spec)
                )
            )
        with ProgressListener(options.verbosity) as progress:
            result: Result = work(request, options.engine, progress, report)
            rows_printed = print_rows is not None and print_rows(result, progress)
        sys.stdout.flush()
        # The result is printed first, so that it is not lost if writing the report fails.
        if options.as_json:
            sys.stdout.write(json.dumps(result.as_object()) + "\n")
            sys.stdout.flush()
        else:
            print_result(result, progress, options.verbosity, rows_printed=rows_printed)
        run_summary().add_result(result)
        if report is not None and report_spec is not None and not report.is_published:
            if not report_spec.is_streamed:
                report.write_table(result.to_arrow())
            report.finish(result.conclusion)
    # Writing the HTML page, which is the last step, can add unread files.
    count_unread_files()
    return result


def _page_factory(command: str, columns: ReportSpec) -> Any:
    """Return a factory of HTML pages for the report; None if the command has no HTML page."""
    if columns.page is None:
        return None
    from kafka_index.cli.html.page import PageWriter  # noqa: PLC0415, slow to import

    return partial(PageWriter, command, columns.page, run_summary().about())

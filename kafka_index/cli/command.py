"""Commands derived from requests: options from fields, and a common way to run and report."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import MISSING, dataclass
from functools import partial
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.completion import PATHS, complete_topic, complete_topics
from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import (
    MORE_PATHS,
    Command,
    Option,
    count_unread,
    storage_option,
    summary_option,
)
from kafka_index.cli.shared_options import (
    Detail,
    SparkEngine,
    engine_of,
    engine_parameters,
    report_parameter,
    verbosity_of,
    verbosity_parameters,
)
from kafka_index.cli.terminal import print_log
from kafka_index.core.errors import ConfigError, InputError, help_page
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import (
    ArgumentError,
    CommandSpec,
    Group,
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
    from kafka_index.core.job.result import ReportSpec, Result

_COMPLETIONS = {"topics": complete_topics, "topic": complete_topic}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run that are not fields of its request."""

    engine: Engine
    verbosity: Detail
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
    # An argument with several values takes the remaining ones, so it comes last.
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
    # Writing a page, which comes last, can add unread files.
    count_unread()
    return result


def _page_maker(command: str, columns: ReportSpec) -> Any:
    """Return the page factory for a report, None if the command has no page."""
    if columns.page is None:
        return None
    from kafka_index.cli.html.page_writer import PageWriter  # noqa: PLC0415, slow to import

    return partial(PageWriter, command, columns.page, run_summary().about())

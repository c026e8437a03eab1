"""click commands and options: groups in the help, summaries, storage options."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.completion import PATHS
from kafka_index.cli.exit_status import ExitCode, option_name, run_summary
from kafka_index.cli.terminal import announce_compilation, print_error
from kafka_index.core.errors import ConfigError, InputError, plural
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.job.request import Group

if TYPE_CHECKING:
    from kafka_index.core.fs.inputs import Skipped

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
            # No callback has run, so the summary would be that of an earlier run.
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
        (NOT_A_FILE, "not read, as they are not files: ", ""),
        (BROKEN_LINK, "not read, as links lead to nothing: ", ""),
        (BAD_CHECKPOINT, "checkpoints that a broker cannot read: ", ""),
        (
            LINKED_OUT,
            "not read, as links lead out of the input: ",
            "; --follow-links reads what they lead to",
        ),
    ):
        found = [each for each in files if each.reason == reason]
        if found:
            print_error(f"{text}{_first_of(found)}{hint}")
    return ExitCode.first([ExitCode(code), ExitCode.DAMAGE])


def _first_of(files: Sequence[Skipped]) -> str:
    more = f" and {plural(len(files) - 1, 'other')}" if len(files) > 1 else ""
    return f"{files[0].shown}{more}"


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
            run_summary().open(value)

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


class Whole(click.IntRange):
    """An integer in a range, both ends inclusive, in decimal digits."""

    name = "integer"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse a text; click would also accept ``1_000`` and digits of other scripts."""
        if isinstance(value, str):
            number = parse_integer(value)
            if number is None:
                self.fail(f"{value!r} is not a 64-bit integer in decimal digits", param, ctx)
            value = number
        return int(super().convert(value, param, ctx))

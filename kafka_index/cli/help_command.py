"""``help``: prints pages of the documentation that is part of the installation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import click

from kafka_index.cli.command import RunOptions
from kafka_index.cli.command import make_command as derive
from kafka_index.cli.exit_status import ExitCode
from kafka_index.core.errors import InputError
from kafka_index.core.job.request import CommandSpec, Group, Request, TextKind, parameter

_SUFFIX = ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpRequest(Request):
    page: str | None = parameter(
        TextKind("[PAGE]"), Group.INPUT, "A page.", default=None, is_argument=True
    )


_HELP = CommandSpec(
    "help",
    HelpRequest,
    work="",
    help="""Print a PAGE of the documentation, or list all pages.

    \b
    Exit codes:
      0   The page was printed.
      2   The page does not exist.
    """,
    usage="[PAGE] [OPTIONS]",
    examples="""\
kafka-index help
kafka-index help lookup | less
""",
    has_engine=False,
    page="index",
)


def _print_page(_spec: CommandSpec, request: HelpRequest, options: RunOptions) -> int:
    pages = {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in (files("kafka_index") / "docs").iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    if request.page is None:
        width = max(map(len, pages))
        for name, text in sorted(pages.items()):
            title = text.splitlines()[0].removeprefix("# ")
            click.echo(f"{name:{width}}  {title}", file=options.verbosity.stdout)
    elif request.page in pages:
        click.echo(pages[request.page], nl=False, file=options.verbosity.stdout)
    else:
        hint = "run `kafka-index help` to list the pages"
        raise InputError(f"unknown page {request.page!r}", hint=hint)
    return ExitCode.DONE


make_command = partial(derive, _HELP, run=_print_page)

"""``help``: prints the pages of the documentation, which every installation has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import click

from kafka_index.cli.exit_status import ExitCode
from kafka_index.cli.options import command, option_group
from kafka_index.core.errors import InputError

_HELP = """Print a PAGE of the documentation; without one, list the pages.

    Exit code 0: it is printed. 2: there is no such page.
    """
_EXAMPLES = """\
kafka-index help
kafka-index help lookup | less
"""
_SUFFIX = ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpOptions:
    """The options of ``help``."""

    page: str | None = option_group(
        click.Argument(["page"], required=False, metavar="[PAGE]"), make=lambda page: page
    )


def _run(options: HelpOptions) -> ExitCode:
    pages = {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in (files("kafka_index") / "docs").iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    if options.page is None:
        width = max(map(len, pages))
        for name, text in sorted(pages.items()):
            title = text.splitlines()[0].removeprefix("# ")
            click.echo(f"{name:{width}}  {title}")
    elif options.page in pages:
        click.echo(pages[options.page], nl=False)
    else:
        names = ", ".join(sorted(pages))
        raise InputError("there is no such page", expected=names, found=options.page)
    return ExitCode.DONE


make_command = partial(
    command,
    "help",
    HelpOptions,
    _run,
    help_text=_HELP,
    usage="[OPTIONS]",
    examples=_EXAMPLES,
    has_links=False,
    page="index",
)

"""``help``: prints the pages of the documentation, which every installation has."""

from __future__ import annotations

from importlib.resources import files

import click

from kafka_index.cli.exit_code import ExitCode

_HELP = """Print a PAGE of the documentation; without one, list the pages.

    \b
    Examples:
      kafka-index help lookup
      kafka-index help runbooks | less
"""
_SUFFIX = ".md"


def make_command(*, as_job: bool) -> click.Command:
    """Return the command, which does not run as a job."""
    if as_job:
        raise ValueError("help does not run as a job")
    pages = _pages()
    return click.Command(
        "help",
        {"help_option_names": ["-h", "--help"]},
        lambda page: _print(pages, page),
        [click.Argument(["page"], type=click.Choice(list(pages)), required=False, metavar="PAGE")],
        help=_HELP,
    )


def _pages() -> dict[str, str]:
    """Return the texts of the pages by name."""
    entries = (files("kafka_index") / "docs").iterdir()
    pages = [entry for entry in entries if entry.name.endswith(_SUFFIX)]
    texts = {page.name.removesuffix(_SUFFIX): page.read_text(encoding="utf-8") for page in pages}
    return dict(sorted(texts.items()))


def _print(pages: dict[str, str], page: str | None) -> ExitCode:
    if page is not None:
        click.echo(pages[page], nl=False)
        return ExitCode.DONE
    width = max(map(len, pages))
    for name, text in pages.items():
        title = text.splitlines()[0].removeprefix("# ")
        click.echo(f"{name:{width}}  {title}")
    return ExitCode.DONE

"""The commands of the console script, imported when they are called for; completion, by click."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import sys
from types import ModuleType

import click
from click.shell_completion import CompletionItem, shell_complete

from kafka_index import __version__

PROGRAM = "kafka-index"
#: Set by the shell that asks, to ``bash_source`` or ``bash_complete``, and so for zsh and fish.
COMPLETE_VARIABLE = "_KAFKA_INDEX_COMPLETE"
#: What the names of values that are paths begin with; further paths of an option have no name.
_PATHS = ("PATH", "FILE", "DIR", "URI")

#: What the commands are for, and their purposes; each is in a module named after it. The modules
#: are imported when a command is called: they load numpy, pyarrow and the compiled kernels, and
#: `--help` should not wait for that.
_GROUPS = {
    "See what is in a dump": {
        "dump": "Print the contents of logs, indexes, snapshots and epochs.",
        "metadata": "Print topics, groups, transactions and remote segments of a cluster.",
        "lookup": "Find offsets and timestamps in Kafka logs.",
        "find": "Find records by key, value and time.",
    },
    "Check it": {
        "verify": "Compare every file of a dump with what it should be.",
        "predict": "Predict what a broker does to its log directories when it starts.",
    },
    "Repair it": {
        "build": "Rebuild the indexes, snapshots and epochs of Kafka logs.",
        "restore": "Make a data directory that a broker mounts at once, from a dump.",
        "rewrite": "Copy a dump without some of its records.",
    },
    "Use its records": {
        "export": "Export records to Parquet or JSON lines.",
        "import": "Write tables of records as logs that a broker mounts.",
    },
    "Installation": {"warm-up": "Compile everything beforehand, for images."},
}
COMMANDS = {name: text for group in _GROUPS.values() for name, text in group.items()}


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, because click passes it
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # click looks for near names among commands that are loaded.
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            text = f"{error.format_message()} Did you mean {near[0]!r}?"
            raise click.UsageError(text, ctx) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = load_command(cmd_name, as_job=False)
        # True for completions alone.
        return complete_paths(command) if ctx.resilient_parsing else command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The group's own method would import the module of every command.
        names = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002, because click passes it
        for title, group in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()))


def load_command(name: str, *, as_job: bool) -> click.Command:
    """Return a command, for the console script or as a job for ``spark-submit``."""
    command = _module(name).make_command(as_job=as_job)
    if not isinstance(command, click.Command):
        raise TypeError(f"{name} is not a command")
    return command


def _module(command: str) -> ModuleType:
    """Import a command without garbage collections, which find nothing in what modules define."""
    name = f"kafka_index.cli.{command.replace('-', '_')}_command"
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        module = importlib.import_module(name)
        # Nor will later collections look there.
        gc.freeze()
    finally:
        gc.enable()
    return module


def _print_version(ctx: click.Context, parameter: click.Parameter, value: object) -> None:  # noqa: ARG001, because click passes it
    if value:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit(0)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def console_script() -> None:
    """Read, check, repair and use the log directories of Kafka brokers, without a broker.

    A dump is a copy of log directories, in files or in a store. Its logs are only read.

    \b
    Examples:
      kafka-index metadata /dump/broker-1
      kafka-index lookup --input /dump/broker-1 --topic orders --at 2024-05-01T00:00:00Z
      kafka-index verify --input /dump/broker-1
      kafka-index build --input /dump/broker-1 --output /tmp/indexes
      kafka-index restore --input /dump/broker-1 --output /var/kafka/data
      kafka-index export --input /dump/broker-1 --output /lake/kafka
    """  # noqa: D301, because \b is click's mark of a text not to be wrapped


def complete(cli: click.Group, program: str) -> int:
    """Print the script that a shell loads, or the completions of a line; return the exit code."""
    return shell_complete(cli, {}, program, COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])


def complete_paths(command: click.Command) -> click.Command:
    """Let the shell complete the values of a command's options and arguments that are paths."""
    for parameter in command.params:
        is_plain = isinstance(parameter.type, click.types.StringParamType)
        names_path = (parameter.metavar or "").startswith(_PATHS)
        if is_plain and (names_path or parameter.metavar == ""):
            parameter.type = click.Path()
    return command

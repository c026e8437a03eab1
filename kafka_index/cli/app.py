"""Entry points: the console script with its commands, and one command as a Spark job.

An error a user can act on is one line on stderr; exit codes are 0, 1 and 2 (see `ExitCode`), 130
after Ctrl-C, 143 after SIGTERM and 141 when the reader of the output went away, as a shell would
report them.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import click

from kafka_index.cli.exit_code import ExitCode
from kafka_index.errors import ConfigError, InputError, KafkaIndexError

_PROGRAM = "kafka-index"
_INTERRUPTED = 130
_NO_READER = 141
_TERMINATED = 143


# Command, where it lives, what it is for. The modules are imported when a command is called for:
# they load numpy, pyarrow and the compiled kernels, and `--help` should not wait for that.
_COMMANDS = {
    "build": (
        "kafka_index.cli.build_command",
        "Rebuild indexes, snapshots and epochs of a dump of Kafka logs.",
    ),
    "lookup": ("kafka_index.cli.lookup_command", "Find offsets and times in a dump of Kafka logs."),
    "dump": (
        "kafka_index.cli.dump_command",
        "Print what is in logs, indexes, snapshots and epochs.",
    ),
}
# What is there once a command was stopped.
_AFTER_A_STOP = {
    "build": "; what is finished is kept, run again to go on",
    "lookup": "; no answers were written",
}


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, because click passes it
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002, because click passes it
        if cmd_name not in _COMMANDS:
            return None
        return _load(cmd_name, as_job=False)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002, because click passes it
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _load(name: str, *, as_job: bool) -> click.Command:
    command = importlib.import_module(_COMMANDS[name][0]).make_command(as_job=as_job)
    if not isinstance(command, click.Command):
        raise TypeError(f"{name} is no command")
    return command


def package_version() -> str:
    """Return this package's version; a copy that was shipped without installing has none."""
    try:
        return version(_PROGRAM)
    except PackageNotFoundError:
        return "not installed"


def _print_version(ctx: click.Context, parameter: click.Parameter, value: object) -> None:  # noqa: ARG001, because click passes it
    if value:
        click.echo(f"{_PROGRAM} {package_version()}")
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
    help="Print the version and leave.",
)
def _cli() -> None:
    """Rebuild the indexes of Kafka's logs byte for byte, and find offsets and times in them.

    \b
    Examples:
      kafka-index build --input /dump/broker-1 --output /tmp/indexes
      kafka-index lookup --logs /dump/broker-1 --topic orders --partition 0 --offset 1234
      kafka-index dump /dump/broker-1/orders-0/00000000000000000000.index
    """  # noqa: D301, because \b is click's mark of a text not to be wrapped


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``kafka-index``.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of this process by default.

    Returns
    -------
    int
        The exit code.
    """
    return _run(_cli, sys.argv[1:] if arguments is None else list(arguments), _PROGRAM)


def job_main(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run one command as a job of ``spark-submit``: the same options, always on Spark.

    Parameters
    ----------
    name : str
        The command, such as ``build``.
    arguments : sequence of str, optional
        Without the job file's name; those of this process by default.

    Raises
    ------
    SystemExit
        Unless all went well: a cluster's driver that ends normally has exit code 0, and one that
        raises ``SystemExit(0)`` counts as failed on some.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    code = _run(_load(name, as_job=True), given, os.path.basename(sys.argv[0]) or name)
    if code:
        raise SystemExit(code)


class _Terminated(BaseException):
    """SIGTERM came: what a scheduler sends before it kills."""


def _terminate(_number: int, _frame: object) -> None:
    # Once: what is cleaned up now must not be interrupted by a second one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def _run(  # noqa: PLR0911, because each way to end is one exit
    command: click.Command, arguments: list[str], program: str
) -> int:
    # Which command it is has to be known before click knows it, and whatever becomes of that.
    name = next((one for one in (command.name, *arguments) if one in _COMMANDS), "")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        with command.make_context(program, arguments) as context:
            code = command.invoke(context)
            sys.stdout.flush()
            return int(code or 0)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _misused(error, program)
    except KafkaIndexError as error:
        return _failed(error, verbose=not {"--verbose", "-v"}.isdisjoint(arguments))
    except _Terminated:
        _complain(f"terminated{_AFTER_A_STOP.get(name, '')}")
        return _TERMINATED
    except (KeyboardInterrupt, click.Abort):
        _complain(f"interrupted{_AFTER_A_STOP.get(name, '')}")
        return _INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return _NO_READER


def _misused(error: click.ClickException, program: str) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = program if context is None else context.command_path
    _complain(f"{' '.join(error.format_message().split())} (see {path} --help)")
    return ExitCode.USAGE


def _failed(error: KafkaIndexError, *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error)
    _complain(str(error))
    return ExitCode.USAGE if isinstance(error, InputError | ConfigError) else ExitCode.DAMAGED


def _complain(text: str) -> None:
    try:
        click.echo(f"{_PROGRAM}: error: {text}", err=True)
    except BrokenPipeError:
        # Nobody listens on stderr either; the exit code still speaks.
        return


def _forget_stdout() -> None:
    """Keep the interpreter from flushing into the closed pipe on its way out."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)

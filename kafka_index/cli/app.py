"""Entry points: the console script with its commands, and one command as a Spark job.

Whatever ends a run is one line on stderr and an exit code (see `ExitCode`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

import click
from click.shell_completion import CompletionItem

from kafka_index import __version__
from kafka_index.cli.completion import COMPLETE_VARIABLE, complete, complete_paths
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.run_summary import RunSummary
from kafka_index.cli.terminal import print_error
from kafka_index.errors import KafkaIndexError

_PROGRAM = "kafka-index"
# Set to anything: print the traceback of the error that ends a run, as --verbose does.
_TRACEBACK = "KAFKA_INDEX_TRACEBACK"


# Command, its module, its purpose. The modules are imported when a command is called: they load
# numpy, pyarrow and the compiled kernels, and `--help` should not wait for that.
_COMMANDS = {
    "build": (
        "kafka_index.cli.build_command",
        "Rebuild the indexes, snapshots and epochs of Kafka logs.",
    ),
    "lookup": ("kafka_index.cli.lookup_command", "Find offsets and timestamps in Kafka logs."),
    "dump": (
        "kafka_index.cli.dump_command",
        "Print the contents of logs, indexes, snapshots and epochs.",
    ),
    "export": (
        "kafka_index.cli.export_command",
        "Export records to Parquet or JSON lines.",
    ),
    "find": (
        "kafka_index.cli.find_command",
        "Find records by key, value and time.",
    ),
    "metadata": (
        "kafka_index.cli.metadata_command",
        "Print topics, groups, transactions and remote segments of a cluster.",
    ),
    "verify": (
        "kafka_index.cli.verify_command",
        "Compare every file of a dump with what it should be.",
    ),
    "import": (
        "kafka_index.cli.import_command",
        "Write tables of records as logs that a broker mounts.",
    ),
    "rewrite": (
        "kafka_index.cli.rewrite_command",
        "Copy a dump without some of its records.",
    ),
    "predict": (
        "kafka_index.cli.predict_command",
        "Predict what a broker does to its log directories when it starts.",
    ),
    "restore": (
        "kafka_index.cli.restore_command",
        "Make a data directory that a broker mounts at once, from a dump.",
    ),
    "warm-up": (
        "kafka_index.cli.warm_up_command",
        "Compile everything beforehand, for images.",
    ),
}
# What to do after a signal has stopped a command.
_AFTER_A_STOP = {
    "build": "; run again to continue",
    "import": "; finished partitions are written",
    "lookup": "; run again to answer all queries",
    "export": "; run again to continue",
    "restore": "; run again to continue",
    "rewrite": "; run again to continue",
}


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, because click passes it
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = _load(cmd_name, as_job=False)
        # True for completions alone.
        return complete_paths(command) if ctx.resilient_parsing else command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The group's own method would import the module of every command.
        names = [
            CompletionItem(name, help=text)
            for name, (_, text) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002, because click passes it
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _load(name: str, *, as_job: bool) -> click.Command:
    command = importlib.import_module(_COMMANDS[name][0]).make_command(as_job=as_job)
    if not isinstance(command, click.Command):
        raise TypeError(f"{name} is not a command")
    return command


def _print_version(ctx: click.Context, parameter: click.Parameter, value: object) -> None:  # noqa: ARG001, because click passes it
    if value:
        click.echo(f"{_PROGRAM} {__version__}")
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
def _cli() -> None:
    """Rebuild the indexes of Kafka logs byte for byte, and find offsets and timestamps in them.

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
        Without the program's name; by default those of this process.

    Returns
    -------
    int
        The exit code.
    """
    if os.environ.get(COMPLETE_VARIABLE):
        return complete(_cli, _PROGRAM)
    given = sys.argv[1:] if arguments is None else list(arguments)
    name = next((argument for argument in given if argument in _COMMANDS), "")
    if name and not any(word in given for word in ("-h", "--help", "spark")):
        _leave_out_pandas()
    return _run(lambda: _cli, name, given, _PROGRAM)


class _NoPandas:
    """An importer for which there is no pandas."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _leave_out_pandas() -> None:
    """Let pyarrow find no pandas now, which stays importable for others.

    With its first array pyarrow imports it, to recognise objects of pandas where there are none;
    that takes as long as the rest of a short command.
    """
    if "pandas" in sys.modules:
        return
    importer = _NoPandas()
    sys.meta_path.insert(0, importer)
    try:
        from pyarrow import lib  # noqa: PLC0415, slow to import

        lib.array([0])
    finally:
        sys.meta_path.remove(importer)


def job_main(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run one command as a job of ``spark-submit``: the same options, always on Spark.

    Parameters
    ----------
    name : str
        The command, such as ``build``.
    arguments : sequence of str, optional
        Without the job file's name; by default those of this process.

    Raises
    ------
    SystemExit
        With any exit code but 0: some clusters count a driver that raises ``SystemExit(0)`` as
        failed.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    program = os.path.basename(sys.argv[0]) or name
    code = _run(lambda: _load(name, as_job=True), name, given, program)
    if code:
        raise SystemExit(code)


class _Terminated(BaseException):
    """SIGTERM arrived: what a scheduler sends before it kills."""


class _StopSignals:
    """SIGINT and SIGTERM as exceptions in the main thread, and as the exit code of the first.

    A context manager. The code outlives the exception, which may be replaced on its way up by
    an error of the connection to Spark that it broke. SIGINT stays ignored where it was ignored
    from the start, as in a shell's background job, which Ctrl-C is not meant for. SIGTERM, which
    a scheduler sends to this process alone, is always caught.
    """

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            acts: dict[signal.Signals, Any] = {signal.SIGTERM: self._on_terminate}
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                acts[signal.SIGINT] = self._on_interrupt
            for number, act in acts.items():
                self._previous[number] = signal.signal(number, act)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, act in self._previous.items():
            signal.signal(number, act)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.code = self.code or ExitCode.INTERRUPTED
        raise KeyboardInterrupt

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        # Once: a second one must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.code = self.code or ExitCode.TERMINATED
        raise _Terminated


def _run(load: Callable[[], click.Command], name: str, arguments: list[str], program: str) -> int:
    """Run a command; print the error that ends it, if any, and return the exit code."""
    notes: list[str] = []
    _open_missing_streams()
    with _StopSignals() as stop, RunSummary(name) as summary:
        try:
            command = load()
            with command.make_context(program, arguments) as context:
                code = int(command.invoke(context) or ExitCode.DONE)
                sys.stdout.flush()
        except click.exceptions.Exit as leave:
            code = leave.exit_code
        except BaseException as error:  # noqa: BLE001, because every error has its exit code
            notes = getattr(error, "__notes__", [])
            if isinstance(error, KeyboardInterrupt | click.Abort):
                stop.code = stop.code or ExitCode.INTERRUPTED
            if stop.code is None:
                verbose = not {"--verbose", "-v"}.isdisjoint(arguments)
                summary.error = _error_text(error, program)
                code = _fail(error, program, verbose=verbose or bool(os.environ.get(_TRACEBACK)))
        if stop.code is not None:
            word = "interrupted" if stop.code is ExitCode.INTERRUPTED else "terminated"
            summary.error = "; ".join([word, *notes]) + _AFTER_A_STOP.get(name, "")
            _complain(summary.error)
            code = stop.code
        return _write_summary(summary, code, program)


def _write_summary(summary: RunSummary, code: int, program: str) -> int:
    """Write the summary that was asked for; return the exit code."""
    try:
        summary.write(code, ExitCode(code).name.lower())
    except (OSError, KafkaIndexError) as error:
        failed = _fail(error, program, verbose=False)
        return ExitCode.first([ExitCode(code), failed])
    return code


def _fail(error: BaseException, program: str, *, verbose: bool) -> ExitCode:
    """Print the error that ended a run; return its exit code."""
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return ExitCode.NO_READER
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    code = ExitCode.of_run(error)
    if verbose and not isinstance(error, click.ClickException):
        traceback.print_exception(error)
    _complain(_error_text(error, program))
    try:
        sys.stdout.flush()
    except OSError:
        _forget_stdout()
    return code


def _error_text(error: BaseException, program: str) -> str:
    """Return an error as one line."""
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = program if context is None else context.command_path
        return f"{' '.join(error.format_message().split())} (see {path} --help)"
    if isinstance(error, KafkaIndexError):
        return str(error)
    if ExitCode.of_run(error) is ExitCode.ENVIRONMENT:
        return _environment_text(error)
    return _internal_text(error, program)


def _environment_text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{place}{error.strerror}; fix that and run again"
    if isinstance(error, MemoryError):
        return "out of memory; give the process more memory or use fewer --threads"
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name} is not installed; install it and run again"
    return f"{_first_line(error)}; check the cluster and run again"


def _internal_text(error: BaseException, program: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return (
        f"internal error in {program} {__version__}{place}: {_first_line(error)}; this is a "
        f"bug: run again with {_TRACEBACK}=1 (or --verbose), and report the command and its output"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _complain(text: str) -> None:
    # Where nobody reads stderr, or its disk is full, the exit code still reports the failure.
    with contextlib.suppress(OSError):
        print_error(text)


def _open_missing_streams() -> None:
    """Send stdout and stderr to nowhere where they were closed from the start (``>&-``).

    Otherwise the next file that is opened would take their place and receive what is printed.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, because it lives as long as the process


def _forget_stdout() -> None:
    """Keep the interpreter from flushing into a closed pipe or a full disk on its way out."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)

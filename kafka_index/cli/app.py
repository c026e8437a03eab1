"""The console script with its commands, and commands as Spark jobs.

A command's module is imported when the command is called. Every error that ends a run is printed as
one line on stderr and mapped to an exit code (`ExitCode`).
"""

from __future__ import annotations

import _thread
import contextlib
import difflib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Self

import click
from click.shell_completion import CompletionItem, shell_complete

from kafka_index import __version__
from kafka_index.cli.exit_status import TRACEBACK_VARIABLE, ExitCode, RunSummary, format_error
from kafka_index.cli.terminal import print_error
from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.uri_passwords import hide_passwords

PROGRAM = "kafka-index"
#: Environment variable that the shell's completion script sets to ``bash_source`` or
#: ``bash_complete``, or to these values for zsh or fish.
COMPLETE_VARIABLE = "_KAFKA_INDEX_COMPLETE"

#: Command groups and short descriptions. They are listed here because the module of a command may
#: load numpy, pyarrow and the compiled kernels, which `--help` should not wait for.
_GROUPS = {
    "Inspect": {
        "stats": "Count records and bytes by topic, partition, day or hour.",
        "dump": "Print the contents of logs, indexes, snapshots and checkpoints.",
        "metadata": "Print topics, groups, transactions and remote segments of a cluster.",
        "lookup": "Find offsets and timestamps in logs.",
        "cat": "Print the records of a topic.",
        "find": "Find records by key, value and time.",
        "schemas": "List the schemas of typed records, and the topics that use them.",
    },
    "Check": {
        "verify": "Compare every file with its correct content.",
        "predict": "Predict what a broker does to its log directories at startup.",
    },
    "Repair": {
        "build": "Rebuild indexes, snapshots and leader epoch checkpoints.",
        "restore": "Create a data directory that a broker loads without recovery.",
        "rewrite": "Copy log directories without selected records.",
    },
    "Exchange records": {
        "export": "Export records to Parquet or JSON lines.",
        "import": "Write tables of records as logs that a broker loads.",
    },
    "Back up brokers": {
        "backup": "Back up a running broker incrementally.",
        "backups": "List, verify and expire backups.",
    },
    "Installation and help": {
        "warm-up": "Compile all kernels in advance, such as for images.",
        "help": "Print a page of the documentation.",
    },
}
COMMANDS = {name: summary for group in _GROUPS.values() for name, summary in group.items()}
_COMMANDS_WITHOUT_KERNELS = ("help", "warm-up")
#: Where each command is defined: its `CommandSpec`, or a function that creates the click command.
_SPECS = {
    "backup": "cli.backup_command:make_backup",
    "backups": "cli.backup_command:make_backups",
    "build": "commands.build.request:BUILD",
    "export": "commands.export.request:EXPORT",
    "import": "commands.import_.request:IMPORT",
    "predict": "commands.predict.request:PREDICT",
    "restore": "commands.restore.request:RESTORE",
    "rewrite": "commands.rewrite.request:REWRITE",
    "schemas": "commands.schemas.request:SCHEMAS",
    "stats": "commands.stats.request:STATS",
    "verify": "commands.verify.request:VERIFY",
    "warm-up": "commands.warm_up.request:WARM_UP",
}


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, because click passes it
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # click suggests similar names only among commands that are already imported.
            similar_names = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not similar_names:
                raise
            message = f"{error.format_message()} Did you mean {similar_names[0]!r}?"
            raise click.UsageError(message, ctx) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = load_command(cmd_name, as_job=False)
        # resilient_parsing is True only during completion.
        if ctx.resilient_parsing:
            from kafka_index.cli.command import complete_paths  # noqa: PLC0415, slow to import

            complete_paths(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The base method would import the modules of all commands.
        names = [
            CompletionItem(name, help=summary)
            for name, summary in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002, because click passes it
        for title, group in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()))


def load_command(name: str, *, as_job: bool) -> click.Command:
    """Return a command for the console script, or as a ``spark-submit`` job."""
    target = _SPECS.get(name, f"cli.{name}_command:make_command")
    module, _, attribute = target.partition(":")
    spec_or_factory = getattr(_import(name, f"kafka_index.{module}"), attribute)
    from kafka_index.cli.command import make_command  # noqa: PLC0415, slow to import

    make = spec_or_factory if callable(spec_or_factory) else partial(make_command, spec_or_factory)
    command: click.Command = make(as_job=as_job)
    return command


def _import(command: str, name: str) -> ModuleType:
    """Import a command with garbage collection disabled, because imports create no garbage."""
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        if command not in _COMMANDS_WITHOUT_KERNELS:
            # Imported first, while there are few stack frames. Deep in a chain of imports, the
            # interpreter maps and unmaps a block of its stack for each call in a loop of numba.
            importlib.import_module("kafka_index.core.kernels.compile_cache")
        importlib.import_module("kafka_index.cli.command")
        module = importlib.import_module(name)
        # Later garbage collections skip the imported objects, too.
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
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def console_script(ctx: click.Context) -> None:
    """Read, verify, repair and restore the log directories of Kafka brokers, without a broker.

    A dump is a copy of log directories, on a file system or in an object store. Logs are opened
    read-only.

    \b
    Examples:
      kafka-index metadata /dump/broker-1
      kafka-index lookup --input /dump/broker-1 --topic orders --at 2024-05-01T00:00:00Z
      kafka-index verify --input /dump/broker-1
      kafka-index build --input /dump/broker-1 --output /tmp/indexes
      kafka-index restore --input /dump/broker-1 --output /var/kafka/data
      kafka-index export --input /dump/broker-1 --output /lake/kafka
    """  # noqa: D301, because \b is click's mark of a text not to be wrapped
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def complete(cli: click.Group, program: str) -> int:
    """Print the completion script or the completions of a line; return the exit code."""
    return shell_complete(cli, {}, program, COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])


# Hint after a signal has stopped a command.
_STOP_HINTS = dict.fromkeys(
    ("build", "import", "export", "restore", "rewrite"), "; run again to continue"
) | {"lookup": "; run again to answer all queries"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``kafka-index``, by default with this process's arguments, and return the exit code."""
    if os.environ.get(COMPLETE_VARIABLE):
        _restore_default_sigint()
        return complete(console_script, PROGRAM)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    name = next((argument for argument in command_line if argument in COMMANDS), "")

    def load() -> click.Command:
        # Only if this process runs nothing else: in the process of a caller, pyarrow would no
        # longer recognize the caller's pandas objects.
        needs_pandas = any(word in command_line for word in ("-h", "--help", "spark"))
        if arguments is None and name and not needs_pandas:
            _hide_pandas_from_pyarrow()
        return console_script

    code = _run(load, name, command_line, PROGRAM)
    if arguments is None:
        _restore_default_sigint()
    return code


def _restore_default_sigint() -> None:
    """Let SIGINT terminate this process silently, since nothing is left to clean up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class _PandasBlocker:
    """An importer that hides pandas."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _hide_pandas_from_pyarrow() -> None:
    """Hide pandas from pyarrow, but keep it importable.

    When pyarrow creates its first array, it imports pandas to recognize pandas objects. This import
    takes as long as the rest of a short command.
    """
    if "pandas" in sys.modules:
        return
    importer = _PandasBlocker()
    sys.meta_path.insert(0, importer)
    try:
        from pyarrow import lib  # noqa: PLC0415, slow to import

        lib.array([0])
    finally:
        sys.meta_path.remove(importer)


def job_main(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run one command as a ``spark-submit`` job, with the same options, always on Spark.

    The arguments do not include the name of the job file. The package logs to stderr from INFO on,
    unless the caller has configured logging. Raises `SystemExit` only for exit codes other than 0,
    because some clusters treat ``SystemExit(0)`` of a driver as a failure.
    """
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    program = os.path.basename(sys.argv[0]) or name

    def load() -> click.Command:
        _log_to_stderr()
        return load_command(name, as_job=True)

    code = _run(load, name, command_line, program)
    if code:
        raise SystemExit(code)


def _log_to_stderr() -> None:
    """Send log messages to stderr, which becomes the driver log of the job."""
    logger = logging.getLogger(__package__.partition(".")[0])
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        line_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        formatter = logging.Formatter(line_format, "%Y-%m-%dT%H:%M:%SZ")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        logger.addHandler(handler)


def _run(load: Callable[[], click.Command], name: str, arguments: list[str], program: str) -> int:
    """Run a command; print the error that ends it, if any, and return the exit code."""
    notes: list[str] = []
    _open_missing_streams()
    with _StopSignals() as signals, RunSummary(name) as summary:
        try:
            command = load()
            with command.make_context(program, arguments) as context:
                code = int(command.invoke(context) or ExitCode.DONE)
                sys.stdout.flush()
            signals.is_over = True
        except click.exceptions.Exit as exit_request:
            signals.is_over = True
            code = exit_request.exit_code
        except BaseException as error:  # noqa: BLE001, because every error has its exit code
            signals.is_over = True
            notes = getattr(error, "__notes__", [])
            if isinstance(error, KeyboardInterrupt | click.Abort):
                signals.code = signals.code or ExitCode.INTERRUPTED
            if signals.code is None:
                verbose = not {"--verbose", "-v"}.isdisjoint(arguments)
                summary.error = format_error(error, program)
                code = _report_failure(
                    error, program, verbose=verbose or bool(os.environ.get(TRACEBACK_VARIABLE))
                )
        if signals.code is not None:
            cause = "interrupted" if signals.code is ExitCode.INTERRUPTED else "terminated"
            summary.error = "; ".join([cause, *notes]) + _STOP_HINTS.get(name, "")
            _print_run_error(summary.error)
            code = signals.code
        return _write_summary(summary, code, program)


def _write_summary(summary: RunSummary, code: int, program: str) -> int:
    """Write the summary if it was requested; return the exit code, also for a failed write."""
    try:
        summary.write(code, ExitCode(code).name.lower())
    except (OSError, KafkaIndexError) as error:
        summary_code = _report_failure(error, program, verbose=False)
        return ExitCode.first(ExitCode(code), summary_code)
    return code


def _report_failure(error: BaseException, program: str, *, verbose: bool) -> ExitCode:
    if isinstance(error, BrokenPipeError):
        _redirect_stdout_to_devnull()
        return ExitCode.NO_READER
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    code = ExitCode.from_error(error)
    if verbose and not isinstance(error, click.ClickException):
        formatted_traceback = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            sys.stderr.write(hide_passwords(formatted_traceback))
    _print_run_error(format_error(error, program))
    try:
        sys.stdout.flush()
    except OSError:
        _redirect_stdout_to_devnull()
    return code


def _print_run_error(message: str) -> None:
    # If stderr is closed or its disk is full, the exit code still reports the failure.
    with contextlib.suppress(OSError):
        print_error(message)


def _open_missing_streams() -> None:
    """Redirect stdout and stderr to /dev/null if they are closed (``>&-``).

    Otherwise the next opened file would get their descriptor and receive the output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # os.open returns the lowest free descriptor, which is the closed descriptor.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, because it lives as long as the process


def _redirect_stdout_to_devnull() -> None:
    """Prevent the interpreter from flushing to a closed pipe or full disk at exit."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


_RESEND_DELAY_SECONDS = 0.01


class _Terminated(BaseException):
    """Raised on SIGTERM, which schedulers send before SIGKILL."""


class _StopSignals:
    """Raises SIGINT and SIGTERM as exceptions in the main thread, and stores the first exit code.

    A context manager. The exception may break the connection to Spark, and the connection error
    then replaces the exception, but `code` remains. If the exception is lost, as in a finalizer, it
    is raised again. Signals are ignored after `is_over` is set. If SIGINT was ignored from the
    start, as in a shell's background job, SIGINT stays ignored. SIGTERM is always handled.
    """

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        self.is_over = False
        self._previous: dict[int, Any] = {}
        self._previous_hook = sys.unraisablehook

    def __enter__(self) -> Self:
        sys.unraisablehook = self._on_unraisable
        if threading.current_thread() is threading.main_thread():
            handlers: dict[signal.Signals, Any] = {signal.SIGTERM: self._on_terminate}
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                handlers[signal.SIGINT] = self._on_interrupt
            for number, handler in handlers.items():
                self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._previous_hook

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self.is_over:
            self.code = self.code or ExitCode.INTERRUPTED
            raise KeyboardInterrupt

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        # A second signal must not interrupt the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self.is_over:
            self.code = self.code or ExitCode.TERMINATED
            raise _Terminated

    def _on_unraisable(self, unraisable: Any) -> None:
        """Resend the signal of a lost exception; print other unraisable exceptions as usual."""
        if isinstance(unraisable.exc_value, _Terminated):
            signal.signal(signal.SIGTERM, self._on_terminate)
            _thread.start_new_thread(_resend_signal, (signal.SIGTERM,))
        elif isinstance(unraisable.exc_value, KeyboardInterrupt):
            _thread.start_new_thread(_resend_signal, (signal.SIGINT,))
        else:
            self._previous_hook(unraisable)


def _resend_signal(number: signal.Signals) -> None:
    """Send a signal to this process, after the main thread has left `sys.unraisablehook`."""
    time.sleep(_RESEND_DELAY_SECONDS)
    os.kill(os.getpid(), number)

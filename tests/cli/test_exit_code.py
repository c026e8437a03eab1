"""Exit codes, from real failures: of the data, the usage, the environment, and of this package."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import cache_from_source
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.cli import job_main, main
from kafka_index.cli.exit_status import ExitCode
from kafka_index.core.errors import (
    ConfigError,
    CorruptLogError,
    EngineError,
    InputError,
    PublishError,
    ReadError,
)
from tests.support.builds import finish, start
from tests.support.command_line import (
    COMMAND,
    DUMP,
    ROOT,
    Argument,
    copy_partitions,
    environment,
    run_here,
    run_program,
)
from tests.support.gates import Gate, Step
from tests.support.timeouts import TIMEOUT_SECONDS

PARTITION = "orders.eu-west-0"
#: The first wins over all others, the last over none.
PRECEDENCE = (130, 143, 141, 70, 2, 3, 1, 0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return copy_partitions(tmp_path / "data", PARTITION)


# ------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(("winner", "other"), list(combinations(PRECEDENCE, 2)))
def test_two_errors_end_with_the_exit_code_of_higher_precedence(winner: int, other: int) -> None:
    assert ExitCode.first(ExitCode(other), ExitCode(winner)) == winner
    assert ExitCode.first(ExitCode(winner), ExitCode(other)) == winner


def _caused_by(number: int) -> InputError:
    error = InputError("cannot be read")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptLogError("bad"), 1),
        (InputError("none"), 2),
        (ConfigError("bad"), 2),
        (_caused_by(errno.ENOENT), 2),
        (_caused_by(errno.EACCES), 3),
        (_caused_by(errno.EIO), 3),
        (ReadError("changed"), 3),
        (PublishError("full"), 3),
        (EngineError("lost"), 3),
        (OSError(errno.ENOSPC, "full"), 3),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), 3),
        (MemoryError(), 3),
        (ModuleNotFoundError("no", name="numba.core"), 3),
        (ModuleNotFoundError("no", name="kafka_index.absent"), 70),
        (IndexError("out of range"), 70),
        (RecursionError(), 70),
    ],
)
def test_exit_code_of_a_run_is_that_of_its_error_class(error: Exception, code: int) -> None:
    assert ExitCode.from_error(error) == code


# ---------------------------------------------------------------------------------- environment


def _limited(limit: int, amount: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(limit, (amount, amount))


def _run(
    *arguments: str | Path, prepare: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**environment(), **variables},
        preexec_fn=prepare,
        timeout=TIMEOUT_SECONDS,
    )


def _is_one_line(text: str) -> bool:
    return text.startswith("kafka-index: error: ") and text.count("\n") == 1


def test_file_above_the_size_limit_of_the_process_is_an_environment_error(
    data: Path, tmp_path: Path
) -> None:
    result = _run(
        *("build", "--input", data, "--output", tmp_path / "out"),
        prepare=_limited(resource.RLIMIT_FSIZE, 100),
        # Python would keep the first hundred bytes of a module, for all that import it.
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert result.returncode == 3, result.stderr
    assert "ulimit -f" in result.stdout + result.stderr


def test_log_above_the_address_space_limit_is_an_environment_error(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020d}.log"
    log.touch()
    os.truncate(log, 1 << 30)
    program = (
        "import resource, sys\n"
        "import kafka_index.commands.dump.dump_files\n"
        "from kafka_index.cli import main\n"
        "used = 1024 * next(int(line.split()[1]) for line in open('/proc/self/status')"
        " if line.startswith('VmSize'))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    result = run_program(sys.executable, "-c", program, "dump", str(log))
    assert result.returncode == 3, result.stderr
    assert "Traceback" not in result.stderr
    assert "Cannot allocate memory" in result.stderr


def test_full_disk_under_stdout_is_an_environment_error() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, "dump", str(min((DUMP / PARTITION).glob("*.log")))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(),
        )
    assert result.returncode == 3
    assert _is_one_line(result.stderr)
    assert "No space left on device" in result.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_run_with_closed_stdout_and_stderr_completes(
    closed: str, data: Path, tmp_path: Path
) -> None:
    command = [*COMMAND, "build", "--input", str(data), "--output", str(tmp_path / "out")]
    result = run_program("sh", "-c", f'exec "$@" {closed}', "sh", *command)
    assert (result.returncode, result.stderr) == (0, "")
    assert list((tmp_path / "out").rglob("*.index"))


def test_lookup_in_a_log_without_permission_is_retriable(data: Path) -> None:
    min(data.glob("*/*.log")).chmod(0)
    arguments = ("--logs", data, "--topic", "orders.eu-west", "--partition", 0, "--offset", 5)
    result = finish(start(*arguments, command_name="lookup", privileged=False))
    assert result.returncode == 3, result.stderr
    assert "unreadable" in result.stdout
    assert "Permission denied" in result.stderr


def test_build_of_a_log_without_permission_suggests_no_next_command(
    data: Path, tmp_path: Path
) -> None:
    min(data.glob("*/*.log")).chmod(0)
    arguments = ("--input", data, "--output", tmp_path / "out")
    result = finish(start(*arguments, command_name="build", privileged=False))
    assert result.returncode == 3, result.stderr
    assert "damaged or failed" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("build", ("--output", "../out", "--report", "../report.json", "--input", ".")),
        ("dump", (f"app-0/{0:020d}.log",)),
        ("lookup", ("--topic", "app", "--partition", 0, "--offset", 3, "--logs", ".")),
    ],
)
def test_text_file_named_like_a_log_is_damage(
    command: str,
    arguments: tuple[Argument, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tmp_path / "data" / "app-0" / f"{0:020d}.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-05-01 08:30:00 INFO started\n" * 50)
    monkeypatch.chdir(tmp_path / "data")
    result = run_here(command, *arguments)
    assert result.returncode == 1
    assert "not a Kafka log" in result.stdout + result.stderr
    if command == "build":
        row, *_ = (tmp_path / "report.json").read_text().splitlines()
        assert json.loads(row)["reason_code"] == "not_a_log"
    if command == "dump":
        assert "(expected a record batch, found '2026-05-01 08:30')" in result.stderr


def test_missing_java_is_an_environment_error(data: Path, tmp_path: Path) -> None:
    arguments = ("build", "--input", data, "--output", tmp_path / "out", "--engine", "spark")
    result = _run(*arguments, JAVA_HOME=str(tmp_path / "no java"))
    assert result.returncode == 3
    assert _is_one_line(result.stderr)
    assert "Spark requires Java" in result.stderr


def test_unreachable_master_is_reported_without_starting_spark(data: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    output = ("--output", tmp_path / "out", "--engine", "spark", "--master", master)
    result = _run("build", "--input", data, *output)
    assert result.returncode == 3, result.stderr
    assert _is_one_line(result.stderr)
    assert f"{master}: Spark does not start: no connection to the master" in result.stderr
    assert "Connection refused" in result.stderr


@pytest.mark.parametrize(
    "program", [("jobs/build_index.py",), ("jobs/lookup.py",), ("-m", "kafka_index")], ids=" ".join
)
def test_missing_package_is_reported_by_name(tmp_path: Path, program: tuple[str, ...]) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('none', name='click')\n")
    command = (sys.executable, *program, "--help")
    result = run_program(*command, folder=ROOT, variables={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 3, result.stderr
    assert _is_one_line(result.stderr)
    assert "the Python package click is not installed" in result.stderr


# ------------------------------------------------------------------------------------- internal

_BROKEN = """
import sys
import kafka_index.commands.build.job as job
from kafka_index.cli import job_main, main
def fail(request):
    return [][0]
job._is_parquet = fail
sys.exit({call})
"""


@pytest.mark.parametrize(
    ("call", "traced"),
    [("main(sys.argv[1:])", False), ("job_main('build', sys.argv[2:])", True)],
)
def test_internal_error_is_one_line_that_explains_how_to_get_the_traceback(
    tmp_path: Path, call: str, *, traced: bool
) -> None:
    arguments = ["build", "--input", str(tmp_path), "--output", str(tmp_path / "out")]
    variables = {"KAFKA_INDEX_TRACEBACK": "1"} if traced else {}
    program = _BROKEN.format(call=call)
    result = run_program(sys.executable, "-c", program, *arguments, variables=variables)
    assert result.returncode == 70
    last = result.stderr.splitlines()[-1]
    assert last.startswith("kafka-index: error: internal error in ")
    assert "IndexError: list index out of range" in last
    assert "KAFKA_INDEX_TRACEBACK=1" in last
    assert ("Traceback" in result.stderr) is traced
    assert (result.stderr.count("\n") == 1) is not traced


def test_job_file_reports_an_internal_error_as_the_console_script_does(tmp_path: Path) -> None:
    package = tmp_path / "kafka_index"
    shutil.copytree(ROOT / "kafka_index", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "commands" / "build" / "request.py").write_text("raise LookupError('gone')\n")
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    command = (sys.executable, "jobs/build_index.py", "--input", "x", "--output", "y")
    result = run_program(*command, folder=tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 70, result.stderr
    assert _is_one_line(result.stderr)


# -------------------------------------------------------------------------------------- signals


_WAITING = """
import sys, time
import kafka_index.commands.build.job as job
from kafka_index.cli import main
def pause():
    for _ in range(600):
        time.sleep(0.1)  # a signal that comes just before a sleep does not end it
def wait(request):
    print("running", flush=True)
    {wait}
job._is_parquet = wait
sys.exit(main(["build", "--input", "x", "--output", "y"]))
"""
# A library that answers the signal's exception with an error of its own, or with none.
_REPLACED = "try: pause()\n    except BaseException: raise ValueError('broken connection')"
_SWALLOWED = "try: pause()\n    except BaseException: pass"


def _start_waiting(wait: str, *, ignored: signal.Signals | None = None) -> subprocess.Popen[str]:
    """Start a run that waits, in a process that has perhaps inherited an ignored signal."""
    previous = None if ignored is None else signal.signal(ignored, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _WAITING.format(wait=wait)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    finally:
        if ignored is not None:
            signal.signal(ignored, previous)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.parametrize(
    ("wait", "number", "code"),
    [
        ("pause()", signal.SIGINT, 130),
        ("pause()", signal.SIGTERM, 143),
        (_REPLACED, signal.SIGTERM, 143),
        (_SWALLOWED, signal.SIGINT, 130),
    ],
)
def test_signal_determines_the_exit_code_even_if_its_exception_is_lost(
    wait: str, number: signal.Signals, code: int
) -> None:
    process = _start_waiting(wait)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == code, stderr
    assert _is_one_line(stderr)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_signal_during_imports_ends_the_run_cleanly(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    gate = Gate(tmp_path / "gate", Step("open", cache_from_source(pa.__file__), 1))
    process = start(command_name="dump", gate=gate)
    gate.wait(process)
    process.send_signal(number)
    result = finish(process)
    assert result.returncode == code, result.stderr
    assert result.stderr == f"kafka-index: error: {word}\n"


def test_inherited_ignored_sigterm_is_handled() -> None:
    process = _start_waiting("pause()", ignored=signal.SIGTERM)
    process.terminate()
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 143, stderr


def test_ignored_sigint_stays_ignored() -> None:
    # As in a background job of a shell: Ctrl-C is not meant for it.
    process = _start_waiting("pause()", ignored=signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.terminate()
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 143, stderr


def test_signal_handlers_are_restored_after_the_run() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["--version"]) == 0
    job_main("build", ["--help"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

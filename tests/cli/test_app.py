from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import kafka_index as package
from kafka_index.cli import job_main, main
from kafka_index.cli.app import COMMANDS, load_command
from kafka_index.cli.command import Option
from kafka_index.core.job.request import Group
from tests.support.command_line import (
    DUMP,
    ROOT,
    environment,
    run_here,
    run_program,
)

JOBS = {"build": "build_index.py", "lookup": "lookup.py"}
JOB_COMMANDS = ("build", "export", "find", "import", "lookup", "restore", "rewrite", "verify")


#: Ctrl-C while the command line is imported.
EARLY_INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupts:
    def find_spec(name, path=None, target=None):
        if name == "kafka_index.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts)
from kafka_index.cli import main
sys.exit(main(["--version"]))
"""


def commands_of(name: str, *, as_job: bool = False) -> dict[tuple[str, ...], click.Command]:
    """Return a command, or the commands of a group, by their words."""
    result = load_command(name, as_job=as_job)
    if isinstance(result, click.Group):
        return {(name, word): each for word, each in result.commands.items()}
    return {(name,): result}


COMMAND_LINES = {words: each for name in COMMANDS for words, each in commands_of(name).items()}


@pytest.mark.parametrize(
    "command",
    [
        *COMMAND_LINES.values(),
        *(each for name in JOB_COMMANDS for each in commands_of(name, as_job=True).values()),
    ],
    ids=lambda command: command.name,
)
def test_every_option_is_in_a_group_of_the_help(command: click.Command) -> None:
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert options
    assert [option.name for option in options if not isinstance(option, Option)] == []


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_help_of_a_command_has_all_options_by_group_and_ends_with_its_page(
    words: tuple[str, ...],
) -> None:
    text = run_here(*words, "--help").stdout
    titles = [line[:-1] for line in text.splitlines() if re.fullmatch(r"[A-Z][\w ]+:", line)]
    order = [group.value for group in Group]
    assert titles == sorted(titles, key=order.index)
    for option in COMMAND_LINES[words].params:
        if isinstance(option, Option):
            section = text.partition(f"\n{option.group.value}:\n")[2].partition("\n\n")[0]
            for name in option.opts:
                assert re.search(rf"^  (-.+, )?{name}\b", section, re.MULTILINE), name
    assert f"kafka-index {' '.join(words)}" in text.partition("Examples:")[2].partition("\n\n")[0]
    last = text.splitlines()[-1].split()
    assert last[-3:-1] == ["kafka-index", "help"]
    assert run_here("help", last[-1]).returncode == 0


def test_help_texts_start_in_the_same_column() -> None:
    lines = run_here("restore", "--help").stdout.partition("\nInput:\n")[2].splitlines()
    result = [re.match(r"  (-\w, )?--[\w-]+( \S+)?  +(?=\S)", line) for line in lines]
    assert len({match.end() for match in result if match is not None}) == 1


def test_interrupt_while_python_imports_is_one_line() -> None:
    result = run_program(sys.executable, "-c", EARLY_INTERRUPT)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "kafka-index: error: interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lookup", "--logs", ".", "--topic", "a", "--offset", "1_000"],
        ["lookup", "--logs", ".", "--topic", "a", "--timestamp", "ms:1_000"],
        ["predict", "--input", ".", "--max-decompressed-bytes", "\u0661\u0660"],
        ["build", "--input", ".", "--output", "b", "--threads", "1_0"],
        ["restore", "--input", ".", "--output", "b", "--log-start", "a-0=\u00b2"],
    ],
)
def test_number_with_other_characters_than_digits_is_rejected(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert repr(arguments[-1]) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("verify", "--topics"),
        ("verify", "--key-prefix"),
        ("build", "--what"),
        ("backup", "--every"),
        ("restore", "--until"),
        ("restore", "--drop-keys"),
        ("export", "--from"),
        ("export", "--columns"),
        ("cat", "--limit"),
    ],
)
def test_empty_value_of_an_option_is_rejected(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = ["payments"] if command == "cat" else []
    output = [] if command in ("verify", "cat") else ["--output", str(tmp_path / "out")]
    assert main([command, *topic, "--input", str(DUMP), *output, option, ""]) == 2
    assert capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_empty_names_between_the_commas_of_a_choice_are_skipped(tmp_path: Path) -> None:
    arguments = ["build", "--input", str(DUMP / "payments-0"), "--output", str(tmp_path)]
    assert main([*arguments, "--what", "index,,epochs,"]) == 0
    kinds = {path.suffix for path in tmp_path.rglob("[0-9]*")}
    assert kinds == {".index"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            f"lookup --logs . --topic a --offset {'9' * 20}",
            "--offset is not a number in the valid range",
        ),
        ("biuld", "Did you mean 'build'?"),
        ("find --input . --key", "(see kafka-index find --help)"),
    ],
)
def test_wrong_usage_prints_a_hint(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert said in capsys.readouterr().err


def test_packaged_version_equals_source_version() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    dynamic = settings["tool"]["setuptools"]["dynamic"]
    assert dynamic["version"]["attr"] == "kafka_index.__version__"


def test_package_runs_as_a_module() -> None:
    result = run_program(sys.executable, "-m", "kafka_index", "--version")
    assert (result.returncode, result.stdout) == (0, f"kafka-index {package.__version__}\n")


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["build", "--nonsense"]])
def test_wrong_usage_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


def test_program_without_a_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    asked = capsys.readouterr()
    assert main([]) == 0
    assert capsys.readouterr() == asked


@pytest.mark.parametrize(
    ("job", "option"),
    [
        *((job, option) for job in JOBS for option in ("--engine", "--master", "--threads")),
        *(("lookup", option) for option in ("--topic", "--timestamp", "--json")),
    ],
)
def test_spark_job_rejects_engine_option_and_single_lookups(
    job: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        job_main(job, ["--output", "y", option, "1"])
    assert leaving.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("job", JOBS)
def test_successful_spark_job_does_not_call_exit(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job_main(job, ["--help"])
    assert f"spark-submit jobs/{JOBS[job]}" in capsys.readouterr().out


def test_core_imports_neither_pyspark_nor_pandas() -> None:
    modules = (
        "kafka_index.cli, kafka_index.commands.build.job, "
        "kafka_index.commands.lookup.lookup_job, kafka_index.commands.verify.job"
    )
    program = (
        f"import sys, {modules}; sys.exit(not {{'pyspark', 'pandas'}}.isdisjoint(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, env=environment())
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("lookup", ("--input", "--logs")),
        ("lookup", ("--at", "--timestamp")),
        ("dump", ("--at", "--time")),
        ("build", ("--overwrite", "--force")),
        ("rewrite", ("--overwrite", "--force")),
    ],
)
def test_help_shows_the_current_and_the_older_name_of_an_option(
    command: str, names: tuple[str, str]
) -> None:
    assert f"  {', '.join(names)} " in run_here(command, "--help").stdout


def test_help_names_every_command_once() -> None:
    lines = run_here("--help").stdout.splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  ") and line.split()]
    assert [name for name in shown if name in COMMANDS] == list(COMMANDS)
    assert "  Examples:" in lines


PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("name", ["lookup", "lookup-tables"])
def test_docs_command_prints_a_page_unchanged(name: str) -> None:
    result = run_here("help", name)
    assert (result.returncode, result.stdout) == (0, PAGES[name])


def test_docs_command_without_a_page_lists_all_pages() -> None:
    lines = run_here("help").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(PAGES)
    dump = next(line for line in lines if line.startswith("dump "))
    assert dump.endswith("  Print the contents of files")


def test_unknown_page_is_wrong_usage_and_the_error_names_the_command_that_lists_them() -> None:
    result = run_here("help", "look")
    assert result.returncode == 2
    assert "unknown page 'look'; run `kafka-index help`" in result.stderr


def test_running_a_command_keeps_pandas_importable() -> None:
    program = (
        "import sys; from kafka_index.cli import main; main(['dump', sys.argv[1]]);"
        "import pyarrow as pa; [nanos] = pa.array([1], pa.timestamp('ns')).to_pylist();"
        "sys.exit(nanos.value != 1)"
    )
    result = run_program(sys.executable, "-c", program, DUMP / "payments-0")
    assert result.returncode == 0, result.stderr

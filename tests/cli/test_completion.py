"""Completion in the shells themselves, with the script that each of them loads."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from kafka_index.cli.app import load_command
from kafka_index.cli.command import complete_topic
from tests.support.command_line import DUMP, environment, run_program
from tests.support.timeouts import TIMEOUT_SECONDS

# What a shell runs to complete the last word of WORDS, and prints, after its script is loaded.
_BASH = """
eval "$SCRIPT"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
compopt() {{ echo "paths: $*"; }}
_kafka_index_completion kafka-index
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# What the completion system of an interactive zsh provides.
_ZSH = """
compdef() {{ : }}
_describe() {{ eval 'print -l -- "${{(@)'$3'%%:*}}"' }}
compadd() {{ eval 'print -l -- "${{(@)'${{@[-1]}}'}}"' }}
_path_files() {{ print "paths: $*" }}
eval "$SCRIPT"
words=({words}); CURRENT=${{#words}}
_kafka_index_completion
"""
_FISH = """
echo "$SCRIPT" | source
complete --do-complete "{words}"
"""
SHELLS = [
    pytest.param(
        shell,
        script,
        id=shell,
        marks=pytest.mark.skipif(not shutil.which(shell), reason=f"no {shell}"),
    )
    for shell, script in (("bash", _BASH), ("zsh", _ZSH), ("fish", _FISH))
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that finds the console script."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "kafka-index"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kafka_index "$@"\n')
    script.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**environment(), "PATH": path}


@cache
def source_of(shell: str) -> str:
    """The script that a shell loads, which is the same each time."""
    result = subprocess.run(
        [sys.executable, "-m", "kafka_index"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**environment(), "_KAFKA_INDEX_COMPLETE": f"{shell}_source"},
        timeout=TIMEOUT_SECONDS,
    )
    return result.stdout


def completions(
    shell: str, script: str, words: str, commands: dict[str, str], folder: Path
) -> list[str]:
    arguments = ["--norc"] if shell == "bash" else ["--no-config"] if shell == "fish" else ["-f"]
    result = subprocess.run(
        [shutil.which(shell) or shell, *arguments, "-c", script.format(words=words)],
        capture_output=True,
        text=True,
        check=False,
        env={**commands, "SCRIPT": source_of(shell)},
        cwd=folder,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.stderr == ""
    return [line.split("\t")[0] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(("shell", "script"), SHELLS)
def test_commands_options_and_choices_are_completed(
    shell: str, script: str, commands: dict[str, str], tmp_path: Path
) -> None:
    assert "lookup" in completions(shell, script, "kafka-index loo", commands, tmp_path)
    result = completions(shell, script, "kafka-index lookup --resol", commands, tmp_path)
    assert result == ["--resolve"]
    words = "kafka-index lookup --resolve ba"
    assert completions(shell, script, words, commands, tmp_path) == ["batch"]


@pytest.mark.parametrize(("shell", "script"), SHELLS)
@pytest.mark.parametrize("words", ["lookup --logs du", "find --input x du", "dump du"])
def test_completion_of_paths_is_left_to_the_shell(
    shell: str, script: str, words: str, commands: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "dump").mkdir()
    result = completions(shell, script, f"kafka-index {words}", commands, tmp_path)
    assert result[0] == "dump/" if shell == "fish" else result[0].startswith("paths: ")


def test_shell_completion_imports_no_command(commands: dict[str, str]) -> None:
    program = (
        "import sys; from kafka_index.cli import main; main();"
        "sys.exit('numpy' in sys.modules or 'kafka_index.cli.lookup_command' in sys.modules)"
    )
    asked = {
        "_KAFKA_INDEX_COMPLETE": "bash_complete",
        "COMP_WORDS": "kafka-index l",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**commands, **asked},
        timeout=TIMEOUT_SECONDS,
    )
    assert (result.returncode, result.stdout) == (0, "plain,lookup\n")


@pytest.mark.parametrize(("shell", "script"), SHELLS)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("lookup --input dump --topic pay", ["payments"]),
        ("find --input dump --topics pay", ["payments"]),
        ("cat --input dump pay", ["payments"]),
        ("verify --input other dump --topics audit", ["audit.trail"]),
        ("verify --input dump/payments-1 --topics ''", ["payments"]),
    ],
)
def test_topics_below_the_input_are_completed(
    shell: str,
    script: str,
    words: str,
    found: list[str],
    commands: dict[str, str],
    tmp_path: Path,
) -> None:
    (tmp_path / "dump").symlink_to(DUMP)
    (tmp_path / "other").mkdir()
    assert completions(shell, script, f"kafka-index {words}", commands, tmp_path) == found


def completed(*words: str, folder: Path) -> list[str]:
    """The values that click prints for the last word."""
    asked = {
        "_KAFKA_INDEX_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(("kafka-index", *words)),
        "COMP_CWORD": str(len(words)),
    }
    result = run_program(sys.executable, "-m", "kafka_index", folder=folder, variables=asked)
    assert (result.returncode, result.stderr) == (0, "")
    return [line.partition(",")[2] for line in result.stdout.split()]


@pytest.mark.parametrize("path", ["dump", "du*", "dump/payments-*", "s3://user:pw@b/x dump"])
def test_completion_extends_the_last_alternative_of_a_topic_pattern(
    path: str, tmp_path: Path
) -> None:
    (tmp_path / "dump").symlink_to(DUMP)
    words = ("find", "--input", *path.split(), "--topics", "orders|pay")
    assert completed(*words, folder=tmp_path) == ["orders|payments"]


@pytest.mark.parametrize("path", ["s3://bucket/dump", "p-0", "a-file"])
def test_completion_without_a_local_input_offers_no_topics(path: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    assert completed("find", "--input", path, "--topics", "p", folder=tmp_path) == []


def test_completion_does_not_wait_for_a_hanging_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer, asked = threading.Event(), threading.Event()

    def hang(_path: str) -> NoReturn:
        asked.set()
        answer.wait()
        raise OSError

    monkeypatch.setattr("os.scandir", hang)
    command = load_command("cat", as_job=False)
    with command.make_context(
        "cat", ["--input", str(tmp_path), "t"], resilient_parsing=True
    ) as context:
        assert complete_topic(context, command.params[0], "") == []
    assert asked.is_set()
    answer.set()

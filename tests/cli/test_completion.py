"""Completion in the shells themselves, with the script that each of them loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment
from tests.support.timeouts import TIMEOUT_SECONDS

# What a shell runs to complete the last word of WORDS, and prints.
_BASH = """
eval "$(_KAFKA_INDEX_COMPLETE=bash_source kafka-index)"
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
eval "$(_KAFKA_INDEX_COMPLETE=zsh_source kafka-index)"
words=({words}); CURRENT=${{#words}}
_kafka_index_completion
"""
_FISH = """
_KAFKA_INDEX_COMPLETE=fish_source kafka-index | source
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


def completions(
    shell: str, script: str, words: str, commands: dict[str, str], folder: Path
) -> list[str]:
    arguments = ["--norc"] if shell == "bash" else ["--no-config"] if shell == "fish" else ["-f"]
    done = subprocess.run(
        [shutil.which(shell) or shell, *arguments, "-c", script.format(words=words)],
        capture_output=True,
        text=True,
        check=False,
        env=commands,
        cwd=folder,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.stderr == ""
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("shell", "script"), SHELLS)
def test_commands_options_and_choices_are_completed(
    shell: str, script: str, commands: dict[str, str], tmp_path: Path
) -> None:
    assert "lookup" in completions(shell, script, "kafka-index loo", commands, tmp_path)
    found = completions(shell, script, "kafka-index lookup --resol", commands, tmp_path)
    assert found == ["--resolve"]
    words = "kafka-index lookup --resolve ba"
    assert completions(shell, script, words, commands, tmp_path) == ["batch"]


@pytest.mark.parametrize(("shell", "script"), SHELLS)
@pytest.mark.parametrize("words", ["lookup --logs du", "lookup --logs x du", "dump du"])
def test_paths_are_left_to_the_shell(
    shell: str, script: str, words: str, commands: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "dump").mkdir()
    found = completions(shell, script, f"kafka-index {words}", commands, tmp_path)
    assert found[0] == "dump/" if shell == "fish" else found[0].startswith("paths: ")


def test_completions_of_commands_import_none_of_them(commands: dict[str, str]) -> None:
    program = (
        "import sys; from kafka_index.cli import main; main();"
        "sys.exit('numpy' in sys.modules or 'kafka_index.cli.lookup_command' in sys.modules)"
    )
    asked = {
        "_KAFKA_INDEX_COMPLETE": "bash_complete",
        "COMP_WORDS": "kafka-index l",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**commands, **asked},
        timeout=TIMEOUT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "plain,lookup\n")

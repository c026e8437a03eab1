"""Completion of commands, options and paths in bash, zsh and fish, by click."""

from __future__ import annotations

import os

import click
from click.shell_completion import shell_complete

#: Set by the shell that asks, to ``bash_source`` or ``bash_complete``, and so for zsh and fish.
COMPLETE_VARIABLE = "_KAFKA_INDEX_COMPLETE"
#: What the names of values that are paths begin with; further paths of an option have no name.
_PATHS = ("PATH", "FILE", "DIR", "URI")


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

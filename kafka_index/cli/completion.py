"""Shell completion of paths and of topics below the given inputs."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kafka_index.core.format.names import TopicPartition

#: The option that accepts several paths per use.
PATHS = "inputs"
#: Maximum completion time, since a folder may be on a network.
WAIT_SECONDS = 1.0
# Prefixes of metavars that are paths; further paths of an option have no metavar.
_PATH_NAMES = ("PATH", "FILE", "DIR", "URI")


def complete_paths(command: click.Command) -> click.Command:
    """Enable completion for a command's options and arguments that are paths."""
    for parameter in command.params:
        is_plain = isinstance(parameter.type, click.types.StringParamType)
        names_path = (parameter.metavar or "").startswith(_PATH_NAMES)
        if is_plain and (names_path or parameter.metavar == ""):
            parameter.type = click.Path()
    return command


def complete_topic(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the topics below the local folders that precede on the command line."""
    # Parsing stops at the option without a value; further paths are in context.args.
    names = _topics_below([*(context.params.get(PATHS) or ()), *context.args])
    return [name for name in names if name.startswith(incomplete)]


def complete_topics(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Complete the last alternative of a topic pattern."""
    before, bar, last = incomplete.rpartition("|")
    return [f"{before}{bar}{name}" for name in complete_topic(context, parameter, last)]


def _topics_below(paths: Sequence[str]) -> list[str]:
    """Return topics of partition directories, and of partition directories in data directories.

    Returns the names found so far when the time limit is reached.
    """
    from kafka_index.core.format.names import parse_partition_directory  # noqa: PLC0415, slow to import

    found: set[str] = set()
    folders = [os.path.expanduser(path) for path in paths if "://" not in path]
    reader = threading.Thread(
        target=_collect_topics, args=[folders, parse_partition_directory, found], daemon=True
    )
    reader.start()
    reader.join(WAIT_SECONDS)
    return sorted(found.copy())


def _collect_topics(
    folders: Sequence[str], parse: Callable[[str], TopicPartition | None], found: set[str]
) -> None:
    for folder in folders:
        for path in glob.iglob(folder) if glob.has_magic(folder) else [folder]:
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                is_data_directory = False
                for partition in map(parse, (each.name for each in entries)):
                    if partition is not None:
                        is_data_directory = True
                        found.add(partition.topic)
                # The name of a data directory may look like that of a partition.
                own = parse(os.path.basename(os.path.abspath(path)))
                if own is not None and not is_data_directory:
                    found.add(own.topic)

"""The options of commands that read records: what is read, and between which times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import click

from kafka_index.cli.numbers import MOMENTS, TIME_HELP, moment
from kafka_index.cli.options import (
    Decorator,
    max_decompressed_option,
    paths_options,
    topics_option,
)
from kafka_index.cli.tiered_options import check_input, tiered_options
from kafka_index.layout.times import is_relative, time_text
from kafka_index.tiered.options import TieredOptions


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The logs whose records are read."""

    paths: tuple[str, ...]
    tiered: TieredOptions | None
    indexes: str | None
    topics: re.Pattern[str] | None

    @property
    def folders(self) -> list[str]:
        """The folders that are read from."""
        tiered = () if self.tiered is None else self.tiered.uris
        return [*self.paths, *tiered, *([self.indexes] if self.indexes else [])]


def input_options() -> list[Decorator]:
    """Return the options for `make_input`."""
    return [
        *paths_options(
            "--input", "inputs", "The logs; may be given several times and take several paths."
        ),
        *tiered_options(),
        click.option(
            "--indexes",
            metavar="PATH",
            help="The folder of the index files, as `build --output` writes it.  "
            "[default: beside the logs]",
        ),
        topics_option(),
        max_decompressed_option(),
    ]


def make_input(
    inputs: Sequence[str],
    tiered: TieredOptions | None,
    indexes: str | None,
    topics: re.Pattern[str] | None,
) -> InputOptions:
    """Return the logs to read; refuse options that name none."""
    check_input(inputs, tiered)
    return InputOptions(tuple(inputs), tiered, indexes, topics)


def isolation_option() -> Decorator:
    """Return the option of transactions: ``isolation``."""
    return click.option(
        "--isolation",
        type=click.Choice(["read_uncommitted", "read_committed"]),
        default="read_uncommitted",
        show_default=True,
        help="Whether to leave out records of transactions that are aborted or open.",
    )


def time_options() -> list[Decorator]:
    """Return the options of a range of times, for `time_range`: ``from_ms``, ``to_ms``."""
    return [
        click.option(
            "--from",
            "from_ms",
            callback=moment,
            metavar="TIME",
            help=f"Only records whose own timestamp is this or later. {TIME_HELP}",
        ),
        click.option(
            "--to",
            "to_ms",
            callback=moment,
            metavar="TIME",
            help="Only records whose own timestamp is earlier than this.",
        ),
    ]


def relative_times() -> dict[str, str]:
    """Return the options of a range that are relative to now, as they are given."""
    given = click.get_current_context().meta.get(MOMENTS, {})
    return {name: text for name, text in given.items() if is_relative(text)}


def time_range(from_ms: int | None, to_ms: int | None) -> tuple[int | None, int | None]:
    """Return a range of times, the second exclusive; refuse one that no time is in.

    A record without a timestamp has -1, and is in no range of times, not even in one that has only
    an end.
    """
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise click.UsageError(
            f"no time is in the range: --from is {time_text(from_ms)}, and --to, which is "
            f"exclusive, {time_text(to_ms)}"
        )
    if from_ms is None and to_ms is None:
        return None, None
    return max(from_ms or 0, 0), to_ms

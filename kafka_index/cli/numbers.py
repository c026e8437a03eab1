"""The numbers and times that options take."""

from __future__ import annotations

import click

from kafka_index.cli.run_summary import run_summary
from kafka_index.config import parse_integer
from kafka_index.errors import InputError
from kafka_index.layout.times import parse_time

#: What a time may be, for the help of options.
TIME_HELP = (
    "A time is 2024-05-01T00:00:00Z or a date (UTC where no zone is given), milliseconds since "
    "1970 (ms:N where N looks like seconds), now, today, yesterday (UTC), or relative: -90m, -36h, "
    "-7d."
)


class Whole(click.IntRange):
    """An integer from a least to a most one, both included, written in decimal digits."""

    name = "integer"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse a text; click itself accepts ``1_000`` and other scripts, as Python does."""
        if isinstance(value, str):
            number = parse_integer(value)
            if number is None:
                self.fail(f"{value!r} is not a 64-bit integer in decimal digits", param, ctx)
            value = number
        return int(super().convert(value, param, ctx))


#: Where a context keeps the texts of times, by the names of parameters.
MOMENTS = f"{__name__}.moments"


def parse_moment(text: str) -> int:
    """Return a time in ms since the epoch; all of a run are relative to its start."""
    try:
        return parse_time(text, now=run_summary().started_ms)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def moment(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Return the value of an option that is a time, for its callback; `MOMENTS` keep the text."""
    if value is None:
        return None
    context.meta.setdefault(MOMENTS, {})[option.name] = value
    return parse_moment(value)

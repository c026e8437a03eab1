"""The numbers that options take."""

from __future__ import annotations

import click

from kafka_index.config import parse_integer


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

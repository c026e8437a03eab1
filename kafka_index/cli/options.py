"""Checks of option values that commands share, as click's callbacks."""

from __future__ import annotations

import re

import click

from kafka_index.build.report import check_report_path
from kafka_index.errors import InputError


def pattern(_context: click.Context, _option: click.Parameter, value: str | None) -> object:
    """Compile a regular expression, or refuse it with where it goes wrong."""
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error


def report_path(_context: click.Context, _option: click.Parameter, value: str | None) -> object:
    """Return the local path of a report, or refuse its ending."""
    try:
        return None if value is None else check_report_path(value)
    except InputError as error:
        raise click.BadParameter(str(error)) from error

"""``warm-up``: compiles all kernels beforehand, for images and after an installation."""

from __future__ import annotations

import time

import click

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import command
from kafka_index.cli.text import format_seconds

_HELP = """Compile all kernels and keep their machine code, so that no later run compiles any.

    The code is kept where later runs look for it: in NUMBA_CACHE_DIR, or below ~/.cache; with
    `--shared` beside the installed packages, for every user who may run them. It serves the
    versions of Python, numba, llvmlite and numpy that are installed, on CPUs of this kind: run it
    again after an update, and build images on the kind of machine that they run on.

    Exit code 0: all kernels are kept. 3: they cannot be written.

    \b
    Examples:
      kafka-index warm-up
      RUN pip install kafka-index && kafka-index warm-up --shared
    """


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``warm-up`` command, which does not run as a job."""
    if as_job:
        raise ValueError("warm-up does not run as a job")

    def warm_up(
        shared: bool,  # noqa: FBT001, because click passes options by name
    ) -> int:
        from kafka_index.kernels.cache_folders import (  # noqa: PLC0415, slow to import
            cache_folders,
            keep_in_shared_folder,
        )
        from kafka_index.kernels.compile_clock import compile_clock  # noqa: PLC0415
        from kafka_index.kernels.warm_up import warm_up as warm_up_kernels  # noqa: PLC0415

        if shared:
            keep_in_shared_folder()
        started = time.monotonic()
        warm_up_kernels()
        folder = cache_folders().writable
        if folder is None:
            return ExitCode.ENVIRONMENT
        seconds = format_seconds(time.monotonic() - started)
        done = f"compiled in {seconds}" if compile_clock.count else "already compiled"
        click.echo(f"all kernels are {done}, and kept in {folder}")
        return ExitCode.DONE

    made = command(
        warm_up,
        [
            click.option(
                "--shared",
                is_flag=True,
                help="Keep the code beside the installed packages, for every user.",
            )
        ],
        help_text=_HELP,
        usage="[OPTIONS]",
        has_links=False,
    )
    made.name = "warm-up"
    return made

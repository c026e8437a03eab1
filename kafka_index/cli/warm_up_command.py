"""``warm-up``: compiles all kernels beforehand, for images and after an installation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.exit_status import ExitCode
from kafka_index.cli.options import command, flag
from kafka_index.cli.shared_options import Detail, detail_options
from kafka_index.core.format.human import format_seconds
from kafka_index.core.job.request import Group

_HELP = """Compile all kernels and keep their machine code, so that no later run compiles any.

    The code is kept where later runs look for it: in NUMBA_CACHE_DIR, or below ~/.cache; with
    `--shared` beside the installed packages, for every user who may run them. It serves the
    versions of Python, numba, llvmlite and numpy that are installed, on CPUs of this kind: run it
    again after an update, and build images on the kind of machine that they run on. Wheels with
    machine code need none of this, where it fits the Python, the libraries and the CPU.

    Exit code 0: all kernels are kept, or came with the package. 3: they cannot be written.
    """
_EXAMPLES = """\
kafka-index warm-up
RUN pip install kafka-index && kafka-index warm-up --shared
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpOptions:
    """The options of ``warm-up``."""

    shared: bool = flag(
        "--shared",
        group=Group.OUTPUT,
        help="Keep the code beside the installed packages, for every user.",
    )
    detail: Detail = detail_options()


def _run(options: WarmUpOptions) -> ExitCode:
    from kafka_index.core.kernels.compile_cache import (  # noqa: PLC0415, slow to import
        are_all_packaged,
        cache_folders,
        keep_in_shared_folder,
    )
    from kafka_index.core.kernels.compile_clock import compile_clock  # noqa: PLC0415
    from kafka_index.core.kernels.warm_up import warm_up as warm_up_kernels  # noqa: PLC0415

    if options.shared:
        keep_in_shared_folder()
    started = time.monotonic()
    warm_up_kernels()
    if are_all_packaged():
        text = "all kernels are already compiled: their machine code came with the package"
        click.echo(text, file=options.detail.stdout)
        return ExitCode.DONE
    folder = cache_folders().writable
    if folder is None:
        return ExitCode.ENVIRONMENT
    seconds = format_seconds(time.monotonic() - started)
    done = f"compiled in {seconds}" if compile_clock.count else "already compiled"
    click.echo(f"all kernels are {done}, and kept in {folder}", file=options.detail.stdout)
    return ExitCode.DONE


make_command = partial(
    command,
    "warm-up",
    WarmUpOptions,
    _run,
    help_text=_HELP,
    usage="[OPTIONS]",
    examples=_EXAMPLES,
    has_links=False,
    page="installation",
)

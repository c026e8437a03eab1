"""The request of ``warm-up``."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.core.job.request import CommandSpec, FlagKind, Group, Request, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpRequest(Request):
    """Parameters of a warm-up."""

    shared: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Cache the machine code next to the installed packages, for every user.",
        default=False,
    )


WARM_UP = CommandSpec(
    "warm-up",
    WarmUpRequest,
    work="commands.warm_up.kernels:warm_up",
    help="""Compile all kernels and cache their machine code, so that later runs start at once.

    The cache is NUMBA_CACHE_DIR, or a folder below ~/.cache. With `--shared`, it is next to the
    installed packages, and serves every user. It is valid for the installed versions of Python,
    numba, llvmlite and numpy, and for CPUs of this kind.

    Run the command again after an update. Build images on the kind of machine on which they run.
    Wheels with machine code do not need it, if that code fits Python, the libraries and the CPU.

    \b
    Exit codes:
      0   All kernels are cached, or came with the package.
      3   The cache cannot be written.
    """,
    usage="[OPTIONS]",
    examples="""\
kafka-index warm-up
RUN pip install kafka-index && kafka-index warm-up --shared
""",
    has_engine=False,
    page="installation",
)

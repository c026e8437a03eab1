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
        "Keep the code next to the installed packages, for every user.",
        default=False,
    )


WARM_UP = CommandSpec(
    "warm-up",
    WarmUpRequest,
    work="commands.warm_up.kernels:warm_up",
    help="""Compile all kernels and keep their machine code, so that no later run compiles any.

    The code is kept in NUMBA_CACHE_DIR, or below ~/.cache; with `--shared` next to the installed
    packages, for every user who may run them. It serves the installed versions of Python, numba,
    llvmlite and numpy, on CPUs of this kind. Run it again after an update, and build images on
    the kind of machine that they run on. Wheels with machine code do not need it if that code
    fits the Python, the libraries and the CPU.

    Exit code 0: all kernels are kept, or came with the package. 3: they cannot be written.
    """,
    usage="[OPTIONS]",
    examples="""\
kafka-index warm-up
RUN pip install kafka-index && kafka-index warm-up --shared
""",
    has_engine=False,
    page="installation",
)

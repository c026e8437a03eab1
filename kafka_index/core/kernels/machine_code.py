"""Machine code compiled from LLVM assembly, and machine code contained in wheels.

`core.kernels.compile_cache` caches code for the local CPU. Wheels contain code for each CPU level,
one file per signature in the same format. Its key is the same content: sources, argument types and
compiler versions. Files that are missing, damaged or for other content are ignored. Wheel code is
as trustworthy as the modules of the package, which the same users can change.
"""

from __future__ import annotations

import functools
import hashlib
import pkgutil
import platform
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from types import MappingProxyType
from typing import Any

import llvmlite.binding
import numba
import numpy as np

# Engines are never freed, because the addresses of their code are stored elsewhere.
_engines: list[Any] = []

_X86_64_V3 = (
    "cmov cx8 cx16 fxsr mmx sse sse2 sse3 ssse3 sse4.1 sse4.2 crc32 popcnt sahf "
    "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
)

#: CPU levels for which wheels contain code, by machine, best first: LLVM's name of the level, and
#: the CPU features that it needs. The code for aarch64 needs only features of every Linux CPU.
LEVELS: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "x86_64": MappingProxyType({"x86-64-v3": frozenset(_X86_64_V3.split())}),
        "aarch64": MappingProxyType({"generic": frozenset()}),
    }
)

#: Versions of the compiler, by package name.
COMPILED_BY = MappingProxyType(
    {
        "numba": numba.__version__,
        "llvmlite": metadata.version("llvmlite"),
        "numpy": np.__version__,
    }
)


def host_has(*features: str) -> bool:
    """Return whether this CPU has all of these features (LLVM names)."""
    found = llvmlite.binding.get_host_cpu_features()
    return all(found.get(feature, False) for feature in features)


def compile_function(name: str, source: str) -> int:
    """Compile LLVM assembly for this CPU and return the address of function `name`."""
    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    machine = llvmlite.binding.Target.from_default_triple().create_target_machine(
        cpu=llvmlite.binding.get_host_cpu_name(),
        features=llvmlite.binding.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
    module = llvmlite.binding.parse_assembly(source)
    engine = llvmlite.binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(name))


def folder_for(machine: str) -> str:
    """Return the folder of machine code in this package for this Python and compiler.

    Like extension modules, it applies to all releases of a minor version of Python.
    """
    suffix = EXTENSION_SUFFIXES[0].replace(platform.machine(), machine)
    key = repr((suffix, *COMPILED_BY.items()))
    return f"packaged-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


_FOLDER = folder_for(platform.machine())


@functools.cache
def usable_levels(features: str) -> tuple[str, ...]:
    """Return the levels whose code runs on a CPU, best first.

    `features`: LLVM's comma-separated names, each with the prefix ``+`` or, if missing, ``-``.
    """
    found = {name[1:] for name in features.split(",") if name.startswith("+")}
    levels = LEVELS.get(platform.machine(), {})
    return tuple(name for name, needed in levels.items() if needed <= found)


def read_packaged(file: str) -> bytes | None:
    """Return the content of a machine code file in the package, None if it does not exist."""
    # The loader reopens a zip for each file, so forked workers can read concurrently.
    try:
        return pkgutil.get_data(__name__.rpartition(".")[0], f"{_FOLDER}/{file}")
    except OSError:
        return None

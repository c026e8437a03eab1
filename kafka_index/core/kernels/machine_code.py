"""Machine code from elsewhere: compiled from LLVM assembly, and carried by wheels.

Where `core.kernels.compile_cache` keeps code for the CPU that it was compiled on, wheels
carry it for every CPU of a level, each signature in a file of the same format. It is found by the
same content: the sources, the argument types, and the versions of what compiled it. A file that is
not there, is damaged, or is for something else, is not used. It is trusted as the package's modules
are, because nobody can change it who cannot change them.
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

# Machine code lives as long as its engine, and its address is held elsewhere: none is ever freed.
_engines: list[Any] = []

_X86_64_V3 = (
    "cmov cx8 cx16 fxsr mmx sse sse2 sse3 ssse3 sse4.1 sse4.2 crc32 popcnt sahf "
    "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
)

#: By machine, the levels that wheels have code for, the best first: LLVM's name of the level, and
#: of the features that a CPU must have.
#: The code for aarch64 needs nothing that not every CPU of Linux has there.
LEVELS: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "x86_64": MappingProxyType({"x86-64-v3": frozenset(_X86_64_V3.split())}),
        "aarch64": MappingProxyType({"generic": frozenset()}),
    }
)

#: The versions that the code is compiled by, by the names of their packages.
COMPILED_BY = MappingProxyType(
    {
        "numba": numba.__version__,
        "llvmlite": metadata.version("llvmlite"),
        "numpy": np.__version__,
    }
)


def host_has(*features: str) -> bool:
    """Return whether this CPU has all of these features, by LLVM's names."""
    found = llvmlite.binding.get_host_cpu_features()
    return all(found.get(feature, False) for feature in features)


def compile_function(name: str, source: str) -> int:
    """Compile LLVM assembly for this CPU.

    `name`: the function wanted; `source`: a module that defines it. Returns its address.
    """
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
    """Return the folder of the code in this package, for this Python and these versions.

    Extension modules, too, serve every release of a minor version of Python on one kind of system.
    """
    suffix = EXTENSION_SUFFIXES[0].replace(platform.machine(), machine)
    key = repr((suffix, *COMPILED_BY.items()))
    return f"packaged-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


_FOLDER = folder_for(platform.machine())


@functools.cache
def usable_levels(features: str) -> tuple[str, ...]:
    """Return the levels whose code runs on a CPU, the best first.

    `features`: LLVM's names of the CPU's features, each after ``+``, or after ``-`` if it is
    missing, with commas between.
    """
    found = {name[1:] for name in features.split(",") if name.startswith("+")}
    levels = LEVELS.get(platform.machine(), {})
    return tuple(name for name, needed in levels.items() if needed <= found)


def read_packaged(file: str) -> bytes | None:
    """Return the content of a file of machine code, or None where the package has none."""
    # The loader opens a zip anew for each file, so that forked workers may read at once.
    try:
        return pkgutil.get_data(__name__.rpartition(".")[0], f"{_FOLDER}/{file}")
    except OSError:
        return None

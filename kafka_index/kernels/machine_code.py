"""Small functions written in LLVM assembly, for what numba can neither express nor cache."""

from __future__ import annotations

from typing import Any

import llvmlite.binding

# Machine code lives as long as its engine, and its address is held elsewhere: none is ever freed.
_engines: list[Any] = []


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

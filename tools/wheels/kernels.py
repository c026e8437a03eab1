"""Compiles every kernel for a level of CPUs, without running any: this CPU may be another.

usage: python -P -m tools.wheels.kernels list FILE
       python -P -m tools.wheels.kernels compile FILE TRIPLE

``list`` writes the argument types of all kernels that Python calls, and prints for what machines
and by which versions code is packaged, as JSON. ``compile`` compiles them for LLVM's TRIPLE and for
the level in ``NUMBA_CPU_NAME``, into ``NUMBA_CACHE_DIR``.
"""

from __future__ import annotations

import importlib
import json
import pickle
import pkgutil
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding

_KERNELS = "kafka_index.core.kernels"
#: What machine code may call: four functions of every C library; numba's runtime, and Python, which
#: it serves; and functions that the modules of the kernels register.
_CALLED = re.compile(r"mem(cpy|move|set|cmp)|(NRT_|numba_|_?Py|_Z|kafka_index_)\w+|\.numba\..*")
_SECTIONS_AT, _SECTION_COUNT_AT = 40, 60
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2


def list_signatures(file: Path) -> None:
    """Write the argument types of each kernel, after a call with all that it is called with."""
    packaged = importlib.import_module(f"{_KERNELS}.compile_cache")
    importlib.import_module(f"{_KERNELS}.warm_up").warm_up()
    file.write_bytes(pickle.dumps({name: kernel.signatures for name, kernel in _kernels()}))
    folders = {machine: packaged.folder_for(machine) for machine in packaged.LEVELS}
    levels = {machine: list(levels) for machine, levels in packaged.LEVELS.items()}
    versions = dict(packaged.COMPILED_BY)
    sys.stdout.write(json.dumps({"folders": folders, "levels": levels, "versions": versions}))


def compile_all(file: Path, triple: str) -> None:
    """Compile the kernels for the argument types of a file."""
    if triple != llvmlite.binding.get_process_triple():
        _aim_at(triple)
    signatures = pickle.loads(file.read_bytes())  # noqa: S301, written by `list_signatures`
    for name, kernel in _kernels():
        for types in signatures[name]:
            kernel.compile(types)
        for compiled in kernel.overloads.values():
            code = compiled.library._get_compiled_object()  # noqa: SLF001
            strange = {called for called in _calls(code) if not _CALLED.fullmatch(called)}
            if strange:
                raise SystemExit(f"{name} calls {', '.join(sorted(strange))}")


def _kernels() -> Iterator[tuple[str, Any]]:
    """Yield all kernels by name."""
    for found in pkgutil.iter_modules(importlib.import_module(_KERNELS).__path__):
        module = importlib.import_module(f"{_KERNELS}.{found.name}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "py_func"):
                yield f"{module.__name__}.{name}", value


def _aim_at(triple: str) -> None:
    """Let numba, which compiles for the machine that it runs on, find another."""
    llvmlite.binding.initialize_all_targets()
    llvmlite.binding.initialize_all_asmprinters()
    target = llvmlite.binding.Target
    llvmlite.binding.get_process_triple = lambda: triple
    target.from_default_triple = classmethod(lambda kind: kind.from_triple(triple))


def _calls(code: bytes) -> Iterator[str]:
    """Yield the symbols that an ELF file uses and does not define."""
    (start,), (count,) = (
        struct.unpack_from(form, code, at)
        for form, at in (("<Q", _SECTIONS_AT), ("<H", _SECTION_COUNT_AT))
    )
    sections = [_SECTION.unpack_from(code, start + row * _SECTION.size) for row in range(count)]
    for _, kind, _, _, at, size, names, *_ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names_at = sections[names][4]
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(code[at : at + size]):
            if name and not section:
                first = names_at + name
                yield code[first : code.index(b"\0", first)].decode()


if __name__ == "__main__":
    if sys.argv[1] == "list":
        list_signatures(Path(sys.argv[2]))
    else:
        compile_all(Path(sys.argv[2]), sys.argv[3])

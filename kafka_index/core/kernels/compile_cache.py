"""Compile kernels with numba, and cache their machine code safely on Spark executors.

Numba's own ``cache=True`` uses the path of the module as key. On an executor, the package is in a
zip whose path changes with every application. Numba's cache therefore never hits, and it raises if
its folder is not writable. It also ignores changes in other modules whose code was compiled into
the kernel. `compiled` uses content as cache key: the sources of the kernel's module and of all
modules that it imports from this package, compiler versions, argument types and CPU. Each compiled
signature is a file that is written atomically, so processes can write concurrently. If the cache
fails, kernels are still compiled. Other users cannot write to its folders.

Code in the installed package takes precedence over the cache. Wheels contain code for each CPU
level, in files of the same format with the same key. Files that are missing, damaged or for other
content are ignored. Wheel code is as trustworthy as the modules of the package, which the same
users can change.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import pkgutil
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import llvmlite.binding
import numba
import numpy as np
from numba import types
from numba.core import caching, codegen, compiler, config, registry, serialize
from numba.core.runtime.nrt import rtsys
from numpy.typing import NDArray

from kafka_index.core.contexts import deferred_signals
from kafka_index.core.kernels.compile_clock import compile_clock

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

#: Versions of the compiler's packages, keyed by package name.
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


# Numba has no type hints, so it is `Any` here.
_config: Any = config

_log = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0]
#: Folder name for code from these compiler versions.
_VERSIONS = "kernels-{}".format(
    hashlib.sha256(
        repr(
            (
                platform.python_implementation(),
                platform.python_version(),
                platform.machine(),
                *COMPILED_BY.values(),
            )
        ).encode()
    ).hexdigest()[:16]
)


class CacheFolders(NamedTuple):
    """Folders from which compiled kernels are read, and the folder for writing them, if any."""

    readable: tuple[Path, ...]
    writable: Path | None


@functools.cache
def cache_folders() -> CacheFolders:
    """Return the cache folders for these compiler versions that other users cannot write to."""
    shared = shared_folder()
    readable = [shared] if _is_trusted(shared) else []
    writable = None
    for parent in _candidates():
        folder = parent / _VERSIONS
        try:
            for level in (parent, folder):
                level.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not _is_private(level):
                    raise PermissionError(f"{level} belongs to, or is writable by, others")
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            _log.debug("no cache of compiled kernels in %s: %s", folder, error)
            if folder not in readable and _is_trusted(folder):
                readable.append(folder)
            continue
        readable.append(folder)
        writable = folder
        break
    return CacheFolders(tuple(dict.fromkeys(readable)), writable)


def are_all_packaged() -> bool:
    """Return whether all kernels loaded so far came from the installed package."""
    return not cache_folders.cache_info().currsize


def shared_folder() -> Path:
    """Return the cache folder next to the installed packages, shared by all users."""
    return Path(sys.prefix, "var", "cache", _PACKAGE, _VERSIONS)


def keep_in_shared_folder() -> None:
    """Write the kernels that this process compiles to `shared_folder`.

    Raises `OSError` if it is not writable.
    """
    folder = shared_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for level in (folder.parent, folder):
        level.chmod(0o755)
    tempfile.TemporaryFile(dir=folder).close()
    _config.CACHE_DIR = str(folder.parents[1])
    cache_folders.cache_clear()


@functools.cache
def warn_of_unwritable_cache() -> None:
    """Warn once that no folder is writable."""
    _log.warning(
        "compiled kernels cannot be kept in %s, so every run compiles them again; set "
        "NUMBA_CACHE_DIR to a folder that you alone can write to",
        " or ".join(map(str, _candidates())) or "any folder",
    )


def _candidates() -> Iterator[Path]:
    if _config.CACHE_DIR:  # NUMBA_CACHE_DIR
        yield Path(_config.CACHE_DIR) / _PACKAGE
    with contextlib.suppress(RuntimeError):  # no home folder
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _PACKAGE
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "user")
    with contextlib.suppress(OSError):  # no temporary folder
        yield Path(tempfile.gettempdir()) / f"{_PACKAGE}-{user}"


def _is_private(folder: Path) -> bool:
    """Return whether no other user can write machine code to a folder."""
    if not hasattr(os, "geteuid"):
        return True
    return _is_written_by(folder, {os.geteuid()})


def _is_trusted(folder: Path) -> bool:
    """Return whether only users who can also change this package can write to a folder."""
    if not hasattr(os, "geteuid"):
        return folder.is_dir()
    with contextlib.suppress(OSError):
        owners = {0, os.geteuid(), os.stat(sys.prefix).st_uid}
        return _is_written_by(folder, owners) and _is_written_by(folder.parent, owners)
    return False


def _is_written_by(folder: Path, owners: set[int]) -> bool:
    status = folder.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid in owners
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


_Compiler: Any = compiler.Compiler
_CPUDispatcher: Any = registry.CPUDispatcher
_JITCodeLibrary: Any = codegen.JITCodeLibrary
_unliteral: Any = types.unliteral
_rebuild: Any = compiler.CompileResult._rebuild  # noqa: SLF001
_dumps: Any = serialize.dumps
_runtime: Any = rtsys

_Function = TypeVar("_Function", bound=Callable[..., Any])

_KERNELS = __name__.rpartition(".")[0] + "."
#: Matches imports of other modules of the package: a kernel may contain their code or constants.
_IMPORT = re.compile(rb"^(?:from|import) " + _PACKAGE.encode() + rb"\.([a-z0-9_.]+)", re.MULTILINE)
_DIGEST_BYTES = hashlib.sha256().digest_size


def compiled(function: _Function) -> _Function:
    """Compile a kernel on first call: no GIL, no fast-math, numpy division, cached code.

    Functions outside `core.kernels` are compiled but not cached. With ``NUMBA_DISABLE_JIT=1``, the
    function itself is returned.
    """
    if _config.DISABLE_JIT:
        return function
    result: _Function = _Kernel(function)
    return result


def inlined(function: _Function) -> _Function:
    """Compile a kernel like `compiled`, and inline it into all callers.

    By default, LLVM decides by size. Use it for steps of hot loops: without it, calls that pass and
    return structs took a quarter of the time of iterating over records.
    """
    if _config.DISABLE_JIT:
        return function
    result: _Function = _Kernel(function, _AlwaysInlined)
    return result


def writable_and_not(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array and a read-only view of it: numba compiles code for both types."""
    yield array
    view = array.view()
    view.setflags(write=False)
    yield view


class _CachedDispatcher(_CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled and cached for each combination of argument types."""

    #: Part of the cache file names that distinguishes variants of a kernel.
    kind = ""
    pipeline: Any = _Compiler
    options: ClassVar[dict[str, object]] = {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
    }

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, targetoptions=dict(self.options), pipeline_class=self.pipeline)
        if function.__module__.startswith(_KERNELS):
            self._cache = _ContentCache(function, self.kind)

    def compile(self, sig: Any) -> Any:
        # LLVM calls back into numba. An exception there would be lost, and the code incomplete.
        with deferred_signals():
            return super().compile(sig)


class _LinkedLibrary(_JITCodeLibrary):  # type: ignore[misc]
    """A kernel's code before machine code generation, for linking into other kernels.

    The CodeGenPrepare pass rewrites address arithmetic. An offset of 0 in an inlined call could
    then become a null pointer, and the read from it be removed as undefined behavior.
    """

    def _finalize_final_module(self) -> None:
        self._finalized = True
        self._get_module_for_linking()
        super()._finalize_final_module()


class _LinkedCompiler(_Compiler):  # type: ignore[misc]
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        library = _LinkedLibrary(self.state.targetctx.codegen(), "kernel")
        library.enable_object_caching()
        self.state.library = library


class _Linked(_CachedDispatcher):
    """A kernel that is called only from other kernels.

    It omits the Python entry point and the variants for literal arguments, which took half of the
    compile time.
    """

    kind = "-linked"
    pipeline = _LinkedCompiler
    options: ClassVar[dict[str, object]] = {
        **_CachedDispatcher.options,
        "no_cpython_wrapper": True,
    }

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return super().get_call_template([_unliteral(kind) for kind in args], kws)


class _AlwaysInlined(_Linked):
    """A kernel that is inlined into its callers."""

    options: ClassVar[dict[str, object]] = {**_Linked.options, "forceinline": True}


class _Kernel(_CachedDispatcher):
    """A kernel that is called from Python."""

    def __init__(self, function: Callable[..., Any], linked: type[_Linked] = _Linked) -> None:
        super().__init__(function)
        self._linked = linked(function)

    @property
    def _numba_type_(self) -> Any:
        """Numba's type of the kernel when other kernels call it."""
        return types.Dispatcher(self._linked)


class _ContentCache(caching._Cache):  # noqa: SLF001
    """The compiled signatures of one function, one file per signature."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self._module = function.__module__
        self._function = f"{self._module[len(_KERNELS) :]}.{function.__qualname__}{kind}"
        self._enabled = True

    @property
    def cache_path(self) -> str:
        return str(cache_folders().writable)

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        folder = cache_folders().writable
        for path in [] if folder is None else folder.glob(f"{self._name}-*.bin"):
            path.unlink(missing_ok=True)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Compiling registers numba's support for Python and numpy, which takes as long as a short
        # command. Cached code needs only the runtime's symbols.
        _runtime.initialize(target_context)
        found = self._load(sig, target_context) if self._enabled else None
        if found is None:
            # Numba compiles the kernel and then calls `save_overload`.
            compile_clock.start()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        compile_clock.stop()
        if not self._enabled or data.lifted or data.library.has_dynamic_globals:
            return
        folder = cache_folders().writable
        if folder is None:
            warn_of_unwritable_cache()
            return
        path = folder / self._file(sig, data.codegen.magic_tuple())
        scratch = path.with_name(f"{path.name}.{os.urandom(16).hex()}.tmp")
        try:
            payload = _dumps(data._reduce())  # noqa: SLF001
            scratch.write_bytes(hashlib.sha256(payload).digest() + payload)
            scratch.replace(path)
        except Exception as error:  # noqa: BLE001, because it has been compiled all the same
            _log.debug("cannot keep the compiled kernel %s: %s", path, error)
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)

    def _load(self, sig: Any, target_context: Any) -> Any:
        for origin, content in self._found(sig, target_context.codegen()):
            digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(payload).digest() != digest:
                continue
            try:
                return _rebuild(target_context, *pickle.loads(payload))  # noqa: S301, code of ours
            except Exception as error:  # noqa: BLE001, because it can be compiled again
                _log.debug("cannot use the compiled kernel %s: %s", origin, error)
        return None

    def _found(self, sig: Any, codegen: Any) -> Iterator[tuple[object, bytes]]:
        """Yield the location and content of a signature's cached files, the package's own first."""
        triple, _, features = codegen.magic_tuple()
        for level in usable_levels(features):
            # The name that a compiler for this level uses, without further CPU features.
            file = self._file(sig, (triple, level, ""))
            content = read_packaged(file)
            if content is not None:
                yield file, content
        for folder in cache_folders().readable:
            path = folder / self._file(sig, codegen.magic_tuple())
            with contextlib.suppress(OSError):
                yield path, path.read_bytes()

    @property
    def _name(self) -> str:
        return f"{self._function}-{_content_hash(self._module)}"

    def _file(self, sig: Any, target: tuple[str, str, str]) -> str:
        """Return the file name for a signature; `target` is the CPU's triple, name and features."""
        key = repr((sig, target))
        return f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.bin"


@functools.cache
def _content_hash(module: str) -> str:
    """Return a hash of the sources of a module and of all its imports from the package."""
    digest = hashlib.sha256()
    reached, waiting = {module}, [module]
    while waiting:
        name = waiting.pop()
        source = _source(name)
        digest.update(f"{name}\0{len(source)}\0".encode())
        digest.update(source)
        imported = {f"{_PACKAGE}.{match.decode()}" for match in _IMPORT.findall(source)}
        waiting += sorted(imported - reached, reverse=True)
        reached |= imported
    return digest.hexdigest()[:32]


@functools.cache
def _source(module: str) -> bytes:
    *folders, name = module.split(".")[1:]
    folder = files(_PACKAGE).joinpath(*folders)
    package = folder.joinpath(name)
    file = package.joinpath("__init__.py") if package.is_dir() else folder.joinpath(f"{name}.py")
    return file.read_bytes()

"""Folders for compiled kernels: where they are looked for, and where no other user can write."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import config

_config: Any = config

_log = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0]
#: The name of a folder for what these versions of the compiler have made.
_VERSIONS = "kernels-{}".format(
    hashlib.sha256(
        repr(
            (
                platform.python_implementation(),
                platform.python_version(),
                platform.machine(),
                numba.__version__,
                metadata.version("llvmlite"),
                np.__version__,
            )
        ).encode()
    ).hexdigest()[:16]
)


class CacheFolders(NamedTuple):
    """The folders that compiled kernels are read from, and the one to keep them in, or None."""

    readable: tuple[Path, ...]
    writable: Path | None


@functools.cache
def cache_folders() -> CacheFolders:
    """Return the folders for these versions of the compiler that no other user can write to."""
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


def shared_folder() -> Path:
    """Return the folder beside the installed packages, for whoever may run them."""
    return Path(sys.prefix, "var", "cache", _PACKAGE, _VERSIONS)


def keep_in_shared_folder() -> None:
    """Keep the kernels that this process compiles in `shared_folder`.

    Raises
    ------
    OSError
        It cannot be written.
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
    """Warn once that nothing can be kept."""
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
    """Return whether nobody else can write machine code to a folder."""
    if not hasattr(os, "geteuid"):
        return True
    return _is_written_by(folder, {os.geteuid()})


def _is_trusted(folder: Path) -> bool:
    """Return whether only those can write to a folder who can change this package, or all."""
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

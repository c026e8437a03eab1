"""The local folder where a process writes files that are on their way to a store.

It lies below TMPDIR, and is locked for as long as its process lives: a killed process drops its
lock, and the next one that needs a workspace removes the folder.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass

from kafka_index.stores.durable_files import publish_error

_PREFIX = "kafka-index-work-"
_LOCK_SUFFIX = ".lock"


@dataclass(frozen=True)
class _Workspace:
    process_id: int
    folder: str
    lock: int


_current: _Workspace | None = None
_guard = threading.Lock()


def workspace() -> str:
    """Return the workspace of this process, made when it is first asked for.

    Raises `PublishError` if it cannot be made.
    """
    global _current  # noqa: PLW0603, because it is one a process
    with _guard:
        # A forked process shares the memory of its parent, and not its workspace.
        if _current is None or _current.process_id != os.getpid():
            root = tempfile.gettempdir()
            try:
                _remove_abandoned(root)
                _current = _create(root)
            except OSError as error:
                raise publish_error(error, root, "make a folder for temporary files") from error
            atexit.register(_remove, _current)
        return _current.folder


def _create(root: str) -> _Workspace:
    while True:
        descriptor, lock_path = tempfile.mkstemp(_LOCK_SUFFIX, _PREFIX, root)
        if _is_locked(descriptor, lock_path):
            folder = lock_path.removesuffix(_LOCK_SUFFIX)
            os.mkdir(folder, 0o700)
            return _Workspace(os.getpid(), folder, descriptor)
        # Another process took it for an abandoned one, before it was locked.
        os.close(descriptor)


def _is_locked(descriptor: int, path: str) -> bool:
    """Lock a file; return False when another process has it, or has removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_abandoned(root: str) -> None:
    for name in os.listdir(root):
        if not (name.startswith(_PREFIX) and name.endswith(_LOCK_SUFFIX)):
            continue
        path = os.path.join(root, name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            # Another user's, or removed meanwhile.
            continue
        try:
            if _is_locked(descriptor, path):
                shutil.rmtree(path.removesuffix(_LOCK_SUFFIX), ignore_errors=True)
                with suppress(OSError):
                    os.unlink(path)
        finally:
            os.close(descriptor)


def _remove(workspace: _Workspace) -> None:
    if workspace.process_id != os.getpid():
        return
    shutil.rmtree(workspace.folder, ignore_errors=True)
    with suppress(OSError):
        os.unlink(workspace.folder + _LOCK_SUFFIX)

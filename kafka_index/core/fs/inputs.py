"""The inputs of a run: which symbolic links in them are followed, and which files are not read.

Links to directories and to `.log` files are followed, as a broker does. Any other link to a file
outside all inputs and outside its own directory is not opened unless the user allows it. Otherwise,
the author of a dump could link to a file that only the user of this process can read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kafka_index.core.errors import InputError, LinkedOutError
from kafka_index.core.format.names import LOG_SUFFIX, is_broker_or_build_file, parse_segment_file
from kafka_index.core.fs.uris import is_remote

#: Reasons why a file is not read.
LINKED_OUT = "not read: the link points outside the input (give --follow-links to read the target)"
BROKEN_LINK = "a broken link"
NOT_A_FILE = "not a file"
BAD_CHECKPOINT = "a checkpoint that a broker cannot read"
#: Names of the counts in a summary, keyed by reason.
UNREAD_COUNTS = {
    NOT_A_FILE: "not_files",
    BAD_CHECKPOINT: "bad_checkpoints",
    BROKEN_LINK: "links_not_followed",
    LINKED_OUT: "links_not_followed",
}

_follows_links: ContextVar[bool | None] = ContextVar("follows_links", default=None)
_run_caches: ContextVar[dict[str, dict[str, Any]] | None] = ContextVar("kept", default=None)
_lock = threading.Lock()
# Real paths of this process's inputs, and whether links in them are followed.
_inputs: dict[str, bool] = {}
_unread: dict[str, Skipped] = {}
# Unread files by path, for each active `collecting_unread` block.
_collections: dict[int, dict[str, Skipped]] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not read, or that a broker would not load as a segment, with the reason.

    `target` is the target of a link that is not followed, otherwise empty. `detail` completes the
    reason, and may be empty.
    """

    path: str
    reason: str
    target: str = ""
    detail: str = ""

    @property
    def path_with_target(self) -> str:
        return f"{self.path} -> {self.target}" if self.target else self.path

    @property
    def description(self) -> str:
        """The path with the reason."""
        return f"{self.path_with_target}: {self.full_reason}"

    @property
    def full_reason(self) -> str:
        """The reason with its detail."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@contextmanager
def reading_inputs(*, follow_links: bool) -> Iterator[Mapping[str, Skipped]]:
    """Within a `with` block, set whether links are followed, and cache remote directories.

    The setting for links applies to all threads. Yields the unread files, as `collecting_unread`
    does.
    """
    links_token = _follows_links.set(follow_links)
    caches_token = _run_caches.set(
        {} if (outer_caches := _run_caches.get()) is None else outer_caches
    )
    try:
        with collecting_unread() as unread_files:
            yield unread_files
    finally:
        _follows_links.reset(links_token)
        _run_caches.reset(caches_token)


@contextmanager
def collecting_unread() -> Iterator[Mapping[str, Skipped]]:
    """Yield the unread files by path, collected from all threads until the block ends.

    Unlike `reading_inputs`, this context manager can be used in a generator.
    """
    unread_files: dict[str, Skipped] = {}
    with _lock:
        _collections[id(unread_files)] = unread_files
    try:
        yield unread_files
    finally:
        with _lock:
            del _collections[id(unread_files)]


def run_cache(name: str) -> dict[str, Any]:
    """Return a named cache of this run for reads of remote directories, keyed by path."""
    caches = _run_caches.get()
    return {} if caches is None else caches.setdefault(name, {})


def admit_linked(directory: str) -> None:
    if _follows_links.get() and os.path.islink(directory):
        admit_inputs([directory])


def admit_inputs(directories: Iterable[str]) -> None:
    """Add directories to the inputs of this process; links into local inputs may be followed."""
    follows_links = _follows_links.get()
    for directory in directories:
        if is_remote(directory):
            continue
        real_path = os.path.realpath(directory)
        with _lock:
            if follows_links is None:
                if real_path not in _inputs and not is_within(real_path, _inputs):
                    _inputs[real_path] = False
                continue
            # Settings of an earlier run for subdirectories no longer apply.
            for subdirectory in [path for path in _inputs if is_within(path, [real_path])]:
                del _inputs[subdirectory]
            _inputs[real_path] = follows_links


def admitted_inputs() -> tuple[tuple[str, bool], ...]:
    """Return the inputs of this process, to be sent to another process."""
    with _lock:
        return tuple(_inputs.items())


def admit_received(inputs: Iterable[tuple[str, bool]]) -> None:
    """Add the inputs of another process."""
    with _lock:
        _inputs.update(inputs)


def drain_unread() -> list[Skipped]:
    """Return the unread files in order of path, and clear the list of unread files."""
    with _lock:
        files = [_unread[path] for path in sorted(_unread)]
        _unread.clear()
        return files


def forget_inputs() -> None:
    """Forget the inputs of this process."""
    with _lock:
        _unread.clear()
        _inputs.clear()


def linked_out(path: str) -> Skipped | None:
    """Return the link at a path if it points outside the input and is not followed, else None.

    `path` is a file of a data directory or partition; URIs are never links.
    """
    if not os.path.islink(path) or _is_log(path) or _follows_links.get():
        return None
    try:
        if not _points_to_file(path):
            return None
    except OSError:
        # Opening the file raises the error, for example for a broken link.
        return None
    target = os.path.realpath(path)
    directory = os.path.realpath(os.path.dirname(path))
    with _lock:
        inputs = dict(_inputs)
    if is_within(target, [directory, *inputs]) or _follows_links_in(directory, inputs):
        return None
    link = Skipped(path, LINKED_OUT, target)
    _record_unread(link)
    return link


def note_unread(path: str, reason: str, detail: str = "") -> Skipped:
    """Record an entry that is not read, such as a file that is neither a log nor a checkpoint."""
    target = os.path.realpath(path) if os.path.islink(path) else ""
    file = Skipped(path, reason, target, detail)
    _record_unread(file)
    return file


def _record_unread(file: Skipped) -> None:
    with _lock:
        for files in (_unread, *_collections.values()):
            files[file.path] = file


def refuse_linked_out(path: str, *, any_name: bool = False) -> None:
    """Raise `LinkedOutError` if a file is a link that points outside the input.

    By default, only files with names of Kafka or build files are checked; with `any_name`, all
    files are checked.
    """
    if not any_name and not is_broker_or_build_file(os.path.basename(path)):
        return
    link = linked_out(path)
    if link is not None:
        raise LinkedOutError(
            "the file is a link that points outside the input",
            path=path,
            found=link.target,
            hint="give --follow-links to read the target",
        )


def _is_log(path: str) -> bool:
    segment_file = parse_segment_file(os.path.basename(path))
    return segment_file is not None and segment_file.kind == LOG_SUFFIX


def _points_to_file(path: str) -> bool:
    try:
        return not os.path.isdir(path) and bool(os.stat(path))
    except PermissionError:
        return True


def is_within(path: str, directories: Iterable[str]) -> bool:
    """Return whether a real path is below one of the directories."""
    return any(path.startswith(os.path.join(directory, "")) for directory in directories)


def _follows_links_in(directory: str, inputs: Mapping[str, bool]) -> bool:
    """Return whether links in a directory are followed, as set for the input that contains it."""
    ancestors = [path for path in inputs if path == directory or is_within(directory, [path])]
    if ancestors:
        return inputs[max(ancestors, key=len)]
    return any(follows for path, follows in inputs.items() if os.path.dirname(path) == directory)


def refuse_unread(files: Mapping[str, Skipped]) -> None:
    """Raise `InputError` for the first unread file that is not a link out of the input.

    Called by readers that fail at the first defect, because their result cannot list unread files.
    """
    for file in files.values():
        if file.reason != LINKED_OUT:
            raise InputError(file.full_reason, path=file.path_with_target)


def unread_texts(files: Mapping[str, Skipped]) -> tuple[str, ...]:
    """Return the unread files of `reading_inputs`, each with the reason."""
    return tuple(files[path].description for path in sorted(files))


def skipped_texts(entries: Iterable[Skipped]) -> tuple[tuple[str, str], ...]:
    """Return the path and reason of each skipped entry."""
    return tuple((entry.path_with_target, entry.full_reason) for entry in entries)

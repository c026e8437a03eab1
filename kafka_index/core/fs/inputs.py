"""The inputs of a run: what was listed in them, and which symbolic links are followed.

Links to directories and logs are followed, as in a broker. Any other link to a file outside all
inputs and outside its own directory is not opened unless the user allows it. Whoever made the dump
could otherwise point it to a file that they cannot read themselves.
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
from kafka_index.core.format.names import LOG_SUFFIX, is_kept_file, parse_segment_file
from kafka_index.core.fs.uris import is_remote

#: Reasons why a file is not read.
LINKED_OUT = "not read: a link that points outside the input (--follow-links reads it)"
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

_follows: ContextVar[bool | None] = ContextVar("follows_links", default=None)
_kept: ContextVar[dict[str, dict[str, Any]] | None] = ContextVar("kept", default=None)
_lock = threading.Lock()
# Real paths of this process's inputs, and whether links in them are followed.
_inputs: dict[str, bool] = {}
_unread: dict[str, Skipped] = {}
# Unread files by path, for each active `collecting_unread` block.
_reading: dict[int, dict[str, Skipped]] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that is not read, or that a broker would not load as a segment, with the reason.

    `target` is the target of a link that is not followed, and `detail` follows the reason; both
    are otherwise empty.
    """

    path: str
    reason: str
    target: str = ""
    detail: str = ""

    @property
    def shown(self) -> str:
        return f"{self.path} -> {self.target}" if self.target else self.path

    @property
    def text(self) -> str:
        """The path with the reason."""
        return f"{self.shown}: {self.why}"

    @property
    def why(self) -> str:
        """The reason with its detail."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@contextmanager
def reading_inputs(*, follow_links: bool) -> Iterator[Mapping[str, Skipped]]:
    """Start reading inputs: decide about links, and ask remote stores for each thing only once.

    The decision about links applies to all threads. Yields the files of `collecting_unread`.
    """
    links = _follows.set(follow_links)
    kept = _kept.set({} if (outer := _kept.get()) is None else outer)
    try:
        with collecting_unread() as unread:
            yield unread
    finally:
        _follows.reset(links)
        _kept.reset(kept)


@contextmanager
def collecting_unread() -> Iterator[Mapping[str, Skipped]]:
    """Yield the unread files by path, collected from all threads until the block ends.

    Unlike `reading_inputs`, it can be used in a generator.
    """
    unread: dict[str, Skipped] = {}
    with _lock:
        _reading[id(unread)] = unread
    try:
        yield unread
    finally:
        with _lock:
            del _reading[id(unread)]


def kept_of_run(kind: str) -> dict[str, Any]:
    """Return what this run has read of remote directories, by path, to which more is added."""
    kept = _kept.get()
    return {} if kept is None else kept.setdefault(kind, {})


def admit_linked(directory: str) -> None:
    if _follows.get() and os.path.islink(directory):
        admit_inputs([directory])


def admit_inputs(directories: Iterable[str]) -> None:
    """Add directories to the inputs of this process; links into local inputs may be followed."""
    follows = _follows.get()
    for directory in directories:
        if is_remote(directory):
            continue
        real = os.path.realpath(directory)
        with _lock:
            if follows is None:
                if real not in _inputs and not is_within(real, _inputs):
                    _inputs[real] = False
                continue
            # Decisions of an earlier run about its subdirectories no longer apply.
            for other in [each for each in _inputs if is_within(each, [real])]:
                del _inputs[other]
            _inputs[real] = follows


def admitted_inputs() -> tuple[tuple[str, bool], ...]:
    """Return the inputs of this process to send them to another process."""
    with _lock:
        return tuple(_inputs.items())


def admit_sent(inputs: Iterable[tuple[str, bool]]) -> None:
    """Add the inputs of another process."""
    with _lock:
        _inputs.update(inputs)


def drain_unread() -> list[Skipped]:
    """Return the unread files in order of path, and clear them."""
    with _lock:
        found = [_unread[path] for path in sorted(_unread)]
        _unread.clear()
        return found


def forget_inputs() -> None:
    """Start a run without inputs."""
    with _lock:
        _unread.clear()
        _inputs.clear()


def linked_out(path: str) -> Skipped | None:
    """Return a file that must not be opened because it is a link out of the input, else None.

    `path` is a file of a data directory or partition; URIs are never links.
    """
    if not os.path.islink(path) or _is_log(path) or _follows.get():
        return None
    try:
        if not _leads_to_file(path):
            return None
    except OSError:
        # A broken link, for example, is reported when it is opened.
        return None
    target = os.path.realpath(path)
    directory = os.path.realpath(os.path.dirname(path))
    with _lock:
        inputs = dict(_inputs)
    if is_within(target, [directory, *inputs]) or _is_followed(directory, inputs):
        return None
    found = Skipped(path, LINKED_OUT, target)
    _note(found)
    return found


def note_unread(path: str, reason: str, detail: str = "") -> Skipped:
    """Record that an entry is not read, such as one that is not a log or a partition."""
    target = os.path.realpath(path) if os.path.islink(path) else ""
    found = Skipped(path, reason, target, detail)
    _note(found)
    return found


def _note(file: Skipped) -> None:
    with _lock:
        for files in (_unread, *_reading.values()):
            files[file.path] = file


def refuse_linked_out(path: str, *, any_name: bool = False) -> None:
    """Raise `LinkedOutError` if a file is a link that points outside the input.

    By default only names of Kafka and build files are checked, with `any_name` all names.
    """
    if not any_name and not is_kept_file(os.path.basename(path)):
        return
    found = linked_out(path)
    if found is not None:
        raise LinkedOutError(
            "the file is a link that points outside the input",
            path=path,
            found=found.target,
            hint="give --follow-links to read it",
        )


def _is_log(path: str) -> bool:
    parsed = parse_segment_file(os.path.basename(path))
    return parsed is not None and parsed.kind == LOG_SUFFIX


def _leads_to_file(path: str) -> bool:
    try:
        return not os.path.isdir(path) and bool(os.stat(path))
    except PermissionError:
        return True


def is_within(path: str, directories: Iterable[str]) -> bool:
    """Return whether a real path is below one of the directories."""
    return any(path.startswith(os.path.join(each, "")) for each in directories)


def _is_followed(directory: str, inputs: Mapping[str, bool]) -> bool:
    """Return whether links in this directory are followed, as decided for its input."""
    around = [each for each in inputs if each == directory or is_within(directory, [each])]
    if around:
        return inputs[max(around, key=len)]
    return any(follows for each, follows in inputs.items() if os.path.dirname(each) == directory)


def refuse_unread(files: Mapping[str, Skipped]) -> None:
    """Refuse to go on without files that are not read, except for links, which are not followed.

    For readers that fail at the first damage, and whose result cannot list the files. Raises
    `InputError` about the first file.
    """
    for file in files.values():
        if file.reason != LINKED_OUT:
            raise InputError(file.why, path=file.shown)


def unread_texts(files: Mapping[str, Skipped]) -> tuple[str, ...]:
    """Return the unread files of `reading_inputs`, each with the reason."""
    return tuple(files[path].text for path in sorted(files))


def skipped_texts(entries: Iterable[Skipped]) -> tuple[tuple[str, str], ...]:
    """Return the path and reason of each skipped entry."""
    return tuple((entry.shown, entry.why) for entry in entries)

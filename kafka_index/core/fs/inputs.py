"""The inputs of a run: what was listed of them, and which links in them are followed.

Links to directories and to logs are followed, as a broker follows them. Any other file of a data
directory or partition that is a link to a file outside every input, and outside the directory that
holds the link, may be a file that whoever made the dump could not read: it is not opened, unless
the links of its input are followed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_index.core.errors import LinkedOutError
from kafka_index.core.format.names import LOG_SUFFIX, is_kept_file, parse_segment_file
from kafka_index.core.fs.uris import is_remote

if TYPE_CHECKING:
    from kafka_index.core.fs.store import DirectoryEntry

#: The reasons why a file is not read.
LINKED_OUT = "not read: a link that leads out of the input (--follow-links reads it)"
BROKEN_LINK = "a link to nothing"
NOT_A_FILE = "not a file"
#: The counts of a summary by these reasons.
UNREAD_COUNTS = {
    NOT_A_FILE: "not_files",
    BROKEN_LINK: "links_not_followed",
    LINKED_OUT: "links_not_followed",
}

_follows: ContextVar[bool | None] = ContextVar("follows_links", default=None)
_listings: ContextVar[dict[str, list[DirectoryEntry]] | None] = ContextVar("listings", default=None)
_lock = threading.Lock()
# Real paths of the inputs of this process, and whether links in them are followed.
_inputs: dict[str, bool] = {}
_unread: dict[str, Skipped] = {}
# The files of the blocks that read inputs now, by path and by the identity of the block.
_reading: dict[int, dict[str, Skipped]] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that a broker would not load as a segment, or is not read, with the reason.

    `target` is the end of a link that is not followed; empty for others.
    """

    path: str
    reason: str
    target: str = ""

    @property
    def shown(self) -> str:
        """The path, and where its link leads."""
        return f"{self.path} -> {self.target}" if self.target else self.path


@contextmanager
def reading_inputs(*, follow_links: bool) -> Iterator[Mapping[str, Skipped]]:
    """Read inputs: decide whether links out of them are followed, and list stores once.

    Other threads share what is decided about links of the inputs that are listed within. Yields
    the files of `collecting_unread`.
    """
    links = _follows.set(follow_links)
    listings = _listings.set({} if (outer := _listings.get()) is None else outer)
    try:
        with collecting_unread() as unread:
            yield unread
    finally:
        _follows.reset(links)
        _listings.reset(listings)


@contextmanager
def collecting_unread() -> Iterator[Mapping[str, Skipped]]:
    """Yield the files, by path, that are not read until the block ends, by any thread.

    Unlike `reading_inputs` it may surround the statements of a generator.
    """
    unread: dict[str, Skipped] = {}
    with _lock:
        _reading[id(unread)] = unread
    try:
        yield unread
    finally:
        with _lock:
            del _reading[id(unread)]


def kept_listings() -> dict[str, list[DirectoryEntry]]:
    """Return the directories of stores that were listed of the inputs; new ones are added to it."""
    found = _listings.get()
    return {} if found is None else found


def admit_linked(directory: str) -> None:
    """Let the links in a directory that is a link be followed, where those of its input are."""
    if _follows.get() and os.path.islink(directory):
        admit_inputs([directory])


def admit_inputs(directories: Iterable[str]) -> None:
    """Add directories to the inputs of this process: links may lead into those on this machine."""
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
            # What an earlier run decided of directories in it counts no more.
            for other in [each for each in _inputs if is_within(each, [real])]:
                del _inputs[other]
            _inputs[real] = follows


def admitted_inputs() -> tuple[tuple[str, bool], ...]:
    """Return the inputs of this process, to send to another."""
    with _lock:
        return tuple(_inputs.items())


def admit_sent(inputs: Iterable[tuple[str, bool]]) -> None:
    """Add the inputs of another process to those of this one."""
    with _lock:
        _inputs.update(inputs)


def drain_unread() -> list[Skipped]:
    """Return the files that were not read, by path, and forget them."""
    with _lock:
        found = [_unread[path] for path in sorted(_unread)]
        _unread.clear()
        return found


def forget_inputs() -> None:
    """Begin a run, which has no inputs yet."""
    with _lock:
        _unread.clear()
        _inputs.clear()


def linked_out(path: str) -> Skipped | None:
    """Return a file of a dump that is not to be opened; None for any other.

    The path is that of a file of a data directory or partition; no URI is a link.
    """
    if not os.path.islink(path) or _is_log(path) or _follows.get():
        return None
    try:
        if not _leads_to_file(path):
            return None
    except OSError:
        # Such as a link to nothing, which whoever opens it reports.
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


def note_unread(path: str, reason: str) -> None:
    """Name an entry in place of a log or a partition, whose records are not read."""
    target = os.path.realpath(path) if os.path.islink(path) else ""
    _note(Skipped(path, reason, target))


def _note(file: Skipped) -> None:
    with _lock:
        for files in (_unread, *_reading.values()):
            files[file.path] = file


def refuse_linked_out(path: str, *, any_name: bool = False) -> None:
    """Refuse to open a file of a dump that is a link which leads out of the input.

    By default only names that a broker or a build gives are those of a dump, with `any_name` all
    are. Raises `LinkedOutError` if the file is such a link.
    """
    if not any_name and not is_kept_file(os.path.basename(path)):
        return
    found = linked_out(path)
    if found is not None:
        raise LinkedOutError(
            "the file is a link that leads out of the input",
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
    """Return whether a real path lies below one of some directories."""
    return any(path.startswith(os.path.join(each, "")) for each in directories)


def _is_followed(directory: str, inputs: Mapping[str, bool]) -> bool:
    """Return whether the links in a directory, an input or its parent, are followed."""
    around = [each for each in inputs if each == directory or is_within(directory, [each])]
    if around:
        return inputs[max(around, key=len)]
    return any(follows for each, follows in inputs.items() if os.path.dirname(each) == directory)


def unread_texts(files: Mapping[str, Skipped]) -> tuple[str, ...]:
    """Return the files that `reading_inputs` has not read, each with the reason."""
    return tuple(f"{files[path].shown}: {files[path].reason}" for path in sorted(files))


def skipped_texts(entries: Iterable[Skipped]) -> tuple[tuple[str, str], ...]:
    """Return the paths of skipped entries, each with the reason."""
    return tuple((entry.shown, entry.reason) for entry in entries)

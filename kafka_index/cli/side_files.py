"""Files that a run writes beside its output: where they must not be."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from kafka_index.errors import InputError
from kafka_index.storage import refuse_overlap
from kafka_index.storage.paths import absolute_path
from kafka_index.stores import is_remote


def refuse_side_files(
    target: str, inputs: Sequence[str], texts: Sequence[str], report: str | None
) -> None:
    """Refuse to write over what is read, into the output, or twice into one file."""
    taken = [_real(target)]
    for path in (*texts, *([] if report is None else [report])):
        real = _real(absolute_path(path))
        if not is_remote(real) and os.path.isdir(real):
            raise InputError("a folder, not a file", path=path, hint="name a file in it")
        if not is_remote(real) and os.path.exists(real) and not os.path.isfile(real):
            raise InputError("not a regular file", path=path, hint="name another file")
        refuse_overlap(real, path, inputs)
        if any(f"{one}/".startswith(f"{other}/") for one, other in _pairs(real, taken)):
            raise InputError(
                "this path is taken by the answers or another file",
                path=path,
                hint="name another one",
            )
        taken.append(real)


def _real(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _pairs(path: str, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a path with each of the others, either way around."""
    for other in others:
        yield path, other
        yield other, path

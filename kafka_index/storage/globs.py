"""Globs over object stores and HDFS: what `glob.glob` is for local paths."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from fnmatch import translate

from kafka_index.errors import InputError
from kafka_index.storage.directories import list_stored_input
from kafka_index.stores import store_of
from kafka_index.stores.uris import split_uri

_ANY_DEPTH = "**"


def expand_uri(uri: str, given: str) -> list[str]:
    """Return the URIs that a URI names: itself where it exists, otherwise what it matches.

    Parameters
    ----------
    uri : str
        Without a slash at its end.
    given : str
        The same as the user gave it, for errors.

    Raises
    ------
    InputError
        Nothing is there, or nothing matches.
    """
    if _exists(uri):
        return [uri]
    if not glob.has_magic(uri):
        raise InputError(
            "cannot read the input: there is no such file or directory",
            path=given,
            hint="check the path",
        )
    root, key = split_uri(uri)
    matches = sorted(set(_matches(root, key.split("/"))))
    if not matches:
        raise InputError("no path matches this glob", path=given)
    return matches


def _exists(uri: str) -> bool:
    if list_stored_input(uri):
        return True
    if not split_uri(uri)[1]:
        return False
    try:
        store_of(uri).info(uri)
    except FileNotFoundError:
        return False
    return True


def _matches(parent: str, patterns: list[str]) -> Iterator[str]:
    """Yield what lies below a directory and matches one pattern a level."""
    pattern, *rest = patterns
    if not glob.has_magic(pattern):
        path = f"{parent}/{pattern}"
        if rest:
            yield from _matches(path, rest)
        elif _exists(path):
            yield path
        return
    if pattern == _ANY_DEPTH and rest:
        yield from _matches(parent, rest)
    matcher = re.compile(translate("*" if pattern == _ANY_DEPTH else pattern))
    for entry in list_stored_input(parent):
        name = os.path.basename(entry.path)
        if matcher.match(name) is None or (name.startswith(".") and not pattern.startswith(".")):
            continue
        if not rest:
            yield entry.path
        if entry.is_directory and (rest or pattern == _ANY_DEPTH):
            yield from _matches(entry.path, patterns if pattern == _ANY_DEPTH else rest)

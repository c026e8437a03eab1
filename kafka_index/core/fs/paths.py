"""Paths that users give (plain, URIs, globs), hints for inputs without logs, output folders."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kafka_index.core.errors import InputError, PublishError, first_of
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    META_PROPERTIES,
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    parse_segment_file,
    split_directory_name,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.inputs import admit_inputs, is_within
from kafka_index.core.fs.registry import (
    directory_exists,
    expand_local_glob,
    is_input_directory,
    list_stored_input,
    scan_input,
    store_of,
)
from kafka_index.core.fs.store import Entry
from kafka_index.core.fs.uris import (
    REPOSITORY_FILE,
    SAME_SCHEMES,
    backup_path,
    is_backup_input,
    is_remote,
    parse_backup_path,
    split_backup_input,
    split_uri,
)

if TYPE_CHECKING:
    from kafka_index.core.fs.backup.repository import Repository


_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<host>[^/]*)|(?P<short>file:)(?=/)")


def absolute_path(path: str) -> str:
    """Convert a user's path to an absolute local path, or a URI without a trailing slash.

    Accepts paths, ``file:///...`` URIs, URIs of object stores or HDFS, and backups. Raises the
    errors of `local_path` and `pinned_backup`, and `InputError` if the scheme is not supported or
    its extra is not installed.
    """
    path = pinned_backup(path)
    if not is_remote(path):
        return os.path.abspath(local_path(path))
    store_of(path)
    root, key = split_uri(path)
    return f"{root}/{key}" if key else root


def pinned_backup(path: str) -> str:
    """Resolve an input that selects a backup to the backup's path; return other paths unchanged.

    Raises `InputError` if the repository or the backup does not exist, and the errors of
    `kafka_index.core.format.times.parse_time`.
    """
    if not is_backup_input(path) or parse_backup_path(path) is not None:
        return path
    repository, selector, relative_path = split_backup_input(path)
    root = absolute_path(repository)
    return backup_path(root, open_repository(root).find_backup(selector)) + relative_path


def open_repository(root: str) -> Repository:
    """Return the backup repository at an absolute path or URI, even if it does not exist yet."""
    # Imported only by commands that use backups.
    from kafka_index.core.fs.backup.repository import Repository  # noqa: PLC0415

    return Repository(root, store_of(root))


def plain_path(path: str) -> str:
    """Return a user's path unchanged except that a ``file:`` scheme is removed.

    Raises the errors of `absolute_path`.
    """
    return absolute_path(path) if is_remote(path) else local_path(path)


def real_path(path: str) -> str:
    """Resolve the links of a user's local path; raises the errors of `absolute_path`."""
    path = pinned_backup(path)
    return absolute_path(path) if is_remote(path) else os.path.realpath(local_path(path))


def index_root_of(path: str) -> str:
    """Return the absolute path or URI of the folder that contains index files by partition.

    Raises the errors of `absolute_path`, and `InputError` if the folder does not exist, since
    lookups would silently run without index files.
    """
    root = absolute_path(path)
    admit_inputs([root])
    if not directory_exists(root):
        raise InputError(
            "the folder of index files does not exist",
            path=path,
            hint="give the --output of kafka-index build, which has a folder for each partition",
        )
    return root


def local_path(path: str) -> str:
    """Convert a user's path or ``file:///...`` URI with percent escapes to a plain local path.

    Raises `InputError` if the path is empty, has another scheme, or is a URI of another host.
    """
    if not path:
        raise InputError("the path is empty", hint="give a directory")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(
            "the path is not UTF-8, and reports contain only UTF-8",
            path=path.encode(errors="backslashreplace").decode(),
            hint="create a link with a UTF-8 name, and give the link",
        ) from None
    match = _URI.match(path)
    if match is None:
        return path
    if match["short"] is None and match["scheme"] != "file":
        raise InputError(
            f"the scheme {match['scheme']}:// is not supported for this path",
            path=path,
            hint="give a local path, or mount the store and give its mount point",
        )
    if match["host"] not in (None, "", "localhost"):
        raise InputError(
            "the file:// URI contains the name of another host",
            path=path,
            hint="write file:///absolute/path",
        )
    # Not urlsplit, because a '?' may be part of a glob.
    return unquote(path[match.end() :])


def expand_input(path: str) -> list[str]:
    """Expand one input to absolute paths or URIs.

    An existing path is used unchanged, even with ``*`` or ``[`` in its name. Any other path is a
    glob (``**`` crosses folders) whose matches are sorted. Raises `InputError` if nothing matches
    or the path cannot be inspected.
    """
    absolute_input = absolute_path(path)
    if is_remote(absolute_input):
        return expand_uri(absolute_input, path)
    try:
        os.stat(absolute_input)
    except OSError as error:
        if glob.has_magic(absolute_input):
            if matched_paths := expand_local_glob(absolute_input):
                return [os.path.normpath(match) for match in matched_paths]
            raise InputError("no path matches this glob", path=path) from None
        raise InputError(
            f"cannot read the input: {error.strerror}", path=path, hint="check the path"
        ) from error
    return [absolute_input]


def expand_remote_glob(path: str) -> list[str]:
    """Expand the glob of a URI, but not of a local path: the shell expands local globs.

    Raises the errors of `expand_input` and `local_path`.
    """
    return expand_input(path) if is_remote(path) else [local_path(path)]


def expand_directories(inputs: Sequence[str]) -> list[str]:
    """Return the absolute directories of the inputs, each once, in order.

    A file is an error if given explicitly, and skipped if matched by a glob (``dump/*`` also
    matches ``meta.properties``). Raises `InputError` if no input is given, an input does not exist
    or is a file, or a glob matches no directory.
    """
    if not inputs:
        raise InputError("no input was given", hint="give a directory of Kafka logs")
    all_directories: dict[str, None] = {}
    for path in inputs:
        matches = expand_input(path)
        directories = [match for match in matches if is_input_directory(match)]
        if not directories:
            raise InputError(
                "the path is not a directory",
                path=path,
                hint=archive_hint(path)
                or "give a data directory, a topic-partition directory, or a glob of directories",
            )
        all_directories.update(dict.fromkeys(directories))
        _admit_input(path, directories)
    return list(all_directories)


def admit_directories(inputs: Iterable[str]) -> None:
    """Admit the local directories of inputs that another process listed."""
    if local := [path for path in inputs if not is_remote(path)]:
        expand_directories(local)


def _admit_input(path: str, directories: Iterable[str]) -> None:
    """Admit the local directories of an input, so that links into the directories are followed.

    A directory that a glob reaches through a link is not admitted: the user did not select the
    directory, and a dump may contain links to other users' files (`kafka_index.core.fs.inputs`).
    """
    root = absolute_path(path)
    directories = select_linkable(directories)
    if directories != [root]:
        while glob.has_magic(root):
            root = os.path.dirname(root)
    root = os.path.realpath(root)
    real_paths = map(os.path.realpath, directories)
    admit_inputs(real for real in real_paths if real == root or is_within(real, [root]))


def select_linkable(directories: Iterable[str]) -> list[str]:
    return [directory for directory in directories if store_of(directory).has_links]


def refuse_overlap(
    output: str, user_path: str, inputs: Iterable[str], *, hint: str = "choose another output"
) -> None:
    """Raise `InputError` if the output is an input, contains an input, or is inside an input.

    `output` is a local path or URI, reported as `user_path`; `inputs` are paths and globs.
    """
    real_output = _normalize_for_comparison(output)
    for input_path in inputs:
        for path in expand_input(input_path):
            real_input = _normalize_for_comparison(path)
            if real_input.startswith("/") != real_output.startswith("/"):
                # One path is local, the other is remote.
                continue
            if os.path.commonpath([real_output, real_input]) in (real_output, real_input):
                relation = (
                    "is the input"
                    if real_output == real_input
                    else "is inside the input"
                    if len(real_output) > len(real_input)
                    else "contains the input"
                )
                raise InputError(f"the output {relation} {path}", path=user_path, hint=hint)


def _normalize_for_comparison(path: str) -> str:
    """Resolve links of a path, or normalize the scheme of a URI, for comparison."""
    backup = parse_backup_path(path)
    if backup is not None:
        # No output may be inside a repository, even outside this backup.
        return _normalize_for_comparison(backup.root)
    if not is_remote(path):
        return os.path.realpath(path)
    root, key = split_uri(path)
    scheme, _, authority = root.partition("://")
    return os.path.join(f"{SAME_SCHEMES.get(scheme, scheme)}:", authority, key).rstrip("/")


def target_directory(target_root: str | None, partition: TopicPartition, log_directory: str) -> str:
    """Return the folder for a segment's files: below the target root, or next to the log.

    Raises `InputError` if the topic, which may come from a table, is not a legal topic name. An
    illegal name must not become part of a path.
    """
    if target_root is None:
        return log_directory
    if not is_legal_topic(partition.topic):
        raise InputError(
            "the topic name is illegal",
            expected="1 to 249 of a-z A-Z 0-9 . _ -",
            found=repr(partition.topic),
        )
    return os.path.join(target_root, partition.directory_name)


def prepare_target_directory(
    target_root: str | None, partition: TopicPartition, log_directory: str
) -> str:
    """Return a segment's target folder, after creating the folder if missing.

    Raises the errors of `target_directory`, and `PublishError` if the folder cannot be created or
    is a link back to the folder of the log.
    """
    directory = target_directory(target_root, partition, log_directory)
    if target_root is None:
        return directory
    store, action = store_of(directory), "create the target folder"
    store.make_directory(directory, action)
    with publishing(directory, action):
        is_log_directory = store.is_same_directory(directory, log_directory)
    if is_log_directory:
        raise PublishError(
            "the target folder is the folder of the log",
            path=directory,
            found=os.path.realpath(directory),
            hint="choose another --output, or give --in-place",
        )
    return directory


_ANY_DEPTH = "**"


def expand_uri(uri: str, user_uri: str) -> list[str]:
    """Return an existing URI without a trailing slash, or the matches of a glob.

    `user_uri` is the user's URI, for errors. Raises `InputError` if nothing matches.
    """
    if _uri_exists(uri):
        return [uri]
    if not glob.has_magic(uri):
        raise InputError(
            "cannot read the input: no such file or directory",
            path=user_uri,
            hint="check the path",
        )
    root, key = split_uri(uri)
    matches = sorted(set(_match_patterns(root, key.split("/"))))
    if not matches:
        raise InputError("no path matches this glob", path=user_uri)
    return matches


def _uri_exists(uri: str) -> bool:
    if list_stored_input(uri):
        return True
    if not split_uri(uri)[1]:
        return False
    try:
        store_of(uri).info(uri)
    except FileNotFoundError:
        return False
    return True


def _match_patterns(parent: str, patterns: list[str]) -> Iterator[str]:
    """Yield paths below a directory that match one pattern per level."""
    pattern, *next_patterns = patterns
    if not glob.has_magic(pattern):
        path = f"{parent}/{pattern}"
        if next_patterns:
            yield from _match_patterns(path, next_patterns)
        elif _uri_exists(path):
            yield path
        return
    if pattern == _ANY_DEPTH and next_patterns:
        yield from _match_patterns(parent, next_patterns)
    matcher = re.compile(translate("*" if pattern == _ANY_DEPTH else pattern))
    for entry in list_stored_input(parent):
        name = os.path.basename(entry.path)
        if matcher.match(name) is None or (name.startswith(".") and not pattern.startswith(".")):
            continue
        if not next_patterns:
            yield entry.path
        if entry.is_directory and (next_patterns or pattern == _ANY_DEPTH):
            yield from _match_patterns(
                entry.path, patterns if pattern == _ANY_DEPTH else next_patterns
            )


PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_MAX_DEPTH = 5
_MAX_DIRECTORIES = 2000
_MAX_SHOWN = 8
_ARCHIVE_NAME = re.compile(r".+\.(?:tar|tgz|zip|7z|tar\.[a-z0-9]+)", re.IGNORECASE)
_TABLE_NAME = re.compile(r".+\.(?:avro|parquet|jsonl?|csv)(?:\.[a-z0-9]+)?", re.IGNORECASE)
# Redpanda: TOPIC/PARTITION_REVISION/BASE-TERM-VERSION.log.
_REDPANDA_NAME = re.compile(r"[0-9]+-[0-9]+-v[0-9]+\.log")


def layout_hint(directories: Sequence[str]) -> str | None:
    """Return a hint about data in subdirectories, for input directories without partitions.

    None if a directory is itself a data directory, or nothing is recognized.
    """
    data_directories: list[str] = []
    hint: str | None = None
    for path in directories:
        for directory, entries in _walk_levels(path):
            if _contains_partitions(entries):
                if directory == path:
                    return None
                data_directories.append(directory)
            hint = hint or format_hint(directory, [entry.name for entry in entries])
    if data_directories:
        return f"the path contains data directories: give {first_of(data_directories, _MAX_SHOWN)}"
    return hint


def format_hint(directory: str, names: Sequence[str]) -> str | None:
    """Return a hint about files that are not Kafka logs; None if their format is unknown."""
    if REPOSITORY_FILE in names:
        return f"{directory} is a repository of backups: give backup:{directory}"
    for name in names:
        path = os.path.join(directory, name)
        if _REDPANDA_NAME.fullmatch(name):
            return f"{path} is a Redpanda segment: this format is not supported"
        if hint := archive_hint(path):
            return hint
        if _TABLE_NAME.fullmatch(name):
            return f"{path} is not a Kafka log; kafka-index import reads tables and connector files"
    return None


def archive_hint(path: str) -> str | None:
    if _ARCHIVE_NAME.fullmatch(os.path.basename(path)) is None:
        return None
    return f"{path} is an archive: unpack it, and give the data directory in it"


def _walk_levels(path: str) -> Iterator[tuple[str, list[Entry]]]:
    """Yield an input and the directories below it with their entries, level by level."""
    level, count = [path], 0
    for _ in range(_MAX_DEPTH):
        next_level: list[str] = []
        for directory in level:
            count += 1
            if count > _MAX_DIRECTORIES:
                return
            try:
                entries = scan_input(directory)
            except InputError:
                continue
            yield directory, entries
            if not _contains_partitions(entries):
                next_level += [entry.path for entry in entries if entry.is_directory()]
        level = next_level


def _contains_partitions(entries: Sequence[Entry]) -> bool:
    """Return whether a directory has partitions, and also `meta.properties` or `.log` files."""
    names = {entry.name for entry in entries}
    partitions = [
        entry
        for entry in entries
        if (split := split_directory_name(entry.name)) is not None
        and split[1] is DirectoryKind.LIVE
        and entry.is_directory()
    ]
    return bool(partitions) and (META_PROPERTIES in names or any(map(_contains_logs, partitions)))


def _contains_logs(entry: Entry) -> bool:
    try:
        files = [parse_segment_file(file_entry.name) for file_entry in scan_input(entry.path)]
    except InputError:
        return False
    return any(file is not None and file.kind == LOG_SUFFIX for file in files)


def is_parquet_path(path: str) -> bool:
    """Return whether a path is a Parquet file, or a folder that directly contains such files."""
    if is_input_directory(path):
        return any(is_parquet_name(entry.name) for entry in scan_input(path))
    return path.endswith(PARQUET_SUFFIXES)


def is_parquet_name(name: str) -> bool:
    return name.endswith(PARQUET_SUFFIXES) and not name.startswith(("_", "."))

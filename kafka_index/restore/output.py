"""The output directory: what may be in it before a restore, and again once its lock is held."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka_index.errors import InputError
from kafka_index.layout.internal_topics import METADATA_LOG
from kafka_index.layout.names import (
    BOOTSTRAP_CHECKPOINT,
    BROKER_LOCK,
    CLEANER_CHECKPOINT,
    FIRST_SNAPSHOT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from kafka_index.restore.cluster import check_identity
from kafka_index.restore.dump_files import refuse_running
from kafka_index.restore.journal import JOURNAL_FILE, BegunPlan, Journal
from kafka_index.restore.root_files import HIDDEN_PROPERTIES
from kafka_index.startup.directory_files import CLEAN_SHUTDOWN, read_properties
from kafka_index.storage import (
    check_target,
    local_path,
    refuse_overlap,
)
from kafka_index.stores import is_remote

#: What `kafka-storage.sh format` writes.
_FORMATTED = frozenset({META_PROPERTIES, BOOTSTRAP_CHECKPOINT, METADATA_LOG})
#: What seeding adds, where the directory is that of the metadata log, too.
_SEEDED = frozenset({BOOTSTRAP_CHECKPOINT + ".orig"})
# Files of runs that ended before they had a plan.
_OURS = re.compile(r"\.(kafka-index[A-Za-z0-9_.-]+|[A-Za-z._-]+\.tmp)")
_ROOT_FILES = frozenset(
    {
        META_PROPERTIES,
        CLEAN_SHUTDOWN,
        RECOVERY_POINT_CHECKPOINT,
        REPLICATION_CHECKPOINT,
        LOG_START_CHECKPOINT,
        CLEANER_CHECKPOINT,
    }
)


@dataclass(frozen=True, slots=True)
class Output:
    """A directory that a restore may write.

    Parameters
    ----------
    path : str
        Absolute, links resolved.
    begun : BegunPlan, optional
        The unfinished restore of the same plan that is in it.
    properties : mapping of str to str
        Of its ``meta.properties``, as it was formatted or as this restore began; empty for none.
    """

    path: str
    begun: BegunPlan | None
    properties: Mapping[str, str]


def check_output(
    given: str, inputs: Iterable[str], digest: str, partitions: Iterable[str]
) -> Output:
    """Check an output directory, and make it if it is missing.

    Parameters
    ----------
    given : str
        As it was given.
    inputs : iterable of str
        What is read.
    digest : str
        Of the plan.
    partitions : iterable of str
        The names of its partition directories.

    Raises
    ------
    InputError
        It is not local, holds anything but an unfinished restore of the same plan, overlaps with
        the input, or a running broker holds it.
    PublishError
        It cannot be made or written.
    """
    if is_remote(given):
        raise InputError(
            "a broker mounts a local directory", path=given, hint="give --output a local path"
        )
    path = os.path.realpath(local_path(given))
    hint = "choose another --output"
    refuse_overlap(path, given, inputs, hint=hint)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InputError("the output is not a directory", path=given, hint=hint)
    if os.path.isdir(path):
        refuse_running(path, "nothing was written; choose another --output")
        found = _as_found(path, digest, partitions)
        if found.begun is not None:
            return found
    check_target(path, [])
    return Output(path, None, _properties(path))


def check_again(output: Output, digest: str, partitions: Iterable[str]) -> Output:
    """Return an output directory as it is now that its lock is held.

    Another run, or a broker, may have used it between the check and the lock.

    Parameters
    ----------
    output : Output
        As it was checked.
    digest : str
        Of the plan.
    partitions : iterable of str
        The names of its partition directories.

    Raises
    ------
    InputError
        It holds anything but an unfinished restore of the same plan, or has another identity.
    """
    # No look at the broker's lock: closing that file would let go of it.
    found = _as_found(output.path, digest, partitions)
    has_begun_since = found.begun is not None and output.begun is None
    if found.properties != output.properties and not has_begun_since:
        raise InputError(
            "the output has changed since it was checked",
            path=output.path,
            hint="is another restore running? run this one again",
        )
    return found


def _as_found(path: str, digest: str, partitions: Iterable[str]) -> Output:
    names = set(os.listdir(path))
    if JOURNAL_FILE in names:
        return _resumed(path, names, digest, partitions)
    _refuse_foreign(path, names)
    return Output(path, None, _properties(path))


def _resumed(path: str, names: set[str], digest: str, partitions: Iterable[str]) -> Output:
    begun = Journal(path).begun()
    if begun is None or begun.digest != digest:
        raise InputError(
            "the output holds an unfinished restore of another plan",
            path=path,
            hint="give the same input and options to complete it, or choose another --output",
        )
    foreign = {
        name
        for name in names.difference(_FORMATTED, _SEEDED, _ROOT_FILES, partitions, {BROKER_LOCK})
        if not _OURS.fullmatch(name)
    }
    if foreign:
        raise InputError(
            "the output holds an unfinished restore, and something else",
            path=path,
            found=min(foreign),
            hint="was a broker started on it? choose another --output",
        )
    return Output(path, begun, _properties(path))


def _refuse_foreign(path: str, names: set[str]) -> None:
    """Refuse a directory that holds more than what formatting or a killed run leave."""
    for name in sorted(names):
        if name == BROKER_LOCK or _OURS.fullmatch(name):
            continue
        if name not in _FORMATTED or not _is_formatted(path, name):
            raise InputError(
                "the output is not empty",
                path=path,
                found=name,
                hint="nothing was written; choose another --output, or empty it",
            )


def _is_formatted(path: str, name: str) -> bool:
    place = os.path.join(path, name)
    if name != METADATA_LOG:
        return os.path.isfile(place)
    return os.path.isdir(place) and set(os.listdir(place)) <= {FIRST_SNAPSHOT}


def _properties(path: str) -> dict[str, str]:
    # Of an unfinished restore that was formatted again, the new one counts.
    for name in (META_PROPERTIES, HIDDEN_PROPERTIES):
        place = os.path.join(path, name)
        if os.path.exists(place):
            properties = read_properties(place)
            check_identity(properties, place, "format the output again")
            return properties
    return {}

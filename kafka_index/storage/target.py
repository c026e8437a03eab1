"""Where index files go: target folders, and the refusal of targets that overlap the input."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from kafka_index.errors import InputError, PublishError
from kafka_index.layout.names import TopicPartition, is_legal_topic
from kafka_index.storage.failures import publish_error
from kafka_index.storage.paths import local_path, refuse_overlap

_PROBE = ".kafka-index.probe"


def target_directory(target_root: str | None, partition: TopicPartition, log_directory: str) -> str:
    """Return the folder for a segment's files: below the target root, or beside the log.

    Parameters
    ----------
    target_root : str, optional
        Root of the output; None in place.
    partition : TopicPartition
        Whose segment it is.
    log_directory : str
        The folder of the log.

    Raises
    ------
    InputError
        The topic (which may come from a table) is not one a broker would take, and must not
        become part of a path.
    """
    if target_root is None:
        return log_directory
    if not is_legal_topic(partition.topic):
        raise InputError(
            "not a legal topic name",
            expected="1 to 249 of a-z A-Z 0-9 . _ -",
            found=repr(partition.topic),
        )
    return os.path.join(target_root, partition.directory_name)


def prepare_target_directory(
    target_root: str | None, partition: TopicPartition, log_directory: str
) -> str:
    """Return a segment's target folder, made if missing.

    Raises
    ------
    InputError
        As `target_directory`.
    PublishError
        It cannot be made, or is a way back (a link) into the folder of the log.
    """
    directory = target_directory(target_root, partition, log_directory)
    if target_root is None:
        return directory
    try:
        os.makedirs(directory, exist_ok=True)
        led_back = os.path.isdir(log_directory) and os.path.samefile(directory, log_directory)
    except OSError as error:
        raise publish_error(error, directory, "make the target folder") from error
    if led_back:
        raise PublishError(
            "the target folder is the folder of the log",
            path=directory,
            found=os.path.realpath(directory),
            hint="choose another --output, or say --in-place",
        )
    return directory


def check_target(output_root: str, inputs: Iterable[str]) -> str:
    """Check an output root, make it if missing, and try a write there.

    Parameters
    ----------
    output_root : str
        A local path or ``file://`` URI.
    inputs : iterable of str
        What is read: the paths and globs as given, and best the listed partition directories
        too (a link inside a data directory leads out of it).

    Returns
    -------
    str
        The root as an absolute path, links resolved.

    Raises
    ------
    InputError
        The output is an input, or lies inside one, or holds one.
    PublishError
        It cannot be made or written.
    """
    root = os.path.realpath(local_path(output_root))
    hint = "choose another --output, or say --in-place to write beside the logs"
    refuse_overlap(root, output_root, inputs, hint=hint)
    # One name for all runs, so that what a killed one leaves is used up by the next.
    probe = os.path.join(root, _PROBE)
    try:
        os.makedirs(root, exist_ok=True)
        # Permission bits do not tell (root, read-only mounts, access lists): only a write does.
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with contextlib.suppress(FileNotFoundError):  # another run tried at the same time
            os.unlink(probe)
    except OSError as error:
        raise publish_error(error, root, "write to the output") from error
    return root

"""The files of a restored partition besides its logs and index files, and making all durable."""

from __future__ import annotations

import os
import shutil

from kafka_index.layout.names import PARTITION_METADATA
from kafka_index.storage import make_durable, publish_error


def remove_directory(directory: str) -> None:
    """Remove a partition of the output that is not finished.

    Raises
    ------
    PublishError
        It cannot be removed.
    """
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise publish_error(error, directory, "remove an unfinished partition") from error


def write_partition_metadata(directory: str, topic_id: str) -> None:
    """Write the topic id of a partition.

    Raises
    ------
    PublishError
        It cannot be written.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    try:
        with open(path, "w", encoding="ascii", newline="") as file:
            file.write(f"version: 0\ntopic_id: {topic_id}")
    except OSError as error:
        raise publish_error(error, path, "write the partition metadata") from error


def remove_build_files(directory: str) -> None:
    """Remove the files of a partition that only a build needs.

    Raises
    ------
    PublishError
        One cannot be removed.
    """
    try:
        for name in os.listdir(directory):
            if name.startswith("."):
                os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise publish_error(error, directory, "remove a file of the build") from error


def make_partition_durable(directory: str) -> None:
    """Make all files of a partition durable.

    Raises
    ------
    PublishError
        The disk refuses it.
    """
    for path, failure in make_durable(paths_of(directory)).items():
        raise publish_error(failure, path, "make a restored file durable")


def paths_of(directory: str) -> list[str]:
    """Return what has to be durable of a partition: its files, and itself.

    Raises
    ------
    PublishError
        It cannot be listed.
    """
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise publish_error(error, directory, "list a restored partition") from error
    return [*(os.path.join(directory, name) for name in names), directory]

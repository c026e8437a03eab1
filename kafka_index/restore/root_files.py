"""The files of an output besides its logs and indexes, each durable.

While a restore is unfinished there is no ``meta.properties``, without which no broker starts, and
no marker. The identity is written before the logs, under another name, and takes its own by a
rename, for which a full disk has room.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping

from kafka_index.layout.checkpoints import format_offset_checkpoint
from kafka_index.layout.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.storage import AtomicFile, make_durable, publish_error

#: How the folders of attempts begin, in which tasks restore partitions.
STAGING = ".kafka-index-restoring."
#: Where the meta.properties is meanwhile: no broker starts without one.
HIDDEN_PROPERTIES = ".kafka-index-restore.properties"
_TRIES = 100


def make_directory(path: str) -> None:
    """Make a directory, if it is missing."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise publish_error(error, path, "make the directory") from error


def move_directory(path: str, new_path: str) -> None:
    """Rename a directory within the output."""
    try:
        os.rename(path, new_path)
    except OSError as error:
        raise publish_error(error, new_path, "rename a restored partition") from error
    sync_directory(os.path.dirname(new_path))


def remove_marker(output: str) -> None:
    """Remove the marker of a clean shutdown, durably: what follows changes the output."""
    path = os.path.join(output, CLEAN_SHUTDOWN)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise publish_error(error, path, "remove the marker") from error
    sync_directory(output)


def write_checkpoints(
    output: str,
    ends: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
    cleaned: Mapping[TopicPartition, int],
) -> None:
    """Write the checkpoints at the root, durably."""
    for name, offsets in (
        (RECOVERY_POINT_CHECKPOINT, ends),
        (REPLICATION_CHECKPOINT, ends),
        (LOG_START_CHECKPOINT, log_starts),
        (CLEANER_CHECKPOINT, cleaned),
    ):
        if offsets or name != CLEANER_CHECKPOINT:
            write_durably(os.path.join(output, name), format_offset_checkpoint(offsets).encode())
    sync_directory(output)


def hide_identity(output: str, properties: Mapping[str, str]) -> None:
    """Keep the identity away from brokers, durably, until the restore is complete."""
    hidden = os.path.join(output, HIDDEN_PROPERTIES)
    _rename(output, META_PROPERTIES, HIDDEN_PROPERTIES)
    if properties and not os.path.exists(hidden):
        text = "".join(f"{name}={value}\n" for name, value in sorted(properties.items()))
        write_durably(hidden, text.encode())
    sync_directory(output)


def show_identity(output: str) -> None:
    """Give the ``meta.properties`` that was kept away its name: from now on brokers start."""
    _rename(output, HIDDEN_PROPERTIES, META_PROPERTIES)


def remove_staging(output: str) -> None:
    """Remove the folders and files of attempts and of killed runs."""
    try:
        for entry in list(os.scandir(output)):
            if entry.name.startswith(STAGING):
                _remove_tree(entry.path)
            elif entry.name.startswith((".kafka-index-probe", ".kafka-index.")):
                os.unlink(entry.path)
    except OSError as error:
        raise publish_error(error, output, "remove what killed runs have left") from error


def write_marker(output: str, broker_epoch: int) -> None:
    """Write the marker of a clean shutdown, durably; no file that brokers read is written later."""
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    write_durably(os.path.join(output, CLEAN_SHUTDOWN), text.encode())
    sync_directory(output)


def write_durably(path: str, data: bytes) -> None:
    """Write a file whole, durably."""
    with AtomicFile(path) as file:
        file.write(data)
        file.commit()


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    for place, error in make_durable([path]).items():
        raise publish_error(error, place, "make the directory durable")


def _rename(output: str, name: str, new_name: str) -> None:
    try:
        os.rename(os.path.join(output, name), os.path.join(output, new_name))
    except FileNotFoundError:
        return
    except OSError as error:
        raise publish_error(error, os.path.join(output, name), "rename the file") from error
    sync_directory(output)


def _remove_tree(path: str) -> None:
    """Remove a folder in which tasks of a killed run on Spark may still write and remove files."""
    for _ in range(_TRIES):
        try:
            return shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
            if not os.path.lexists(path):
                return None
    return shutil.rmtree(path)


def remove_directory(directory: str) -> None:
    """Remove a partition of the output that is not finished."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise publish_error(error, directory, "remove an unfinished partition") from error


def write_partition_metadata(directory: str, topic_id: str) -> None:
    """Write the topic id of a partition."""
    path = os.path.join(directory, PARTITION_METADATA)
    try:
        with open(path, "w", encoding="ascii", newline="") as file:
            file.write(f"version: 0\ntopic_id: {topic_id}")
    except OSError as error:
        raise publish_error(error, path, "write the partition metadata") from error


def remove_build_files(directory: str) -> None:
    """Remove the files of a partition that only a build needs."""
    try:
        for name in os.listdir(directory):
            if name.startswith("."):
                os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise publish_error(error, directory, "remove a file of the build") from error


def make_partition_durable(directory: str) -> None:
    """Make all files of a partition durable."""
    for path, failure in make_durable(paths_of(directory)).items():
        raise publish_error(failure, path, "make a restored file durable")


def paths_of(directory: str) -> list[str]:
    """Return the paths of a partition that have to be durable: its files, and itself."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise publish_error(error, directory, "list a restored partition") from error
    return [*(os.path.join(directory, name) for name in names), directory]

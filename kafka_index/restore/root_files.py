"""The files at the root of an output: identity, checkpoints, and the marker, each durable.

While a restore is unfinished there is no ``meta.properties``, without which no broker starts, and
no marker. The identity is written before the logs, under another name, and takes its own by a
rename, for which a full disk has room.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from kafka_index.layout.checkpoints import format_offset_checkpoint
from kafka_index.layout.names import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.startup.directory_files import CLEAN_SHUTDOWN
from kafka_index.storage import AtomicFile, make_durable, publish_error

#: How the folders of attempts begin, in which tasks restore partitions.
STAGING = ".kafka-index-restoring."
#: Where the meta.properties is meanwhile: no broker starts without one.
HIDDEN_PROPERTIES = ".kafka-index-restore.properties"


def make_directory(path: str) -> None:
    """Make a directory, if it is missing.

    Raises
    ------
    PublishError
        It cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise publish_error(error, path, "make the directory") from error


def move_directory(path: str, new_path: str) -> None:
    """Rename a directory within the output.

    Raises
    ------
    PublishError
        It cannot be renamed.
    """
    try:
        os.rename(path, new_path)
    except OSError as error:
        raise publish_error(error, new_path, "rename a restored partition") from error
    sync_directory(os.path.dirname(new_path))


def remove_marker(output: str) -> None:
    """Remove the marker of a clean shutdown, durably: what follows changes the output.

    Raises
    ------
    PublishError
        It cannot be removed.
    """
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
    """Write the checkpoints at the root, durably.

    Parameters
    ----------
    output : str
        The output directory.
    ends : mapping of TopicPartition to int
        Log ends: the recovery points, and the high watermarks.
    log_starts, cleaned : mapping of TopicPartition to int
        Log starts that are above the first segment, and up to where logs were cleaned.

    Raises
    ------
    PublishError
        One cannot be written.
    """
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
    """Keep as what the output is mounted away from brokers, durably, until the restore is complete.

    Parameters
    ----------
    output : str
        The output directory.
    properties : mapping of str to str
        Written where the output is not formatted; nothing for none.

    Raises
    ------
    PublishError
        It cannot be written.
    """
    hidden = os.path.join(output, HIDDEN_PROPERTIES)
    _rename(output, META_PROPERTIES, HIDDEN_PROPERTIES)
    if properties and not os.path.exists(hidden):
        text = "".join(f"{name}={value}\n" for name, value in sorted(properties.items()))
        write_durably(hidden, text.encode())
    sync_directory(output)


def show_identity(output: str) -> None:
    """Give the ``meta.properties`` that was kept away its name: from now on brokers start.

    Raises
    ------
    PublishError
        It cannot be renamed.
    """
    _rename(output, HIDDEN_PROPERTIES, META_PROPERTIES)


def remove_staging(output: str) -> None:
    """Remove what attempts and runs that were killed have left.

    Raises
    ------
    PublishError
        Something cannot be removed.
    """
    try:
        for entry in list(os.scandir(output)):
            if entry.name.startswith(STAGING):
                shutil.rmtree(entry.path)
            elif entry.name.startswith((".kafka-index-probe", ".kafka-index.")):
                os.unlink(entry.path)
    except OSError as error:
        raise publish_error(error, output, "remove what killed runs have left") from error


def write_marker(output: str, broker_epoch: int) -> None:
    """Write the marker of a clean shutdown, durably: nothing that a broker reads is written later.

    Parameters
    ----------
    output : str
        The output directory, whose every log was verified and is durable.
    broker_epoch : int
        The epoch with which the broker registers: -2 for none.

    Raises
    ------
    PublishError
        It cannot be written.
    """
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    write_durably(os.path.join(output, CLEAN_SHUTDOWN), text.encode())
    sync_directory(output)


def write_durably(path: str, data: bytes) -> None:
    """Write a file whole, durably.

    Raises
    ------
    PublishError
        It cannot be written.
    """
    with AtomicFile(path) as file:
        file.write(data)
        file.commit()


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable.

    Raises
    ------
    PublishError
        The disk refuses it.
    """
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

"""``--cluster same``: the metadata log is copied along, and the broker comes back as itself."""

from __future__ import annotations

import json
import os
from contextlib import closing

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import META_PROPERTIES
from kafka_index.metadata import ClusterImage
from kafka_index.metadata.decoding import CLUSTER_METADATA_TOPIC
from kafka_index.restore.cluster import CLUSTER_ID, NODE_ID, Identity
from kafka_index.restore.dump_files import Dump
from kafka_index.restore.output import sync_directory
from kafka_index.scan.file_records import open_log
from kafka_index.startup.directory_files import CLEAN_SHUTDOWN
from kafka_index.storage import AtomicFile, publish_error
from kafka_index.storage.directories import scan_directory
from kafka_index.storage.log_directory import read_checkpoint_text

METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_BOOTSTRAP = "bootstrap.checkpoint"
#: No epoch is known: the broker registers as after an unclean shutdown.
_UNKNOWN_EPOCH = -1


def same_identity(
    dump: Dump, image: ClusterImage | None, *, all_brokers_restored: bool
) -> Identity:
    """Return as what the output comes back in its own cluster.

    Raises
    ------
    InputError
        The metadata is not in the dump, knows other brokers, or the dump is not of one directory.
    """
    if not dump.metadata_logs or image is None:
        raise InputError(
            "the metadata log of the cluster is not in the input",
            expected=METADATA_LOG,
            hint="add the metadata log directory to --input, or restore to a fresh cluster",
        )
    if len(dump.metadata_logs) > 1:
        raise InputError(
            "the input has several metadata logs",
            path=dump.metadata_logs[1],
            hint="restore each node from its own dump",
        )
    roots = {id(each.root): each.root for found in dump.replicas.values() for each in found}
    if len(roots) != 1:
        paths = sorted(each.path for each in roots.values())
        raise InputError(
            "the input has several data directories, and the metadata knows where each "
            "partition is",
            path=paths[1],
            hint="restore each data directory in a run of its own, to a directory of its own",
        )
    (root,) = roots.values()
    if not root.properties.get(CLUSTER_ID) or not root.properties.get(NODE_ID):
        raise InputError("the dump has no meta.properties", path=root.path)
    brokers = sorted(image.brokers)
    if len(brokers) > 1 and not all_brokers_restored:
        raise InputError(
            "the metadata knows other brokers: they would truncate what is restored, or be "
            "truncated to it",
            path=dump.metadata_logs[0],
            found=f"brokers {', '.join(map(str, brokers))}",
            hint="restore all of them to one point in time and give --all-brokers-restored, or "
            "restore to a fresh cluster",
        )
    epoch = _marker_epoch(root.path)
    if epoch is None:
        broker = image.brokers.get(int(root.properties[NODE_ID]))
        is_sole = broker is not None and len(brokers) == 1
        epoch = broker.broker_epoch if broker is not None and is_sole else _UNKNOWN_EPOCH
    return Identity(dict(root.properties), epoch)


def is_separate(dump: Dump) -> bool:
    """Return whether the metadata log is in a directory of its own."""
    home = os.path.dirname(dump.metadata_logs[0])
    return all(each.root.path != home for found in dump.replicas.values() for each in found)


def copy_metadata(dump: Dump, target: str, *, with_identity: bool) -> None:
    """Copy the metadata log, durably; what a killed run copied is copied again.

    Parameters
    ----------
    dump : Dump
        With one metadata log.
    target : str
        The directory that gets it.
    with_identity : bool
        Whether its ``meta.properties`` is copied too.

    Raises
    ------
    KafkaIndexError
        It cannot be read or written.
    """
    source = dump.metadata_logs[0]
    directory = os.path.join(target, METADATA_LOG)
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise publish_error(error, directory, "make the directory") from error
    for entry in scan_directory(source):
        if not entry.is_directory():
            _copy(entry.path, os.path.join(directory, entry.name))
    sync_directory(directory)
    home = os.path.dirname(source)
    names = (_BOOTSTRAP, META_PROPERTIES) if with_identity else (_BOOTSTRAP,)
    for entry in scan_directory(home):
        if entry.name in names:
            _copy(entry.path, os.path.join(target, entry.name))
    sync_directory(target)


def _copy(path: str, target: str) -> None:
    with closing(open_log(path)) as source, AtomicFile(target) as file:
        for piece in source.stream():
            file.write(piece.data)
        file.commit()


def _marker_epoch(root: str) -> int | None:
    """Return the broker epoch of the dump's own marker; None where there is none."""
    try:
        text = read_checkpoint_text(os.path.join(root, CLEAN_SHUTDOWN))
        found = json.loads(text or "null")
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return None
    except ValueError:
        return None
    epoch = found.get("brokerEpoch") if isinstance(found, dict) else None
    return epoch if isinstance(epoch, int) else None

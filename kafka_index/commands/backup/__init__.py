"""Back up running brokers into a repository, and open the repository."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from kafka_index.commands.backup.request import BACKUP, LIST_BACKUPS
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Config, Path, Paths, Topics

if TYPE_CHECKING:
    from kafka_index.commands.backup.result import BackupRepository, BackupResult


def backup_broker(
    paths: Paths,
    output: Path,
    *,
    topics: Topics | None = None,
    config: Config | None = None,
    node_id: int | None = None,
    brokers: Sequence[int] = (),
    wait: str | timedelta = "60s",
    cut_at: Time | None = None,
    bootstrap_server: str | None = None,
    max_bandwidth: float | None = None,
) -> BackupResult:
    """Back up a broker, which may be running, as ``kafka-index backup`` does.

    Parameters
    ----------
    paths : path, or list of path
        All data directories of the broker, and the directory of its metadata log, or globs.
    output : path
        The repository: a local folder or a URI. A missing repository is created.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or whose name is listed. Every
        backup also contains ``__transaction_state``, ``__consumer_offsets`` and the metadata log.
    config : path, mapping or LogConfig, optional
        The broker's settings, such as its ``server.properties``.
    node_id : int, optional
        The node ID of the broker, if the directories belong to several brokers.
    brokers : list of int
        The brokers that a backup expects; by default the brokers of the repository.
    wait : str or timedelta
        How long a broker waits for the other brokers of the backup.
    cut_at : time, optional
        Capture the logs at this cutoff time, which is the same for all brokers.
    bootstrap_server : str, optional
        The address of a running broker, from which high watermarks are requested instead of
        waiting up to 10 s for its checkpoint. This option needs the extra ``backup``.
    max_bandwidth : float, optional
        Limit for reads of logs, in millions of bytes per second.

    Returns
    -------
    BackupResult
        A row per partition. A partition that cannot be backed up is a row with the reason.

    Raises
    ------
    InputError
        The directories are not a broker's data directories, or the repository belongs to another
        cluster.
    KafkaIndexError
        The directories cannot be read, or the repository cannot be written. The repository has no
        new backup.

    Examples
    --------
    >>> backup = kafka_index.backup_broker("examples/dump", "backups")
    >>> backup.ok
    True
    >>> kafka_index.backup_broker("examples/dump", "backups").sizes_bytes["new"]
    0
    """
    result: BackupResult = call(BACKUP, locals())
    return result


def open_backup(uri: Path) -> BackupRepository:
    """Open a repository of backups, as ``kafka-index backups list`` does.

    Parameters
    ----------
    uri : path
        The repository, the ``--output`` of ``kafka-index backup``: a local path or a URI.

    Returns
    -------
    BackupRepository
        A row per backup. The method `at` returns the path of a backup, as an input for other
        functions.

    Raises
    ------
    InputError
        The URI is not a repository of backups.

    Examples
    --------
    >>> repository = kafka_index.open_backup("s3://backups/kafka")
    >>> repository.newest["backup_id"]
    '20261120T120000.123Z'
    >>> before = kafka_index.read_records(repository.at("2026-11-20T12:00Z"), topics="orders")
    """
    result: BackupRepository = call(LIST_BACKUPS, locals())
    return result

"""Functions over repositories of backups: a run of a broker into one, and the runs of one."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.commands.backup.agent import take
from kafka_index.commands.backup.repository_check import Backup, list_runs
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.arguments import paths_of, properties_of, text_of, whole, wrong
from kafka_index.core.format.config import topics_pattern
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.inputs import reading_inputs
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.parameters import Config, Path, Paths, Topics


def backup_broker(
    paths: Paths,
    output: Path,
    *,
    topics: Topics | None = None,
    config: Config | None = None,
    node_id: int | None = None,
    brokers: Sequence[int] = (),
    bootstrap_server: str | None = None,
) -> BackupResult:
    """Back up a broker, running or not, as ``kafka-index backup`` does.

    Parameters
    ----------
    paths : path, or list of path
        All data directories of the broker, with that of its metadata log, or globs.
    output : path
        The repository: a local folder or a URI. It is made if there is none.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named, besides
        ``__transaction_state``, ``__consumer_offsets`` and the metadata log.
    config : path, mapping or LogConfig, optional
        The broker's settings, such as its ``server.properties``.
    node_id : int, optional
        The broker, where the directories are of several.
    brokers : list of int
        The brokers that a run of the repository expects, for a new one.
    bootstrap_server : str, optional
        The address of a running broker, which is asked for high watermarks instead of waiting up to
        10 s for its checkpoint. It needs the extra ``backup``.

    Returns
    -------
    BackupResult
        A row per partition. A partition that cannot be taken is a row, not an exception.

    Raises
    ------
    InputError
        The directories are not those of a broker, or the repository is another cluster's.
    KafkaIndexError
        The directories cannot be read, or the repository not be written: it has no new run.

    Examples
    --------
    >>> taken = kafka_index.backup_broker("examples/dump", "backups")
    >>> taken.ok
    True
    >>> kafka_index.backup_broker("examples/dump", "backups").sizes_bytes["new"]
    0
    """
    request = BackupRequest(
        inputs=paths_of(paths),
        output=path_of(output, "output"),
        topics=topics_pattern(topics),
        properties=properties_of(config),
        node_id=None if node_id is None else whole(node_id, "node_id"),
        brokers=_brokers(brokers),
        bootstrap_server=text_of(bootstrap_server, "bootstrap_server"),
    )
    with reading_inputs(follow_links=False):
        return take(request).result


def _brokers(given: object) -> tuple[int, ...]:
    """Return node ids; raises `ConfigError` for anything else."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise wrong("brokers is not a list of node ids", "such as [1, 2, 3]", given)
    return tuple(whole(each, "brokers") for each in given)


def open_backup(uri: Path) -> Backup:
    """Open a repository of backups: its runs, as `backups list` prints them.

    Parameters
    ----------
    uri : path
        The repository, the ``--output`` of ``kafka-index backup``: a local path or a URI.

    Returns
    -------
    Backup
        A row per run. Its `at` gives the input by which other functions read a run.

    Raises
    ------
    InputError
        It is not a repository of backups.

    Examples
    --------
    >>> backup = kafka_index.open_backup("s3://backups/kafka")
    >>> backup.newest["run"]
    '20261120T120000.123Z'
    >>> before = kafka_index.read_records(backup.at("2026-11-20T12:00Z"), topics="orders")
    """
    return list_runs(absolute_path(path_of(uri, "uri")))

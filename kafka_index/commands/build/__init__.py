"""Build the index files and the state files of logs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka_index.commands.build.request import BUILD, InputFormat
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.build.result import BuildResult


def build_indexes(
    paths: Paths,
    output: Path | None = None,
    *,
    in_place: bool = False,
    format: InputFormat | str = InputFormat.AUTO,  # noqa: A002, as the option is named
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    what: Collection[str] | None = None,
    config: Config | None = None,
    expire_producers_at: Time | None = None,
    verify_crc: bool = True,
    overwrite: bool = False,
    fail_fast: bool = False,
    threads: int | None = None,
    follow_links: bool = False,
) -> BuildResult:
    """Build the files that a broker keeps next to its logs, as ``kafka-index build`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, Parquet files or folders, or globs of these; local
        paths or URIs.
    output : path
        Folder that gets a folder of files for each partition, as a local path or URI.
    in_place : bool
        Write the files next to the logs, in local directories that no broker uses.
    format : InputFormat or str
        The format of the input: ``log``, ``parquet``, or ``auto``, which detects it.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or is in the list.
    what : list of str, optional
        The files to build, by default all: ``index``, ``timeindex``, ``txnindex``, ``snapshot``,
        ``epochs``.
    config : path, mapping or LogConfig, optional
        Kafka settings, such as a broker's ``server.properties``. Missing settings are taken from
        the metadata log, if a data directory of the input has one.
    expire_producers_at : time, optional
        Omit producers that are idle at this time, as a broker that starts at this time does.
    verify_crc : bool
        Whether to verify checksums.
    overwrite : bool
        Build every segment, even if its files are correct.
    fail_fast : bool
        Stop at the first segment that fails.
    threads : int, optional
        Number of segments scanned concurrently; by default one per core, two for remote inputs.
    follow_links : bool
        Whether to read index files, checkpoints and snapshots that are links out of the input.
        Otherwise they are not opened, and are reported as unread.

    Returns
    -------
    BuildResult
        One row per segment. A corrupt segment is a row, not an exception.

    Raises
    ------
    ConfigError
        Neither `output` nor `in_place` is given, or both are given, or `in_place` is given for
        remote logs, or an argument is wrong.
    InputError
        Nothing is found, a path cannot be listed, or the output overlaps the input.
    PublishError
        The output cannot be created, locked or written.

    Examples
    --------
    >>> config = "examples/dump.properties"
    >>> result = kafka_index.build_indexes("examples/dump", "indexes", config=config)
    >>> result.ok
    True
    >>> result.to_arrow().column_names[:4]
    ['topic', 'partition', 'segment_base_offset', 'log_path']
    """
    result: BuildResult = call(BUILD, locals())
    return result

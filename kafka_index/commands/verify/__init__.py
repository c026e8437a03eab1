"""Verify the files of a dump, or compare two copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.verify.request import VERIFY
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.verify.result import Verification


def verify(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    metadata: Path | None = None,
    against: Paths = (),
    topics: Topics | None = None,
    fast: bool = False,
    config: Config | None = None,
    threads: int | None = None,
    now: Time | None = None,
    follow_links: bool = False,
) -> Verification:
    """Compare every file of a dump with its correct content, as ``kafka-index verify`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    indexes : path, optional
        Folder with the files to verify, in one folder per partition; by default they are next to
        the logs.
    metadata : path, optional
        The metadata log directory, which contains topic IDs and cleanup policies. By default, the
        metadata log of the dump.
    against : path, or list of path
        Compare the batches with another copy instead of verifying files.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or is in the list.
    fast : bool
        Read only the headers of batches: checksums are not verified.
    config : path, mapping or LogConfig, optional
        Kafka settings, such as a broker's ``server.properties``. Its node ID and metadata log
        directory are compared with the data directories.
    threads : int, optional
        Number of segments scanned concurrently; by default one per core, two for remote inputs.
    now : time, optional
        The time at which a broker would start, by default now. It determines which producers have
        expired.
    follow_links : bool
        Whether to read index files, checkpoints and snapshots that are links out of the input.
        Otherwise they are not opened, and are reported as unread.

    Returns
    -------
    Verification
        A row per file and partition, also for files that cannot be read.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> verification = kafka_index.verify("examples/dump", config="examples/dump.properties")
    >>> verification.ok
    True
    >>> verification.counts["files_harmful"]
    0
    """
    result: Verification = call(VERIFY, locals())
    return result

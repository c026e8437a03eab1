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
        The places of remote segments.
    indexes : path, optional
        Folder that mirrors the partition directories and holds the files to verify; by default
        they are next to the logs.
    metadata : path, optional
        The metadata log directory, by default the one in the dump. It has the ids of topics, and
        the topics that are compacted.
    against : path, or list of path
        Compare the batches with those of another copy instead: no file is verified.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    fast : bool
        Read the headers of batches only: checksums are not verified.
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as a broker's ``server.properties``. The node id and the directory of
        the metadata log among them are compared with the directories.
    threads : int, optional
        Segments scanned at a time; by default one a core, two for remote inputs.
    now : time, optional
        The time at which a broker would start, by default now. It decides the producers that have
        expired.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also if they are links out of the
        input. Otherwise they are not opened, and are reported as unread.

    Returns
    -------
    Verification
        A row per file and partition; a file that cannot be read is a row too.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.verify("examples/dump", config="examples/dump.properties")
    >>> found.ok
    True
    >>> found.counts["files_harmful"]
    0
    """
    result: Verification = call(VERIFY, locals())
    return result

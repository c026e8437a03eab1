"""Read Kafka's internal topics, and list partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.metadata.request import METADATA, PartitionsRequest
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.job.request import build_request, call
from kafka_index.core.parameters import Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.metadata.read_tables import Metadata, PartitionList


def read_metadata(
    paths: Paths,
    what: str | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    follow_links: bool = False,
) -> Metadata:
    """Read topics, groups and transactions of a cluster, as ``kafka-index metadata`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, metadata log directories, or partition directories of internal topics;
        local paths or URIs.
    what : str, optional
        The table: ``topics``, ``partitions``, ``brokers``, ``groups``, ``offsets``,
        ``transactions``, ``producers`` or ``remote-segments``; ``lag`` or ``lag-history`` of the
        groups, if the input also contains the logs of their topics. By default an overview: the
        number of rows of each table whose topics are in the input.
    max_decompressed_bytes : int
        Memory limit for decompressed records, in bytes.
    follow_links : bool
        Whether to read snapshots and checkpoints that are links out of the input.

    Returns
    -------
    Metadata
        The rows of the table.

    Raises
    ------
    InputError
        A path cannot be read, or none of the topics is in the input.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> groups = kafka_index.read_metadata("examples/dump", what="groups")
    >>> groups.ok
    True
    >>> groups.to_arrow().column_names[:2]
    ['group', 'type']
    """
    result: Metadata = call(METADATA, locals())
    return result


def list_partitions(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    follow_links: bool = False,
) -> PartitionList:
    """List the partitions of a dump, with their offsets and sizes.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or is in the list.
    follow_links : bool
        Whether to read checkpoints that are links out of the input.

    Returns
    -------
    PartitionList
        A row per partition, sorted by topic and number.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.list_partitions("examples/dump", topics=["payments"])
    >>> found.to_arrow()["partition"].to_pylist()
    [0, 1]
    """
    request = build_request(PartitionsRequest, locals())
    from kafka_index.commands.metadata.read_tables import find_partitions  # noqa: PLC0415, slow to import

    return find_partitions(request)

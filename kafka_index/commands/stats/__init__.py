"""Statistics of logs: records, bytes, times, keys, and what retention or compaction would keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.stats.request import STATS, StatsBy
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.stats.result import LogStats


def read_stats(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    by: StatsBy | str = StatsBy.TOPIC,
    sizes: bool = False,
    keys: int | None = None,
    retention_ms: int | None = None,
    retention_bytes: int | None = None,
    compact: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> LogStats:
    """Count the records and bytes of logs, as ``kafka-index stats`` does on threads.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs. A
        partition may be in several of them.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or is in the list.
    from_time, to_time : time, optional
        Only batches whose largest timestamp is at or after `from_time`, and before `to_time`.
    by : StatsBy or str
        The rows: ``topic``, ``partition``, ``day`` or ``hour``.
    sizes : bool
        Whether to read the records: sizes of keys and values, compression ratio, schema IDs.
    keys : int, optional
        Read the keys: count distinct keys, and this many of the most frequent ones.
    retention_ms, retention_bytes : int, optional
        Predict what retention with these limits would keep; -1 for no limit.
    compact : bool
        Predict what compaction of the topics would keep.
    max_decompressed_bytes : int
        Memory limit for decompressed records, in bytes.
    threads : int, optional
        Number of parts of logs read concurrently; by default one per core, two for remote inputs.
    follow_links : bool
        Whether to read checkpoints that are links out of the input.

    Returns
    -------
    LogStats
        The rows, and the totals. Corrupt ranges are skipped, and reported by the result.

    Raises
    ------
    InputError
        Nothing is found, or a time is invalid.
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> stats = kafka_index.read_stats("examples/dump", topics="payments")
    >>> stats.ok
    True
    >>> stats.to_arrow().column("topic").to_pylist()
    ['payments']
    """
    result: LogStats = call(STATS, locals())
    return result

"""`read_records`, `find_records`, `export_records`: records as a table, by conditions, as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_index.core.arguments import (
    bounds_of,
    bytes_of,
    config_of,
    optional_path,
    partitions_of,
    paths_of,
    text_of,
    texts_of,
    threads_of,
    times_between,
    times_of,
    whole,
    with_flags,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import ConfigError, InputError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, choice_of, topics_pattern
from kafka_index.core.format.times import Time, now_ms
from kafka_index.core.fs.inputs import LINKED_OUT, reading_inputs, unread_texts
from kafka_index.core.log.read.choices import UpperBound
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics
from kafka_index.core.query.bounds import BoundOptions, Offsets, Times, check_order
from kafka_index.core.query.choices import Isolation, OnDamage
from kafka_index.core.query.matches import Search
from kafka_index.core.query.record_results import FoundRecords, Records
from kafka_index.core.query.records import plan_read
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.core.records.record_table import DEFAULT_COLUMNS


@with_flags
def read_records(
    paths: Paths,
    *,
    topics: Topics | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    starting_offsets: Offsets | None = None,
    ending_offsets: Offsets | None = None,
    starting_timestamp: Times | None = None,
    ending_timestamp: Times | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    include_control: bool = False,
    verify_crc: bool = True,
    on_damage: OnDamage | str = OnDamage.FAILFAST,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
    config: Config | None = None,
    max_decompressed_bytes: int | None = None,
    follow_links: bool = False,
) -> Records:
    """Read the records of log directories at rest.

    The rows are the records that Kafka's consumer returns, with the names and types of Spark's
    Kafka source: ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
    ``timestampType``, ``headers``. They are sorted by topic, partition and offset.

    Parameters
    ----------
    paths : path or sequence of paths
        Data directories, topic-partition directories, globs of either, or their URIs.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    partitions : mapping of str to sequence of int, optional
        Keep only these partitions of these topics.
    starting_offsets, ending_offsets : int or mapping of str to mapping of int to int, optional
        Where to begin, and where to end, exclusive: for all partitions or by topic and partition.
        -2 is the earliest offset and -1 the latest.
    starting_timestamp, ending_timestamp : time, or mapping likewise, optional
        A time instead: the offset of the first record as late. With no such record it is the end of
        the log. A time is milliseconds since 1970, a datetime with a zone, a date (its midnight in
        UTC), or a text: ISO 8601 (UTC where it names no zone), ``ms:N``, ``now``, ``today``,
        ``yesterday`` (UTC), or relative to now, such as ``-90m``, ``-36h`` or ``-7d``. A number
        that looks like seconds is refused; ``ms:N`` is not.
    tiered : path, sequence of paths, or TieredOptions, optional
        Where segments are that brokers have uploaded; with it, there may be no paths.
    columns : sequence of str
        The columns, in this order. Besides the eight above: ``leader_epoch``, ``producer_id``,
        ``producer_epoch``, ``sequence``, ``batch_base_offset``, ``position_bytes``, ``is_control``,
        ``is_aborted``. Other fields are not decoded.
    isolation : Isolation or str
        ``read_committed`` leaves out aborted transactions, and ends at the last stable offset.
    include_control : bool
        Whether control records, such as the markers of transactions, are rows too.
    verify_crc : bool
        Whether the checksum of each batch is verified before it is decoded.
    on_damage : OnDamage or str
        ``failfast`` raises an error at the first batch that cannot be read, ``permissive`` makes it
        a row with its place and reason in the column ``_corrupt_record``, ``drop`` leaves it out.
        An entry that has the name of a log but is not a file is an error with ``failfast``, and
        left out otherwise.
    indexes : path, optional
        Folder with a folder of index files for each partition, as ``build --output`` writes it; by
        default they are beside the logs. What is missing is built in memory where it is needed.
    upper_bound : UpperBound or str
        ``high-watermark`` ends each partition at its checkpointed high watermark.
    config : path, mapping or LogConfig, optional
        Kafka's settings, for indexes that are missing.
    max_decompressed_bytes : int, optional
        The most bytes of decompressed records that this process holds at a time; by default that of
        the settings.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    Records
        Record batches of a few MiB, read as they are asked for, each time from the beginning.

    Raises
    ------
    InputError
        A path, a name or a bound is wrong, or nothing is found.
    CorruptLogError
        A bound, or the transactions for isolation, cannot be read; or, while it is read, a batch.

    Examples
    --------
    >>> records = kafka_index.read_records("examples/dump", topics="payments")
    >>> records.head(2)["offset"].to_pylist()
    [0, 1]
    >>> records.to_pandas().groupby("partition").size().to_list()
    [1546, 1784]
    """
    now = now_ms()
    start = times_of(starting_timestamp, "starting_timestamp", now)
    end = times_of(ending_timestamp, "ending_timestamp", now)
    check_order(start, end)
    damage = choice_of(OnDamage, on_damage, "on_damage")
    settings = config_of(config, max_decompressed_bytes=max_decompressed_bytes)
    with reading_inputs(follow_links=follow_links) as unread:
        plan = plan_read(
            paths_of(paths),
            topics=topics_pattern(topics),
            partitions=partitions_of(partitions),
            bounds=BoundOptions(
                bounds_of(starting_offsets, "starting_offsets"),
                bounds_of(ending_offsets, "ending_offsets"),
                start,
                end,
            ),
            settings=ReadSettings(
                columns=texts_of(columns, "columns"),
                isolation=choice_of(Isolation, isolation, "isolation"),
                include_control=include_control,
                verify_crc=verify_crc,
                on_damage=damage,
                max_decompressed_bytes=settings.max_decompressed_bytes,
            ),
            config=settings,
            tiered=TieredOptions.of(tiered),
            indexes=optional_path(indexes, "indexes"),
            upper_bound=choice_of(UpperBound, upper_bound, "upper_bound"),
        )
    for file in unread.values():
        if damage is OnDamage.FAILFAST and file.reason != LINKED_OUT:
            raise InputError(file.reason, path=file.shown)
    return Records(plan, unread_texts(unread))


@with_flags
def find_records(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    topics: Topics | None = None,
    key: str | bytes | None = None,
    key_regex: str | None = None,
    value_contains: str | bytes | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    limit: int | None = None,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> FoundRecords:
    """Find records by key, value and time, as ``kafka-index find`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    indexes : path, optional
        Output of an earlier build; by default index files are beside the logs.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    key : str or bytes, optional
        The key. As text it is UTF-8, or other bytes after ``hex:`` or ``base64:``.
    key_regex : str, optional
        An expression of RE2 that a part of the key matches.
    value_contains : str or bytes, optional
        A part of the value, likewise.
    from_time, to_time : time, optional
        Only records whose own timestamp is as late as the first, and earlier than the second.
    limit : int, optional
        Stop after so many records.
    isolation : Isolation or str
        ``read_committed`` leaves out aborted and open transactions.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    threads : int, optional
        Parts of logs searched at a time; by default one a core, two for remote inputs.
    follow_links : bool
        Whether index files and checkpoints are read also where they are links that lead out of the
        input.

    Returns
    -------
    FoundRecords
        Record batches, as they are asked for. Damage is passed over, and part of the result.

    Raises
    ------
    InputError
        Nothing is found, or a condition or a time is wrong.
    ConfigError
        There is no condition, or an argument is wrong.

    Examples
    --------
    >>> found = kafka_index.find_records("examples/dump", topics="payments", key_regex=".", limit=2)
    >>> [batch.num_rows for batch in found]
    [2]
    >>> found.ok
    True
    """
    if key is not None and key_regex is not None:
        raise ConfigError("key and key_regex exclude each other")
    if key is None and key_regex is None and value_contains is None:
        raise ConfigError("no condition: give key, key_regex or value_contains")
    record_filter = RecordFilter(
        *times_between(from_time, to_time),
        None if key is None else bytes_of(key, "key"),
        text_of(key_regex, "key_regex"),
        None if value_contains is None else bytes_of(value_contains, "value_contains"),
    )
    most = None if limit is None else whole(limit, "limit", least=1)
    engine = threads_of(threads)
    with reading_inputs(follow_links=follow_links) as unread:
        search = Search.prepare(
            paths_of(paths),
            record_filter,
            isolation=choice_of(Isolation, isolation, "isolation"),
            max_decompressed_bytes=whole(max_decompressed_bytes, "max_decompressed_bytes", least=1),
            topics=topics_pattern(topics),
            tiered=TieredOptions.of(tiered),
            indexes=optional_path(indexes, "indexes"),
        )
    return FoundRecords(search, engine, most, unread_texts(unread))

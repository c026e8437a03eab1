"""`read_records`: the records of logs as a table; no command corresponds to this function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kafka_index.core.arguments import convert_bounds, convert_partitions, convert_times
from kafka_index.core.errors import Faults
from kafka_index.core.fs.inputs import (
    collecting_unread,
    reading_inputs,
    refuse_unread,
    unread_texts,
)
from kafka_index.core.job.request import (
    ChoiceKind,
    FlagKind,
    Group,
    IntegerKind,
    Kind,
    build_request,
    parameter,
)
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.log.choices import Decode, DecodeErrors, Isolation, OnDamage, UpperBound
from kafka_index.core.parameters import (
    DEFAULT_SETTINGS,
    ColumnsKind,
    Config,
    DecodeRequest,
    KafkaSettings,
    Path,
    Paths,
    SettingsKind,
    Tiered,
    Topics,
)
from kafka_index.core.query.bounds import BoundOptions, Offsets, Times, Timestamps, check_order
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.record_stream import RecordStream
from kafka_index.core.query.records import plan_read, read_plan
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.record_table import CORRUPT_RECORD, DEFAULT_COLUMNS

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


class _ConvertedKind(Kind):
    """A value converted by a function that needs the argument's name and the current time."""

    def __init__(self, function: Callable[[Any, str, int], Any]) -> None:
        self._function = function

    def convert(self, value: Any, name: str, now: int) -> Any:
        return self._function(value, name, now)


def _argument(kind: Kind, default: Any = None) -> Any:
    return parameter(kind, Group.SELECTION, "", default=default)


_PARTITIONS = _ConvertedKind(lambda value, _name, _now: convert_partitions(value))
_OFFSETS = _ConvertedKind(lambda value, name, _now: convert_bounds(value, name))
_TIMES = _ConvertedKind(convert_times)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest(DecodeRequest):
    """Parameters of `read_records`."""

    partitions: Mapping[str, Sequence[int]] | None = _argument(_PARTITIONS)
    starting_offsets: Offsets | None = _argument(_OFFSETS)
    ending_offsets: Offsets | None = _argument(_OFFSETS)
    starting_timestamp: Timestamps | None = _argument(_TIMES)
    ending_timestamp: Timestamps | None = _argument(_TIMES)
    columns: tuple[str, ...] = _argument(ColumnsKind(), DEFAULT_COLUMNS)
    isolation: Isolation = _argument(ChoiceKind(Isolation), Isolation.READ_UNCOMMITTED)
    include_control: bool = _argument(FlagKind(), default=False)
    verify_crc: bool = _argument(FlagKind(), default=True)
    on_damage: OnDamage = _argument(ChoiceKind(OnDamage), OnDamage.FAILFAST)
    upper_bound: UpperBound = _argument(ChoiceKind(UpperBound), UpperBound.LOG_END)
    config: KafkaSettings = _argument(SettingsKind(), DEFAULT_SETTINGS)
    max_decompressed_bytes: int | None = _argument(IntegerKind(1))  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super(ReadRequest, self).__post_init__()
        check_order(self.starting_timestamp, self.ending_timestamp)

    @property
    def bounds(self) -> BoundOptions:
        """The bounds of all partitions."""
        return BoundOptions(
            self.starting_offsets,
            self.ending_offsets,
            self.starting_timestamp,
            self.ending_timestamp,
        )


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
    decode: Decode | str | None = None,
    schemas: Path = "dump",
    value_schema: Path | None = None,
    decode_errors: DecodeErrors | str = DecodeErrors.KEEP,
    schema_context: str = ".",
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
        Only topics whose full name matches the regular expression, or is in the list.
    partitions : mapping of str to sequence of int, optional
        Keep only these partitions of these topics.
    starting_offsets, ending_offsets : int or mapping of str to mapping of int to int, optional
        The first offset and the end, which is exclusive: for all partitions or by topic and
        partition. -2 is the earliest offset and -1 the latest.
    starting_timestamp, ending_timestamp : time, or mapping likewise, optional
        A time stands for the offset of the first record at or after it. Without such a record it is
        the end of the log. A time is milliseconds since 1970, a datetime with a zone, a date (its
        midnight in UTC), or a text: ISO 8601 (UTC if it has no zone), ``ms:N``, ``now``,
        ``today``, ``yesterday`` (UTC), or relative to now, such as ``-90m``, ``-36h`` or ``-7d``.
        A number that looks like seconds is rejected; ``ms:N`` is not.
    tiered : path, sequence of paths, or TieredOptions, optional
        Remote segments that brokers uploaded. With them `paths` may be empty.
    columns : sequence of str
        The columns, in this order. Besides the eight above: ``leader_epoch``, ``producer_id``,
        ``producer_epoch``, ``sequence``, ``batch_base_offset``, ``position_bytes``, ``is_control``,
        ``is_aborted``. Other fields are not decoded.
    isolation : Isolation or str
        ``read_committed`` drops aborted transactions, and ends at the last stable offset.
    include_control : bool
        Whether control records, such as the markers of transactions, are rows too.
    verify_crc : bool
        Whether the checksum of each batch is verified before it is decoded.
    on_damage : OnDamage or str
        ``failfast`` raises an error at the first batch that cannot be read. ``permissive`` makes it
        a row with its position and reason in the column ``_corrupt_record``. ``drop`` skips it. An
        entry that has the name of a log but is not a file is an error with ``failfast``, and is
        skipped otherwise.
    indexes : path, optional
        The output folder of ``build``, with a folder of index files for each partition; by default
        they are next to the logs. Missing index files are built in memory if they are needed.
    upper_bound : UpperBound or str
        ``high-watermark`` ends each partition at its checkpointed high watermark.
    config : path, mapping or LogConfig, optional
        Kafka settings, for index files that are missing.
    max_decompressed_bytes : int, optional
        Memory limit for decompressed records, in bytes; by default the limit of the settings.
    follow_links : bool
        Whether to read index files, checkpoints and snapshots that are links out of the input.
        Otherwise they are not opened, and are reported as unread.
    decode : Decode or str, optional
        ``key``, ``value`` or ``both``: these columns have the types of their schemas, and `columns`
        may name members such as ``value.customer.id``. Additional columns have the schema, the
        type, and the error and bytes of rows that failed.
    schemas : path or str
        ``dump`` for the topic ``_schemas`` of `paths`, a folder or file of schemas, or the URL of a
        registry.
    value_schema : path, optional
        A file with the schema of values without a schema ID, such as ``orders.proto#shop.Order``.
    decode_errors : DecodeErrors or str
        ``keep`` keeps the bytes of fields that cannot be decoded; ``fail`` raises an error.
    schema_context : str
        The context of the schema IDs in the records.

    Returns
    -------
    Records
        Record batches of a few MiB, which are read while you iterate, each time from the beginning.

    Raises
    ------
    InputError
        A path, a name or a bound is wrong, or nothing is found.
    CorruptLogError
        A bound or the transactions for `isolation` cannot be read; or, during iteration, a batch.
    CorruptRecordError
        With ``decode_errors="fail"``, a key or value does not decode.

    Examples
    --------
    >>> records = kafka_index.read_records("examples/dump", topics="payments")
    >>> records.head(2)["offset"].to_pylist()
    [0, 1]
    >>> records.to_pandas().groupby("partition").size().to_list()
    [1546, 1784]
    """
    request = build_request(ReadRequest, locals())
    config = request.config.config
    with reading_inputs(follow_links=request.follow_links) as unread:
        plan = plan_read(
            request.inputs,
            topics=request.topics,
            partitions=request.partitions,
            bounds=request.bounds,
            settings=ReadSettings(
                columns=request.columns if request.decode is None else DEFAULT_COLUMNS,
                isolation=request.isolation,
                include_control=request.include_control,
                verify_crc=request.verify_crc,
                on_damage=request.on_damage,
                max_decompressed_bytes=request.max_decompressed_bytes
                or config.max_decompressed_bytes,
            ),
            config=config,
            tiered=request.tiered,
            indexes=request.indexes,
            upper_bound=request.upper_bound,
        )
        if request.decode is not None:
            # Schemas and their decoders are slow to import.
            from kafka_index.core.query.typed_records import with_types  # noqa: PLC0415

            plan = with_types(plan, request, request.columns)
    if request.on_damage is OnDamage.FAILFAST:
        refuse_unread(unread)
    return Records(plan, unread_texts(unread))


class Records(RecordStream):
    """The result of `read_records`: records, sorted by topic, partition and offset.

    Iteration yields record batches of a few MiB while the logs are being read; each iteration reads
    them again from the start. pandas, polars, DuckDB and PyArrow read it as a table. `ok`, `counts`
    and `damage` describe the last completed iteration. It also has the methods of a
    ``pyarrow.RecordBatchReader``: `read_next_batch` continues after the last call, `read_all` and
    `read_pandas` read from the start.

    Parameters
    ----------
    plan : object
        The parts of the logs to read.
    unread : tuple of str
        Input entries that were not read, with reasons.
    """

    command = "cat"

    def __init__(self, plan: ReadPlan, unread: Sequence[str] = ()) -> None:
        super().__init__(plan, unread)
        self._next: Iterator[pa.RecordBatch] | None = None

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Read from the start and yield the records; closing the generator ends the read."""
        records, faults, failed = 0, Faults(), Counter[str]()
        has_corrupt_column = CORRUPT_RECORD in self.schema.names
        missing: list[MissingOffsets] = []
        with collecting_unread() as unread:
            for batch in read_plan(
                self._plan,
                on_skipped=faults.add,
                on_missing=missing.append,
                decode_errors=failed,
            ):
                corrupt_rows = (
                    len(batch) - batch.column(CORRUPT_RECORD).null_count
                    if has_corrupt_column
                    else 0
                )
                records += len(batch) - corrupt_rows
                faults.add_damage(corrupt_rows)
                yield batch
        missing_offsets = MissingOffsets.joined(missing)
        self._finish_read(records, faults, missing_offsets, unread_texts(unread), failed)

    def read_all(self) -> pa.Table:
        """Return all records as a table, like `to_arrow`."""
        return self.to_arrow()

    def read_pandas(self) -> pd.DataFrame:
        """Return all records as a pandas data frame, like `to_pandas`."""
        return self.to_pandas()

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raises `StopIteration` at the end."""
        if self._next is None:
            self._next = iter(self)
        return next(self._next)

"""Determine the types of decoded records before the first row is returned.

With naming strategies other than TopicName, the subjects of a topic do not contain the schemas of
all its records. Therefore, the schema IDs of all records are read first, and the schemas are merged
into one type per topic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, InputError, UnknownSchemaError, first_of
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import INTERNAL_TOPICS, TopicPartition
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import Decode, DecodeErrors, OnDamage
from kafka_index.core.log.filter.selection import CONDITION_COLUMNS, Condition, ConditionMatcher
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_table import record_schema
from kafka_index.core.schema.bodies import import_extra
from kafka_index.core.schema.columns import (
    KEY,
    VALUE,
    UnmatchedErrors,
    is_of_part,
    side_names,
)
from kafka_index.core.schema.decode import (
    DecodeOptions,
    TopicWriters,
    TypedColumn,
    TypedColumns,
    Writer,
)
from kafka_index.core.schema.folder import read_topic_schema
from kafka_index.core.schema.registry import Schema, SchemaKey, Schemas, SchemaType, TopicSchema
from kafka_index.core.schema.schemas_topic import SCHEMAS_TOPIC
from kafka_index.core.schema.sources import open_schemas
from kafka_index.core.schema.wire import (
    Frames,
    Framing,
    KeyCounts,
    find_frames,
    read_message_indexes,
)


class _Request(Protocol):
    """The parameters of a command that decodes records."""

    @property
    def decode(self) -> Decode | None: ...
    @property
    def schemas(self) -> str: ...
    @property
    def value_schema(self) -> str | None: ...
    @property
    def decode_errors(self) -> DecodeErrors: ...
    @property
    def schema_context(self) -> str: ...
    @property
    def max_decompressed_bytes(self) -> int | None: ...


class _InputRequest(_Request, Protocol):
    @property
    def inputs(self) -> tuple[str, ...]: ...


#: Topics whose records have no schema ID.
_PLAIN_TOPICS = frozenset({*INTERNAL_TOPICS, SCHEMAS_TOPIC})
#: The libraries that decode typed values, in an optional extra of the package.
_LIBRARIES = ("fastavro", "google.protobuf", "grpc_tools")


def decode_options(
    request: _Request, topics: Collection[str], inputs: Sequence[str]
) -> DecodeOptions | None:
    """Return how to decode the records of topics, None if the request does not decode records.

    This reads the schemas, by default from the inputs. Raises `InputError` if there are no schemas,
    or if the libraries for typed values are not installed.
    """
    if request.decode is None:
        return None
    for name in _LIBRARIES:
        import_extra(name)
    parts = request.decode.parts
    value_schema = None if request.value_schema is None else read_topic_schema(request.value_schema)
    needs_schemas = value_schema is None or KEY in parts
    budget = shared_budget(request.max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES)
    schemas = Schemas(())
    if needs_schemas:
        schemas = open_schemas(request.schemas, inputs, budget)
    main_schemas: dict[str, TopicSchema] = {}
    typed_topics = set(topics) - _PLAIN_TOPICS
    if schemas.main is not None and not schemas.is_mapped and len(typed_topics) == 1:
        main_schemas = dict.fromkeys(typed_topics, TopicSchema(schemas.main))
    return DecodeOptions(
        parts,
        schemas,
        value_schema,
        main_schemas,
        is_strict=request.decode_errors is DecodeErrors.FAIL,
        context=request.schema_context,
        max_bytes=budget.max_bytes,
    )


@dataclass(slots=True)
class PartCounts:
    """The writer schemas found so far in the keys or values of a topic; picklable."""

    writers: set[Writer] = field(default_factory=set)
    counts: KeyCounts = field(default_factory=KeyCounts)
    #: The writer schemas that earlier runs have found.
    earlier_writers: set[Writer] = field(default_factory=set)

    def add(self, counts: PartCounts) -> None:
        """Add the writer schemas found in other records."""
        self.writers |= counts.writers
        self.counts.add(counts.counts)

    @property
    def all_writers(self) -> set[Writer]:
        """The writer schemas that this run and earlier runs have found."""
        return self.writers | self.earlier_writers

    def topic_writers(self, options: DecodeOptions) -> TopicWriters:
        """Return the writer schemas, and whether there are plausible but unknown schema IDs."""
        keys = self.counts.keys
        known_keys = {key for key in keys if _find_schema(key, options) is not None}
        if self.counts.are_numbers(len(known_keys)):
            return TopicWriters(frozenset(self.earlier_writers))
        has_unknown_ids = any(key.is_plausible for key in keys if key not in known_keys)
        return TopicWriters(frozenset(self.all_writers), has_unknown_ids)


#: The writer schemas of records, keyed by topic and part (key or value).
TopicCounts: TypeAlias = dict[tuple[str, str], PartCounts]


class WriterFinder:
    """Finds the writer schemas of records from the first bytes of keys and values, and headers."""

    def __init__(self, options: DecodeOptions) -> None:
        self.counts: TopicCounts = defaultdict(PartCounts)
        self._options = options
        #: The parts (key, value) in which schema IDs are searched.
        self.parts = [
            part for part in options.parts if not (part == VALUE and options.value_schema)
        ]

    def add(self, topic: str, batch: pa.RecordBatch) -> None:
        """Add records of a topic: their keys and values in `parts`, and their headers."""
        for part in self.parts:
            frames = find_frames(batch.column(part), batch.column("headers"), is_key=part == KEY)
            part_counts = self.counts[topic, part]
            part_counts.counts.add_frames(frames)
            unframed = self._options.unframed_schema(part, topic)
            has_no_id = (frames.key_numbers < 0) & (frames.framing != Framing.NULL)
            if unframed is not None and has_no_id.any():
                part_counts.writers.add(unframed[0])
            for key, rows in frames.groups():
                part_counts.writers.update(self._writers(topic, part, key, frames, rows))

    def _writers(
        self, topic: str, part: str, key: SchemaKey, frames: Frames, rows: Longs
    ) -> Iterable[Writer]:
        """Return the writer schemas of rows with a schema ID."""
        writer, schema = Writer(key), _find_schema(key, self._options)
        if schema is None:
            # The schema of the topic is used instead.
            unframed = self._options.unframed_schema(part, topic)
            if unframed is None:
                return ()
            writer, schema = unframed[0], unframed[2].schema
            if unframed[2].type_name is not None:
                return {writer}
        if schema.type is not SchemaType.PROTOBUF:
            return {writer}
        has_names = self._options.schemas.has_foreign_ids
        indexes = read_message_indexes(frames, rows, has_names=has_names)
        return {writer.for_message(path) for path in indexes.paths}


def find_writers(
    splits: Sequence[RecordSplit],
    settings: ReadSettings,
    options: DecodeOptions,
    *,
    limit: int | None = None,
    threads: int | None = None,
) -> TopicCounts:
    """Return the writer schemas of the records of splits.

    With a limit, only this number of records of each partition is read. Without a limit, splits are
    read on threads, by default one thread per core.
    """
    if limit is not None or len(splits) < 2:
        return _find_writers(splits, settings, options, limit)
    totals: TopicCounts = defaultdict(PartCounts)
    inputs = sorted({name for split in splits for name in split.directories})
    with ThreadEngine(threads).start("schemas", inputs=inputs) as workers:
        for counts in workers.run(
            splits,
            lambda split, _: _find_writers([split], settings, options, None),
            sizes=[split.size_bytes for split in splits],
            description="find the schemas of {:,} splits of records",
        ):
            for topic_part, part_counts in counts.items():
                totals[topic_part].add(part_counts)
    return totals


def _find_writers(
    splits: Sequence[RecordSplit], settings: ReadSettings, options: DecodeOptions, limit: int | None
) -> TopicCounts:
    finder = WriterFinder(options)
    first_bytes_settings = replace(
        settings,
        columns=(*finder.parts, "headers"),
        verify_crc=False,
        on_damage=OnDamage.DROP,
        typed=None,
    )
    rows_read: Counter[TopicPartition] = Counter()
    for split in splits if finder.parts else ():
        partition = split.topic_partition
        if split.topic in _PLAIN_TOPICS or (limit is not None and rows_read[partition] >= limit):
            continue
        for batch in RecordReader(split, first_bytes_settings, on_skipped=_ignore_damage):
            needed_rows = len(batch) if limit is None else limit - rows_read[partition]
            finder.add(split.topic, batch.slice(0, needed_rows))
            rows_read[partition] += len(batch)
            if limit is not None and rows_read[partition] >= limit:
                break
    return finder.counts


def _find_schema(key: SchemaKey, options: DecodeOptions) -> Schema | None:
    try:
        return options.schemas.find(key, options.context)
    except UnknownSchemaError:
        return None


def _ignore_damage(_: CorruptLogError) -> None:
    """Ignore a corruption, because reading the records later reports it."""


def typed_columns(
    topics: Sequence[str],
    topic_counts: Mapping[tuple[str, str], PartCounts],
    options: DecodeOptions,
    names: Sequence[str],
    *,
    keeps_raw: bool = False,
) -> TypedColumns:
    """Return the typed columns for several topics that are read as one table."""
    columns = {
        part: _make_typed_column(part, topics, topic_counts, options)
        for part in options.parts
        if any(is_of_part(name, part) for name in names)
    }
    return TypedColumns(columns, names, is_strict=options.is_strict, keeps_raw=keeps_raw)


def _make_typed_column(
    part: str,
    topics: Sequence[str],
    topic_counts: Mapping[tuple[str, str], PartCounts],
    options: DecodeOptions,
) -> TypedColumn:
    writers_by_topic = {
        topic: TopicWriters()
        if topic in _PLAIN_TOPICS or (topic, part) not in topic_counts
        else topic_counts[topic, part].topic_writers(options)
        for topic in topics
    }
    return TypedColumn(part, options, writers_by_topic)


def check_mapping(options: DecodeOptions, types: Mapping[str, TypedColumns]) -> None:
    """Raise `InputError` if schemas have no IDs, and no schema belongs to a topic that is read."""
    if not types or options.schemas.is_mapped or any(typed.is_typed for typed in types.values()):
        return
    example = '{"topics": {"TOPIC": {"value": "FILE"}}}'
    raise InputError(
        "no schema has an ID or belongs to a topic that is read",
        path=options.schemas.origin,
        expected="a schema file named TOPIC-key or TOPIC-value, or a schemas.json",
        found=f"the topics {first_of(list(types), 5)}",
        hint=f"rename the schema file, or write a schemas.json: {example}",
    )


def with_types(
    plan: ReadPlan,
    request: _InputRequest,
    names: Sequence[str],
    *,
    keeps_raw: bool = False,
    limit: int | None = None,
    threads: int | None = None,
) -> ReadPlan:
    """Return a read plan that decodes typed columns; all topics are read as one table.

    With a limit, types are determined from at most this number of records of each partition.
    """
    topics = sorted(
        {partition.files.topic for partition in plan.partitions} | _topic_names(plan.splits)
    )
    options = decode_options(request, topics, request.inputs)
    if options is None:
        return plan
    topic_counts = find_writers(plan.splits, plan.settings, options, limit=limit, threads=threads)
    typed = typed_columns(topics, topic_counts, options, names, keeps_raw=keeps_raw)
    check_mapping(options, {", ".join(topics): typed})
    return replace(plan, settings=replace(plan.settings, typed=typed))


@dataclass(frozen=True, slots=True)
class RecordCondition:
    """A condition on records, which can refer to decoded columns; small and picklable.

    To evaluate the condition, only the members in it are decoded. Matching records are decoded
    completely.

    Attributes
    ----------
    typed : TypedColumns, optional
        The typed columns in the condition, if keys or values are decoded.
    """

    condition: Condition
    typed: TypedColumns | None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of records that are read."""
        return CONDITION_COLUMNS if self.typed is None else self.typed.needed

    def matcher(self) -> ConditionMatcher:
        """Return a matcher for one thread."""
        return ConditionMatcher(self.condition)

    def check(self) -> None:
        """Raise `InputError` if the types of the columns do not match the condition."""
        row: dict[str, object] = dict.fromkeys(self.needed)
        row |= {"topic": "", "partition": 0, "offset": 0}
        rows = pa.RecordBatch.from_pylist([row], schema=record_schema(self.needed))
        for batch in [rows] if self.typed is None else self.typed.decode(rows):
            self.matcher().match(batch)

    def filter(
        self, batch: pa.RecordBatch, matcher: ConditionMatcher, unmatched: UnmatchedErrors
    ) -> pa.RecordBatch:
        """Return the records that satisfy the condition; count decoding errors of others."""
        matches = []
        for decoded in [batch] if self.typed is None else self.typed.decode(batch):
            matches.append(matcher.match(decoded))
            for name in () if self.typed is None else self.typed.error_names:
                codes = decoded.column(name)
                if codes.null_count < len(codes):
                    rows = np.flatnonzero(~matches[-1] & np.asarray(codes.is_valid()))
                    offsets = decoded.column("offset").take(rows).to_pylist()
                    unmatched.add(offsets, codes.take(rows).to_pylist())
        is_match = np.concatenate(matches)
        return batch if is_match.all() else batch.filter(pa.array(is_match))


def with_condition(plan: ReadPlan, decode: Decode | None, expression: str) -> ReadPlan:
    """Return a read plan for the records that satisfy a condition.

    The plan must come from `with_types`, which determines the types of columns. Raises `InputError`
    if the expression is malformed or does not match the types.
    """
    typed = plan.settings.typed
    columns = [] if decode is None else list(decode.parts)
    columns += [name for part in columns for name in side_names(part)]
    condition = Condition.parse_decoded(expression, columns)
    # If the condition contains no members, keys and values stay bytes.
    condition_types = None
    if typed is not None and condition.members:
        parts = [
            part for part in (KEY, VALUE) if any(is_of_part(m, part) for m in condition.members)
        ]
        names = (*condition.members, *(side_names(part)[2] for part in parts), *CONDITION_COLUMNS)
        condition_types = typed.select(tuple(dict.fromkeys(names)))
    record_condition = RecordCondition(condition, condition_types)
    record_condition.check()
    return replace(plan, settings=replace(plan.settings, where=record_condition))


@dataclass(frozen=True, slots=True)
class TopicConditions:
    """A condition on the records of many topics, which have different types; picklable.

    If a topic lacks a member in the condition, none of its records match.

    Attributes
    ----------
    types : mapping of str to TypedColumns
        The columns in the condition, keyed by topic.
    """

    condition: Condition
    types: Mapping[str, TypedColumns]
    identity: str

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of records that are read."""
        names = [name for typed in self.types.values() for name in typed.needed]
        return tuple(dict.fromkeys((*CONDITION_COLUMNS, *names)))

    def matcher(self) -> TopicMatcher:
        """Return a matcher for one thread."""
        return TopicMatcher(self)


class TopicMatcher:
    """Evaluates a condition on records; each call of `match` is for records of one topic."""

    def __init__(self, conditions: TopicConditions) -> None:
        self._types = conditions.types
        self._matcher = ConditionMatcher(conditions.condition)

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records satisfy the condition; raise the errors of decoding."""
        typed = self._types.get(rows.column("topic")[0].as_py()) if len(rows) else None
        if typed is None:
            return np.zeros(len(rows), np.bool_)
        return np.concatenate([self._matcher.match(decoded) for decoded in typed.decode(rows)])


def topic_conditions(
    expression: str,
    splits: Sequence[RecordSplit],
    settings: ReadSettings,
    request: _InputRequest,
    *,
    threads: int | None = None,
) -> TopicConditions:
    """Return a condition on the records of splits, which may be of several topics.

    Raises `InputError` if no topic has the members of the condition, or their types do not match
    it.
    """
    options = decode_options(request, _topic_names(splits), request.inputs)
    assert options is not None  # noqa: S101, because mypy needs it
    columns = [*options.parts, *(name for part in options.parts for name in side_names(part))]
    condition = Condition.parse_decoded(expression, columns)
    names = (*condition.members, *CONDITION_COLUMNS)
    topic_counts = find_writers(splits, settings, options, threads=threads)
    types: dict[str, TypedColumns] = {}
    identity = []
    for topic in sorted(_topic_names(splits)):
        columns_by_part = {
            part: _make_typed_column(part, [topic], topic_counts, options) for part in options.parts
        }
        if all(column.has_members(names) for column in columns_by_part.values()):
            types[topic] = TypedColumns(columns_by_part, names, is_strict=options.is_strict)
            RecordCondition(condition, types[topic]).check()
            identity.append((topic, *(column.identity for column in columns_by_part.values())))
    if not types:
        check_mapping(options, {})
        raise InputError(
            "no topic has the members of the condition",
            found=", ".join(condition.members),
            hint="run `kafka-index export --decode` to write the columns",
        )
    return TopicConditions(condition, types, repr((identity, options.is_strict)))


def _topic_names(splits: Iterable[RecordSplit]) -> set[str]:
    return {split.topic for split in splits}

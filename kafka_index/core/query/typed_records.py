"""The types of records that are decoded, which are fixed before the first row is read.

The subjects of a topic have the schemas of its records, but for what other naming strategies and
hand-made records hold. So the frames of all records are read first: what names a schema in them is
a writer of the topic's type.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, InputError, UnknownSchemaError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.log.filter.selection import CONDITION_COLUMNS, Condition, ConditionMatcher
from kafka_index.core.query.choices import Decode, DecodeErrors, OnDamage
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_table import record_schema
from kafka_index.core.schema.bodies import import_extra
from kafka_index.core.schema.columns import KEY, VALUE, is_of_part, side_names
from kafka_index.core.schema.decode import DecodeOptions, TypedColumn, TypedColumns, Writer
from kafka_index.core.schema.folder import topic_schema_of_file
from kafka_index.core.schema.registry import Schemas, SchemaType
from kafka_index.core.schema.sources import open_schemas
from kafka_index.core.schema.wire import frames_of, message_indexes


class _Request(Protocol):
    """The parameters of a command that decodes records."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
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


#: The libraries of the extra for typed values.
_LIBRARIES = ("fastavro", "google.protobuf", "grpc_tools")


def decode_options(request: _Request) -> DecodeOptions | None:
    """Return how the records of a request are decoded; None if they are not.

    The schemas are read. Raises `InputError` if there are none, or if the libraries for typed
    values are not installed.
    """
    if request.decode is None:
        return None
    for name in _LIBRARIES:
        import_extra(name)
    parts = request.decode.parts
    own = None if request.value_schema is None else topic_schema_of_file(request.value_schema)
    needs_schemas = own is None or KEY in parts
    budget = shared_budget(request.max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES)
    return DecodeOptions(
        parts,
        open_schemas(request.schemas, request.inputs, budget) if needs_schemas else Schemas(()),
        own,
        request.decode_errors is DecodeErrors.FAIL,
        request.schema_context,
        budget.max_bytes,
    )


def find_writers(
    splits: Iterable[RecordSplit], settings: ReadSettings, options: DecodeOptions
) -> dict[tuple[str, str], set[Writer]]:
    """Return what the records of splits were written with, by topic and part."""
    found: dict[tuple[str, str], set[Writer]] = defaultdict(set)
    parts = [part for part in options.parts if not (part == VALUE and options.value_schema)]
    framed = replace(
        settings,
        columns=(*parts, "headers"),
        verify_crc=False,
        on_damage=OnDamage.DROP,
        typed=None,
    )
    for split in splits if parts else ():
        for batch in RecordReader(split, framed, on_left_out=_ignore):
            for part in parts:
                frames = frames_of(batch.column(part), batch.column("headers"), is_key=part == KEY)
                for key, rows in frames.groups():
                    own = found[split.topic, part]
                    try:
                        schema = options.schemas.find(key, options.context)
                    except UnknownSchemaError:
                        continue
                    if schema.type is not SchemaType.PROTOBUF:
                        own.add(Writer(key))
                        continue
                    indexes = message_indexes(
                        frames, np.asarray(rows), has_names=options.schemas.has_foreign_ids
                    )
                    own |= {Writer(key, path) for path in indexes.paths}
    return found


def _ignore(_: CorruptLogError) -> None:
    """Damage is reported by the read itself."""


def typed_columns(
    topics: Sequence[str],
    writers: Mapping[tuple[str, str], set[Writer]],
    options: DecodeOptions,
    names: Sequence[str],
    *,
    keeps_raw: bool = False,
) -> TypedColumns:
    """Return the typed columns of topics that are read as one table."""
    columns = {
        part: TypedColumn(
            part,
            options,
            topics,
            sorted({one for topic in topics for one in writers.get((topic, part), ())}, key=str),
        )
        for part in options.parts
        if any(is_of_part(name, part) for name in names)
    }
    return TypedColumns(columns, names, is_strict=options.is_strict, keeps_raw=keeps_raw)


def with_types(
    plan: ReadPlan,
    options: DecodeOptions | None,
    names: Sequence[str],
    *,
    keeps_raw: bool = False,
) -> ReadPlan:
    """Return the plan of a read whose columns are decoded, of all its topics as one table."""
    if options is None:
        return plan
    topics = sorted({one.files.topic for one in plan.partitions} | _topics(plan.splits))
    writers = find_writers(plan.splits, plan.settings, options)
    typed = typed_columns(topics, writers, options, names, keeps_raw=keeps_raw)
    return replace(plan, settings=replace(plan.settings, typed=typed))


@dataclass(frozen=True, slots=True)
class RecordCondition:
    """A condition over records, with decoded columns; small, and picklable.

    Only the members that it compares are decoded for it, and records that meet it as a whole.

    Attributes
    ----------
    typed : TypedColumns, optional
        The columns that it compares, if keys or values are decoded.
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
        """Raise `InputError` if the types of the columns do not fit the condition."""
        row: dict[str, object] = dict.fromkeys(self.needed)
        row |= {"topic": "", "partition": 0, "offset": 0}
        rows = pa.RecordBatch.from_pylist([row], schema=record_schema(self.needed))
        for batch in [rows] if self.typed is None else self.typed.decode(rows):
            self.matcher().match(batch)

    def filter(
        self, batch: pa.RecordBatch, matcher: ConditionMatcher, errors: Counter[str]
    ) -> pa.RecordBatch:
        """Return the records that meet the condition; keys and values that fail are counted."""
        parts = [batch] if self.typed is None else self.typed.decode(batch, errors)
        matches = np.concatenate([matcher.match(part) for part in parts])
        return batch if matches.all() else batch.filter(pa.array(matches))


def with_condition(plan: ReadPlan, options: DecodeOptions | None, text: str) -> ReadPlan:
    """Return the plan of a read of the records that meet a condition.

    Types come from `with_types`. Raises `InputError` if it is none, or does not fit the types.
    """
    typed = plan.settings.typed
    columns = [] if options is None else list(options.parts)
    columns += [name for part in columns for name in side_names(part)]
    found = Condition.of_decoded(text, columns)
    # Keys and values that are not compared keep their bytes.
    compared = None
    if typed is not None and found.members:
        compared = typed.named((*found.members, *CONDITION_COLUMNS))
    where = RecordCondition(found, compared)
    where.check()
    return replace(plan, settings=replace(plan.settings, where=where))


@dataclass(frozen=True, slots=True)
class TopicConditions:
    """A condition over the records of many topics, each with its own types; picklable.

    A record of a topic that lacks a member does not meet the condition.

    Attributes
    ----------
    types : mapping of str to TypedColumns
        The columns that are compared, by topic.
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
    """Evaluates a condition over records of one topic at a time."""

    def __init__(self, conditions: TopicConditions) -> None:
        self._types = conditions.types
        self._matcher = ConditionMatcher(conditions.condition)

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records satisfy the condition; raises what decoding raises."""
        typed = self._types.get(rows.column("topic")[0].as_py()) if len(rows) else None
        if typed is None:
            return np.zeros(len(rows), np.bool_)
        return np.concatenate([self._matcher.match(part) for part in typed.decode(rows)])


def topic_conditions(
    text: str, splits: Sequence[RecordSplit], settings: ReadSettings, options: DecodeOptions
) -> TopicConditions:
    """Return a condition over the records of splits, of all their topics.

    Raises `InputError` if no topic has the members, or their types do not fit.
    """
    columns = [*options.parts, *(name for part in options.parts for name in side_names(part))]
    condition = Condition.of_decoded(text, columns)
    names = (*condition.members, *CONDITION_COLUMNS)
    writers = find_writers(splits, settings, options)
    types: dict[str, TypedColumns] = {}
    identity = []
    for topic in sorted(_topics(splits)):
        own = {
            part: TypedColumn(part, options, [topic], sorted(writers[topic, part], key=str))
            for part in options.parts
        }
        if all(column.has_members(names) for column in own.values()):
            types[topic] = TypedColumns(own, names, is_strict=options.is_strict)
            RecordCondition(condition, types[topic]).check()
            identity.append((topic, *(column.identity for column in own.values())))
    if not types:
        raise InputError(
            "no topic has the members of the condition",
            found=", ".join(condition.members),
            hint="see the columns with kafka-index export --decode",
        )
    return TopicConditions(condition, types, repr((identity, options.is_strict)))


def _topics(splits: Iterable[RecordSplit]) -> set[str]:
    return {split.topic for split in splits}

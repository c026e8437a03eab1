"""Typed columns: keys and values of records, decoded with their schemas to Arrow structs.

`TypedColumn` decodes the keys or values of a topic. The type of the column is joined from all
schemas that the records were written with. `TypedColumns` adds typed columns to record batches.
Side columns contain the schema of each key or value, or the reason why it could not be decoded. No
row is dropped. The bytes of a key or value that does not decode are kept.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import (
    BadSchemaError,
    CorruptRecordError,
    InputError,
    UnknownSchemaError,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.longs import Longs
from kafka_index.core.records.record_table import CORRUPT_RECORD
from kafka_index.core.schema.align import Form, Member, Plan, Selection, Shape, align, unused_name
from kafka_index.core.schema.avro import AvroSchema
from kafka_index.core.schema.bodies import Bodies, Decoded, DecodedTooLargeError
from kafka_index.core.schema.columns import KEY, VALUE, is_of_part, side_names
from kafka_index.core.schema.json_values import JsonSchema
from kafka_index.core.schema.protobuf import ProtobufFile
from kafka_index.core.schema.registry import (
    DEFAULT_CONTEXT,
    KeyKind,
    Schema,
    SchemaKey,
    Schemas,
    SchemaType,
    TopicSchema,
    qualify,
)
from kafka_index.core.schema.wire import (
    FRAMING_REASONS,
    Frames,
    Framing,
    MessagePath,
    Reason,
    find_frames,
    read_message_indexes,
)

#: The requested members of a struct by name, each with the requested members in it. None requests
#: all members.
RequestedMembers: TypeAlias = "Mapping[str, RequestedMembers] | None"
#: The reasons why a row did not decode, in the order of their codes, which begin at 1.
_REASONS = tuple(Reason)
_CODES: Mapping[Reason, int] = {reason: code for code, reason in enumerate(_REASONS, 1)}
_FRAMING_CODES = np.zeros(max(Framing) + 1, np.int8)
for _framing, _reason in FRAMING_REASONS.items():
    _FRAMING_CODES[_framing] = _CODES[_reason]


def side_columns(part: str) -> dict[str, pa.DataType]:
    """Return the names and types of the side columns of a decoded key or value."""
    kinds = (pa.int64(), pa.string(), pa.string(), pa.binary())
    return dict(zip(side_names(part), kinds, strict=True))


class ColumnForm(StrEnum):
    """The form of a column of keys or values, which depends on the schemas of the topic."""

    #: No schema was found, so the column has the bytes.
    BYTES = "bytes"
    ONE_TYPE = "one_type"
    #: The topic has several types, so the column is a struct with a member for each type.
    TYPES = "types"


class Writer(NamedTuple):
    """The schema that a row was written with, and for Protobuf the path of its message type.

    If `key` is None, rows without a schema ID use this schema, in `topic` or in all topics.
    """

    key: SchemaKey | None
    path: MessagePath = ()
    topic: str | None = None

    @property
    def text(self) -> str:
        """The string that represents the writer in state files."""
        key_kind, value = ("", self.topic or "") if self.key is None else self.key
        return f"{key_kind}:{value}:{'.'.join(map(str, self.path))}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the `text` of a writer; raises `ValueError` if it is malformed."""
        key_kind, value, path = text.split(":")
        key = None
        if key_kind:
            is_number = KeyKind(key_kind) not in (KeyKind.GUID, KeyKind.GLUE_UUID)
            key = SchemaKey(KeyKind(key_kind), int(value) if is_number else value)
        topic = value if value and key is None else None
        return cls(key, tuple(map(int, filter(None, path.split(".")))), topic)

    def for_message(self, path: MessagePath) -> Writer:
        """Return the writer for a message type; in a topic's schema, the first type has no path."""
        is_first = self.key is None and path == (0,)
        return self if is_first else self._replace(path=path)


@dataclass(frozen=True, slots=True)
class TopicWriters:
    """The writers of the keys or values of a topic, collected from its records; picklable.

    `has_unknown_ids` is true if records have IDs of unknown schemas. Bytes that are probably parts
    of numbers or texts do not count as IDs.
    """

    writers: frozenset[Writer] = frozenset()
    has_unknown_ids: bool = False

    @property
    def has_ids(self) -> bool:
        """Whether records have schema IDs, known or unknown."""
        return self.has_unknown_ids or any(writer.key is not None for writer in self.writers)


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How keys and values are decoded; small, and picklable.

    Attributes
    ----------
    parts : tuple of str
        ``key``, ``value`` or both.
    schemas : Schemas
        The schemas of the registry or folder.
    value_schema : (Schemas, TopicSchema), optional
        The schema of values without a frame, with the schemas that it refers to.
    main : mapping of str to TopicSchema
        If the source has one schema and there is one topic: this schema, for values without a
        schema ID.
    is_strict : bool
        Whether an error is raised for the first key or value that does not decode.
    context : str
        The registry context in which IDs are looked up.
    """

    parts: tuple[str, ...] = (VALUE,)
    schemas: Schemas = field(default_factory=lambda: Schemas(()))
    value_schema: tuple[Schemas, TopicSchema] | None = None
    main: Mapping[str, TopicSchema] = field(default_factory=dict)
    is_strict: bool = False
    context: str = DEFAULT_CONTEXT
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES

    def unframed_schema(self, part: str, topic: str) -> tuple[Writer, Schemas, TopicSchema] | None:
        """Return the schema for rows without a schema ID; None if the topic has no such schema."""
        if part == VALUE and self.value_schema is not None:
            return Writer(None), *self.value_schema
        topic_schema = self.schemas.topics.get((topic, part == KEY))
        if topic_schema is None and part == VALUE:
            topic_schema = self.main.get(topic)
        if topic_schema is None:
            return None
        return Writer(None, (), topic), self.schemas, topic_schema


class _Decoder(Protocol):
    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded: ...


class _Parsed(Protocol):
    """A parsed schema, or a Protobuf message type."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    def decoder(self, selection: Selection = None) -> _Decoder: ...


def parse_schema(schemas: Schemas, schema: Schema) -> AvroSchema | ProtobufFile | JsonSchema:
    """Parse a schema and the schemas that it refers to; raises `BadSchemaError`."""
    references = {
        name: reference.text for name, reference in schemas.find_references(schema).items()
    }
    match schema.type:
        case SchemaType.AVRO:
            return AvroSchema(schema.text, list(references.values()))
        case SchemaType.PROTOBUF:
            return ProtobufFile(schema.text, references)
    return JsonSchema(schema.text, references)


class _Origin(NamedTuple):
    """A writer, and the source of its schema.

    Attributes
    ----------
    version : int or None
        The version number in the subject of the topic or type, by which schemas are ordered.
    is_topic_schema : bool
        Whether the schema is mapped to the topic, or is in the topic's subject. All such schemas
        are versions of one type, even if their names differ.
    is_named_after_type : bool
        Whether the subject is named after the type (strategies RecordName and TopicRecordName).
    """

    writer: Writer
    version: int | None = None
    is_topic_schema: bool = False
    is_named_after_type: bool = False


@dataclass(slots=True)
class _Version:
    """A schema of rows in a column, and the conversion of these rows to the column's type."""

    origin: _Origin
    schema: Schema
    parsed: _Parsed
    group: int = -1
    plan: Plan | None = None
    decoder: _Decoder | None = None

    def is_version_of(self, earlier: _Version) -> bool:
        """Return whether the names of two schemas show that they are versions of one type."""
        if self.schema.type is not earlier.schema.type:
            return False
        name, earlier_name = self.parsed.name, earlier.parsed.name
        if name == earlier_name:
            return True
        if self.schema.type is SchemaType.PROTOBUF:
            return False
        aliases = getattr(self.parsed, "aliases", ())
        if earlier_name in aliases or _short_name(earlier_name) in aliases:
            return True
        # Within a subject, versions may change JSON titles, Avro namespaces, and types without a
        # name.
        if not (self.origin.is_topic_schema and earlier.origin.is_topic_schema):
            return False
        is_struct = self.parsed.shape.is_struct or earlier.parsed.shape.is_struct
        may_be_renamed = self.schema.type is SchemaType.JSON or not is_struct
        return may_be_renamed or _short_name(name) == _short_name(earlier_name)

    @property
    def order(self) -> tuple[int, int, str]:
        schema_id = -1 if self.schema.schema_id is None else self.schema.schema_id
        version = -1 if self.origin.version is None else self.origin.version
        return version, schema_id, str(self.origin.writer)


@dataclass(slots=True)
class DecodedColumn:
    """A decoded column, with the schema and error of each row.

    Attributes
    ----------
    codes : array of int8
        The number of each row's `Reason`, 0 for a row without an error.
    version_numbers : array of int32
        The index of each row's `_Version` in the typed column, -1 for a row without a schema.
    ids : array of int64
        The schema ID of each row, -1 for a row without an ID.
    is_raw : bool
        Whether the side column of bytes has the bytes of all rows, because the topic has no schema.
    """

    array: pa.Array
    codes: NDArray[np.int8]
    version_numbers: NDArray[np.int32]
    ids: Longs
    is_raw: bool = False

    @classmethod
    def undecoded(cls, values: pa.Array) -> Self:
        """Return a column of undecoded bytes, before schemas are assigned to its rows."""
        count = len(values)
        return cls(
            values,
            np.zeros(count, np.int8),
            np.full(count, -1, np.int32),
            np.full(count, -1, np.int64),
        )


class TypedColumn:
    """The keys or values of one or several topics: their type and their decoding.

    Parameters
    ----------
    part : str
        ``key`` or ``value``.
    options : DecodeOptions
        The schemas.
    topics : mapping of str to TopicWriters
        The topics, and the writers of their records.
    members : mapping, optional
        The selected members, keyed by name; None for all.
    """

    def __init__(
        self,
        part: str,
        options: DecodeOptions,
        topics: Mapping[str, TopicWriters],
        members: RequestedMembers = None,
    ) -> None:
        self._part, self._options, self._topics = part, options, dict(sorted(topics.items()))
        self._members = members
        self._failure_reasons: dict[Writer, Reason] = {}
        self._versions: list[_Version] = []
        self._parsed_schemas: dict[tuple[int, str], Any] = {}
        self._topic_schemas = {
            topic: schema
            for topic in self._topics
            if (schema := options.unframed_schema(part, topic)) is not None
        }
        self._has_frames = not (part == VALUE and options.value_schema is not None)
        #: The topics that have a schema, even if it cannot be used.
        self._typed_topics: set[str] = set()
        self._add_versions()
        self._writer_numbers = {
            version.origin.writer: number for number, version in enumerate(self._versions)
        }
        self._type_names: list[str] = []
        self._type_shapes: list[Shape] = []
        self._join_versions()
        shape = self._table_shape()
        self._selection = _resolve_members(shape, members, part) if self._versions else None
        self.shape = shape.select(self._selection)
        for version in self._versions:
            assert version.plan is not None  # noqa: S101, because mypy needs it
            selection = self._group_selection(version.group)
            if selection != {}:
                version.plan = version.plan.select(selection)
                version.decoder = version.parsed.decoder(version.plan.selection)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments: the process that uses the column parses the schemas again."""
        return TypedColumn, (self._part, self._options, self._topics, self._members)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The writers and the GUIDs of their schemas, which determine the type of the column."""
        return tuple(
            (version.origin.writer.text, version.schema.guid) for version in self._versions
        )

    def has_members(self, names: Sequence[str]) -> bool:
        """Return whether the column has all members that are requested by names of columns."""
        members = _requested_members(names, self._part)
        if members is None:
            return True
        if not self.is_typed:
            return False
        try:
            _resolve_members(self._table_shape(), members, self._part)
        except InputError:
            return False
        return True

    @property
    def is_typed(self) -> bool:
        """Whether a usable schema exists; otherwise the bytes are returned unchanged."""
        return bool(self._versions)

    @property
    def has_schema(self) -> bool:
        """Whether any topic has a schema, even if it cannot be used."""
        return bool(self._typed_topics)

    @property
    def form(self) -> ColumnForm:
        if not self.is_typed:
            return ColumnForm.BYTES
        return ColumnForm.TYPES if self.has_types else ColumnForm.ONE_TYPE

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        return self.shape.type if self.is_typed else pa.binary()

    def select(self, members: RequestedMembers) -> TypedColumn:
        """Return the column with the selected members only.

        Raises `InputError` for an unknown member.
        """
        if members is None:
            return self
        if not self.is_typed:
            raise InputError(
                f"column {self._part}.{next(iter(members))} does not exist, because no schema of "
                f"the {self._part}s was found",
                path=", ".join(self._topics),
                hint="run `kafka-index schemas` to list the schemas of topics",
            )
        return TypedColumn(self._part, self._options, self._topics, members)

    # ------------------------------------------------------------------ the type
    def _add_versions(self) -> None:
        known_writers: set[Writer] = set()
        for topic, topic_writers in self._topics.items():
            for origin in self._find_origins(topic, topic_writers.writers):
                self._typed_topics.add(topic)
                if origin.writer in known_writers:
                    continue
                known_writers.add(origin.writer)
                try:
                    schemas, schema = self._find_schema(origin.writer)
                    parsed = self._parse(schemas, schema, origin.writer)
                except UnknownSchemaError:
                    self._failure_reasons[origin.writer] = Reason.UNKNOWN_ID
                except IndexError:
                    self._failure_reasons[origin.writer] = Reason.BAD_INDEX
                except BadSchemaError:
                    self._failure_reasons[origin.writer] = Reason.BAD_SCHEMA
                else:
                    self._versions.append(_Version(origin, schema, parsed))
        self._versions.sort(key=lambda version: version.order)

    def _find_origins(self, topic: str, writers: Collection[Writer]) -> Iterator[_Origin]:
        """Yield writers for schemas of the topic and its subjects, then writers in the records."""
        if topic in self._topic_schemas:
            topic_writer = self._topic_schemas[topic][0]
            if topic_writer in writers or all(writer.key is not None for writer in writers):
                yield _Origin(topic_writer, is_topic_schema=True)
        if not self._has_frames:
            return
        paths = list(dict.fromkeys(writer.path for writer in writers if writer.path)) or [(0,)]
        names = {writer: self._type_name(writer) for writer in sorted(writers, key=str)}
        # Of a Protobuf file, only message types of the topic's records are used; without records,
        # the first message type.
        message_names = {name for writer, name in names.items() if writer.path}
        topic_guids: set[str | None] = set()
        if topic in self._topic_schemas:
            topic_guids.add(self._topic_schemas[topic][2].schema.guid)
        for version, schema, writer in self._subject_versions(f"{topic}-{self._part}", paths):
            topic_guids.add(schema.guid)
            if not (writer.path and message_names) or self._type_name(writer) in message_names:
                yield _Origin(writer, version, is_topic_schema=True)
        for writer, name in names.items():
            if name is not None and self._schema_guid(writer) not in topic_guids:
                for subject in (name, f"{topic}-{name}"):
                    for version, _, named_writer in self._subject_versions(subject, [writer.path]):
                        yield _Origin(named_writer, version, is_named_after_type=True)
        for writer in names:
            yield _Origin(writer, is_topic_schema=self._schema_guid(writer) in topic_guids)

    def _schema_guid(self, writer: Writer) -> str | None:
        try:
            return self._find_schema(writer)[1].guid
        except UnknownSchemaError:
            return None

    def _type_name(self, writer: Writer) -> str | None:
        """Return the name of a writer's type; None if the schema is unknown or unusable."""
        try:
            return self._parse(*self._find_schema(writer), writer).name
        except (UnknownSchemaError, IndexError, BadSchemaError):
            return None

    def _subject_versions(
        self, subject: str, paths: Sequence[MessagePath]
    ) -> Iterator[tuple[int, Schema, Writer]]:
        """Yield number, schema and writer of a subject's versions; in Protobuf, for each path."""
        for version in self._options.schemas.list_versions(qualify(subject, self._options.context)):
            schema = version.schema
            if schema.schema_id is None:
                continue
            key = SchemaKey(KeyKind.ID, schema.schema_id)
            for path in paths if schema.type is SchemaType.PROTOBUF else [()]:
                yield version.version, schema, Writer(key, path)

    def _find_schema(self, writer: Writer) -> tuple[Schemas, Schema]:
        if writer.key is None:
            schemas, topic_schema = self._topic_schema(writer)
            return schemas, topic_schema.schema
        schemas = self._options.schemas
        return schemas, schemas.find(writer.key, self._options.context)

    def _topic_schema(self, writer: Writer) -> tuple[Schemas, TopicSchema]:
        topic = next(iter(self._topic_schemas)) if writer.topic is None else writer.topic
        return self._topic_schemas[topic][1:]

    def _parse(self, schemas: Schemas, schema: Schema, writer: Writer) -> _Parsed:
        schema_key = id(schemas), schema.guid
        if schema_key not in self._parsed_schemas:
            try:
                self._parsed_schemas[schema_key] = parse_schema(schemas, schema)
            except BadSchemaError as error:
                self._parsed_schemas[schema_key] = error
        parsed = self._parsed_schemas[schema_key]
        if isinstance(parsed, BadSchemaError):
            raise parsed
        if isinstance(parsed, ProtobufFile):
            name = None if writer.key else self._topic_schema(writer)[1].type_name
            parsed = parsed.message((name,) if name else writer.path or (0,))
        parsed_schema: _Parsed = parsed
        return parsed_schema

    def _join_versions(self) -> None:
        """Join the versions of each type into one shape; keep unrelated types separate."""
        groups: list[list[_Version]] = []
        for version in self._versions:
            for group in groups:
                if _have_one_type([*group, version]):
                    group.append(version)
                    break
            else:
                groups.append([version])
        for number, group in enumerate(groups):
            shape, plans = align([version.parsed.shape for version in group])
            self._type_shapes.append(shape)
            for version, plan in zip(group, plans, strict=True):
                version.group, version.plan = number, plan
        self._type_names = _name_groups([group[-1].parsed.name for group in groups])
        # If subjects are named after types, values of further types may be written to the topic
        # later, so the column has a member per type from the start. This is not expected of keys,
        # by which records are partitioned.
        has_record_subjects = self._part == VALUE and any(
            any(version.origin.is_named_after_type for version in group)
            and not any(version.origin.is_topic_schema for version in group)
            for group in groups
        )
        self.has_types = len(groups) > 1 or has_record_subjects

    def _table_shape(self) -> Shape:
        if not self.has_types and self._type_shapes:
            return self._type_shapes[0]
        members = [
            Member(name, shape)
            for name, shape in zip(self._type_names, self._type_shapes, strict=True)
        ]
        return Shape.make_struct(members, Form.UNION)

    def _group_selection(self, group: int) -> Selection:
        """Return the selected members of a group's type; {} if only other types are selected."""
        if not self.has_types or self._selection is None:
            return self._selection
        return self._selection.get(self._type_names[group], {})

    # ------------------------------------------------------------------ decoding
    def decode(self, values: pa.Array, headers: pa.Array | None, topic: str) -> DecodedColumn:
        """Decode keys or values of a topic.

        If the topic has no schema, its rows keep their bytes, without an error. Raises
        `DecodedTooLargeError` if the values of more than one row exceed the memory limit.
        """
        column = DecodedColumn.undecoded(values)
        bodies = Bodies.from_array(values)
        topic_writers = self._topics.get(topic, TopicWriters())
        if topic in self._topic_schemas and not (self._has_frames and topic_writers.has_ids):
            self._assign_writer(
                column, np.flatnonzero(bodies.starts >= 0), self._topic_schemas[topic][0]
            )
            self._decode_rows(column, bodies)
            return column
        if topic not in self._typed_topics:
            if topic_writers.has_unknown_ids:
                self._mark_unknown_ids(column, headers)
            if self._versions:
                column.array, column.is_raw = pa.nulls(len(values), self.type), True
            return column
        frames = find_frames(values, headers, is_key=self._part == KEY)
        frames = _inflate(frames, self._options.max_bytes, column.codes)
        column.codes = np.where(column.codes == 0, _FRAMING_CODES[frames.framing], column.codes)
        starts = np.where(frames.framing == Framing.NULL, -1, frames.starts)
        for key, key_rows in frames.groups():
            if isinstance(key.value, int):
                column.ids[key_rows] = key.value
            rows = key_rows[column.codes[key_rows] == 0]
            try:
                schema = self._options.schemas.find(key, self._options.context)
            except UnknownSchemaError:
                column.codes[rows] = _CODES[Reason.UNKNOWN_ID]
            else:
                self._assign_framed(column, rows, Writer(key), schema.type, frames, starts)
        if topic in self._topic_schemas:
            writer, _, topic_schema = self._topic_schemas[topic]
            is_unframed = (frames.key_numbers < 0) & (bodies.starts >= 0)
            starts[is_unframed] = bodies.starts[is_unframed]
            column.codes[is_unframed] = 0
            self._assign_writer(column, np.flatnonzero(is_unframed), writer)
            # Rows whose schema ID is unknown are decoded with the topic's schema, after their
            # frames.
            rows = np.flatnonzero(column.codes == _CODES[Reason.UNKNOWN_ID])
            column.codes[rows] = 0
            self._assign_framed(column, rows, writer, topic_schema.schema.type, frames, starts)
        if self._versions:
            self._decode_rows(column, Bodies(frames.data, starts, frames.ends))
        return column

    def _mark_unknown_ids(self, column: DecodedColumn, headers: pa.Array | None) -> None:
        """Set the error code of rows with a schema ID, because the topic has no schema."""
        frames = find_frames(column.array, headers, is_key=self._part == KEY)
        for key, rows in frames.groups():
            if isinstance(key.value, int):
                column.ids[rows] = key.value
            if key.is_plausible:
                column.codes[rows] = _CODES[Reason.UNKNOWN_ID]

    def _assign_framed(
        self,
        column: DecodedColumn,
        rows: Longs,
        writer: Writer,
        schema_type: SchemaType,
        frames: Frames,
        starts: Longs,
    ) -> None:
        """Assign the version of a schema to rows with a frame.

        For Protobuf, message indexes are read first, and `starts` is set to the byte after the
        indexes.
        """
        if schema_type is not SchemaType.PROTOBUF:
            self._assign_writer(column, rows, writer)
            return
        has_names = self._options.schemas.has_foreign_ids
        indexes = read_message_indexes(frames, rows, has_names=has_names)
        starts[rows] = indexes.starts
        column.codes[rows[indexes.path_numbers < 0]] = _CODES[Reason.BAD_INDEX]
        has_type_name = writer.key is None and self._topic_schema(writer)[1].type_name
        for number, path in enumerate(indexes.paths):
            # A type name in the folder's mapping takes precedence over the path in a row.
            row_writer = writer if has_type_name else writer.for_message(path)
            self._assign_writer(column, rows[indexes.path_numbers == number], row_writer)

    def _assign_writer(self, column: DecodedColumn, rows: Longs, writer: Writer) -> None:
        number = self._writer_numbers.get(writer)
        if number is not None:
            column.version_numbers[rows] = number
        else:
            column.codes[rows] = _CODES[self._failure_reasons.get(writer, Reason.OTHER_SCHEMA)]

    def _decode_rows(self, column: DecodedColumn, bodies: Bodies) -> None:
        """Decode the rows of each version, and set the array of the column."""
        numbers = column.version_numbers
        present = np.unique(numbers[numbers >= 0]).tolist()
        arrays: dict[int, list[tuple[Longs, pa.Array]]] = defaultdict(list)
        for number in present:
            version = self._versions[number]
            if version.schema.schema_id is not None:
                column.ids[numbers == number] = version.schema.schema_id
            if version.decoder is None or version.plan is None:
                continue
            rows = np.flatnonzero(numbers == number)
            version_bodies = bodies.take(rows)
            if len(present) == 1:
                # In most batches, all rows have the same schema, so no arrays need to be merged.
                starts = np.where(numbers == number, bodies.starts, -1)
                version_bodies, rows = replace(bodies, starts=starts), np.arange(len(numbers))
            try:
                decoded = version.decoder.decode(version_bodies, self._options.max_bytes)
            except DecodedTooLargeError:
                if len(numbers) > 1:
                    raise
                column.codes[:] = _CODES[Reason.TOO_LARGE]
                continue
            for row, reason in decoded.errors.items():
                column.codes[rows[row]] = _CODES[reason]
            arrays[version.group].append((rows, version.plan.convert(decoded.array)))
        count = len(numbers)
        if not self.has_types:
            column.array = _merge_rows(arrays[0], self.shape.type, count)
            return
        selected_names = _member_names(self.shape)
        groups = [group for group, name in enumerate(self._type_names) if name in selected_names]
        members = [
            _merge_rows(arrays[group], member.shape.type, count)
            for group, member in zip(groups, self.shape.members, strict=True)
        ]
        failed = (column.codes != 0) & (column.codes != _CODES[Reason.TRAILING])
        mask = pa.array((numbers < 0) | failed)
        column.array = pa.StructArray.from_arrays(members, fields=list(self.shape.type), mask=mask)

    # ------------------------------------------------------------------ side columns
    def side_arrays(self, values: pa.Array, column: DecodedColumn) -> dict[str, pa.Array]:
        """Return the side columns of a decoded column, keyed by name."""
        types = pa.array([version.parsed.name for version in self._versions], pa.string())
        reasons = pa.array([reason.value for reason in _REASONS], pa.string())
        failed = column.codes > 0
        raw = values if column.is_raw else pa.nulls(len(values), pa.binary())
        if failed.any() and not column.is_raw:
            raw = pc.if_else(pa.array(failed), values, pa.scalar(None, pa.binary()))
        arrays = (
            pa.array(column.ids, pa.int64(), mask=column.ids < 0),
            types.take(pa.array(column.version_numbers, mask=column.version_numbers < 0)),
            reasons.take(pa.array(column.codes - 1, mask=~failed)),
            raw,
        )
        return dict(zip(side_names(self._part), arrays, strict=True))


def _have_one_type(versions: list[_Version]) -> bool:
    """Return whether the last version has the type of earlier ones, and can be joined with them."""
    *earlier_versions, last_version = versions
    if not any(last_version.is_version_of(version) for version in earlier_versions):
        return False
    try:
        align([version.parsed.shape for version in versions])
    except InputError:
        return False
    return True


def _short_name(name: str) -> str:
    return name.rpartition(".")[2]


def _member_names(shape: Shape) -> set[str]:
    return {member.name for member in shape.members}


def _name_groups(full_names: list[str]) -> list[str]:
    """Return the member name for each type of a column: its short name if this is unique."""
    short_names = list(map(_short_name, full_names))
    lower_names = [name.lower() for name in short_names]
    used_names: set[str] = set()
    names = []
    for short_name, full_name in zip(short_names, full_names, strict=True):
        is_unique = lower_names.count(short_name.lower()) == 1
        name = short_name if is_unique else full_name.replace(".", "_")
        names.append(unused_name(name, used_names))
    return names


def _merge_rows(
    arrays: list[tuple[Longs, pa.Array]], arrow_type: pa.DataType, count: int
) -> pa.Array:
    """Merge arrays into one array, with values at their row numbers and null elsewhere."""
    if not arrays:
        return pa.nulls(count, arrow_type)
    if len(arrays) == 1 and len(arrays[0][0]) == count:
        return arrays[0][1]
    positions = np.zeros(count, np.int64)
    has_value = np.zeros(count, np.bool_)
    array_start = 0
    for rows, array in arrays:
        positions[rows] = np.arange(array_start, array_start + len(array))
        has_value[rows] = True
        array_start += len(array)
    joined = pa.concat_arrays([array for _, array in arrays])
    return joined.take(pa.array(positions, mask=~has_value))


def _inflate(frames: Frames, max_bytes: int, codes: NDArray[np.int8]) -> Frames:
    """Return frames with decompressed bodies; set the error codes of rows that fail."""
    if frames.is_compressed is None:
        return frames
    starts, ends = frames.starts.copy(), frames.ends.copy()
    chunks = [frames.data]
    size = len(frames.data)
    for row in np.flatnonzero(frames.is_compressed).tolist():
        stream = zlib.decompressobj()
        try:
            body = stream.decompress(frames.data[starts[row] : ends[row]].tobytes(), max_bytes)
        except zlib.error:
            codes[row] = _CODES[Reason.TRUNCATED]
            continue
        if not stream.eof:
            is_large = len(body) >= max_bytes
            codes[row] = _CODES[Reason.TOO_LARGE if is_large else Reason.TRUNCATED]
            continue
        chunks.append(np.frombuffer(body, np.uint8))
        starts[row], ends[row] = size, size + len(body)
        size += len(body)
        if size - len(frames.data) > max_bytes and len(frames) > 1:
            raise DecodedTooLargeError
    data = np.concatenate(chunks)
    return replace(frames, data=data, starts=starts, ends=ends, is_compressed=None)


# ------------------------------------------------------------------------------- record batches
class TypedColumns:
    """Replaces keys and values of record batches by typed columns.

    Parameters
    ----------
    columns : mapping of str to TypedColumn
        The typed keys and values, keyed by ``key`` and ``value``.
    names : sequence of str
        The requested columns: columns of records, members such as ``value.customer.id``, and side
        columns. If no side column of keys (or values) is requested, all of them are added at the
        end.
    is_strict : bool
        Whether an error is raised for the first key or value that does not decode.
    keeps_raw : bool
        Whether the side column of bytes contains all rows, not only rows that do not decode.
    """

    def __init__(
        self,
        columns: Mapping[str, TypedColumn],
        names: Sequence[str],
        *,
        is_strict: bool = False,
        keeps_raw: bool = False,
    ) -> None:
        self._requested_names = tuple(names)
        self._is_strict = is_strict
        self._keeps_raw = keeps_raw
        self._source_columns = dict(columns)
        self._columns = {
            part: column.select(_requested_members(names, part))
            for part, column in columns.items()
            if any(is_of_part(name, part) for name in names)
        }
        self.names = self._output_names()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a function and its arguments, with which pickle creates the copy."""
        construct = partial(TypedColumns, is_strict=self._is_strict, keeps_raw=self._keeps_raw)
        return construct, (self._source_columns, self._requested_names)

    def select(self, names: Sequence[str]) -> TypedColumns:
        """Return typed columns for other requested column names."""
        return TypedColumns(self._source_columns, names, is_strict=self._is_strict)

    @property
    def is_typed(self) -> bool:
        """Whether the keys or values have a schema."""
        return any(column.has_schema for column in self._columns.values())

    @property
    def forms(self) -> dict[str, ColumnForm]:
        """The forms of the typed columns, keyed by ``key`` and ``value``."""
        return {part: column.form for part, column in self._columns.items()}

    def _output_names(self) -> tuple[str, ...]:
        output_names: dict[str, None] = {}
        for name in self._requested_names:
            part = name.partition(".")[0]
            output_names[part if part in self._columns else name] = None
        for part in self._columns:
            side_types = side_columns(part)
            if not any(name in side_types for name in self._requested_names):
                output_names.update(dict.fromkeys(side_types))
        return tuple(output_names)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of records to read."""
        side_column_names = {name for part in (KEY, VALUE) for name in side_columns(part)}
        record_names = [name for name in self.names if name not in side_column_names]
        if self._columns:
            record_names += [*self._columns, "headers", "topic", "partition", "offset"]
        return tuple(dict.fromkeys(record_names))

    @property
    def error_names(self) -> list[str]:
        """The names of the side columns with error codes."""
        return [side_names(part)[2] for part in self._columns]

    def schema(self, records: pa.Schema) -> pa.Schema:
        """Return the schema of the decoded batches; `records` is the schema of the read columns."""
        side_types = {
            name: arrow_type
            for part in self._columns
            for name, arrow_type in side_columns(part).items()
        }
        fields = []
        for name in self.names:
            if name in self._columns:
                fields.append(pa.field(name, self._columns[name].type))
            elif name in side_types:
                fields.append(pa.field(name, side_types[name]))
            else:
                fields.append(records.field(name))
        if CORRUPT_RECORD in records.names:
            fields.append(records.field(CORRUPT_RECORD))
        return pa.schema(fields)

    def decode(
        self, batch: pa.RecordBatch, errors: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batch with typed columns, in parts if its values exceed the memory limit.

        `errors` counts keys and values that do not decode, by error code. If `is_strict`, raises
        `CorruptRecordError` for the first of these.
        """
        try:
            decoded_columns = self._decode_parts(batch)
        except DecodedTooLargeError:
            half = len(batch) // 2
            yield from self.decode(batch.slice(0, half), errors)
            yield from self.decode(batch.slice(half), errors)
            return
        arrays: dict[str, pa.Array] = {
            name: batch.column(name) for name in batch.schema.names if name not in self._columns
        }
        for part, decoded in decoded_columns.items():
            self._raise_if_strict(part, decoded, batch)
            if errors is not None and decoded.codes.any():
                codes, counts = np.unique(decoded.codes[decoded.codes > 0], return_counts=True)
                for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                    errors[_REASONS[code - 1].value] += count
            arrays[part] = decoded.array
            arrays |= self._columns[part].side_arrays(batch.column(part), decoded)
            if self._keeps_raw:
                arrays[side_names(part)[3]] = batch.column(part)
        schema = self.schema(batch.schema)
        yield pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def _decode_parts(self, batch: pa.RecordBatch) -> dict[str, DecodedColumn]:
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        topic = batch.column("topic")[0].as_py() if self._columns and len(batch) else ""
        return {
            part: column.decode(batch.column(part), headers, topic)
            for part, column in self._columns.items()
        }

    def _raise_if_strict(self, part: str, decoded: DecodedColumn, batch: pa.RecordBatch) -> None:
        if not self._is_strict or not decoded.codes.any():
            return
        row = int(np.flatnonzero(decoded.codes)[0])
        topic, partition, offset = (
            batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
        )
        reason = _REASONS[decoded.codes[row] - 1].value
        raise CorruptRecordError(
            f"the {part} of the record at offset {offset} of {topic}-{partition} does not decode: "
            f"{reason}",
            hint="give --decode-errors keep to keep records that do not decode",
        )


def _resolve_members(shape: Shape, requested: RequestedMembers, column_path: str) -> Selection:
    """Convert requested members to a selection, also within lists and maps.

    Raises `InputError` for an unknown member.
    """
    if requested is None:
        return None
    if shape.form in (Form.LIST, Form.MAP):
        return {"": _resolve_members(shape.members[-1].shape, requested, column_path)}
    members = {member.name: member.shape for member in shape.members}
    selection: dict[str, Selection] = {}
    for name, nested_request in requested.items():
        if name not in members:
            raise InputError(
                f"{column_path} has no member {name}",
                expected=", ".join(members) or f"{column_path} itself, which is {shape.type}",
            )
        selection[name] = _resolve_members(members[name], nested_request, f"{column_path}.{name}")
    return selection


def _requested_members(names: Sequence[str], part: str) -> RequestedMembers:
    """Return the members of a key or value that are requested by names of columns."""
    members: dict[str, Any] = {}
    for name in names:
        if name == part:
            return None
        if not name.startswith(f"{part}."):
            continue
        level = members
        *parents, leaf = name.split(".")[1:]
        for parent in parents:
            if level.setdefault(parent, {}) is None:
                break
            level = level[parent]
        else:
            level[leaf] = None
    return members or None

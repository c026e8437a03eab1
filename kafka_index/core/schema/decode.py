"""Typed columns: keys and values of records, decoded with their schemas to Arrow structs.

`TypedColumn` decodes the keys or values of a topic. Its type is joined from all schemas that the
records were written with. `TypedColumns` puts typed columns into record batches, with side columns
for the schema of a value, and the reason why it could not be decoded. No row is dropped, and the
bytes of a row that fails are kept.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
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
from kafka_index.core.schema.align import Form, Member, Plan, Selection, Shape, align
from kafka_index.core.schema.avro import AvroSchema
from kafka_index.core.schema.bodies import Bodies, Decoded, DecodedTooLargeError, masked
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
    frames_of,
    message_indexes,
)

#: The selected members, keyed by name, each with its own selected members; None for all.
Wanted: TypeAlias = "Mapping[str, Wanted] | None"
#: The reasons why a row has no value, in the order of their codes, which begin at 1.
_REASONS = tuple(Reason)
_CODES: Mapping[Reason, int] = {reason: code for code, reason in enumerate(_REASONS, 1)}
_FRAMING_CODES = np.zeros(max(Framing) + 1, np.int8)
for _framing, _reason in FRAMING_REASONS.items():
    _FRAMING_CODES[_framing] = _CODES[_reason]


def side_columns(part: str) -> dict[str, pa.DataType]:
    """Return the side columns of a typed key or value."""
    kinds = (pa.int64(), pa.string(), pa.string(), pa.binary())
    return dict(zip(side_names(part), kinds, strict=True))


class ColumnForm(StrEnum):
    """The form of a column of keys or values, which the schemas of a topic decide."""

    #: No schema was found.
    BYTES = "bytes"
    ONE_TYPE = "one_type"
    #: A struct with a member for each type.
    TYPES = "types"


class Writer(NamedTuple):
    """The schema that a row was written with, and for Protobuf the path of its message type.

    Without a key, it is the schema for rows without a schema ID: of a topic, or of all values.
    """

    key: SchemaKey | None
    path: MessagePath = ()
    topic: str | None = None

    @property
    def text(self) -> str:
        """The writer as text, for state files."""
        kind, value = ("", self.topic or "") if self.key is None else self.key
        return f"{kind}:{value}:{'.'.join(map(str, self.path))}"

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Parse the text of a writer; raises `ValueError` if it is malformed."""
        kind, value, path = text.split(":")
        key = None
        if kind:
            is_number = KeyKind(kind) not in (KeyKind.GUID, KeyKind.GLUE_UUID)
            key = SchemaKey(KeyKind(kind), int(value) if is_number else value)
        topic = value if value and key is None else None
        return cls(key, tuple(int(one) for one in path.split(".") if one), topic)


@dataclass(frozen=True, slots=True)
class Written:
    """The writers of the keys or values of a topic, collected from its records; picklable.

    `names_schemas`: records have IDs of unknown schemas. IDs that are parts of numbers or texts are
    not counted.
    """

    writers: frozenset[Writer] = frozenset()
    names_schemas: bool = False

    @property
    def names_any(self) -> bool:
        """Whether records have schema IDs, known or unknown."""
        return self.names_schemas or any(writer.key is not None for writer in self.writers)


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
        The schema of values without a frame, and the schemas that it refers to.
    main : mapping of str to TopicSchema
        The only schema, keyed by the only topic: the schema of values without a schema ID.
    is_strict : bool
        Whether an error is raised for the first row that fails.
    context : str
        The context of the IDs.
    """

    parts: tuple[str, ...] = (VALUE,)
    schemas: Schemas = field(default_factory=lambda: Schemas(()))
    value_schema: tuple[Schemas, TopicSchema] | None = None
    main: Mapping[str, TopicSchema] = field(default_factory=dict)
    is_strict: bool = False
    context: str = DEFAULT_CONTEXT
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES

    def unframed_schema(self, part: str, topic: str) -> tuple[Writer, Schemas, TopicSchema] | None:
        """Return the schema for the rows of a topic without a schema ID; None if it is unknown."""
        if part == VALUE and self.value_schema is not None:
            return Writer(None), *self.value_schema
        found = self.schemas.topic_schema(topic, is_key=part == KEY)
        if found is None and part == VALUE:
            found = self.main.get(topic)
        return None if found is None else (Writer(None, (), topic), self.schemas, found)


class _Decoder(Protocol):
    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded: ...


class _Parsed(Protocol):
    """A schema, or a type of messages."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    def decoder(self, selection: Selection = None) -> _Decoder: ...


def parse_schema(schemas: Schemas, schema: Schema) -> AvroSchema | ProtobufFile | JsonSchema:
    """Parse a schema and the schemas that it refers to; raises `BadSchemaError`."""
    references = {name: one.text for name, one in schemas.references_of(schema).items()}
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
        The version in a subject of the topic or of the type, which orders versions.
    is_own : bool
        Whether it is the schema of the topic or of its subject. All of these belong to one type,
        even if their names differ.
    is_by_record : bool
        Whether its subject is named after the type (strategies RecordName and TopicRecordName).
    """

    writer: Writer
    version: int | None = None
    is_own: bool = False
    is_by_record: bool = False


@dataclass(slots=True)
class _Version:
    """The schema of some rows of a column, and the conversion of these rows to the column."""

    origin: _Origin
    schema: Schema
    parsed: _Parsed
    group: int = -1
    plan: Plan | None = None
    decoder: _Decoder | None = None

    def is_version_of(self, other: _Version) -> bool:
        """Return whether the schema has the type of an earlier one, by its names."""
        if self.schema.type is not other.schema.type:
            return False
        name, before = self.parsed.name, other.parsed.name
        if name == before:
            return True
        if self.schema.type is SchemaType.PROTOBUF:
            return False
        aliases = getattr(self.parsed, "aliases", ())
        if before in aliases or _short(before) in aliases:
            return True
        # Titles of JSON, namespaces of Avro and types without a name change within a subject.
        is_plain = not (self.parsed.shape.is_struct or other.parsed.shape.is_struct)
        is_same = self.schema.type is SchemaType.JSON or is_plain or _short(name) == _short(before)
        return self.origin.is_own and other.origin.is_own and is_same

    @property
    def order(self) -> tuple[int, int, str]:
        """The sort key of the version."""
        schema_id = -1 if self.schema.schema_id is None else self.schema.schema_id
        version = -1 if self.origin.version is None else self.origin.version
        return version, schema_id, str(self.origin.writer)


@dataclass(slots=True)
class DecodedColumn:
    """A decoded column, with side values for each row.

    `codes` are 0 for rows without an error; `version_numbers` are -1 for rows without a schema, and
    `ids` for rows without an id. `is_raw`: rows of a topic without a schema keep their bytes.
    """

    array: pa.Array
    codes: NDArray[np.int8]
    version_numbers: NDArray[np.int32]
    ids: Longs
    is_raw: bool = False


class TypedColumn:
    """The keys or values of one or several topics: their type and their decoding.

    Parameters
    ----------
    part : str
        ``key`` or ``value``.
    options : DecodeOptions
        The schemas.
    topics : mapping of str to Written
        The topics, and the writers of their records.
    wanted : mapping, optional
        The selected members, keyed by name; None for all.
    """

    def __init__(
        self,
        part: str,
        options: DecodeOptions,
        topics: Mapping[str, Written],
        wanted: Wanted = None,
    ) -> None:
        self._part, self._options, self._topics = part, options, dict(sorted(topics.items()))
        self._wanted = wanted
        self._failed: dict[Writer, Reason] = {}
        self._versions: list[_Version] = []
        self._parsed: dict[tuple[int, str], Any] = {}
        self._unframed = {
            topic: found
            for topic in self._topics
            if (found := options.unframed_schema(part, topic)) is not None
        }
        self._has_frames = not (part == VALUE and options.value_schema is not None)
        #: The topics that have a schema, usable or not.
        self._typed_topics: set[str] = set()
        self._add_versions()
        self._numbers = {one.origin.writer: number for number, one in enumerate(self._versions)}
        self._names: list[str] = []
        self._shapes: list[Shape] = []
        self._join_versions()
        shape = self._joined_shape()
        self._selection = _resolved(shape, wanted, part) if self._versions else None
        self.shape = shape.select(self._selection)
        for one in self._versions:
            assert one.plan is not None  # noqa: S101, because mypy needs it
            wanted = self._selection_of(one.group)
            if wanted != {}:
                one.plan = one.plan.select(wanted)
                one.decoder = one.parsed.decoder(one.plan.selection)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments: the process that uses the column parses the schemas again."""
        return TypedColumn, (self._part, self._options, self._topics, self._wanted)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The writers with the GUIDs of their schemas, which the type depends on."""
        return tuple((one.origin.writer.text, one.schema.guid) for one in self._versions)

    def has_members(self, names: Sequence[str]) -> bool:
        """Return whether the type has all members of this part that are named."""
        wanted = _wanted(names, self._part)
        if wanted is None:
            return True
        if not self.is_typed:
            return False
        try:
            _resolved(self._joined_shape(), wanted, self._part)
        except InputError:
            return False
        return True

    @property
    def is_typed(self) -> bool:
        """Whether a schema exists; otherwise the bytes are returned unchanged."""
        return bool(self._versions)

    @property
    def has_schema(self) -> bool:
        """Whether a topic has a schema, usable or not."""
        return bool(self._typed_topics)

    @property
    def form(self) -> ColumnForm:
        """The form of the column."""
        if not self.is_typed:
            return ColumnForm.BYTES
        return ColumnForm.TYPES if self.has_types else ColumnForm.ONE_TYPE

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        return self.shape.type if self.is_typed else pa.binary()

    def selected(self, wanted: Wanted) -> TypedColumn:
        """Return the column with the selected members only.

        Raises `InputError` for an unknown member.
        """
        if wanted is None:
            return self
        if not self.is_typed:
            raise InputError(
                f"the {self._part} has no schema, and so no member {next(iter(wanted))}",
                path=", ".join(self._topics),
                hint="kafka-index schemas lists the schemas of topics; a schemas.json maps topics",
            )
        return TypedColumn(self._part, self._options, self._topics, wanted)

    # ------------------------------------------------------------------ the type
    def _add_versions(self) -> None:
        added: set[Writer] = set()
        for topic, written in self._topics.items():
            for one in self._writers_of(topic, written.writers):
                self._typed_topics.add(topic)
                if one.writer in added:
                    continue
                added.add(one.writer)
                try:
                    schemas, schema = self._schema_of(one.writer)
                    parsed = self._parse(schemas, schema, one.writer)
                except UnknownSchemaError:
                    self._failed[one.writer] = Reason.UNKNOWN_ID
                except IndexError:
                    self._failed[one.writer] = Reason.BAD_INDEX
                except BadSchemaError:
                    self._failed[one.writer] = Reason.BAD_SCHEMA
                else:
                    self._versions.append(_Version(one, schema, parsed))
        self._versions.sort(key=lambda one: one.order)

    def _writers_of(self, topic: str, writers: Collection[Writer]) -> Iterator[_Origin]:
        """Yield the writers derived from names of subjects, then the writers in the data."""
        if topic in self._unframed:
            unframed = self._unframed[topic][0]
            if unframed in writers or not any(one.key is None for one in writers):
                yield _Origin(unframed, is_own=True)
        if not self._has_frames:
            return
        paths = list(dict.fromkeys(one.path for one in writers if one.path)) or [(0,)]
        names = {writer: self._name_of(writer) for writer in sorted(writers, key=str)}
        # A topic has the message types of the file that occur in the data, or else the first type.
        messages = {name for writer, name in names.items() if writer.path}
        own: set[str | None] = set()
        if topic in self._unframed:
            own.add(self._unframed[topic][2].schema.guid)
        for version, schema, writer in self._of_subject(f"{topic}-{self._part}", paths):
            own.add(schema.guid)
            if not (writer.path and messages) or self._name_of(writer) in messages:
                yield _Origin(writer, version, is_own=True)
        for writer, name in names.items():
            if name is not None and self._guid_of(writer) not in own:
                for subject in (name, f"{topic}-{name}"):
                    for version, _, other in self._of_subject(subject, [writer.path]):
                        yield _Origin(other, version, is_by_record=True)
        for writer in names:
            yield _Origin(writer, is_own=self._guid_of(writer) in own)

    def _guid_of(self, writer: Writer) -> str | None:
        try:
            return self._schema_of(writer)[1].guid
        except UnknownSchemaError:
            return None

    def _name_of(self, writer: Writer) -> str | None:
        """Return the name of the type of a writer, if its schema is known."""
        try:
            return self._parse(*self._schema_of(writer), writer).name
        except (UnknownSchemaError, IndexError, BadSchemaError):
            return None

    def _of_subject(
        self, subject: str, paths: Sequence[MessagePath]
    ) -> Iterator[tuple[int, Schema, Writer]]:
        """Yield the versions of a subject; `paths` are the paths of Protobuf message types."""
        for version in self._options.schemas.versions_of(qualify(subject, self._options.context)):
            schema = version.schema
            if schema.schema_id is None:
                continue
            key = SchemaKey(KeyKind.ID, schema.schema_id)
            for path in paths if schema.type is SchemaType.PROTOBUF else [()]:
                yield version.version, schema, Writer(key, path)

    def _schema_of(self, writer: Writer) -> tuple[Schemas, Schema]:
        if writer.key is None:
            schemas, found = self._unframed_schema(writer)
            return schemas, found.schema
        schemas = self._options.schemas
        return schemas, schemas.find(writer.key, self._options.context)

    def _unframed_schema(self, writer: Writer) -> tuple[Schemas, TopicSchema]:
        topic = next(iter(self._unframed)) if writer.topic is None else writer.topic
        return self._unframed[topic][1:]

    def _parse(self, schemas: Schemas, schema: Schema, writer: Writer) -> _Parsed:
        place = id(schemas), schema.guid
        if place not in self._parsed:
            try:
                self._parsed[place] = parse_schema(schemas, schema)
            except BadSchemaError as error:
                self._parsed[place] = error
        parsed = self._parsed[place]
        if isinstance(parsed, BadSchemaError):
            raise parsed
        if isinstance(parsed, ProtobufFile):
            name = None if writer.key else self._unframed_schema(writer)[1].type_name
            found: _Parsed = parsed.named(name) if name else parsed.message(writer.path or (0,))
            return found
        typed: _Parsed = parsed
        return typed

    def _join_versions(self) -> None:
        """Join the versions of each type; unrelated types are kept separate."""
        groups: list[list[_Version]] = []
        for one in self._versions:
            own = next((group for group in groups if _are_versions(group, one)), None)
            if own is None:
                groups.append([one])
            else:
                own.append(one)
        for number, group in enumerate(groups):
            shape, plans = align([one.parsed.shape for one in group])
            self._shapes.append(shape)
            for one, plan in zip(group, plans, strict=True):
                one.group, one.plan = number, plan
        self._names = _group_names([group[-1].parsed.name for group in groups])
        # If subjects are named after types, a topic may get values of further types, so its column
        # has a member per type from the start. Keys of several types are not useful for
        # partitioning.
        is_by_record = self._part == VALUE and any(
            one.origin.is_by_record and not any(other.origin.is_own for other in groups[one.group])
            for one in self._versions
        )
        self.has_types = len(groups) > 1 or is_by_record

    def _joined_shape(self) -> Shape:
        if not self.has_types and self._shapes:
            return self._shapes[0]
        members = [
            Member(name, shape) for name, shape in zip(self._names, self._shapes, strict=True)
        ]
        return Shape.of_struct(members, Form.UNION)

    def _selection_of(self, group: int) -> Selection:
        """Return the selected members of a type; {} if only members of other types are selected."""
        if not self.has_types or self._selection is None:
            return self._selection
        return self._selection.get(self._names[group], {})

    # ------------------------------------------------------------------ decoding
    def decode(self, values: pa.Array, headers: pa.Array | None, topic: str) -> DecodedColumn:
        """Decode keys or values of a topic; raises `DecodedTooLargeError` above the memory limit.

        The rows of a topic without a schema keep their bytes, and are not errors.
        """
        count = len(values)
        codes = np.zeros(count, np.int8)
        numbers = np.full(count, -1, np.int32)
        ids = np.full(count, -1, np.int64)
        whole = Bodies.of_array(values)
        written = self._topics.get(topic, Written())
        if topic in self._unframed and not (self._has_frames and written.names_any):
            rows = np.flatnonzero(whole.starts >= 0)
            self._assign(self._unframed[topic][0], rows, codes, numbers)
            return self._decoded(whole, codes, numbers, ids)
        if topic not in self._typed_topics:
            return self._undecoded(values, headers, topic, codes, numbers, ids)
        frames = frames_of(values, headers, is_key=self._part == KEY)
        frames, data = _inflated(frames, self._options.max_bytes, codes)
        codes = np.where(codes == 0, _FRAMING_CODES[frames.framing], codes)
        starts, ends = frames.starts.copy(), frames.ends.copy()
        starts[frames.framing == Framing.NULL] = -1
        for key, rows in frames.groups():
            if isinstance(key.value, int):
                ids[rows] = key.value
            self._assign_key(key, rows, frames, codes, numbers, starts)
        if topic in self._unframed:
            is_unframed = (frames.key_numbers < 0) & (whole.starts >= 0)
            starts[is_unframed] = whole.starts[is_unframed]
            codes[is_unframed] = 0
            writer = self._unframed[topic][0]
            self._assign(writer, np.flatnonzero(is_unframed), codes, numbers)
            is_unknown = codes == _CODES[Reason.UNKNOWN_ID]
            self._assign_unknown(topic, np.flatnonzero(is_unknown), frames, codes, numbers, starts)
        if not self._versions:
            return DecodedColumn(values, codes, numbers, ids)
        return self._decoded(Bodies(data, starts, ends), codes, numbers, ids)

    def _undecoded(
        self,
        values: pa.Array,
        headers: pa.Array | None,
        topic: str,
        codes: NDArray[np.int8],
        numbers: NDArray[np.int32],
        ids: Longs,
    ) -> DecodedColumn:
        """Return the rows of a topic without a schema; rows with a schema ID are errors."""
        if self._topics.get(topic, Written()).names_schemas:
            frames = frames_of(values, headers, is_key=self._part == KEY)
            for key, rows in frames.groups():
                if isinstance(key.value, int):
                    ids[rows] = key.value
                if key.is_plausible:
                    codes[rows] = _CODES[Reason.UNKNOWN_ID]
        array = pa.nulls(len(values), self.type) if self._versions else values
        return DecodedColumn(array, codes, numbers, ids, is_raw=bool(self._versions))

    def _assign_unknown(
        self,
        topic: str,
        rows: Longs,
        frames: Frames,
        codes: NDArray[np.int8],
        numbers: NDArray[np.int32],
        starts: Longs,
    ) -> None:
        """Assign the topic's schema to rows with an unknown schema; their frames are stripped."""
        writer, _, found = self._unframed[topic]
        codes[rows] = 0
        if found.schema.type is not SchemaType.PROTOBUF:
            self._assign(writer, rows, codes, numbers)
            return
        for path, own in _by_message(frames, rows, codes, starts, self._options.schemas):
            # The name of a type in the folder takes precedence.
            named = writer if found.type_name or path == (0,) else writer._replace(path=path)
            self._assign(named, own, codes, numbers)

    def _assign_key(
        self,
        key: SchemaKey,
        rows: Longs,
        frames: Frames,
        codes: NDArray[np.int8],
        numbers: NDArray[np.int32],
        starts: Longs,
    ) -> None:
        """Find the versions of the rows with a schema ID."""
        rows = rows[codes[rows] == 0]
        try:
            schema = self._options.schemas.find(key, self._options.context)
        except UnknownSchemaError:
            codes[rows] = _CODES[Reason.UNKNOWN_ID]
            return
        if schema.type is not SchemaType.PROTOBUF:
            self._assign(Writer(key), rows, codes, numbers)
            return
        for path, own in _by_message(frames, rows, codes, starts, self._options.schemas):
            self._assign(Writer(key, path), own, codes, numbers)

    def _assign(
        self, writer: Writer, rows: Longs, codes: NDArray[np.int8], numbers: NDArray[np.int32]
    ) -> None:
        number = self._numbers.get(writer)
        if number is not None:
            numbers[rows] = number
        else:
            codes[rows] = _CODES[self._failed.get(writer, Reason.OTHER_SCHEMA)]

    def _decoded(
        self, bodies: Bodies, codes: NDArray[np.int8], numbers: NDArray[np.int32], ids: Longs
    ) -> DecodedColumn:
        present = np.unique(numbers[numbers >= 0]).tolist()
        pieces: dict[int, list[tuple[Longs, pa.Array]]] = {}
        for number in present:
            version = self._versions[number]
            if version.schema.schema_id is not None:
                ids[numbers == number] = version.schema.schema_id
            if version.decoder is None or version.plan is None:
                continue
            rows = np.flatnonzero(numbers == number)
            own = bodies.of_rows(rows)
            if len(present) == 1:
                # In most batches, all rows have one version, so no arrays are concatenated.
                starts = np.where(numbers == number, bodies.starts, -1)
                own, rows = replace(bodies, starts=starts), np.arange(len(numbers))
            found = version.decoder.decode(own, self._options.max_bytes)
            for row, reason in found.errors.items():
                codes[rows[row]] = _CODES[reason]
            array = version.plan.convert(found.array)
            pieces.setdefault(version.group, []).append((rows, array))
        return DecodedColumn(self._put_together(pieces, codes, numbers), codes, numbers, ids)

    def _put_together(
        self,
        pieces: Mapping[int, list[tuple[Longs, pa.Array]]],
        codes: NDArray[np.int8],
        numbers: NDArray[np.int32],
    ) -> pa.Array:
        count = len(numbers)
        if not self.has_types:
            return _in_order(pieces.get(0, []), self.shape.type, count)
        wanted = [at for at, name in enumerate(self._names) if name in _names_of(self.shape)]
        columns = [
            _in_order(pieces.get(at, []), member.shape.type, count)
            for at, member in zip(wanted, self.shape.members, strict=True)
        ]
        failed = (codes != 0) & (codes != _CODES[Reason.TRAILING])
        array = pa.StructArray.from_arrays(columns, fields=list(self.shape.type))
        return masked(array, (numbers < 0) | failed)

    # ------------------------------------------------------------------ side columns
    def side_arrays(self, values: pa.Array, column: DecodedColumn) -> dict[str, pa.Array]:
        """Return the side columns of a decoded column, keyed by name."""
        types = pa.array([one.parsed.name for one in self._versions], pa.string())
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


def _by_message(
    frames: Frames, rows: Longs, codes: NDArray[np.int8], starts: Longs, schemas: Schemas
) -> Iterator[tuple[MessagePath, Longs]]:
    """Yield the message types of Protobuf rows with their rows; set the starts of the bodies."""
    indexes = message_indexes(frames, rows, has_names=schemas.has_foreign_ids)
    starts[rows] = indexes.starts
    codes[rows[indexes.path_numbers < 0]] = _CODES[Reason.BAD_INDEX]
    for number, path in enumerate(indexes.paths):
        yield path, rows[indexes.path_numbers == number]


def _are_versions(group: list[_Version], one: _Version) -> bool:
    """Return whether a schema is a version of the same type as others, with compatible values."""
    if not any(one.is_version_of(other) for other in group):
        return False
    try:
        align([other.parsed.shape for other in (*group, one)])
    except InputError:
        return False
    return True


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _names_of(shape: Shape) -> set[str]:
    return {member.name for member in shape.members}


def _group_names(full_names: list[str]) -> list[str]:
    """Return the member name of each type of a column: short names if they are distinct."""
    short = list(map(_short, full_names))
    names: list[str] = []
    for name, full in zip(short, full_names, strict=True):
        is_unique = [one.lower() for one in short].count(name.lower()) == 1
        base = free = name if is_unique else full.replace(".", "_")
        number = 1
        while free.lower() in {one.lower() for one in names}:
            number += 1
            free = f"{base}_{number}"
        names.append(free)
    return names


def _in_order(pieces: list[tuple[Longs, pa.Array]], kind: pa.DataType, count: int) -> pa.Array:
    """Merge arrays: each row at its row number, and null in all other rows."""
    if not pieces:
        return pa.nulls(count, kind)
    if len(pieces) == 1 and len(pieces[0][0]) == count:
        return pieces[0][1]
    places = np.zeros(count, np.int64)
    has = np.zeros(count, np.bool_)
    first = 0
    for rows, array in pieces:
        places[rows] = np.arange(first, first + len(array))
        has[rows] = True
        first += len(array)
    joined = pa.concat_arrays([array for _, array in pieces])
    return joined.take(pa.array(places, mask=~has))


def _inflated(
    frames: Frames, max_bytes: int, codes: NDArray[np.int8]
) -> tuple[Frames, NDArray[np.uint8]]:
    """Return the frames with decompressed bodies, and their data."""
    if frames.is_compressed is None:
        return frames, frames.data
    starts, ends = frames.starts.copy(), frames.ends.copy()
    parts = [frames.data]
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
        parts.append(np.frombuffer(body, np.uint8))
        starts[row], ends[row] = size, size + len(body)
        size += len(body)
        if size - len(frames.data) > max_bytes and len(frames) > 1:
            raise DecodedTooLargeError
    data = np.concatenate(parts)
    return replace(frames, data=data, starts=starts, ends=ends, is_compressed=None), data


# ------------------------------------------------------------------------------- record batches
class TypedColumns:
    """The typed columns of record batches, and all other columns unchanged.

    Parameters
    ----------
    columns : mapping of str to TypedColumn
        The typed keys and values, keyed by ``key`` and ``value``.
    names : sequence of str
        The requested columns: columns of records, members such as ``value.customer.id``, and side
        columns. Typed columns are followed by all of their side columns at the end, unless some are
        named.
    is_strict : bool
        Whether an error is raised for the first row that fails.
    keeps_raw : bool
        Whether the bytes of all rows are kept, not only of rows that fail.
    """

    def __init__(
        self,
        columns: Mapping[str, TypedColumn],
        names: Sequence[str],
        *,
        is_strict: bool = False,
        keeps_raw: bool = False,
    ) -> None:
        self._names = tuple(names)
        self._is_strict = is_strict
        self._keeps_raw = keeps_raw
        self._given = dict(columns)
        self._columns = {
            part: column.selected(_wanted(names, part))
            for part, column in columns.items()
            if any(is_of_part(name, part) for name in names)
        }
        self.names = self._output_names()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments."""
        return _restored, (self._given, self._names, self._is_strict, self._keeps_raw)

    def named(self, names: Sequence[str]) -> TypedColumns:
        """Return the columns of other names."""
        return TypedColumns(self._given, names, is_strict=self._is_strict)

    @property
    def is_typed(self) -> bool:
        """Whether a key or value has a schema."""
        return any(column.has_schema for column in self._columns.values())

    @property
    def forms(self) -> dict[str, ColumnForm]:
        """The forms of the keys and values."""
        return {part: column.form for part, column in self._columns.items()}

    def _output_names(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in self._names:
            part = name.partition(".")[0]
            found[part if part in self._columns else name] = None
        for part in self._columns:
            sides = side_columns(part)
            if not any(name in sides for name in self._names):
                found.update(dict.fromkeys(sides))
        return tuple(found)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of records that are read."""
        sides = {name for part in (KEY, VALUE) for name in side_columns(part)}
        own = [name for name in self.names if name not in sides]
        if self._columns:
            own += [*self._columns, "headers", "topic", "partition", "offset"]
        return tuple(dict.fromkeys(own))

    @property
    def error_names(self) -> list[str]:
        """The columns of codes of errors."""
        return [side_names(part)[2] for part in self._columns]

    def schema(self, records: pa.Schema) -> pa.Schema:
        """Return the schema of the decoded batches; `records` is the schema of the read columns."""
        sides = {name: kind for part in self._columns for name, kind in side_columns(part).items()}
        fields = []
        for name in self.names:
            if name in self._columns:
                fields.append(pa.field(name, self._columns[name].type))
            elif name in sides:
                fields.append(pa.field(name, sides[name]))
            else:
                fields.append(records.field(name))
        if CORRUPT_RECORD in records.names:
            fields.append(records.field(CORRUPT_RECORD))
        return pa.schema(fields)

    def decode(
        self, batch: pa.RecordBatch, errors: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batch with typed columns, in parts if its values exceed the memory limit.

        Errors are counted by code. If `is_strict`, raises `CorruptRecordError` for a row that
        fails.
        """
        try:
            found = self._decode(batch)
        except DecodedTooLargeError:
            half = len(batch) // 2
            yield from self.decode(batch.slice(0, half), errors)
            yield from self.decode(batch.slice(half), errors)
            return
        arrays: dict[str, pa.Array] = {
            name: batch.column(name) for name in batch.schema.names if name not in self._columns
        }
        for part, decoded in found.items():
            self._check(part, decoded, batch)
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

    def _decode(self, batch: pa.RecordBatch) -> dict[str, DecodedColumn]:
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        topic = batch.column("topic")[0].as_py() if self._columns and len(batch) else ""
        return {
            part: column.decode(batch.column(part), headers, topic)
            for part, column in self._columns.items()
        }

    def _check(self, part: str, decoded: DecodedColumn, batch: pa.RecordBatch) -> None:
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
            hint="keep such records with --decode-errors keep",
        )


def _resolved(shape: Shape, wanted: Wanted, place: str) -> Selection:
    """Find the selected members, also within lists and maps; raises `InputError` if unknown."""
    if wanted is None:
        return None
    if shape.form in (Form.LIST, Form.MAP):
        return {"": _resolved(shape.members[-1].shape, wanted, place)}
    members = {member.name: member.shape for member in shape.members}
    found: dict[str, Selection] = {}
    for name, inner in wanted.items():
        if name not in members:
            raise InputError(
                f"{place} has no member {name}",
                expected=", ".join(members) or f"{place} itself, which is {shape.type}",
            )
        found[name] = _resolved(members[name], inner, f"{place}.{name}")
    return found


def _restored(
    columns: Mapping[str, TypedColumn],
    names: Sequence[str],
    is_strict: bool,  # noqa: FBT001, pickle passes it
    keeps_raw: bool,  # noqa: FBT001, as above
) -> TypedColumns:
    return TypedColumns(columns, names, is_strict=is_strict, keeps_raw=keeps_raw)


def _wanted(names: Sequence[str], part: str) -> Wanted:
    """Return the members of a key or value that column names select."""
    found: dict[str, Any] = {}
    for name in names:
        if name == part:
            return None
        if not name.startswith(f"{part}."):
            continue
        level = found
        *above, last = name.split(".")[1:]
        for one in above:
            if level.setdefault(one, {}) is None:
                break
            level = level[one]
        else:
            level[last] = None
    return found or None

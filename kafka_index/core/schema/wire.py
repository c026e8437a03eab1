"""Finds the schema IDs in the bytes and headers of keys and values, a column at a time.

A frame is the bytes before an encoded value, with the schema ID. Frames are found with numpy in
Arrow's buffers. Sources: Confluent's ``SchemaId``, ``PrefixSchemaIdDeserializer``,
``DualSchemaIdDeserializer`` and ``MessageIndexes``; Apicurio's ``IdHandler`` and
``KafkaSerdeHeaders``; the AWS Glue library's ``AWSSchemaRegistryConstants``.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.schema.registry import KeyKind, SchemaKey

Bytes = NDArray[np.uint8]

_LONG_BYTES = 8
_CONFLUENT_MAGIC, _GUID_MAGIC, _GLUE_MAGIC = 0, 1, 3
_ID_BYTES, _WIDE_ID_BYTES, _GUID_BYTES = 4, 8, 16
_GLUE_PLAIN, _GLUE_ZLIB = 0, 5
_GLUE_HEADER_BYTES = 18
# The maximum number of message indexes: protoc's limit for nested types.
_MAX_INDEXES = 32
_VARINT_BYTES = 5
# Apicurio's message ``Ref``: the tag of field 1, the bytes before the name (length of the message,
# tag, length of the name), and a limit for the length.
_REF_NAME_TAG, _REF_OVERHEAD, _MAX_REF_BYTES = 0x0A, 3, 0x80
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_.]*")


class Reason(StrEnum):
    """Why a key or value did not decode; the values of the side column ``_decode_error``."""

    #: The bytes do not have a schema ID in a known format.
    NO_MAGIC = "no_magic"
    #: No schema has the id or GUID.
    UNKNOWN_ID = "unknown_id"
    #: The schema does not parse, or a schema that it refers to is missing.
    BAD_SCHEMA = "bad_schema"
    #: The bytes end within the value, or a length in the bytes is out of range.
    TRUNCATED = "truncated"
    #: The value was decoded, but further bytes follow it.
    TRAILING = "trailing"
    BAD_UTF8 = "bad_utf8"
    #: The Protobuf file has no message type with the message indexes of the row.
    BAD_INDEX = "bad_index"
    #: The Arrow type cannot represent a number or time in the value.
    OUT_OF_RANGE = "out_of_range"
    #: The decoded value exceeds the memory limit, or is nested too deeply.
    TOO_LARGE = "too_large"
    #: The value does not match the types of its schema.
    BAD_VALUE = "bad_value"
    #: The type of the column was determined before the schema was registered or found.
    OTHER_SCHEMA = "other_schema"


class Framing(IntEnum):
    """The format of the schema ID of a row."""

    #: The key or value is null.
    NULL = 0
    #: The key or value has 0 bytes.
    EMPTY = 1
    #: The first bytes have no known format.
    NONE = 2
    #: The bytes or the header are shorter than the format requires.
    TOO_SHORT = 3
    #: ``00`` and a 4-byte ID.
    ID = 4
    #: ``01`` and a GUID.
    GUID = 5
    #: A header ``__value_schema_id`` or ``__key_schema_id`` with an id or a GUID.
    HEADER_ID = 6
    HEADER_GUID = 7
    #: ``00`` and an 8-byte ID.
    WIDE_ID = 8
    #: Apicurio's headers ``apicurio.value.globalId`` and ``contentId``.
    APICURIO_HEADER = 9
    #: ``03``, a compression and a UUID.
    GLUE = 10


#: The error of a row whose framing has no schema ID.
FRAMING_REASONS: Final = {
    Framing.EMPTY: Reason.NO_MAGIC,
    Framing.NONE: Reason.NO_MAGIC,
    Framing.TOO_SHORT: Reason.TRUNCATED,
}


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a column of keys or values, one for each row.

    Attributes
    ----------
    framing : array of uint8, shape (n,)
        The `Framing` of each row.
    key_numbers : array of int32, shape (n,)
        Positions in `keys`, -1 for a row without a schema ID.
    keys : tuple of SchemaKey
        The distinct schema IDs of the rows.
    data : array of uint8
        The bytes of all rows: the data buffer of the Arrow array.
    starts, ends : array of int64, shape (n,)
        The bounds in `data` of each row's body, which follows the frame. Bodies of Protobuf still
        begin with their message indexes. Bodies that Glue compressed are still compressed.
    header_data, header_starts, header_ends
        The bytes after the ID or GUID in the header of each row, which are Protobuf message
        indexes.
    is_compressed : array of bool, shape (n,), or None
        Which bodies are zlib streams; None if no body is.
    """

    framing: NDArray[np.uint8]
    key_numbers: NDArray[np.int32]
    keys: tuple[SchemaKey, ...]
    data: Bytes
    starts: Longs
    ends: Longs
    header_data: Bytes
    header_starts: Longs
    header_ends: Longs
    is_compressed: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.framing)

    def groups(self) -> Iterator[tuple[SchemaKey, Longs]]:
        """Yield each schema ID with the ascending numbers of its rows."""
        if len(self.keys) == 1 and (self.key_numbers == 0).all():
            yield self.keys[0], np.arange(len(self), dtype=np.int64)
            return
        for number, key in enumerate(self.keys):
            rows = np.flatnonzero(self.key_numbers == number)
            if len(rows):
                yield key, rows


def find_frames(
    values: pa.Array,
    headers: pa.Array | None = None,
    *,
    is_key: bool = False,
) -> Frames:
    """Find the frame of each row.

    A frame of ``00`` and 8 bytes is recognized if the first 4 bytes are zeros, because Confluent's
    ids begin at 1.

    Parameters
    ----------
    values : pa.Array
        Keys or values, binary or large binary.
    headers : pa.Array, optional
        The headers of the same records, as in the column ``headers``. A header with a schema ID
        takes precedence over the bytes. If a name is repeated, the last header is used.
    is_key : bool
        Whether the rows are keys, which have other header names.
    """
    framer = _Framer(values)
    framer.find_ids()
    framer.find_guids()
    framer.find_glue()
    if headers is not None and headers.null_count < len(headers):
        framer.find_headers(_LastHeaders(headers), "key" if is_key else "value")
    return framer.frames(values)


#: The maximum number of schema IDs that are counted separately for the keys or values of a topic.
MAX_KEYS = 1000
_MANY_KEYS = 10
_FEW_SIZES = 2


@dataclass(slots=True)
class KeyCounts:
    """Counts the schema IDs in the keys or values of a topic, in bounded memory.

    `others` counts records whose schema IDs are not among the first `MAX_KEYS`. `framings` counts
    all records by format. `body_sizes` has the first distinct body sizes of records with a 4-byte
    ID.
    """

    keys: Counter[SchemaKey] = field(default_factory=Counter)
    framings: Counter[Framing] = field(default_factory=Counter)
    others: int = 0
    body_sizes: set[int] = field(default_factory=set)

    def add_frames(self, frames: Frames) -> None:
        """Count the schema IDs and formats in the rows of a column."""
        numbers = frames.key_numbers[frames.key_numbers >= 0]
        counts = np.bincount(numbers, minlength=len(frames.keys)).tolist()
        self._add_keys((key, n) for key, n in zip(frames.keys, counts, strict=True) if n)
        framings = np.bincount(frames.framing).tolist()
        self.framings.update({Framing(form): n for form, n in enumerate(framings) if n})
        if len(self.body_sizes) < _FEW_SIZES:
            sizes = (frames.ends - frames.starts)[frames.framing == Framing.ID]
            self._add_body_sizes(np.unique(sizes).tolist())

    def add(self, more: KeyCounts) -> None:
        """Add the counts of more rows."""
        self._add_keys(more.keys.items())
        self.framings.update(more.framings)
        self.others += more.others
        self._add_body_sizes(more.body_sizes)

    def _add_keys(self, keys: Iterable[tuple[SchemaKey, int]]) -> None:
        for key, count in keys:
            if key in self.keys or len(self.keys) < MAX_KEYS:
                self.keys[key] += count
            else:
                self.others += count

    def _add_body_sizes(self, sizes: Iterable[int]) -> None:
        """Add body sizes until there are two distinct ones, which prove that body sizes differ."""
        for size in sizes:
            if len(self.body_sizes) < _FEW_SIZES:
                self.body_sizes.add(size)

    def are_numbers(self, known_ids: int) -> bool:
        """Return whether the 4-byte IDs are probably the first bytes of plain numbers.

        An 8-byte number often begins with zeros like a frame, and has 3 bytes after the apparent
        ID. Unlike IDs, numbers rarely repeat. `known_ids` is the number of IDs that have a schema.
        A few may be numbers that equal an ID by chance.
        """
        distinct_ids = len(self.keys) + self.others
        if known_ids * _MANY_KEYS > len(self.keys):
            return False
        id_records = self.keys.total() + self.others
        is_rare = id_records * 2 < self.framings.total() - self.framings[Framing.NULL]
        is_varied = distinct_ids * 4 > id_records and (distinct_ids >= _MANY_KEYS or is_rare)
        return is_varied or self.body_sizes == {_LONG_BYTES - 1 - _ID_BYTES}


class _Framer:
    """Finds the frames of the rows of a binary array, in one pass for each format."""

    def __init__(self, values: pa.Array) -> None:
        self._data, self._starts, self._ends = binary_buffers(values)
        self._sizes = self._ends - self._starts
        count = len(values)
        self._filled = np.flatnonzero(self._sizes > 0)
        self._magic = self._data[self._starts[self._filled]]
        self._framing = np.full(count, Framing.NONE, np.uint8)
        self._framing[self._sizes == 0] = Framing.EMPTY
        self._body = self._starts.copy()
        self._is_compressed = np.zeros(count, np.bool_)
        self._keys = _KeyNumbers(count)
        self._header_data = self._data[:0]
        self._header_starts, self._header_ends = np.zeros((2, count), np.int64)

    def _rows_with_magic(self, magic: int, frame_bytes: int) -> Longs:
        """Return the rows that begin with a magic byte; mark those shorter than a frame."""
        rows: Longs = self._filled[self._magic == magic]
        is_short = self._sizes[rows] < frame_bytes
        self._framing[rows[is_short]] = Framing.TOO_SHORT
        return rows[~is_short]

    def _set_frame(self, rows: Longs, framing: Framing, frame_bytes: int) -> None:
        self._framing[rows] = framing
        self._body[rows] = self._starts[rows] + frame_bytes

    def find_ids(self) -> None:
        """Find frames of ``00`` and an id."""
        rows = self._rows_with_magic(_CONFLUENT_MAGIC, 1 + _ID_BYTES)
        positions = self._starts[rows] + 1
        ids = _read_integers(self._data, positions, _ID_BYTES)
        is_wide = (ids == 0) & (self._sizes[rows] > _WIDE_ID_BYTES)
        wide_candidates = np.flatnonzero(is_wide)
        # IDs of 4 and of 8 bytes are never zero.
        wide_ids = _read_integers(self._data, positions[wide_candidates], _WIDE_ID_BYTES)
        is_wide[wide_candidates] = wide_ids != 0
        self._set_frame(rows[~is_wide], Framing.ID, 1 + _ID_BYTES)
        self._keys.add(KeyKind.ID, rows[~is_wide], ids[~is_wide])
        self._set_frame(rows[is_wide], Framing.WIDE_ID, 1 + _WIDE_ID_BYTES)
        self._keys.add(KeyKind.WIDE_ID, rows[is_wide], wide_ids[wide_ids != 0])

    def find_guids(self) -> None:
        """Find frames of ``01`` and a GUID."""
        rows = self._rows_with_magic(_GUID_MAGIC, 1 + _GUID_BYTES)
        self._set_frame(rows, Framing.GUID, 1 + _GUID_BYTES)
        self._keys.add_uuids(KeyKind.GUID, rows, self._data, self._starts[rows] + 1)

    def find_glue(self) -> None:
        """Find frames of AWS Glue."""
        rows = self._rows_with_magic(_GLUE_MAGIC, _GLUE_HEADER_BYTES)
        rows = rows[np.isin(self._data[self._starts[rows] + 1], (_GLUE_PLAIN, _GLUE_ZLIB))]
        self._set_frame(rows, Framing.GLUE, _GLUE_HEADER_BYTES)
        self._keys.add_uuids(KeyKind.GLUE_UUID, rows, self._data, self._starts[rows] + 2)
        self._is_compressed[rows] = self._data[self._starts[rows] + 1] == _GLUE_ZLIB

    def find_headers(self, headers: _LastHeaders, part: str) -> None:
        """Find the schema IDs in headers. In such rows, the keys or values have no frame."""
        self._header_data = headers.data
        for name, key_kind in (("globalId", KeyKind.GLOBAL_ID), ("contentId", KeyKind.CONTENT_ID)):
            rows, starts, ends = headers.find(f"apicurio.{part}.{name}")
            is_id = ends - starts == _WIDE_ID_BYTES
            self._set_header_frames(
                rows, np.where(is_id, Framing.APICURIO_HEADER, Framing.TOO_SHORT), ends, ends
            )
            ids = _read_integers(headers.data, starts[is_id], _WIDE_ID_BYTES)
            self._keys.add(key_kind, rows[is_id], ids)
        rows, starts, ends = headers.find(f"__{part}_schema_id")
        sizes = ends - starts
        magic = np.full(len(rows), _CONFLUENT_MAGIC, np.uint8)
        magic[sizes > 0] = headers.data[starts[sizes > 0]]
        is_id = (magic == _CONFLUENT_MAGIC) & (sizes > _ID_BYTES)
        is_guid = (magic == _GUID_MAGIC) & (sizes > _GUID_BYTES)
        is_short = (magic == _CONFLUENT_MAGIC) | (magic == _GUID_MAGIC)
        framing = np.select(
            (is_id, is_guid, is_short),
            (Framing.HEADER_ID, Framing.HEADER_GUID, Framing.TOO_SHORT),
            Framing.NONE,
        )
        body_starts = starts + np.where(is_guid, 1 + _GUID_BYTES, 1 + _ID_BYTES)
        self._set_header_frames(rows, framing, body_starts, ends)
        ids = _read_integers(headers.data, starts[is_id] + 1, _ID_BYTES)
        self._keys.add(KeyKind.ID, rows[is_id], ids)
        self._keys.add_uuids(KeyKind.GUID, rows[is_guid], headers.data, starts[is_guid] + 1)

    def _set_header_frames(
        self, rows: Longs, framing: NDArray[np.integer], starts: Longs, ends: Longs
    ) -> None:
        self._framing[rows] = framing
        self._body[rows] = self._starts[rows]
        self._is_compressed[rows] = False
        self._keys.numbers[rows] = -1
        self._header_starts[rows], self._header_ends[rows] = starts, ends

    def frames(self, values: pa.Array) -> Frames:
        """Return the frames that were found; null rows get no schema ID."""
        if values.null_count:
            null = np.asarray(values.is_null())
            self._framing[null] = Framing.NULL
            self._keys.numbers[null] = -1
        return Frames(
            self._framing,
            self._keys.numbers,
            tuple(self._keys.keys),
            self._data,
            self._body,
            self._ends,
            self._header_data,
            self._header_starts,
            self._header_ends,
            self._is_compressed if self._is_compressed.any() else None,
        )


class _KeyNumbers:
    """Numbers the distinct schema IDs of rows."""

    def __init__(self, count: int) -> None:
        self.numbers = np.full(count, -1, np.int32)
        self.keys: dict[SchemaKey, int] = {}

    def add(self, kind: KeyKind, rows: Longs, ids: Longs) -> None:
        """Set integer schema IDs of rows."""
        if len(rows) and (ids == ids[0]).all():
            self.numbers[rows] = self._key_number(SchemaKey(kind, int(ids[0])))
            return
        distinct_ids, numbers = np.unique(ids, return_inverse=True)
        self._set_keys(rows, [SchemaKey(kind, value) for value in distinct_ids.tolist()], numbers)

    def add_uuids(self, kind: KeyKind, rows: Longs, data: Bytes, positions: Longs) -> None:
        """Set the schema IDs of rows to the UUIDs at positions in the data."""
        uuid_bytes = np.ascontiguousarray(data[positions[:, None] + np.arange(_GUID_BYTES)])
        uuids, numbers = np.unique(uuid_bytes.view(f"V{_GUID_BYTES}").ravel(), return_inverse=True)
        keys = [SchemaKey(kind, str(uuid.UUID(bytes=bytes(value)))) for value in uuids]
        self._set_keys(rows, keys, numbers)

    def _set_keys(self, rows: Longs, keys: Sequence[SchemaKey], numbers: Longs) -> None:
        if keys:
            key_numbers = np.array([self._key_number(key) for key in keys], np.int32)
            self.numbers[rows] = key_numbers[numbers]

    def _key_number(self, key: SchemaKey) -> int:
        return self.keys.setdefault(key, len(self.keys))


def binary_buffers(values: pa.Array) -> tuple[Bytes, Longs, Longs]:
    """Return the data buffer of a binary array, with the start and the end of each row in it."""
    _, offsets, content = values.buffers()
    is_large = pa.types.is_large_binary(values.type)
    ends = np.zeros(1, np.int64)
    if offsets is not None and offsets.size:
        ends = np.frombuffer(offsets, np.int64 if is_large else np.int32)
        ends = ends[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return data, ends[:-1], ends[1:]


def _read_integers(data: Bytes, positions: Longs, size_bytes: int) -> Longs:
    """Return the big-endian integers, of 4 or 8 bytes, at positions in the data."""
    integers = np.zeros(len(positions), np.int64)
    for byte_number in range(size_bytes):
        integers = (integers << 8) | data[positions + byte_number]
    return integers.astype(np.int32).astype(np.int64) if size_bytes == _ID_BYTES else integers


class _LastHeaders:
    """Finds the last record header with a given name in each row."""

    def __init__(self, headers: pa.Array) -> None:
        pairs = headers.values
        self._header_names = pairs.field("key")
        self._is_valid = np.asarray(pairs.field("value").is_valid())
        self.data, self._starts, self._ends = binary_buffers(pairs.field("value"))
        offsets = np.asarray(headers.offsets).astype(np.int64)
        # The list offsets of a null row may include headers, which are ignored.
        self._row_starts, self._row_ends = offsets[:-1], offsets[1:]
        self._has_headers = np.asarray(headers.is_valid())

    def find(self, name: str) -> tuple[Longs, Longs, Longs]:
        """Return rows whose last header of this name is not null, and the bounds of its value."""
        has_name = pc.fill_null(pc.equal(self._header_names, name), fill_value=False)
        named_headers = np.flatnonzero(np.asarray(has_name))
        if not len(named_headers):
            return named_headers, named_headers, named_headers
        last_numbers = np.searchsorted(named_headers, self._row_ends, "left") - 1
        rows = np.flatnonzero((last_numbers >= 0) & self._has_headers)
        header_numbers = named_headers[last_numbers[rows]]
        is_valid = (header_numbers >= self._row_starts[rows]) & self._is_valid[header_numbers]
        rows, header_numbers = rows[is_valid], header_numbers[is_valid]
        return rows, self._starts[header_numbers], self._ends[header_numbers]


#: A Protobuf message type: its positions in the file and in enclosing types, or its name.
MessagePath: TypeAlias = tuple[int, ...] | tuple[str]


@dataclass(frozen=True, slots=True)
class MessageIndexes:
    """The message types of Protobuf rows, by position in the file and in the enclosing types.

    Attributes
    ----------
    paths : tuple of tuple
        Each distinct path: ``(1, 0)`` is the first type inside the second one. A type that Apicurio
        identifies by name is ``("Name",)``.
    path_numbers : array of int32, shape (n,)
        Positions in `paths`, -1 for rows whose message indexes do not parse (`Reason.BAD_INDEX`).
    starts : array of int64, shape (n,)
        The first byte of each message in the data of the frames.
    """

    paths: tuple[MessagePath, ...]
    path_numbers: NDArray[np.int32]
    starts: Longs


def read_message_indexes(frames: Frames, rows: Longs, *, has_names: bool = False) -> MessageIndexes:
    """Read the message indexes of Protobuf rows, which identify their message types.

    The number of indexes and the indexes are zigzag varints. If the schema ID is in a header, they
    follow the ID in the header. Otherwise, they precede the message. If there are 0 indexes, the
    path is ``(0,)``. With `has_names`, the registry may be Apicurio's, whose serializers write a
    message ``Ref`` with the name of the type instead of indexes. If Apicurio's headers have the
    schema ID, a message without a ``Ref`` is of the first type.
    """
    framing = frames.framing[rows]
    row_groups: list[tuple[Longs, MessageIndexes]] = []
    is_unread = np.ones(len(rows), np.bool_)

    def read_group(is_member: NDArray[np.bool_], read: Callable[[Longs], MessageIndexes]) -> None:
        positions = np.flatnonzero(is_member & is_unread)
        if len(positions):
            row_groups.append((positions, read(rows[positions])))
            is_unread[positions] = False

    has_header = np.isin(framing, (Framing.HEADER_ID, Framing.HEADER_GUID))
    read_group(has_header, partial(_read_header_indexes, frames))
    if has_names:
        read_group(_begin_with_name(frames, rows), partial(_read_names, frames))
    read_group(framing == Framing.APICURIO_HEADER, partial(_first_message_types, frames))
    read_group(is_unread, partial(_read_body_indexes, frames))
    return row_groups[0][1] if len(row_groups) == 1 else _join_indexes(len(rows), row_groups)


def _read_body_indexes(frames: Frames, rows: Longs) -> MessageIndexes:
    return _read_indexes(frames.data, frames.starts[rows], frames.ends[rows])


def _read_header_indexes(frames: Frames, rows: Longs) -> MessageIndexes:
    starts, ends = frames.header_starts[rows], frames.header_ends[rows]
    return replace(_read_indexes(frames.header_data, starts, ends), starts=frames.starts[rows])


def _first_message_types(frames: Frames, rows: Longs) -> MessageIndexes:
    return MessageIndexes(((0,),), np.zeros(len(rows), np.int32), frames.starts[rows])


def _begin_with_name(frames: Frames, rows: Longs) -> NDArray[np.bool_]:
    """Return a mask of bodies that begin with Apicurio's ``Ref``, which has the name of a type."""
    starts, data = frames.starts[rows], frames.data
    has_name = frames.ends[rows] - starts > _REF_OVERHEAD
    positions = starts[has_name]
    length = data[positions].astype(np.int64)
    has_name[has_name] = (
        (length >= _REF_OVERHEAD)
        & (length < _MAX_REF_BYTES)
        & (positions + 1 + length <= frames.ends[rows][has_name])
        & (data[positions + 1] == _REF_NAME_TAG)
        & (data[positions + 2] == length - 2)
    )
    for row in np.flatnonzero(has_name).tolist():
        has_name[row] = _NAME.fullmatch(_read_name(data, int(starts[row]))) is not None
    return has_name


def _read_names(frames: Frames, rows: Longs) -> MessageIndexes:
    starts = frames.starts[rows]
    names = [_read_name(frames.data, start).decode() for start in starts.tolist()]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    paths: tuple[MessagePath, ...] = tuple((name,) for name in numbers)
    path_numbers = np.array([numbers[name] for name in names], np.int32)
    return MessageIndexes(paths, path_numbers, starts + 1 + frames.data[starts])


def _read_name(data: Bytes, start: int) -> bytes:
    return data[start + 3 : start + 1 + int(data[start])].tobytes()


def _join_indexes(count: int, row_groups: Iterable[tuple[Longs, MessageIndexes]]) -> MessageIndexes:
    paths: list[MessagePath] = []
    numbers, starts = np.full(count, -1, np.int32), np.zeros(count, np.int64)
    for rows, indexes in row_groups:
        group_numbers = indexes.path_numbers
        numbers[rows] = np.where(group_numbers < 0, -1, group_numbers + len(paths))
        starts[rows] = indexes.starts
        paths += indexes.paths
    return _remove_duplicate_paths(paths, numbers, starts)


def _remove_duplicate_paths(
    paths: Sequence[MessagePath], numbers: NDArray[np.signedinteger], starts: Longs
) -> MessageIndexes:
    """Return the message indexes without unused or repeated paths."""
    used_numbers = np.unique(numbers[numbers >= 0]).tolist()
    new_numbers: dict[MessagePath, int] = {}
    renumbered = np.full(len(paths) + 1, -1, np.int32)
    for number in used_numbers:
        renumbered[number] = new_numbers.setdefault(paths[number], len(new_numbers))
    return MessageIndexes(tuple(new_numbers), renumbered[numbers], starts)


def _read_indexes(data: Bytes, starts: Longs, ends: Longs) -> MessageIndexes:
    at = starts.copy()
    if (starts < ends).all() and not data[starts].any():
        return MessageIndexes(((0,),), np.zeros(len(at), np.int32), at + 1)
    counts, is_bad = _read_varints(data, at, ends, np.ones(len(at), np.bool_))
    is_bad |= (counts < 0) | (counts > _MAX_INDEXES)
    # Each row has the number of a path. Each pass of the loop extends the paths by one index.
    paths: list[tuple[int, ...]] = [()]
    numbers = np.zeros(len(at), np.int64)
    for level in range(int(counts[~is_bad].max(initial=0))):
        reads = (counts > level) & ~is_bad
        indexes, failed = _read_varints(data, at, ends, reads)
        is_bad |= failed | (indexes < 0)
        # Indexes are stored plus one, so that 0 marks the end of a path.
        following = np.where(reads & ~is_bad, indexes + 1, 0)
        steps, numbers = np.unique((numbers << 32) | following, return_inverse=True)
        paths = [
            (*paths[step >> 32], index - 1) if (index := step & 0xFFFFFFFF) else paths[step >> 32]
            for step in steps.tolist()
        ]
    paths = [path or (0,) for path in paths]
    numbers = np.where(is_bad, -1, numbers)
    return _remove_duplicate_paths(paths, numbers, np.where(is_bad, starts, at))


def _read_varints(
    data: Bytes, at: Longs, ends: Longs, reads: NDArray[np.bool_]
) -> tuple[Longs, NDArray[np.bool_]]:
    """Read a zigzag varint of the rows in `reads` (``ByteUtils.readVarint``), and advance `at`.

    Returns the numbers, and a mask of the rows whose varint is truncated or too long.
    """
    values = np.zeros(len(at), np.int64)
    rows = np.flatnonzero(reads)
    is_bad = np.zeros(len(at), np.bool_)
    for byte_number in range(_VARINT_BYTES):
        is_truncated = at[rows] >= ends[rows]
        is_bad[rows[is_truncated]] = True
        rows = rows[~is_truncated]
        byte_values = data[at[rows]].astype(np.int64)
        at[rows] += 1
        values[rows] |= (byte_values & 0x7F) << (7 * byte_number)
        rows = rows[byte_values >= 0x80]
        if not len(rows):
            break
    is_bad[rows] = True
    values &= 0xFFFFFFFF
    return (values >> 1) ^ -(values & 1), is_bad
